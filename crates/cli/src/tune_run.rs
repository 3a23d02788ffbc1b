//! One run of `plimsoll tune`: plan, rows, weights, steps, and what was tuned as a folder for others.

use std::path::{Path, PathBuf};

use plimsoll::data::OnError;
use plimsoll::hub::{self, Adapter, Packed, Rows, Texts, Tokenizer, Tuning, save_adapter, save_model};
use plimsoll::internals::device::process;
use plimsoll::internals::graph::counted;
use plimsoll::internals::run::record::Event;
use plimsoll::nn::Training;
use plimsoll::prelude::*;
use plimsoll::train::{CsvLog, JsonLines, NoticeLog, StepLog};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::config::Config;
use crate::decoder_setup::{self, DecoderSetup};
use crate::folder::{Folder, Lock};
use crate::interrupt::Signals;
use crate::lora_args::LoraArgs;
use crate::plan_text::About;
use crate::session::Session;
use crate::{Failure, Stop, ending, profile, records};

/// What a run keeps of its tuning beside its settings.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Kept {
    pub lora: LoraArgs,
    /// The adapters that it began with.
    pub adapter: Option<PathBuf>,
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
}

/// Plans, reads, trains and writes.
pub fn tune(
    run: &TuneRun<'_>,
    mut setup: DecoderSetup,
    mut kept: Kept,
    lock: Option<Lock>,
) -> Result<(), Stop> {
    let TuneRun { session, config, folder, model, device } = run;
    // What cannot be done is said before anything is read.
    let mut source = hub::Folder::open(model)?;
    setup.decoder = kept.lora.based(source.decoder(kept.tuning()?))?;
    let data = setup.random(config);
    setup.trainer(config, device, 1)?.plan(&data)?;
    drop(data);
    let resumes = session.resume;
    let _lock = match (resumes, lock) {
        (true, Some(lock)) => {
            folder.keep(config)?;
            lock
        }
        (_, lock) => folder.begin(config, lock)?,
    };
    let rows = folder.path().join("rows");
    let packed = match &kept.packed {
        Some(packed) => *packed,
        None => {
            let packed = run.pack(&setup, &rows).inspect_err(|_| {
                // Texts that cannot be read are a request that was not accepted: nothing of it stays, but for a run that was begun before.
                if !resumes {
                    std::fs::remove_dir_all(&rows).ok();
                    std::fs::remove_file(folder.config()).ok();
                }
            })?;
            kept.packed = Some(packed);
            folder.record(&folder.path().join(KEPT), &kept)?;
            packed
        }
    };
    process::release_unused_heap();
    // Where no row has several texts, positions are places: causal attention needs to be told nothing.
    let paths: Vec<_> = Rows::paths(&rows)
        .into_iter()
        .filter(|(name, _)| packed.shared > 0 || *name != "positions")
        .collect();
    let rows = Dataset::npy(paths.iter().map(|(name, path)| (*name, path.as_path())))?.stored();
    let data = setup.batches(rows, paths.len() - 1, config);
    let epochs = config.epochs.unwrap_or(1);
    let steps = packed.rows.div_ceil(setup.batch as u64).saturating_mul(epochs);
    let mut trainer = run.followed(setup.trainer(config, device, steps)?);
    load(&mut trainer, &data, &mut source, &kept, config.seed.unwrap_or(42))?;
    let info = trainer.compile(&data)?;
    let resumed = resumes && trainer.resume(folder.path(), &data)?;
    let name = decoder_setup::short_name(model);
    folder.record(&folder.plan(), &records::plan(&name, setup.batch, &info, &trainer))?;
    if let Some(timeline) = trainer.training().and_then(Training::timeline) {
        folder.record(&folder.step(), &timeline)?;
    }
    process::release_unused_heap();
    let about = About { model: &name, data: config.data.as_deref().unwrap_or_default(), batch: setup.batch };
    run.announce(&setup, &packed, &about, &trainer, &info);
    if resumes && !resumed && session.is_text() {
        say!("there is no checkpoint yet: the run begins anew");
    }
    let signals = Signals::listen(&trainer.stop_handle())?;
    if let Err(error) = trainer.fit(&data, Epochs(epochs)) {
        let fault = Event::new("fault").at(trainer.progress().step).because(error.to_string());
        NoticeLog::add(&folder.notices(), &fault)?;
        return Err(error.into());
    }
    profile::keep(session, folder, &mut trainer)?;
    run.finish(&trainer, &setup, &source, signals.received())
}

