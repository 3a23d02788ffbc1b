//! `plimsoll export`: the model of a run, of a file or of the zoo, as an ONNX or a TensorFlow Lite file.

mod accuracy;
mod app;
mod report;

use std::collections::HashSet;
use std::io::Write;
use std::path::PathBuf;

use plimsoll::data::{Dataset, FieldSpec};
use plimsoll::formats::durable;
use plimsoll::internals::formats::deflated_bytes;
use plimsoll::internals::graph::{Shape, Type};
use plimsoll::internals::run::Tensor;
use plimsoll::keras::KerasModel;
use plimsoll::nn::{Model, Narrowed, Net, Param, zoo};
use plimsoll::onnx::{self, OnnxModel};
use plimsoll::prelude::Bytes;
use plimsoll::tflite::{self, Calibration, Goal, Quantize, Range};
use plimsoll::torch::TorchModel;

use crate::Failure;
use crate::config::{BatchSize, Config};
use crate::model_setup::Purpose;
use crate::request::{is_keras, is_model_file, is_onnx, is_plan_file, is_tflite, is_torch};
use crate::tflite_file::{self, Runner};
use crate::trained::Trained;
use accuracy::Accuracy;
use report::Report;

/// How the weights of a `.tflite` file are made smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Smaller {
    /// Weights in f16, computed with in f32.
    F16,
    /// Weights in int8, a scale for each channel; what is computed stays f32.
    Dynamic,
    /// Weights and what is computed in int8, with ranges found on data.
    Int8,
}

/// Arguments of `plimsoll export`.
#[derive(clap::Args)]
pub struct Args {
    /// The folder of a run, a `.keras`, `.h5`, `.onnx` or `.pt2` file, or a model of the zoo by name, which is written with the weights it starts with.
    #[arg(value_name = "RUN | FILE | MODEL")]
    what: PathBuf,
    /// The file to write: its name ends in `.onnx`, `.tflite` or `.plim` (a `.tflite` file with the plan of its arena). With a `/` at its end, a folder: the model as `model.tflite`, and a program in Rust and
    /// in C that runs it with `plimsoll-lite`.
    #[arg(long)]
    to: PathBuf,
    /// How a `.tflite` file is made smaller. [default: not at all, f32]
    #[arg(long)]
    quantize: Option<Smaller>,
    /// Data on which `--quantize int8` finds the ranges of what is computed: a name, a file or a folder, as of `train --data`. [default: a
    /// run's own]
    #[arg(long, value_name = "DATA")]
    calibrate: Option<String>,
    /// How many samples of it are looked at.
    #[arg(long, value_name = "N", default_value_t = 128)]
    calibration_samples: usize,
    /// How ranges follow from what was seen: `min-max`, `percentile` (99.99 of a hundred values), `percentile=99.9`, or `entropy`.
    #[arg(long, value_name = "HOW", default_value = "min-max")]
    ranges: String,
    /// With `--quantize int8`: inputs and outputs are int8 too, not f32.
    #[arg(long)]
    int8_ports: bool,
    /// Leave out this share of the channels of each layer, those with the least weights, and all that depends on them through skips and joins: `0.5`.
    /// What is written is a smaller model; train it again as an ONNX file. [default: none]
    #[arg(long, value_name = "SHARE")]
    prune_channels: Option<f64>,
    /// The most bytes of the arena that a `.tflite` file may run in (`256KiB`). Where it would take more, wide layers run in parts of their channels, one
    /// after the other, with the same results; where that is not enough, it is refused with the least. [default: no limit]
    #[arg(long, value_name = "BYTES")]
    memory: Option<Bytes>,
    /// Samples of a batch in a `.tflite` file, which is fixed there. [default: 1]
    #[arg(long)]
    batch: Option<usize>,
    /// Write over a file that is there.
    #[arg(long)]
    overwrite: bool,
    /// One JSON line instead of text.
    #[arg(long)]
    json: bool,
}

/// A model with all that is written of it.
struct Exported<'a> {
    name: &'a str,
    model: &'a dyn Model,
    inputs: Vec<(String, Type)>,
    params: &'a [Param],
    values: &'a [Tensor],
    /// Data to find ranges on and to compare on, and what it is.
    data: Option<(&'a Dataset, &'a str)>,
}

