//! One batch of a run: an update, or none.

use std::time::Instant;

use plimsoll_data::{Batch, BatchShare, Batches};
use plimsoll_graph::TensorOps;
use plimsoll_run::Tensor;

use super::Run;
use super::taken::Asked;
use crate::callback::{Notice, StepEvent};
use crate::error::{Error, Result};
use crate::fault::{Fault, lost_device, poison};
use crate::staging::borrowed;
use crate::trainer::{Trainer, check_rate};

/// What became of a batch.
pub(super) enum Did {
    Update {
        loss: f64,
        loss_scale: Option<f64>,
        gradient_norm: Option<f64>,
    },
    /// Nothing was changed. The loss is known where only gradients were too large for f16.
    Skip {
        loss: Option<f64>,
        loss_scale: Option<f64>,
    },
}

impl Trainer {
    pub(super) fn event(&self, samples: usize, loss: f64, gradient_norm: Option<f64>) -> StepEvent {
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
            loss_scale: progress.loss_scale,
            gradient_norm,
        }
    }

    pub(super) fn rate(&self, step: u64) -> f64 {
        self.schedule.rate(self.optimizer.rate(), step) * self.progress.rate_factor
    }

    /// One batch: an update, or none. While a device works on it, the next is taken from the pipeline.
    pub(super) fn step(
        &mut self,
        batch: Option<Batch>,
        share: BatchShare,
        batches: &mut Batches,
        run: &mut Run,
    ) -> Result<Did> {
        let rate = self.rate(self.progress.step);
        check_rate(rate, Some(self.progress.step))?;
        let fields = self.n_inputs + self.n_labels;
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
        if let Some(fault @ Fault::Nan(n)) = self.fault
            && n == run.batches_seen
        {
            poison(staged)?;
            let what = format!("a number of batch {n} was spoiled, as {fault} asked for");
            self.tell(&Notice::Rehearsed { step: self.progress.step, what })?;
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
            if let Some(what) = training.take_remark() {
                let notice = Notice::Remarked { step: self.progress.step, what };
                self.callbacks.iter_mut().try_for_each(|callback| callback.on_notice(&notice))?;
            }
            training.set_rate(rate)?;
            if training.shares_batch() {
                training.set_share(share.first, share.samples, share.whole)?;
            }
            let (inputs, mut next) = self.staging.both(fields, &device);
            let (stop, callbacks, waiting) = (&self.stop, &mut self.callbacks, &mut self.progress.waiting);
            let outcome = training.run_while(&borrowed(inputs), || {
                if !device.has_own_memory() || run.ahead.is_some() {
                    return;
                }
                // As long as the device is busy nobody waits.
                let mut idle: Option<Instant> = None;
                let asked = Asked::next(batches, || {
                    if idle.is_none() && device.is_idle() {
                        idle = Some(Instant::now());
                    }
                    !stop.is_set() && !callbacks.iter_mut().any(|callback| callback.wants_to_stop())
                });
                *waiting += idle.map_or(0.0, |since| since.elapsed().as_secs_f64());
                run.ahead = Some(asked.and_then(|asked| asked.sent(&mut next)));
            });
            let why = match outcome {
                Ok(outcome) => {
                    if self.progress.sums.is_empty() {
                        self.progress.sums = vec![Vec::new(); outcome.sums.len()];
                    }
                    let (loss, loss_scale) = (outcome.loss, outcome.loss_scale);
                    let gradient_norm = outcome.gradient_norm;
                    if outcome.skipped {
                        return Ok(Did::Skip {
                            loss: Some(loss).filter(|loss| loss.is_finite()),
                            loss_scale,
                        });
                    }
                    for (total, sums) in self.progress.sums.iter_mut().zip(outcome.sums) {
                        add(total, sums)?;
                    }
                    return Ok(Did::Update { loss, loss_scale, gradient_norm });
                }
                Err(plimsoll_run::Error::NotFinite { .. }) => {
                    return Ok(Did::Skip { loss: None, loss_scale: None });
                }
                Err(plimsoll_run::Error::OutOfMemory(why)) if again => why,
                Err(error) => return Err(error.into()),
            };
            // Memory that was promised is not there: plan anew within what is left, and try once more.
            again = false;
            training.set_memory_limit(self.request.limit)?;
            let why = why.to_string().lines().next().unwrap_or_default().to_string();
            let notice = Notice::Replanned { step: self.progress.step, why };
            self.callbacks.iter_mut().try_for_each(|callback| callback.on_notice(&notice))?;
        }
    }
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
