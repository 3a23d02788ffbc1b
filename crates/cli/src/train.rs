//! `plimsoll train`: a model, data and a memory limit in; a folder with the trained model out.

use std::path::{Path, PathBuf};

use plimsoll::internals::device::process;
use plimsoll::internals::graph::counted;
use plimsoll::internals::run::Error as RunError;
use plimsoll::internals::run::record::Event;
use plimsoll::nn::Training;
use plimsoll::plan::PlanFigures;
use plimsoll::prelude::*;
use plimsoll::train::{
    BatchSizes, Checkpoint, CsvLog, EarlyStopping, Ended, Error as TrainError, Fault, JsonLines, NoticeLog,
    PrunedShare, RankLog, StepLog, TensorBoardLog,
};

use crate::config::{BatchSize, Config};
use crate::folder::{Folder, Lock};
use crate::from_file::FromFile;
use crate::interrupt::Signals;
use crate::model_setup::{self, ModelSetup};
use crate::ranks::World;
use crate::request::{self, is_model_file};
use crate::session::Session;
use crate::setup::Setup;
use crate::{
    Failure, Stop, batch_auto, check, ending, onnx_file, profile, records, resume, setup, torch_file, tui,
};

/// Arguments of `plimsoll train`.
#[derive(clap::Args)]
#[command(allow_negative_numbers = true, after_help = model_setup::help())]
pub struct Args {
    /// A model by name, a `.keras`, `.h5`, `.onnx` or `.pt2` file, or a file of settings (`run.toml`, every flag is a key of it). Without it, the
    /// built-in demo: handwritten digits under a memory limit.
    #[arg(value_name = "CONFIG.toml | MODEL")]
    what: Option<String>,
    #[command(flatten)]
    config: Config,
    #[command(flatten)]
    session: Session,
}

/// The number of the signal that asks a process to end.
pub const SIGTERM: u8 = 15;

/// The memory limit of the demo: a little above its least, so that it shows what a limit does. A debug build is itself larger.
const DEMO_LIMIT: &str = if cfg!(debug_assertions) { "50MiB" } else { "34MiB" };

/// Trains.
pub fn run(args: &Args) -> Result<(), Stop> {
    let (mut config, session) = settings(args)?;
    let fault = session.fault().map_err(Stop::usage)?;
    let world = World::join(&mut config, &session).map_err(|Failure(why)| match &session.out {
        Some(out) if session.resume => {
            Failure(format!("{why}; {}", last_checkpoint(&Folder::at(out.clone()), "train")))
        }
        _ => Failure(why),
    })?;
    let done = joined(config, &session, fault, &world);
    world.end(done)
}

/// Trains as one of several ranks, or as the only one.
fn joined(config: Config, session: &Session, fault: Option<Fault>, world: &World) -> Result<(), Stop> {
    let device = match (world.open(&config)?, fault) {
        (device, Some(Fault::Alloc(n))) => device.failing(n),
        (device, _) => device,
    };
    let device = world.on(device, &config)?;
    let (config, why) = device.scope(|| world.settled(config, &device))?;
    if let Some(why) = why.filter(|_| world.is_first() && session.is_text()) {
        say!("{why}");
    }
    if world.rank().ranks > 1 && config.batch == Some(BatchSize::Auto) {
        let why = "--batch auto looks for a size by the times of one process, and several ranks would find several; name a number";
        return Err(Stop::Usage(why.into()));
    }
    if !world.is_first() {
        return device.scope(|| follow(&config, session, fault, world, &device));
    }
    let (config, sizes) = batch_auto::settled(&config, &device)?;
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
    world.folder(Some(folder.path())).map_err(|error| heard(0, error.into(), &folder, "train"))?;
    let is_named = session.out.is_some();
    let run = Run { session, config: &config, folder: &folder, sizes: sizes.as_ref(), world };
    let ended = device.scope(|| run.train(fault, lock, &device));
    if ended.is_err() && !is_named {
        folder.abandon();
    }
    ended
}

