//! Runs searches that do not depend on each other beside each other, with the outcome of one after the other.
//!
//! What a search finds depends on its input alone, and what several find is put together in the order in which they stand, so that
//! a plan does not show how many cores it was searched on.

use crate::steps::{count, steps_taken};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, Scope, ScopedJoinHandle};

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
    if jobs.len() < 2 || at_once() < 2 {
        return jobs.into_iter().map(|job| job()).collect();
    }
    thread::scope(|scope| {
        let mut jobs = jobs.into_iter();
        let first = jobs.next();
        let others = spawned(scope, jobs.collect());
        let first: Vec<T> = first.into_iter().map(|job| job()).collect();
        first.into_iter().chain(joined(others)).collect()
    })
}

/// A job for a thread of its own.
pub type Job<'a, T> = Box<dyn FnOnce() -> T + Send + 'a>;

/// A thread at a job, which gives the steps that it took too.
type Started<'scope, T> = ScopedJoinHandle<'scope, (T, u64)>;

/// Starts jobs on threads of their own.
fn spawned<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    jobs: Vec<impl FnOnce() -> T + Send + 'scope>,
) -> Vec<Started<'scope, T>> {
    let mut threads = Vec::with_capacity(jobs.len());
    for job in jobs {
        threads.push(scope.spawn(move || {
            let _busy = Busily::new();
            (job(), steps_taken())
        }));
    }
    threads
}

/// How many threads are at a job that was started here.
static BUSY: AtomicUsize = AtomicUsize::new(0);

/// Counts a thread as busy as long as it lives.
struct Busily;

impl Busily {
    fn new() -> Busily {
        BUSY.fetch_add(1, Ordering::Relaxed);
        Busily
    }
}

impl Drop for Busily {
    fn drop(&mut self) {
        BUSY.fetch_sub(1, Ordering::Relaxed);
    }
}

/// This core and those that have nothing to do at the moment, but no more than `most`. Whoever asks must find the same with one: that it has
/// others do what may turn out to be of no use costs nobody anything then.
pub(crate) fn spare(most: usize) -> usize {
    let idle = at_once().saturating_sub(1 + BUSY.load(Ordering::Relaxed));
    (1 + idle).min(most)
}

/// What threads have found. Their steps count as this thread's: the bound on planning is on all of it.
fn joined<T>(threads: Vec<Started<'_, T>>) -> impl Iterator<Item = T> {
    threads.into_iter().map(|thread| match thread.join() {
        Ok((result, steps)) => {
            count(steps);
            result
        }
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

/// What each of `jobs` gives, in their order. Inside of [`on_all_cores`] as many run beside each other as there are cores, and a core that is
/// done with one takes the next; elsewhere one runs after the other, so that no two take memory at once.
///
/// ```
/// use plimsoll_plan::{Job, in_turn, on_all_cores};
/// let jobs: Vec<Job<'_, u64>> = (1..=3u64).map(|n| Box::new(move || 10 * n) as Job<'_, u64>).collect();
/// assert_eq!(on_all_cores(|| in_turn(jobs)), [10, 20, 30]);
/// ```
pub fn in_turn<T: Send>(jobs: Vec<Job<'_, T>>) -> Vec<T> {
    let width = at_once().min(jobs.len());
    if width < 2 {
        return jobs.into_iter().map(|job| job()).collect();
    }
    let count_of = jobs.len();
    let left = Mutex::new(jobs.into_iter().enumerate());
    let take = || left.lock().unwrap_or_else(PoisonError::into_inner).next();
    let work = || {
        let mut found = Vec::new();
        while let Some((at, job)) = take() {
            found.push((at, job()));
        }
        found
    };
    let others = (1..width).map(|_| || on_all_cores(work)).collect();
    let found = thread::scope(|scope| {
        let others = spawned(scope, others);
        let own = work();
        joined(others).flatten().chain(own).collect::<Vec<(usize, T)>>()
    });
    let mut all: Vec<Option<T>> = (0..count_of).map(|_| None).collect();
    for (at, result) in found {
        all[at] = Some(result);
    }
    all.into_iter().flatten().collect()
}

/// How many jobs [`each`] runs beside each other, where there are enough of them.
pub(crate) fn at_once() -> usize {
    if ALLOWED.get() { cores() } else { 1 }
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
        let boxed = || (1..=5).map(|n| Box::new(job(n)) as Job<'_, u64>).collect::<Vec<_>>();
        assert_eq!(on_all_cores(|| in_turn(boxed())), [10, 20, 30, 40, 50]);
        assert_eq!(in_turn(boxed()), [10, 20, 30, 40, 50]);
        assert_eq!(steps_taken() - before, 6 + 3 + 15 + 15);
    }
}
