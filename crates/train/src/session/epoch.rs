//! One epoch of a run: its batches, its validation, what it came to.

use std::time::Instant;

use plimsoll_data::Batches;
use plimsoll_device::process;
use plimsoll_nn::Measure;

use super::Run;
use super::step::Did;
use super::taken::{Asked, Taken};
use crate::callback::{EpochEvent, EpochMemory, EpochTime, Notice};
use crate::error::{Error, Result};
use crate::live::LiveModel;
use crate::predict::Evaluation;
use crate::trainer::Trainer;

/// So many steps in a row may be left out because they are not finite.
const MOST_SKIPS: u64 = 50;

impl Trainer {
    /// Trains to the end of the epoch that is begun; nothing where somebody ends the run before.
    pub(super) fn epoch(&mut self, batches: &mut Batches, run: &mut Run) -> Result<Option<EpochEvent>> {
        run.began = Instant::now();
        run.traffic = self.on()?.traffic();
        let seconds_before = self.progress.seconds;
        let pass = self.progress.position.as_ref().map_or(0, |at| at.pass);
        while !self.progress.is_epoch_over {
            let waited_before = self.progress.waiting;
            let taken = match self.next_batch(batches, run)? {
                Asked::Batch(taken) => taken,
                Asked::Stopped => return Ok(None),
                Asked::End if self.progress.is_begun() => {
                    self.progress.is_epoch_over = true;
                    break;
                }
                Asked::End => return Err(no_batch(self.terms.as_ref().and_then(|terms| terms.data.batch))),
            };
            let (now, sample) = (taken.position.pass, taken.position.sample);
            if self.progress.pass.is_some_and(|pass| now > pass && sample > 0) {
                // The end of a stream may be known only by what comes behind it: a batch of the next pass.
                run.ahead = Some(Ok(Asked::Batch(taken)));
                self.progress.is_epoch_over = true;
                break;
            }
            self.progress.pass.get_or_insert(now);
            let Taken { batch, share, last, position } = taken;
            run.batches_seen += 1;
            let (begun, waited) = (Instant::now(), self.progress.waiting);
            let did = self.step(batch, share, batches, run)?;
            let waited = self.progress.waiting - waited;
            if let Some(training) = &mut self.training {
                training.waited_for_data(self.progress.waiting - waited_before);
            }
            self.progress.stepping += (begun.elapsed().as_secs_f64() - waited).max(0.0);
            self.progress.is_epoch_over = last || (position.pass > pass && position.sample == 0);
            self.progress.position = Some(position);
            self.progress.seconds = seconds_before + run.began.elapsed().as_secs_f64();
            self.count(did, share.whole, run)?;
            if self.any_wants_to_stop()? {
                return Ok(None);
            }
            let step = self.progress.step;
            let is_due = self.checkpoints.as_ref().is_some_and(|checkpoints| checkpoints.is_due(step));
            let is_due = self.of_first_if_sharded(is_due)?;
            if is_due && !self.progress.is_epoch_over {
                self.keep(run)?;
            }
        }
        self.progress.seconds = seconds_before + run.began.elapsed().as_secs_f64();
        self.close_epoch(batches, run)
    }

    /// The next batch, and how long it was waited for.
    fn next_batch(&mut self, batches: &mut Batches, run: &mut Run) -> Result<Asked> {
        if let Some(asked) = run.ahead.take() {
            return asked;
        }
        let began = Instant::now();
        // Ranks end together, between two steps.
        let is_alone = self.ranks()?.is_none();
        let asked = Asked::next(batches, || !is_alone || !self.wants_to_stop());
        self.progress.waiting += began.elapsed().as_secs_f64();
        asked
    }

    /// Counts what became of a batch, and tells everyone.
    fn count(&mut self, did: Did, samples: usize, run: &mut Run) -> Result<()> {
        match did {
            Did::Update { loss, loss_scale, gradient_norm } => {
                run.skips_in_a_row = 0;
                self.progress.step += 1;
                self.progress.samples += samples as u64;
                self.progress.loss += loss * samples as f64;
                self.progress.loss_scale = loss_scale;
                if let Some(norm) = gradient_norm {
                    self.progress.norms.add(norm);
                }
                let event = self.event(samples, loss, gradient_norm);
                for callback in &mut self.callbacks {
                    callback.on_step(&event)?;
                    if let Some(training) = &mut self.training {
                        let rate_factor = &mut self.progress.rate_factor;
                        let (measures, sums) = (&self.metrics[..], &self.progress.sums[..]);
                        let mut model = LiveModel { training, rate_factor, measures, sums };
                        callback.on_step_model(&event, &mut model)?;
                    }
                }
                Ok(())
            }
            // Left-out samples have no loss; the mean is over the others.
            Did::Skip { loss, loss_scale } => {
                run.skips_in_a_row += 1;
                self.progress.skipped_loss = loss;
                self.progress.skipped += 1;
                self.progress.loss_scale = loss_scale.or(self.progress.loss_scale);
                self.tell(&Notice::Skipped { step: self.progress.step, loss_scale })?;
                match run.skips_in_a_row {
                    MOST_SKIPS.. => Err(Error::NotFinite { steps: run.skips_in_a_row }),
                    _ => Ok(()),
                }
            }
        }
    }

