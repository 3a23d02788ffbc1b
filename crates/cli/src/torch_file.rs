//! What a run takes of an exported PyTorch program: arrays of its data, its own loss or one over its first output, and its weights.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use plimsoll::internals::data::{FieldKind, Fields, Wanted};
use plimsoll::internals::formats::{Element, durable, safetensors};
use plimsoll::nn::{Loss, Measure, OfRanks, Outputs, Training, WholeSource};
use plimsoll::prelude::*;
use plimsoll::torch::{Kind, Length, Level, Output, Program, ProgramLoss, TorchModel};
use serde_json::{Value, json};

use crate::Failure;
use crate::config::Config;
use crate::form::Form;
use crate::model_setup::{ModelSetup, Purpose};
use crate::onnx_file::{FirstOutput, OfFirst, classes_first, loss, metrics};
use crate::request::is_torch;

/// The exported program that a run names; none where it names another model.
pub fn opened(config: &Config) -> Result<Option<TorchModel>, Failure> {
    let Some(path) = config.model.as_deref().filter(|name| is_torch(name)) else { return Ok(None) };
    if config.precision()? != Default::default() {
        let why = "an exported program says in which type it computes; export it under torch.autocast";
        return Err(Failure(format!("--precision: {why}")));
    }
    Ok(Some(TorchModel::open(config.model_copy.as_deref().unwrap_or(Path::new(path)))?))
}

/// Whether a run names a program that gives its loss itself, and no other loss for it.
pub fn has_own_loss(config: &Config) -> Result<bool, Failure> {
    Ok(opened(config)?.is_some_and(|model| learned(config, &model).is_none()))
}

/// The output that a loss is taken of; none where the program gives its loss itself.
pub fn learned<'a>(config: &Config, model: &'a TorchModel) -> Option<&'a Output> {
    let program = model.program();
    match (program.loss(), &config.loss) {
        (Some(_), None) => None,
        (own, _) => {
            program.outputs().iter().enumerate().find(|(i, _)| Some(*i) != own).map(|(_, output)| output)
        }
    }
}

/// How many samples a batch has where the program does not leave that open; else one.
pub fn batch(model: &TorchModel) -> usize {
    match model.program().inputs().first().and_then(|input| input.shape.first()) {
        Some(Length::Fixed(n)) => *n,
        _ => 1,
    }
}

/// The arrays that a program takes of a data set: its inputs, and labels for its first output where its loss is named.
pub fn fields(config: &Config, model: &TorchModel, purpose: Purpose) -> Fields {
    let input = |input: &plimsoll::torch::Input| Wanted {
        name: input.name.clone(),
        kind: if input.dtype.is_float() { FieldKind::Numbers } else { FieldKind::Indices },
    };
    let labels = learned(config, model).filter(|_| purpose != Purpose::Predict);
    Fields {
        inputs: model.program().inputs().iter().map(input).collect(),
        labels: labels
            .map(|output| Wanted { name: output.name.clone(), kind: FieldKind::Label })
            .into_iter()
            .collect(),
    }
}

/// The outputs that have samples: a loss is one number for a whole batch.
pub fn predicted(model: &TorchModel) -> impl Iterator<Item = &Output> {
    model.program().outputs().iter().filter(|output| output.shape.rank() > 0)
}

/// A program of which only outputs that have samples are wanted.
struct Predicted(TorchModel);

impl Model for Predicted {
    fn forward(&self, net: &mut Net, x: &[Tensor]) -> plimsoll::internals::run::Result<Outputs> {
        let outputs = self.0.forward(net, x)?;
        let samples: Vec<Tensor> = outputs.iter().filter(|y| y.shape().rank() > 0).cloned().collect();
        Ok(samples.into())
    }
}