/// Writes the model as it predicts. What is written is read back first and compared with the model.
pub fn run(args: &Args) -> Result<(), Failure> {
    let shown = args.to.display();
    let is_app = args.is_app();
    let is_tflite = match args.to.extension().and_then(|end| end.to_str()) {
        _ if is_app => true,
        Some("tflite" | "plim") => true,
        Some("onnx") => false,
        _ => {
            let why = "does not end in .onnx, .tflite or .plim, which are the kinds of files that are written, nor in / as the folder of a program";
            return Err(Failure(format!("{shown} {why}")));
        }
    };
    args.check(is_tflite)?;
    let file = args.file();
    if file.is_dir() {
        return Err(Failure(format!("{} is a folder; name a file with --to", file.display())));
    }
    if (args.to.exists() && !is_app || file.exists()) && !args.overwrite {
        return Err(Failure(format!(
            "{} is there already; name another file, or write over it with --overwrite",
            file.display()
        )));
    }
    if is_app {
        std::fs::create_dir_all(&args.to).map_err(|error| Failure(format!("{shown}: {error}")))?;
    }
    let (name, report) = args.written(is_tflite)?;
    let to = file.display().to_string();
    if let (true, Some(report)) = (is_app, &report) {
        let arena = report.written.arena.as_ref().map_err(|why| {
            Failure(format!("{to} is written, but no program for it: plimsoll-lite does not run it: {why}"))
        })?;
        app::write(&args.to, &name, report.written.bytes, *arena)?;
    }
    match (args.json, &report) {
        (true, None) => say!("{}", serde_json::json!({ "model": name, "to": to })),
        (true, Some(report)) => say!("{}", report.json(&name, &to)),
        (false, None) => say!("{shown} is {name} as ONNX"),
        (false, Some(report)) => report.print(&name, &to, args.calibration_samples),
    }
    if is_app && !args.json {
        say!("{shown} is a program that runs it, in Rust and in C; its README.md says how");
    }
    Ok(())
}

impl Args {
    /// Whether a folder is to be written: a program with the model in it.
    fn is_app(&self) -> bool {
        self.to.as_os_str().to_string_lossy().ends_with('/')
    }

    /// The file of the model.
    fn file(&self) -> PathBuf {
        if self.is_app() { self.to.join("model.tflite") } else { self.to.clone() }
    }

    /// Refuses what would not be obeyed.
    fn check(&self, is_tflite: bool) -> Result<(), Failure> {
        let is_int8 = self.quantize == Some(Smaller::Int8);
        let unused = [
            (!is_tflite && self.quantize.is_some(), "--quantize is for .tflite files"),
            (
                !is_tflite && self.batch.is_some(),
                "--batch is for .tflite files: the batch of an ONNX file stays open",
            ),
            (
                !is_tflite && self.memory.is_some(),
                "--memory is the arena of a .tflite file; an ONNX file says nothing of how it is run",
            ),
            (!is_int8 && self.calibrate.is_some(), "--calibrate is for --quantize int8"),
            (!is_int8 && self.int8_ports, "--int8-ports is for --quantize int8"),
            (!is_int8 && self.ranges != "min-max", "--ranges is for --quantize int8"),
            (
                self.prune_channels.is_some_and(|share| !(share > 0.0 && share < 1.0)),
                "--prune-channels is a share between 0 and 1, as 0.5 is",
            ),
            (self.batch == Some(0), "--batch 0 has no samples"),
            (self.calibration_samples == 0, "--calibration-samples 0 leaves nothing to find ranges on"),
        ];
        match unused.into_iter().find(|(is_wrong, _)| *is_wrong) {
            Some((_, why)) => Err(Failure(why.into())),
            None => Ok(()),
        }
    }

    fn range(&self) -> Result<Range, Failure> {
        let wrong = || {
            Failure(format!(
                "--ranges {}: it is min-max, percentile, percentile=99.9 or entropy",
                self.ranges
            ))
        };
        match self.ranges.split_once('=') {
            None if self.ranges == "min-max" => Ok(Range::MinMax),
            None if self.ranges == "entropy" => Ok(Range::Entropy),
            None if self.ranges == "percentile" => Ok(Range::Percentile(99.99)),
            Some(("percentile", share)) => match share.parse::<f64>() {
                Ok(share) if share > 0.0 && share <= 100.0 => Ok(Range::Percentile(share)),
                _ => Err(wrong()),
            },
            _ => Err(wrong()),
        }
    }

