//! Turns an order of items into a packing by putting each at the lowest offset where it fits.
//!
//! First fit is what most runtimes do. It is the fallback here: it looks at all that was placed before for each
//! item, which is slower than a dive and mostly worse, but it fails on other inputs than dives do.

use super::effort::Effort;
use super::part::Part;

/// So many of those placed are asked at once whether one of them lives beside an item.
const BLOCK: usize = 16;

/// What was placed, sorted by offset. Spans lie by themselves and in signed numbers, which a processor compares several at a time.
#[derive(Default)]
struct Placed {
    first: Vec<i32>,
    last: Vec<i32>,
    /// Where each begins and ends.
    place: Vec<(u64, u64)>,
}

impl Placed {
    fn insert(&mut self, (first, last): (i32, i32), place: (u64, u64)) -> usize {
        let at = self.place.partition_point(|other| other.0 < place.0);
        self.first.insert(at, first);
        self.last.insert(at, last);
        self.place.insert(at, place);
        at
    }

    /// Whether one of a block, from `at` on, may live in `first..last`; of a block that is not full this is not looked at.
    #[inline]
    fn may_live_beside(&self, at: usize, (first, last): (i32, i32)) -> bool {
        let (firsts, lasts) = (&self.first[at..], &self.last[at..]);
        let (Some(firsts), Some(lasts)) = (firsts.first_chunk::<BLOCK>(), lasts.first_chunk::<BLOCK>())
        else {
            return true;
        };
        // Both differences are negative where both live at a time; none is too large for its sign.
        let beside = |i: usize| (firsts[i] - last) & (first - lasts[i]);
        (0..BLOCK).fold(0, |any, i| any | beside(i)) < 0
    }

    /// The lowest offset where item `b` fits, and how many had to be looked at for it.
    fn lowest(&self, part: &Part, b: usize, (first, last): (i32, i32)) -> (u64, usize) {
        let size = part.items[b].size;
        let mut offset = 0;
        for at in (0..self.place.len()).step_by(BLOCK) {
            if !self.may_live_beside(at, (first, last)) {
                continue;
            }
            for other in at..(at + BLOCK).min(self.place.len()) {
                if self.first[other] < last && first < self.last[other] {
                    let (start, end) = self.place[other];
                    if start >= offset + size {
                        return (offset, other + 1);
                    }
                    offset = offset.max(part.align(b, end));
                }
            }
        }
        (offset, self.place.len())
    }
}

/// The offsets that first fit gives along `order`, or None where the effort ran out before or it would be as high as `limit`.
pub(super) fn first_fit(part: &Part, order: &[u32], limit: u64, effort: &mut Effort) -> Option<Vec<u64>> {
    let mut placed = Placed::default();
    let mut offsets = vec![0; part.len()];
    for &b in order {
        let b = b as usize;
        // There are no more sections than items, and no more of those than 2^30.
        let (span, size) = ((part.first[b] as i32, part.last[b] as i32), part.items[b].size);
        let (offset, seen) = placed.lowest(part, b, span);
        offsets[b] = offset;
        let at = placed.insert(span, (offset, offset + size));
        effort.spend(100 + (seen + placed.place.len() - at) as u64);
        if effort.is_spent() || offset + size >= limit {
            return None;
        }
    }
    Some(offsets)
}
