//! Turns requests into blocks over pages that can be mapped anywhere, for tensors whose lifetimes nobody knows.
//!
//! A block of more than half a page has addresses of its own, and whichever pages are free are mapped there: a hole is never in the
//! way. Smaller blocks share pages. What counts as in use is whole pages, so that every request that is not larger than what is
//! free is met, whatever came and went before.
//!
//! Blocks that were released stay mapped until their pages are needed elsewhere, because mapping takes time. Where pages come from, and
//! how they get behind addresses, is a [`PageSource`]'s: the host's ([`HostPages`](super::HostPages)), or a card's.

use std::collections::BTreeMap;
use std::fmt;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustc_hash::FxHashMap;

use super::tally::holders;
use super::{Allocator, AllocatorId, Block, Holes, ReleaseError, Stats};
use crate::{Bytes, HOLDERS_IN_AN_ERROR, Holder, OutOfMemory, Owner};

/// Where pages come from, and how they get behind addresses.
pub trait PageSource: Send + fmt::Debug {
    /// Addresses with pages behind all of them. What is dropped without [`PageSource::give_back`] may stay mapped.
    type Extent: Send + fmt::Debug;

    /// What its allocator is called.
    const NAME: &'static str;

    /// Small blocks start at multiples of this.
    const GRAIN: usize;

    /// The bytes of a page.
    fn page(&self) -> usize;

    /// Pages that were taken from the system and not given back, whether they are mapped or not.
    fn taken(&self) -> usize;

    /// Addresses with pages behind them: new ones as long as no more are taken in all than may be, else those of `idle` extents, which
    /// are taken apart for it.
    ///
    /// # Errors
    /// The system gives no more, though so many would be allowed; what was gathered is given back.
    fn extent(&mut self, wanted: PagesWanted, idle: &mut Idle<Self::Extent>)
    -> Result<Self::Extent, NoPages>;

    /// Waits until the device is done with all that was released: before anything is given back.
    fn settle(&mut self) {}

    /// Gives the pages of an extent that nobody uses back to the system.
    fn give_back(&mut self, extent: Self::Extent);

    /// Gives back what is kept beside extents.
    fn give_back_spare(&mut self) {}

    /// The first address of an extent.
    fn start(extent: &Self::Extent) -> *mut u8;

    /// The pages of an extent.
    fn pages(extent: &Self::Extent) -> usize;
}

/// How many pages an extent is to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PagesWanted {
    /// The pages of the extent.
    pub pages: usize,
    /// The most that may be taken in all.
    pub most: usize,
}

/// The system gave no more pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoPages;

/// Mapped extents that nobody uses, by their number of pages.
#[derive(Debug)]
pub struct Idle<E>(BTreeMap<usize, Vec<E>>);

impl<E> Idle<E> {
    /// One of exactly so many pages.
    pub fn exactly(&mut self, pages: usize) -> Option<E> {
        self.0.get_mut(&pages).and_then(Vec::pop)
    }

    /// One of the largest.
    pub fn largest(&mut self) -> Option<E> {
        loop {
            let mut last = self.0.last_entry()?;
            match last.get_mut().pop() {
                Some(extent) => return Some(extent),
                None => last.remove(),
            };
        }
    }

    /// Keeps one of so many pages.
    pub fn keep(&mut self, pages: usize, extent: E) {
        self.0.entry(pages).or_default().push(extent);
    }
}

impl<E> Default for Idle<E> {
    fn default() -> Idle<E> {
        Idle(BTreeMap::new())
    }
}

#[derive(Debug)]
enum Home<E> {
    /// Addresses and pages of its own.
    Own(E),
    /// A part of a shared page: its number, where it starts and how long it is.
    Shared { page: u64, start: usize, bytes: usize },
    /// No bytes.
    Nowhere,
}

/// Where a block is, and its address.
type Placed<E> = (Home<E>, *mut u8);

#[derive(Debug)]
struct Live<E> {
    home: Home<E>,
    bytes: usize,
    owner: Owner,
}

