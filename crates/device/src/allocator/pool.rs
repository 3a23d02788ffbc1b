//! Turns requests into blocks that are kept by size when they are freed and handed out again, within a limit.
//!
//! Sizes are multiples of [`MIN_ALIGN`]: a training asks for the same ones again and again, and a block must take what a plan counted
//! for it, so nothing is rounded further. What is kept counts as taken from the system, not as in use; where the limit would be
//! passed, it goes back first.

use std::alloc::{Layout, alloc, dealloc};
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustc_hash::FxHashMap;

use super::region::dangling;
use super::tally::{Tally, from_its_books};
use super::{Allocator, AllocatorId, Block, HostMemory, MIN_ALIGN, ReleaseError, Stats, effective_align};
use crate::{Bytes, HOLDERS_IN_AN_ERROR, Holder, OutOfMemory, Owner, process};

/// Freed blocks kept by size.
///
/// ```
/// use plimsoll_device::{Allocator, Bytes, Owner, Pool};
/// let memory = Pool::new(Bytes::mib(1));
/// let block = memory.allocate(Bytes(1000), 64, Owner::here("fill"))?;
/// let at = block.as_ptr();
/// memory.release(block)?;
/// // A block of about the same size is the one that was freed.
/// let again = memory.allocate(Bytes(990), 64, Owner::here("fill"))?;
/// assert_eq!(again.as_ptr(), at);
/// # memory.release(again)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Pool {
    id: AllocatorId,
    limit: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    live: FxHashMap<u64, Live>,
    kept: BTreeMap<usize, Vec<Chunk>>,
    next_key: u64,
    tally: Tally,
    /// Bytes of all chunks, kept ones included.
    taken: usize,
}

#[derive(Debug)]
struct Live {
    chunk: Option<Chunk>,
    owner: Owner,
}

