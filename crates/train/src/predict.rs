//! Using a model: evaluation over data, and predictions that leave batch by batch.

use plimsoll_data::Dataset;
use plimsoll_graph::ops::Rank;
use plimsoll_graph::{TensorOps, Type};
use plimsoll_nn::{Measure, Training};
use plimsoll_run::Tensor;

use crate::callback::Evaluating;
use crate::error::{Error, Result};
use crate::session::{Asked, Taken, add, no_samples};
use crate::staging::borrowed;
use crate::trainer::{Trainer, Values};

/// What an evaluation found.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Evaluation {
    /// The mean loss.
    pub loss: f64,
    /// Metrics by name.
    pub metrics: Vec<(String, f64)>,
    /// Samples seen.
    pub samples: u64,
}

/// One batch of predictions.
pub struct Prediction<'a> {
    /// The model's outputs, a row a sample.
    pub outputs: &'a [Tensor],
    /// Samples of the batch.
    pub samples: usize,
    /// The number of each in its source: what `Dataset::sample_name` takes.
    pub numbers: &'a [u64],
}

impl Trainer {
    /// The loss and the metrics over one pass of data, under the same memory limit as training. Before any training or
    /// [`Trainer::load`], of the model as its layers start.
    ///
    /// # Errors
    /// The memory limit cannot be kept, or the data cannot be read or has no samples.
    pub fn evaluate(&mut self, data: &Dataset) -> Result<Evaluation> {
        const WHAT: &str = "the data to evaluate on";
        let device = self.pinned()?;
        device.scope(|| {
            if data.samples()? == Some(0) {
                return Err(no_samples(WHAT));
            }
            let data = self.usable(data, Values::Drawn)?;
            let found = self.evaluate_over(&data, WHAT, |_| false)?;
            found.ok_or_else(|| no_samples(WHAT))
        })
    }

    /// The same for data whose pipeline has its memory; nothing where `stops` says so before the end.
    pub(crate) fn evaluate_over(
        &mut self,
        data: &Dataset,
        what: &'static str,
        stops: impl Fn(&mut Trainer) -> bool,
    ) -> Result<Option<Evaluation>> {
        if data.samples()? == Some(0) {
            return Err(no_samples(what));
        }
        let fields = self.n_inputs + self.n_labels;
        let mut totals: Vec<Vec<f64>> = vec![Vec::new(); self.metrics.len()];
        let (mut sum, mut samples) = (0.0, 0);
        self.callbacks.iter_mut().try_for_each(|callback| callback.on_evaluation(&Evaluating::Begun))?;
        let (mut batches, mut done) = (data.batches()?, 0);
        // Where parameters are gathered, every rank evaluates every batch, and all stop at the same one.
        let is_together = self.training.as_ref().is_some_and(Training::has_sharded_parameters);
        let together = self.ranks()?.filter(|_| is_together);
        loop {
            let own = stops(self);
            let is_over = match &together {
                Some(ranks) => ranks.any(own).map_err(crate::ranks::failed)?,
                None => own,
            };
            if is_over {
                return Ok(None);
            }
            let batch = match Asked::next(&mut batches, || is_together || !stops(self))? {
                Asked::Batch(Taken { batch: Some(batch), .. }) => batch,
                Asked::Stopped => return Ok(None),
                _ => break,
            };
            let n = batch.share().samples;
            if n == 0 && !is_together {
                // Another rank has all of it.
                continue;
            }
            let staged = self.staging.stage(&batch, fields)?;
            drop(batch);
            let Some(training) = &mut self.training else { break };
            let outcome = training.evaluate(&borrowed(staged))?;
            if n == 0 {
                continue;
            }
            sum += outcome.loss * n as f64;
            samples += n as u64;
            for (total, sums) in totals.iter_mut().zip(outcome.sums) {
                add(total, sums)?;
            }
            done += 1;
            let counted = (&self.metrics[..], &totals[..]);
            let event = Evaluating::Batch { done, loss: sum / samples as f64, counted };
            self.callbacks.iter_mut().try_for_each(|callback| callback.on_evaluation(&event))?;
        }
        (sum, samples) = self.sum_over_ranks(sum, samples, &mut totals)?;
        if samples == 0 {
            return Err(no_samples(what));
        }
        let value = |(measure, sums): (&Measure, &Vec<f64>)| (measure.name.clone(), measure.finish(sums));
        let metrics = self.metrics.iter().zip(&totals).map(value).collect();
        let found = Evaluation { loss: sum / samples as f64, metrics, samples };
        let event = Evaluating::Ended(&found);
        self.callbacks.iter_mut().try_for_each(|callback| callback.on_evaluation(&event))?;
        Ok(Some(found))
    }

