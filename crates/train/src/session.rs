//! One run of `fit`: batches in, updates done, everyone told, nothing lost.

mod epoch;
mod step;
mod taken;

use std::borrow::Borrow;
use std::path::PathBuf;
use std::time::Instant;

use plimsoll_data::{Batches, Dataset};
use plimsoll_device::Bytes;
use plimsoll_run::Traffic;

use crate::callback::{EpochEvent, Notice, RunPlan, Verdict};
use crate::checkpoint::{Checkpoint, Checkpoints};
use crate::error::{Error, Result};
use crate::fault::Fault;
use crate::live::LiveModel;
use crate::ranks::is_of_ranks;
use crate::stop::Ended;
use crate::trainer::{Epochs, Trainer};

pub(crate) use step::add;
pub(crate) use taken::{Asked, Taken};

/// What each epoch came to.
pub type History = Vec<EpochEvent>;

/// What is counted in one run and not in checkpoints.
struct Run {
    /// The next batch, where it was taken before its turn: while the device was busy with the one before, or because only
    /// it says that an epoch has ended.
    ahead: Option<Result<Asked>>,
    began: Instant,
    /// What had gone between host and device when the epoch began.
    traffic: Traffic,
    batches_seen: u64,
    skips_in_a_row: u64,
    /// Whether it was told that the limit of the host's memory was passed.
    is_host_over: bool,
    /// The last checkpoint, and after which step and epoch it was written.
    saved: Option<(u64, u64, PathBuf)>,
}

impl Trainer {
    /// Trains until so many epochs are done in all, those before a checkpoint and of earlier calls counted: with none left, it
    /// does nothing. How it ended is told by [`Trainer::ended`]; a [`StopFlag`](crate::StopFlag) or a callback can end it early.
    ///
    /// Between two epochs it may go on with other data, from its beginning.
    ///
    /// # Errors
    /// The memory limit cannot be kept, data cannot be read or has no samples, or a step fails for good; then, where there is a place
    /// for checkpoints, the state before the failed step is saved and named.
    pub fn fit(&mut self, data: impl Borrow<Dataset>, epochs: Epochs) -> Result<History> {
        let device = self.pinned()?;
        self.ended = None;
        let mut history = History::new();
        device.scope(|| match self.run(data.borrow(), epochs, &mut history) {
            Ok(ended) => {
                let ended = self.ended.insert(ended);
                self.callbacks.iter_mut().try_for_each(|callback| callback.on_end(ended))?;
                Ok(history)
            }
            Err(error) => {
                // None waits for this rank.
                if let Some(ranks) = device.ranks() {
                    ranks.stop(&error.to_string());
                }
                let ended = self.ended.insert(Ended::Failed { why: error.to_string() });
                for callback in &mut self.callbacks {
                    // What went wrong first is what is told.
                    callback.on_end(ended).ok();
                }
                Err(error)
            }
        })
    }

    /// As [`Trainer::fit`], going on from the newest checkpoint in the folder of [`Trainer::checkpoints`] where there is one: a program
    /// that was killed and is started again calls the same function and loses no epoch. A trainer that has trained already goes on
    /// from where it stands.
    ///
    /// ```
    /// use plimsoll_data::{Column, Dataset};
    /// use plimsoll_nn::{Adam, Sequential, softmax_cross_entropy};
    /// use plimsoll_train::{Checkpoints, Epochs, Trainer};
    /// # let folder = std::env::temp_dir().join(format!("plimsoll-fit-or-resume-{}", std::process::id()));
    /// # let x: Vec<f32> = (0..200).map(|i| ((i * 37) % 101) as f32 / 50.0).collect();
    /// # let y: Vec<i64> = x.chunks(2).map(|pair| i64::from(pair[1] > pair[0])).collect();
    /// # let data = Dataset::columns([Column::memory("x", x, [2])?, Column::memory("y", y, [])?])?.batch(20);
    /// let program = |epochs| {
    ///     let model = Sequential::new([2]).dense(8).relu().dense(2);
    ///     let mut trainer = Trainer::new(model, softmax_cross_entropy, Adam::new(1e-2)).checkpoints(Checkpoints::new(&folder));
    ///     trainer.fit_or_resume(&data, Epochs(epochs))
    /// };
    /// assert_eq!(program(2)?.len(), 2);
    /// // Started again, it does the third epoch only.
    /// let more = program(3)?;
    /// assert_eq!((more.len(), more[0].epoch), (1, 3));
    /// # std::fs::remove_dir_all(&folder).ok();
    /// # Ok::<(), plimsoll_train::Error>(())
    /// ```
    ///
    /// # Errors
    /// As of [`Trainer::resume`] and [`Trainer::fit`]; or there is no place for checkpoints.
    pub fn fit_or_resume(&mut self, data: impl Borrow<Dataset>, epochs: Epochs) -> Result<History> {
        let Some(checkpoints) = &self.checkpoints else {
            let why =
                "there is no folder to resume from; name one with .checkpoints(Checkpoints::new(folder))";
            return Err(Error::Mismatch(why.into()));
        };
        let folder = checkpoints.folder().to_path_buf();
        if self.progress.step == 0 {
            self.resume(&folder, data.borrow())?;
        }
        self.fit(data, epochs)
    }

