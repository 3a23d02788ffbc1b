//! `plimsoll predict` and `plimsoll evaluate`: a trained model over data.

use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

use plimsoll::formats::{Element, durable, npy};
use plimsoll::prelude::*;

use crate::Failure;
use crate::chosen::{Chosen, Purpose};
use crate::config::Config;
use crate::folder::Folder;
use crate::plan::is_keras;
use crate::source::Source;
use crate::train;

/// What `predict` and `evaluate` share.
#[derive(clap::Args)]
pub struct Common {
    /// The folder of a run, or a model: a `.keras` or `.h5` file.
    #[arg(value_name = "RUN | MODEL")]
    what: PathBuf,
    /// The data; by default the held-back part of what a run was trained on.
    #[arg(long)]
    data: Option<String>,
    /// Samples at a time; by default as in training, or 32.
    #[arg(long)]
    batch: Option<usize>,
    /// The line: the most that the process may take; by default none.
    #[arg(long)]
    memory: Option<String>,
    /// Where it runs: cpu, cuda or cuda:N. By default as in training, or the CPU.
    #[arg(long)]
    device: Option<String>,
    /// Threads; by default as many as this process may use.
    #[arg(long)]
    threads: Option<usize>,
    /// One JSON line instead of text.
    #[arg(long)]
    json: bool,
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
    /// Where predictions go: an array of f32, or f64 of a model in f64, a row a sample.
    #[arg(long)]
    out: PathBuf,
    /// Which output of a model that has several: its name, or its number counted from 0.
    #[arg(long, default_value = "0")]
    output: String,
    /// Write the class with the largest output instead, as i64.
    #[arg(long)]
    argmax: bool,
}

impl Common {
    /// What was said here.
    fn said(&self) -> Config {
        Config {
            data: self.data.clone(),
            batch: self.batch,
            memory: self.memory.clone(),
            device: self.device.clone(),
            threads: self.threads,
            ..Config::default()
        }
    }
}

/// A model with the data to use it on, and the names of its outputs where it has them.
type Used = (Trainer, Dataset, Vec<String>);

/// A model with the data to use it on.
fn open(common: &Common, said: Config, purpose: Purpose) -> Result<Used, Failure> {
    match common.what.to_str().filter(|path| is_keras(path)) {
        Some(path) => open_model(path, said, purpose),
        None => {
            let named = common.data.is_some();
            let Trained { chosen, trainer, data } = load_run(&common.what, said, named, purpose)?;
            Ok((trainer, data, chosen.output_names()))
        }
    }
}

/// The model that a run trained, with the data to use it on.
pub struct Trained {
    pub chosen: Chosen,
    pub trainer: Trainer,
    pub data: Dataset,
}

/// The model that a run trained, as it was trained.
pub fn open_run(run: &Path) -> Result<Trained, Failure> {
    load_run(run, Config::default(), false, Purpose::Predict)
}

/// The model of a Keras file with its weights.
fn open_model(path: &str, said: Config, purpose: Purpose) -> Result<Used, Failure> {
    if said.data.is_none() {
        return Err(Failure(format!("{path} does not say what data is for it; name some with --data")));
    }
    let config = Config { model: Some(path.into()), ..said };
    let source = Source::open(&config, purpose)?;
    let model = source.model.clone();
    let data = source.held_back().batch(config.batch.unwrap_or(32));
    let chosen = Chosen::new(&config, model, &data, None, purpose)?;
    let mut trainer = chosen.trainer(&config, &data, train::device(&config, None)?)?;
    if let Some(compiled) = &chosen.keras {
        trainer = trainer.beside(compiled.model.restoring_bytes());
        trainer.prepare_blank(&data)?;
        if let Some(training) = trainer.training_mut() {
            compiled.model.restore_weights(training)?;
        }
    }
    Ok((trainer, data, chosen.output_names()))
}

