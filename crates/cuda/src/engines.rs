//! Copies beside kernels, on the card's two copy engines: one queue to the host, one back, and events that tie them to the
//! kernels' stream.
//!
//! A copy's queue waits for an event of the kernels' stream, and the kernels' stream for an event of the copy. While the
//! kernels' stream is captured, that is what draws the queue into the capture and ends it there again: a copy becomes a node
//! of the graph beside those of kernels. Events are made once and marked again for every copy; a wait concerns where an
//! event stood when it was put on the stream.

use std::cell::Cell;

use plimsoll_device::backend::{Fault, HostArena};

use crate::Cuda;
use crate::error::Error;
use crate::memory::Pinned;
use crate::stream::{Event, Stream};

/// Pinned memory with the queues that copy to and from it.
#[derive(Debug)]
pub(crate) struct Engines {
    cuda: Cuda,
    down: Stream,
    up: Stream,
    /// Where the kernels' stream was when the last copy was started.
    fork: Event,
    /// The ends of copies, by slot.
    done: Vec<Event>,
    pinned: Option<Pinned>,
    generation: u64,
    /// The event that the next copy ends with, where its time is asked for.
    ends_at: Cell<Option<usize>>,
}

impl Engines {
    /// Queues without memory.
    pub(crate) fn new(cuda: &Cuda) -> Result<Engines, Error> {
        Ok(Engines {
            cuda: cuda.clone(),
            down: Stream::new(cuda)?,
            up: Stream::new(cuda)?,
            fork: Event::untimed(cuda)?,
            done: Vec::new(),
            pinned: None,
            generation: 0,
            ends_at: Cell::new(None),
        })
    }

    /// Puts a copy on one of the queues.
    fn start(
        &self,
        queue: &Stream,
        slot: usize,
        copy: impl FnOnce() -> Result<(), Error>,
    ) -> Result<(), Error> {
        let Some(done) = self.done.get(slot) else { return Err(no_slot(slot, self.done.len())) };
        self.cuda.mark(&self.fork)?;
        queue.wait_for(&self.fork)?;
        copy()?;
        if let Some(handle) = self.ends_at.take() {
            // Before the event that others wait for, so that a capture knows where the queue ends.
            // SAFETY: the promise of `end_at`.
            unsafe { queue.mark_time(std::ptr::with_exposed_provenance_mut(handle)) }?;
        }
        queue.mark(done)
    }

    /// The arena's bytes.
    fn pinned(&self) -> Result<&Pinned, Error> {
        let why = || Error::Driver { call: "a copy", why: "the host's arena is empty".into() };
        self.pinned.as_ref().ok_or_else(why)
    }
}

/// What is said of a copy for which no room was made.
fn no_slot(slot: usize, slots: usize) -> Error {
    Error::Driver { call: "a copy", why: format!("it has number {slot} and there is room for {slots}") }
}

impl HostArena for Engines {
    fn fit(&mut self, bytes: usize, slots: usize) -> Result<(), Fault> {
        self.settle()?;
        self.generation += 1;
        // The old bytes go first: both together may be more than the host can give.
        self.pinned = None;
        while self.done.len() < slots {
            self.done.push(Event::untimed(&self.cuda).map_err(Error::into_fault)?);
        }
        if bytes > 0 {
            self.pinned = Some(Pinned::or_refuse(&self.cuda, bytes)?);
        }
        Ok(())
    }

    fn bytes(&self) -> usize {
        self.pinned.as_ref().map_or(0, |pinned| pinned.bytes().len())
    }

    fn slots(&self) -> usize {
        self.done.len()
    }

    fn generation(&self) -> u64 {
        self.generation
    }

    unsafe fn offload(&self, from: *const u8, to: usize, bytes: usize, slot: usize) -> Result<(), Fault> {
        // SAFETY: the caller's promise; the pinned bytes live until the queues have been waited for.
        let copy = || unsafe { self.down.download(from, self.pinned()?, to, bytes) };
        self.start(&self.down, slot, copy).map_err(Error::into_fault)
    }

    unsafe fn prefetch(&self, from: usize, to: *mut u8, bytes: usize, slot: usize) -> Result<(), Fault> {
        // SAFETY: as above.
        let copy = || unsafe { self.up.upload(to, self.pinned()?, from, bytes) };
        self.start(&self.up, slot, copy).map_err(Error::into_fault)
    }

    unsafe fn fetch(&self, from: *const u8, to: *mut u8, bytes: usize, slot: usize) -> Result<(), Fault> {
        // SAFETY: the caller's promise.
        let copy = || unsafe { self.up.upload_from(to, from, bytes) };
        self.start(&self.up, slot, copy).map_err(Error::into_fault)
    }

    unsafe fn store(&self, from: *const u8, to: *mut u8, bytes: usize, slot: usize) -> Result<(), Fault> {
        // SAFETY: the caller's promise.
        let copy = || unsafe { self.down.download_to(from, to, bytes) };
        self.start(&self.down, slot, copy).map_err(Error::into_fault)
    }

    unsafe fn end_at(&self, handle: usize) {
        self.ends_at.set(Some(handle));
    }

    fn wait(&self, slot: usize) -> Result<(), Fault> {
        let done = self.done.get(slot).ok_or_else(|| no_slot(slot, self.done.len()));
        done.and_then(|done| self.cuda.wait_for(done)).map_err(Error::into_fault)
    }

    fn settle(&self) -> Result<(), Fault> {
        let both = self.down.synchronize().and(self.up.synchronize());
        both.map_err(Error::into_fault)
    }
}

impl Drop for Engines {
    fn drop(&mut self) {
        // Graphs that were captured with the pinned bytes may be under way too. A drop cannot report a refusal.
        let _ = self.settle();
        let _ = self.cuda.synchronize();
    }
}
