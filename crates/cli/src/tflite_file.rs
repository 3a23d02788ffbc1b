//! A TensorFlow Lite file over data, as a device runs it: by `plimsoll-lite`, in one arena, on one thread.

use std::path::Path;
use std::sync::Arc;

use plimsoll::data::{Batch, Draw, FieldSpec};
use plimsoll::internals::data::{FieldKind, Fields, Wanted};
use plimsoll::internals::graph::DType;
use plimsoll::lite::{self, TensorInfo};
use plimsoll::nn::{Loss, Measure, Metric, View};
use plimsoll::prelude::*;
use plimsoll::train::Evaluation;
use serde::Serialize;

use crate::Failure;
use crate::config::Config;
use crate::form::Form;
use crate::model_setup::Purpose;
use crate::onnx_file;
use crate::predictions::{Meaning, Writer};
use crate::random;
use crate::request::is_tflite;
use crate::source::Source;

/// Probabilities below this count as this in a logarithm.
const LEAST_PROBABILITY: f64 = 1e-7;

/// The bytes of a file.
fn bytes(path: &Path) -> Result<Vec<u8>, Failure> {
    std::fs::read(path).map_err(|error| Failure(format!("{}: {error}", path.display())))
}

/// Loads a file with its weights packed: memory is not small where the command runs.
fn load<'a>(path: &str, file: &'a [u8]) -> Result<lite::Model<'a>, Failure> {
    lite::Model::load_with(file, lite::Options { pack_weights: true })
        .map_err(|error| Failure(format!("{path}: {error}")))
}

/// The file that a run names, where it names such a file.
fn named(config: &Config) -> Option<&str> {
    config.model.as_deref().filter(|name| is_tflite(name))
}

/// The arrays that a file takes of a data set: its inputs, and labels for its first output.
pub fn fields(config: &Config, purpose: Purpose) -> Result<Option<Fields>, Failure> {
    let Some(path) = named(config) else { return Ok(None) };
    let file = bytes(Path::new(path))?;
    let runner = Runner::new(path, &file)?;
    let kind = |info: &TensorInfo<'_>| match wanted_dtype(info.kind) {
        DType::I64 => FieldKind::Indices,
        _ => FieldKind::Numbers,
    };
    let inputs = runner.inputs()?.iter().map(|x| Wanted { name: x.name.into(), kind: kind(x) }).collect();
    let labels = match (purpose, runner.model.output_info(0)) {
        (Purpose::Predict, _) | (_, Err(_)) => Vec::new(),
        (_, Ok(output)) => vec![Wanted { name: output.name.into(), kind: FieldKind::Label }],
    };
    Ok(Some(Fields { inputs, labels }))
}

/// Random data of a file's own sizes.
pub fn random_fields(config: &Config, purpose: Purpose) -> Result<Option<random::Fields>, Failure> {
    let Some(path) = named(config) else { return Ok(None) };
    if purpose != Purpose::Predict {
        return Err(Failure("random labels say nothing of a .tflite file; name data with --data".into()));
    }
    let file = bytes(Path::new(path))?;
    let field = |info: &TensorInfo<'_>| {
        let dtype = wanted_dtype(info.kind);
        let draw = if dtype.is_float() { Draw::Centered } else { Draw::One };
        (FieldSpec::new(info.name, dtype, &info.shape[1..]), draw)
    };
    Ok(Some(Runner::new(path, &file)?.inputs()?.iter().map(field).collect()))
}

/// The type of a sample's elements for an input of this type.
fn wanted_dtype(kind: lite::Type) -> DType {
    match kind {
        lite::Type::I32 | lite::Type::I64 | lite::Type::Bool => DType::I64,
        _ => DType::F32,
    }
}

/// A loaded file with its arena.
pub struct Runner<'a> {
    path: String,
    model: lite::Model<'a>,
    arena: Vec<u8>,
    /// Samples that it takes at once.
    pub batch: usize,
}

