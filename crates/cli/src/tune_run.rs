//! One run of `plimsoll tune`: plan, rows, weights, steps, and what was tuned as a folder for others.

use std::path::{Path, PathBuf};

use plimsoll::hub::{Adapter, Packed, Tuning, Unmatched};
use plimsoll::internals::device::process;
use plimsoll::internals::run::record::Event;
use plimsoll::nn::Training;
use plimsoll::prelude::*;
use plimsoll::train::{CsvLog, Ended, JsonLines, NoticeLog, RankLog, StepLog};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::config::Config;
use crate::decoder_setup;
use crate::encoder_setup::EncoderArgs;
use crate::folder::{Folder, Lock};
use crate::from_file::{FromFile, listed};
use crate::interrupt::Signals;
use crate::lora_args::LoraArgs;
use crate::plan_text::About;
use crate::ranks::World;
use crate::session::Session;
use crate::train::{SIGTERM, heard};
use crate::tuned_model::TunedModel;
use crate::{Failure, Stop, ending, profile, records};

/// What a run keeps of its tuning beside its settings.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Kept {
    pub lora: LoraArgs,
    /// The adapters that it began with.
    pub adapter: Option<PathBuf>,
    #[serde(default)]
    pub encoder: EncoderArgs,
    /// What its texts became.
    pub packed: Option<Packed>,
}

const KEPT: &str = "tuning.json";

impl Kept {
    pub fn read(folder: &Folder) -> Result<Kept, Failure> {
        let path = folder.path().join(KEPT);
        let text = std::fs::read(&path)
            .map_err(|e| Failure(format!("{}: {e}; it is no run of plimsoll tune", path.display())))?;
        serde_json::from_slice(&text).map_err(|e| Failure(format!("{}: {e}", path.display())))
    }

    pub fn tuning(&self) -> Result<Tuning, Failure> {
        match &self.adapter {
            Some(adapter) => Ok(Tuning::Lora(Adapter::open(adapter)?.lora)),
            None => self.lora.tuning(),
        }
    }
}

/// One run of the command.
pub struct TuneRun<'a> {
    pub session: &'a Session,
    pub config: &'a Config,
    pub folder: &'a Folder,
    pub model: &'a Path,
    pub device: &'a Device,
    /// The ranks that tune together.
    pub world: &'a World,
}

/// Tunes as a rank that prints and writes nothing: the first packs texts, says where they are, and writes.
pub fn follow(
    session: &Session,
    config: &Config,
    world: &World,
    device: &Device,
    mut tuned: TunedModel,
) -> Result<(), Stop> {
    let rank = world.rank().rank;
    let named = Folder::at(session.out.clone().unwrap_or_default());
    let planned = tuned.trainer(config, device, 1)?.plan_together(tuned.to_plan_with(config));
    planned.map_err(|error| heard(rank, error, &named, "tune"))?;
    let folder = world.folder(None).map_err(|error| heard(rank, error.into(), &named, "tune"))?;
    let folder = Folder::at(folder);
    let kept = Kept::read(&folder)?;
    let packed = kept.packed.ok_or_else(|| Failure("the first rank has packed no rows".into()))?;
    let data = tuned.data(config, &folder.path().join("rows"), &packed)?;
    let (epochs, steps) = steps(config, &tuned, &packed);
    let mut trainer = tuned.trainer(config, device, steps)?;
    tuned.load(&mut trainer, &data, &kept, config.seed.unwrap_or(42))?;
    if let Some(from) = FromFile::of(config, &trainer)?.filter(|_| !session.resume) {
        from.load(&mut trainer)?;
    }
    trainer.compile(&data).map_err(|error| heard(rank, error, &folder, "tune"))?;
    if session.resume {
        trainer.resume(folder.path(), &data).map_err(|error| heard(rank, error, &folder, "tune"))?;
    }
    // The first signal is a wish that all ranks hear of, and no end of this one alone.
    let _signals = Signals::listen(&trainer.stop_handle())?;
    trainer.fit(&data, Epochs(epochs)).map_err(|error| heard(rank, error, &folder, "tune"))?;
    // What the first writes is put together of what each has; not where somebody ended the run, which it goes on from then.
    let has_parts = trainer.training().is_some_and(Training::has_sharded_parameters);
    if has_parts && !matches!(trainer.ended(), Some(Ended::Stopped { .. })) {
        trainer.whole_trained().map_err(|error| heard(rank, error, &folder, "tune"))?;
    }
    Ok(())
}

/// How many epochs, and how many steps those are.
fn steps(config: &Config, tuned: &TunedModel, packed: &Packed) -> (u64, u64) {
    let epochs = config.epochs.unwrap_or(1);
    (epochs, packed.rows.div_ceil(tuned.batch() as u64).saturating_mul(epochs))
}