/// Trains as a rank that prints and writes nothing: the first does.
fn follow(
    config: &Config,
    session: &Session,
    fault: Option<Fault>,
    world: &World,
    device: &Device,
) -> Result<(), Stop> {
    let rank = world.rank().rank;
    let (config, _) = batch_auto::settled(config, device)?;
    let named = Folder::at(session.out.clone().unwrap_or_default());
    let folder = Folder::at(world.folder(None).map_err(|error| heard(rank, error.into(), &named, "train"))?);
    let named = |error: TrainError| heard(rank, error, &folder, "train");
    let mut setup = Setup::new(&config, device)?;
    setup.trainer = setup.trainer.fault(fault);
    setup.compile().map_err(&named)?;
    let mut resumed = false;
    if let Some(out) = session.out.as_deref().filter(|_| session.resume) {
        resumed = setup.trainer.resume(Folder::of(out)?.path(), &setup.train).map_err(&named)?;
    }
    if let Some(begun) = FromFile::of(&config, &setup.trainer)?.filter(|_| !resumed) {
        begun.load(&mut setup.trainer)?;
    }
    let Setup { model_setup, mut trainer, train, .. } = setup;
    // The first signal is a wish that all ranks hear of, and no end of this one alone.
    let _signals = Signals::listen(&trainer.stop_handle())?;
    trainer.fit(&train, Epochs(config.epochs.unwrap_or(1))).map_err(&named)?;
    // The first writes the model, with the others' shards where they have some.
    let is_sharded = trainer.training().is_some_and(Training::has_sharded_parameters);
    if !matches!(trainer.ended(), Some(Ended::Stopped { .. })) {
        if is_sharded {
            trainer.save(folder.model()).map_err(&named)?;
        }
        if model_setup.is_written_whole() {
            trainer.hand_state().map_err(&named)?;
        }
    }
    Ok(())
}

/// What a rank says of an error: whoever fails says why, and the first rank what all hear of. Of the first itself, once it is gone, others must. Where a
/// rank is lost, the last checkpoint is named.
pub(crate) fn heard(rank: usize, error: TrainError, folder: &Folder, command: &str) -> Stop {
    let is_heard = match &error {
        TrainError::Run(RunError::Ranks(fault)) => fault.lost_rank != Some(0),
        TrainError::RanksDiffer(_) => true,
        TrainError::RefusedBy(_) => return Stop::Heard,
        _ => false,
    };
    match &error {
        _ if is_heard && rank > 0 => Stop::Heard,
        TrainError::Run(RunError::Ranks(_)) => {
            Stop::Failed(format!("{error}; {}", last_checkpoint(folder, command)))
        }
        _ => error.into(),
    }
}

/// Where a run that lost a rank goes on from.
pub(crate) fn last_checkpoint(folder: &Folder, command: &str) -> String {
    match Checkpoint::newest(&folder.checkpoints()) {
        Ok(Some(path)) => format!(
            "the last checkpoint is {}; go on with: plimsoll {command} --resume --out {}",
            path.display(),
            folder.path().display()
        ),
        _ => "there is no checkpoint yet".into(),
    }
}

/// The flags over the file, or over what the run in `--out` was begun with, over the demo's own.
fn settings(args: &Args) -> Result<(Config, Session), Stop> {
    if let Some(run) = args.what.as_deref().filter(|what| Folder::of_run(Path::new(what)).is_some()) {
        let run = run.trim_end_matches('/');
        return Err(Stop::Usage(format!(
            "{run} is the folder of a run; plimsoll train --resume --out {run} goes on with it, plimsoll train {run}/config.toml begins another like it"
        )));
    }
    let (config, of_file) = request::written(args.what.as_deref(), &args.config)?;
    let session = args.session.clone().over(of_file);
    session.check().map_err(Stop::usage)?;
    let asked = config.anchored()?;
    check::check(&asked).map_err(Stop::usage)?;
    let mut config = match &session.out {
        Some(out) if session.resume => resume::settings(asked, Folder::of(out)?.settings()?, out)?,
        _ => asked,
    };
    if request::is_demo(&config) && config.memory.is_none() {
        config.memory = Some(DEMO_LIMIT.into());
    }
    Ok((request::completed(config)?, session))
}

/// One run of the command.
struct Run<'a> {
    session: &'a Session,
    config: &'a Config,
    folder: &'a Folder,
    /// What was found where the batch size was looked for.
    sizes: Option<&'a BatchSizes>,
    /// The ranks that it is trained by.
    world: &'a World,
}