impl<'a> Runner<'a> {
    /// Loads a file whose inputs and outputs have a row for each sample.
    pub fn new(path: &str, file: &'a [u8]) -> Result<Runner<'a>, Failure> {
        let model = load(path, file)?;
        let arena = vec![0; model.arena_bytes()];
        let mut runner = Runner { path: path.into(), model, arena, batch: 1 };
        let rows = |info: &TensorInfo<'_>| info.shape.first().copied();
        let inputs = runner.inputs()?;
        let batch = inputs.first().and_then(rows);
        if let Some(odd) = inputs.iter().find(|info| rows(info) != batch || batch.is_none()) {
            let (name, shape) = (odd.name, odd.shape);
            let why = format!("its input {name} is of shape {shape:?}, which has no row for each sample");
            return Err(Failure(format!("{path}: {why}; run it from Rust or C")));
        }
        runner.batch = batch.ok_or_else(|| Failure(format!("{path} has no inputs")))?;
        Ok(runner)
    }

    fn inputs(&self) -> Result<Vec<TensorInfo<'_>>, Failure> {
        (0..self.model.inputs()).map(|i| self.model.input_info(i).map_err(Failure::from)).collect()
    }

    /// Bytes of its arena.
    pub fn arena_bytes(&self) -> usize {
        self.arena.len()
    }

    /// Runs a batch of at most as many samples as it takes: the rows of each output.
    pub fn run(&mut self, batch: &Batch) -> Result<Vec<Tensor>, Failure> {
        let rows = batch.samples();
        for i in 0..self.model.inputs() {
            let info = self.model.input_info(i)?;
            let (name, shape) = (info.name, info.shape);
            let wanted = wanted_dtype(info.kind);
            let field = batch.field(i).filter(|field| {
                field.dtype == wanted && field.shape[1..] == shape[1..] && rows <= self.batch
            });
            let Some(field) = field else {
                let found = batch
                    .field_type(i)
                    .map_or("nothing".into(), |(dtype, shape)| format!("{dtype} of shape {:?}", &shape[1..]));
                let takes = format!("{wanted} of shape {:?}", &shape[1..]);
                return Err(Failure(format!(
                    "input {name} of {} takes {takes}, but samples of the data have {found} there",
                    self.path
                )));
            };
            let elements: usize = shape.iter().product();
            match wanted {
                DType::I64 => {
                    let values = field.get::<i64>()?;
                    let kind = info.kind;
                    write_whole(kind, values, self.model.input(i, &mut self.arena)?)
                        .map_err(|why| Failure(format!("input {name} of {}: {why}", self.path)))?;
                }
                _ => {
                    // Rows that the last batch lacks are zeros.
                    let mut values = field.get::<f32>()?.to_vec();
                    values.resize(elements, 0.0);
                    self.model.set_input(i, &values, &mut self.arena)?;
                }
            }
        }
        self.model.run(&mut self.arena)?;
        (0..self.model.outputs()).map(|i| self.output(i, rows)).collect()
    }

    fn output(&self, i: usize, rows: usize) -> Result<Tensor, Failure> {
        let info = self.model.output_info(i)?;
        if info.shape.first() != Some(&self.batch) {
            let (path, name, shape) = (&self.path, info.name, info.shape);
            return Err(Failure(format!(
                "output {name} of {path} is of shape {shape:?}, which has no row for each of {} samples",
                self.batch
            )));
        }
        let elements: usize = info.shape.iter().product();
        let each = elements / self.batch;
        let shape: Vec<usize> = std::iter::once(rows).chain(info.shape[1..].iter().copied()).collect();
        if info.kind == lite::Type::I64 {
            let found = self.model.output(i, &self.arena)?.as_chunks::<8>().0;
            let values: Vec<i64> = found[..rows * each].iter().map(|b| i64::from_le_bytes(*b)).collect();
            return Ok(Tensor::from_slice(&values, &shape[..])?);
        }
        let mut values = vec![0.0; elements];
        self.model.get_output(i, &self.arena, &mut values)?;
        Ok(Tensor::from_slice(&values[..rows * each], &shape[..])?)
    }