/// Plans, reads, trains and writes.
pub fn tune(
    run: &TuneRun<'_>,
    mut tuned: TunedModel,
    mut kept: Kept,
    lock: Option<Lock>,
) -> Result<(), Stop> {
    let TuneRun { session, config, folder, model, device, world } = run;
    // What cannot be done is said before anything is read.
    let data = tuned.to_plan_with(config);
    let planned = tuned.trainer(config, device, 1)?.plan_together(&data);
    planned.map_err(|error| heard(0, error, folder, "tune"))?;
    drop(data);
    let resumes = session.resume;
    let _lock = match (resumes, lock) {
        (true, Some(lock)) => {
            folder.keep(config)?;
            lock
        }
        (_, lock) => folder.begin(config, lock)?,
    };
    let (rows, kept_in) = (folder.path().join("rows"), folder.path().join(KEPT));
    let packed = match &kept.packed {
        Some(packed) => *packed,
        None => {
            // A run that is ended while it packs can be gone on with; what is there of its rows is packed again.
            folder.record(&kept_in, &kept)?;
            std::fs::remove_dir_all(&rows).ok();
            let packed = tuned.pack(config, model, &rows, session.is_text()).inspect_err(|_| {
                // Texts that cannot be read are a request that was not accepted: nothing of it stays, but for a run that was begun before.
                if !resumes {
                    std::fs::remove_dir_all(&rows).ok();
                    std::fs::remove_file(folder.config()).ok();
                    std::fs::remove_file(&kept_in).ok();
                }
            })?;
            kept.packed = Some(packed);
            folder.record(&kept_in, &kept)?;
            packed
        }
    };
    world.folder(Some(folder.path())).map_err(|error| heard(0, error.into(), folder, "tune"))?;
    process::release_unused_heap();
    let data = tuned.data(config, &rows, &packed)?;
    let (batch, name) = (tuned.batch(), decoder_setup::short_name(model));
    let (epochs, steps) = steps(config, &tuned, &packed);
    let mut trainer = run.followed(tuned.trainer(config, device, steps)?);
    let unmatched = tuned.load(&mut trainer, &data, &kept, config.seed.unwrap_or(42))?;
    let from = match resumes {
        true => None,
        false => FromFile::of(config, &trainer)?.map(|from| from.load(&mut trainer)).transpose()?,
    };
    let info = trainer.compile(&data)?;
    let resumed = resumes && trainer.resume(folder.path(), &data)?;
    folder.record(&folder.plan(), &records::plan(&name, batch, &info, &trainer))?;
    if let Some(timeline) = trainer.training().and_then(Training::timeline) {
        folder.record(&folder.step(), &timeline)?;
    }
    process::release_unused_heap();
    let about = About { model: &name, data: config.data.as_deref().unwrap_or_default(), batch };
    run.announce(&tuned, &packed, &unmatched, &about, &trainer, &info);
    if let Some(from) = &from {
        from.say(session);
    }
    if resumes && !resumed && session.is_text() {
        say!("there is no checkpoint yet: the run begins anew");
    }
    let signals = Signals::listen(&trainer.stop_handle())?;
    if let Err(error) = trainer.fit(&data, Epochs(epochs)) {
        let fault = Event::new("fault").at(trainer.progress().step).because(error.to_string());
        NoticeLog::add(&folder.notices(), &fault)?;
        return Err(heard(0, error, folder, "tune"));
    }
    profile::keep(session, folder, &mut trainer)?;
    // Another rank may have had the signal.
    let signal = signals.received().or((world.rank().ranks > 1).then_some(SIGTERM));
    run.finish(&trainer, &tuned, signal)
}

impl TuneRun<'_> {
    /// The trainer with all who follow the run.
    fn followed(&self, trainer: Trainer) -> Trainer {
        let TuneRun { session, config, folder, .. } = self;
        let mut checkpoints = Checkpoints::new(folder.checkpoints()).keep(config.keep.unwrap_or(3));
        if let Some(every) = config.checkpoint_every {
            checkpoints = checkpoints.every(every);
        }
        let trainer = match (session.json, session.quiet) {
            (true, _) => trainer.callback(JsonLines::new().ends_later()),
            (_, true) => trainer,
            _ => trainer.callback(ProgressBar::new()),
        };
        let trainer = match session.profile {
            Some(steps) => trainer.profile(steps),
            None => trainer,
        };
        trainer
            .checkpoints(checkpoints)
            .callback(CsvLog::new(folder.metrics()))
            .callback(RankLog::new(folder.ranks()))
            .callback(StepLog::new(folder.steps()))
            .callback(NoticeLog::new(folder.notices()))
    }

    /// Says what is tuned on what, and what it takes.
    fn announce(
        &self,
        tuned: &TunedModel,
        packed: &Packed,
        unmatched: &Unmatched,
        about: &About<'_>,
        trainer: &Trainer,
        info: &plimsoll::plan::PlanFigures,
    ) {
        let (session, run) = (self.session, self.folder.path().display().to_string());
        let trained = trainer.training().map_or(0, Training::n_trained);
        if session.json {
            say!(
                "{}",
                json!({
                    "event": "run", "run": run, "model": about.model, "data": about.data, "batch": tuned.batch(),
                    "sequence": tuned.sequence(), "tuned": tuned.tuned(), "trained_parameters": trained, "packed": packed,
                    "anew": unmatched.anew, "unread": unmatched.unread,
                })
            );
        }
        if session.is_text() {
            say!(
                "{}: {} ({} numbers) on {}; the run is in {run}",
                about.model,
                tuned.tuned(),
                trained,
                about.data
            );
            tuned.packed_text(packed).iter().for_each(|line| say!("{line}"));
            listed("these begin anew", &unmatched.anew);
            listed("nobody reads of the files", &unmatched.unread);
            if let Some(text) = self.world.text(self.config) {
                say!("{text}");
            }
            say!("{}", about.plan_text(info, None).trim_end());
        }
    }

    /// Writes what was tuned; or where a signal ended the run, says how to go on.
    fn finish(&self, trainer: &Trainer, tuned: &TunedModel, signal: Option<u8>) -> Result<(), Stop> {
        let (session, folder) = (self.session, self.folder);
        ending::interrupted(trainer, folder, signal, "tune", session.json)?;
        let written = tuned.save(folder.path(), trainer)?;
        if let Some(ledger) = trainer.ledger() {
            folder.write(&folder.ledger(), &ledger.to_string())?;
            folder.record(&folder.ledger_json(), &ledger.record())?;
        }
        if session.json {
            say!("{}", ending::line(trainer, folder, Some(&written)));
        }
        if session.is_text() {
            say!("what was tuned is {}", written.display());
        }
        Ok(())
    }
}