    fn written(&self, to_tflite: bool) -> Result<(String, Option<Report>), Failure> {
        let batch = self.batch.unwrap_or(1);
        let path = self.what.to_str().unwrap_or_default();
        let needs_data = self.quantize == Some(Smaller::Int8);
        if is_onnx(path) && !to_tflite && self.prune_channels.is_none() {
            return Err(Failure(format!("{path} is an ONNX file already")));
        }
        if is_tflite(path) {
            let why = "is what comes out of an export; name the run or file that it was made from";
            return Err(Failure(format!("{path} {why}")));
        }
        if let Some(entry) = zoo::find(path).filter(|_| !self.what.exists()) {
            if needs_data {
                let why = "has only the weights it starts with; train it, and name the folder of the run";
                return Err(Failure(format!("{path} {why}")));
            }
            let input = entry.input(batch);
            let params = Net::discover(std::slice::from_ref(&input), &entry)?;
            let values =
                params.iter().map(|p| p.init.draw(&p.name, &p.ty, 0)).collect::<Result<Vec<Tensor>, _>>()?;
            let inputs = vec![("input".to_string(), input)];
            let whole =
                Exported { name: path, model: &entry, inputs, params: &params, values: &values, data: None };
            return Ok((path.into(), self.write(&whole, to_tflite)?));
        }
        let stem = self.what.file_stem().and_then(|stem| stem.to_str()).unwrap_or("model").to_string();
        if is_model_file(path) && !needs_data {
            // Without data nothing but the file is opened.
            if is_keras(path) {
                let model = KerasModel::open(path)?;
                let inputs = model.input_names().into_iter().zip(model.inputs(batch)?).collect();
                let (params, values) = (model.params(), model.values()?);
                let whole =
                    Exported { name: &stem, model: &model, inputs, params, values: &values, data: None };
                let written = self.write(&whole, to_tflite)?;
                return Ok((stem, written));
            }
            if is_torch(path) {
                let model = TorchModel::open(path)?;
                let names = model.program().inputs().iter().map(|input| input.name.clone());
                let inputs = names.zip(model.input_types(batch)?).collect();
                let (params, values) = (model.params(), model.values()?);
                let whole =
                    Exported { name: &stem, model: &model, inputs, params, values: &values, data: None };
                let written = self.write(&whole, to_tflite)?;
                return Ok((stem, written));
            }
            let model = OnnxModel::open(path)?;
            let inputs = model.input_names().into_iter().zip(model.inputs(batch)?).collect();
            let (params, values) = (model.params(), model.values()?);
            let whole = Exported { name: &stem, model: &model, inputs, params, values: &values, data: None };
            let written = self.write(&whole, to_tflite)?;
            return Ok((stem, written));
        }
        self.of_trained(batch, to_tflite)
    }

    /// The model of a run, or of a file with data.
    fn of_trained(&self, batch: usize, to_tflite: bool) -> Result<(String, Option<Report>), Failure> {
        let said = Config {
            data: self.calibrate.clone(),
            batch: Some(BatchSize::Samples(batch)),
            ..Config::default()
        };
        let said = if self.quantize == Some(Smaller::Int8) { said } else { Config::default() };
        let Trained { model_setup, trainer, form, data, data_name, .. } =
            Trained::open(&self.what, said, Purpose::Predict)?;
        let training = trainer.training().ok_or_else(|| Failure("the run's model is not loaded".into()))?;
        // A model that came as ONNX goes back as it came.
        if let (Some(model), false, None) = (&model_setup.onnx, to_tflite, self.prune_channels) {
            model.save(&self.to, training)?;
            return Ok((model_setup.name, None));
        }
        let spec = form.spec()?;
        let names = match (&model_setup.keras, &model_setup.onnx) {
            (Some(compiled), _) => compiled.model.input_names(),
            (None, Some(model)) => model.input_names(),
            (None, None) => spec.iter().take(1).map(|field| field.name.clone()).collect(),
        };
        let typed = |(name, field): (String, &FieldSpec)| {
            let shape: Shape = std::iter::once(batch).chain(field.shape.iter().copied()).collect();
            (name, Type::new(field.dtype, shape))
        };
        let inputs: Vec<(String, Type)> = names.into_iter().zip(&spec).map(typed).collect();
        // What a training with the rounding of int8 keeps beside the model's parameters is found anew on data.
        let types: Vec<Type> = inputs.iter().map(|(_, ty)| ty.clone()).collect();
        let known = Net::discover(&types, &*model_setup.model)?;
        let known: HashSet<&str> = known.iter().map(|param| param.name.as_str()).collect();
        let (params, values) = model_setup.to_write(training)?;
        let own = params.into_iter().zip(values).filter(|(param, _)| known.contains(param.name.as_str()));
        let (params, values): (Vec<Param>, Vec<Tensor>) = own.unzip();
        let whole = Exported {
            name: &model_setup.name,
            model: &*model_setup.model,
            inputs,
            params: &params,
            values: &values,
            data: Some((&data, &data_name)),
        };
        // What is written is compared where the weights are.
        let written = match whole.values.first().and_then(Tensor::device) {
            Some(device) => device.scope(|| self.write(&whole, to_tflite))?,
            None => self.write(&whole, to_tflite)?,
        };
        Ok((model_setup.name.clone(), written))
    }

