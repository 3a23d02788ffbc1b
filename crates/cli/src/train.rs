//! `plimsoll train`: a model, data and a memory limit in; a folder with the trained model out.

use std::path::{Path, PathBuf};

use plimsoll::device::process;
use plimsoll::graph::counted;
use plimsoll::prelude::*;
use plimsoll::run::record::Event;
use plimsoll::train::{Ended, Fault, JsonLines, NoticeLog, StepLog};
use serde::Deserialize;

use crate::config::Config;
use crate::folder::{Folder, Lock};
use crate::interrupt::Signals;
use crate::machine;
use crate::plan::is_keras;
use crate::records;
use crate::setup::Setup;
use crate::tui;
use crate::{Failure, Stop, check, chosen, resume, sizes};

/// Arguments of `plimsoll train`.
#[derive(clap::Args)]
#[command(allow_negative_numbers = true, after_help = chosen::MODELS)]
pub struct Args {
    /// A model by name, a `.keras` or `.h5` file, or a file of settings (`run.toml`, every flag is a key of it). Without it, the
    /// built-in demo: handwritten digits under a memory limit.
    #[arg(value_name = "CONFIG.toml | MODEL")]
    what: Option<String>,
    #[command(flatten)]
    config: Config,
    #[command(flatten)]
    session: Session,
}

/// What is asked of one call and is no part of the run.
#[derive(clap::Args, Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Session {
    /// The folder of the run. [default: the next free one under `runs/`]
    #[arg(long, help_heading = "Run")]
    out: Option<PathBuf>,
    /// Go on with the run in `--out` from its newest checkpoint, with the same bits as if it had never stopped.
    #[arg(long, help_heading = "Run")]
    resume: bool,
    /// Rehearse a fault: `alloc:N` lets the N-th allocation fail, `nan:N` spoils the N-th batch, `device:N` loses the device at it.
    #[arg(long, help_heading = "Run")]
    fault: Option<String>,
    /// A live view of the run: limit, load by kind, loss, pipeline. On a terminal that cannot show it, the progress bar.
    #[arg(long, help_heading = "Output")]
    tui: bool,
    /// JSON lines instead of text: a first event with the run's folder, a last one with the model's path.
    #[arg(long, help_heading = "Output")]
    json: bool,
    /// Say nothing but errors.
    #[arg(short, long, help_heading = "Output")]
    quiet: bool,
}

impl Session {
    /// These words over those of a file.
    fn over(self, file: Session) -> Session {
        Session {
            out: self.out.or(file.out),
            resume: self.resume || file.resume,
            fault: self.fault.or(file.fault),
            tui: self.tui || file.tui,
            json: self.json || file.json,
            quiet: self.quiet || file.quiet,
        }
    }

    fn check(&self) -> Result<(), Failure> {
        for (a, b, both) in [
            ("--tui", "--json", self.tui && self.json),
            ("--tui", "--quiet", self.tui && self.quiet),
            ("--json", "--quiet", self.json && self.quiet),
        ] {
            if both {
                return Err(Failure(format!("{a} and {b} exclude each other; leave one of them out")));
            }
        }
        if self.resume && self.out.is_none() {
            return Err(Failure("--resume goes on with the run in a folder; name it with --out".into()));
        }
        Ok(())
    }

    fn fault(&self) -> Result<Option<Fault>, Failure> {
        let parse = |text: &str| text.parse::<Fault>().map_err(|e| Failure(format!("--fault {text}: {e}")));
        self.fault.as_deref().map(parse).transpose()
    }

    /// Whether people read what is said.
    fn is_text(&self) -> bool {
        !self.json && !self.quiet
    }
}

/// The memory limit of the demo: a little above its least, so that it shows what a limit does. A debug build is itself larger.
const DEMO_LIMIT: &str = if cfg!(debug_assertions) { "34MiB" } else { "28MiB" };

