//! `plimsoll export`: the model of a run, of a file or of the zoo, as an ONNX or a TensorFlow Lite file.

mod accuracy;

use std::collections::HashSet;
use std::path::PathBuf;

use plimsoll::data::{Dataset, FieldSpec};
use plimsoll::internals::formats::deflated_bytes;
use plimsoll::internals::graph::{Shape, Type};
use plimsoll::internals::run::Tensor;
use plimsoll::keras::KerasModel;
use plimsoll::nn::{Model, Net, Param, zoo};
use plimsoll::onnx::{self, OnnxModel};
use plimsoll::tflite::{self, Calibration, Quantize, Range, Written};
use plimsoll::torch::TorchModel;

use crate::Failure;
use crate::config::{BatchSize, Config};
use crate::model_setup::Purpose;
use crate::request::{is_keras, is_model_file, is_onnx, is_tflite, is_torch};
use crate::tflite_file::{self, Runner};
use crate::trained::Trained;
use accuracy::Accuracy;

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
    /// The file to write: its name ends in `.onnx` or `.tflite`.
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

/// What was written, and how good it is.
struct Report {
    written: Written,
    /// Bytes of the arena that it runs in here, or why it does not.
    arena: Result<usize, String>,
    /// Bytes of the file once it is compressed.
    compressed: u64,
    /// On which data ranges were found, and on how many samples.
    calibrated: Option<(String, usize)>,
    accuracy: Option<Accuracy>,
}

/// So many of the tensors that are furthest off are shown.
const SHOWN: usize = 8;

/// Writes the model as it predicts. What is written is read back first and compared with the model.
pub fn run(args: &Args) -> Result<(), Failure> {
    let shown = args.to.display();
    let is_tflite = match args.to.extension().and_then(|end| end.to_str()) {
        Some("tflite") => true,
        Some("onnx") => false,
        _ => {
            let why = "does not end in .onnx or .tflite, which are the kinds of files that are written";
            return Err(Failure(format!("{shown} {why}")));
        }
    };
    args.check(is_tflite)?;
    if args.to.is_dir() {
        return Err(Failure(format!("{shown} is a folder; name a file with --to")));
    }
    if args.to.exists() && !args.overwrite {
        return Err(Failure(format!(
            "{shown} is there already; name another file, or write over it with --overwrite"
        )));
    }
    let (name, report) = args.written(is_tflite)?;
    let to = args.to.display().to_string();
    match (args.json, &report) {
        (true, None) => say!("{}", serde_json::json!({ "model": name, "to": to })),
        (true, Some(report)) => say!("{}", report.json(&name, &to)),
        (false, None) => say!("{shown} is {name} as ONNX"),
        (false, Some(report)) => report.print(&name, &to, args.calibration_samples),
    }
    Ok(())
}

impl Report {
    fn json(&self, name: &str, to: &str) -> serde_json::Value {
        let found = &self.written;
        let floats: serde_json::Map<_, _> =
            found.floats.iter().map(|(op, n)| (op.clone(), (*n).into())).collect();
        let tensors: Vec<_> = found
            .errors
            .iter()
            .map(|e| {
                serde_json::json!({
                    "name": e.name, "op": e.op, "signal_to_noise_db": e.signal_to_noise, "mean_error": e.mean_error,
                    "largest": e.largest,
                })
            })
            .collect();
        let (arena, problem) = match &self.arena {
            Ok(bytes) => (Some(bytes), None),
            Err(why) => (None, Some(why)),
        };
        serde_json::json!({
            "model": name, "to": to, "bytes": found.bytes, "compressed_bytes": self.compressed, "ops": found.ops, "distance": found.distance, "float_ops": floats,
            "arena_bytes": arena, "not_run_by_lite": problem,
            "calibrated_on": self.calibrated.as_ref().map(|(data, _)| data),
            "calibration_samples": self.calibrated.as_ref().map(|(_, samples)| samples),
            "accuracy": self.accuracy, "tensors": tensors,
        })
    }

