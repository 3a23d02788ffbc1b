//! Counts work against an allowance, so that the same input ends at the same point on every machine.
//!
//! The clock is only the last resort: a packing that depended on it would differ from run to run. Work is
//! counted in steps of roughly a nanosecond; depending on the input they were seen to take half as long or
//! a fifth longer.

use crate::steps::count;
use std::time::{Duration, Instant};

/// The steps a present machine takes in a second.
const STEPS_PER_SECOND: f64 = 8e8;

/// No deadline is further off than a day.
const DAY: f64 = 86_400.0;

/// What may still be spent on one packing.
#[derive(Debug)]
pub(super) struct Effort {
    started: Instant,
    deadline: Duration,
    left: u64,
}

impl Effort {
    /// An allowance of so many seconds' work, and the seconds after which it ends in any case.
    pub fn new(work: f64, deadline: f64) -> Effort {
        // Nothing allowed, or no number, still gets the first packing.
        let bounded = |seconds: f64| if seconds.is_nan() { 0.0 } else { seconds.clamp(0.0, DAY) };
        Effort {
            started: Instant::now(),
            deadline: Duration::from_secs_f64(bounded(deadline)),
            left: (bounded(work) * STEPS_PER_SECOND) as u64,
        }
    }

    /// Takes `steps` off the allowance.
    pub fn spend(&mut self, steps: u64) {
        count(steps);
        self.left = self.left.saturating_sub(steps);
    }

    /// Whether nothing is left.
    pub fn is_spent(&self) -> bool {
        self.left == 0 || self.started.elapsed() >= self.deadline
    }

    /// The steps that are left.
    pub fn left(&self) -> u64 {
        self.left
    }

    /// The seconds since the start.
    pub fn seconds(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_run_out_and_so_does_the_clock() {
        let mut effort = Effort::new(1e-6, 100.0);
        assert!(!effort.is_spent());
        effort.spend(799);
        assert!(!effort.is_spent());
        effort.spend(2);
        assert!(effort.is_spent());
        assert!(Effort::new(1.0, 0.0).is_spent());
        assert!(Effort::new(f64::NAN, f64::INFINITY).is_spent());
    }
}
