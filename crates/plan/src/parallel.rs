//! Runs searches that do not depend on each other beside each other, with the outcome of one after the other.
//!
//! What a search finds depends on its input alone, and what several find is put together in the order in which they stand, so that
//! a plan does not show how many cores it was searched on.

use crate::steps::{count, steps_taken};
use std::cell::Cell;
use std::thread;

thread_local! {
    static ALLOWED: Cell<bool> = const { Cell::new(false) };
}

/// Lets all planning inside of `work` use several threads, as long as this one is at it. Searches beside each other take as many times
/// the memory, so whoever has to keep to a limit meanwhile leaves it; plans are the same either way.
///
/// ```
/// use plimsoll_plan::{Op, Problem, Request, Tensor, on_all_cores, plan};
/// let mut step = Problem::new();
/// let a = step.tensor(Tensor::output("a", 1024));
/// step.op(Op::new("make a", &[], &[a], 10));
/// let request = Request::within(1024);
/// assert_eq!(on_all_cores(|| plan(&step, &request)).unwrap(), plan(&step, &request).unwrap());
/// ```
pub fn on_all_cores<T>(work: impl FnOnce() -> T) -> T {
    struct Before(bool);
    impl Drop for Before {
        fn drop(&mut self) {
            ALLOWED.set(self.0);
        }
    }
    let _before = Before(ALLOWED.replace(true));
    work()
}

/// Whether this thread is inside of [`on_all_cores`].
pub fn is_on_all_cores() -> bool {
    ALLOWED.get()
}

/// What each of `jobs` gives, in their order; where that is allowed and there are cores, all but the first run on threads of their own.
pub(crate) fn each<T: Send>(jobs: Vec<impl FnOnce() -> T + Send>) -> Vec<T> {
    if jobs.len() < 2 || !ALLOWED.get() || cores() < 2 {
        return jobs.into_iter().map(|job| job()).collect();
    }
    thread::scope(|scope| {
        let mut jobs = jobs.into_iter();
        let first = jobs.next();
        // Their steps count as this thread's: the bound on planning is on all of it.
        let others: Vec<_> = jobs.map(|job| scope.spawn(move || (job(), steps_taken()))).collect();
        let mut found: Vec<T> = first.into_iter().map(|job| job()).collect();
        for other in others {
            match other.join() {
                Ok((result, steps)) => {
                    count(steps);
                    found.push(result);
                }
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        found
    })
}

fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_order_and_steps_add_up() {
        let before = steps_taken();
        let job = |n: u64| {
            move || {
                count(n);
                10 * n
            }
        };
        assert_eq!(on_all_cores(|| each(vec![job(1), job(2), job(3)])), [10, 20, 30]);
        assert_eq!(steps_taken() - before, 6);
        assert_eq!(each(vec![job(1), job(2)]), [10, 20]);
    }
}
