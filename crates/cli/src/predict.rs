//! `plimsoll predict` and `plimsoll evaluate`: a trained model over data.

use std::path::PathBuf;

use plimsoll::prelude::*;

use crate::config::{BatchSize, Config};
use crate::model_setup::Purpose;
use crate::predictions::{Meaning, Writer};
use crate::request::{is_onnx, is_tflite, is_torch};
use crate::trained::Trained;
use crate::{Failure, Stop, check, tflite_file};

/// What `predict` and `evaluate` share.
#[derive(clap::Args)]
pub struct Common {
    /// The folder of a run, or a model: a `.keras`, `.h5`, `.onnx`, `.pt2` or `.tflite` file; the last runs as on a device, in one arena and on one
    /// thread.
    #[arg(value_name = "RUN | MODEL")]
    what: PathBuf,
    /// The data; by default the held-back part of what a run was trained on.
    #[arg(long)]
    data: Option<String>,
    /// Samples at a time; by default as in training, or 32.
    #[arg(long)]
    batch: Option<usize>,
    /// What stored bytes (uint8 arrays and images) become: `none` (0 to 255), `unit` (divided by 255), or a number to multiply by; by default as in
    /// training, and none where a file does not say how it was trained.
    #[arg(long)]
    scale: Option<String>,
    /// The memory limit: the most that the process may take; by default none.
    #[arg(long)]
    memory: Option<String>,
    #[command(flatten)]
    place: Place,
    /// One JSON line instead of text.
    #[arg(long)]
    json: bool,
}

/// Where a trained model is used.
#[derive(clap::Args)]
pub struct Place {
    /// Where it runs: cpu, cuda or cuda:N. Where neither this nor a run says it, the CPU.
    #[arg(long)]
    pub device: Option<String>,
    /// Threads; by default as many as this process may use.
    #[arg(long)]
    pub threads: Option<usize>,
}

/// Arguments of `plimsoll evaluate`.
#[derive(clap::Args)]
pub struct EvaluateArgs {
    #[command(flatten)]
    common: Common,
    /// cross-entropy, mse, mae, binary-cross-entropy or dice; by default as in training, or what a file was compiled with.
    #[arg(long)]
    loss: Option<String>,
    /// What is counted beside the loss, with commas; by default as in training, or what a file was compiled with.
    #[arg(long)]
    metrics: Option<String>,
}

/// Arguments of `plimsoll predict`.
#[derive(clap::Args)]
pub struct PredictArgs {
    #[command(flatten)]
    common: Common,
    /// Where predictions go: `.npy` is an array of what the model gives, a row a sample; `.csv`, `.json` (one array) and `.jsonl` have the
    /// name of each sample, its class and the probabilities of all. Without it, text.
    #[arg(long)]
    out: Option<PathBuf>,
    /// Which output of a model that has several: its name, or its number counted from 0.
    #[arg(long, default_value = "0")]
    output: String,
    /// Write the class with the largest output instead, as i64, to an `.npy` file.
    #[arg(long)]
    argmax: bool,
}

impl Common {
    /// What was said here.
    fn said(&self) -> Config {
        Config {
            data: self.data.clone(),
            batch: self.batch.map(BatchSize::Samples),
            scale: self.scale.clone(),
            memory: self.memory.clone(),
            device: self.place.device.clone(),
            threads: self.place.threads,
            ..Config::default()
        }
    }

    /// Says what bytes were taken for, where nobody said it and the file cannot: one that learned from 0 to 1 guesses at 0 to 255.
    fn say_scale(&self) {
        let name = self.what.to_string_lossy();
        if self.scale.is_none() && (is_tflite(&name) || is_onnx(&name) || is_torch(&name)) {
            eprintln!(
                "plimsoll: stored bytes, where the data has any, went to {name} as 0 to 255; --scale unit divides them by 255"
            );
        }
    }

    /// The path of a `.tflite` file, which runs by itself.
    fn tflite(&self) -> Option<&str> {
        self.what.to_str().filter(|path| is_tflite(path))
    }
}

/// The most that the process has taken so far, for one who checks the memory limit.
fn peak() -> Option<u64> {
    plimsoll::internals::device::process::peak_resident().map(Bytes::get)
}

