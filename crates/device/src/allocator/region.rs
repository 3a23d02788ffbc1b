//! Turns a size into address space whose pages exist once they are touched.

use std::alloc::{Layout, alloc, dealloc};
use std::num::NonZero;
use std::ptr::NonNull;

use super::MIN_ALIGN;

/// The region starts on a page, so that offsets and addresses are aligned alike up to this.
const REGION_ALIGN: usize = 4096;

/// A request of so many bytes is given pages of its own, which go back to the system when it is: the C library takes none above half
/// of this from its heap.
const OWN_PAGES: usize = 64 << 20;

/// An aligned address for a block of no bytes.
pub(super) fn dangling(align: usize) -> NonNull<u8> {
    NonNull::without_provenance(NonZero::new(align).unwrap_or(NonZero::<usize>::MIN))
}

/// Address space that is given back on drop.
#[derive(Debug)]
pub(super) struct Region {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: The region owns its memory and never reads or writes it; it only computes addresses in it.
unsafe impl Send for Region {}
// SAFETY: As above.
unsafe impl Sync for Region {}

impl Region {
    /// Large requests go to the operating system, which gives pages that exist once they are touched.
    pub fn reserve(size: usize) -> Option<Region> {
        let layout = Layout::from_size_align(size.max(MIN_ALIGN), REGION_ALIGN).ok()?;
        // SAFETY: The size of the layout is not zero.
        let start = NonNull::new(unsafe { alloc(layout) })?;
        if size >= OWN_PAGES {
            pages::keep_from_children(start, size / REGION_ALIGN * REGION_ALIGN);
        }
        Some(Region { start, layout })
    }

    pub fn address(&self) -> usize {
        self.start.addr().get()
    }

    pub fn at(&self, offset: usize) -> NonNull<u8> {
        debug_assert!(offset < self.layout.size());
        // SAFETY: Offsets come from holes, which all lie inside the region.
        unsafe { self.start.add(offset) }
    }
}

impl Region {
    /// Gives the whole pages of a range back to the system; they come back as zeros when they are touched again.
    pub fn discard(&self, offset: usize, size: usize) {
        let (start, end) = (self.address() + offset, self.address() + offset + size);
        let (start, end) = (start.next_multiple_of(REGION_ALIGN), end / REGION_ALIGN * REGION_ALIGN);
        if start < end {
            pages::discard(self.at(start - self.address()), end - start);
        }
    }
}

#[cfg(target_os = "linux")]
mod pages {
    use std::ffi::{c_int, c_void};
    use std::ptr::NonNull;

    unsafe extern "C" {
        fn madvise(start: *mut c_void, length: usize, advice: c_int) -> c_int;
    }

    const MADV_DONTNEED: c_int = 4;
    const MADV_DONTFORK: c_int = 10;

    /// Leaves pages out of forked children. Most of a region is address space that is never touched, and a system that would have to
    /// promise it to a child too refuses to fork.
    pub fn keep_from_children(start: NonNull<u8>, length: usize) {
        // SAFETY: The range is whole pages that are the region's own; should the system refuse, children merely have them.
        unsafe { madvise(start.as_ptr().cast(), length, MADV_DONTFORK) };
    }

    pub fn discard(start: NonNull<u8>, length: usize) {
        // SAFETY: The range is whole pages of private anonymous memory of the region that no block lies in; should
        // the system refuse, the pages merely stay.
        unsafe { madvise(start.as_ptr().cast(), length, MADV_DONTNEED) };
    }
}

#[cfg(not(target_os = "linux"))]
mod pages {
    pub fn discard(_: std::ptr::NonNull<u8>, _: usize) {}
    pub fn keep_from_children(_: std::ptr::NonNull<u8>, _: usize) {}
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: The memory came from `alloc` with this layout and is given back once.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}