    /// The validation, and what the epoch came to; nothing where somebody ends the run meanwhile.
    fn close_epoch(&mut self, batches: &Batches, run: &mut Run) -> Result<Option<EpochEvent>> {
        let progress = &self.progress;
        let loss = match (progress.samples, progress.skipped_loss) {
            // The scale for f16 is still being looked for: that is no failure, and the loss is known.
            (0, Some(loss)) => loss,
            (0, None) => {
                let (epoch, skipped) = (progress.epoch + 1, progress.skipped);
                // Who goes on from here begins the epoch again.
                self.progress.begin_epoch();
                return Err(Error::NoUpdate { epoch, skipped });
            }
            (samples, _) => progress.loss / samples as f64,
        };
        let value = |(measure, sums): (&Measure, &Vec<f64>)| (measure.name.clone(), measure.finish(sums));
        let mut metrics: Vec<(String, f64)> = self.metrics.iter().zip(&progress.sums).map(value).collect();
        let traffic = self.on()?.traffic().since(run.traffic);
        let validating = Instant::now();
        let wants = self.validation.is_some() && self.wants_validation()?;
        let [wants] = self.as_first([f64::from(u8::from(wants))])?;
        if wants > 0.0 {
            let Some(found) = self.validate()? else { return Ok(None) };
            metrics.push(("val_loss".into(), found.loss));
            metrics.extend(found.metrics.into_iter().map(|(name, value)| (format!("val_{name}"), value)));
        }
        let validation_seconds = validating.elapsed().as_secs_f64();
        let counted = self.on()?.counted();
        let rate = self.rate(self.progress.step.saturating_sub(1));
        let ranks = self.rank_rows(&counted)?;
        let planned = self.training.as_ref().map_or(0, |training| training.info().planned.get());
        let progress = &mut self.progress;
        progress.epoch += 1;
        // A clock that stood still must not make an infinite speed.
        let seconds = progress.seconds.max(1e-9);
        let event = EpochEvent {
            epoch: progress.epoch,
            step: progress.step,
            loss,
            metrics,
            samples_s: progress.samples as f64 / seconds,
            waiting: (progress.waiting / seconds).clamp(0.0, 1.0),
            rate,
            skipped: progress.skipped,
            loss_scale: progress.loss_scale,
            gradient_norm: progress.norms.mean(),
            gradient_norm_max: progress.norms.mean().map(|_| progress.norms.most),
            skipped_samples: batches.skipped(),
            time: EpochTime {
                seconds: progress.seconds + validation_seconds,
                step_seconds: progress.stepping,
                waiting_seconds: progress.waiting,
                validation_seconds,
            },
            memory: EpochMemory {
                device_bytes: counted.now.get(),
                device_peak_bytes: counted.peak.get(),
                resident_bytes: process::resident().map_or(0, |bytes| bytes.get()),
                resident_peak_bytes: process::peak_resident().map_or(0, |bytes| bytes.get()),
                planned_bytes: planned,
                uploaded_bytes: traffic.up.get(),
                downloaded_bytes: traffic.down.get(),
            },
            ranks,
        };
        progress.begin_epoch();
        Ok(Some(event))
    }

    /// Whether everybody wants the epoch at hand to be followed by a validation.
    fn wants_validation(&mut self) -> Result<bool> {
        let epoch = self.progress.epoch + 1;
        for callback in &mut self.callbacks {
            if !callback.wants_validation(epoch)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Loss and metrics over the data for validation; nothing where somebody ends the run meanwhile.
    fn validate(&mut self) -> Result<Option<Evaluation>> {
        let Some(data) = self.validation.clone() else { return Ok(None) };
        let data = self.bounded(&data)?;
        if self.ranks()?.is_some() {
            return self.evaluate_over(&data, "the data for validation", |_| false);
        }
        match self.evaluate_over(&data, "the data for validation", Trainer::wants_to_stop) {
            // An evaluation changes nothing, so it can be begun again.
            Err(Error::Run(plimsoll_run::Error::OutOfMemory(_))) => {
                self.evaluate_over(&data, "the data for validation", Trainer::wants_to_stop)
            }
            found => found,
        }
    }
}

/// Says that the pipeline has not one batch, and why that may be.
fn no_batch(batch: Option<usize>) -> Error {
    let why = batch
        .map_or(String::new(), |n| format!(", or fewer than a batch of {n}, where only whole ones count"));
    Error::NoSamples { what: "the data to train on", why }
}