    /// Writes a model, or what is left of it.
    fn write(&self, whole: &Exported<'_>, to_tflite: bool) -> Result<Option<Report>, Failure> {
        let Some(share) = self.prune_channels else { return self.write_whole(whole, to_tflite) };
        let Exported { name, model, params, values, data, .. } = *whole;
        let inputs = whole.inputs.clone();
        let types: Vec<Type> = inputs.iter().map(|(_, ty)| ty.clone()).collect();
        let narrow = Narrowed::new(model, &types, params, values, share)?;
        let count = |params: &[Param]| params.iter().map(|param| param.ty.elements()).sum::<usize>();
        let (before, after) = (count(params), count(&narrow.params));
        let (channels, left) = narrow.channels;
        if !self.json {
            say!("{left} of {channels} channels are left, {after} of {before} parameters");
        }
        let rest =
            Exported { name, model: &narrow, inputs, params: &narrow.params, values: &narrow.values, data };
        self.write_whole(&rest, to_tflite)
    }

    fn write_whole(&self, whole: &Exported<'_>, to_tflite: bool) -> Result<Option<Report>, Failure> {
        let Exported { name, model, inputs, params, values, .. } = whole;
        if !to_tflite {
            onnx::write_model(self.file(), name, *model, inputs, params, values)?;
            return Ok(None);
        }
        let mut calibrated = None;
        let how = match self.quantize {
            None => Quantize::No,
            Some(Smaller::F16) => Quantize::HalfWeights,
            Some(Smaller::Dynamic) => Quantize::DynamicRange,
            Some(Smaller::Int8) => {
                let (data, data_name) =
                    whole.data.ok_or_else(|| Failure("name data with --calibrate".into()))?;
                let (samples, seen) = self.samples(whole, data)?;
                calibrated = Some((data_name.to_string(), seen));
                Quantize::Int8(Calibration { samples, range: self.range()?, int8_ports: self.int8_ports })
            }
        };
        let arena = self.memory.map(|limit| limit.get() as usize);
        let goal = Goal { quantize: how, arena };
        let path = self.file();
        let shown = path.display().to_string();
        let failed = |error: &dyn std::fmt::Display| Failure(format!("{shown}: {error}"));
        let (mut file, written) = tflite::model_bytes(name, *model, inputs, params, values, &goal)?;
        if is_plan_file(&shown) {
            file = plimsoll::lite::plan_file(&file).map_err(|error| failed(&error))?;
        }
        durable::write_file(&path, |out| out.write_all(&file)).map_err(|e: std::io::Error| failed(&e))?;
        // What is not run here was said with the arena.
        let accuracy = match (Runner::new(&shown, &file), &calibrated) {
            (Ok(mut runner), Some(_)) => Accuracy::of(whole, &mut runner)?,
            _ => None,
        };
        let compressed = deflated_bytes(&file);
        Ok(Some(Report { written, compressed, calibrated, accuracy }))
    }

    /// Batches of inputs, as the file takes them, and how many samples they are.
    fn samples(&self, whole: &Exported<'_>, data: &Dataset) -> Result<(Vec<Vec<Tensor>>, usize), Failure> {
        let mut samples = Vec::new();
        let mut seen = 0;
        for batch in data.batches()? {
            let batch = batch?;
            let mut inputs = Vec::new();
            for (i, (_, ty)) in whole.inputs.iter().enumerate() {
                match batch.field_type(i) {
                    Some((dtype, shape)) if dtype == ty.dtype && shape[..] == ty.shape[..] => {
                        inputs.push(tflite_file::tensor(&batch, i)?);
                    }
                    // The last batch may be smaller than the file's.
                    _ => break,
                }
            }
            if inputs.len() == whole.inputs.len() {
                seen += batch.samples();
                samples.push(inputs);
            }
            if seen >= self.calibration_samples {
                break;
            }
        }
        match samples.is_empty() {
            true => {
                Err(Failure("the data to find ranges on has no batch that fits the model's inputs".into()))
            }
            false => Ok((samples, seen)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn args(ranges: &str, quantize: Option<Smaller>) -> Args {
        Args {
            what: Path::new("run").into(),
            to: Path::new("model.tflite").into(),
            quantize,
            calibrate: None,
            calibration_samples: 8,
            ranges: ranges.into(),
            int8_ports: false,
            prune_channels: None,
            memory: None,
            batch: None,
            overwrite: false,
            json: false,
        }
    }

    #[test]
    fn ranges_are_read_and_what_would_not_be_obeyed_is_refused() {
        let int8 = Some(Smaller::Int8);
        assert!(matches!(args("percentile=99", int8).range(), Ok(Range::Percentile(share)) if share == 99.0));
        assert!(args("percentile=0", int8).range().is_err());
        assert!(args("most", int8).range().is_err());
        assert!(args("entropy", None).check(true).is_err());
        assert!(args("min-max", int8).check(false).is_err());
        assert!(args("min-max", int8).check(true).is_ok());
    }
}
