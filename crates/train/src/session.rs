//! One run of `fit`: batches in, updates done, everyone told, nothing lost.

use std::borrow::Borrow;
use std::path::PathBuf;
use std::time::Instant;

use plimsoll_data::{Batch, Batches, Dataset};
use plimsoll_device::process;
use plimsoll_graph::{DType, TensorOps};
use plimsoll_nn::Measure;
use plimsoll_run::Tensor;

use crate::callback::{Callback, EpochEvent, Notice, Plan, StepEvent, Verdict};
use crate::checkpoint::{Checkpoint, Checkpoints};
use crate::error::{Error, Result};
use crate::fault::Fault;
use crate::staging::{Next, borrowed};
use crate::trainer::{Epochs, Trainer};

/// So many steps in a row may be left out because they are not finite.
const MOST_SKIPS: u64 = 50;

/// What each epoch came to.
pub type History = Vec<EpochEvent>;

/// What became of a batch.
enum Did {
    Update { loss: f64, loss_scale: Option<f64> },
    Skip { loss_scale: Option<f64> },
}

impl Trainer {
    /// Trains until so many epochs are done in all, those before a checkpoint counted.
    ///
    /// # Errors
    /// The line cannot be kept, data cannot be read, or a step fails for good; then, where there is a place for
    /// checkpoints, the state before the failed step is saved and named.
    pub fn fit(&mut self, data: impl Borrow<Dataset>, epochs: Epochs) -> Result<History> {
        let device = self.on()?;
        device.scope(|| self.run(data.borrow(), epochs))
    }

    fn run(&mut self, data: &Dataset, Epochs(epochs): Epochs) -> Result<History> {
        // Passes without end, so that a run that is resumed for more epochs has the same pipeline.
        let data = self.ready(data)?.repeat_forever();
        let mut batches = match &self.progress.position {
            Some(position) => data.resume(position)?,
            None => data.batches()?,
        };
        self.announce(&data, epochs)?;
        let watch = batches.watch();
        self.callbacks.iter_mut().try_for_each(|callback| callback.on_pipeline(&watch))?;
        self.staging.forget()?;
        let mut history = Vec::new();
        let mut run = Run { began: Instant::now(), batches_seen: 0, skips_in_a_row: 0, ahead: None };
        while self.progress.epoch < epochs {
            let outcome = self.epoch(&mut batches, &mut run);
            let event = match outcome {
                Ok(Some(event)) => event,
                Ok(None) => {
                    self.save_checkpoint().map_err(|error| self.stopped(error))?;
                    break;
                }
                Err(error) => return Err(self.stopped(error)),
            };
            let mut stop = None;
            for callback in &mut self.callbacks {
                match callback.on_epoch(&event)? {
                    Verdict::GoOn => {}
                    Verdict::Stop(why) => stop = Some(why),
                    Verdict::Rate(factor) => self.progress.rate_factor *= factor,
                }
            }
            history.push(event);
            if self.checkpoints.is_some() {
                self.save_checkpoint().map_err(|error| self.stopped(error))?;
            }
            if stop.is_some() {
                break;
            }
        }
        self.callbacks.iter_mut().try_for_each(|callback| callback.on_end())?;
        Ok(history)
    }

    fn announce(&mut self, data: &Dataset, epochs: u64) -> Result<()> {
        let (Some(training), Some(info)) = (&self.training, self.info(data)?) else { return Ok(()) };
        let plan = Plan {
            info: &info,
            line: self.memory,
            batch: data.batch_size().unwrap_or(1),
            parameters: training.n_trained(),
            samples: self.samples(data)?,
            epochs,
            epoch: self.progress.epoch,
            pipeline: data.declared_bytes()?,
        };
        self.callbacks.iter_mut().try_for_each(|callback| callback.on_start(&plan))
    }

