//! Turns one loop over independent tasks into work for all threads of the pool.
//!
//! The threads are resident: a loop costs one wake-up (or none, when the workers still look for work), no thread
//! creation and no allocation. Tasks are claimed one by one from a shared counter, so a thread that loses its core
//! to another program holds up one task only. The calling thread works too, and never waits for a worker that has
//! not started yet: when all cores are busy elsewhere it simply does the whole loop itself. Waiting is a spin of a
//! few microseconds, then sleep, on both sides; an idle pool takes no processor time.
//!
//! Which thread runs which task is left open. Kernels keep their results independent of it by splitting the work
//! by shape alone, never by the number of threads.

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a waiting thread looks for work before it sleeps. Waking a sleeper costs about as much, so a longer
/// spin would only take time from other programs.
const SPIN: Duration = Duration::from_micros(8);

/// The loop body as the workers see it: slot of the running thread, index of the task.
type Body = dyn Fn(usize, usize) + Sync;

/// A fixed set of threads that run the tasks of one loop at a time.
///
/// ```
/// use plimsoll_cpu::pool::Pool;
/// use std::sync::atomic::{AtomicUsize, Ordering};
///
/// let pool = Pool::new(2);
/// let sum = AtomicUsize::new(0);
/// pool.run(100, |task| {
///     sum.fetch_add(task, Ordering::Relaxed);
/// });
/// assert_eq!(sum.into_inner(), 4950);
/// ```
#[derive(Debug)]
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

struct Shared {
    /// Taken by the caller whose loop the workers serve.
    busy: AtomicBool,
    /// Counts published loops; workers compare it with the last one they saw.
    epoch: AtomicU64,
    /// Whether a worker may still join the published loop.
    open: AtomicBool,
    /// Workers that are inside the loop or about to find that it is closed.
    entered: AtomicUsize,
    next: AtomicUsize,
    job: UnsafeCell<Job>,
    sleepers: AtomicUsize,
    quit: AtomicBool,
    sleep: Mutex<()>,
    wake: Condvar,
    caller_waits: AtomicBool,
    done_lock: Mutex<()>,
    done: Condvar,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

#[derive(Clone, Copy)]
struct Job {
    body: *const Body,
    n_tasks: usize,
}

// SAFETY: `job` is written only by the owner of `busy` while the loop is closed and no worker is inside, and read
// only by workers that entered while it was open; everything else is a synchronisation type.
unsafe impl Sync for Shared {}
// SAFETY: the pointer inside `job` is used only as described above.
unsafe impl Send for Shared {}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("busy", &self.busy).field("epoch", &self.epoch).finish_non_exhaustive()
    }
}

impl Pool {
    /// A pool of `threads` threads: the caller and `threads - 1` workers. Zero counts as one. Where the system
    /// refuses a thread, the pool goes on with the ones it has.
    pub fn new(threads: usize) -> Pool {
        let mut pool = Pool::alone();
        while pool.threads() < threads && pool.spawn().is_ok() {}
        pool
    }

    /// As [`Pool::new`], or an error where the system refuses a thread.
    ///
    /// # Errors
    /// What the system says.
    pub fn try_new(threads: usize) -> std::io::Result<Pool> {
        let mut pool = Pool::alone();
        while pool.threads() < threads {
            pool.spawn()?;
        }
        Ok(pool)
    }

    fn alone() -> Pool {
        let shared = Arc::new(Shared {
            busy: AtomicBool::new(false),
            epoch: AtomicU64::new(0),
            open: AtomicBool::new(false),
            entered: AtomicUsize::new(0),
            next: AtomicUsize::new(0),
            job: UnsafeCell::new(Job { body: &|_, _| {}, n_tasks: 0 }),
            sleepers: AtomicUsize::new(0),
            quit: AtomicBool::new(false),
            sleep: Mutex::new(()),
            wake: Condvar::new(),
            caller_waits: AtomicBool::new(false),
            done_lock: Mutex::new(()),
            done: Condvar::new(),
            panic: Mutex::new(None),
        });
        Pool { shared, workers: Vec::new() }
    }