impl Run<'_> {
    fn train(&self, fault: Option<Fault>, lock: Option<Lock>, device: &Device) -> Result<(), Stop> {
        let Run { session, config, folder, .. } = self;
        let mut setup = Setup::new(config, device)?;
        setup.trainer = self.followed(setup.trainer).fault(fault);
        let info = setup.compile().map_err(|error| heard(0, error, folder, "train"))?;
        let begun = FromFile::of(config, &setup.trainer)?;
        // What can be refused has been: from here on the folder is this run's.
        let mut resumed = false;
        let _lock = match (session.resume, lock) {
            (true, Some(lock)) => {
                resumed = setup.trainer.resume(folder.path(), &setup.train)?;
                folder.keep(config)?;
                lock
            }
            (_, lock) => folder.begin(config, lock)?,
        };
        if let Some(begun) = begun.filter(|_| !resumed) {
            begun.load(&mut setup.trainer)?.say(session);
        }
        self.record(&setup, &info)?;
        self.announce(&setup)?;
        if session.resume && !resumed && session.is_text() {
            say!("there is no checkpoint yet: the run begins anew");
        }
        let Setup { model_setup, mut trainer, train, .. } = setup;
        let signals = Signals::listen(&trainer.stop_handle())?;
        let epochs = trainer.progress().epoch;
        if resumed && session.is_text() && epochs >= config.epochs.unwrap_or(1) {
            let had = counted(epochs, "epoch");
            say!("the run has had {had} and no more are asked for: nothing is left to train (--epochs)");
        }
        if let Err(error) = trainer.fit(&train, Epochs(config.epochs.unwrap_or(1))) {
            let step = trainer.progress().step;
            let fault = Event::new("fault").at(step).because(error.to_string());
            NoticeLog::add(&folder.notices(), &fault)?;
            return Err(heard(0, error, folder, "train"));
        }
        self.finish(&mut trainer, &model_setup, signals.received())
    }

    /// The trainer with all who follow the run: checkpoints, logs, what is shown.
    fn followed(&self, trainer: Trainer) -> Trainer {
        let Run { session, config, folder, .. } = self;
        let mut checkpoints = Checkpoints::new(folder.checkpoints()).keep(config.keep.unwrap_or(3));
        if let Some(every) = config.checkpoint_every {
            checkpoints = checkpoints.every(every);
        }
        let mut trainer = match session.tui && tui::is_possible() {
            true => trainer.reserve(tui::MEMORY).callback(tui::LiveView::new()),
            false if session.json => trainer.callback(JsonLines::new().ends_later()),
            false if session.quiet => trainer,
            false => trainer.callback(ProgressBar::new()),
        };
        trainer = trainer
            .checkpoints(checkpoints)
            .callback(CsvLog::new(folder.metrics()))
            .callback(RankLog::new(folder.ranks()))
            .callback(TensorBoardLog::new(folder.events()))
            .callback(StepLog::new(folder.steps()))
            .callback(NoticeLog::new(folder.notices()));
        if let Some(steps) = session.profile {
            trainer = trainer.profile(steps);
        }
        if let Some(metric) = config.best_metric() {
            trainer = trainer.best(setup::best(config, metric, &folder.best()));
        }
        match &config.early_stopping {
            Some(metric) => {
                let stopping = EarlyStopping::new(metric, config.patience.unwrap_or(3));
                trainer.callback(stopping.min_delta(config.min_delta.unwrap_or(0.0)))
            }
            None => trainer,
        }
    }

    /// Keeps what the run is: the Keras file, the form of its data, its plan and the kernel times that the plan went by.
    fn record(&self, setup: &Setup, info: &PlanFigures) -> Result<(), Failure> {
        let Run { config, folder, .. } = self;
        let Setup { model_setup, trainer, form, batch, .. } = setup;
        if let Some(named) = config.model.as_deref().filter(|name| is_model_file(name)) {
            let copy = folder.source_model(named);
            if !copy.is_file() {
                folder.copy(Path::new(named), &copy)?;
            }
            if let (Some(model), Some(from)) = (&model_setup.onnx, Path::new(named).parent()) {
                onnx_file::copy_beside(model, from, folder)?;
            }
        }
        folder.record(&folder.form(), form)?;
        folder.record(&folder.plan(), &records::plan(&model_setup.name, *batch, info, trainer))?;
        if let Some(timeline) = trainer.training().and_then(Training::timeline) {
            folder.record(&folder.step(), &timeline)?;
        }
        // A report plans with the same times; one that cannot has no other plans to show.
        Device::current()?.keep_times(&folder.times()).ok();
        // The record took memory where the arena will be; the arena's pages are touched by the first step.
        process::release_unused_heap();
        Ok(())
    }

    /// Says what is trained on what, and where.
    fn announce(&self, setup: &Setup) -> Result<(), Failure> {
        let Run { session, folder, sizes, world, .. } = self;
        let Setup { model_setup, train, form, held_back, .. } = setup;
        let (model, data, held_back) = (&model_setup.name, &form.data, held_back.as_deref());
        let (samples, batch, notes) = (train.samples()?, train.batch_size(), train.notes());
        if session.json {
            let run = folder.path().to_string_lossy();
            let mut line = serde_json::json!({
                "event": "run", "run": run, "model": model, "data": data, "samples": samples, "batch": batch,
                "validation": held_back, "notes": notes,
            });
            if let Some(sizes) = sizes {
                line["batch_auto"] = batch_auto::json(sizes);
            }
            if world.text(self.config).is_some() {
                line["ranks"] = world.rank().ranks.into();
                line["parallel"] = crate::ranks::parallel(self.config).to_string().into();
            }
            say!("{line}");
        }
        if !session.is_text() {
            return Ok(());
        }
        let samples = samples.map_or("samples".to_string(), |n| counted(n, "sample"));
        let batch = batch.unwrap_or(1);
        if let Some(sizes) = sizes {
            batch_auto::text(sizes).iter().for_each(|line| say!("{line}"));
            say!("the fastest is taken; the learning rate is not changed with it");
        }
        say!("{model} on {data}: {samples}, batch {batch}; the run is in {}", folder.path().display());
        if let Some(text) = world.text(self.config) {
            say!("{text}; memory and plan are the first one's");
        }
        notes.iter().for_each(|note| say!("{note}"));
        match held_back {
            Some(name) => say!("evaluated after every epoch on {name}"),
            None => say!(
                "not evaluated while it trains: nothing is held back (--validation DATA, --validation-split 0.1)"
            ),
        }
        Ok(())
    }

    /// Ends a run: with the trained model, or where a signal ended it, with how to go on.
    fn finish(
        &self,
        trainer: &mut Trainer,
        model_setup: &ModelSetup,
        signal: Option<u8>,
    ) -> Result<(), Stop> {
        let Run { session, folder, .. } = self;
        profile::keep(session, folder, trainer)?;
        // Another rank may have had the signal.
        let signal = signal.or((self.world.rank().ranks > 1).then_some(SIGTERM));
        ending::interrupted(trainer, folder, signal, "train", session.json)?;
        let written = self.keep_model(trainer, model_setup)?;
        let pruned = trainer.pruned_share()?;
        if session.json {
            let mut line = ending::line(trainer, folder, Some(&written));
            if let Some(pruned) = pruned {
                line["pruned"] = serde_json::json!(pruned);
            }
            say!("{line}");
        }
        if session.is_text() {
            if let Some(PrunedShare { tensors, elements, zeros }) = pruned {
                let share = 100.0 * zeros as f64 / elements.max(1) as f64;
                say!("{zeros} of {elements} elements of {tensors} weights are zero ({share:.1} %)");
            }
            say!("the trained model is {}", written.display());
        }
        Ok(())
    }

    /// Writes the trained model and the ledger; returns the file that people want.
    fn keep_model(&self, trainer: &mut Trainer, model_setup: &ModelSetup) -> Result<PathBuf, Failure> {
        let folder = self.folder;
        trainer.save(folder.model())?;
        if self.config.average.is_some() && trainer.progress().step > 0 {
            trainer.save_average(folder.average())?;
        }
        let mut written = folder.model();
        if let (Some(compiled), Some(training)) = (&model_setup.keras, trainer.training()) {
            written = folder.path().join(compiled.model.saved_name(&model_setup.name));
            if let Some(state) = trainer.gathered_state()? {
                compiled.model.save_from(&written, training, &state)?;
            }
        }
        if let (Some(model), Some(training)) = (&model_setup.onnx, trainer.training()) {
            written = folder.path().join(format!("{}.onnx", model_setup.name));
            model.save(&written, training)?;
        }
        if let (Some(model), Some(training)) = (&model_setup.torch, trainer.training()) {
            written = folder.path().join(format!("{}.safetensors", model_setup.name));
            if let Some(state) = trainer.gathered_state()? {
                torch_file::save(model, training, &state, &written)?;
            }
        }
        if let Some(ledger) = trainer.ledger() {
            folder.write(&folder.ledger(), &ledger.to_string())?;
            folder.record(&folder.ledger_json(), &ledger.record())?;
        }
        Ok(written)
    }
}
