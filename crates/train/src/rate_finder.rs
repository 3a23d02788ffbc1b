//! Which learning rate? A sweep from a tiny rate to a large one, a step each, and what the loss made of it; the weights stay.

use std::borrow::Borrow;

use plimsoll_data::Dataset;

use crate::checkpoint::{Checkpoint, Checkpoints};
use crate::error::{Error, Result};
use crate::session::{Asked, no_samples};
use crate::staging::borrowed;
use crate::trainer::{Trainer, check_rate};

/// What rates are tried.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateSweep {
    /// The first rate.
    pub from: f64,
    /// The last rate.
    pub to: f64,
    /// How many are tried, each on a batch of its own.
    pub steps: usize,
}

impl Default for RateSweep {
    fn default() -> RateSweep {
        RateSweep { from: 1e-6, to: 1.0, steps: 100 }
    }
}

/// One rate of a sweep.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RatePoint {
    /// The learning rate.
    pub rate: f64,
    /// The loss of the batch before the step at that rate.
    pub loss: f64,
    /// The same smoothed over the rates before it.
    pub smooth: f64,
}

/// What a sweep found.
#[derive(Clone, Debug, PartialEq)]
pub struct RateCurve {
    /// The rates in the order in which they were tried. It ends where the loss ran away.
    pub points: Vec<RatePoint>,
    /// The rate at which the loss fell fastest; none where it never fell.
    pub suggestion: Option<f64>,
    /// The rate at which the loss ran away; none where it did not.
    pub diverged_at: Option<f64>,
}

/// How much of the loss before goes into a smoothed one.
const SMOOTH: f64 = 0.9;
/// A smoothed loss that is so many times the least has run away.
const AWAY: f64 = 4.0;
/// The first points of a sweep say nothing: so many are passed over.
const LEAST_POINTS: usize = 5;

impl Trainer {
    /// Tries learning rates from small to large, a step each, and says at which the loss fell fastest. Weights, optimizer and progress are
    /// as before when it returns: they are kept in a checkpoint meanwhile, in the folder of [`Trainer::checkpoints`] or else the
    /// system's folder for temporary files. Schedules and callbacks are not followed.
    ///
    /// ```
    /// use plimsoll_data::{Column, Dataset};
    /// use plimsoll_nn::{Adam, Sequential, softmax_cross_entropy};
    /// use plimsoll_train::{RateSweep, Trainer};
    /// # let x: Vec<f32> = (0..400).map(|i| ((i * 37) % 101) as f32 / 50.0).collect();
    /// # let y: Vec<i64> = x.chunks(2).map(|pair| i64::from(pair[1] > pair[0])).collect();
    /// # let data = Dataset::columns([Column::memory("x", x, [2])?, Column::memory("y", y, [])?])?.batch(50);
    /// let model = Sequential::new([2]).dense(8).relu().dense(2);
    /// let mut trainer = Trainer::new(model, softmax_cross_entropy, Adam::new(1e-2));
    /// let before = trainer.evaluate(&data)?.loss;
    /// let curve = trainer.find_rate(&data, RateSweep { from: 1e-5, to: 1.0, steps: 60 })?;
    /// println!("try a learning rate of {:?}", curve.suggestion);
    /// assert_eq!(trainer.evaluate(&data)?.loss, before);
    /// # Ok::<(), plimsoll_train::Error>(())
    /// ```
    ///
    /// # Errors
    /// The rates mean nothing, or a step fails for another reason than a loss that is not finite.
    pub fn find_rate(&mut self, data: impl Borrow<Dataset>, sweep: RateSweep) -> Result<RateCurve> {
        check_rate(sweep.from, None)?;
        check_rate(sweep.to, None)?;
        if !(sweep.from > 0.0 && sweep.from < sweep.to) || sweep.steps < 2 * LEAST_POINTS {
            let RateSweep { from, to, steps } = sweep;
            return Err(Error::Mismatch(format!(
                "learning rates are tried from a small one above 0 to a larger one in at least {} steps, not from {from} to {to} in {steps}",
                2 * LEAST_POINTS
            )));
        }
        let device = self.pinned()?;
        self.reads_back = true;
        device.scope(|| {
            let data = self.ready(data.borrow())?.repeat_forever();
            let kept = self.set_aside()?;
            let swept = self.sweep(&data, sweep);
            let restored = match &mut self.training {
                Some(training) => Checkpoint::restore(&kept.path, training).map(drop),
                None => Ok(()),
            };
            drop(kept);
            let points = swept?;
            restored?;
            Ok(curve(points, sweep))
        })
    }

    /// Writes all that a training holds to a folder of its own.
    fn set_aside(&mut self) -> Result<SetAside> {
        let within = self.checkpoints.as_ref().map(|checkpoints| checkpoints.folder().to_path_buf());
        let within = within.unwrap_or_else(std::env::temp_dir);
        let folder = within.join(format!("plimsoll-set-aside-{}", std::process::id()));
        let checkpoint = Checkpoint::new(self.progress.clone(), self.terms.clone(), &self.callbacks);
        let none = || Error::Mismatch("there is no model to train".into());
        let training = self.training.as_ref().ok_or_else(none)?;
        let path = Checkpoints::new(&folder).keep(1).on_each().save(
            &checkpoint,
            training,
            self.ranks()?.as_ref(),
        )?;
        Ok(SetAside { folder, path })
    }

