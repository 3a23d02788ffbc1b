//! Learning rates over time: functions of the step, on the host.

use std::f64::consts::PI;
use std::fmt;
use std::sync::Arc;

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
    /// Steps that lie behind at step 0, where a training goes on that was begun elsewhere.
    pub done: u64,
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
    /// factor^(t / every): [`Shape::Step`] and [`Shape::Exponential`] for any length.
    Decay {
        /// Steps in which the rate is multiplied once.
        every: f64,
        /// What it is multiplied by.
        factor: f64,
        /// Whether it changes only after whole lengths.
        stairs: bool,
    },
    /// 1 / (1 + decay · t / every)
    Inverse {
        /// Steps in which the denominator grows by `decay`.
        every: f64,
        /// How much it grows.
        decay: f64,
        /// Whether it changes only after whole lengths.
        stairs: bool,
    },
    /// A factor for each piece of time.
    Pieces {
        /// The last step of each piece but the last.
        ends: Vec<f64>,
        /// The factors, one more than ends.
        factors: Vec<f64>,
    },
    /// From one factor to another along (1 - t / over)^power.
    Slope {
        /// Steps in which the last factor is reached.
        over: f64,
        /// The exponent.
        power: f64,
        /// The first factor.
        from: f64,
        /// The last factor.
        to: f64,
        /// Whether it starts again: over twice, then three times as many steps, from where those leave it.
        again: bool,
    },
    /// Evenly from one factor up to 1, then half a cosine down to another, where it stays.
    RampedCosine {
        /// Steps on the way up; may be none.
        rise: f64,
        /// Steps on the way down.
        fall: f64,
        /// The factor at step 0, where there is a way up.
        from: f64,
        /// The factor at the end.
        floor: f64,
    },
    /// Half a cosine down, again and again. After Loshchilov and Hutter (2016).
    Restarts {
        /// Steps of the first fall.
        first: f64,
        /// How many times longer each fall is than the one before.
        longer: f64,
        /// What the top of each fall is multiplied by.
        lower: f64,
        /// The factor at the end of each.
        floor: f64,
    },
    /// Whatever a closure says.
    Custom(Factor),
}

/// A closure from the step to the factor on the optimizer's rate. Two are equal where they are one and the same.
#[derive(Clone)]
pub struct Factor(Arc<dyn Fn(u64) -> f64 + Send + Sync>);

impl fmt::Debug for Factor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a closure")
    }
}

