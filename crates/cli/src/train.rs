//! `plimsoll train`: a model, data and a line in; a folder with the trained model out.

use std::path::{Path, PathBuf};

use plimsoll::device::{BestFit, Failing, process};
use plimsoll::prelude::*;
use plimsoll::train::{Fault, JsonLines, NoticeLog, StepLog};

use crate::Failure;
use crate::chosen::{Chosen, Purpose};
use crate::config::Config;
use crate::folder::Folder;
use crate::machine;
use crate::plan::is_keras;
use crate::records;
use crate::source::Source;
use crate::tui;

/// Arguments of `plimsoll train`.
#[derive(clap::Args)]
pub struct Args {
    /// A model of the zoo, a `.keras` file, or a file of settings (`run.toml`). Without it, the built-in demo: handwritten digits under a line.
    #[arg(value_name = "CONFIG.toml | MODEL")]
    what: Option<String>,
    #[command(flatten)]
    config: Config,
    /// The folder of the run; by default the next free one under `runs/`.
    #[arg(long)]
    out: Option<PathBuf>,
    /// Go on with the run in `--out` from its newest checkpoint, with the same bits as if it had never stopped.
    #[arg(long, requires = "out")]
    resume: bool,
    /// Rehearse a fault: `alloc:N` lets the N-th allocation fail, `nan:N` spoils the N-th batch, `device:N` loses the device at it.
    #[arg(long)]
    fault: Option<Fault>,
    /// A live view of the run: line, load by kind, loss, pipeline. On a terminal that cannot show it, the progress bar.
    #[arg(long, conflicts_with_all = ["json", "quiet"])]
    tui: bool,
    /// JSON lines instead of text.
    #[arg(long)]
    json: bool,
    /// Say nothing but errors.
    #[arg(long, conflicts_with = "json")]
    quiet: bool,
}

/// The line of the demo: a little above its least, so that it shows what a line does.
const DEMO_LINE: &str = "28MiB";

/// Trains.
pub fn run(args: &Args) -> Result<(), Failure> {
    let config = settings(args)?;
    let model = config.model.as_deref().unwrap_or("demo");
    let name = Path::new(model).file_stem().and_then(|stem| stem.to_str()).unwrap_or(model).to_string();
    let folder = Folder::begin(args.out.as_deref(), &name, args.resume)?;
    folder.keep(&config)?;
    let device = device(&config, args.fault)?;
    device.scope(|| train(args, &config, &folder, device.clone()))
}

/// The flags over the file, or over what the run in `--out` was begun with, over the demo's own.
fn settings(args: &Args) -> Result<Config, Failure> {
    let mut flags = args.config.clone();
    let mut below = Config::default();
    match args.what.as_deref() {
        Some(path) if path.ends_with(".toml") => below = Config::read(Path::new(path))?,
        Some(model) => flags.model = Some(model.into()),
        None => {}
    }
    if let (true, Some(out)) = (args.resume, &args.out)
        && let Ok(folder) = Folder::of(out)
    {
        below = below.over(Config::read(&folder.config())?);
    }
    let mut config = flags.over(below);
    let demo = config.model.is_none() && config.data.is_none();
    if demo && config.memory.is_none() {
        config.memory = Some(DEMO_LINE.into());
    }
    let (batch, epochs, lr) = if demo { (250, 15, 4e-3) } else { (32, 10, 1e-3) };
    config.batch.get_or_insert(batch);
    config.epochs.get_or_insert(epochs);
    // A Keras file brings its own.
    if config.optimizer.is_none() && !config.model.as_deref().is_some_and(is_keras) {
        config.lr.get_or_insert(lr);
    }
    Ok(config)
}

/// The device that a run names.
pub fn device(config: &Config, fault: Option<Fault>) -> Result<Device, Failure> {
    let threads = config.threads.unwrap_or_else(process::allowed_cpus).max(1);
    if let Some(Fault::Alloc(n)) = fault {
        return Ok(Device::cpu_over(threads, Failing::new(BestFit::with_machine_limit()?, n)));
    }
    machine::device(config.device.as_deref().unwrap_or("cpu"), threads, config.tf32.unwrap_or(false))
}