    fn run(&mut self, data: &Dataset, Epochs(epochs): Epochs, history: &mut History) -> Result<Ended> {
        let terms = self.terms(data)?;
        if terms.data.samples == Some(0) {
            return Err(no_samples("the data to train on"));
        }
        // Passes without end, so that a run that is resumed for more epochs has the same pipeline.
        let data = self.ready(data)?.repeat_forever();
        if let (Some(steps), Some(training)) = (self.profile.take(), &mut self.training) {
            training.profile(steps)?;
        }
        let mut batches = match self.progress.position.clone() {
            Some(position) if position.pipeline == terms.data.pipeline => data.resume(&position)?,
            Some(_) if self.progress.is_begun() => {
                let before = self.terms.as_ref().and_then(|before| before.data.other(&terms.data));
                let why =
                    before.unwrap_or_else(|| "its source, stages, batch size or seeds were others".into());
                return Err(Error::OtherData { epoch: self.progress.epoch + 1, why });
            }
            _ => data.batches()?,
        };
        self.agree(&terms, &data, epochs)?;
        self.terms = Some(terms);
        self.announce(&data, epochs)?;
        let watch = batches.watch();
        self.callbacks.iter_mut().try_for_each(|callback| callback.on_pipeline(&watch))?;
        self.staging.forget()?;
        let mut run = Run {
            ahead: None,
            began: Instant::now(),
            traffic: self.on()?.traffic(),
            batches_seen: 0,
            skips_in_a_row: 0,
            is_host_over: false,
            saved: None,
        };
        let ended = self.epochs(epochs, &mut batches, &mut run, history)?;
        if let Some(fault @ (Fault::Nan(n) | Fault::Device(n))) = self.fault
            && n > run.batches_seen
        {
            let what = format!("{fault} never came: the run had {} batches", run.batches_seen);
            self.tell(&Notice::Rehearsed { step: self.progress.step, what })?;
        }
        Ok(ended)
    }

    fn epochs(
        &mut self,
        epochs: u64,
        batches: &mut Batches,
        run: &mut Run,
        history: &mut History,
    ) -> Result<Ended> {
        while self.progress.epoch < epochs {
            if self.any_wants_to_stop().map_err(|error| self.stopped(error))? {
                return self.stop_here(run);
            }
            let event = match self.epoch(batches, run) {
                Ok(Some(event)) => event,
                Ok(None) => return self.stop_here(run),
                Err(error) => return Err(self.stopped(error)),
            };
            let told = self.look_at_host(&event, run).and_then(|()| self.tell_epoch(&event));
            history.push(event);
            let why = told.map_err(|error| self.stopped(error))?;
            if let Some(event) = history.last() {
                self.keep_best(event).map_err(|error| self.stopped(error))?;
            }
            self.keep(run).map_err(|error| self.stopped(error))?;
            if let Some(why) = why {
                self.restore_best()?;
                return Ok(Ended::EarlyStop { why });
            }
        }
        self.restore_best()?;
        Ok(Ended::Complete)
    }

    /// Says once where the process took more of the host's memory beside a card's than its limit: what was declared for libraries was
    /// too little then, and nobody should have to find that out.
    fn look_at_host(&mut self, event: &EpochEvent, run: &mut Run) -> Result<()> {
        let Some(limit) =
            self.request.host_limit.filter(|limit| event.memory.resident_peak_bytes > limit.get())
        else {
            return Ok(());
        };
        if run.is_host_over || !self.on()?.has_own_memory() {
            return Ok(());
        }
        run.is_host_over = true;
        let peak = Bytes(event.memory.resident_peak_bytes);
        let what = format!(
            "the process took {peak:#} of the host's memory at its most, over the host memory limit of {limit:#}: the program and its \
             libraries need more than was declared for them; raise --host-memory"
        );
        self.tell(&Notice::Remarked { step: event.step, what })
    }

