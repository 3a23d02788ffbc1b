//! Copies between memory and a disk beside the kernels: a thread each way, in the order in which copies are started.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use super::file::DiskFile;
use super::{Disk, system};
use crate::backend::{Fault, HostArena};

/// A thread that copies needs little: calls of the system do the work.
const STACK: usize = 64 << 10;

/// A file to copy to, and the threads that do.
#[derive(Debug)]
pub struct DiskArena {
    disk: Arc<Disk>,
    file: Option<Arc<DiskFile>>,
    generation: u64,
    lanes: Arc<Lanes>,
    threads: Vec<JoinHandle<()>>,
}

/// What threads and the arena share.
#[derive(Debug, Default)]
struct Lanes {
    state: Mutex<LaneState>,
    /// A copy was started, or no more will be.
    started: Condvar,
    /// A copy is done.
    done: Condvar,
}

#[derive(Debug, Default)]
struct LaneState {
    /// Copies that wait: from the disk, and to it.
    waiting: [VecDeque<Copy>; 2],
    slots: Vec<Slot>,
    is_over: bool,
}

/// What became of the copy of a number.
#[derive(Debug)]
enum Slot {
    Free,
    UnderWay,
    Done(io::Result<()>),
}

#[derive(Debug)]
struct Copy {
    file: Arc<DiskFile>,
    offset: u64,
    at: *mut u8,
    bytes: usize,
    slot: usize,
}

// SAFETY: the address is followed under the promise of who started the copy: the memory lives, and is nobody else's until it was waited for.
unsafe impl Send for Copy {}

impl Lanes {
    fn state(&self) -> MutexGuard<'_, LaneState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(on: &Condvar, state: MutexGuard<'a, LaneState>) -> MutexGuard<'a, LaneState> {
        on.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Carries copies out one way, until there will be no more.
    fn carry(&self, out: bool) {
        loop {
            let mut state = self.state();
            let copy = loop {
                match state.waiting[usize::from(out)].pop_front() {
                    Some(copy) => break copy,
                    None if state.is_over => return,
                    None => state = Lanes::wait(&self.started, state),
                }
            };
            drop(state);
            let Copy { file, offset, at, bytes, slot } = copy;
            let done = if out {
                // SAFETY: the promise of `HostArena::store`: the source lives and stays as it is.
                system::write(file.file(), offset, unsafe { std::slice::from_raw_parts(at, bytes) })
            } else {
                // SAFETY: the promise of `HostArena::fetch`: the target lives and is nobody else's.
                system::read(file.file(), offset, unsafe { std::slice::from_raw_parts_mut(at, bytes) })
            };
            self.state().slots[slot] = Slot::Done(done);
            self.done.notify_all();
        }
    }
}

impl DiskArena {
    /// An arena without bytes.
    ///
    /// # Errors
    /// The system gives no threads.
    pub fn new(disk: &Arc<Disk>) -> Result<DiskArena, Fault> {
        let lanes = Arc::new(Lanes::default());
        let mut arena =
            DiskArena { disk: disk.clone(), file: None, generation: 0, lanes, threads: Vec::new() };
        for out in [false, true] {
            let lanes = arena.lanes.clone();
            let thread = std::thread::Builder::new().name("disk".into()).stack_size(STACK);
            let started = thread.spawn(move || lanes.carry(out));
            arena.threads.push(started.map_err(|why| disk.fault("copied by a thread", &why))?);
        }
        Ok(arena)
    }

    fn start(&self, out: bool, copy: Copy) -> Result<(), Fault> {
        let mut state = self.lanes.state();
        let (slot, slots) = (copy.slot, state.slots.len());
        match state.slots.get_mut(slot) {
            Some(free @ Slot::Free) => *free = Slot::UnderWay,
            _ => return Err(Fault::new("disk", format!("number {slot} of {slots} copies is not free"))),
        }
        state.waiting[usize::from(out)].push_back(copy);
        drop(state);
        self.lanes.started.notify_all();
        Ok(())
    }

