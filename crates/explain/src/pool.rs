//! Turns a list of chunks into a picture of a pool: who has what by address, by size and by owner.
//!
//! A dump may list millions of chunks. What is kept of them is bounded: a fixed number of cells (neighbours are merged when
//! they run out), the sizes of free chunks by powers of two, and a bounded table of what is in use by size and owner.

use std::collections::BTreeMap;

/// The most cells; merged in pairs when there would be more.
const CELLS: usize = 8192;
/// The most regions that are told apart; later ones are counted with the last.
const REGIONS: usize = 1024;
/// The most rows of what is held; more sizes or owners are counted together.
const HOLDERS: usize = 4096;
/// The most steps that are remembered of one holder.
const STEPS: usize = 32;

/// A stretch of addresses: bytes in use and free bytes in it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cell {
    pub region: u32,
    pub used: u64,
    pub free: u64,
}

/// One contiguous piece of memory from the system.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Region {
    pub address: u64,
    pub used: u64,
    pub free: u64,
    pub chunks: u64,
}

/// Chunks in use of one size and owner.
#[derive(Clone, Debug, Default)]
pub(crate) struct Holder {
    pub count: u64,
    pub bytes: u64,
    /// The steps in which they were made, where the dump tells.
    pub steps: Vec<u64>,
}

/// A pool as far as a dump told of it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pool {
    pub regions: Vec<Region>,
    pub chunks: u64,
    pub used_chunks: u64,
    pub used: u64,
    pub free: u64,
    pub largest_free: u64,
    pub cells: Vec<Cell>,
    /// Free chunks by the power of two at or below their size: how many, how many bytes.
    pub free_classes: BTreeMap<u32, (u64, u64)>,
    /// What is in use by size and owner.
    pub holders: BTreeMap<(u64, Option<String>), Holder>,
}

/// One chunk of a dump.
pub(crate) struct Chunk<'a> {
    pub address: u64,
    pub size: u64,
    pub used: bool,
    pub owner: Option<&'a str>,
    pub step: Option<u64>,
}

impl Pool {
    /// Begins a region: the chunks that follow lie in it.
    pub fn region(&mut self) {
        let empty = self.regions.last().is_some_and(|last| last.chunks == 0);
        if self.regions.len() < REGIONS && !empty {
            self.regions.push(Region::default());
        }
    }

    /// Adds a chunk, in the order of addresses.
    pub fn add(&mut self, chunk: &Chunk<'_>) {
        if self.regions.is_empty() {
            self.regions.push(Region::default());
        }
        let index = self.regions.len() - 1;
        let Some(region) = self.regions.last_mut() else { return };
        if region.chunks == 0 {
            region.address = chunk.address;
        }
        region.chunks += 1;
        self.chunks += 1;
        let (used, free) = if chunk.used { (chunk.size, 0) } else { (0, chunk.size) };
        region.used = region.used.saturating_add(used);
        region.free = region.free.saturating_add(free);
        self.used = self.used.saturating_add(used);
        self.free = self.free.saturating_add(free);
        if self.cells.len() >= CELLS {
            self.merge();
        }
        self.cells.push(Cell { region: index as u32, used, free });
        if chunk.used {
            self.used_chunks += 1;
            self.hold(chunk);
        } else if chunk.size > 0 {
            self.largest_free = self.largest_free.max(chunk.size);
            let class = self.free_classes.entry(chunk.size.ilog2()).or_default();
            class.0 += 1;
            class.1 = class.1.saturating_add(chunk.size);
        }
    }

    fn hold(&mut self, chunk: &Chunk<'_>) {
        let mut key = (chunk.size, chunk.owner.map(crate::bytes::short));
        if self.holders.len() >= HOLDERS && !self.holders.contains_key(&key) {
            key = (1 << chunk.size.max(1).ilog2(), Some("others of about this size".to_string()));
        }
        let holder = self.holders.entry(key).or_default();
        holder.count += 1;
        holder.bytes = holder.bytes.saturating_add(chunk.size);
        if let Some(step) = chunk.step
            && holder.steps.len() < STEPS
            && !holder.steps.contains(&step)
        {
            holder.steps.push(step);
        }
    }