    /// One worker more.
    fn spawn(&mut self) -> std::io::Result<()> {
        let (shared, slot) = (Arc::clone(&self.shared), self.threads());
        let builder = std::thread::Builder::new().name(format!("plimsoll-{slot}")).stack_size(1 << 20);
        self.workers.push(builder.spawn(move || shared.work(slot))?);
        Ok(())
    }

    /// Threads that take part in a loop, the caller included. Slots run from 0 to `threads() - 1`.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `body(task)` for every task below `n_tasks` and returns when all have ended.
    ///
    /// A call from inside a task, or while another thread's loop has the workers, runs its tasks in order on the
    /// calling thread. A panic in a task drops the tasks not yet begun and goes on in the caller.
    pub fn run(&self, n_tasks: usize, body: impl Fn(usize) + Sync) {
        self.run_with_slot(n_tasks, |_, task| body(task));
    }

    /// Like [`Pool::run`] with `body(slot, task)`: no two threads are in the same slot at the same time, so a slot
    /// can own a part of a scratch buffer.
    pub fn run_with_slot(&self, n_tasks: usize, body: impl Fn(usize, usize) + Sync) {
        let alone = self.workers.is_empty() || n_tasks < 2;
        if alone || self.shared.busy.swap(true, SeqCst) {
            (0..n_tasks).for_each(|task| body(0, task));
            return;
        }
        self.shared.lead(n_tasks, &body);
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.quit.store(true, SeqCst);
        self.shared.epoch.fetch_add(1, SeqCst);
        drop(lock(&self.shared.sleep));
        self.shared.wake.notify_all();
        for worker in self.workers.drain(..) {
            // A worker catches the panics of its tasks, so it ends by itself.
            let _ = worker.join();
        }
    }
}

impl Shared {
    /// The caller's side of one loop; `busy` is held.
    fn lead(&self, n_tasks: usize, body: &(dyn Fn(usize, usize) + Sync + '_)) {
        // SAFETY: only the lifetime changes; the workers drop the pointer before this function returns.
        let body =
            unsafe { std::mem::transmute::<*const (dyn Fn(usize, usize) + Sync + '_), *const Body>(body) };
        self.next.store(0, SeqCst);
        // SAFETY: the loop is closed and the last one waited for all workers inside, so nobody reads `job`.
        unsafe { *self.job.get() = Job { body, n_tasks } };
        self.open.store(true, SeqCst);
        self.epoch.fetch_add(1, SeqCst);
        if self.sleepers.load(SeqCst) > 0 {
            drop(lock(&self.sleep));
            if n_tasks == 2 { self.wake.notify_one() } else { self.wake.notify_all() }
        }
        self.claim(0, Job { body, n_tasks });
        self.open.store(false, SeqCst);
        self.wait_for_the_entered();
        let panic = lock(&self.panic).take();
        self.busy.store(false, SeqCst);
        if let Some(payload) = panic {
            resume_unwind(payload);
        }
    }

    fn wait_for_the_entered(&self) {
        if spin_until(|| self.entered.load(SeqCst) == 0) {
            return;
        }
        self.caller_waits.store(true, SeqCst);
        let mut guard = lock(&self.done_lock);
        while self.entered.load(SeqCst) != 0 {
            guard = self.done.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        drop(guard);
        self.caller_waits.store(false, SeqCst);
    }

    /// A worker's life.
    fn work(&self, slot: usize) {
        let mut seen = 0;
        loop {
            seen = self.wait_for_a_loop(seen);
            if self.quit.load(SeqCst) {
                return;
            }
            self.entered.fetch_add(1, SeqCst);
            if self.open.load(SeqCst) {
                // SAFETY: the loop was open after this thread entered, so the caller keeps it until it leaves.
                let job = unsafe { *self.job.get() };
                self.claim(slot, job);
            }
            if self.entered.fetch_sub(1, SeqCst) == 1 && self.caller_waits.load(SeqCst) {
                drop(lock(&self.done_lock));
                self.done.notify_all();
            }
        }
    }

    fn wait_for_a_loop(&self, seen: u64) -> u64 {
        if spin_until(|| self.epoch.load(SeqCst) != seen) {
            return self.epoch.load(SeqCst);
        }
        let mut guard = lock(&self.sleep);
        self.sleepers.fetch_add(1, SeqCst);
        while self.epoch.load(SeqCst) == seen {
            guard = self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.sleepers.fetch_sub(1, SeqCst);
        self.epoch.load(SeqCst)
    }

    /// Runs tasks until none is left.
    fn claim(&self, slot: usize, job: Job) {
        // SAFETY: the caller of the loop keeps the body alive until every thread has left this function.
        let body = unsafe { &*job.body };
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            loop {
                let task = self.next.fetch_add(1, SeqCst);
                if task >= job.n_tasks {
                    return;
                }
                body(slot, task);
            }
        }));
        if let Err(payload) = outcome {
            self.next.store(job.n_tasks, SeqCst);
            lock(&self.panic).get_or_insert(payload);
        }
    }
}

/// Whether the condition came true within [`SPIN`].
fn spin_until(condition: impl Fn() -> bool) -> bool {
    if condition() {
        return true;
    }
    let start = Instant::now();
    while start.elapsed() < SPIN {
        for _ in 0..16 {
            if condition() {
                return true;
            }
            std::hint::spin_loop();
        }
    }
    false
}

/// The locks guard no data that a panic could leave half-written.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(pool: &Pool, n_tasks: usize) -> Vec<usize> {
        let counts: Vec<AtomicUsize> = (0..n_tasks).map(|_| AtomicUsize::new(0)).collect();
        pool.run(n_tasks, |task| {
            counts[task].fetch_add(1, SeqCst);
        });
        counts.into_iter().map(AtomicUsize::into_inner).collect()
    }