/// Prints loss and metrics.
pub fn evaluate(args: &EvaluateArgs) -> Result<(), Stop> {
    let said = Config { loss: args.loss.clone(), metrics: args.metrics.clone(), ..args.common.said() };
    check::check(&said).map_err(Stop::usage)?;
    let (found, data, is_seen) = match args.common.tflite() {
        Some(path) => {
            let (found, data) = tflite_file::evaluate(path, &said)?;
            (found, data, false)
        }
        None => {
            let mut trained = Trained::open(&args.common.what, said, Purpose::Evaluate)?;
            (trained.trainer.evaluate(&trained.data)?, trained.data_name, trained.is_seen)
        }
    };
    if found.samples == 0 {
        return Err(Failure(format!("{data} has no samples to evaluate on")).into());
    }
    args.common.say_scale();
    if args.common.json {
        let mut line = serde_json::json!({
            "loss": found.loss, "samples": found.samples, "data": data, "trained_on": is_seen,
            "resident_peak_bytes": peak(),
        });
        for (name, value) in &found.metrics {
            line[name] = serde_json::json!(value);
        }
        say!("{line}");
        return Ok(());
    }
    let metrics: String = found.metrics.iter().map(|(name, value)| format!("  {name} {value:.4}")).collect();
    let samples = if found.samples == 1 { "sample" } else { "samples" };
    say!("{} {samples} of {data}: loss {:.4}{metrics}", found.samples, found.loss);
    if is_seen {
        say!(
            "nothing was held back: this is the data that the model was trained on, and says nothing of other data"
        );
    }
    Ok(())
}

/// Writes predictions as an array, a table, JSON lines or text.
pub fn predict(args: &PredictArgs) -> Result<(), Stop> {
    let said = args.common.said();
    check::check(&said).map_err(Stop::usage)?;
    let (seen, shape, data) = match args.common.tflite() {
        Some(path) => {
            let wanted = |names: &[String]| {
                let wanted = wanted_output(&args.output, names)?;
                within(wanted, names.len())
            };
            tflite_file::predict(path, &said, wanted, |meaning| {
                Writer::new(args.out.as_deref(), args.argmax, meaning)
            })?
        }
        None => of_trained(args, said)?,
    };
    if seen == 0 {
        return Err(Failure(format!("{data} has no samples to predict on")).into());
    }
    args.common.say_scale();
    let Some(out) = &args.out else { return Ok(()) };
    if args.common.json {
        say!(
            "{}",
            serde_json::json!({
                "samples": seen, "shape": shape, "out": out.to_string_lossy(), "data": data,
                "resident_peak_bytes": peak(),
            })
        );
    } else {
        let are = if seen == 1 { "prediction of shape" } else { "predictions of shape" };
        say!("{}: {seen} {are} {:?}", out.display(), &shape[1..]);
    }
    Ok(())
}

/// Writes the predictions of a run or of a file that can be trained: how many, their shape, and the data they are of.
fn of_trained(args: &PredictArgs, said: Config) -> Result<(u64, Vec<usize>, String), Stop> {
    let mut trained = Trained::open(&args.common.what, said, Purpose::Predict)?;
    let wanted = wanted_output(&args.output, &trained.model_setup.output_names()).map_err(Stop::usage)?;
    let meaning = Meaning {
        is_classes: trained.model_setup.gives_classes(wanted),
        is_logits: trained.model_setup.is_classifier,
        class_names: trained.form.class_names.clone(),
        data: trained.data.clone(),
    };
    let mut writer = Writer::new(args.out.as_deref(), args.argmax, meaning)?;
    let mut outputs = 0;
    let mut failed = None;
    let seen = trained.trainer.predict(&trained.data, |prediction| {
        outputs = prediction.outputs.len();
        if let (Some(output), true) = (prediction.outputs.get(wanted), failed.is_none()) {
            failed = writer.add(output, prediction.numbers)?.err();
        }
        Ok(())
    })?;
    if let Some(why) = failed {
        return Err(why.into());
    }
    if seen > 0 {
        within(wanted, outputs).map_err(Stop::usage)?;
    }
    Ok((seen, writer.finish()?, trained.data_name))
}

/// The number of an output, where there is one of it.
fn within(wanted: usize, outputs: usize) -> Result<usize, Failure> {
    match wanted < outputs {
        true => Ok(wanted),
        false => {
            let why = format!("the model has {outputs} outputs, counted from 0, and so no output {wanted}");
            Err(Failure(why))
        }
    }
}

/// The number of an output that is named by its name or number.
fn wanted_output(named: &str, names: &[String]) -> Result<usize, Failure> {
    if let Some(i) = names.iter().position(|name| name == named) {
        return Ok(i);
    }
    let none = || match names {
        [] => Failure(format!("--output {named} is no number of an output")),
        names => Failure(format!("the model has no output {named}; there are {}", names.join(", "))),
    };
    named.parse().map_err(|_| none())
}