    /// Halves the cells by joining neighbours; a region's last cell may be joined with the next one's first.
    fn merge(&mut self) {
        let mut merged = Vec::with_capacity(CELLS);
        for pair in self.cells.chunks(2) {
            if let Some(&first) = pair.first() {
                let second = pair.get(1).copied().unwrap_or(Cell { region: first.region, used: 0, free: 0 });
                merged.push(Cell {
                    region: first.region,
                    used: first.used.saturating_add(second.used),
                    free: first.free.saturating_add(second.free),
                });
            }
        }
        self.cells = merged;
    }

    /// All bytes of it.
    pub fn bytes(&self) -> u64 {
        self.used.saturating_add(self.free)
    }

    /// Bytes in use and free in each of so many equal stretches of addresses.
    pub fn columns(&self, count: usize) -> Vec<(u64, u64)> {
        let total = u128::from(self.bytes());
        let mut columns = vec![(0u64, 0u64); count];
        if total == 0 || count == 0 {
            return Vec::new();
        }
        let edge = |i: usize| total * i as u128 / count as u128;
        let (mut at, mut column) = (0u128, 0usize);
        for cell in &self.cells {
            let size = u128::from(cell.used) + u128::from(cell.free);
            let (mut left, mut used_left) = (size, u128::from(cell.used));
            while left > 0 && column < count {
                let room = edge(column + 1).saturating_sub(at);
                if room == 0 {
                    column += 1;
                    continue;
                }
                let take = room.min(left);
                // A mixed cell is spread evenly; its last piece takes what rounding left.
                let used = if take == left { used_left } else { used_left * take / left };
                if let Some(place) = columns.get_mut(column) {
                    place.0 = place.0.saturating_add(used as u64);
                    place.1 = place.1.saturating_add((take - used.min(take)) as u64);
                }
                at += take;
                left -= take;
                used_left -= used.min(used_left);
            }
        }
        columns
    }

    /// What is held, heaviest first.
    pub fn heaviest(&self, most: usize) -> Vec<(u64, Option<&str>, &Holder)> {
        let mut rows: Vec<_> =
            self.holders.iter().map(|((size, owner), holder)| (*size, owner.as_deref(), holder)).collect();
        rows.sort_by_key(|(size, owner, holder)| {
            (std::cmp::Reverse(holder.bytes), *size, owner.map(str::to_string))
        });
        rows.truncate(most);
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(chunks: &[(u64, bool)]) -> Pool {
        let mut pool = Pool::default();
        pool.region();
        for &(size, used) in chunks {
            pool.add(&Chunk { address: 0, size, used, owner: None, step: None });
        }
        pool
    }

    #[test]
    fn columns_keep_every_byte() {
        let pool = pool(&[(10, true), (5, false), (1, true), (33, false), (7, true)]);
        for count in [1, 2, 3, 8, 56, 100] {
            let columns = pool.columns(count);
            assert_eq!(columns.iter().map(|c| c.0).sum::<u64>(), 18, "{count}");
            assert_eq!(columns.iter().map(|c| c.1).sum::<u64>(), 38, "{count}");
        }
        assert_eq!(pool.columns(0), []);
    }

    #[test]
    fn a_hole_is_seen_where_it_is() {
        let pool = pool(&[(25, true), (50, false), (25, true)]);
        assert_eq!(pool.columns(4), [(25, 0), (0, 25), (0, 25), (25, 0)]);
    }

    #[test]
    fn millions_of_chunks_take_no_more_than_thousands() {
        let mut pool = Pool::default();
        for i in 0..300_000u64 {
            if i % 7 == 0 {
                pool.region();
            }
            let owner = format!("op{i}");
            let chunk =
                Chunk { address: i, size: i + 1, used: i % 2 == 0, owner: Some(&owner), step: Some(i) };
            pool.add(&chunk);
        }
        assert!(pool.cells.len() <= CELLS && pool.regions.len() <= REGIONS);
        assert!(pool.holders.len() <= HOLDERS + 64, "{}", pool.holders.len());
        assert_eq!(pool.chunks, 300_000);
        let columns = pool.columns(80);
        assert_eq!(columns.iter().map(|c| c.0 + c.1).sum::<u64>(), pool.bytes());
    }

    #[test]
    fn sizes_that_overflow_are_counted_as_the_most_there_is() {
        let pool = pool(&[(u64::MAX, true), (u64::MAX, false), (u64::MAX, true)]);
        assert_eq!(pool.bytes(), u64::MAX);
        assert_eq!(pool.columns(10).len(), 10);
    }
}