    /// A step at each rate: the rate and the loss before it, as far as losses are numbers.
    fn sweep(&mut self, data: &Dataset, sweep: RateSweep) -> Result<Vec<(f64, f64)>> {
        let fields = self.n_inputs + self.n_labels;
        let (mut points, mut smooth, mut best) =
            (Vec::with_capacity(sweep.steps), Smooth::default(), f64::MAX);
        let mut batches = data.batches()?;
        self.staging.forget()?;
        let factor = (sweep.to / sweep.from).powf(1.0 / (sweep.steps - 1) as f64);
        for i in 0..sweep.steps {
            let rate = sweep.from * factor.powi(i as i32);
            let taken = match Asked::next(&mut batches, || true)? {
                Asked::Batch(taken) => taken,
                Asked::End | Asked::Stopped => return Err(no_samples("the data to train on")),
            };
            let Some(batch) = taken.batch else { break };
            let staged = self.staging.stage(&batch, fields)?;
            drop(batch);
            let Some(training) = &mut self.training else { break };
            training.set_rate(rate)?;
            let loss = match training.run(&borrowed(staged)) {
                // Too large for f16: the scale is still being looked for.
                Ok(outcome) if outcome.skipped && outcome.loss.is_finite() => continue,
                Ok(outcome) => outcome.loss,
                Err(plimsoll_run::Error::NotFinite { .. }) => f64::NAN,
                Err(error) => return Err(error.into()),
            };
            points.push((rate, loss));
            let now = smooth.next(loss);
            best = best.min(now);
            if !now.is_finite() || (points.len() > LEAST_POINTS && now > AWAY * best) {
                break;
            }
        }
        Ok(points)
    }
}

/// A training that was written to disk, until this is dropped.
struct SetAside {
    folder: std::path::PathBuf,
    path: std::path::PathBuf,
}

impl Drop for SetAside {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.folder).ok();
    }
}

/// A mean in which what is long past counts little.
#[derive(Default)]
struct Smooth {
    sum: f64,
    weight: f64,
}

impl Smooth {
    fn next(&mut self, value: f64) -> f64 {
        self.sum = SMOOTH * self.sum + (1.0 - SMOOTH) * value;
        self.weight = SMOOTH * self.weight + (1.0 - SMOOTH);
        self.sum / self.weight
    }
}

/// What losses at rising rates say.
fn curve(tried: Vec<(f64, f64)>, sweep: RateSweep) -> RateCurve {
    let mut smooth = Smooth::default();
    let points: Vec<RatePoint> =
        tried.into_iter().map(|(rate, loss)| RatePoint { rate, loss, smooth: smooth.next(loss) }).collect();
    let last = points.last().copied();
    let finite: Vec<&RatePoint> = points.iter().filter(|point| point.smooth.is_finite()).collect();
    let least = finite.iter().map(|point| point.smooth).fold(f64::MAX, f64::min);
    let is_away = |point: &RatePoint| !point.smooth.is_finite() || point.smooth > AWAY * least;
    let diverged_at = last.filter(is_away).map(|point| point.rate);
    // Where the smoothed loss falls fastest on its way to the least, a step of the sweep being the same factor everywhere.
    let lowest = finite.iter().position(|point| point.smooth <= least).unwrap_or(0);
    let slopes = (LEAST_POINTS.min(lowest)..lowest).map(|i| (i, finite[i + 1].smooth - finite[i].smooth));
    let steepest = slopes.filter(|(_, slope)| *slope < 0.0).min_by(|a, b| a.1.total_cmp(&b.1));
    // A smoothed loss lags behind by what it is smoothed over: half of that, in rates.
    let factor = (sweep.to / sweep.from).powf(1.0 / (sweep.steps - 1) as f64);
    let lag = factor.powf(-0.5 / (1.0 - SMOOTH));
    let suggestion = steepest.map(|(i, _)| finite[i].rate * lag);
    RateCurve { points, suggestion, diverged_at }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rates of a sweep with a loss for each.
    fn tried(sweep: RateSweep, loss: impl Fn(f64) -> f64) -> Vec<(f64, f64)> {
        let factor = (sweep.to / sweep.from).powf(1.0 / (sweep.steps - 1) as f64);
        (0..sweep.steps).map(|i| sweep.from * factor.powi(i as i32)).map(|rate| (rate, loss(rate))).collect()
    }

    #[test]
    fn the_rate_at_which_the_loss_falls_fastest_is_suggested() {
        let sweep = RateSweep::default();
        // It falls around 1e-3, and runs away from 0.1 on.
        let loss = |rate: f64| 1.0 + 1.0 / (1.0 + (rate / 1e-3).powi(2)) + (rate / 0.1).powi(3);
        let found = curve(tried(sweep, loss), sweep);
        let suggestion = found.suggestion.unwrap();
        assert!((2e-4..4e-3).contains(&suggestion), "{suggestion}");
        assert!(found.diverged_at.is_some_and(|rate| rate > 0.1), "{found:?}");
    }

    #[test]
    fn a_loss_that_never_falls_suggests_nothing() {
        let sweep = RateSweep::default();
        let found = curve(tried(sweep, |rate| 1.0 + rate), sweep);
        assert_eq!((found.suggestion, found.diverged_at), (None, None));
        let mut broken = tried(sweep, |_| 1.0);
        broken.truncate(20);
        broken.push((1e-3, f64::NAN));
        assert_eq!(curve(broken, sweep).diverged_at, Some(1e-3));
    }
}