    #[test]
    fn every_task_runs_exactly_once() {
        for threads in [0, 1, 2, 3, 8] {
            let pool = Pool::new(threads);
            for n_tasks in [0, 1, 2, 3, 7, 100] {
                assert_eq!(counts(&pool, n_tasks), vec![1; n_tasks], "{threads} threads");
            }
        }
    }

    #[test]
    fn thousands_of_short_loops_in_a_row_are_all_complete() {
        let pool = Pool::new(3);
        for round in 0..5000 {
            assert_eq!(counts(&pool, 2 + round % 5), vec![1; 2 + round % 5]);
        }
    }

    #[test]
    fn workers_that_slept_wake_up_again() {
        let pool = Pool::new(2);
        for _ in 0..20 {
            std::thread::sleep(Duration::from_millis(1));
            assert_eq!(counts(&pool, 4), vec![1; 4]);
        }
    }

    #[test]
    fn a_call_from_inside_a_task_runs_inline() {
        let pool = Pool::new(3);
        let total = AtomicUsize::new(0);
        pool.run(8, |_| pool.run(8, |_| _ = total.fetch_add(1, SeqCst)));
        assert_eq!(total.into_inner(), 64);
    }

    #[test]
    fn several_threads_may_share_one_pool() {
        let pool = Pool::new(2);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        assert_eq!(counts(&pool, 5), vec![1; 5]);
                    }
                });
            }
        });
    }

    #[test]
    fn slots_are_never_shared() {
        let pool = Pool::new(4);
        let inside: Vec<AtomicUsize> = (0..4).map(|_| AtomicUsize::new(0)).collect();
        pool.run_with_slot(200, |slot, _| {
            assert_eq!(inside[slot].fetch_add(1, SeqCst), 0);
            std::thread::yield_now();
            inside[slot].fetch_sub(1, SeqCst);
        });
    }

    #[test]
    fn a_panic_in_a_task_reaches_the_caller_and_leaves_the_pool_usable() {
        let pool = Pool::new(3);
        for _ in 0..50 {
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                pool.run(20, |task| {
                    if task == 7 {
                        resume_unwind(Box::new("seven"));
                    }
                });
            }));
            assert_eq!(outcome.unwrap_err().downcast_ref::<&str>(), Some(&"seven"));
            assert_eq!(counts(&pool, 10), vec![1; 10]);
        }
    }
}