    /// Samples of one pass.
    fn samples(&self, data: &Dataset) -> Result<Option<u64>> {
        // The data here repeats without end; its source does not.
        Ok(data.samples()?)
    }

    /// Trains to the end of the epoch that is begun; nothing where somebody ends the run before.
    fn epoch(&mut self, batches: &mut Batches, run: &mut Run) -> Result<Option<EpochEvent>> {
        run.began = Instant::now();
        let (seconds_before, pass) = (self.progress.seconds, self.progress.epoch);
        while !self.progress.is_epoch_over {
            let taken = match run.ahead.take() {
                Some(taken) => taken,
                None => {
                    let waiting = Instant::now();
                    let taken = Taken::next(batches);
                    self.progress.waiting += waiting.elapsed().as_secs_f64();
                    taken
                }
            };
            let Some(Taken { batch, samples, last, position }) = taken? else { break };
            run.batches_seen += 1;
            let did = self.step(batch, batches, run)?;
            self.progress.position = Some(position);
            self.progress.samples += samples as u64;
            self.progress.seconds = seconds_before + run.began.elapsed().as_secs_f64();
            match did {
                Did::Update { loss, loss_scale } => {
                    run.skips_in_a_row = 0;
                    self.progress.step += 1;
                    self.progress.loss += loss * samples as f64;
                    let event = self.event(samples, loss, loss_scale);
                    self.callbacks.iter_mut().try_for_each(|callback| callback.on_step(&event))?;
                }
                Did::Skip { loss_scale } => {
                    run.skips_in_a_row += 1;
                    self.progress.skipped += 1;
                    // Left-out samples have no loss; the mean is over the others.
                    self.progress.samples -= samples as u64;
                    self.tell(&Notice::Skipped { step: self.progress.step, loss_scale })?;
                    if run.skips_in_a_row >= MOST_SKIPS {
                        return Err(Error::NotFinite { steps: run.skips_in_a_row });
                    }
                }
            }
            let ended =
                last || self.progress.position.as_ref().is_some_and(|at| at.pass > pass && at.sample == 0);
            if ended {
                self.progress.is_epoch_over = true;
                break;
            }
            let stops = |callback: &mut Box<dyn Callback>| callback.wants_to_stop();
            if self.callbacks.iter_mut().any(stops) {
                return Ok(None);
            }
            let step = self.progress.step;
            if self.checkpoints.as_ref().is_some_and(|checkpoints| checkpoints.is_due(step)) {
                self.save_checkpoint()?;
            }
        }
        self.close_epoch(batches).map(Some)
    }

    fn event(&self, samples: usize, loss: f64, loss_scale: Option<f64>) -> StepEvent {
        let progress = &self.progress;
        StepEvent {
            epoch: progress.epoch,
            step: progress.step,
            samples,
            seen: progress.samples,
            loss,
            mean_loss: progress.loss / progress.samples.max(1) as f64,
            rate: self.rate(progress.step.saturating_sub(1)),
            seconds: progress.seconds,
            waiting: progress.waiting,
            loss_scale,
        }
    }

    fn rate(&self, step: u64) -> f64 {
        self.schedule.rate(self.optimizer.rate(), step) * self.progress.rate_factor
    }

