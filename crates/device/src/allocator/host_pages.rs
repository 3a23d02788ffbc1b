//! Pages of the host's memory that move between addresses: reserved, mapped, remapped.
//!
//! An extent is a range of addresses of its own. Its pages are new ones as long as the limit allows that; then they are moved there from
//! extents that nobody uses (`mremap`), so that what the process holds never grows past the limit, and a page that was touched need not be
//! zeroed again. An extent that was put together of very many pieces is given back to the system instead, because the system keeps
//! a list of them.
//!
//! On systems other than Linux there is no such call: [`HostPages::new`] says so.

use super::paged::{Idle, NoPages, PageSource, Paged, PagesWanted};
use super::{HostMemory, MIN_ALIGN};
use crate::Bytes;

/// The smallest and the largest page; which it is depends on the limit.
const SMALLEST: u64 = 64 << 10;
const LARGEST: u64 = 2 << 20;
/// A limit is divided into about so many pages: few, since each may become a mapping of its own, of which a process has 65530.
const PAGES: u64 = 4096;
/// An extent of more pieces is given back to the system and not moved.
const MOST_PIECES: usize = 64;

/// An allocator over pages of the host's memory: a request that is not larger than what is free, in whole pages, is always met.
///
/// ```
/// use plimsoll_device::{Allocator, Bytes, Owner, Pages};
/// # #[cfg(target_os = "linux")] {
/// let memory = Pages::new(Bytes::mib(1))?;
/// let ask = |kib| memory.allocate(Bytes::kib(kib), 64, Owner::here("fill"));
/// let mut blocks: Vec<_> = (0..16).map(|_| ask(64).ok()).collect();
/// // Every other block goes: there is no hole of more than 64 KiB, and half of the memory is free.
/// for block in blocks.iter_mut().step_by(2) {
///     memory.release(block.take().unwrap())?;
/// }
/// assert!(ask(512).is_ok());
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type Pages = Paged<HostPages>;

/// Memory cannot be had by pages on this system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "this system cannot move pages between addresses, so there is no allocator 'pages' on its CPU; use best-fit, system or pool"
)]
pub struct NoRemapping;

impl Pages {
    /// At most `limit` bytes, rounded down to pages of 64 KiB to 2 MiB; takes none yet.
    ///
    /// # Errors
    /// The system cannot move pages.
    pub fn new(limit: Bytes) -> Result<Pages, NoRemapping> {
        Ok(Paged::over(HostPages::new(limit)?, limit))
    }
}

// SAFETY: a block is a range of an extent that no other block overlaps; an extent is private memory of this process that is readable and
// writable, and while a block lies in it nobody moves or gives back its pages.
unsafe impl HostMemory for Pages {}

/// Where the host's pages come from.
#[derive(Debug)]
pub struct HostPages {
    page: usize,
    taken: usize,
}

impl HostPages {
    /// Pages of a size that suits a limit.
    ///
    /// # Errors
    /// The system cannot move pages.
    pub fn new(limit: Bytes) -> Result<HostPages, NoRemapping> {
        let page = (limit.get() / PAGES).next_power_of_two().clamp(SMALLEST, LARGEST) as usize;
        match system::CAN_MOVE {
            true => Ok(HostPages { page, taken: 0 }),
            false => Err(NoRemapping),
        }
    }

    /// Moves the last pages of an extent to an address, at most so many; what is left of the extent, and how many were moved.
    fn move_last(&self, extent: &mut HostExtent, most: usize, to: usize) -> Option<usize> {
        let last = extent.pieces.last_mut()?;
        let n = most.min(*last);
        let from = extent.start + (extent.pages - n) * self.page;
        if !system::remap(from, to, n * self.page) {
            return None;
        }
        *last -= n;
        if *last == 0 {
            extent.pieces.pop();
        }
        extent.pages -= n;
        Some(n)
    }
}

/// A range of addresses with pages behind all of them, that came together in so many pieces.
#[derive(Debug)]
pub struct HostExtent {
    start: usize,
    pages: usize,
    /// The pages of each piece, in the order of addresses.
    pieces: Vec<usize>,
}

impl PageSource for HostPages {
    type Extent = HostExtent;

    const NAME: &'static str = "pages";

    const GRAIN: usize = MIN_ALIGN;

    fn page(&self) -> usize {
        self.page
    }

    fn taken(&self) -> usize {
        self.taken
    }

