//! Turns writes outside a block into errors that name the block's owner.
//!
//! ```text
//!   | guard FD … FD | the holder's bytes, fresh CD, released DD | guard FD … FD |
//!                   ^ address handed out, aligned               ^ at the very next byte
//! ```
//!
//! A kernel that writes past its output ruins some other tensor, and the loss is wrong an hour later. Here it
//! ruins a guard, which is looked at when the block is released and whenever somebody asks. A kernel that
//! reads what nobody wrote reads CD bytes, as f32 some -4e8, and one that reads released memory DD bytes, some
//! -2e18: both stand out in a loss. Writes to released memory are seen while a block is in quarantine.
//!
//! What is not here: reads outside a block, which only a sanitizer sees.

use std::collections::VecDeque;
use std::fmt;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustc_hash::FxHashMap;

use super::tally::Tally;
use super::{Allocator, AllocatorId, Block, HostMemory, MIN_ALIGN, ReleaseError, Stats, effective_align};
use crate::{Bytes, Holder, OutOfMemory, Owner};

/// The bytes behind a block that nobody may write; in front there are as many, or the alignment if it is more.
const GUARD: usize = MIN_ALIGN;
const GUARD_BYTE: u8 = 0xFD;
const FRESH_BYTE: u8 = 0xCD;
const RELEASED_BYTE: u8 = 0xDD;
/// Damage found at releases is kept up to this number: the first ones tell, and a loop may make millions.
const KEPT: usize = 100;

/// Memory that was written outside its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Whose block it was.
    pub owner: Owner,
    /// How long the block was.
    pub len: Bytes,
    /// Where the write was.
    pub kind: DamageKind,
    /// How far from the block the nearest overwritten byte lies: 0 is the byte next to it. For a block that
    /// was already released, how far from its start the first one lies.
    pub distance: Bytes,
    /// How many bytes no longer are what they were; at least as many were written.
    pub changed: Bytes,
}

/// Where a block's surroundings were written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DamageKind {
    /// In front of its first byte.
    Before,
    /// Behind its last byte.
    After,
    /// Inside, but after it was released.
    AfterRelease,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Damage { owner, len, distance, changed, .. } = self;
        let (changed, distance) = (changed.0, distance.0);
        let bytes = if changed == 1 { "byte" } else { "bytes" };
        write!(f, "memory damaged: {changed} {bytes} ")?;
        match self.kind {
            DamageKind::Before => write!(f, "before the start (the nearest {} away)", distance + 1)?,
            DamageKind::After => write!(f, "past the end (the first {} past it)", distance + 1)?,
            DamageKind::AfterRelease => write!(f, "at offset {distance}")?,
        }
        write!(f, " of the block of {len} of {owner} were overwritten")?;
        match self.kind {
            DamageKind::AfterRelease => write!(f, " after its release; look at what still held its address"),
            _ => write!(f, "; look at the ops that wrote to it"),
        }
    }
}

impl std::error::Error for Damage {}

/// Puts guard bytes around the blocks of another allocator, and poison into them.
///
/// Guards come out of the other's limit: a block, even one of no bytes, takes at least 128 bytes more, and all
/// figures include them.
///
/// ```
/// use plimsoll_device::{Allocator, Bytes, Debug, Owner, System};
///
/// let memory = Debug::new(System::new(Bytes::mib(1)));
/// let block = memory.allocate(Bytes(10), 64, Owner::here("relu"))?;
/// // SAFETY: The byte past the end is the guard's first.
/// unsafe { block.as_ptr().add(10).write(0) };
/// let error = memory.release(block).unwrap_err();
/// assert!(error.to_string().contains("past the end"));
/// assert!(error.to_string().contains("relu at "));
/// # Ok::<(), plimsoll_device::OutOfMemory>(())
/// ```
pub struct Debug {
    id: AllocatorId,
    inner: Box<dyn HostMemory>,
    quarantine: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    live: FxHashMap<u64, Guarded>,
    next_key: u64,
    tally: Tally,
    released: VecDeque<Guarded>,
    /// What the released blocks in quarantine take.
    released_bytes: usize,
    found: Vec<Damage>,
}

struct Guarded {
    /// The other allocator's block, guards included.
    whole: Block,
    front: usize,
    len: usize,
    owner: Owner,
}

impl Debug {
    /// Guards the blocks of another allocator; released blocks go back to it at once.
    pub fn new(inner: impl HostMemory + 'static) -> Debug {
        Debug::with_quarantine(inner, Bytes::ZERO)
    }

