//! Turns the runs of a kernel into the time it takes, and the times of steps into a word on whether that was right.
//!
//! Whatever else a machine does only adds to a kernel's time, so the least of several runs counts. On a busy machine even
//! that is too much. Two things give it away: runs that differ much from each other, and a thread that was given the processor for
//! a part of the time only. Such a time is kept as noisy, and is taken again when the kernel is next planned.
//!
//! A program's steps are the last word: where they all take far longer than its kernels were timed at, or most of them far less,
//! the times are corrected. The plan at hand stays as it is; the next one is made with the corrected times.

/// One run of a kernel, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Sample {
    pub(crate) wall: f64,
    /// What the thread that called it had of the processor, where the system says so.
    pub(crate) processor: Option<f64>,
}

/// The time of a kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Measured {
    pub(crate) seconds: f64,
    /// Whether the machine was busy with something else.
    pub(crate) is_noisy: bool,
}

/// A kernel is run until it has run this often or this long, and up to so many times over while runs differ much.
const RUNS: usize = 7;
const SECONDS: f64 = 0.02;
const ROUNDS: usize = 3;
/// A kernel that takes long is not run in more rounds than this allows.
const ROUNDS_SECONDS: f64 = 0.05;
/// The usual run of a kernel on a quiet machine takes at most so much longer than its fastest: in parts of it, and in seconds, since
/// short ones are all beginning and end.
const SPREAD: f64 = 1.3;
const JITTER: f64 = 1e-5;
/// A thread that has less of the processor than this part of the time waits for others; in runs that are long enough to tell.
const PROCESSOR: f64 = 0.8;
const LONG: f64 = 1e-3;

/// Times a kernel that `run` runs once, for hardly more than `most` seconds; nothing if it fails.
pub(crate) fn measure(most: f64, mut run: impl FnMut() -> Option<Sample>) -> Option<Measured> {
    let mut samples = [Sample { wall: 0.0, processor: None }; RUNS * ROUNDS];
    let (mut n, mut spent) = (0, 0.0);
    for _ in 0..ROUNDS {
        let (from, end) = (n, most.min(spent + SECONDS));
        while n < from + RUNS && (n < from + 2 || spent <= end) {
            samples[n] = run()?;
            spent += samples[n].wall;
            n += 1;
        }
        if !is_noisy(&mut samples[..n]) || spent > most.min(ROUNDS_SECONDS) {
            break;
        }
    }
    let is_noisy = is_noisy(&mut samples[..n]);
    Some(Measured { seconds: samples[0].wall, is_noisy })
}

/// Whether the machine was busy while these ran; sorts them, the fastest first.
fn is_noisy(samples: &mut [Sample]) -> bool {
    samples.sort_by(|a, b| a.wall.total_cmp(&b.wall));
    let (least, usual) = (samples[0], samples[samples.len() / 2]);
    let spread = usual.wall > SPREAD * least.wall + JITTER;
    let waited = least.wall > LONG && least.processor.is_some_and(|had| had < PROCESSOR * least.wall);
    spread || waited
}

/// So many steps are looked at, after so many that warm up.
const STEPS: usize = 20;
const WARM_UP: usize = 3;
/// How far steps may be from the prediction: parts of it.
const SLOW: f64 = 1.5;
const FAST: f64 = 0.67;

/// The times of a program's first steps.
#[derive(Clone, Debug, Default)]
pub(crate) struct Watch {
    seconds: [f64; STEPS],
    seen: usize,
}

impl Watch {
    /// Takes the time of a step. When enough of them are there, once, the time that steps take when nothing disturbs them, and
    /// the usual one.
    pub(crate) fn add(&mut self, seconds: f64) -> Option<(f64, f64)> {
        if self.seen >= WARM_UP + STEPS {
            return None;
        }
        if let Some(at) = self.seen.checked_sub(WARM_UP) {
            self.seconds[at] = seconds;
        }
        self.seen += 1;
        if self.seen < WARM_UP + STEPS {
            return None;
        }
        self.seconds.sort_by(f64::total_cmp);
        Some((self.seconds[0], self.seconds[STEPS / 2]))
    }
}

