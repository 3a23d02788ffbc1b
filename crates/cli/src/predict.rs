//! `plimsoll predict` and `plimsoll evaluate`: a trained model over data.

use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::path::PathBuf;

use plimsoll::formats::{Element, durable, npy};
use plimsoll::prelude::*;

use crate::Failure;
use crate::chosen::Chosen;
use crate::config::Config;
use crate::folder::Folder;
use crate::source::Source;
use crate::train;

/// What `predict` and `evaluate` share.
#[derive(clap::Args)]
pub struct Common {
    /// The folder of a run.
    run: PathBuf,
    /// The data; by default the held-back part of what the run was trained on.
    #[arg(long)]
    data: Option<String>,
    /// Samples at a time; by default as in training.
    #[arg(long)]
    batch: Option<usize>,
    /// The line: the most that the process may take; by default none.
    #[arg(long)]
    memory: Option<String>,
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
}

/// Arguments of `plimsoll predict`.
#[derive(clap::Args)]
pub struct PredictArgs {
    #[command(flatten)]
    common: Common,
    /// Where predictions go: an array of f32, a row a sample.
    #[arg(long)]
    out: PathBuf,
    /// Write the class with the largest output instead, as i64.
    #[arg(long)]
    argmax: bool,
}

/// A trained model with the data to use it on.
fn open(common: &Common) -> Result<(Trainer, Dataset), Failure> {
    let folder = Folder::of(&common.run)?;
    let kept = Config::read(&folder.config())?;
    let named = common.data.is_some();
    let config = Config {
        data: common.data.clone(),
        batch: common.batch,
        memory: None,
        threads: common.threads,
        ..Config::default()
    };
    let mut config = config.over(Config { memory: None, ..kept.clone() });
    config.memory = common.memory.clone();
    let source = Source::open(&config)?;
    // The model is the one that was trained, whatever other data is shown to it.
    let trained = if named { Source::open(&kept).ok() } else { None };
    let classes = config.classes.or(trained.as_ref().and_then(|s| s.classes)).or(source.classes);
    let seen = trained.map_or_else(|| source.train.clone(), |s| s.train);
    let chosen = Chosen::new(&kept, &seen, classes)?;
    let data = source.held_back().batch(config.batch.unwrap_or(32));
    let mut trainer = chosen.trainer(&config)?.device(train::device(&config, None)?);
    let model = folder.model();
    if !model.is_file() {
        let shown = common.run.display();
        return Err(Failure(format!(
            "{shown} has no trained model yet; let the run end, or go on with --resume"
        )));
    }
    trainer.load(&model, &data)?;
    Ok((trainer, data))
}

/// Prints loss and metrics.
pub fn evaluate(args: &EvaluateArgs) -> Result<(), Failure> {
    let (mut trainer, data) = open(&args.common)?;
    let found = trainer.evaluate(&data)?;
    if args.common.json {
        let mut line = serde_json::json!({ "loss": found.loss, "samples": found.samples });
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

/// Writes predictions as an npy file.
pub fn predict(args: &PredictArgs) -> Result<(), Failure> {
    let (mut trainer, data) = open(&args.common)?;
    let failed = |e: std::io::Error| Failure(format!("{}: {e}", args.out.display()));
    // How many rows there are is known at the end, and stands at the beginning of the file.
    let rows = args.out.with_extension("npy.rows");
    let mut out = BufWriter::new(File::create(&rows).map_err(failed)?);
    let mut shape: Vec<usize> = Vec::new();
    let mut written = Ok(());
    let seen = trainer.predict(&data, |prediction| {
        let Some(output) = prediction.outputs.first() else { return Ok(()) };
        let output = if args.argmax { &output.argmax(-1)? } else { output };
        shape = output.shape()[1..].to_vec();
        if written.is_ok() {
            written = out.write_all(&output.as_bytes()?);
        }
        Ok(())
    })?;
    written.and_then(|()| out.flush()).map_err(failed)?;
    shape.insert(0, seen as usize);
    let element = if args.argmax { Element::I64 } else { Element::F32 };
    let whole = durable::write_file(&args.out, |file| -> std::io::Result<()> {
        npy::write_header(file, element, &shape)?;
        std::io::copy(&mut BufReader::new(File::open(&rows)?), file)?;
        Ok(())
    });
    let removed = std::fs::remove_file(&rows);
    whole.and(removed).map_err(failed)?;
    if args.common.json {
        say!("{}", serde_json::json!({ "samples": seen, "shape": shape, "out": args.out }));
    } else {
        say!("{seen} predictions of shape {:?} are in {}", &shape[1..], args.out.display());
    }
    Ok(())
}
