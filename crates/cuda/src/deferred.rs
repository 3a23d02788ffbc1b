//! Copies beside kernels, as the emulator does them: as late as they may be.
//!
//! On a card a copy is done at some time between its start and the wait for it. A stand-in that copied at once would forgive
//! a kernel that writes over the source too early, or reads the target. So a copy is put on a queue here and carried out
//! when it is waited for, together with those that were started before it the same way, as an engine would.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::sync::{Mutex, MutexGuard, PoisonError};

use plimsoll_device::backend::{ALIGNMENT, Fault, HostArena, HostBlock};

/// Host memory in the place of pinned memory.
#[derive(Debug)]
pub(crate) struct HostBuffer {
    at: *mut u8,
    bytes: usize,
}

// SAFETY: it owns its bytes; the address is followed under the promises of who uses them.
unsafe impl Send for HostBuffer {}
// SAFETY: as above.
unsafe impl Sync for HostBuffer {}

impl HostBuffer {
    /// So many bytes, zeroed.
    pub(crate) fn new(bytes: usize) -> Result<HostBuffer, Fault> {
        if bytes == 0 {
            return Ok(HostBuffer { at: std::ptr::null_mut(), bytes });
        }
        let Ok(layout) = Layout::from_size_align(bytes, ALIGNMENT) else {
            return Err(refused(format!("no address space has {bytes} bytes")));
        };
        // SAFETY: the layout has bytes.
        let at = unsafe { alloc_zeroed(layout) };
        if at.is_null() {
            return Err(refused(format!("the host has no {bytes} bytes left")));
        }
        Ok(HostBuffer { at, bytes })
    }
}

impl HostBlock for HostBuffer {
    fn place(&self) -> (*mut u8, usize) {
        (self.at, self.bytes)
    }
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        if self.bytes > 0
            && let Ok(layout) = Layout::from_size_align(self.bytes, ALIGNMENT)
        {
            // SAFETY: the bytes were taken with this very layout, and nobody has them any more.
            unsafe { dealloc(self.at, layout) };
        }
    }
}

/// Such memory, and the copies that are under way.
#[derive(Debug)]
pub(crate) struct DeferredCopies {
    memory: HostBuffer,
    slots: usize,
    generation: u64,
    waiting: Mutex<Vec<Waiting>>,
}

// SAFETY: the addresses of copies are followed under the promises of who started them.
unsafe impl Send for DeferredCopies {}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    slot: usize,
    out: bool,
    from: *const u8,
    to: *mut u8,
    bytes: usize,
    /// Whether it was carried out, with one that was waited for before it.
    done: bool,
}

impl DeferredCopies {
    /// An arena without memory.
    pub(crate) fn new() -> DeferredCopies {
        let memory = HostBuffer { at: std::ptr::null_mut(), bytes: 0 };
        DeferredCopies { memory, slots: 0, generation: 0, waiting: Mutex::default() }
    }

    fn waiting(&self) -> MutexGuard<'_, Vec<Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The address of bytes of the arena.
    fn part(&self, offset: usize, bytes: usize) -> Result<*mut u8, Fault> {
        if offset.checked_add(bytes).is_none_or(|end| end > self.memory.bytes) {
            let of = self.memory.bytes;
            return Err(refused(format!(
                "bytes {offset} and the next {bytes} are not within the {of} there are"
            )));
        }
        Ok(self.memory.at.wrapping_add(offset))
    }

    fn start(&self, copy: Waiting) -> Result<(), Fault> {
        let mut waiting = self.waiting();
        let slot = copy.slot;
        if slot >= self.slots || waiting.iter().any(|other| other.slot == slot) {
            return Err(refused(format!("number {slot} of {} is not free", self.slots)));
        }
        waiting.push(copy);
        Ok(())
    }
}

fn refused(why: String) -> Fault {
    Fault::new("copy", why)
}

impl HostArena for DeferredCopies {
    fn fit(&mut self, bytes: usize, slots: usize) -> Result<(), Fault> {
        // The old bytes go first, as with a card.
        self.memory = HostBuffer { at: std::ptr::null_mut(), bytes: 0 };
        self.generation += 1;
        let mut waiting = self.waiting();
        waiting.clear();
        waiting.reserve(slots);
        drop(waiting);
        self.slots = slots;
        self.memory = HostBuffer::new(bytes)?;
        Ok(())
    }

    fn bytes(&self) -> usize {
        self.memory.bytes
    }

    fn slots(&self) -> usize {
        self.slots
    }

    fn generation(&self) -> u64 {
        self.generation
    }

    unsafe fn offload(&self, from: *const u8, to: usize, bytes: usize, slot: usize) -> Result<(), Fault> {
        let to = self.part(to, bytes)?;
        self.start(Waiting { slot, out: true, from, to, bytes, done: false })
    }

