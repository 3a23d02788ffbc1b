//! Turns one region of memory into blocks by best fit, splitting every hole and joining every neighbour.
//!
//! The region is reserved whole, at the size of the limit. The operating system commits its pages when they
//! are first touched, so an unused part costs address space and nothing else; and because a small hole is
//! always preferred to a large one, the untouched end, which is the largest hole for most of a run, is the
//! last to be broken into.
//!
//! Holes are indexed twice: by (size, offset) for the search and by offset for the joining. Every operation
//! is O(log holes), and the same requests always give the same offsets.
//!
//! Touched pages of holes stay with the process, so that a block that comes again finds them warm, until
//! [`Allocator::release_unused`] gives them back.
//!
//! What is not here: moving live blocks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustc_hash::FxHashMap;

use super::region::{Region, dangling};
use super::tally::{Tally, from_its_books};
use super::{Allocator, AllocatorId, Block, HostMemory, MIN_ALIGN, ReleaseError, Stats, effective_align};
use crate::{Bytes, HOLDERS_IN_AN_ERROR, Holder, OutOfMemory, Owner, process};

/// A region of the asked size could not be reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the operating system does not reserve a region of {limit}; set a lower memory limit")]
pub struct ReserveError {
    /// The size of the region.
    pub limit: Bytes,
}

/// Best fit with coalescing over one region.
///
/// ```
/// use plimsoll_device::{Allocator, BestFit, Bytes, Owner};
///
/// let memory = BestFit::new(Bytes::kib(12))?;
/// let [a, b, c] = [(); 3].map(|()| memory.allocate(Bytes::kib(4), 64, Owner::here("fill")).unwrap());
/// memory.release(a)?;
/// memory.release(c)?;
/// // Two holes of 4 KiB: half of what is free lies outside the largest.
/// assert_eq!(memory.stats().largest_free, Bytes::kib(4));
/// assert_eq!(memory.stats().fragmentation, 0.5);
/// memory.release(b)?;
/// assert_eq!(memory.stats().largest_free, Bytes::kib(12));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct BestFit {
    id: AllocatorId,
    region: Region,
    limit: usize,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    by_size: BTreeSet<(usize, usize)>,
    by_offset: BTreeMap<usize, usize>,
    live: FxHashMap<u64, Live>,
    next_key: u64,
    tally: Tally,
    /// No byte at or above this was handed out since pages were last given back.
    touched: usize,
}

#[derive(Debug)]
struct Live {
    offset: usize,
    taken: usize,
    owner: Owner,
}

impl BestFit {
    /// Reserves a region of the size of the limit.
    ///
    /// # Errors
    /// The operating system does not reserve so much.
    pub fn new(limit: Bytes) -> Result<BestFit, ReserveError> {
        let refused = ReserveError { limit };
        let size = limit.to_usize().ok_or(refused)?;
        let region = Region::reserve(size).ok_or(refused)?;
        let mut state = State {
            by_size: BTreeSet::new(),
            by_offset: BTreeMap::new(),
            live: FxHashMap::default(),
            next_key: 0,
            tally: Tally::default(),
            touched: 0,
        };
        state.insert_hole(0, size);
        Ok(BestFit { id: AllocatorId::new(), region, limit: size, state: Mutex::new(state) })
    }