/// Gives a trainer the folder's weights, and adapters theirs: those that the run begins with, or a start of their own.
fn load(
    trainer: &mut Trainer,
    data: &Dataset,
    source: &mut hub::Folder,
    kept: &Kept,
    seed: u64,
) -> Result<(), Failure> {
    trainer.prepare_blank(data)?;
    let Some(training) = trainer.training_mut() else { return Ok(()) };
    let params = training.params().to_vec();
    for param in params.iter().filter(|param| hub::Decoder::tensor_name(&param.name).is_none()) {
        let drawn = param.init.draw(&param.name, &param.ty, seed)?;
        training.restore(&param.name, &drawn.to_bytes()?)?;
    }
    if let Some(adapter) = &kept.adapter {
        Adapter::open(adapter)?.load(&params, |param, bytes| Ok(training.restore(&param.name, bytes)?))?;
    }
    source.load(&params, |param, bytes| Ok(training.restore(&param.name, bytes)?))?;
    Ok(())
}

impl TuneRun<'_> {
    /// Texts as rows of tokens, in the run's folder.
    fn pack(&self, setup: &DecoderSetup, rows: &Path) -> Result<Packed, Failure> {
        let config = self.config;
        let tokenizer = Tokenizer::open(self.model)?;
        tokenizer.fits(&setup.decoder.config)?;
        let eos = tokenizer.eos.or(setup.decoder.config.tokens.eos.first().copied());
        let path = PathBuf::from(config.data.clone().unwrap_or_default());
        let mut texts = Texts::open(&path, &tokenizer, eos, setup.decoder.config.vocabulary)?;
        let skips = config.on_error()? == OnError::Skip;
        let mut out = Rows::create(rows, setup.sequence)?;
        loop {
            match texts.read() {
                Ok(Some(sample)) => out.add(&sample)?,
                Ok(None) => break,
                Err(error @ hub::Error::Line { .. }) if skips => {
                    if self.session.is_text() {
                        eprintln!("plimsoll: passed over: {error}");
                    }
                    out.skip();
                }
                Err(error) => return Err(error.into()),
            }
        }
        let packed = out.finish()?;
        match packed.rows {
            0 => Err(Failure(format!("{}: there is no text in it to learn from", path.display()))),
            _ => Ok(packed),
        }
    }

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
            .callback(StepLog::new(folder.steps()))
            .callback(NoticeLog::new(folder.notices()))
    }

    /// Says what is tuned on what, and what it takes.
    fn announce(
        &self,
        setup: &DecoderSetup,
        packed: &Packed,
        about: &About<'_>,
        trainer: &Trainer,
        info: &plimsoll::plan::PlanFigures,
    ) {
        let (session, run) = (self.session, self.folder.path().display().to_string());
        let trained = trainer.training().map_or(0, Training::n_trained);
        let tokens = packed.rows * setup.sequence as u64;
        if session.json {
            say!(
                "{}",
                json!({
                    "event": "run", "run": run, "model": about.model, "data": about.data, "batch": setup.batch,
                    "sequence": setup.sequence, "tuned": setup.tuned, "trained_parameters": trained, "packed": packed,
                })
            );
        }
        if session.is_text() {
            say!(
                "{}: {} ({} numbers) on {}; the run is in {run}",
                about.model,
                setup.tuned,
                trained,
                about.data
            );
            let filled = 100.0 * packed.filled as f64 / tokens.max(1) as f64;
            say!(
                "{} in {} of {} tokens, {filled:.0} % filled, {} learnt",
                counted(packed.samples, "text"),
                counted(packed.rows, "row"),
                setup.sequence,
                packed.learnt
            );
            if packed.truncated > 0 {
                say!(
                    "{} longer than a row and lost their end (--sequence)",
                    counted(packed.truncated, "text")
                );
            }
            if packed.skipped > 0 {
                say!("{} could not be read and were passed over", counted(packed.skipped, "line"));
            }
            say!("{}", about.plan_text(info, None).trim_end());
        }
    }

    /// Writes what was tuned; or where a signal ended the run, says how to go on.
    fn finish(
        &self,
        trainer: &Trainer,
        setup: &DecoderSetup,
        source: &hub::Folder,
        signal: Option<u8>,
    ) -> Result<(), Stop> {
        let (session, folder) = (self.session, self.folder);
        ending::interrupted(trainer, folder, signal, "tune", session.json)?;
        let values = trainer.parameters();
        let written = match &setup.decoder.tuning {
            Tuning::Lora(lora) => {
                let path = folder.path().join("adapter");
                let base = source.path.to_string_lossy();
                save_adapter(&path, lora, setup.decoder.config.family, &base, values)?;
                path
            }
            _ => {
                let path = folder.path().join("model");
                save_model(source, &path, values)?;
                path
            }
        };
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