#[derive(Debug)]
struct State<S: PageSource> {
    source: S,
    live: FxHashMap<u64, Live<S::Extent>>,
    shared: BTreeMap<u64, (S::Extent, Holes)>,
    idle: Idle<S::Extent>,
    next: u64,
    /// Pages of live extents, shared ones included.
    used: usize,
    peak: usize,
    /// What memory limits leave for this allocator, in pages, by whose they are.
    limits: BTreeMap<u64, usize>,
}

/// An allocator over pages.
#[derive(Debug)]
pub struct Paged<S: PageSource> {
    id: AllocatorId,
    page: usize,
    limit: usize,
    state: Mutex<State<S>>,
}

impl<S: PageSource> Paged<S> {
    /// At most `limit` bytes of a source, rounded down to pages; takes none yet.
    pub fn over(source: S, limit: Bytes) -> Paged<S> {
        let page = source.page();
        let limit = limit.to_usize().unwrap_or(usize::MAX) / page;
        let state = State {
            source,
            live: FxHashMap::default(),
            shared: BTreeMap::new(),
            idle: Idle::default(),
            next: 0,
            used: 0,
            peak: 0,
            limits: BTreeMap::new(),
        };
        Paged { id: AllocatorId::new(), page, limit, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State<S>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn bytes(&self, pages: usize) -> Bytes {
        Bytes::from(pages.saturating_mul(self.page))
    }

    /// The most pages that may be held as things are: the limit, or less where a memory limit is lower.
    fn most(&self, s: &State<S>) -> usize {
        s.limits.values().copied().min().map_or(self.limit, |limit| limit.min(self.limit))
    }

    fn stats_of(&self, s: &State<S>, limit: usize) -> Stats {
        let free = self.bytes(limit.saturating_sub(s.used));
        let (used, peak, taken) = (self.bytes(s.used), self.bytes(s.peak), self.bytes(s.source.taken()));
        Stats::new(used, peak, taken, self.bytes(limit), free, s.live.len())
    }

    fn holders_of(s: &State<S>, n: usize) -> Vec<Holder> {
        holders(s.live.values().map(|live| (live.owner, live.bytes.into())), n)
    }

    /// Addresses with so many pages behind them; the caller has seen that so many are free.
    fn extent(&self, s: &mut State<S>, pages: usize) -> Result<S::Extent, NoPages> {
        let most = self.most(s);
        let extent = match s.idle.exactly(pages) {
            Some(extent) => extent,
            None => s.source.extent(PagesWanted { pages, most }, &mut s.idle)?,
        };
        s.used += pages;
        Ok(extent)
    }

    fn retire(s: &mut State<S>, extent: S::Extent) {
        let pages = S::pages(&extent);
        s.used -= pages;
        s.idle.keep(pages, extent);
    }

    fn place(
        &self,
        s: &mut State<S>,
        bytes: usize,
        align: usize,
    ) -> Result<Option<Placed<S::Extent>>, NoPages> {
        let free = self.most(s).saturating_sub(s.used);
        if bytes > self.page / 2 {
            let pages = bytes.div_ceil(self.page);
            if pages > free {
                return Ok(None);
            }
            let extent = self.extent(s, pages)?;
            let at = S::start(&extent);
            return Ok(Some((Home::Own(extent), at)));
        }
        let bytes = bytes.next_multiple_of(S::GRAIN);
        for (&page, (extent, holes)) in &mut s.shared {
            if let Some(start) = holes.take(bytes, align) {
                let at = S::start(extent).wrapping_add(start);
                return Ok(Some((Home::Shared { page, start, bytes }, at)));
            }
        }
        if free == 0 {
            return Ok(None);
        }
        let extent = self.extent(s, 1)?;
        let (at, page, mut holes) = (S::start(&extent), s.next, Holes::whole(self.page));
        s.next += 1;
        let start = holes.take(bytes, align).unwrap_or(0);
        s.shared.insert(page, (extent, holes));
        Ok(Some((Home::Shared { page, start, bytes }, at.wrapping_add(start))))
    }
}

impl<S: PageSource> Allocator for Paged<S> {
    /// Alignments above the page size are not met; no kernel asks for one.
    fn allocate(&self, bytes: Bytes, align: usize, owner: Owner) -> Result<Block, OutOfMemory> {
        let mut s = self.state();
        let refusal = |s: &State<S>| {
            let (most, holders) = (self.most(s), Paged::holders_of(s, HOLDERS_IN_AN_ERROR));
            let refusal = OutOfMemory::new(bytes, owner, &self.stats_of(s, most), holders);
            if most < self.limit { refusal.by_limit() } else { refusal }
        };
        let Some(length) = bytes.to_usize().filter(|length| *length <= isize::MAX as usize) else {
            return Err(refusal(&s));
        };
        let align = align.max(S::GRAIN).checked_next_power_of_two().filter(|align| *align <= self.page);
        let Some(align) = align else { return Err(refusal(&s).by_system()) };
        let placed = match length {
            0 => Ok(Some((Home::Nowhere, std::ptr::without_provenance_mut(align)))),
            _ => self.place(&mut s, length, align),
        };
        let (home, at) = match placed {
            Ok(Some(placed)) => placed,
            Ok(None) => return Err(refusal(&s)),
            Err(NoPages) => return Err(refusal(&s).by_system()),
        };
        s.peak = s.peak.max(s.used);
        let key = s.next;
        s.next += 1;
        s.live.insert(key, Live { home, bytes: length, owner });
        let ptr = NonNull::new(at).unwrap_or(NonNull::dangling());
        Ok(Block::new(&self.id, key, ptr, length))
    }

    fn release(&self, block: Block) -> Result<(), ReleaseError> {
        let key = block.open(&self.id)?;
        let mut guard = self.state();
        let s = &mut *guard;
        match s.live.remove(&key).map(|live| live.home) {
            Some(Home::Own(extent)) => Paged::retire(s, extent),
            Some(Home::Shared { page, start, bytes }) => {
                let emptied = match s.shared.get_mut(&page) {
                    Some((_, holes)) => {
                        holes.give(start, bytes);
                        holes.is_whole(self.page)
                    }
                    None => false,
                };
                if emptied && let Some((extent, _)) = s.shared.remove(&page) {
                    Paged::retire(s, extent);
                }
            }
            Some(Home::Nowhere) | None => {}
        }
        Ok(())
    }

    fn stats(&self) -> Stats {
        self.stats_of(&self.state(), self.limit)
    }

    fn reset_peak(&self) {
        let mut s = self.state();
        s.peak = s.used;
    }

    fn release_unused(&self) {
        let mut guard = self.state();
        let s = &mut *guard;
        s.source.settle();
        while let Some(extent) = s.idle.largest() {
            s.source.give_back(extent);
        }
        s.source.give_back_spare();
    }

    fn hold_to(&self, who: u64, most: Option<Bytes>) {
        let pages = most.map(|most| most.to_usize().unwrap_or(usize::MAX) / self.page);
        let limits = &mut self.state().limits;
        match pages {
            Some(pages) => limits.insert(who, pages),
            None => limits.remove(&who),
        };
    }

    fn page(&self) -> Bytes {
        Bytes::from(self.page)
    }

    fn name(&self) -> &'static str {
        S::NAME
    }

    fn holders(&self, n: usize) -> Vec<Holder> {
        Paged::holders_of(&self.state(), n)
    }
}

impl<S: PageSource> Drop for Paged<S> {
    fn drop(&mut self) {
        let s = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        s.source.settle();
        let live = s.live.drain().filter_map(|(_, live)| match live.home {
            Home::Own(extent) => Some(extent),
            _ => None,
        });
        let shared = std::mem::take(&mut s.shared).into_values().map(|(extent, _)| extent);
        for extent in live.chain(shared) {
            s.source.give_back(extent);
        }
        while let Some(extent) = s.idle.largest() {
            s.source.give_back(extent);
        }
        s.source.give_back_spare();
    }
}