fn train(args: &Args, config: &Config, folder: &Folder, device: Device) -> Result<(), Failure> {
    let source = Source::open(config, Purpose::Train)?;
    let chosen = Chosen::new(config, source.model, &source.train, source.classes, Purpose::Train)?;
    let batch = config.batch.unwrap_or(1);
    let epochs = config.epochs.unwrap_or(1);
    let train = source.train.shuffle(1 << 14, config.seed.unwrap_or(42)).batch(batch);
    let samples = train.samples()?;
    let steps = samples.unwrap_or(0).div_ceil(batch.max(1) as u64) * epochs;
    let mut checkpoints = Checkpoints::new(folder.checkpoints()).keep(config.keep.unwrap_or(3));
    if let Some(every) = config.checkpoint_every {
        checkpoints = checkpoints.every(every);
    }
    let mut trainer = chosen
        .trainer(config, &train)?
        .device(device)
        .schedule(chosen.schedule(config, steps)?)
        .checkpoints(checkpoints)
        .fault(args.fault);
    if let Some(compiled) = &chosen.keras {
        trainer = trainer.beside(compiled.model.restoring_bytes());
    }
    trainer = match (args.json, args.quiet) {
        (true, _) => trainer.callback(JsonLines::new()),
        (false, true) => trainer,
        (false, false) if args.tui && tui::is_possible() => {
            trainer.beside(tui::MEMORY).callback(tui::LiveView::new())
        }
        (false, false) => trainer.callback(ProgressBar::new()),
    };
    trainer = trainer
        .callback(CsvLog::new(folder.metrics()))
        .callback(TensorBoardLog::new(folder.events()))
        .callback(StepLog::new(folder.steps()))
        .callback(NoticeLog::new(folder.notices()));
    if let Some(metric) = &config.early_stopping {
        trainer = trainer.callback(EarlyStopping::new(metric, config.patience.unwrap_or(3)));
    }
    if let Some(test) = source.test {
        trainer = trainer.validation(test.batch(batch));
    }
    if !args.json && !args.quiet {
        let samples = samples.map_or("samples".to_string(), |n| format!("{n} samples"));
        let data = config.data.as_deref().unwrap_or("digits");
        say!(
            "{} on {data}: {samples}, batch {batch}; the run is in {}",
            chosen.name,
            folder.path().display()
        );
    }
    let info = trainer.plan(&train)?;
    if let (Some(compiled), Some(training)) = (&chosen.keras, trainer.training_mut()) {
        compiled.model.restore(training)?;
    }
    folder.write(&folder.plan(), &records::plan(&chosen.name, batch, &info, &trainer).to_string())?;
    if let Some(timeline) = trainer.training().and_then(Training::timeline) {
        folder.record(&folder.step(), &timeline)?;
    }
    // The record took memory where the arena will be; the arena's pages are touched by the first step.
    process::release_unused_heap();
    if args.resume {
        trainer.resume(folder.path(), &train)?;
    }
    if let Err(error) = trainer.fit(&train, Epochs(epochs)) {
        let fault = serde_json::json!({ "event": "fault", "step": trainer.progress().step, "why": error.to_string() });
        NoticeLog::add(&folder.notices(), &fault)?;
        return Err(error.into());
    }
    trainer.save(folder.model())?;
    let mut written = folder.model();
    if let (Some(compiled), Some(training)) = (&chosen.keras, trainer.training()) {
        written = folder.path().join(compiled.model.saved_name(&chosen.name));
        compiled.model.save(&written, training)?;
    }
    if let Some(training) = trainer.training() {
        let ledger = training.ledger();
        folder.write(&folder.ledger(), &ledger.to_string())?;
        folder.record(&folder.ledger_json(), &records::ledger(&ledger))?;
    }
    if !args.json && !args.quiet {
        say!("the trained model is {}", written.display());
    }
    Ok(())
}
