//! What a run takes of an ONNX file: arrays of its data, a loss over its first output, and its weights.

use std::path::Path;
use std::sync::Arc;

use plimsoll::data::FieldSpec;
use plimsoll::internals::data::{FieldKind, Fields, Wanted};
use plimsoll::nn::{Loss, Measure, Metric, Outputs, View, dice, mae};
use plimsoll::onnx::{Inspection, Lengths, OnnxFile, OnnxModel};
use plimsoll::prelude::*;

use crate::Failure;
use crate::config::Config;
use crate::folder::Folder;
use crate::form::Form;
use crate::model_setup::{ModelSetup, Purpose};
use crate::names::no_loss;
use crate::request::is_onnx;

/// Lengths of open axes, as they are named.
pub fn lengths(config: &Config) -> Result<Lengths, Failure> {
    let texts: Vec<String> = match &config.bind {
        Some(text) => text.split(',').map(String::from).collect(),
        None => Vec::new(),
    };
    Lengths::parse(&texts).map_err(|why| Failure(format!("--bind: {why}")))
}

/// The ONNX file that a run names, before it has seen its data; none where it names another model.
pub fn unbound(config: &Config) -> Result<Option<OnnxModel>, Failure> {
    let Some(path) = config.model.as_deref().filter(|name| is_onnx(name)) else {
        if config.bind.is_some() {
            return Err(Failure("--bind is for the open axes of an ONNX file, and the model is none".into()));
        }
        return Ok(None);
    };
    let file = OnnxFile::open(config.model_copy.as_deref().unwrap_or(Path::new(path)))?;
    let (all, layers) = config.precision()?;
    if let Some((layer, _)) = layers.first() {
        let why = "an ONNX file has no layers with names; name one precision for all of it";
        return Err(Failure(format!("--precision {layer}: {why}")));
    }
    let model = OnnxModel::unbound(file, &lengths(config)?)?;
    Ok(Some(match all {
        Some(all) => model.with_precision(all),
        None => model,
    }))
}

/// The arrays that a model takes of a data set: its inputs, and labels for its first output.
pub fn fields(model: &OnnxModel, purpose: Purpose) -> Fields {
    let input = |(name, ty): (String, &DType)| {
        let kind = if ty.is_float() { FieldKind::Numbers } else { FieldKind::Indices };
        Wanted { name, kind }
    };
    let inputs = model.input_names().into_iter().zip(model.input_dtypes().iter()).map(input).collect();
    let labels = match purpose {
        Purpose::Predict => Vec::new(),
        _ => model
            .output_names()
            .into_iter()
            .take(1)
            .map(|name| Wanted { name, kind: FieldKind::Label })
            .collect(),
    };
    Fields { inputs, labels }
}

/// A model of which the first output is learned, with classes last.
pub struct FirstOutput<M> {
    pub model: M,
    /// Whether classes of every place stand along axis 1.
    pub classes_first: bool,
}

impl<M: Model> Model for FirstOutput<M> {
    fn forward(&self, net: &mut Net, x: &[Tensor]) -> plimsoll::internals::run::Result<Outputs> {
        let outputs = self.model.forward(net, x)?;
        if net.is_predicting() {
            return Ok(outputs);
        }
        let Some(first) = outputs.first() else { return Ok(outputs) };
        if !self.classes_first {
            return Ok(first.clone().into());
        }
        let order: Vec<usize> = std::iter::once(0).chain(2..first.shape().rank()).chain([1]).collect();
        Ok(first.transpose(&order)?.into())
    }
}

/// A loss that leaves out what leads to other outputs than the first.
pub struct OfFirst(pub Arc<dyn Loss>, pub bool);

impl Loss for OfFirst {
    fn loss(&self, outputs: &[Tensor], labels: &[Tensor]) -> plimsoll::internals::run::Result<Tensor> {
        self.0.loss(outputs, labels)
    }

    fn leaves_out(&self) -> bool {
        self.1
    }
}

/// A loss by its name, and how it sees the output.
pub fn loss(named: &str) -> Result<(Arc<dyn Loss>, View), Failure> {
    Ok(match named {
        "cross-entropy" => (Arc::new(softmax_cross_entropy), View::Softmax),
        "binary-cross-entropy" => (Arc::new(binary_cross_entropy), View::Sigmoid),
        "dice" => (Arc::new(dice), View::Sigmoid),
        "mse" => (Arc::new(mse), View::Plain),
        "mae" => (Arc::new(mae), View::Plain),
        other => return Err(no_loss(other)),
    })
}

/// Whether a file's first output has a class for every place, with classes before places: `[N, C, H, W]`. Refused where labels have classes
/// that it does not say.
pub fn classes_first(
    path: &str,
    output: &[usize],
    label: &FieldSpec,
    is_classifier: bool,
    form: &Form,
) -> Result<bool, Failure> {
    let places = output.iter().skip(2).copied().eq(label.shape.iter().copied());
    let classes_first = is_classifier && output.len() > 2 && places;
    let classes = if classes_first { output.get(1) } else { output.last() };
    match (classes, form.classes) {
        (Some(&classes), Some(found)) if is_classifier && found > classes => {
            Err(Failure(format!("{path} says {classes} classes, but the labels have {found}")))
        }
        _ => Ok(classes_first),
    }
}