    /// Keeps up to so many bytes of released blocks back, oldest out first, to see who still writes to them.
    ///
    /// When memory runs out the quarantine is given up before a request is refused.
    pub fn with_quarantine(inner: impl HostMemory + 'static, quarantine: Bytes) -> Debug {
        let quarantine = quarantine.to_usize().unwrap_or(usize::MAX);
        Debug { id: AllocatorId::new(), inner: Box::new(inner), quarantine, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing in this file panics while it holds the lock with the books half written.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives released blocks back until the rest takes no more than `keep`.
    fn shrink_quarantine(&self, state: &mut State, keep: usize) {
        while state.released_bytes > keep {
            let Some(guarded) = state.released.pop_front() else { break };
            state.released_bytes -= guarded.whole.len();
            let damage = guarded.after_release();
            state.keep(damage);
            // The inner block came from the inner allocator, which therefore takes it.
            let _ = self.inner.release(guarded.whole);
        }
    }
}

impl Allocator for Debug {
    fn allocate(&self, bytes: Bytes, align: usize, owner: Owner) -> Result<Block, OutOfMemory> {
        // A size that overflows with its guards is beyond any limit, and the inner allocator says so.
        let front = effective_align(align).unwrap_or(usize::MAX);
        let padded = bytes + Bytes::from(front) + Bytes::from(GUARD);
        let mut state = self.state();
        let whole = self.inner.allocate(padded, align, owner).or_else(|error| {
            if state.released.is_empty() {
                return Err(error);
            }
            self.shrink_quarantine(&mut state, 0);
            self.inner.allocate(padded, align, owner)
        })?;
        let guarded = Guarded { front, len: whole.len() - front - GUARD, whole, owner };
        guarded.fill(GUARD_BYTE, FRESH_BYTE);
        let (ptr, len) = (guarded.at(front), guarded.len);
        let key = state.next_key;
        state.next_key += 1;
        state.tally.add(owner, padded);
        state.live.insert(key, guarded);
        Ok(Block::new(&self.id, key, ptr, len))
    }

    fn release(&self, block: Block) -> Result<(), ReleaseError> {
        let key = block.open(&self.id)?;
        let mut state = self.state();
        let Some(guarded) = state.live.remove(&key) else { return Ok(()) };
        let damage = guarded.damage();
        state.tally.remove(guarded.owner, guarded.whole.len().into());
        guarded.fill(GUARD_BYTE, RELEASED_BYTE);
        state.released_bytes += guarded.whole.len();
        state.released.push_back(guarded);
        state.keep(damage);
        self.shrink_quarantine(&mut state, self.quarantine);
        damage.map_or(Ok(()), |damage| Err(damage.into()))
    }

    fn stats(&self) -> Stats {
        let state = self.state();
        let (inner, tally) = (self.inner.stats(), &state.tally);
        let largest_free = inner.largest_free.saturating_sub(Bytes::from(2 * GUARD));
        Stats::new(tally.in_use, tally.peak, inner.reserved, inner.limit, largest_free, tally.blocks)
    }

    fn reset_peak(&self) {
        self.state().tally.reset_peak();
    }

    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn holders(&self, n: usize) -> Vec<Holder> {
        self.state().tally.holders(n)
    }

    fn check(&self) -> Vec<Damage> {
        let state = self.state();
        let mut live: Vec<_> = state.live.iter().collect();
        live.sort_unstable_by_key(|(key, _)| **key);
        let in_quarantine = state.released.iter().filter_map(Guarded::after_release);
        let in_live = live.into_iter().filter_map(|(_, guarded)| guarded.damage());
        state.found.iter().copied().chain(in_quarantine).chain(in_live).collect()
    }
}

// SAFETY: The blocks are parts of the inner allocator's blocks, which has promised the same, and the guards
// and the poison are written only before a block is handed out and after it is back.
unsafe impl HostMemory for Debug {}

impl State {
    fn keep(&mut self, damage: Option<Damage>) {
        if self.found.len() < KEPT {
            self.found.extend(damage);
        }
    }
}

impl Guarded {
    fn at(&self, offset: usize) -> NonNull<u8> {
        debug_assert!(offset <= self.whole.len());
        // SAFETY: `HostMemory` promises as many bytes as asked for, and offsets are at most that.
        unsafe { self.whole.as_ptr().add(offset) }
    }

    fn fill(&self, guard: u8, inside: u8) {
        let Guarded { front, len, .. } = *self;
        for (offset, len, byte) in [(0, front, guard), (front, len, inside), (front + len, GUARD, guard)] {
            // SAFETY: The range lies in the block, and nobody else holds the block at this time.
            unsafe { self.at(offset).write_bytes(byte, len) };
        }
    }

    fn bytes(&self, offset: usize, len: usize) -> &[u8] {
        // SAFETY: The range lies in the block and was written by `fill`. Nobody writes to a guard or to a
        // released block but by a defect, and to report that defect is what this is for.
        unsafe { NonNull::slice_from_raw_parts(self.at(offset), len).as_ref() }
    }

    fn damage(&self) -> Option<Damage> {
        let Guarded { front, len, .. } = *self;
        let before = self.bytes(0, front).iter().rev();
        let after = self.bytes(front + len, GUARD).iter();
        self.changed(before, GUARD_BYTE, DamageKind::Before)
            .or_else(|| self.changed(after, GUARD_BYTE, DamageKind::After))
    }

    fn after_release(&self) -> Option<Damage> {
        let inside = self.bytes(self.front, self.len).iter();
        self.changed(inside, RELEASED_BYTE, DamageKind::AfterRelease)
    }

    fn changed<'a>(
        &self,
        mut bytes: impl Iterator<Item = &'a u8>,
        expected: u8,
        kind: DamageKind,
    ) -> Option<Damage> {
        let distance = bytes.position(|&byte| byte != expected)?;
        let changed = 1 + bytes.filter(|&&byte| byte != expected).count();
        let (len, distance, changed) = (self.len.into(), distance.into(), changed.into());
        Some(Damage { owner: self.owner, len, kind, distance, changed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BestFit, System};

    fn ask(memory: &Debug, bytes: u64) -> Block {
        memory.allocate(Bytes(bytes), 64, Owner::here("gelu")).unwrap()
    }

    /// Writes one byte at a distance from a block's start.
    fn poke(block: &Block, offset: isize, byte: u8) {
        // SAFETY: The tests stay inside the guards around the block.
        unsafe { block.as_ptr().offset(offset).write(byte) }
    }

    fn peek(block: &Block, offset: usize) -> u8 {
        // SAFETY: The tests stay inside the block, which the debug allocator has filled.
        unsafe { block.as_ptr().add(offset).read() }
    }

    #[test]
    fn fresh_memory_is_poisoned_and_released_memory_too() {
        let memory = Debug::new(BestFit::new(Bytes::kib(64)).unwrap());
        let block = ask(&memory, 100);
        let ptr = block.as_ptr();
        assert!((0..100).all(|i| peek(&block, i) == FRESH_BYTE));
        memory.release(block).unwrap();
        // SAFETY: The region of `BestFit` lives on, and the debug allocator has written these bytes.
        let released = unsafe { NonNull::slice_from_raw_parts(ptr, 100).as_ref() };
        assert!(released.iter().all(|&byte| byte == RELEASED_BYTE));
    }

    #[test]
    fn writes_inside_the_block_are_nobodys_business() {
        let memory = Debug::new(System::new(Bytes::kib(64)));
        let block = ask(&memory, 100);
        (0..100).for_each(|i| poke(&block, i, 0));
        assert_eq!(memory.check(), []);
        memory.release(block).unwrap();
        assert_eq!(memory.check(), []);
    }

    #[test]
    fn a_write_past_the_end_is_reported_at_check_and_at_release_with_its_owner() {
        let memory = Debug::new(System::new(Bytes::kib(64)));
        let (block, line) = (memory.allocate(Bytes(100), 64, Owner::here("gelu")).unwrap(), line!());
        poke(&block, 102, 0);
        poke(&block, 163, 0);
        let [damage] = memory.check()[..] else { panic!("one block is damaged") };
        assert_eq!((damage.kind, damage.distance, damage.changed), (DamageKind::After, Bytes(2), Bytes(2)));
        let text = memory.release(block).unwrap_err().to_string();
        let expected = format!(
            "memory damaged: 2 bytes past the end (the first 3 past it) of the block of 100 B of gelu at \
             {}:{line} were overwritten; look at the ops that wrote to it",
            file!()
        );
        assert_eq!(text, expected);
        assert_eq!(memory.stats().blocks, 0, "a damaged block is released all the same");
        assert_eq!(memory.check(), [damage], "what a release found is kept for those who only drop");
    }

    #[test]
    fn a_write_before_the_start_is_reported() {
        let memory = Debug::new(System::new(Bytes::kib(64)));
        let block = memory.allocate(Bytes(100), 256, Owner::here("gelu")).unwrap();
        poke(&block, -256, 0);
        let [damage] = memory.check()[..] else { panic!("one block is damaged") };
        assert_eq!((damage.kind, damage.distance), (DamageKind::Before, Bytes(255)));
        assert!(matches!(memory.release(block), Err(ReleaseError::Damaged(found)) if found == damage));
    }

    #[test]
    fn a_write_after_the_release_is_seen_in_quarantine() {
        let inner = BestFit::new(Bytes::kib(4)).unwrap();
        let memory = Debug::with_quarantine(inner, Bytes::kib(2));
        let block = ask(&memory, 100);
        let stale = block.as_ptr();
        memory.release(block).unwrap();
        assert_eq!(memory.check(), []);
        // SAFETY: The block is in quarantine and its memory still there.
        unsafe { stale.add(7).write(0) };
        let [damage] = memory.check()[..] else { panic!("one block is damaged") };
        assert_eq!((damage.kind, damage.distance), (DamageKind::AfterRelease, Bytes(7)));
        assert_eq!(memory.stats().in_use, Bytes::ZERO);
        // The quarantine gives way to a request that needs the room, and what it showed is kept.
        let all = ask(&memory, 4096 - 128);
        assert_eq!(memory.check(), [damage]);
        memory.release(all).unwrap();
    }

    #[test]
    fn the_guards_count_towards_the_limit() {
        let memory = Debug::new(BestFit::new(Bytes(1024)).unwrap());
        assert_eq!(memory.stats().largest_free, Bytes(896));
        assert!(memory.allocate(Bytes(897), 64, Owner::here("gelu")).is_err());
        let block = ask(&memory, 896);
        assert_eq!(memory.stats().in_use, Bytes(1024));
        memory.release(block).unwrap();
    }
}
