//! Turns requests for memory into blocks, within a hard limit, for tensors whose lifetimes nobody knows.
//!
//! A traced program needs none of this: its offsets are planned. Eager ops allocate as they run and free by
//! reference count, and what they need is a limit that holds, figures that are honest, and a name for every
//! byte.
//!
//! | implementation | memory from | for |
//! | --- | --- | --- |
//! | [`BestFit`] | one region, reserved once, split and coalesced | eager mode |
//! | [`System`] | the program's own allocator, block by block | comparison, tools that watch `malloc` |
//! | [`Pages`] | pages that are mapped wherever they are wanted | requests that must not fail for want of contiguity |
//! | [`Pool`] | the program's own allocator; freed blocks are kept by size | many blocks of the same sizes |
//! | [`Debug`](struct@Debug) | another allocator, with guard bytes and poison | finding the kernel that writes past its end |
//!
//! What is not here: access to the bytes. A [`Block`] may live on a device that the host cannot read, so it
//! hands out an address and leaves the unsafe part to the kernel that knows what lies there.

mod best_fit;
mod block;
mod debug;
mod failing;
mod growth;
mod holes;
pub(crate) mod host_pages;
mod kind;
mod paged;
mod pool;
mod region;
mod system;
mod tally;

pub use best_fit::{BestFit, ReserveError};
pub use block::{AllocatorId, Block, Lease};
pub use debug::{Damage, DamageKind, Debug};
pub use failing::Failing;
pub use growth::{Growth, GrowthWatch};
pub use holes::Holes;
pub use host_pages::{HostExtent, HostPages, NoRemapping, Pages};
pub use kind::{AllocatorKind, NoAllocator};
pub use paged::{Idle, NoPages, PageSource, Paged, PagesWanted};
pub use pool::Pool;
pub use system::System;
pub use tally::holders;

use std::fmt;
use std::sync::Arc;

use crate::{Bytes, Holder, OutOfMemory, Owner};

/// The least alignment of any block: a cache line, and the width of the widest vector register.
pub const MIN_ALIGN: usize = 64;

/// Hands out blocks of memory within a limit and knows who holds them.
///
/// ```
/// use plimsoll_device::{Allocator, BestFit, Bytes, Owner};
///
/// let memory = BestFit::new(Bytes::mib(1))?;
/// let block = memory.allocate(Bytes::kib(4), 64, Owner::here("matmul"))?;
/// assert_eq!(memory.stats().in_use, Bytes::kib(4));
/// memory.release(block)?;
///
/// let refused = memory.allocate(Bytes(Bytes::mib(1).0 + 1), 64, Owner::here("matmul")).unwrap_err();
/// assert!(refused.to_string().starts_with("out of memory: matmul at "));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Allocator: Send + Sync {
    /// Gives a block of at least `bytes` bytes with unspecified contents, at an address that is a multiple
    /// of `align` and of [`MIN_ALIGN`]. An `align` that is no power of two is raised to the next one.
    ///
    /// # Errors
    /// Refuses at once, without waiting, when the block does not fit.
    fn allocate(&self, bytes: Bytes, align: usize, owner: Owner) -> Result<Block, OutOfMemory>;

    /// Takes a block back.
    ///
    /// # Errors
    /// A block of another allocator is handed back inside the error. A block whose surroundings were
    /// overwritten is released all the same, and the damage reported.
    fn release(&self, block: Block) -> Result<(), ReleaseError>;

    /// The figures as of now.
    fn stats(&self) -> Stats;

    /// Lets the peak start again from what is in use now.
    fn reset_peak(&self);

    /// Gives memory that no block lies in back to the system, where it can be.
    fn release_unused(&self) {}

    /// Lets all blocks together take no more than `most`, beside the limit, until the same `who` says otherwise: what a memory limit
    /// for the whole process leaves for them. Nothing happens where only the limit counts.
    fn hold_to(&self, _who: u64, _most: Option<Bytes>) {}

    /// The pages in which memory comes: a block of more than half a page takes whole ones, smaller blocks share them. One
    /// byte where blocks are counted as they are.
    fn page(&self) -> Bytes {
        Bytes(1)
    }

    /// What it is called where its kind is shown: `best-fit`, `pages`. One of a user's own is `own` where it has no other name.
    fn name(&self) -> &'static str {
        "own"
    }

    /// The `n` owners that hold most, largest first; equal ones in the order of their op and line.
    fn holders(&self, n: usize) -> Vec<Holder>;

    /// Looks for memory written outside its block: what was found at releases, and what live blocks show.
    ///
    /// Only [`Debug`](struct@Debug) can see damage; the others always return nothing.
    #[must_use]
    fn check(&self) -> Vec<Damage> {
        Vec::new()
    }
}