/// What is counted beside the loss of a file's first output.
pub fn metrics(config: &Config, is_classifier: bool) -> Result<Vec<Measure>, Failure> {
    let usual = if is_classifier { Metric::Accuracy } else { Metric::Mae };
    let usual = if config.loss.is_none() { vec![usual] } else { Vec::new() };
    Ok(config.metrics(&usual)?.into_iter().map(Measure::from).collect())
}

/// The model of an ONNX file for data of a form: to predict what the file gives, or with a loss over its first output.
pub fn setup(config: &Config, path: &str, form: &Form, purpose: Purpose) -> Result<ModelSetup, Failure> {
    let unbound = unbound(config)?.ok_or_else(|| Failure(format!("{path} is no ONNX file")))?;
    let spec = form.spec()?;
    let n_inputs = unbound.n_inputs();
    let wanted = n_inputs + usize::from(purpose != Purpose::Predict);
    if spec.len() < n_inputs || (purpose != Purpose::Predict && spec.len() != wanted) {
        let labels = if purpose == Purpose::Predict { "" } else { ", and then labels for its first output" };
        return Err(Failure(format!(
            "a sample of the data has {} arrays, but the model takes {n_inputs} as inputs{labels}",
            spec.len()
        )));
    }
    let batch = unbound.fixed_batch();
    if let (Some(fixed), Some(said)) = (batch, config.samples())
        && fixed != said
    {
        return Err(Failure(format!(
            "{path} takes batches of {fixed} alone, and --batch is {said}: use --batch {fixed}, or export it with a batch axis that is open"
        )));
    }
    let types: Vec<Type> = spec[..n_inputs]
        .iter()
        .map(|field| {
            let shape: Vec<usize> =
                std::iter::once(batch.unwrap_or(1)).chain(field.shape.iter().copied()).collect();
            Type::new(field.dtype, &shape[..])
        })
        .collect();
    let model = unbound.bound(&types)?;
    let name = Path::new(path).file_stem().and_then(|stem| stem.to_str()).unwrap_or("onnx").to_string();
    let precision = model.precision();
    if purpose == Purpose::Predict {
        let loss: Arc<dyn Loss> = Arc::new(mse);
        let (own, metrics) = (Arc::new(model.clone()), Vec::new());
        return Ok(ModelSetup {
            name,
            model: own,
            loss,
            metrics,
            precision,
            is_classifier: false,
            keras: None,
            onnx: Some(model),
            torch: None,
        });
    }
    let label = &spec[n_inputs];
    let named =
        config.loss.as_deref().unwrap_or(if label.dtype.is_float() { "mse" } else { "cross-entropy" });
    let (loss, view) = loss(named)?;
    if config.class_weights.is_some() {
        return Err(Failure(
            "--class-weights is for models of the zoo; an ONNX file's loss counts all classes the same"
                .into(),
        ));
    }
    let is_classifier = named == "cross-entropy";
    let classes_first = classes_first(path, &model.outputs()[0].shape, label, is_classifier, form)?;
    let metrics = metrics(config, is_classifier)?;
    let leaves_out = model.n_outputs() > 1;
    let model = model.on_logits(view);
    Ok(ModelSetup {
        name,
        model: Arc::new(FirstOutput { model: model.clone(), classes_first }),
        loss: Arc::new(OfFirst(loss, leaves_out)),
        metrics,
        precision,
        is_classifier,
        keras: None,
        onnx: Some(model),
        torch: None,
    })
}

/// Copies the files that hold a model's tensors beside the run's copy of it.
pub fn copy_beside(model: &OnnxModel, from: &Path, folder: &Folder) -> Result<(), Failure> {
    for relative in &model.file().beside {
        let to = folder.path().join(relative);
        if to.is_file() {
            continue;
        }
        if let Some(parent) = to.parent() {
            std::fs::create_dir_all(parent).map_err(|e| Failure(format!("{}: {e}", parent.display())))?;
        }
        folder.copy(&from.join(relative), &to)?;
    }
    Ok(())
}

/// An ONNX file as a page.
pub fn print(path: &str, found: &Inspection) {
    let by =
        if found.producer.is_empty() { String::new() } else { format!(", written by {}", found.producer) };
    say!("{path} (ONNX, opset {}{by})", found.opset);
    found.inputs.iter().for_each(|input| say!("in   {input}"));
    found.outputs.iter().for_each(|output| say!("out  {output}"));
    let ops: Vec<String> = found.ops.iter().map(|(op, n)| format!("{op} {n}")).collect();
    say!("ops  {}", ops.join(", "));
    let width = found.weights.iter().map(|weight| weight.name.chars().count()).max().unwrap_or(0).max(10);
    for weight in &found.weights {
        let kept = if weight.trained { "" } else { "  statistics" };
        say!("{:<width$}  {:<5} {:?}{kept}", weight.name, weight.element, weight.shape);
    }
    for (kind, (elements, bytes)) in
        [("trained", found.trained), ("statistics", found.statistics), ("constants", found.constants)]
    {
        if elements > 0 {
            say!("{kind:<width$}  {elements:>12} {:>10}", Bytes(bytes).to_string());
        }
    }
    if let Some(problem) = &found.problem {
        say!("it cannot be used here: {problem}");
    }
}