/// The model that a run trained; `named` says whether it is to be used on other data than its own.
fn load_run(run: &Path, said: Config, named: bool, purpose: Purpose) -> Result<Trained, Failure> {
    let folder = Folder::of(run)?;
    // The line was that of training.
    let kept = Config { memory: None, ..Config::read(&folder.config())? };
    let (loss, metrics) = (said.loss.clone(), said.metrics.clone());
    let config = said.over(kept.clone());
    let source = Source::open(&config, purpose)?;
    // The model is the one that was trained, whatever other data is shown to it.
    let trained = if named { Source::open(&kept, purpose).ok() } else { None };
    let classes = config.classes.or(trained.as_ref().and_then(|s| s.classes)).or(source.classes);
    let seen = trained.map_or_else(|| source.train.clone(), |s| s.train);
    let own = Config { loss, metrics, ..Config::default() }.over(kept);
    let chosen = Chosen::new(&own, source.model.clone(), &seen, classes, purpose)?;
    let data = source.held_back().batch(config.batch.unwrap_or(32));
    let mut trainer = chosen.trainer(&config, &data, train::device(&config, None)?)?;
    let model = folder.model();
    if !model.is_file() {
        let shown = run.display();
        return Err(Failure(format!(
            "{shown} has no trained model yet; let the run end, or go on with --resume"
        )));
    }
    trainer.load(&model, &data)?;
    Ok(Trained { chosen, trainer, data })
}

/// The most that the process has taken so far, for one who checks the line.
fn peak() -> Option<u64> {
    plimsoll::device::process::peak_resident().map(Bytes::get)
}

/// Prints loss and metrics.
pub fn evaluate(args: &EvaluateArgs) -> Result<(), Failure> {
    let said = Config { loss: args.loss.clone(), metrics: args.metrics.clone(), ..args.common.said() };
    let (mut trainer, data, _) = open(&args.common, said, Purpose::Evaluate)?;
    let found = trainer.evaluate(&data)?;
    if args.common.json {
        let mut line = serde_json::json!({
            "loss": found.loss, "samples": found.samples, "resident_peak_bytes": peak(),
        });
        for (name, value) in &found.metrics {
            line[name] = serde_json::json!(value);
        }
        say!("{line}");
        return Ok(());
    }
    let metrics: String = found.metrics.iter().map(|(name, value)| format!("  {name} {value:.4}")).collect();
    say!("{} samples: loss {:.4}{metrics}", found.samples, found.loss);
    Ok(())
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

/// Writes predictions as an npy file.
pub fn predict(args: &PredictArgs) -> Result<(), Failure> {
    let (mut trainer, data, names) = open(&args.common, args.common.said(), Purpose::Predict)?;
    let wanted = wanted_output(&args.output, &names)?;
    let failed = |e: std::io::Error| Failure(format!("{}: {e}", args.out.display()));
    // How many rows there are is known at the end, and stands at the beginning of the file.
    let rows = args.out.with_extension("npy.rows");
    let mut out = BufWriter::new(File::create(&rows).map_err(failed)?);
    let mut shape: Vec<usize> = Vec::new();
    let mut element = if args.argmax { Element::I64 } else { Element::F32 };
    let mut written = Ok(());
    let mut outputs = 0;
    let seen = trainer.predict(&data, |prediction| {
        outputs = prediction.outputs.len();
        let Some(output) = prediction.outputs.get(wanted) else { return Ok(()) };
        let output = if args.argmax { &output.argmax(-1)? } else { output };
        shape = output.shape()[1..].to_vec();
        element = Element::from(output.dtype());
        if written.is_ok() {
            written = out.write_all(&output.as_bytes()?);
        }
        Ok(())
    })?;
    if wanted >= outputs && seen > 0 {
        std::fs::remove_file(&rows).map_err(failed)?;
        return Err(Failure(format!(
            "the model has {outputs} outputs, counted from 0, and so no output {wanted}"
        )));
    }
    written.and_then(|()| out.flush()).map_err(failed)?;
    shape.insert(0, seen as usize);
    let whole = durable::write_file(&args.out, |file| -> std::io::Result<()> {
        npy::write_header(file, element, &shape)?;
        std::io::copy(&mut BufReader::new(File::open(&rows)?), file)?;
        Ok(())
    });
    let removed = std::fs::remove_file(&rows);
    whole.and(removed).map_err(failed)?;
    if args.common.json {
        say!(
            "{}",
            serde_json::json!({ "samples": seen, "shape": shape, "out": args.out.display().to_string(), "resident_peak_bytes": peak() })
        );
    } else {
        say!("{seen} predictions of shape {:?} are in {}", &shape[1..], args.out.display());
    }
    Ok(())
}