    /// What is to be done to an output to see it as scores before a softmax or sigmoid.
    fn view(&self, output: usize) -> Result<View, Failure> {
        Ok(match self.model.output_maker(output)? {
            Some("SOFTMAX") => View::Softmax,
            Some("LOGISTIC") => View::Sigmoid,
            _ => View::Plain,
        })
    }
}

/// Writes whole numbers as an input of whole numbers takes them; rows that are not there are zeros.
fn write_whole(kind: lite::Type, values: &[i64], out: &mut [u8]) -> Result<(), String> {
    out.fill(0);
    let narrow = |value: &i64| i32::try_from(*value).map_err(|_| format!("{value} has more than 32 bits"));
    match kind {
        lite::Type::I64 => {
            let out = out.as_chunks_mut::<8>().0.iter_mut();
            out.zip(values).for_each(|(to, value)| *to = value.to_le_bytes());
        }
        lite::Type::I32 => {
            for (to, value) in out.as_chunks_mut::<4>().0.iter_mut().zip(values) {
                *to = narrow(value)?.to_le_bytes();
            }
        }
        _ => out.iter_mut().zip(values).for_each(|(to, value)| *to = u8::from(*value != 0)),
    }
    Ok(())
}

/// A file's data in batches as the file takes them.
struct Opened {
    data: Dataset,
    name: String,
    form: Form,
}

fn open(path: &str, said: &Config, runner: &Runner<'_>, purpose: Purpose) -> Result<Opened, Failure> {
    let refused = |flag: &str, why: String| Err(Failure(format!("{flag} is not for {path}: {why}")));
    if said.memory.is_some() {
        let arena = runner.arena_bytes();
        return refused("--memory", format!("it runs in an arena of {arena} bytes, beside its data"));
    }
    if said.device.as_deref().is_some_and(|device| device != "cpu") || said.threads.is_some() {
        return refused("--device or --threads", "it runs on one thread of the processor".into());
    }
    if let Some(batch) = said.samples().filter(|batch| *batch != runner.batch) {
        let why =
            format!("--batch {batch} is not what the file takes; its batch is fixed at {}", runner.batch);
        return Err(Failure(format!("{path}: {why}")));
    }
    if said.data.is_none() {
        return Err(Failure(format!("{path} does not say what data is for it; name some with --data")));
    }
    let config = Config { model: Some(path.into()), ..said.clone() };
    let source = Source::open(&config, purpose)?;
    let form = Form::of(&source, None, false)?;
    let (data, name) = source.into_used();
    Ok(Opened { data: data.batch(runner.batch), name, form })
}

/// Hands the predictions of a file to a writer: how many there are, their shape, and the data they are of.
pub fn predict(
    path: &str,
    said: &Config,
    wanted: impl FnOnce(&[String]) -> Result<usize, Failure>,
    writer: impl FnOnce(Meaning) -> Result<Writer, Failure>,
) -> Result<(u64, Vec<usize>, String), Failure> {
    let file = bytes(Path::new(path))?;
    let mut runner = Runner::new(path, &file)?;
    let name = |i| runner.model.output_info(i).map(|info| info.name.to_string());
    let names = (0..runner.model.outputs()).map(name).collect::<Result<Vec<_>, _>>()?;
    let wanted = wanted(&names)?;
    let opened = open(path, said, &runner, Purpose::Predict)?;
    let is_classes = runner.view(wanted)? == View::Softmax;
    let mut writer = writer(Meaning {
        is_classes,
        is_logits: false,
        class_names: opened.form.class_names.clone(),
        data: opened.data.clone(),
    })?;
    let mut seen = 0;
    for batch in opened.data.batches()? {
        let batch = batch?;
        let outputs = runner.run(&batch)?;
        writer.add(&outputs[wanted], batch.numbers())??;
        seen += batch.samples() as u64;
    }
    Ok((seen, writer.finish()?, opened.name))
}

