//! The memory that one run of a program works in.

use plimsoll_device::backend::HostArena;

use crate::lower::Place;

/// The memory that a program runs in. What it points to outlives the run: see [`super::Program::run`].
#[derive(Clone, Copy)]
pub(crate) struct ProgramMemory<'a> {
    pub(crate) arguments: &'a [*mut u8],
    pub(crate) results: &'a [*mut u8],
    /// The arena.
    pub(crate) arena: *mut u8,
    /// The host's arena, where there is one.
    pub(crate) host: Option<&'a dyn HostArena>,
}

impl ProgramMemory<'_> {
    /// The address of a place.
    ///
    /// # Safety
    /// The place must be one of a program that this memory was made for.
    pub(super) unsafe fn at(&self, place: Place) -> *mut u8 {
        match place {
            Place::Argument(i) => self.arguments[i],
            Place::Result(i) => self.results[i],
            // SAFETY: a verified plan's offsets lie inside the arena.
            Place::Arena(offset) => unsafe { self.arena.add(offset) },
        }
    }
}
