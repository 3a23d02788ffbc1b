//! Keeps which bytes of one memory hold which tensor.

use crate::problem::TensorId;
use std::collections::BTreeMap;

/// Which ranges of one memory hold which tensor, whole and unharmed.
#[derive(Default)]
pub(super) struct ByteMap {
    /// Start of range -> (end, tensor, version). Ranges never overlap.
    ranges: BTreeMap<u64, (u64, TensorId, u32)>,
    /// One past the highest byte that was ever written.
    pub highest: u64,
}

impl ByteMap {
    /// Destroys everything that shares a byte with `start..end`.
    pub fn destroy(&mut self, start: u64, end: u64) {
        self.highest = self.highest.max(end);
        if start == end {
            return;
        }
        while let Some((&from, _)) = self.ranges.range(..end).next_back().filter(|(_, r)| r.0 > start) {
            self.ranges.remove(&from);
        }
    }

    pub fn put(&mut self, start: u64, end: u64, tensor: TensorId, version: u32) {
        self.destroy(start, end);
        if start < end {
            self.ranges.insert(start, (end, tensor, version));
        }
    }

    pub fn holds(&self, start: u64, tensor: TensorId, version: u32) -> bool {
        self.ranges.get(&start).is_some_and(|r| (r.1, r.2) == (tensor, version))
    }

    /// The tensors that share a byte with `start..end`.
    pub fn touched(&self, start: u64, end: u64) -> impl Iterator<Item = TensorId> {
        self.ranges.range(..end).rev().take_while(move |(_, range)| range.0 > start).map(|(_, range)| range.1)
    }

    /// How many ranges hold something.
    pub fn len(&self) -> usize {
        self.ranges.len()
    }
}