    /// Tells everyone of an epoch; why to stop, if somebody wants that.
    fn tell_epoch(&mut self, event: &EpochEvent) -> Result<Option<String>> {
        let mut stop = None;
        for callback in &mut self.callbacks {
            if let Some(training) = &mut self.training {
                let rate_factor = &mut self.progress.rate_factor;
                let (measures, sums) = (&self.metrics[..], &self.progress.sums[..]);
                let mut model = LiveModel { training, rate_factor, measures, sums };
                callback.on_epoch_model(event, &mut model)?;
            }
            match callback.on_epoch(event)? {
                Verdict::GoOn => {}
                Verdict::Stop(why) => stop = Some(why),
                Verdict::Rate(factor) => self.progress.rate_factor *= factor,
            }
        }
        // Callbacks that judge may be the first rank's alone.
        let [stops, rate_factor] =
            self.as_first([f64::from(u8::from(stop.is_some())), self.progress.rate_factor])?;
        self.progress.rate_factor = rate_factor;
        match (stops > 0.0, stop) {
            (true, None) => Ok(Some("the first rank wants to".into())),
            (true, why) => Ok(why),
            (false, _) => Ok(None),
        }
    }

    fn announce(&mut self, data: &Dataset, epochs: u64) -> Result<()> {
        let (Some(training), Some(info)) = (&self.training, self.info(data)?) else { return Ok(()) };
        self.host = info.host;
        let plan = RunPlan {
            info: &info,
            limit: self.request.limit,
            batch: data.batch_size().unwrap_or(1),
            parameters: training.n_trained(),
            // The data here repeats without end; what is said is of one pass.
            samples: self.terms.as_ref().and_then(|terms| terms.data.samples),
            epochs,
            epoch: self.progress.epoch,
            step: self.progress.step,
            pipeline: data.declared_bytes()?,
        };
        self.callbacks.iter_mut().try_for_each(|callback| callback.on_start(&plan))
    }

    /// Whether somebody wants the run to end.
    pub(crate) fn wants_to_stop(&mut self) -> bool {
        self.stop.is_set() || self.callbacks.iter_mut().any(|callback| callback.wants_to_stop())
    }

    /// Writes a checkpoint, unless the last one is of this very place.
    fn keep(&mut self, run: &mut Run) -> Result<Option<PathBuf>> {
        let at = (self.progress.step, self.progress.epoch);
        let known = run.saved.as_ref().filter(|(step, epoch, _)| (*step, *epoch) == at);
        match self.of_first_if_sharded(known.is_some())? {
            true => Ok(known.map(|(_, _, path)| path.clone())),
            false => {
                let path = self.save_checkpoint()?;
                run.saved = path.clone().map(|path| (at.0, at.1, path));
                Ok(path)
            }
        }
    }

    /// Ends the run where it stands, between two steps, so that it can go on from there.
    fn stop_here(&mut self, run: &mut Run) -> Result<Ended> {
        // A batch that was left out is passed, though it is no step.
        if self.progress.skipped > 0 || self.progress.is_epoch_over {
            run.saved = None;
        }
        let checkpoint = self.keep(run).map_err(|error| self.stopped(error))?;
        Ok(Ended::Stopped { checkpoint })
    }

    /// The error that ends a run, after what is known was saved. A failed step has changed nothing, so what is saved is
    /// the state before it. A device that failed for good takes its state with it; then the last checkpoint is named.
    fn stopped(&mut self, error: Error) -> Error {
        let step = self.progress.step;
        // Where ranks or a disk failed in the middle of a step, some of its state is new and some is old.
        self.is_device_lost |= is_of_ranks(&error) || is_of_disk(&error);
        // Of a state that ranks have shards of, one alone can write nothing.
        self.is_device_lost |= self.training.as_ref().is_some_and(plimsoll_nn::Training::is_sharded);
        if let Ok(Some(checkpoint)) = self.save_checkpoint() {
            return Error::Stopped { step, cause: Box::new(error), checkpoint };
        }
        let newest = |checkpoints: &Checkpoints| Checkpoint::newest(checkpoints.folder()).ok().flatten();
        match self.checkpoints.as_ref().and_then(newest) {
            Some(checkpoint) => Error::Lost { step, cause: Box::new(error), checkpoint },
            None => error,
        }
    }
}

/// Whether an error says that a disk failed, on which state is kept: then a step may have been written by half.
fn is_of_disk(error: &Error) -> bool {
    matches!(error, Error::Run(plimsoll_run::Error::Fault { fault, .. }) if fault.op == "disk")
}

/// Says that there is no data.
pub(crate) fn no_samples(what: &'static str) -> Error {
    Error::NoSamples { what, why: String::new() }
}
