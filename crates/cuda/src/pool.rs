//! Turns requests for device memory into blocks over a pool of pages, for tensors whose lifetimes nobody knows.
//!
//! A block of a page or more has addresses of its own, and whichever pages are free are mapped there one after the other:
//! a hole is never in the way. Smaller blocks share pages. What counts as in use is whole pages, so that every request
//! that is not larger than what is free is met.
//!
//! Blocks that were released stay mapped until their pages are needed elsewhere, because mapping takes time and reuse in
//! the order of the stream needs no waiting.

use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

use plimsoll_device::{
    Allocator, AllocatorId, Block, Bytes, HOLDERS_IN_AN_ERROR, Holder, OutOfMemory, Owner, ReleaseError,
    Stats,
};
use rustc_hash::FxHashMap;

use crate::Cuda;
use crate::error::Error;
use crate::pages::{Page, Range, page_bytes};

/// Small blocks start at multiples of this.
const GRAIN: usize = 256;

/// Addresses with pages behind all of them.
#[derive(Debug)]
struct Extent {
    // Before the range, so that they go first; what is mapped is unmapped before either goes.
    pages: Vec<Page>,
    range: Range,
}

/// The free parts of a page that small blocks share.
#[derive(Debug, Default)]
struct Holes(BTreeMap<usize, usize>);

impl Holes {
    fn whole(bytes: usize) -> Holes {
        Holes([(0, bytes)].into())
    }

    /// The start of the smallest hole that is large enough, taken.
    fn take(&mut self, bytes: usize) -> Option<usize> {
        let fitting = self.0.iter().filter(|(_, length)| **length >= bytes);
        let (&start, &length) = fitting.min_by_key(|(start, length)| (**length, **start))?;
        self.0.remove(&start);
        if length > bytes {
            self.0.insert(start + bytes, length - bytes);
        }
        Some(start)
    }

    /// Gives a part back and joins it with its neighbours.
    fn give(&mut self, mut start: usize, mut bytes: usize) {
        if let Some((&before, &length)) = self.0.range(..start).next_back()
            && before + length == start
        {
            self.0.remove(&before);
            (start, bytes) = (before, bytes + length);
        }
        if let Some(length) = self.0.remove(&(start + bytes)) {
            bytes += length;
        }
        self.0.insert(start, bytes);
    }

    fn is_whole(&self, bytes: usize) -> bool {
        self.0.get(&0) == Some(&bytes)
    }
}

#[derive(Debug)]
enum Home {
    /// Addresses and pages of its own.
    Own(Extent),
    /// A part of a shared page: its number, where it starts and how long it is.
    Shared { page: u64, start: usize, bytes: usize },
    /// No bytes.
    Nowhere,
}

#[derive(Debug)]
struct Live {
    home: Home,
    bytes: usize,
    owner: Owner,
}

#[derive(Debug, Default)]
struct State {
    live: FxHashMap<u64, Live>,
    shared: BTreeMap<u64, (Extent, Holes)>,
    /// Mapped extents that nobody uses, by their number of pages.
    idle: BTreeMap<usize, Vec<Extent>>,
    /// Pages that are mapped nowhere.
    spare: Vec<Page>,
    next: u64,
    /// Pages of live extents, shared ones included.
    used: usize,
    peak: usize,
    /// Pages taken from the driver.
    taken: usize,
    /// What memory limits leave for this pool, in pages, by whose they are.
    limits: BTreeMap<u64, usize>,
}

/// An allocator over pages of a card.
#[derive(Debug)]
pub struct PagePool {
    id: AllocatorId,
    cuda: Cuda,
    page: usize,
    limit: usize,
    state: Mutex<State>,
}