/// Memory of the program's allocator.
#[derive(Debug)]
struct Chunk {
    ptr: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the address is that of memory this value owns and only frees; no thread is bound to it.
unsafe impl Send for Chunk {}

impl Chunk {
    fn new(bytes: usize, align: usize) -> Option<Chunk> {
        let layout = Layout::from_size_align(bytes, align).ok().filter(|layout| layout.size() > 0)?;
        // SAFETY: the size of the layout is not zero.
        let ptr = NonNull::new(unsafe { alloc(layout) })?;
        Some(Chunk { ptr, layout })
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        // SAFETY: the memory came from `alloc` with this layout, and a drop happens once.
        unsafe { dealloc(self.ptr.as_ptr(), self.layout) }
    }
}

impl State {
    /// Gives what is kept back to the system.
    fn empty(&mut self) {
        self.kept.clear();
        self.taken = self.tally.in_use.to_usize().unwrap_or(usize::MAX);
    }
}

impl Pool {
    /// A pool that takes at most `limit` bytes at a time.
    pub fn new(limit: Bytes) -> Pool {
        let limit = limit.to_usize().unwrap_or(usize::MAX);
        Pool { id: AllocatorId::new(), limit, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing in this file panics while it holds the lock with the books half written.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stats_of(&self, s: &State) -> Stats {
        let (in_use, limit) = (s.tally.in_use, Bytes::from(self.limit));
        let free = limit.saturating_sub(in_use);
        Stats::new(in_use, s.tally.peak, s.taken.into(), limit, free, s.tally.blocks)
    }

    /// A chunk of at least so many bytes, kept or new; the outer is what the limit says, the inner what the system says.
    fn chunk(&self, s: &mut State, bytes: usize, align: usize) -> Result<Option<Chunk>, ()> {
        let free = self.limit - s.tally.in_use.to_usize().unwrap_or(self.limit).min(self.limit);
        if bytes > free {
            return Err(());
        }
        // The last bytes of the limit are given as they are asked for.
        let size = class(bytes).filter(|size| *size <= free).unwrap_or(bytes);
        let is_kept = align == MIN_ALIGN;
        if let Some(chunk) = s.kept.get_mut(&size).filter(|_| is_kept).and_then(Vec::pop) {
            return Ok(Some(chunk));
        }
        if size > self.limit - s.taken.min(self.limit) {
            s.empty();
        }
        let chunk = Chunk::new(size, align);
        s.taken += chunk.as_ref().map_or(0, |chunk| chunk.layout.size());
        Ok(chunk)
    }
}

/// The size of the blocks in which so many bytes are kept; none where there is no such number.
fn class(bytes: usize) -> Option<usize> {
    bytes.checked_next_multiple_of(MIN_ALIGN)
}

impl Allocator for Pool {
    fn allocate(&self, bytes: Bytes, align: usize, owner: Owner) -> Result<Block, OutOfMemory> {
        let mut s = self.state();
        let refusal = |s: &State| {
            OutOfMemory::new(bytes, owner, &self.stats_of(s), s.tally.holders(HOLDERS_IN_AN_ERROR))
        };
        let asked = bytes.to_usize().zip(effective_align(align));
        let Some((len, align)) = asked else { return Err(refusal(&s)) };
        let chunk = match len {
            0 => None,
            _ => match self.chunk(&mut s, len, align) {
                Ok(Some(chunk)) => Some(chunk),
                Ok(None) => return Err(refusal(&s).by_system()),
                Err(()) => return Err(refusal(&s)),
            },
        };
        let (ptr, taken) = match &chunk {
            Some(chunk) => (chunk.ptr, chunk.layout.size()),
            None => (dangling(align), 0),
        };
        let key = s.next_key;
        s.next_key += 1;
        s.tally.add(owner, taken.into());
        s.live.insert(key, Live { chunk, owner });
        Ok(Block::new(&self.id, key, ptr, len))
    }

    fn release(&self, block: Block) -> Result<(), ReleaseError> {
        let key = block.open(&self.id)?;
        let mut s = self.state();
        let Some(Live { chunk, owner }) = s.live.remove(&key) else { return Ok(()) };
        let size = chunk.as_ref().map_or(0, |chunk| chunk.layout.size());
        s.tally.remove(owner, size.into());
        match chunk {
            Some(chunk) if chunk.layout.align() == MIN_ALIGN && class(size) == Some(size) => {
                s.kept.entry(size).or_default().push(chunk);
            }
            Some(_) => s.taken -= size,
            None => {}
        }
        Ok(())
    }

    from_its_books!("pool");

    fn release_unused(&self) {
        self.state().empty();
        process::release_unused_heap();
    }
}

// SAFETY: a block is one allocation of the program's allocator, handed out to one holder at a time.
unsafe impl HostMemory for Pool {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_takes_what_a_plan_counts_for_it() {
        let memory = Pool::new(Bytes::mib(4));
        for bytes in [1, 64, 65, 1000, 313_600, (1 << 20) + 1] {
            let block = memory.allocate(Bytes(bytes), 64, Owner::here("fill")).unwrap();
            assert_eq!(memory.stats().in_use, Bytes(bytes.next_multiple_of(64)), "{bytes}");
            memory.release(block).unwrap();
        }
        assert_eq!(class(usize::MAX), None);
    }

    #[test]
    fn what_is_kept_goes_back_where_the_limit_would_be_passed() {
        let memory = Pool::new(Bytes::kib(64));
        let ask = |kib| memory.allocate(Bytes::kib(kib), 64, Owner::here("fill"));
        let blocks: Vec<Block> = (0..8).map(|_| ask(8).unwrap()).collect();
        blocks.into_iter().for_each(|block| memory.release(block).unwrap());
        assert_eq!((memory.stats().in_use, memory.stats().reserved), (Bytes::ZERO, Bytes::kib(64)));
        let all = ask(64).unwrap();
        assert_eq!(memory.stats().reserved, Bytes::kib(64));
        assert!(ask(1).is_err());
        memory.release(all).unwrap();
        memory.release_unused();
        assert_eq!(memory.stats().reserved, Bytes::ZERO);
    }
}
