//! Turns what threads do into figures for each stage: elements, bytes, time at work, time waiting.
//!
//! Threads add up by themselves and hand their sums over once a chunk of samples, so that counting costs
//! nothing that can be measured.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// The running sums of one stage.
#[derive(Default)]
pub(crate) struct Counter {
    elements: AtomicU64,
    bytes: AtomicU64,
    busy: AtomicU64,
    waiting: AtomicU64,
}

/// What one thread adds to a stage.
#[derive(Clone, Copy, Default)]
pub(crate) struct Sum {
    pub elements: u64,
    pub bytes: u64,
    pub busy: Duration,
    pub waiting: Duration,
}

impl Counter {
    pub fn add(&self, sum: Sum) {
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.elements.fetch_add(sum.elements, Relaxed);
        self.bytes.fetch_add(sum.bytes, Relaxed);
        self.busy.fetch_add(nanos(sum.busy), Relaxed);
        self.waiting.fetch_add(nanos(sum.waiting), Relaxed);
    }

    pub fn read(&self, name: &str) -> StageCount {
        StageCount {
            name: name.to_owned(),
            elements: self.elements.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            busy: Duration::from_nanos(self.busy.load(Relaxed)),
            waiting: Duration::from_nanos(self.waiting.load(Relaxed)),
        }
    }
}

/// What one stage of a pipeline has done so far.
#[derive(Clone, Debug)]
pub struct StageCount {
    /// The stage: `source`, `map`, `filter`, `batch`, with a number where there are several of a kind.
    pub name: String,
    /// Samples that left it; for `batch`, samples that were delivered.
    pub elements: u64,
    /// Bytes of those.
    pub bytes: u64,
    /// Time at work, added over all threads.
    pub busy: Duration,
    /// For `source`, the time that threads waited for room in a batch; for `batch`, the time that the caller waited
    /// for a batch.
    pub waiting: Duration,
}
