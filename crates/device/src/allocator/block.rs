//! Turns an address into a token that can be held, moved between threads and given back exactly once.

use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Allocator, ReleaseError};
use crate::{Bytes, OutOfMemory, Owner};

/// What makes an allocator's blocks its own.
///
/// It cannot be copied, and a block is made with a reference to it: so only the allocator that holds it can
/// make blocks that it will take back.
#[derive(Debug, PartialEq, Eq)]
pub struct AllocatorId(u64);

impl AllocatorId {
    /// An identity that no other allocator of this process has.
    #[expect(clippy::new_without_default, reason = "every call gives another value")]
    pub fn new() -> AllocatorId {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        AllocatorId(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// Memory that somebody holds: an address, a length, and where to give it back.
///
/// It can be neither copied nor cloned, so that it is released at most once. A block that is dropped without
/// a release stays counted as in use; [`Lease`] releases on drop.
#[must_use = "a block that is dropped without a release stays in use"]
pub struct Block {
    ptr: NonNull<u8>,
    len: usize,
    home: u64,
    key: u64,
}

// SAFETY: A block is an address and three numbers. Nothing reads or writes through the address but unsafe
// code of the holder, who answers for it.
unsafe impl Send for Block {}
// SAFETY: As above; a shared block offers only copies of the address and the length.
unsafe impl Sync for Block {}

impl Block {
    /// A block at an address; `key` is whatever its allocator needs to find it again.
    pub fn new(home: &AllocatorId, key: u64, ptr: NonNull<u8>, len: usize) -> Block {
        Block { ptr, len, home: home.0, key }
    }

    /// The address of the first byte. For a block of no bytes it is aligned, but not to be read.
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.ptr
    }

    /// The number of bytes that were asked for.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no bytes were asked for.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The allocator's key, if the block came from there; otherwise the block, in an error.
    ///
    /// # Errors
    /// The block is another allocator's.
    pub fn open(self, home: &AllocatorId) -> Result<u64, ReleaseError> {
        if self.home == home.0 { Ok(self.key) } else { Err(ReleaseError::Foreign { block: self }) }
    }
}

impl fmt::Debug for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Block").field("ptr", &self.ptr).field("len", &self.len).finish_non_exhaustive()
    }
}

/// A block that goes back where it came from when it is dropped.
///
/// ```
/// use std::sync::Arc;
/// use plimsoll_device::{Allocator, Bytes, Lease, Owner, System};
///
/// let memory: Arc<dyn Allocator> = Arc::new(System::new(Bytes::mib(1)));
/// let lease = Lease::new(&memory, Bytes(100), 64, Owner::here("relu"))?;
/// assert_eq!(lease.len(), 100);
/// drop(lease);
/// assert_eq!(memory.stats().blocks, 0);
/// # Ok::<(), plimsoll_device::OutOfMemory>(())
/// ```
#[derive(Debug)]
pub struct Lease {
    /// There until the drop.
    block: ManuallyDrop<Block>,
    from: Arc<dyn Allocator>,
}

// SAFETY: A shared lease offers only copies of the address and the length.
unsafe impl Sync for Lease {}

impl Lease {
    /// Allocates a block and keeps its allocator alive with it.
    ///
    /// # Errors
    /// The block does not fit.
    pub fn new(
        from: &Arc<dyn Allocator>,
        bytes: Bytes,
        align: usize,
        owner: Owner,
    ) -> Result<Lease, OutOfMemory> {
        let block = from.allocate(bytes, align, owner)?;
        Ok(Lease { block: ManuallyDrop::new(block), from: Arc::clone(from) })
    }

    /// The allocator that the block goes back to.
    pub fn allocator(&self) -> &Arc<dyn Allocator> {
        &self.from
    }

    /// Gives the block back now, for a caller who wants to know of damage at once.
    ///
    /// # Errors
    /// Somebody wrote outside the block.
    pub fn release(self) -> Result<(), ReleaseError> {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: nobody looks at the lease again: it is not dropped either.
        let (block, from) = unsafe { (ManuallyDrop::take(&mut this.block), std::ptr::read(&this.from)) };
        from.release(block)
    }
}

/// What a lease has of a block: its address and its length.
impl Deref for Lease {
    type Target = Block;

    fn deref(&self) -> &Block {
        &self.block
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // SAFETY: the drop is the last to look at the block.
        let block = unsafe { ManuallyDrop::take(&mut self.block) };
        // A drop can return nothing. Damage is not lost: the debug allocator keeps it for `check`.
        let _ = self.from.release(block);
    }
}

impl fmt::Debug for dyn Allocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Allocator({})", self.stats())
    }
}
