//! Pages of a card as a source of extents: whichever pages are free are mapped behind addresses one after the other.
//!
//! Extents that were released stay mapped until their pages are needed elsewhere, because mapping takes time and reuse in the order
//! of the stream needs no waiting; the books are the same as on the host ([`Paged`]).

use plimsoll_device::{Bytes, Idle, NoPages, PageSource, Paged, PagesWanted};

use crate::Cuda;
use crate::error::Error;
use crate::pages::{Page, Range, page_bytes};

/// An allocator over pages of a card.
pub type PagePool = Paged<CardPages>;

/// Addresses of a card with pages behind all of them.
#[derive(Debug)]
pub struct CardExtent {
    // Before the range, so that they go first; what is mapped is unmapped before either goes.
    pages: Vec<Page>,
    range: Range,
}

/// Where a card's pages come from.
#[derive(Debug)]
pub struct CardPages {
    cuda: Cuda,
    page: usize,
    /// Pages that are mapped nowhere.
    spare: Vec<Page>,
    /// Pages taken from the driver.
    taken: usize,
}

impl CardPages {
    /// The pages of a card; takes none yet.
    ///
    /// # Errors
    /// The driver's refusal.
    pub fn new(cuda: &Cuda) -> Result<CardPages, Error> {
        let page = page_bytes(cuda.card("a pool")?)?;
        Ok(CardPages { cuda: cuda.clone(), page, spare: Vec::new(), taken: 0 })
    }

    /// A pool of at most `limit` bytes, rounded down to pages; takes none yet.
    ///
    /// # Errors
    /// The driver's refusal.
    pub fn pool(cuda: &Cuda, limit: Bytes) -> Result<PagePool, Error> {
        Ok(Paged::over(CardPages::new(cuda)?, limit))
    }

    /// Takes idle extents apart until so many pages are spare.
    fn free_idle(&mut self, pages: usize, idle: &mut Idle<CardExtent>) -> Result<(), Error> {
        let mut waited = false;
        while self.spare.len() < pages {
            let Some(mut extent) = idle.largest() else { break };
            if !waited {
                // Kernels that used these addresses may still be on the stream.
                self.cuda.synchronize()?;
                waited = true;
            }
            extent.range.unmap(0, extent.range.bytes())?;
            self.spare.append(&mut extent.pages);
        }
        Ok(())
    }

    fn mapped(&mut self, wanted: PagesWanted, idle: &mut Idle<CardExtent>) -> Result<CardExtent, Error> {
        let PagesWanted { pages, most } = wanted;
        while self.spare.len() < pages && self.taken < most {
            match Page::new(&self.cuda, self.page) {
                Ok(page) => {
                    self.spare.push(page);
                    self.taken += 1;
                }
                // The card is full: what lies idle must do.
                Err(Error::OutOfMemory { .. }) => break,
                Err(why) => return Err(why),
            }
        }
        self.free_idle(pages, idle)?;
        if self.spare.len() < pages {
            // What was gathered is of no use to anybody here, and others wait for it.
            self.give_back_spare();
            let (free, _) = self.cuda.memory()?;
            return Err(Error::OutOfMemory { bytes: pages * self.page, free });
        }
        let range = Range::new(&self.cuda, pages * self.page)?;
        let chosen = self.spare.split_off(self.spare.len() - pages);
        for (i, page) in chosen.iter().enumerate() {
            if let Err(why) = range.map(i * self.page, page) {
                range.unmap(0, i * self.page)?;
                self.spare.extend(chosen);
                return Err(why);
            }
        }
        Ok(CardExtent { pages: chosen, range })
    }
}

impl PageSource for CardPages {
    type Extent = CardExtent;

    const NAME: &'static str = "pages";

    const GRAIN: usize = 256;

    fn page(&self) -> usize {
        self.page
    }

    fn taken(&self) -> usize {
        self.taken
    }

    fn extent(&mut self, wanted: PagesWanted, idle: &mut Idle<CardExtent>) -> Result<CardExtent, NoPages> {
        self.mapped(wanted, idle).map_err(|_| NoPages)
    }

    fn settle(&mut self) {
        // What a kernel refused is told by whoever waits for its results.
        let _ = self.cuda.synchronize();
    }

    fn give_back(&mut self, mut extent: CardExtent) {
        // What cannot be unmapped stays, and is counted as taken; the driver takes everything back with the context.
        if extent.range.unmap(0, extent.range.bytes()).is_ok() {
            self.taken -= extent.pages.len();
            extent.pages.clear();
        }
    }

    fn give_back_spare(&mut self) {
        self.taken -= self.spare.len();
        self.spare.clear();
    }

    fn start(extent: &CardExtent) -> *mut u8 {
        extent.range.at()
    }

    fn pages(extent: &CardExtent) -> usize {
        extent.pages.len()
    }
}
