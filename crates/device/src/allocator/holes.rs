//! The free parts of one page, taken by best fit and joined again.

use std::collections::BTreeMap;

/// The free parts of a page that small blocks share, by where they start.
///
/// ```
/// use plimsoll_device::Holes;
/// let mut holes = Holes::whole(1024);
/// assert_eq!((holes.take(256, 64), holes.take(256, 64)), (Some(0), Some(256)));
/// holes.give(0, 256);
/// assert_eq!(holes.take(1024, 64), None);
/// ```
#[derive(Debug, Default)]
pub struct Holes(BTreeMap<usize, usize>);

impl Holes {
    /// All of a page of so many bytes.
    pub fn whole(bytes: usize) -> Holes {
        Holes([(0, bytes)].into())
    }

    /// The start of a part of so many bytes, at a multiple of `align`, cut out of the smallest hole that has room for it.
    pub fn take(&mut self, bytes: usize, align: usize) -> Option<usize> {
        let aligned = |start: usize| start.next_multiple_of(align);
        let fits = |start: usize, length: usize| aligned(start) + bytes <= start + length;
        let fitting = self.0.iter().filter(|(start, length)| fits(**start, **length));
        let (&hole, &length) = fitting.min_by_key(|(start, length)| (**length, **start))?;
        let (start, end) = (aligned(hole), hole + length);
        self.0.remove(&hole);
        for (from, to) in [(hole, start), (start + bytes, end)] {
            if from < to {
                self.0.insert(from, to - from);
            }
        }
        Some(start)
    }

    /// Gives a part back and joins it with its neighbours.
    pub fn give(&mut self, mut start: usize, mut bytes: usize) {
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

    /// Whether all of a page of so many bytes is free.
    pub fn is_whole(&self, bytes: usize) -> bool {
        self.0.get(&0) == Some(&bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_are_taken_by_best_fit_and_joined_again() {
        let mut holes = Holes::whole(1024);
        for start in [0, 256, 512] {
            assert_eq!(holes.take(256, 64), Some(start));
        }
        holes.give(0, 256);
        assert_eq!(holes.take(512, 64), None);
        holes.give(256, 256);
        assert_eq!(holes.take(512, 64), Some(0));
        holes.give(512, 256);
        holes.give(0, 512);
        assert!(holes.is_whole(1024));
    }

    #[test]
    fn an_aligned_part_leaves_what_is_before_it_free() {
        let mut holes = Holes::whole(1024);
        assert_eq!((holes.take(64, 64), holes.take(64, 512)), (Some(0), Some(512)));
        assert_eq!(holes.take(448, 64), Some(64));
        assert_eq!(holes.take(449, 64), None);
        assert_eq!(holes.take(448, 64), Some(576));
    }
}
