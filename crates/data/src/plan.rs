//! Turns a recipe and a byte budget into how many threads and batches there may be.
//!
//! Everything that a pipeline keeps is counted: what the source holds, the window of a shuffle, each thread's stack and
//! scratch, each batch. A pipeline takes a thread or a batch more only while the sum stays inside the budget.

use plimsoll_device::{Bytes, process};

use crate::error::{Error, Result};

/// The stack of a thread. Decoders of images are the deepest callers; they keep their tables on the heap.
pub(crate) const STACK: usize = 512 << 10;
/// What the pipeline itself takes: queues, counters, names.
pub(crate) const ENGINE: u64 = 64 << 10;
/// What a pipeline may take unless told otherwise.
const DEFAULT: Bytes = Bytes::mib(256);
/// More batches than this have never shortened the waiting; they only fill memory.
const BUFFERS_MOST: usize = 32;

/// How many batches are made ahead, or how many threads make them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// As many as waiting asks for and the budget allows, found while running.
    Auto,
    /// So many, or as many of them as the budget allows.
    Fixed(usize),
}

/// As many as waiting asks for and the budget allows: `.prefetch(AUTO)`.
pub const AUTO: Amount = Amount::Auto;

impl From<usize> for Amount {
    fn from(n: usize) -> Amount {
        Amount::Fixed(n)
    }
}

/// Bytes by owner.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Costs {
    /// Queues, counters and names.
    pub engine: u64,
    pub source: u64,
    pub window: u64,
    /// One thread.
    pub worker: u64,
    /// One batch.
    pub batch: u64,
    /// Batches without which it cannot go on: two where one is kept back until the next is full.
    pub least_batches: usize,
}

/// What a pipeline may grow to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    costs: Costs,
    budget: u64,
    pub workers: Amount,
    pub buffers: Amount,
    workers_most: usize,
    buffers_most: usize,
}

impl Limits {
    pub fn new(costs: Costs, budget: Option<Bytes>, workers: Amount, prefetch: Amount) -> Result<Limits> {
        let budget = Limits::budget(budget);
        let processors = process::allowed_cpus();
        let workers_most = match workers {
            // Twice the processors, because threads that wait for a disk need none.
            Amount::Auto => (2 * processors).clamp(2, 16),
            Amount::Fixed(n) => n.clamp(1, 256),
        };
        let buffers_most = match prefetch {
            Amount::Auto => BUFFERS_MOST,
            // The caller works on one more.
            Amount::Fixed(n) => n.saturating_add(1).clamp(costs.least_batches, 1 << 16),
        };
        let buffers = match prefetch {
            Amount::Auto => Amount::Auto,
            Amount::Fixed(_) => Amount::Fixed(buffers_most),
        };
        let mut limits = Limits { costs, budget: budget.0, workers, buffers, workers_most, buffers_most };
        if !limits.fits(1, costs.least_batches) {
            return Err(Error::Budget {
                budget,
                least: limits.bytes(1, costs.least_batches),
                batch: Bytes(costs.batch),
                window: Bytes(costs.window),
                worker: Bytes(costs.worker),
                source_held: Bytes(costs.source),
            });
        }
        // Two batches overlap work and waiting, which is worth more than threads.
        let fixed = limits.bytes(1, 0).0;
        limits.buffers_most =
            limits.buffers_most.min(((limits.budget - fixed) / costs.batch.max(1)).max(1) as usize);
        let fixed = limits.bytes(0, limits.buffers_most.min(2)).0;
        limits.workers_most = limits
            .workers_most
            .min((limits.budget.saturating_sub(fixed) / costs.worker.max(1)).max(1) as usize);
        Ok(limits)
    }

    /// What a pipeline may take: without a word from the user at most an eighth of what this process can have, and never
    /// more than it can have.
    pub fn budget(asked: Option<Bytes>) -> Bytes {
        let most = process::memory_limit().unwrap_or(Bytes::MAX);
        asked.unwrap_or(DEFAULT.min(Bytes(most.0 / 8))).min(most)
    }

    /// What so many threads and batches take with everything else.
    pub fn bytes(&self, workers: usize, buffers: usize) -> Bytes {
        let Costs { engine, source, window, worker, batch, .. } = self.costs;
        let each = |bytes: u64, n: usize| Bytes(bytes.saturating_mul(n as u64));
        Bytes(engine) + Bytes(source) + Bytes(window) + each(worker, workers) + each(batch, buffers)
    }

    /// Whether so many threads and batches are allowed.
    pub fn fits(&self, workers: usize, buffers: usize) -> bool {
        workers <= self.workers_most
            && buffers <= self.buffers_most
            && self.bytes(workers, buffers).0 <= self.budget
    }

    /// Batches without which it cannot go on.
    pub fn least_batches(&self) -> usize {
        self.costs.least_batches
    }

    /// What the pipeline can ever take.
    pub fn declared(&self) -> Bytes {
        Bytes(self.budget).min(self.bytes(self.workers_most, self.buffers_most))
    }

    /// What to begin with.
    pub fn start(&self) -> (usize, usize) {
        let mut start = (1, self.least_batches());
        let buffers = match self.buffers {
            Amount::Auto => 3,
            Amount::Fixed(n) => n,
        };
        let workers = match self.workers {
            Amount::Auto => 1,
            Amount::Fixed(n) => n,
        };
        while start.1 < buffers && self.fits(start.0, start.1 + 1) {
            start.1 += 1;
        }
        // Fixed numbers that do not fit together share what there is.
        while start.0 < workers {
            if self.fits(start.0 + 1, start.1) {
                start.0 += 1;
            } else if start.1 > self.least_batches().max(2) && self.buffers == Amount::Auto {
                start.1 -= 1;
            } else {
                break;
            }
        }
        start
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COSTS: Costs = Costs {
        engine: ENGINE,
        source: 1000,
        window: 2000,
        worker: 600 << 10,
        batch: 1 << 20,
        least_batches: 1,
    };

    #[test]
    fn one_byte_less_than_the_least_is_refused_with_the_least() {
        let least = Bytes(ENGINE + 3000 + (600 << 10) + (1 << 20));
        let limits = |budget| Limits::new(COSTS, Some(budget), AUTO, AUTO);
        let enough = limits(least).unwrap();
        assert_eq!((enough.start(), enough.declared()), ((1, 1), least));
        let error = limits(Bytes(least.0 - 1)).unwrap_err();
        let Error::Budget { least: said, .. } = &error else { panic!("{error}") };
        assert_eq!(*said, least);
        assert!(error.to_string().contains("the least is 1.66 MiB"), "{error}");
    }

    #[test]
    fn nothing_that_fits_is_over_the_budget() {
        for budget in (2..40).map(Bytes::mib) {
            for (workers, prefetch) in
                [(AUTO, AUTO), (8.into(), AUTO), (AUTO, 5.into()), (8.into(), 20.into())]
            {
                let limits = Limits::new(COSTS, Some(budget), workers, prefetch).unwrap();
                let (threads, batches) = limits.start();
                assert!(limits.bytes(threads, batches) <= budget && limits.declared() <= budget);
                assert!(threads >= 1 && batches >= 1);
            }
        }
    }
}
