//! Turns every allocation and release into running totals: in use, peak, and bytes by owner.
//!
//! The totals are kept as blocks come and go, so that an error can name the largest holders in time that
//! depends on the number of source lines, not on the number of blocks.

use rustc_hash::FxHashMap;

use crate::{Bytes, Holder, Owner};

/// Who holds how much.
#[derive(Debug, Default)]
pub(super) struct Tally {
    by_owner: FxHashMap<Owner, (Bytes, usize)>,
    pub in_use: Bytes,
    pub peak: Bytes,
    pub blocks: usize,
}

impl Tally {
    pub fn add(&mut self, owner: Owner, bytes: Bytes) {
        let (held, blocks) = self.by_owner.entry(owner).or_default();
        *held += bytes;
        *blocks += 1;
        self.blocks += 1;
        self.in_use += bytes;
        self.peak = self.peak.max(self.in_use);
    }

    pub fn remove(&mut self, owner: Owner, bytes: Bytes) {
        self.blocks -= 1;
        self.in_use = self.in_use.saturating_sub(bytes);
        if let Some((held, blocks)) = self.by_owner.get_mut(&owner) {
            *held = held.saturating_sub(bytes);
            *blocks -= 1;
            // An entry stays when it is empty: a loop would otherwise insert and remove it at every turn. The
            // number of entries is bounded by the number of lines of the program.
        }
    }

    pub fn reset_peak(&mut self) {
        self.peak = self.in_use;
    }

    pub fn holders(&self, n: usize) -> Vec<Holder> {
        let holds = self.by_owner.iter().filter(|(_, (_, blocks))| *blocks > 0);
        largest(holds.map(|(&owner, &(bytes, blocks))| Holder { owner, bytes, blocks }).collect(), n)
    }
}

/// The `n` owners of these blocks that hold most, largest first; equal ones in the order of their op and line.
pub fn holders(blocks: impl Iterator<Item = (Owner, Bytes)>, n: usize) -> Vec<Holder> {
    let mut sums: FxHashMap<Owner, Holder> = FxHashMap::default();
    for (owner, bytes) in blocks {
        let holder = sums.entry(owner).or_insert(Holder { owner, bytes: Bytes::ZERO, blocks: 0 });
        holder.bytes += bytes;
        holder.blocks += 1;
    }
    largest(sums.into_values().collect(), n)
}

fn largest(mut holders: Vec<Holder>, n: usize) -> Vec<Holder> {
    holders.sort_unstable_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.owner.cmp(&b.owner)));
    holders.truncate(n);
    holders
}

/// What an allocator with a tally behind a lock tells of itself, by its name.
macro_rules! from_its_books {
    ($name:literal) => {
        fn stats(&self) -> Stats {
            self.stats_of(&self.state())
        }

        fn reset_peak(&self) {
            self.state().tally.reset_peak();
        }

        fn name(&self) -> &'static str {
            $name
        }

        fn holders(&self, n: usize) -> Vec<Holder> {
            self.state().tally.holders(n)
        }
    };
}
pub(super) use from_its_books;
