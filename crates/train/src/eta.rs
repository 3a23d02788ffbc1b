//! Turns what steps and epochs took into the time that is left of the epoch and of the run.

use std::fmt;
use std::time::Duration;

use crate::callback::{EpochEvent, RunPlan, StepEvent};

/// How long a run will still take, as far as it can be told from what was.
///
/// ```
/// use plimsoll_train::Eta;
/// assert_eq!(Eta::default().left(), None);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Eta {
    samples: Option<u64>,
    epochs: u64,
    /// What epochs took beside their steps: validation, callbacks, checkpoints.
    beside: f64,
    left: Option<Left>,
}

/// The time that is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    /// Of the steps of this epoch.
    pub epoch: Duration,
    /// Of the whole run.
    pub run: Duration,
}

impl Eta {
    /// For a run that is about to do this.
    pub fn new(plan: &RunPlan<'_>) -> Eta {
        Eta { samples: plan.samples, epochs: plan.epochs, ..Eta::default() }
    }

    /// Takes note of a step. Allocates nothing.
    pub fn step(&mut self, step: &StepEvent) {
        let Some(samples) = self.samples.filter(|_| step.seen > 0) else { return };
        let each = step.seconds / step.seen as f64;
        let epoch = each * samples.saturating_sub(step.seen) as f64;
        let others = self.epochs.saturating_sub(step.epoch + 1) as f64;
        let run = epoch + self.beside + others * (each * samples as f64 + self.beside);
        let time = |seconds: f64| Duration::try_from_secs_f64(seconds).ok();
        self.left = time(epoch).zip(time(run)).map(|(epoch, run)| Left { epoch, run });
    }

    /// Takes note of an epoch.
    pub fn epoch(&mut self, epoch: &EpochEvent) {
        self.beside = (epoch.time.seconds - epoch.time.step_seconds - epoch.time.waiting_seconds).max(0.0);
    }

    /// What is left; nothing before the first step, or where nobody knows how many samples an epoch has.
    pub fn left(&self) -> Option<Left> {
        self.left
    }
}

impl fmt::Display for Left {
    /// `0:07 left of the epoch, 1:02:03 of the run`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} left of the epoch, {} of the run", Clock(self.epoch), Clock(self.run))
    }
}

/// A time as a clock shows it: `0:07`, `12:34`, `1:02:03`.
struct Clock(Duration);

impl fmt::Display for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Rounded up: what is not over has some time left.
        let seconds = self.0.as_secs() + u64::from(self.0.subsec_nanos() > 0);
        let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        match hours {
            0 => write!(f, "{minutes}:{seconds:02}"),
            hours => write!(f, "{hours}:{minutes:02}:{seconds:02}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(epoch: u64, seen: u64, seconds: f64) -> StepEvent {
        StepEvent {
            epoch,
            step: 1,
            samples: 10,
            seen,
            loss: 1.0,
            mean_loss: 1.0,
            rate: 0.1,
            seconds,
            waiting: 0.0,
            loss_scale: None,
            gradient_norm: None,
        }
    }

    #[test]
    fn what_is_left_follows_from_what_samples_and_epochs_took() {
        let mut eta = Eta { samples: Some(100), epochs: 3, ..Eta::default() };
        assert_eq!(eta.left(), None);
        // A quarter of the first of three epochs took five seconds.
        eta.step(&step(0, 25, 5.0));
        let left = eta.left().unwrap();
        assert_eq!((left.epoch.as_secs(), left.run.as_secs()), (15, 55));
        assert_eq!(left.to_string(), "0:15 left of the epoch, 0:55 of the run");
        // What the epoch took beside its steps comes again in each.
        eta.beside = 10.0;
        eta.step(&step(1, 50, 10.0));
        let left = eta.left().unwrap();
        assert_eq!((left.epoch.as_secs(), left.run.as_secs()), (10, 10 + 10 + 20 + 10));
        eta.step(&step(2, 100, 20.0));
        assert_eq!(eta.left().unwrap().epoch, Duration::ZERO);
    }

    #[test]
    fn times_that_are_none_are_not_shown() {
        let mut eta = Eta { samples: Some(100), epochs: u64::MAX, ..Eta::default() };
        eta.step(&step(0, 0, 1.0));
        assert_eq!(eta.left(), None);
        eta.step(&step(0, 1, 1e300));
        assert_eq!(eta.left(), None);
        let mut unknown = Eta { samples: None, epochs: 2, ..Eta::default() };
        unknown.step(&step(0, 10, 1.0));
        assert_eq!(unknown.left(), None);
        assert_eq!(Clock(Duration::from_millis(3_723_100)).to_string(), "1:02:04");
    }
}