impl PagePool {
    /// A pool of at most `limit` bytes, rounded down to pages; takes none yet.
    ///
    /// # Errors
    /// The driver's refusal.
    pub fn new(cuda: &Cuda, limit: Bytes) -> Result<PagePool, Error> {
        let page = page_bytes(cuda.card("a pool")?)?;
        let limit = limit.to_usize().unwrap_or(usize::MAX) / page;
        Ok(PagePool { id: AllocatorId::new(), cuda: cuda.clone(), page, limit, state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn bytes(&self, pages: usize) -> Bytes {
        Bytes::from(pages * self.page)
    }

    /// The most pages that may be held as things are: the limit, or less where a memory limit is lower.
    fn most(&self, s: &State) -> usize {
        s.limits.values().copied().min().map_or(self.limit, |limit| limit.min(self.limit))
    }

    fn stats_of(&self, s: &State, limit: usize) -> Stats {
        Stats::new(
            self.bytes(s.used),
            self.bytes(s.peak),
            self.bytes(s.taken),
            self.bytes(limit),
            self.bytes(limit.saturating_sub(s.used)),
            s.live.len(),
        )
    }

    fn holders_of(&self, s: &State, n: usize) -> Vec<Holder> {
        let mut sums: BTreeMap<Owner, (usize, usize)> = BTreeMap::new();
        for live in s.live.values() {
            let (bytes, blocks) = sums.entry(live.owner).or_default();
            *bytes += live.bytes;
            *blocks += 1;
        }
        let holder =
            |(owner, (bytes, blocks)): (Owner, (usize, usize))| Holder { owner, bytes: bytes.into(), blocks };
        let mut holders: Vec<Holder> = sums.into_iter().map(holder).collect();
        holders.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.owner.cmp(&b.owner)));
        holders.truncate(n);
        holders
    }

    /// Takes idle extents apart until so many pages are spare.
    fn free_idle(&self, s: &mut State, pages: usize) -> Result<(), Error> {
        let mut waited = false;
        while s.spare.len() < pages {
            let Some(mut last) = s.idle.last_entry() else { break };
            let Some(mut extent) = last.get_mut().pop() else {
                last.remove();
                continue;
            };
            if !waited {
                // Kernels that used these addresses may still be on the stream.
                self.cuda.synchronize()?;
                waited = true;
            }
            extent.range.unmap(0, extent.range.bytes())?;
            s.spare.append(&mut extent.pages);
        }
        Ok(())
    }

    /// Addresses with so many pages behind them; the caller has seen that so many are free.
    fn extent(&self, s: &mut State, pages: usize) -> Result<Extent, Error> {
        if let Some(extent) = s.idle.get_mut(&pages).and_then(Vec::pop) {
            return Ok(extent);
        }
        let most = self.most(s);
        while s.spare.len() < pages && s.taken < most {
            match Page::new(&self.cuda, self.page) {
                Ok(page) => {
                    s.spare.push(page);
                    s.taken += 1;
                }
                // The card is full: what lies idle must do.
                Err(Error::OutOfMemory { .. }) => break,
                Err(why) => return Err(why),
            }
        }
        self.free_idle(s, pages)?;
        if s.spare.len() < pages {
            // What was gathered is of no use to anybody here, and others wait for it.
            s.taken -= s.spare.len();
            s.spare.clear();
            let (free, _) = self.cuda.memory()?;
            return Err(Error::OutOfMemory { bytes: pages * self.page, free });
        }
        let range = Range::new(&self.cuda, pages * self.page)?;
        let chosen = s.spare.split_off(s.spare.len() - pages);
        for (i, page) in chosen.iter().enumerate() {
            if let Err(why) = range.map(i * self.page, page) {
                range.unmap(0, i * self.page)?;
                s.spare.extend(chosen);
                return Err(why);
            }
        }
        Ok(Extent { pages: chosen, range })
    }

    fn retire(&self, s: &mut State, extent: Extent) {
        s.used -= extent.pages.len();
        s.idle.entry(extent.pages.len()).or_default().push(extent);
    }

    fn place(&self, s: &mut State, bytes: usize) -> Result<Option<(Home, *mut u8)>, Error> {
        let free = self.most(s).saturating_sub(s.used);
        if bytes > self.page / 2 {
            let pages = bytes.div_ceil(self.page);
            if pages > free {
                return Ok(None);
            }
            let extent = self.extent(s, pages)?;
            s.used += pages;
            let at = extent.range.at();
            return Ok(Some((Home::Own(extent), at)));
        }
        let bytes = bytes.next_multiple_of(GRAIN);
        for (&page, (extent, holes)) in &mut s.shared {
            if let Some(start) = holes.take(bytes) {
                return Ok(Some((
                    Home::Shared { page, start, bytes },
                    extent.range.at().wrapping_add(start),
                )));
            }
        }
        if free == 0 {
            return Ok(None);
        }
        let extent = self.extent(s, 1)?;
        s.used += 1;
        let (at, page, mut holes) = (extent.range.at(), s.next, Holes::whole(self.page));
        s.next += 1;
        let start = holes.take(bytes).unwrap_or(0);
        s.shared.insert(page, (extent, holes));
        Ok(Some((Home::Shared { page, start, bytes }, at.wrapping_add(start))))
    }
}

impl Allocator for PagePool {
    /// Alignments above the page size are not met; no kernel asks for one.
    fn allocate(&self, bytes: Bytes, align: usize, owner: Owner) -> Result<Block, OutOfMemory> {
        let mut s = self.state();
        let refusal = |s: &State| {
            let (most, holders) = (self.most(s), self.holders_of(s, HOLDERS_IN_AN_ERROR));
            let refusal = OutOfMemory::new(bytes, owner, &self.stats_of(s, most), holders);
            if most < self.limit { refusal.by_limit() } else { refusal }
        };
        let Some(length) = bytes.to_usize().filter(|_| align <= self.page) else {
            return Err(refusal(&s).by_system());
        };
        // A small block gets its alignment from its size: it starts at a multiple of the grain only.
        let asked = if align > GRAIN { length.max(self.page / 2 + 1) } else { length };
        let placed = if length == 0 {
            Ok(Some((Home::Nowhere, std::ptr::without_provenance_mut(align.max(GRAIN)))))
        } else {
            self.place(&mut s, asked)
        };
        let (home, at) = match placed {
            Ok(Some(placed)) => placed,
            Ok(None) => return Err(refusal(&s)),
            Err(_) => return Err(refusal(&s).by_system()),
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
            Some(Home::Own(extent)) => self.retire(s, extent),
            Some(Home::Shared { page, start, bytes }) => {
                let emptied = match s.shared.get_mut(&page) {
                    Some((_, holes)) => {
                        holes.give(start, bytes);
                        holes.is_whole(self.page)
                    }
                    None => false,
                };
                if emptied && let Some((extent, _)) = s.shared.remove(&page) {
                    self.retire(s, extent);
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
        let mut s = self.state();
        // What cannot be unmapped stays, and is counted as taken.
        let _ = self.free_idle(&mut s, usize::MAX);
        s.taken -= s.spare.len();
        s.spare.clear();
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

    fn holders(&self, n: usize) -> Vec<Holder> {
        self.holders_of(&self.state(), n)
    }
}

impl Drop for PagePool {
    fn drop(&mut self) {
        let _ = self.cuda.synchronize();
        let s = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let live = s.live.drain().filter_map(|(_, live)| match live.home {
            Home::Own(extent) => Some(extent),
            _ => None,
        });
        let shared = std::mem::take(&mut s.shared).into_values().map(|(extent, _)| extent);
        let idle = std::mem::take(&mut s.idle).into_values().flatten();
        // A drop cannot report a refusal; the driver takes everything back with the context.
        for extent in live.chain(shared).chain(idle) {
            let _ = extent.range.unmap(0, extent.range.bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_are_taken_by_best_fit_and_joined_again() {
        let mut holes = Holes::whole(1024);
        assert_eq!(holes.take(256), Some(0));
        assert_eq!(holes.take(256), Some(256));
        assert_eq!(holes.take(256), Some(512));
        holes.give(0, 256);
        assert_eq!(holes.take(512), None);
        holes.give(256, 256);
        assert_eq!(holes.take(512), Some(0));
        holes.give(512, 256);
        holes.give(0, 512);
        assert!(holes.is_whole(1024));
    }
}