    /// One batch: an update, or none. While a device works on it, the next is taken from the pipeline.
    fn step(&mut self, batch: Option<Batch>, batches: &mut Batches, run: &mut Run) -> Result<Did> {
        let rate = self.rate(self.progress.step);
        let fields = self.n_inputs + self.n_labels;
        let poisoned = self.fault == Some(Fault::Nan(run.batches_seen));
        if self.fault == Some(Fault::Device(run.batches_seen)) {
            self.is_device_lost = true;
            return Err(lost_device());
        }
        let mut again = true;
        let staged = match &batch {
            None => self.staging.staged_ahead()?.ok_or_else(|| Error::Mismatch("a batch was lost".into()))?,
            Some(batch) => match self.staging.stage(batch, fields) {
                Err(Error::Run(plimsoll_run::Error::OutOfMemory(_))) => self.staging.stage(batch, fields)?,
                staged => staged?,
            },
        };
        drop(batch);
        if poisoned {
            poison(staged)?;
        }
        let device = self.on()?;
        loop {
            let Some(training) = &mut self.training else {
                return Err(Error::Mismatch("there is no model to train".into()));
            };
            if let Some(why) = training.take_notice() {
                let notice = Notice::Replanned { step: self.progress.step, why };
                self.callbacks.iter_mut().try_for_each(|callback| callback.on_notice(&notice))?;
            }
            training.set_rate(rate)?;
            let busy = training.info().predicted_seconds;
            let (inputs, mut next) = self.staging.both(fields, &device);
            let outcome = training.run_while(&borrowed(inputs), || {
                if !device.has_own_memory() || run.ahead.is_some() {
                    return;
                }
                let waiting = Instant::now();
                let taken = Taken::next(batches);
                // As long as the device is busy nobody waits.
                self.progress.waiting += (waiting.elapsed().as_secs_f64() - busy).max(0.0);
                run.ahead =
                    Some(taken.and_then(|taken| taken.map(|taken| taken.sent(&mut next)).transpose()));
            });
            let why = match outcome {
                Ok(outcome) => {
                    if self.progress.sums.is_empty() {
                        self.progress.sums = vec![Vec::new(); outcome.sums.len()];
                    }
                    if outcome.skipped {
                        return Ok(Did::Skip { loss_scale: outcome.loss_scale });
                    }
                    for (total, sums) in self.progress.sums.iter_mut().zip(outcome.sums) {
                        add(total, sums)?;
                    }
                    return Ok(Did::Update { loss: outcome.loss, loss_scale: outcome.loss_scale });
                }
                Err(plimsoll_run::Error::NotFinite { .. }) => return Ok(Did::Skip { loss_scale: None }),
                Err(plimsoll_run::Error::OutOfMemory(why)) if again => why,
                Err(error) => return Err(error.into()),
            };
            // Memory that was promised is not there: plan anew within what is left, and try once more.
            again = false;
            training.set_memory(self.memory)?;
            let why = why.to_string().lines().next().unwrap_or_default().to_string();
            let notice = Notice::Replanned { step: self.progress.step, why };
            self.callbacks.iter_mut().try_for_each(|callback| callback.on_notice(&notice))?;
        }
    }

    fn close_epoch(&mut self, batches: &Batches) -> Result<EpochEvent> {
        let value = |(measure, sums): (&Measure, &Vec<f64>)| (measure.name.clone(), measure.finish(sums));
        let mut metrics: Vec<(String, f64)> =
            self.metrics.iter().zip(&self.progress.sums).map(value).collect();
        if let Some(data) = self.validation.clone() {
            let data = self.bounded(&data)?;
            let found = match self.evaluate_over(&data) {
                // An evaluation changes nothing, so it can be begun again.
                Err(Error::Run(plimsoll_run::Error::OutOfMemory(_))) => self.evaluate_over(&data)?,
                found => found?,
            };
            metrics.push(("val_loss".into(), found.loss));
            metrics.extend(found.metrics.into_iter().map(|(name, value)| (format!("val_{name}"), value)));
        }
        let progress = &mut self.progress;
        progress.epoch += 1;
        let planned = self.training.as_ref().map_or(0, |training| training.info().planned.get());
        let event = EpochEvent {
            epoch: progress.epoch,
            step: progress.step,
            loss: progress.loss / progress.samples as f64,
            metrics,
            samples_s: progress.samples as f64 / progress.seconds,
            waiting: progress.waiting / progress.seconds,
            rate: self.schedule.rate(self.optimizer.rate(), progress.step.saturating_sub(1))
                * progress.rate_factor,
            skipped: progress.skipped,
            skipped_samples: batches.skipped(),
            resident_bytes: process::resident().map_or(0, |bytes| bytes.get()),
            resident_peak_bytes: process::peak_resident().map_or(0, |bytes| bytes.get()),
            planned_bytes: planned,
        };
        progress.begin_epoch();
        Ok(event)
    }