/// The loss and metrics of a file over data, and the data's name.
pub fn evaluate(path: &str, said: &Config) -> Result<(Evaluation, String), Failure> {
    let file = bytes(Path::new(path))?;
    let mut runner = Runner::new(path, &file)?;
    let Opened { data, name, form } = open(path, said, &runner, Purpose::Evaluate)?;
    let n_inputs = runner.model.inputs();
    let Some(label) = form.spec()?.get(n_inputs).cloned() else {
        return Err(Failure(format!(
            "{name} has no labels to evaluate against; plimsoll predict needs none"
        )));
    };
    let is_number = label.dtype.is_float();
    let named = said.loss.as_deref().unwrap_or(if is_number { "mse" } else { "cross-entropy" });
    let (loss, _): (Arc<dyn Loss>, View) = onnx_file::loss(named)?;
    let default = match (&said.loss, is_number) {
        (Some(_), _) => Vec::new(),
        (None, true) => vec![Metric::Mae],
        (None, false) => vec![Metric::Accuracy],
    };
    let metrics: Vec<Measure> = said.metrics(&default)?.into_iter().map(Measure::from).collect();
    // Losses of classes are over scores; what went through a softmax or sigmoid in the file is taken back.
    let view = if matches!(named, "mse" | "mae") { View::Plain } else { runner.view(0)? };
    let mut totals: Vec<Vec<f64>> = vec![Vec::new(); metrics.len()];
    let (mut sum, mut samples) = (0.0, 0);
    for batch in data.batches()? {
        let batch = batch?;
        let output = scores(view, &runner.run(&batch)?[0])?;
        let label = tensor(&batch, n_inputs)?;
        let (outputs, labels) = ([output], [label]);
        let n = batch.samples();
        sum += loss.loss(&outputs, &labels)?.to_f64()?.first().copied().unwrap_or(f64::NAN) * n as f64;
        samples += n as u64;
        for (total, measure) in totals.iter_mut().zip(&metrics) {
            add(total, &measure.sums(&outputs, &labels, &[])?.to_f64()?);
        }
    }
    let value = |(measure, sums): (&Measure, &Vec<f64>)| (measure.name.clone(), measure.finish(sums));
    let metrics = metrics.iter().zip(&totals).map(value).collect();
    Ok((Evaluation { loss: sum / samples.max(1) as f64, metrics, samples }, name))
}

/// Adds the sums of a batch.
pub fn add(total: &mut Vec<f64>, sums: &[f64]) {
    total.resize(sums.len(), 0.0);
    total.iter_mut().zip(sums).for_each(|(total, sum)| *total += sum);
}

/// A field of a batch as a tensor.
pub fn tensor(batch: &Batch, index: usize) -> Result<Tensor, Failure> {
    let field = batch.field(index).ok_or_else(|| Failure(format!("a sample has no array {index}")))?;
    let mut tensor = Tensor::zeros(Type::new(field.dtype, &field.shape[..]))?;
    tensor.set_bytes(field.bytes)?;
    Ok(tensor)
}

/// Outputs as scores before the softmax or sigmoid that the file ends in.
fn scores(view: View, output: &Tensor) -> Result<Tensor, Failure> {
    let score = |p: f64| match view {
        View::Plain => p,
        View::Softmax => p.max(LEAST_PROBABILITY).ln(),
        View::Sigmoid => {
            let p = p.clamp(LEAST_PROBABILITY, 1.0 - LEAST_PROBABILITY);
            (p / (1.0 - p)).ln()
        }
    };
    let scores: Vec<f64> = output.to_f64()?.into_iter().map(score).collect();
    Ok(Tensor::from_f64(&scores, Type::new(DType::F32, output.shape().clone()))?)
}

/// An input, output or result.
#[derive(Serialize)]
struct Described {
    name: String,
    r#type: &'static str,
    shape: Vec<usize>,
    bytes: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    scale: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    zero_point: Option<i32>,
}

