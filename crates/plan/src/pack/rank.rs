//! Turns a part into orders of its items: which of two that could go to the same place goes first.
//!
//! The static orders are MiniMalloc's, descending in lifetime, area, size, and how full the fullest section of
//! an item's span is. The learned ones put first what crosses the sections that failed before: that is where
//! the next attempt should have the most freedom. A little noise on the lifetimes tells apart restarts that
//! would otherwise repeat each other.

use super::load::Load;
use super::part::Part;
use std::cmp::Reverse;

/// A way to order items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// Fullest section, then area, then lifetime.
    TightArea,
    /// Fullest section, then lifetime, then area.
    TightLong,
    /// Lifetime, then area, then fullest section.
    Long,
    /// Size, then birth, the earliest first.
    Size,
    /// Area.
    Area,
    /// Failures of the worst section, then fullest section, then lifetime.
    FailedTight,
    /// Failures of the worst section times lifetime.
    FailedLong,
    /// Failures of the worst section times area.
    FailedArea,
}

/// The rules that need no experience.
pub(super) const STATIC: [Rule; 5] = [Rule::TightArea, Rule::TightLong, Rule::Long, Rule::Size, Rule::Area];

/// Places in [`STATIC`].
pub(super) const TIGHT_AREA: usize = 0;
pub(super) const LONG: usize = 2;
pub(super) const SIZE: usize = 3;
pub(super) const AREA: usize = 4;

/// The rules that learn from failures.
pub(super) const LEARNED: [Rule; 3] = [Rule::FailedTight, Rule::FailedLong, Rule::FailedArea];

/// What orders are made from.
#[derive(Debug)]
pub(super) struct Ranker<'a> {
    part: &'a Part,
    tight: Vec<u64>,
    random: u64,
}

impl<'a> Ranker<'a> {
    pub fn new(part: &'a Part) -> Ranker<'a> {
        Ranker { part, tight: most_in_span(part, &part.total), random: 0x9e37_79b9_7f4a_7c15 }
    }

    /// The items by `rule`, given the failures of each section; lifetimes vary by up to `noise` percent.
    pub fn order(&mut self, rule: Rule, failures: &[u64], noise: u64) -> Vec<u32> {
        let part = self.part;
        let failed = if LEARNED.contains(&rule) { most_in_span(part, failures) } else { Vec::new() };
        let mut keyed: Vec<(Reverse<[u128; 3]>, u32)> = Vec::with_capacity(part.len());
        for b in 0..part.len() {
            let size = u128::from(part.items[b].size);
            let tight = u128::from(self.tight[b]);
            let mut length = u128::from(part.length[b]) * 1000;
            if noise > 0 {
                length = length * u128::from(1000 - 5 * noise + self.next() % (10 * noise)) / 1000;
            }
            let area = length * size;
            let birth = u128::from(u64::MAX - part.items[b].lower);
            let failed = failed.get(b).map_or(0, |&failed| u128::from(failed) + 1);
            let key = match rule {
                Rule::TightArea => [tight, area, length],
                Rule::TightLong => [tight, length, area],
                Rule::Long => [length, area, tight],
                Rule::Size => [size, birth, 0],
                Rule::Area => [area, tight, 0],
                Rule::FailedTight => [failed, tight, length],
                Rule::FailedLong => [failed.saturating_mul(length), area, 0],
                Rule::FailedArea => [failed.saturating_mul(area), tight, 0],
            };
            keyed.push((Reverse(key), b as u32));
        }
        keyed.sort_unstable();
        keyed.into_iter().map(|(_, b)| b).collect()
    }

    /// A step of Marsaglia's xorshift generator.
    pub fn next(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }
}

/// For each item the largest of `values` over the sections it lives in.
fn most_in_span(part: &Part, values: &[u64]) -> Vec<u64> {
    let load = Load::new(values);
    (0..part.len()).map(|b| load.most(part.span(b))).collect()
}
