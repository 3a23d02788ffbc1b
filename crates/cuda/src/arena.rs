//! One block of device memory that a program runs in: its address stays, its size follows the plan.

use crate::Cuda;
use crate::error::Error;
use crate::pages::{Page, Range, page_bytes};

/// Pages that are taken from the driver together: fewer calls, and coarser steps.
const TOGETHER: usize = 16;

/// Addresses reserved once, backed by as many pages as the plan at hand needs.
///
/// The addresses never change, so that a captured graph stays valid when a smaller plan gives memory back and a larger
/// one takes it again.
#[derive(Debug)]
pub struct Arena {
    cuda: Cuda,
    // The pages in address order, each with its offset; before the range, which must outlive their mapping.
    pages: Vec<(usize, Page)>,
    range: Range,
    page: usize,
    mapped: usize,
}

// SAFETY: handles and addresses of the driver, which any thread may use; changes need the arena itself.
unsafe impl Send for Arena {}
// SAFETY: as above; a shared arena gives copies of its address and sizes only.
unsafe impl Sync for Arena {}

impl Arena {
    /// Reserves addresses for at most `limit` bytes; takes no memory yet.
    ///
    /// # Errors
    /// The driver's refusal.
    pub fn new(cuda: &Cuda, limit: usize) -> Result<Arena, Error> {
        let page = page_bytes(cuda.card("an arena")?)?;
        let range = Range::new(cuda, limit.max(1).next_multiple_of(page))?;
        Ok(Arena { cuda: cuda.clone(), pages: Vec::new(), range, page, mapped: 0 })
    }

    /// The first address, the same for the arena's whole life.
    pub fn at(&self) -> *mut u8 {
        self.range.at()
    }

    /// Bytes of the card that the arena holds now.
    pub fn mapped(&self) -> usize {
        self.mapped
    }

    /// The most that it may hold.
    pub fn limit(&self) -> usize {
        self.range.bytes()
    }

    /// Holds as many bytes as are needed, rounded up to pages: takes more, or gives the rest back. What lies in the part
    /// that stays keeps its content.
    ///
    /// # Errors
    /// More than the limit, or the card has not so much left; the arena then holds what it held before.
    pub fn resize(&mut self, bytes: usize) -> Result<(), Error> {
        let wanted = bytes.next_multiple_of(self.page);
        if wanted > self.range.bytes() {
            return Err(Error::OutOfMemory { bytes: wanted, free: self.range.bytes() });
        }
        if wanted < self.mapped {
            self.cuda.synchronize()?;
            return self.shrink(wanted);
        }
        let before = self.mapped;
        while self.mapped < wanted {
            // Full groups first; the last pages one by one, so that no more is held than was asked for.
            let left = (wanted - self.mapped) / self.page;
            let bytes = self.page * if left >= TOGETHER { TOGETHER } else { 1 };
            let grown = Page::new(&self.cuda, bytes).and_then(|page| {
                self.range.map(self.mapped, &page)?;
                Ok(page)
            });
            match grown {
                Ok(page) => {
                    self.pages.push((self.mapped, page));
                    self.mapped += bytes;
                }
                Err(why) => {
                    self.shrink(before)?;
                    return Err(why);
                }
            }
        }
        Ok(())
    }

    /// Gives pages back until no more than `wanted` bytes are held. A group of pages that reaches below goes whole and
    /// its lower part is lost, so such a group is copied first.
    fn shrink(&mut self, wanted: usize) -> Result<(), Error> {
        while let Some((offset, page)) = self.pages.last() {
            let (offset, bytes) = (*offset, page.bytes);
            if offset + bytes <= wanted {
                break;
            }
            if offset >= wanted {
                self.range.unmap(offset, bytes)?;
                self.pages.pop();
                self.mapped = offset;
                continue;
            }
            // The group is cut: its lower part moves into pages of their own.
            let keep = wanted - offset;
            let spare = Range::new(&self.cuda, keep)?;
            let mut kept = Vec::new();
            for place in (0..keep).step_by(self.page) {
                let page = Page::new(&self.cuda, self.page)?;
                spare.map(place, &page)?;
                kept.push((offset + place, page));
            }
            // SAFETY: both are mapped, and as long.
            unsafe { self.cuda.copy(spare.at(), self.at().wrapping_add(offset), keep) }?;
            self.cuda.synchronize()?;
            spare.unmap(0, keep)?;
            self.range.unmap(offset, bytes)?;
            self.pages.pop();
            for (place, page) in kept {
                self.range.map(place, &page)?;
                self.pages.push((place, page));
            }
            self.mapped = wanted;
        }
        Ok(())
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // A drop cannot report a refusal; the driver takes everything back with the context.
        let _ = self.cuda.synchronize();
        while let Some((offset, page)) = self.pages.pop() {
            let _ = self.range.unmap(offset, page.bytes);
        }
    }
}