/// By how much the times of a program's kernels are wrong: what to multiply them by; nothing where they are about right. A busy
/// machine makes some steps slow, so only if all are they say something; and one fast step alone says nothing either.
pub(crate) fn drift(predicted: f64, least: f64, usual: f64) -> Option<f64> {
    let is_far = least > SLOW * predicted || usual < FAST * predicted;
    (predicted > 0.0 && least > 0.0 && is_far).then_some(least / predicted)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No one waits.
    const MOST: f64 = f64::MAX;

    /// Runs that take these times in turn, over and over.
    fn runs(walls: &[f64], share: f64) -> impl FnMut() -> Option<Sample> + '_ {
        let mut turn = 0;
        move || {
            turn += 1;
            let wall = walls[(turn - 1) % walls.len()];
            Some(Sample { wall, processor: Some(share * wall) })
        }
    }

    #[test]
    fn the_least_of_quiet_runs_is_taken_at_once() {
        let measured = measure(MOST, runs(&[1.1e-3, 1.0e-3, 1.05e-3], 1.0)).unwrap();
        assert_eq!(measured, Measured { seconds: 1.0e-3, is_noisy: false });
        // Short kernels differ by microseconds, and long ones are run twice.
        assert!(!measure(MOST, runs(&[2e-6, 4e-6, 6e-6], 0.1)).unwrap().is_noisy);
        let mut n = 0;
        measure(MOST, || {
            n += 1;
            Some(Sample { wall: 0.2, processor: None })
        })
        .unwrap();
        assert_eq!(n, 2);
    }

    #[test]
    fn who_waits_gets_a_time_of_two_runs_at_least() {
        let mut n = 0;
        let mut timed = |most| {
            n = 0;
            let measured = measure(most, || {
                n += 1;
                Some(Sample { wall: if n % 2 == 0 { 2e-3 } else { 4e-3 }, processor: None })
            });
            (measured.unwrap().seconds, n)
        };
        assert_eq!(timed(1e-3), (2e-3, 2));
        assert_eq!(timed(8e-3), (2e-3, 3));
        assert!(timed(MOST).1 > RUNS);
    }

    #[test]
    fn runs_that_differ_much_are_repeated_and_the_time_is_noisy() {
        let mut n = 0;
        let busy = measure(MOST, || {
            n += 1;
            Some(Sample { wall: if n % 5 == 0 { 1e-3 } else { 5e-3 }, processor: None })
        });
        assert_eq!(busy, Some(Measured { seconds: 1e-3, is_noisy: true }));
        assert!(n > RUNS, "{n} runs");
        // A disturbance that ends is no reason for doubt.
        let mut n = 0;
        let quiet_at_last = measure(MOST, || {
            n += 1;
            Some(Sample { wall: if n <= 3 { 5e-3 } else { 1e-3 }, processor: None })
        });
        assert_eq!(quiet_at_last, Some(Measured { seconds: 1e-3, is_noisy: false }));
    }

    #[test]
    fn a_thread_that_waits_for_the_processor_is_noticed_though_its_runs_are_alike() {
        assert!(measure(MOST, runs(&[8e-3], 0.5)).unwrap().is_noisy);
        assert!(!measure(MOST, runs(&[8e-3], 0.95)).unwrap().is_noisy);
        assert_eq!(measure(MOST, || None), None);
    }

    #[test]
    fn steps_that_are_all_slow_or_mostly_fast_correct_times_and_others_do_not() {
        let mut watch = Watch::default();
        let found: Vec<(f64, f64)> = (0..100).filter_map(|n| watch.add(f64::from(n))).collect();
        assert_eq!(found, [(3.0, 13.0)], "once, without the first steps");
        assert_eq!(drift(0.085, 0.017, 0.018), Some(0.2), "timed on a busy machine");
        assert_eq!(drift(1.0, 2.0, 2.5), Some(2.0));
        assert_eq!(drift(1.0, 1.2, 9.0), None, "some steps were disturbed");
        assert_eq!(drift(1.0, 0.5, 0.9), None, "one was fast");
        assert_eq!(drift(0.0, 1.0, 1.0), None, "nothing was predicted");
    }
}
