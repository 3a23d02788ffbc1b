//! Turns an order of items into a packing by putting each at the lowest offset where it fits.
//!
//! First fit is what most runtimes do. It is the fallback here: it looks at all that was placed before for each
//! item, which is slower than a dive and mostly worse, but it fails on other inputs than dives do.

use super::effort::Effort;
use super::part::Part;

/// What was placed: kept sorted by offset.
struct Placed {
    offset: u64,
    end: u64,
    first: u32,
    last: u32,
}

/// The offsets that first fit gives along `order`, or None where the effort ran out before or it would be as high as `limit`.
pub(super) fn first_fit(part: &Part, order: &[u32], limit: u64, effort: &mut Effort) -> Option<Vec<u64>> {
    let mut placed: Vec<Placed> = Vec::with_capacity(part.len());
    let mut offsets = vec![0; part.len()];
    for &b in order {
        let b = b as usize;
        let (first, last, size) = (part.first[b], part.last[b], part.items[b].size);
        let mut offset = 0;
        let mut seen = 0;
        for other in &placed {
            seen += 1;
            if other.first < last && first < other.last {
                if other.offset >= offset + size {
                    break;
                }
                offset = offset.max(part.align(b, other.end));
            }
        }
        offsets[b] = offset;
        let at = placed.partition_point(|other| other.offset < offset);
        placed.insert(at, Placed { offset, end: offset + size, first, last });
        effort.spend(100 + seen + (placed.len() - at) as u64);
        if effort.is_spent() || offset + size >= limit {
            return None;
        }
    }
    Some(offsets)
}
