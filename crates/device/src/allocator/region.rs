//! Turns a size into address space whose pages exist once they are touched.

use std::alloc::{Layout, alloc, dealloc};
use std::num::NonZero;
use std::ptr::NonNull;

use super::MIN_ALIGN;

/// The region starts on a page, so that offsets and addresses are aligned alike up to this.
const REGION_ALIGN: usize = 4096;

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
        let start = unsafe { alloc(layout) };
        Some(Region { start: NonNull::new(start)?, layout })
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

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: The memory came from `alloc` with this layout and is given back once.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}
