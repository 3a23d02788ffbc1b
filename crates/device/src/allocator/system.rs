//! Turns each request into one block of the program's own allocator, within a limit.
//!
//! A block takes whole units of [`MIN_ALIGN`], as a plan counts it. There are no holes to keep, so there is no fragmentation that this
//! allocator could see; what the program's allocator keeps for itself between blocks is not in its figures.

use std::alloc::{Layout, alloc, dealloc};
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustc_hash::FxHashMap;

use super::region::dangling;
use super::tally::{Tally, from_its_books};
use super::{Allocator, AllocatorId, Block, HostMemory, MIN_ALIGN, ReleaseError, Stats, effective_align};
use crate::{Bytes, HOLDERS_IN_AN_ERROR, Holder, OutOfMemory, Owner, process};

/// One allocation of the program's allocator for each block.
#[derive(Debug)]
pub struct System {
    id: AllocatorId,
    limit: Bytes,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    live: FxHashMap<u64, Live>,
    next_key: u64,
    tally: Tally,
}

#[derive(Debug)]
struct Live {
    ptr: NonNull<u8>,
    layout: Layout,
    /// What it counts.
    taken: Bytes,
    owner: Owner,
}

// SAFETY: The address is that of memory this value owns and only frees; no thread is bound to it.
unsafe impl Send for Live {}

impl Drop for Live {
    fn drop(&mut self) {
        if self.layout.size() > 0 {
            // SAFETY: The memory came from `alloc` with this layout, and a drop happens once.
            unsafe { dealloc(self.ptr.as_ptr(), self.layout) }
        }
    }
}

impl System {
    /// An allocator that gives at most `limit` bytes at a time.
    pub fn new(limit: Bytes) -> System {
        System { id: AllocatorId::new(), limit, state: Mutex::default() }
    }

    /// Takes what the machine or its control group has for the limit: [`process::memory_limit`].
    pub fn with_machine_limit() -> System {
        System::new(process::memory_limit().unwrap_or(Bytes::MAX))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing in this file panics while it holds the lock with the books half written.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stats_of(&self, State { tally, .. }: &State) -> Stats {
        let free = self.limit.saturating_sub(tally.in_use);
        Stats::new(tally.in_use, tally.peak, tally.in_use, self.limit, free, tally.blocks)
    }
}

impl Allocator for System {
    fn allocate(&self, bytes: Bytes, align: usize, owner: Owner) -> Result<Block, OutOfMemory> {
        let mut state = self.state();
        let refusal = |s: &State| {
            OutOfMemory::new(bytes, owner, &self.stats_of(s), s.tally.holders(HOLDERS_IN_AN_ERROR))
        };
        let free = self.limit.saturating_sub(state.tally.in_use);
        if bytes > free {
            return Err(refusal(&state));
        }
        // The last bytes of the limit are given as they are asked for.
        let taken =
            bytes.get().checked_next_multiple_of(MIN_ALIGN as u64).map_or(free, |n| Bytes(n).min(free));
        let layout = bytes
            .to_usize()
            .zip(effective_align(align))
            .and_then(|(len, align)| Layout::from_size_align(len, align).ok());
        let Some(layout) = layout else {
            return Err(refusal(&state).by_system());
        };
        let ptr = if layout.size() == 0 {
            dangling(layout.align())
        } else {
            // SAFETY: The size of the layout is not zero.
            match NonNull::new(unsafe { alloc(layout) }) {
                Some(ptr) => ptr,
                None => return Err(refusal(&state).by_system()),
            }
        };
        let key = state.next_key;
        state.next_key += 1;
        state.tally.add(owner, taken);
        state.live.insert(key, Live { ptr, layout, taken, owner });
        Ok(Block::new(&self.id, key, ptr, layout.size()))
    }

    fn release(&self, block: Block) -> Result<(), ReleaseError> {
        let key = block.open(&self.id)?;
        let mut state = self.state();
        if let Some(live) = state.live.remove(&key) {
            state.tally.remove(live.owner, live.taken);
        }
        Ok(())
    }

    from_its_books!("system");

    /// What the C library keeps of freed blocks goes back to the system.
    fn release_unused(&self) {
        process::release_unused_heap();
    }
}

// SAFETY: A block is one allocation of the program's allocator, freed when it is released.
unsafe impl HostMemory for System {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Verdict;

    #[test]
    fn what_the_operating_system_refuses_is_called_so() {
        let memory = System::new(Bytes::MAX);
        let error = memory.allocate(Bytes(1 << 62), 64, Owner::here("huge")).unwrap_err();
        assert_eq!(error.verdict, Verdict::System);
        let error = memory.allocate(Bytes::MAX, 64, Owner::here("huge")).unwrap_err();
        assert_eq!(error.verdict, Verdict::System);
        assert_eq!(memory.stats().in_use, Bytes::ZERO);
    }
}