/// The model of an exported program for data of a form: to predict what it gives, or with its loss.
pub fn setup(config: &Config, path: &str, form: &Form, purpose: Purpose) -> Result<ModelSetup, Failure> {
    let model = opened(config)?.ok_or_else(|| Failure(format!("{path} is no exported program")))?;
    if config.class_weights.is_some() {
        let why = "--class-weights is for models of the zoo; a program's loss counts all classes the same";
        return Err(Failure(why.into()));
    }
    let (spec, n_inputs) = (form.spec()?, model.program().inputs().len());
    let output = learned(config, &model).filter(|_| purpose != Purpose::Predict).cloned();
    let wanted = n_inputs + usize::from(output.is_some());
    if spec.len() < n_inputs || (purpose != Purpose::Predict && spec.len() != wanted) {
        let labels = if output.is_some() { ", and then labels for its first output" } else { "" };
        return Err(Failure(format!(
            "a sample of the data has {} arrays, but the program takes {n_inputs} as inputs{labels}",
            spec.len()
        )));
    }
    let fixed = model.program().inputs().first().and_then(|input| input.shape.first());
    if let (Some(Length::Fixed(fixed)), Some(said)) = (fixed, config.samples())
        && *fixed != said
    {
        return Err(Failure(format!(
            "{path} was exported for batches of {fixed}, and --batch is {said}: use --batch {fixed}, or export it with dynamic_shapes"
        )));
    }
    let name = Path::new(path).file_stem().and_then(|stem| stem.to_str()).unwrap_or("torch").to_string();
    let made =
        |own: Arc<dyn Model>, loss: Arc<dyn Loss>, metrics: Vec<Measure>, is_classifier: bool| ModelSetup {
            name,
            model: own,
            loss,
            metrics,
            precision: Precision::F32,
            is_classifier,
            keras: None,
            onnx: None,
            torch: Some(model.clone()),
        };
    if purpose == Purpose::Predict {
        if predicted(&model).next().is_none() {
            let why = "gives one number for a whole batch, so that there is nothing to predict; export the module without its loss";
            return Err(Failure(format!("{path} {why}")));
        }
        return Ok(made(Arc::new(Predicted(model.clone())), Arc::new(mse), Vec::new(), false));
    }
    model.check_gradients()?;
    let Some(output) = output else {
        if !config.metrics(&[])?.is_empty() {
            let why = "a program that gives its loss itself says nothing else; name a loss with --loss to count metrics";
            return Err(Failure(format!("--metrics: {why}")));
        }
        let own = model.clone().on_loss()?;
        return Ok(made(Arc::new(own), Arc::new(ProgramLoss), Vec::new(), false));
    };
    let label = &spec[n_inputs];
    let named =
        config.loss.as_deref().unwrap_or(if label.dtype.is_float() { "mse" } else { "cross-entropy" });
    let (loss, _) = loss(named)?;
    let is_classifier = named == "cross-entropy";
    let classes_first = classes_first(path, &output.shape, label, is_classifier, form)?;
    let metrics = metrics(config, is_classifier)?;
    let leaves_out = model.program().outputs().len() > 1;
    let own = FirstOutput { model: model.clone(), classes_first };
    Ok(made(Arc::new(own), Arc::new(OfFirst(loss, leaves_out)), metrics, is_classifier))
}

/// Writes parameters and buffers as safetensors, by the names and with the axes that they have in the module: for `load_state_dict`.
pub fn save(
    model: &TorchModel,
    training: &Training,
    whole: &dyn WholeSource,
    path: &Path,
) -> Result<(), Failure> {
    let held =
        || model.program().held().iter().filter(|held| held.kind != Kind::Constant && held.ty.elements() > 0);
    let spec = |held: &plimsoll::torch::Held| safetensors::Spec {
        name: held.name.clone(),
        element: Element::from(held.ty.dtype),
        shape: held.ty.shape.to_vec(),
    };
    let state: BTreeMap<&str, OfRanks<'_>> = training.whole_state().map(|part| (part.name, part)).collect();
    let metadata = BTreeMap::from([("format".to_string(), "pt".to_string())]);
    durable::write_file(path, |out| -> Result<(), Failure> {
        let mut writer = safetensors::Writer::new(&mut *out, held().map(spec).collect(), &metadata)?;
        while let Some(name) = writer.next_tensor().map(|next| next.name.clone()) {
            let value =
                state.get(name.as_str()).ok_or_else(|| Failure(format!("{name} is not in the training")))?;
            writer.write(&model.in_order(&name, whole.bytes(value)?)?)?;
        }
        writer.finish()?;
        Ok(out.flush()?)
    })
}