/// Trains.
pub fn run(args: &Args) -> Result<(), Stop> {
    let (config, session) = settings(args)?;
    let fault = session.fault().map_err(Stop::usage)?;
    let device = device(&config, fault)?;
    let name = config.model.as_deref().unwrap_or("demo");
    let name = Path::new(name).file_stem().and_then(|stem| stem.to_str()).unwrap_or(name).to_string();
    let (folder, lock) = match &session.out {
        Some(out) if session.resume => {
            let folder = Folder::of(out)?;
            let lock = folder.lock()?;
            (folder, Some(lock))
        }
        out => Folder::to_begin(out.as_deref(), &name)?,
    };
    let is_named = session.out.is_some();
    let ended = device.scope(|| train(&session, &config, fault, &folder, lock, &device));
    if ended.is_err() && !is_named {
        folder.abandon();
    }
    ended
}

/// The flags over the file, or over what the run in `--out` was begun with, over the demo's own.
fn settings(args: &Args) -> Result<(Config, Session), Stop> {
    let mut flags = args.config.clone();
    let mut session = args.session.clone();
    match args.what.as_deref() {
        Some(path) if path.ends_with(".toml") => {
            let (file, words) = Config::read_request(Path::new(path))?;
            (flags, session) = (flags.over(file), session.over(words));
        }
        Some(model) => flags.model = Some(model.into()),
        None => {}
    }
    session.check().map_err(Stop::usage)?;
    let asked = flags.anchored()?;
    check::check(&asked).map_err(Stop::usage)?;
    let mut config = match &session.out {
        Some(out) if session.resume => resume::settings(asked, Folder::of(out)?.settings()?, out)?,
        _ => asked,
    };
    let demo = config.model.is_none() && config.data.is_none();
    if demo && config.memory.is_none() {
        config.memory = Some(DEMO_LIMIT.into());
    }
    config.complete(demo);
    check::check(&config).map_err(Stop::usage)?;
    named_model(&config).map_err(Stop::usage)?;
    Ok((config, session))
}

/// Whether the model has a name that is known, and the sizes that are set.
pub fn named_model(config: &Config) -> Result<(), Failure> {
    let name = config.model.as_deref().unwrap_or("demo");
    let entry = if is_keras(name) { None } else { chosen::find(name)? };
    sizes::check(config, name, entry.as_ref())
}

/// The device that a run names.
pub fn device(config: &Config, fault: Option<Fault>) -> Result<Device, Failure> {
    let threads = config.threads.unwrap_or_else(process::allowed_cpus).max(1);
    let name = config.device.as_deref().unwrap_or("cpu");
    let device = machine::device(name, threads, config.tf32.unwrap_or(false))?;
    Ok(match fault {
        Some(Fault::Alloc(n)) => device.failing(n),
        _ => device,
    })
}