    /// What all ranks found, each on its own samples.
    fn sum_over_ranks(&self, sum: f64, samples: u64, totals: &mut [Vec<f64>]) -> Result<(f64, u64)> {
        // Where each has all samples, or a stage of what is done with them, all found the same.
        if self.samples_of()?.ranks == 1 {
            return Ok((sum, samples));
        }
        // So did those of a group: one of them says it.
        let is_said = self.parallel.model_of(self.on()?.rank()).rank == 0;
        let (sum, samples) = if is_said { (sum, samples) } else { (0.0, 0) };
        if !is_said {
            totals.iter_mut().for_each(Vec::clear);
        }
        // A rank without a sample does not know how many sums a metric has.
        let mut lengths: Vec<f64> = totals.iter().map(|total| total.len() as f64).collect();
        let mut has = [f64::from(u8::from(samples > 0))];
        self.over_ranks(&mut has)?;
        self.over_ranks(&mut lengths)?;
        let mut all = vec![sum, samples as f64];
        for (total, length) in totals.iter_mut().zip(&lengths) {
            total.resize((length / has[0].max(1.0)) as usize, 0.0);
            all.extend(total.iter());
        }
        self.over_ranks(&mut all)?;
        let mut rest = &all[2..];
        for total in totals.iter_mut() {
            let (own, others) = rest.split_at(total.len());
            total.copy_from_slice(own);
            rest = others;
        }
        Ok((all[0], all[1] as u64))
    }

    /// What the model makes of data, handed on batch by batch, so that nothing piles up. Labels in the data are not read.
    /// Where a whole batch does not fit the memory limit, fewer samples are run at a time.
    ///
    /// # Errors
    /// The memory limit cannot be kept, or the data cannot be read or has no samples.
    pub fn predict(
        &mut self,
        data: &Dataset,
        mut each: impl FnMut(&Prediction<'_>) -> Result<()>,
    ) -> Result<u64> {
        let device = self.pinned()?;
        device.scope(|| {
            // Whoever predicts wants all of it, on every rank that asks.
            let data = self.usable(data, Values::Drawn)?.shared(Rank::ONLY);
            if data.samples()? == Some(0) {
                return Err(no_samples("the data to predict on"));
            }
            let fields = self.n_inputs;
            let (mut seen, mut most) = (0, usize::MAX);
            for batch in data.batches()? {
                let batch = batch?;
                let n = batch.samples();
                let numbers = batch.numbers().to_vec();
                let staged = self.staging.stage(&batch, fields)?;
                drop(batch);
                let Some(training) = &mut self.training else { break };
                let mut at = 0;
                while at < n {
                    let samples = most.min(n - at);
                    let rows = if samples == n { None } else { Some(slice(staged, at, samples)?) };
                    let inputs = rows.as_deref().unwrap_or(staged);
                    match training.predict(&borrowed(inputs)) {
                        Ok(outputs) => {
                            let numbers = numbers.get(at..at + samples).unwrap_or_default();
                            each(&Prediction { outputs, samples, numbers })?;
                        }
                        Err(plimsoll_run::Error::Infeasible { .. }) if samples > 1 => {
                            most = samples / 2;
                            continue;
                        }
                        Err(error) => return Err(error.into()),
                    }
                    at += samples;
                }
                seen += n as u64;
            }
            Ok(seen)
        })
    }
}

/// Some rows of tensors.
fn slice(tensors: &[Tensor], at: usize, samples: usize) -> Result<Vec<Tensor>> {
    tensors
        .iter()
        .map(|tensor| {
            let rows = tensor.shape().first().copied().unwrap_or(1).max(1);
            let row = tensor.ty().bytes() / rows;
            let ty = Type::new(tensor.dtype(), tensor.shape().with(0, samples));
            let mut part = Tensor::zeros(ty)?;
            let bytes = tensor.as_bytes()?;
            let bytes = bytes.get(at * row..(at + samples) * row);
            let outside = || Error::Mismatch(format!("a batch of {rows} samples has no rows from {at} on"));
            part.set_bytes(bytes.ok_or_else(outside)?)?;
            Ok(part)
        })
        .collect()
}