/// What is in a program, as JSON.
pub fn inspect(file: &Path) -> Result<Value, Failure> {
    let program = Program::open(file)?;
    let lengths = |shape: &[Length]| -> Vec<Value> {
        let length = |length: &Length| match length {
            Length::Fixed(n) => json!(n),
            // `Symbol('s17', positive=True, integer=True)`
            Length::Open(symbol, _) => json!(symbol.split('\'').nth(1).unwrap_or(symbol)),
        };
        shape.iter().map(length).collect()
    };
    let inputs: Vec<Value> = program
        .inputs()
        .iter()
        .map(|input| json!({ "name": input.name, "dtype": input.dtype.name(), "shape": lengths(&input.shape) }))
        .collect();
    let output = |(i, output): (usize, &Output)| {
        let is_loss = program.loss() == Some(i);
        json!({ "name": output.name, "dtype": output.dtype.name(), "shape": output.shape.to_vec(), "is_loss": is_loss })
    };
    let outputs: Vec<Value> = program.outputs().iter().enumerate().map(output).collect();
    let kind = |kind: Kind| match kind {
        Kind::Trained => "trained",
        Kind::Frozen => "frozen",
        Kind::Buffer => "buffers",
        Kind::Constant => "constants",
    };
    let mut totals: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for held in program.held() {
        let total = totals.entry(kind(held.kind)).or_default();
        *total = (total.0 + held.ty.elements(), total.1 + held.ty.bytes());
    }
    let tensor = |held: &plimsoll::torch::Held| {
        let (dtype, shape) = (held.ty.dtype.name(), held.ty.shape.to_vec());
        json!({ "name": held.name, "dtype": dtype, "shape": shape, "kind": kind(held.kind) })
    };
    let tensors: Vec<Value> = program.held().iter().map(tensor).collect();
    let level = match program.level() {
        Level::Training => "training",
        Level::Functional => "functional",
        Level::Core => "core ATen",
    };
    let (version, ops) = (program.torch_version().to_string(), json!(program.ops()));
    let totals: BTreeMap<&str, Value> = totals
        .into_iter()
        .map(|(kind, (elements, bytes))| (kind, json!({ "elements": elements, "bytes": bytes })))
        .collect();
    let problem =
        TorchModel::new(program).and_then(|model| model.check_gradients()).err().map(|e| e.to_string());
    Ok(json!({
        "kind": "torch", "torch_version": version, "level": level, "inputs": inputs, "outputs": outputs, "ops": ops,
        "tensors": tensors, "totals": totals, "problem": problem,
    }))
}

/// A program as a page.
pub fn print(path: &str, found: &Value) {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), String::from);
    say!("{path} (PyTorch {}, {} level)", text(&found["torch_version"]), text(&found["level"]));
    let list = |key: &str| found[key].as_array().cloned().unwrap_or_default();
    let shape = |part: &Value| {
        let lengths = part["shape"].as_array().cloned().unwrap_or_default();
        format!("{}[{}]", text(&part["dtype"]), lengths.iter().map(text).collect::<Vec<_>>().join(", "))
    };
    list("inputs").iter().for_each(|part| say!("in   {} {}", text(&part["name"]), shape(part)));
    for part in list("outputs") {
        let is_loss = if part["is_loss"] == true { "  its loss" } else { "" };
        say!("out  {} {}{is_loss}", text(&part["name"]), shape(&part));
    }
    let ops = found["ops"].as_object().cloned().unwrap_or_default();
    say!("ops  {}", ops.iter().map(|(op, n)| format!("{op} {n}")).collect::<Vec<_>>().join(", "));
    let tensors = list("tensors");
    let width = tensors.iter().map(|part| text(&part["name"]).chars().count()).max().unwrap_or(0).max(10);
    for part in &tensors {
        let kind = text(&part["kind"]);
        let kind = if kind == "trained" { String::new() } else { format!("  {kind}") };
        say!("{:<width$}  {}{kind}", text(&part["name"]), shape(part));
    }
    for (kind, total) in found["totals"].as_object().cloned().unwrap_or_default() {
        let (elements, bytes) =
            (total["elements"].as_u64().unwrap_or(0), total["bytes"].as_u64().unwrap_or(0));
        if elements > 0 {
            say!("{kind:<width$}  {elements:>12} {:>10}", Bytes(bytes).to_string());
        }
    }
    if let Some(problem) = found["problem"].as_str() {
        say!("it cannot be trained here: {problem}");
    }
}