    fn print(&self, name: &str, to: &str, asked: usize) {
        let found = &self.written;
        let (bytes, compressed, ops) = (found.bytes, self.compressed, found.ops);
        say!("{to} is {name} as TensorFlow Lite: {bytes} bytes ({compressed} compressed), {ops} ops");
        match &self.arena {
            Ok(bytes) => say!("plimsoll-lite runs it in an arena of {bytes} bytes"),
            Err(why) => say!("plimsoll-lite does not run it: {why}"),
        }
        say!("its outputs differ from the model's by {:.1e} of the largest", found.distance);
        if let Some((data, samples)) = &self.calibrated {
            let fewer = match *samples < asked {
                true => format!(", which has no more; {asked} were asked for"),
                false => String::new(),
            };
            say!("ranges were found on {samples} samples of {data}{fewer}");
        }
        if let Some(accuracy) = &self.accuracy {
            accuracy.print();
        }
        if !found.errors.is_empty() {
            say!("furthest off, by signal to noise:");
            for e in found.errors.iter().take(SHOWN) {
                say!(
                    "  {:>6.1} dB  mean error {:<9.2e} of at most {:<9.2e} {}",
                    e.signal_to_noise,
                    e.mean_error,
                    e.largest,
                    e.name
                );
            }
        }
        if !found.floats.is_empty() {
            let list: Vec<String> = found.floats.iter().map(|(op, n)| format!("{n} {op}")).collect();
            say!(
                "in floating point, because they have no form in int8 or need more bits: {}",
                list.join(", ")
            );
        }
    }
}

impl Args {
    /// Refuses what would not be obeyed.
    fn check(&self, is_tflite: bool) -> Result<(), Failure> {
        let is_int8 = self.quantize == Some(Smaller::Int8);
        let unused = [
            (!is_tflite && self.quantize.is_some(), "--quantize is for .tflite files"),
            (
                !is_tflite && self.batch.is_some(),
                "--batch is for .tflite files: the batch of an ONNX file stays open",
            ),
            (!is_int8 && self.calibrate.is_some(), "--calibrate is for --quantize int8"),
            (!is_int8 && self.int8_ports, "--int8-ports is for --quantize int8"),
            (!is_int8 && self.ranges != "min-max", "--ranges is for --quantize int8"),
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
        if is_onnx(path) && !to_tflite {
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
        if let (Some(model), false) = (&model_setup.onnx, to_tflite) {
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
        let own = training.params().iter().zip(training.values());
        let own = own.filter(|(param, _)| known.contains(param.name.as_str()));
        let (params, values): (Vec<Param>, Vec<Tensor>) =
            own.map(|(param, value)| (param.clone(), value.clone())).unzip();
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

    fn write(&self, whole: &Exported<'_>, to_tflite: bool) -> Result<Option<Report>, Failure> {
        let Exported { name, model, inputs, params, values, .. } = whole;
        if !to_tflite {
            onnx::write_model(&self.to, name, *model, inputs, params, values)?;
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
        let written = tflite::write_model(&self.to, name, *model, inputs, params, values, &how)?;
        let shown = self.to.display().to_string();
        let file = std::fs::read(&self.to).map_err(|error| Failure(format!("{shown}: {error}")))?;
        let (arena, accuracy) = match (Runner::new(&shown, &file), &calibrated) {
            (Ok(mut runner), Some((_, _))) => {
                let accuracy = Accuracy::of(whole, &mut runner)?;
                (Ok(runner.arena_bytes()), accuracy)
            }
            (Ok(runner), None) => (Ok(runner.arena_bytes()), None),
            (Err(Failure(why)), _) => (Err(why), None),
        };
        let compressed = deflated_bytes(&file);
        Ok(Some(Report { written, arena, compressed, calibrated, accuracy }))
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
    use std::path::Path;

    use super::*;

    fn args(ranges: &str, quantize: Option<Smaller>) -> Args {
        Args {
            what: Path::new("run").into(),
            to: Path::new("model.tflite").into(),
            quantize,
            calibrate: None,
            calibration_samples: 8,
            ranges: ranges.into(),
            int8_ports: false,
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