fn train(
    session: &Session,
    config: &Config,
    fault: Option<Fault>,
    folder: &Folder,
    lock: Option<Lock>,
    device: &Device,
) -> Result<(), Stop> {
    let Setup { chosen, mut trainer, train, form, batch, held_back } = Setup::new(config, device)?;
    let epochs = config.epochs.unwrap_or(1);
    let mut checkpoints = Checkpoints::new(folder.checkpoints()).keep(config.keep.unwrap_or(3));
    if let Some(every) = config.checkpoint_every {
        checkpoints = checkpoints.every(every);
    }
    trainer = trainer.checkpoints(checkpoints).fault(fault);
    trainer = match session.tui && tui::is_possible() {
        true => trainer.beside(tui::MEMORY).callback(tui::LiveView::new()),
        false if session.json => trainer.callback(JsonLines::new().ends_later()),
        false if session.quiet => trainer,
        false => trainer.callback(ProgressBar::new()),
    };
    trainer = trainer
        .callback(CsvLog::new(folder.metrics()))
        .callback(TensorBoardLog::new(folder.events()))
        .callback(StepLog::new(folder.steps()))
        .callback(NoticeLog::new(folder.notices()));
    if let Some(metric) = &config.early_stopping {
        trainer = trainer.callback(EarlyStopping::new(metric, config.patience.unwrap_or(3)));
    }
    let info = trainer.compile(&train)?;
    if let (Some(compiled), Some(training)) = (&chosen.keras, trainer.training_mut()) {
        compiled.model.restore(training)?;
    }
    // What can be refused has been: from here on the folder is this run's.
    let mut resumed = false;
    let _lock = match (session.resume, lock) {
        (true, Some(lock)) => {
            resumed = trainer.resume(folder.path(), &train)?;
            folder.keep(config)?;
            lock
        }
        (_, lock) => folder.begin(config, lock)?,
    };
    if let Some(named) = config.model.as_deref().filter(|name| is_keras(name)) {
        let copy = folder.source_model(named);
        if !copy.is_file() {
            folder.copy(Path::new(named), &copy)?;
        }
    }
    folder.record(&folder.form(), &form)?;
    folder.record(&folder.plan(), &records::plan(&chosen.name, batch, &info, &trainer))?;
    if let Some(timeline) = trainer.training().and_then(Training::timeline) {
        folder.record(&folder.step(), &timeline)?;
    }
    // A report plans with the same times; one that cannot has no other plans to show.
    Device::current()?.keep_times(&folder.times()).ok();
    // The record took memory where the arena will be; the arena's pages are touched by the first step.
    process::release_unused_heap();
    announce(session, &chosen.name, &form.data, &train, held_back.as_deref(), folder)?;
    if session.resume && !resumed && session.is_text() {
        say!("there is no checkpoint yet: the run begins anew");
    }
    let signals = Signals::listen(&trainer.stop_handle())?;
    if let Err(error) = trainer.fit(&train, Epochs(epochs)) {
        let fault = Event::new("fault").at(trainer.progress().step).because(error.to_string());
        NoticeLog::add(&folder.notices(), &fault)?;
        return Err(error.into());
    }
    let end = |model: Option<&Path>, step: u64| {
        let mut line = trainer.ended().unwrap_or(&Ended::Complete).to_json(model);
        line["step"] = step.into();
        line["run"] = folder.path().to_string_lossy().into();
        line
    };
    let step = trainer.progress().step;
    if let (Some(signal), Some(Ended::Stopped { .. })) = (signals.received(), trainer.ended()) {
        if session.json {
            say!("{}", end(None, step));
        }
        let go_on = format!("plimsoll train --resume --out {}", folder.path().display());
        let why = format!("stopped after step {step}, with a checkpoint; go on with: {go_on}");
        return Err(Stop::Interrupted { signal, why });
    }
    let written = keep_model(&trainer, &chosen, folder)?;
    if session.json {
        say!("{}", end(Some(&written), step));
    }
    if session.is_text() {
        say!("the trained model is {}", written.display());
    }
    Ok(())
}

/// Says what is trained on what, and where.
fn announce(
    session: &Session,
    model: &str,
    data: &str,
    train: &Dataset,
    held_back: Option<&str>,
    folder: &Folder,
) -> Result<(), Failure> {
    let (samples, batch, notes) = (train.samples()?, train.batch_size(), train.notes());
    if session.json {
        let run = folder.path().to_string_lossy();
        say!(
            "{}",
            serde_json::json!({
                "event": "run", "run": run, "model": model, "data": data, "samples": samples, "batch": batch,
                "validation": held_back, "notes": notes,
            })
        );
    }
    if !session.is_text() {
        return Ok(());
    }
    let samples = samples.map_or("samples".to_string(), |n| counted(n, "sample"));
    let batch = batch.unwrap_or(1);
    say!("{model} on {data}: {samples}, batch {batch}; the run is in {}", folder.path().display());
    notes.iter().for_each(|note| say!("{note}"));
    match held_back {
        Some(name) => say!("evaluated after every epoch on {name}"),
        None => say!(
            "not evaluated while it trains: nothing is held back (--validation DATA, --validation-split 0.1)"
        ),
    }
    Ok(())
}

/// Writes the trained model and the ledger; returns the file that people want.
fn keep_model(trainer: &Trainer, chosen: &chosen::Chosen, folder: &Folder) -> Result<PathBuf, Failure> {
    trainer.save(folder.model())?;
    let mut written = folder.model();
    if let (Some(compiled), Some(training)) = (&chosen.keras, trainer.training()) {
        written = folder.path().join(compiled.model.saved_name(&chosen.name));
        compiled.model.save(&written, training)?;
    }
    if let Some(training) = trainer.training() {
        let ledger = training.ledger();
        folder.write(&folder.ledger(), &ledger.to_string())?;
        folder.record(&folder.ledger_json(), &ledger.record())?;
    }
    Ok(written)
}