impl Described {
    fn new(info: TensorInfo<'_>) -> Described {
        Described {
            name: info.name.into(),
            r#type: info.kind.name(),
            shape: info.shape.to_vec(),
            bytes: info.bytes,
            scale: info.quantization.map(|(scale, _)| scale),
            zero_point: info.quantization.map(|(_, zero)| zero),
        }
    }

    fn text(&self) -> String {
        let scale = match (self.scale, self.zero_point) {
            (Some(scale), Some(zero)) => format!(", a byte b means {scale:e} * (b - {zero})"),
            _ => String::new(),
        };
        format!("{} {} {:?}{scale}", self.name, self.r#type, self.shape)
    }
}

/// An operator and what it makes.
#[derive(Serialize)]
struct Operator {
    index: usize,
    op: &'static str,
    results: Vec<Described>,
    /// Bytes of weights and other constants that it reads.
    stored_bytes: usize,
}

/// What a file is made of.
#[derive(Serialize)]
pub struct Inspection {
    kind: &'static str,
    file: String,
    bytes: usize,
    inputs: Vec<Described>,
    outputs: Vec<Described>,
    operators: Vec<Operator>,
    /// Bytes of weights and other constants.
    stored_bytes: usize,
    /// Bytes of the arena that it runs in, and of the tensors that are live in it at once.
    arena_bytes: usize,
    live_bytes: usize,
    /// Bytes of tables that loading takes.
    table_bytes: usize,
    /// Bytes that weights take once more on this processor where they are packed for speed.
    packed_bytes: usize,
}

/// Looks at a file.
pub fn inspect(path: &Path) -> Result<Inspection, Failure> {
    let (shown, file) = (path.display().to_string(), bytes(path)?);
    let model = load(&shown, &file)?;
    let described = |info: lite::Result<TensorInfo<'_>>| info.map(Described::new).map_err(Failure::from);
    let operators = model.operator_infos().map(|operator| Operator {
        index: operator.index,
        op: operator.name,
        results: operator.results().map(Described::new).collect(),
        stored_bytes: operator.operands().filter(|info| info.is_stored).map(|info| info.bytes).sum(),
    });
    Ok(Inspection {
        kind: "tflite",
        file: shown,
        bytes: file.len(),
        inputs: (0..model.inputs()).map(|i| described(model.input_info(i))).collect::<Result<_, _>>()?,
        outputs: (0..model.outputs()).map(|i| described(model.output_info(i))).collect::<Result<_, _>>()?,
        operators: operators.collect(),
        stored_bytes: model.stored_bytes(),
        arena_bytes: model.arena_bytes(),
        live_bytes: model.live_bytes(),
        table_bytes: model.table_bytes(),
        packed_bytes: model.packed_bytes(),
    })
}

/// A file as a page.
pub fn print(found: &Inspection) {
    say!("{} (TensorFlow Lite), {} bytes", found.file, found.bytes);
    found.inputs.iter().for_each(|input| say!("in   {}", input.text()));
    found.outputs.iter().for_each(|output| say!("out  {}", output.text()));
    let width = found.operators.iter().map(|operator| operator.op.len()).max().unwrap_or(0);
    say!("{:>4}  {:<width$}  {:>12} {:>12}  makes", "", "op", "weights", "result");
    for operator in &found.operators {
        let made: Vec<String> =
            operator.results.iter().map(|made| format!("{} {:?}", made.r#type, made.shape)).collect();
        let bytes: usize = operator.results.iter().map(|made| made.bytes).sum();
        say!(
            "{:>4}  {:<width$}  {:>12} {bytes:>12}  {}",
            operator.index,
            operator.op,
            operator.stored_bytes,
            made.join(", ")
        );
    }
    say!("weights and constants {} bytes", found.stored_bytes);
    say!(
        "arena {} bytes ({} are live at once), tables {} bytes",
        found.arena_bytes,
        found.live_bytes,
        found.table_bytes
    );
    say!("weights packed for speed on this processor take {} bytes more", found.packed_bytes);
}
