//! What a thread spent its time on, by name: from calls into figures for whoever waited for them.
//!
//! What is done inside of something else counts once, with what is inside. A thread has figures of its own; one that waits for others
//! counts the wait. Kernels and steps are timed elsewhere: this is for what happens a few hundred times in a process.

use std::cell::{Cell, RefCell};
use std::time::{Duration, Instant};

/// What was spent on one thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lap {
    /// On what.
    pub what: &'static str,
    /// For how long, without what was done inside of it that has a name of its own.
    pub time: Duration,
    /// How often it was begun.
    pub count: u64,
}

thread_local! {
    static LAPS: RefCell<Vec<Lap>> = const { RefCell::new(Vec::new()) };
    /// What was spent inside of what is being done now.
    static INSIDE: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Does something, and counts its time under a name.
///
/// ```
/// use plimsoll_device::stopwatch::{during, laps};
///
/// let seven = during("thought about it", || during("counted", || 3) + 4);
/// assert_eq!(seven, 7);
/// assert_eq!(laps().iter().map(|lap| lap.what).collect::<Vec<_>>(), ["counted", "thought about it"]);
/// ```
pub fn during<T>(what: &'static str, body: impl FnOnce() -> T) -> T {
    // Closed by a drop, so that a panic that somebody catches leaves the figures right.
    struct Open {
        what: &'static str,
        start: Instant,
        around: Duration,
    }
    impl Drop for Open {
        fn drop(&mut self) {
            let all = self.start.elapsed();
            let time = all.saturating_sub(INSIDE.replace(self.around + all));
            LAPS.with_borrow_mut(|laps| match laps.iter_mut().find(|lap| lap.what == self.what) {
                Some(lap) => (lap.time, lap.count) = (lap.time + time, lap.count + 1),
                None => laps.push(Lap { what: self.what, time, count: 1 }),
            });
        }
    }
    let _open = Open { what, around: INSIDE.replace(Duration::ZERO), start: Instant::now() };
    body()
}

/// What this thread has spent its time on so far, in the order in which things were first done with.
pub fn laps() -> Vec<Lap> {
    LAPS.with_borrow(Clone::clone)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread::{self, sleep};

    const SHORT: Duration = Duration::from_millis(20);

    fn of(what: &str) -> (Duration, u64) {
        let lap = laps().into_iter().find(|lap| lap.what == what).unwrap();
        (lap.time, lap.count)
    }

    #[test]
    fn time_counts_once_with_what_is_innermost() {
        let start = Instant::now();
        during("outer", || {
            sleep(SHORT);
            during("inner", || during("innermost", || sleep(3 * SHORT)));
            during("inner", || sleep(SHORT));
        });
        let all = start.elapsed();
        let (outer, inner, innermost) = (of("outer"), of("inner"), of("innermost"));
        assert_eq!((outer.1, inner.1, innermost.1), (1, 2, 1));
        assert!(innermost.0 >= 3 * SHORT && inner.0 >= SHORT && outer.0 >= SHORT);
        assert!(outer.0 + inner.0 + innermost.0 <= all, "nothing counts twice");
    }

    #[test]
    fn other_threads_and_panics_leave_the_figures_right() {
        let of_another = thread::spawn(|| {
            during("elsewhere", || ());
            laps().len()
        });
        assert_eq!(of_another.join().unwrap(), 1);
        assert!(laps().is_empty());
        let caught =
            std::panic::catch_unwind(|| during("broken", || during("inside", || panic!("as planned"))));
        assert!(caught.is_err());
        during("after", || sleep(SHORT));
        assert!(of("after").0 >= SHORT && of("broken").1 == 1);
    }
}