    unsafe fn prefetch(&self, from: usize, to: *mut u8, bytes: usize, slot: usize) -> Result<(), Fault> {
        let from = self.part(from, bytes)?;
        self.start(Waiting { slot, out: false, from, to, bytes, done: false })
    }

    unsafe fn fetch(&self, from: *const u8, to: *mut u8, bytes: usize, slot: usize) -> Result<(), Fault> {
        self.start(Waiting { slot, out: false, from, to, bytes, done: false })
    }

    unsafe fn store(&self, from: *const u8, to: *mut u8, bytes: usize, slot: usize) -> Result<(), Fault> {
        self.start(Waiting { slot, out: true, from, to, bytes, done: false })
    }

    fn wait(&self, slot: usize) -> Result<(), Fault> {
        let mut waiting = self.waiting();
        let Some(last) = waiting.iter().position(|copy| copy.slot == slot) else {
            return Err(refused(format!("number {slot} is waited for and was not started")));
        };
        let out = waiting[last].out;
        for copy in waiting[..=last].iter_mut().filter(|copy| copy.out == out && !copy.done) {
            // SAFETY: the promise of who started it: both sides have as many bytes, and the arena is apart from the device's
            // memory.
            unsafe { copy.from.copy_to_nonoverlapping(copy.to, copy.bytes) };
            copy.done = true;
        }
        waiting.remove(last);
        Ok(())
    }

    fn settle(&self) -> Result<(), Fault> {
        self.waiting().clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arena(bytes: usize, slots: usize) -> DeferredCopies {
        let mut arena = DeferredCopies::new();
        arena.fit(bytes, slots).unwrap();
        arena
    }

    /// Starts a copy of a block to the arena.
    fn offload(arena: &DeferredCopies, block: &[u8], to: usize, slot: usize) -> Result<(), Fault> {
        // SAFETY: the tests hold their blocks until they have waited, or expect to see what was changed meanwhile.
        unsafe { arena.offload(block.as_ptr(), to, block.len(), slot) }
    }

    fn prefetch(arena: &DeferredCopies, from: usize, block: &mut [u8], slot: usize) -> Result<(), Fault> {
        // SAFETY: as above.
        unsafe { arena.prefetch(from, block.as_mut_ptr(), block.len(), slot) }
    }

    #[test]
    fn what_goes_to_the_host_comes_back() {
        let arena = arena(128, 2);
        let mut block: Vec<u8> = (0..64).collect();
        offload(&arena, &block, 64, 0).unwrap();
        arena.wait(0).unwrap();
        block.fill(0);
        prefetch(&arena, 64, &mut block, 1).unwrap();
        arena.wait(1).unwrap();
        assert_eq!(block, (0..64).collect::<Vec<u8>>());
    }

    #[test]
    fn a_source_that_is_written_before_the_wait_is_lost() {
        let arena = arena(64, 1);
        let mut block = vec![1u8; 64];
        offload(&arena, &block, 0, 0).unwrap();
        block.fill(2);
        arena.wait(0).unwrap();
        prefetch(&arena, 0, &mut block, 0).unwrap();
        block.fill(3);
        assert_eq!(block, [3; 64], "nothing comes back before it is waited for");
        arena.wait(0).unwrap();
        assert_eq!(block, [2; 64]);
    }

    #[test]
    fn a_wait_carries_out_what_was_started_before_it_the_same_way_and_nothing_else() {
        let arena = arena(192, 4);
        let (first, second, third) = ([1u8; 64], [2u8; 64], [3u8; 64]);
        let mut back = [9u8; 64];
        offload(&arena, &first, 0, 0).unwrap();
        prefetch(&arena, 128, &mut back, 1).unwrap();
        offload(&arena, &second, 64, 2).unwrap();
        offload(&arena, &third, 128, 3).unwrap();
        arena.wait(2).unwrap();
        let done: Vec<(usize, bool)> = arena.waiting().iter().map(|copy| (copy.slot, copy.done)).collect();
        assert_eq!(done, [(0, true), (1, false), (3, false)]);
        arena.wait(1).unwrap();
        assert_eq!(back, [0; 64], "the third block has not arrived");
        arena.wait(0).unwrap();
        assert!(arena.wait(0).is_err(), "a copy is waited for once");
    }

    #[test]
    fn copies_past_the_arena_or_its_slots_are_refused() {
        let arena = arena(64, 1);
        let block = [0u8; 64];
        assert!(offload(&arena, &block, 1, 0).unwrap_err().why.contains("not within the 64"));
        assert!(offload(&arena, &block, usize::MAX, 0).is_err());
        assert!(offload(&arena, &block, 0, 1).unwrap_err().why.contains("number 1 of 1"));
        offload(&arena, &block, 0, 0).unwrap();
        assert!(offload(&arena, &block, 0, 0).unwrap_err().why.contains("not free"));
        arena.settle().unwrap();
        assert!(arena.wait(0).is_err());
    }
}
