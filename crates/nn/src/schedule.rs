//! Learning rates over time: functions of the step, on the host.

use std::f64::consts::PI;

/// How the learning rate changes. Times are counted as the caller counts them, in steps or in epochs, from 0.
///
/// A schedule is a factor on the optimizer's own rate, so that the same schedule goes with any.
///
/// ```
/// use plimsoll_nn::Schedule;
/// let cosine = Schedule::cosine(1000).warm_up(100);
/// assert_eq!(cosine.rate(1e-3, 99), 1e-3);
/// assert!(cosine.rate(1e-3, 550) < 5.1e-4 && cosine.rate(1e-3, 1000) < 1e-12);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    /// The shape after the warm-up.
    pub shape: Shape,
    /// Steps over which the factor grows evenly from 1/n to 1, before the shape begins.
    pub warm_up: u64,
}

/// The shape of a schedule.
#[derive(Clone, Debug, PartialEq)]
pub enum Shape {
    /// 1, always.
    Constant,
    /// Multiplied by `factor` after every `every` steps.
    Step {
        /// Steps between two changes.
        every: u64,
        /// What the rate is multiplied by.
        factor: f64,
    },
    /// factorᵗ
    Exponential {
        /// What the rate is multiplied by at every step.
        factor: f64,
    },
    /// Half a cosine from 1 to `floor`, where it stays.
    Cosine {
        /// The step at which the floor is reached, the warm-up counted.
        total: u64,
        /// The factor at the end.
        floor: f64,
    },
    /// (1 - t / total)^power from 1 to `floor`, where it stays.
    Polynomial {
        /// The step at which the floor is reached, the warm-up counted.
        total: u64,
        /// The exponent.
        power: f64,
        /// The factor at the end.
        floor: f64,
    },
    /// Up by half a cosine, and down by another to almost nothing. After Smith and Topin (2017).
    OneCycle {
        /// Steps of the whole cycle.
        total: u64,
        /// The share of steps on the way up.
        rise: f64,
        /// The factor at the start is 1 over this.
        start_divisor: f64,
        /// The factor at the end is that of the start over this.
        end_divisor: f64,
    },
}

impl Schedule {
    fn of(shape: Shape) -> Schedule {
        Schedule { shape, warm_up: 0 }
    }

    /// The optimizer's own rate, always.
    pub fn constant() -> Schedule {
        Schedule::of(Shape::Constant)
    }

    /// Multiplied by a factor after every so many steps.
    pub fn step(every: u64, factor: f64) -> Schedule {
        Schedule::of(Shape::Step { every, factor })
    }

    /// Multiplied by a factor at every step.
    pub fn exponential(factor: f64) -> Schedule {
        Schedule::of(Shape::Exponential { factor })
    }

    /// Half a cosine from the optimizer's rate to zero.
    pub fn cosine(total: u64) -> Schedule {
        Schedule::of(Shape::Cosine { total, floor: 0.0 })
    }

    /// (1 - t / total)^power, from the optimizer's rate to zero.
    pub fn polynomial(total: u64, power: f64) -> Schedule {
        Schedule::of(Shape::Polynomial { total, power, floor: 0.0 })
    }

    /// One cycle with PyTorch's settings; the optimizer's rate is the highest.
    pub fn one_cycle(total: u64) -> Schedule {
        Schedule::of(Shape::OneCycle { total, rise: 0.3, start_divisor: 25.0, end_divisor: 1e4 })
    }

    /// With a warm-up before.
    pub fn warm_up(mut self, steps: u64) -> Schedule {
        self.warm_up = steps;
        self
    }

    /// The rate at a step, from the optimizer's own.
    pub fn rate(&self, base: f64, step: u64) -> f64 {
        base * self.factor(step)
    }

