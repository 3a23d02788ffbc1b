//! Fails one allocation on order, so that what happens then can be rehearsed.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{Allocator, Block, Damage, HostMemory, ReleaseError, Stats};
use crate::{Bytes, HOLDERS_IN_AN_ERROR, Holder, OutOfMemory, Owner};

/// Another allocator of which the n-th allocation fails, once, with a refusal that says it is a rehearsal.
///
/// ```
/// use plimsoll_device::{Allocator, BestFit, Bytes, Failing, Owner};
///
/// let memory = Failing::new(BestFit::new(Bytes::kib(64))?, 2);
/// let ask = || memory.allocate(Bytes::kib(1), 64, Owner::here("fill"));
/// let (first, second, third) = (ask(), ask(), ask());
/// assert!(first.is_ok() && second.is_err() && third.is_ok());
/// # for block in [first, third] { memory.release(block?)?; }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Failing<A> {
    inner: A,
    fails: u64,
    asked: AtomicU64,
}

impl<A: Allocator> Failing<A> {
    /// Lets the `fails`-th allocation fail, from 1; with 0 none does.
    pub fn new(inner: A, fails: u64) -> Failing<A> {
        Failing { inner, fails, asked: AtomicU64::new(0) }
    }

    /// How many allocations were asked for so far.
    pub fn asked(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }
}

impl<A: Allocator> Allocator for Failing<A> {
    fn allocate(&self, bytes: Bytes, align: usize, owner: Owner) -> Result<Block, OutOfMemory> {
        let asked = self.asked.fetch_add(1, Ordering::Relaxed) + 1;
        if asked == self.fails {
            let (stats, holders) = (self.inner.stats(), self.inner.holders(HOLDERS_IN_AN_ERROR));
            return Err(OutOfMemory::new(bytes, owner, &stats, holders).rehearsed());
        }
        self.inner.allocate(bytes, align, owner)
    }

    fn release(&self, block: Block) -> Result<(), ReleaseError> {
        self.inner.release(block)
    }

    fn stats(&self) -> Stats {
        self.inner.stats()
    }

    fn reset_peak(&self) {
        self.inner.reset_peak();
    }

    fn holders(&self, n: usize) -> Vec<Holder> {
        self.inner.holders(n)
    }

    fn release_unused(&self) {
        self.inner.release_unused();
    }

    fn hold_to(&self, who: u64, most: Option<Bytes>) {
        self.inner.hold_to(who, most);
    }

    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn page(&self) -> Bytes {
        self.inner.page()
    }

    fn check(&self) -> Vec<Damage> {
        self.inner.check()
    }
}

// SAFETY: blocks are the inner allocator's own.
unsafe impl<A: HostMemory> HostMemory for Failing<A> {}