    /// The arena's own bytes from an offset on.
    fn part(&self, at: *mut u8, offset: usize, bytes: usize, slot: usize) -> Result<Copy, Fault> {
        let fits = |file: &&Arc<DiskFile>| offset.checked_add(bytes).is_some_and(|end| end <= file.bytes());
        let file = self.file.as_ref().filter(fits).cloned().ok_or_else(|| {
            let of = self.bytes();
            Fault::new(
                "disk",
                format!("bytes {offset} and the next {bytes} are not within the {of} there are"),
            )
        })?;
        Ok(Copy { file, offset: offset as u64, at, bytes, slot })
    }

    /// Bytes of a block.
    fn of_block(&self, block: *const u8, at: *mut u8, bytes: usize, slot: usize) -> Result<Copy, Fault> {
        let none = || Fault::new("disk", format!("{bytes} bytes are copied that are kept in no file"));
        let (file, offset) = self.disk.find(block, bytes).ok_or_else(none)?;
        Ok(Copy { file, offset, at, bytes, slot })
    }
}

impl HostArena for DiskArena {
    fn fit(&mut self, bytes: usize, slots: usize) -> Result<(), Fault> {
        self.settle()?;
        self.generation += 1;
        // The old bytes go first: both together may be more than the disk can give.
        self.file = None;
        let mut state = self.lanes.state();
        state.slots.resize_with(slots, || Slot::Free);
        state.waiting.iter_mut().for_each(|lane| lane.reserve(slots));
        drop(state);
        if bytes > 0 {
            self.file = Some(Arc::new(DiskFile::new(&self.disk, bytes)?));
        }
        Ok(())
    }

    fn bytes(&self) -> usize {
        self.file.as_ref().map_or(0, |file| file.bytes())
    }

    fn slots(&self) -> usize {
        self.lanes.state().slots.len()
    }

    fn generation(&self) -> u64 {
        self.generation
    }

    unsafe fn offload(&self, from: *const u8, to: usize, bytes: usize, slot: usize) -> Result<(), Fault> {
        self.start(true, self.part(from.cast_mut(), to, bytes, slot)?)
    }

    unsafe fn prefetch(&self, from: usize, to: *mut u8, bytes: usize, slot: usize) -> Result<(), Fault> {
        self.start(false, self.part(to, from, bytes, slot)?)
    }

    unsafe fn fetch(&self, from: *const u8, to: *mut u8, bytes: usize, slot: usize) -> Result<(), Fault> {
        self.start(false, self.of_block(from, to, bytes, slot)?)
    }

    unsafe fn store(&self, from: *const u8, to: *mut u8, bytes: usize, slot: usize) -> Result<(), Fault> {
        self.start(true, self.of_block(to, from.cast_mut(), bytes, slot)?)
    }

    fn wait(&self, slot: usize) -> Result<(), Fault> {
        let mut state = self.lanes.state();
        loop {
            match state.slots.get_mut(slot) {
                Some(Slot::UnderWay) => state = Lanes::wait(&self.lanes.done, state),
                Some(done @ Slot::Done(_)) => {
                    let Slot::Done(done) = std::mem::replace(done, Slot::Free) else { return Ok(()) };
                    return done.map_err(|why| self.disk.fault("copied", &why));
                }
                _ => {
                    return Err(Fault::new("disk", format!("copy {slot} is waited for and was not started")));
                }
            }
        }
    }

    fn settle(&self) -> Result<(), Fault> {
        let mut state = self.lanes.state();
        while state.slots.iter().any(|slot| matches!(slot, Slot::UnderWay)) {
            state = Lanes::wait(&self.lanes.done, state);
        }
        state.slots.fill_with(|| Slot::Free);
        Ok(())
    }
}

impl Drop for DiskArena {
    fn drop(&mut self) {
        self.lanes.state().is_over = true;
        self.lanes.started.notify_all();
        // Each ends once it has carried out what waits for it.
        self.threads.drain(..).for_each(|thread| drop(thread.join()));
    }
}