    /// Takes what the machine or its control group has for the limit: [`process::memory_limit`].
    ///
    /// Systems differ in how near to their whole memory one reservation may come, so a refused one is tried
    /// again a little smaller.
    ///
    /// # Errors
    /// The operating system does not even reserve a small part of the machine's memory.
    pub fn with_machine_limit() -> Result<BestFit, ReserveError> {
        // Where the system does not tell, 4 GiB is what any machine fit for training has.
        let mut limit = process::memory_limit().unwrap_or(Bytes::gib(4));
        loop {
            match BestFit::new(limit) {
                Err(_) if limit > Bytes::mib(64) => limit = Bytes(limit.0 / 64 * 63),
                made => return made,
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing in this file panics while it holds the lock with the books half written.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stats_of(&self, state: &State) -> Stats {
        let largest_free = state.by_size.last().map_or(0, |&(size, _)| size);
        let tally = &state.tally;
        Stats::new(
            tally.in_use,
            tally.peak,
            state.touched.into(),
            self.limit.into(),
            largest_free.into(),
            tally.blocks,
        )
    }
}

impl Allocator for BestFit {
    fn allocate(&self, bytes: Bytes, align: usize, owner: Owner) -> Result<Block, OutOfMemory> {
        let mut state = self.state();
        let found = bytes.to_usize().zip(effective_align(align)).and_then(|(len, align)| {
            let (offset, taken, ptr) = if len == 0 {
                (0, 0, dangling(align))
            } else {
                let (offset, taken) = state.take(self.region.address(), len, align)?;
                (offset, taken, self.region.at(offset))
            };
            Some((len, offset, taken, ptr))
        });
        let Some((len, offset, taken, ptr)) = found else {
            let holders = state.tally.holders(HOLDERS_IN_AN_ERROR);
            return Err(OutOfMemory::new(bytes, owner, &self.stats_of(&state), holders));
        };
        let key = state.next_key;
        state.next_key += 1;
        state.tally.add(owner, taken.into());
        state.touched = state.touched.max(offset + taken);
        state.live.insert(key, Live { offset, taken, owner });
        Ok(Block::new(&self.id, key, ptr, len))
    }

    fn release(&self, block: Block) -> Result<(), ReleaseError> {
        let key = block.open(&self.id)?;
        let mut state = self.state();
        if let Some(Live { offset, taken, owner }) = state.live.remove(&key) {
            state.tally.remove(owner, taken.into());
            state.give(offset, taken);
        }
        Ok(())
    }

    from_its_books!("best-fit");

    fn release_unused(&self) {
        let mut state = self.state();
        let touched = state.touched;
        for (&offset, &size) in state.by_offset.range(..touched) {
            self.region.discard(offset, size.min(touched - offset));
        }
        state.touched = state.live.values().map(|block| block.offset + block.taken).max().unwrap_or(0);
    }
}

// SAFETY: A block is a range of the region that no hole and no other block overlaps, and the region is never
// read or written here.
unsafe impl HostMemory for BestFit {}

impl State {
    /// Cuts a block out of the smallest hole that can hold it, the lowest of equals.
    ///
    /// Blocks end on a multiple of [`MIN_ALIGN`] or at the end of the region. So do holes: hence a hole of at
    /// least `len` bytes has room for `len` rounded up, or ends the region.
    fn take(&mut self, base: usize, len: usize, align: usize) -> Option<(usize, usize)> {
        let (size, hole, start) = self.by_size.range((len, 0)..).find_map(|&(size, hole)| {
            // With the common alignment the first hole does, because every hole starts aligned to it.
            let start = (base + hole).checked_next_multiple_of(align)? - base;
            let fits = start.checked_add(len)? <= hole + size;
            fits.then_some((size, hole, start))
        })?;
        let end = hole + size;
        let taken = len.checked_next_multiple_of(MIN_ALIGN).map_or(end - start, |n| n.min(end - start));
        self.remove_hole(hole, size);
        self.insert_hole(hole, start - hole);
        self.insert_hole(start + taken, end - start - taken);
        Some((start, taken))
    }

    /// Makes a block a hole again, joined with the holes on both sides.
    fn give(&mut self, offset: usize, taken: usize) {
        if taken == 0 {
            return;
        }
        let (mut start, mut end) = (offset, offset + taken);
        if let Some((&before, &size)) = self.by_offset.range(..offset).next_back()
            && before + size == offset
        {
            self.remove_hole(before, size);
            start = before;
        }
        if let Some(&size) = self.by_offset.get(&end) {
            self.remove_hole(end, size);
            end += size;
        }
        self.insert_hole(start, end - start);
    }

    fn insert_hole(&mut self, offset: usize, size: usize) {
        if size > 0 {
            self.by_size.insert((size, offset));
            self.by_offset.insert(offset, size);
        }
    }

    fn remove_hole(&mut self, offset: usize, size: usize) {
        self.by_size.remove(&(size, offset));
        self.by_offset.remove(&offset);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    use crate::Verdict;

    fn ask(memory: &BestFit, bytes: Bytes) -> Result<Block, OutOfMemory> {
        memory.allocate(bytes, 64, Owner::here("fill"))
    }

    fn offset(memory: &BestFit, block: &Block) -> usize {
        block.as_ptr().addr().get() - memory.region.address()
    }

    #[test]
    fn every_other_block_freed_is_called_fragmentation_within_a_millisecond() {
        // 0   4   8   12              248 252 256 MiB
        // | a |   | a |   | … | a |   | a | tail |
        let memory = BestFit::new(Bytes::mib(256)).unwrap();
        let (mut kept, mut freed) = (Vec::new(), Vec::new());
        for i in 0..63 {
            let block = ask(&memory, Bytes::mib(4)).unwrap();
            if i % 2 == 0 { kept.push(block) } else { freed.push(block) }
        }
        freed.into_iter().for_each(|block| memory.release(block).unwrap());
        assert_eq!(kept.len(), 32);

        let mut fastest = Duration::MAX;
        for _ in 0..5 {
            let start = Instant::now();
            let error = ask(&memory, Bytes::mib(8)).unwrap_err();
            let text = error.to_string();
            fastest = fastest.min(start.elapsed());
            assert_eq!(error.verdict, Verdict::Fragmentation);
            assert_eq!(error.free, Bytes::mib(128));
            assert_eq!(error.largest_free, Bytes::mib(4));
            assert_eq!(error.fragmentation, 31.0 / 32.0);
            assert_eq!(error.holders.len(), 1);
            assert_eq!((error.holders[0].blocks, error.holders[0].bytes), (32, Bytes::mib(128)));
            assert!(text.lines().next().unwrap().contains("fragmentation"), "{text}");
            assert!(text.contains(file!()), "{text}");
        }
        // The fastest of five, because the machine may be busy with something else.
        assert!(fastest < Duration::from_millis(1), "{fastest:?}");
        // What fits a hole is still given.
        assert!(ask(&memory, Bytes::mib(4)).is_ok());
    }

    #[test]
    fn a_freed_last_block_joins_the_tail_and_makes_room() {
        let memory = BestFit::new(Bytes::mib(256)).unwrap();
        let blocks: Vec<_> = (0..63).map(|_| ask(&memory, Bytes::mib(4)).unwrap()).collect();
        let mut kept = Vec::new();
        for (i, block) in blocks.into_iter().enumerate() {
            if i % 2 == 0 { memory.release(block).unwrap() } else { kept.push(block) }
        }
        let large = ask(&memory, Bytes::mib(8)).unwrap();
        assert_eq!(offset(&memory, &large), 62 * (4 << 20));
    }

    #[test]
    fn the_smallest_hole_that_fits_is_taken_and_split() {
        let memory = BestFit::new(Bytes(1024)).unwrap();
        let mut blocks: Vec<_> = [256, 64, 128, 64].map(|n| ask(&memory, Bytes(n)).ok()).into();
        for i in [0, 2] {
            memory.release(blocks[i].take().unwrap()).unwrap();
        }
        // Holes: 256 at 0, 128 at 320, 512 at 512.
        let first = ask(&memory, Bytes(100)).unwrap();
        assert_eq!(offset(&memory, &first), 320);
        let second = ask(&memory, Bytes(1)).unwrap();
        assert_eq!(offset(&memory, &second), 0);
        assert_eq!(memory.stats().largest_free, Bytes(512));
        assert_eq!(memory.stats().in_use, Bytes(64 + 64 + 128 + 64));
    }

    #[test]
    fn reserved_is_the_highest_byte_handed_out_and_stays() {
        let memory = BestFit::new(Bytes::mib(1)).unwrap();
        let a = ask(&memory, Bytes(1000)).unwrap();
        let b = ask(&memory, Bytes(1000)).unwrap();
        assert_eq!(memory.stats().reserved, Bytes(2048));
        memory.release(a).unwrap();
        memory.release(b).unwrap();
        let c = ask(&memory, Bytes(2048)).unwrap();
        assert_eq!(memory.stats().reserved, Bytes(2048));
        memory.release(c).unwrap();
        assert_eq!((memory.stats().in_use, memory.stats().reserved), (Bytes::ZERO, Bytes(2048)));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn unused_pages_are_given_back_and_live_ones_keep_their_bytes() {
        let (memory, size) = (BestFit::new(Bytes::mib(256)).unwrap(), 64 << 20);
        let blocks: Vec<_> = (0..3).map(|_| ask(&memory, Bytes(size)).unwrap()).collect();
        for block in &blocks {
            // SAFETY: the block is of this size and only this test knows it.
            unsafe { block.as_ptr().as_ptr().write_bytes(7, size as usize) };
        }
        let mut blocks = blocks.into_iter();
        let (a, b, c) = (blocks.next().unwrap(), blocks.next().unwrap(), blocks.next().unwrap());
        memory.release(a).unwrap();
        memory.release(c).unwrap();
        let before = process::resident().unwrap();
        memory.release_unused();
        let after = process::resident().unwrap();
        // Other tests of this process come and go, so only a part of it is asked for.
        assert!(after + Bytes::mib(64) < before, "{before} to {after}");
        assert_eq!(memory.stats().reserved, Bytes(2 * size));
        // SAFETY: as above; the bytes were written.
        let kept = unsafe { std::slice::from_raw_parts(b.as_ptr().as_ptr(), size as usize) };
        assert!(kept.iter().all(|&byte| byte == 7));
        memory.release(b).unwrap();
    }

    #[test]
    fn a_limit_that_is_no_multiple_of_the_alignment_is_given_to_the_last_byte() {
        let memory = BestFit::new(Bytes(100)).unwrap();
        let a = ask(&memory, Bytes(64)).unwrap();
        let b = ask(&memory, Bytes(36)).unwrap();
        assert_eq!(memory.stats().free(), Bytes::ZERO);
        memory.release(a).unwrap();
        memory.release(b).unwrap();
        assert_eq!(memory.stats().largest_free, Bytes(100));
    }

    #[test]
    fn an_untouched_region_costs_no_resident_memory() {
        let Some(before) = process::resident() else { return };
        let memory = BestFit::new(Bytes::gib(2)).unwrap();
        let _block = ask(&memory, Bytes::gib(1)).unwrap();
        let after = process::resident().unwrap();
        assert!(after.saturating_sub(before) < Bytes::mib(256), "{before} grew to {after}");
    }

    #[test]
    fn a_region_beyond_the_address_space_is_refused() {
        let refused = BestFit::new(Bytes::MAX).unwrap_err();
        assert_eq!(refused.limit, Bytes::MAX);
        assert!(BestFit::new(Bytes::ZERO).is_ok());
    }

    #[test]
    fn the_machine_limit_is_what_the_machine_has() {
        let memory = BestFit::with_machine_limit().unwrap();
        let limit = memory.stats().limit;
        assert!(limit > Bytes::mib(32));
        if let Some(machine) = process::memory_limit() {
            assert!(limit <= machine);
        }
    }
}