impl PartialEq for Factor {
    fn eq(&self, other: &Factor) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Schedule {
    fn of(shape: Shape) -> Schedule {
        Schedule { shape, warm_up: 0, done: 0 }
    }

    /// The optimizer's rate multiplied by what a closure makes of the step, from 0. It must say the same whenever it is asked, so that a run
    /// that is resumed goes on as it would have; a rate that is no number or below zero is an error of the step that meets it.
    ///
    /// ```
    /// use plimsoll_nn::Schedule;
    /// let halves = Schedule::from_fn(|step| 0.5f64.powi((step / 100) as i32));
    /// assert_eq!((halves.rate(1e-3, 99), halves.rate(1e-3, 100)), (1e-3, 5e-4));
    /// ```
    pub fn from_fn(factor: impl Fn(u64) -> f64 + Send + Sync + 'static) -> Schedule {
        Schedule::of(Shape::Custom(Factor(Arc::new(factor))))
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

    /// As a training goes on that has so many steps behind it.
    pub fn after(mut self, steps: u64) -> Schedule {
        self.done = steps;
        self
    }

    /// The rate at a step, from the optimizer's own.
    pub fn rate(&self, base: f64, step: u64) -> f64 {
        base * self.factor(step)
    }

    /// What the optimizer's rate is multiplied by at a step.
    pub fn factor(&self, step: u64) -> f64 {
        let step = step.saturating_add(self.done);
        if step < self.warm_up {
            return (step + 1) as f64 / self.warm_up as f64;
        }
        let t = (step - self.warm_up) as f64;
        let left = |total: u64| (1.0 - t / total.saturating_sub(self.warm_up).max(1) as f64).max(0.0);
        match &self.shape {
            Shape::Constant => 1.0,
            Shape::Step { every, factor } => factor.powf((t / (*every).max(1) as f64).floor()),
            Shape::Exponential { factor } => factor.powf(t),
            Shape::Cosine { total, floor } => between(*floor, 1.0, left(*total)),
            Shape::Polynomial { total, power, floor } => floor + (1.0 - floor) * left(*total).powf(*power),
            Shape::OneCycle { total, rise, start_divisor, end_divisor } => {
                let last = total.saturating_sub(self.warm_up).saturating_sub(1) as f64;
                let top = (rise * (last + 1.0) - 1.0).max(0.0);
                let (start, end) = (1.0 / start_divisor, 1.0 / start_divisor / end_divisor);
                if t <= top {
                    return between(start, 1.0, if top > 0.0 { t / top } else { 1.0 });
                }
                between(end, 1.0, 1.0 - ((t - top) / (last - top)).min(1.0))
            }
            Shape::Decay { every, factor, stairs } => factor.powf(lengths(t, *every, *stairs)),
            Shape::Inverse { every, decay, stairs } => 1.0 / (1.0 + decay * lengths(t, *every, *stairs)),
            Shape::Pieces { ends, factors } => {
                let piece = ends.iter().position(|end| t <= *end).unwrap_or(ends.len());
                factors.get(piece).or(factors.last()).copied().unwrap_or(1.0)
            }
            Shape::Slope { over, power, from, to, again } => {
                let over = if *again { over * (t / over).ceil().max(1.0) } else { *over };
                to + (from - to) * (1.0 - (t / over).min(1.0)).powf(*power)
            }
            Shape::RampedCosine { rise, from, .. } if t < *rise => from + (1.0 - from) * t / rise,
            Shape::RampedCosine { rise, fall, floor, .. } => {
                between(*floor, 1.0, 1.0 - ((t - rise) / fall).min(1.0))
            }
            Shape::Custom(factor) => factor.0(t as u64),
            Shape::Restarts { first, longer, lower, floor } => {
                let (fall, share) = nth_fall(t / first, *longer);
                floor + (1.0 - floor) * lower.powf(fall) * (1.0 + (PI * share).cos()) / 2.0
            }
        }
    }
}

/// How many lengths `every` there are in t, whole ones where it goes by stairs.
fn lengths(t: f64, every: f64, stairs: bool) -> f64 {
    if stairs { (t / every).floor() } else { t / every }
}

/// In which fall x is, where the first has the length 1 and each is so many times `longer` than the one before, and how much of
/// it is over. In f32, as others compute it: where a fall ends, rounding decides to which of two it belongs.
fn nth_fall(x: f64, longer: f64) -> (f64, f64) {
    if longer == 1.0 {
        return (x.floor(), x - x.floor());
    }
    let (x, longer) = (x as f32, longer as f32);
    let fall = ((1.0 - x * (1.0 - longer)).ln() / longer.ln()).floor();
    let before = (1.0 - longer.powf(fall)) / (1.0 - longer);
    (f64::from(fall), f64::from((x - before) / longer.powf(fall)))
}

/// From a to b along half a cosine, for x from 0 to 1.
fn between(a: f64, b: f64, x: f64) -> f64 {
    a + (b - a) * (1.0 - (PI * x).cos()) / 2.0
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
    fn a_training_that_goes_on_is_where_it_stopped() {
        let shapes = [
            Schedule::cosine(110).warm_up(10),
            Schedule { shape: Shape::Decay { every: 7.0, factor: 0.5, stairs: true }, warm_up: 0, done: 0 },
            Schedule {
                shape: Shape::Pieces { ends: vec![3.0], factors: vec![1.0, 0.1] },
                warm_up: 0,
                done: 0,
            },
        ];
        for whole in shapes {
            let later = whole.clone().after(20);
            for step in 0..100 {
                assert_eq!(later.factor(step), whole.factor(step + 20), "{whole:?} at {step}");
            }
        }
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