    fn extent(&mut self, wanted: PagesWanted, idle: &mut Idle<HostExtent>) -> Result<HostExtent, NoPages> {
        let PagesWanted { pages, most } = wanted;
        let bytes = pages.checked_mul(self.page).ok_or(NoPages)?;
        let start = system::reserve(bytes, self.page).ok_or(NoPages)?;
        let mut extent = HostExtent { start, pages: 0, pieces: Vec::new() };
        // New pages stand behind those that are moved, as many as the limit still has.
        while extent.pages + most.saturating_sub(self.taken) < pages {
            let Some(mut old) = idle.largest() else {
                system::give_back(start, bytes);
                self.taken -= extent.pages;
                return Err(NoPages);
            };
            let to = start + extent.pages * self.page;
            let missing = pages - extent.pages - most.saturating_sub(self.taken);
            let is_whole = old.pieces.len() <= MOST_PIECES && extent.pieces.len() < MOST_PIECES;
            match is_whole.then(|| self.move_last(&mut old, missing, to)).flatten() {
                Some(n) => {
                    extent.pages += n;
                    extent.pieces.push(n);
                    match old.pages {
                        0 => {}
                        left => idle.keep(left, old),
                    }
                }
                // What cannot be moved makes room for new ones.
                None => self.give_back(old),
            }
        }
        let fresh = pages - extent.pages;
        if fresh > 0 {
            if !system::open(start + extent.pages * self.page, fresh * self.page) {
                system::give_back(start, bytes);
                self.taken -= extent.pages;
                return Err(NoPages);
            }
            self.taken += fresh;
            extent.pages = pages;
            extent.pieces.push(fresh);
        }
        Ok(extent)
    }

    fn give_back(&mut self, extent: HostExtent) {
        system::give_back(extent.start, extent.pages * self.page);
        self.taken -= extent.pages;
    }

    fn start(extent: &HostExtent) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(extent.start)
    }

    fn pages(extent: &HostExtent) -> usize {
        extent.pages
    }
}

#[cfg(target_os = "linux")]
pub(crate) mod system {
    use std::ffi::{c_int, c_void};

    unsafe extern "C" {
        pub(crate) fn mmap(
            at: *mut c_void,
            length: usize,
            prot: c_int,
            flags: c_int,
            file: c_int,
            offset: i64,
        ) -> *mut c_void;
        pub(crate) fn munmap(at: *mut c_void, length: usize) -> c_int;
        fn mprotect(at: *mut c_void, length: usize, prot: c_int) -> c_int;
        fn mremap(old: *mut c_void, length: usize, new_length: usize, flags: c_int, ...) -> *mut c_void;
    }

    const PROT_NONE: c_int = 0;
    pub(crate) const PROT_READ_WRITE: c_int = 3;
    const MAP_PRIVATE_ANONYMOUS_NORESERVE: c_int = 0x02 | 0x20 | 0x4000;
    const MREMAP_MAYMOVE_FIXED: c_int = 1 | 2;

    pub const CAN_MOVE: bool = cfg!(target_pointer_width = "64");

    fn at(address: usize) -> *mut c_void {
        std::ptr::with_exposed_provenance_mut(address)
    }

    /// Addresses without memory, at a multiple of `align`.
    pub fn reserve(bytes: usize, align: usize) -> Option<usize> {
        let all = bytes.checked_add(align)?;
        // SAFETY: no place is asked for, so nothing that is mapped is replaced.
        let given =
            unsafe { mmap(std::ptr::null_mut(), all, PROT_NONE, MAP_PRIVATE_ANONYMOUS_NORESERVE, -1, 0) };
        let from = given.expose_provenance();
        if from == usize::MAX {
            return None;
        }
        let start = from.next_multiple_of(align);
        give_back(from, start - from);
        give_back(start + bytes, from + all - (start + bytes));
        Some(start)
    }

    /// Lets reserved addresses have memory; pages come when they are touched, as zeros.
    pub fn open(start: usize, bytes: usize) -> bool {
        // SAFETY: the range was reserved and is nobody's yet.
        unsafe { mprotect(at(start), bytes, PROT_READ_WRITE) == 0 }
    }

    /// Moves pages with what they hold to addresses that were reserved for them.
    pub fn remap(from: usize, to: usize, bytes: usize) -> bool {
        // SAFETY: nobody uses the old range, which is of one piece; the new one is reserved, of as many bytes, and nobody's yet.
        let moved = unsafe { mremap(at(from), bytes, bytes, MREMAP_MAYMOVE_FIXED, at(to)) };
        moved.addr() == to
    }

    /// Gives addresses and their memory back.
    pub fn give_back(start: usize, bytes: usize) {
        if bytes > 0 {
            // SAFETY: the range is this allocator's, and nobody uses it. Where the system refuses, it stays mapped.
            unsafe { munmap(at(start), bytes) };
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    pub const CAN_MOVE: bool = false;

    pub fn reserve(_: usize, _: usize) -> Option<usize> {
        None
    }

    pub fn open(_: usize, _: usize) -> bool {
        false
    }

    pub fn remap(_: usize, _: usize, _: usize) -> bool {
        false
    }

    pub fn give_back(_: usize, _: usize) {}
}