impl<A: Allocator + ?Sized> Allocator for Arc<A> {
    fn allocate(&self, bytes: Bytes, align: usize, owner: Owner) -> Result<Block, OutOfMemory> {
        (**self).allocate(bytes, align, owner)
    }

    fn release(&self, block: Block) -> Result<(), ReleaseError> {
        (**self).release(block)
    }

    fn stats(&self) -> Stats {
        (**self).stats()
    }

    fn reset_peak(&self) {
        (**self).reset_peak();
    }

    fn release_unused(&self) {
        (**self).release_unused();
    }

    fn hold_to(&self, who: u64, most: Option<Bytes>) {
        (**self).hold_to(who, most);
    }

    fn page(&self) -> Bytes {
        (**self).page()
    }

    fn name(&self) -> &'static str {
        (**self).name()
    }

    fn holders(&self, n: usize) -> Vec<Holder> {
        (**self).holders(n)
    }

    fn check(&self) -> Vec<Damage> {
        (**self).check()
    }
}

/// An allocator whose blocks the host can read and write.
///
/// # Safety
/// From its allocation to its release, a block's address is that of as many bytes as were asked for, readable
/// and writable by any thread, and shared with no other block; the allocator itself leaves them alone.
pub unsafe trait HostMemory: Allocator {}

// SAFETY: blocks are those of the allocator that is shared.
unsafe impl<A: HostMemory + ?Sized> HostMemory for Arc<A> {}

/// An allocator's figures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stats {
    /// What all live blocks take, rounding up to alignment included.
    pub in_use: Bytes,
    /// The most that was in use at once since the start or the last reset.
    pub peak: Bytes,
    /// What was taken from the operating system and may be resident; never less than what is in use.
    pub reserved: Bytes,
    /// The most that may be in use.
    pub limit: Bytes,
    /// The largest request that would be met.
    pub largest_free: Bytes,
    /// The part of the free memory that lies outside the largest free block, from 0 (one hole) towards 1.
    pub fragmentation: f64,
    /// How many blocks are live.
    pub blocks: usize,
}

impl Stats {
    /// Figures with the fragmentation that follows from them.
    pub fn new(
        in_use: Bytes,
        peak: Bytes,
        reserved: Bytes,
        limit: Bytes,
        largest_free: Bytes,
        blocks: usize,
    ) -> Stats {
        let free = limit.saturating_sub(in_use);
        let outside = free.saturating_sub(largest_free);
        let fragmentation = if free == Bytes::ZERO { 0.0 } else { outside.0 as f64 / free.0 as f64 };
        Stats { in_use, peak, reserved, limit, largest_free, fragmentation, blocks }
    }

    /// The limit less what is in use.
    pub fn free(&self) -> Bytes {
        self.limit.saturating_sub(self.in_use)
    }
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Stats { in_use, peak, reserved, limit, largest_free, fragmentation, blocks } = self;
        let percent = fragmentation * 100.0;
        write!(
            f,
            "{in_use} of {limit} in use by {blocks} blocks, peak {peak}, reserved {reserved}, \
             largest free {largest_free}, fragmentation {percent:.0} %"
        )
    }
}

/// Why a release did not go as it should.
#[derive(Debug, thiserror::Error)]
pub enum ReleaseError {
    /// The block came from another allocator, which still counts it; here it is back.
    #[error("a block of {} bytes was released to an allocator that did not give it; release it where it came from", block.len())]
    Foreign {
        /// The block, still live.
        block: Block,
    },
    /// The block is released, but somebody wrote where they should not have.
    #[error(transparent)]
    Damaged(#[from] Damage),
}

/// The alignment that a block gets: a power of two, at least [`MIN_ALIGN`]; none if there is no such number.
fn effective_align(align: usize) -> Option<usize> {
    align.max(MIN_ALIGN).checked_next_power_of_two()
}

#[cfg(test)]
mod tests;