    /// Writes a checkpoint of where the training stands.
    pub fn save_checkpoint(&mut self) -> Result<Option<PathBuf>> {
        if self.is_device_lost {
            return Err(lost_device());
        }
        let (Some(checkpoints), Some(training)) = (&self.checkpoints, &self.training) else {
            return Ok(None);
        };
        let states = self.callbacks.iter().map(|callback| callback.state()).collect();
        let path = checkpoints.save(&Checkpoint::new(self.progress.clone(), states), training)?;
        self.tell(&Notice::Saved { step: self.progress.step, path: path.clone() })?;
        Ok(Some(path))
    }

    /// The error that ends a run, after what is known was saved. A failed step has changed nothing, so what is saved is
    /// the state before it. A device that failed for good takes its state with it; then the last checkpoint is named.
    fn stopped(&mut self, error: Error) -> Error {
        let step = self.progress.step;
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

/// What a device says that failed for good, as far as a rehearsal needs it.
fn lost_device() -> Error {
    let why = "the device failed, as was asked for, and nothing can be read from it any more".into();
    let fault = plimsoll_device::backend::Fault { op: "device", why };
    Error::Run(plimsoll_run::Error::Fault { fault, site: plimsoll_graph::Site::here() })
}

/// A batch of a pipeline, and where the pipeline stands behind it.
struct Taken {
    /// None where it is on its way to the device already.
    batch: Option<Batch>,
    samples: usize,
    last: bool,
    position: plimsoll_data::Position,
}

impl Taken {
    fn next(batches: &mut Batches) -> Result<Option<Taken>> {
        let Some(batch) = batches.next() else { return Ok(None) };
        let batch = batch?;
        let (samples, last) = (batch.samples(), batch.is_last_of_epoch());
        Ok(Some(Taken { batch: Some(batch), samples, last, position: Batches::position(batches) }))
    }

    /// The same batch, sent to the device where that can be done by now.
    fn sent(mut self, next: &mut Next<'_>) -> Result<Taken> {
        if let Some(batch) = &self.batch
            && next.start(batch)?
        {
            self.batch = None;
        }
        Ok(self)
    }
}

/// What is counted in one run and not in checkpoints.
struct Run {
    /// The next batch, where it was taken while the device was busy with the one before.
    ahead: Option<Result<Option<Taken>>>,
    began: Instant,
    batches_seen: u64,
    skips_in_a_row: u64,
}

/// Adds a metric's sums (f32) to those of the epoch. Allocates for the first batch of an epoch only.
pub(crate) fn add(total: &mut Vec<f64>, sums: &Tensor) -> Result<()> {
    let bytes = sums.as_bytes()?;
    total.resize(sums.ty().elements(), 0.0);
    for (total, bytes) in total.iter_mut().zip(bytes.chunks_exact(4)) {
        *total += f64::from(f32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
    }
    Ok(())
}

/// Makes the first number of the first floating-point input none.
fn poison(inputs: &mut [Tensor]) -> Result<()> {
    let Some(input) = inputs.iter_mut().find(|input| input.dtype().is_float()) else { return Ok(()) };
    let nan: &[u8] = match input.dtype() {
        DType::F32 => &f32::NAN.to_ne_bytes(),
        DType::F64 => &f64::NAN.to_ne_bytes(),
        DType::BF16 => &0x7fc0u16.to_ne_bytes(),
        _ => &0x7e00u16.to_ne_bytes(),
    };
    let mut bytes = input.to_bytes()?;
    bytes[..nan.len()].copy_from_slice(nan);
    Ok(input.set_bytes(&bytes)?)
}