    /// What the optimizer's rate is multiplied by at a step.
    pub fn factor(&self, step: u64) -> f64 {
        if step < self.warm_up {
            return (step + 1) as f64 / self.warm_up as f64;
        }
        let t = (step - self.warm_up) as f64;
        let left = |total: u64| (1.0 - t / total.saturating_sub(self.warm_up).max(1) as f64).max(0.0);
        match self.shape {
            Shape::Constant => 1.0,
            Shape::Step { every, factor } => factor.powf((t / every.max(1) as f64).floor()),
            Shape::Exponential { factor } => factor.powf(t),
            Shape::Cosine { total, floor } => between(floor, 1.0, left(total)),
            Shape::Polynomial { total, power, floor } => floor + (1.0 - floor) * left(total).powf(power),
            Shape::OneCycle { total, rise, start_divisor, end_divisor } => {
                let last = total.saturating_sub(self.warm_up).saturating_sub(1) as f64;
                let top = (rise * (last + 1.0) - 1.0).max(0.0);
                let (start, end) = (1.0 / start_divisor, 1.0 / start_divisor / end_divisor);
                if t <= top {
                    return between(start, 1.0, if top > 0.0 { t / top } else { 1.0 });
                }
                between(end, 1.0, 1.0 - ((t - top) / (last - top)).min(1.0))
            }
        }
    }
}

/// From a to b along half a cosine, for x from 0 to 1.
fn between(a: f64, b: f64, x: f64) -> f64 {
    a + (b - a) * (1.0 - (PI * x).cos()) / 2.0
}

/// A factor that falls when a number, a validation loss say, has stopped falling.
///
/// ```
/// use plimsoll_nn::Plateau;
/// let mut plateau = Plateau::new(0.1, 2);
/// for (loss, factor) in [(1.0, 1.0), (0.9, 1.0), (0.9, 1.0), (0.9, 1.0), (0.9, 0.1)] {
///     assert_eq!(plateau.observe(loss), factor);
/// }
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Plateau {
    /// What the factor is multiplied by.
    pub factor: f64,
    /// Observations without progress that are waited for.
    pub patience: u64,
    /// Progress is to fall below this share less than the best.
    pub threshold: f64,
    /// The least factor.
    pub floor: f64,
    /// The best number so far.
    pub best: f64,
    /// Observations since then.
    pub waited: u64,
    /// The factor as it stands.
    pub current: f64,
}

impl Plateau {
    /// Multiplies by a factor when a number has not fallen for more than `patience` observations; PyTorch's
    /// threshold.
    pub fn new(factor: f64, patience: u64) -> Plateau {
        Plateau {
            factor,
            patience,
            threshold: 1e-4,
            floor: 0.0,
            best: f64::INFINITY,
            waited: 0,
            current: 1.0,
        }
    }

    /// Takes note of a number; returns the factor on the optimizer's rate from now on.
    pub fn observe(&mut self, value: f64) -> f64 {
        if value < self.best * (1.0 - self.threshold) {
            (self.best, self.waited) = (value, 0);
        } else {
            self.waited += 1;
        }
        if self.waited > self.patience {
            self.current = (self.current * self.factor).max(self.floor);
            self.waited = 0;
        }
        self.current
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_warm_up_rises_evenly_and_ends_where_the_shape_begins() {
        let schedule = Schedule::cosine(110).warm_up(10);
        assert_eq!(schedule.factor(0), 0.1);
        assert_eq!((schedule.factor(9), schedule.factor(10)), (1.0, 1.0));
        assert!((schedule.factor(60) - 0.5).abs() < 1e-12);
        assert!(schedule.factor(500).abs() < 1e-12);
    }

    #[test]
    fn no_schedule_leaves_zero_to_one_or_is_not_a_number_at_odd_sizes() {
        for total in [0, 1, 2, 3, 7] {
            for schedule in [
                Schedule::step(total, 0.5),
                Schedule::cosine(total),
                Schedule::polynomial(total, 2.0),
                Schedule::one_cycle(total),
                Schedule::cosine(total).warm_up(5),
            ] {
                for step in 0..12 {
                    let factor = schedule.factor(step);
                    assert!((0.0..=1.0).contains(&factor), "{schedule:?} at {step}: {factor}");
                }
            }
        }
    }
}
