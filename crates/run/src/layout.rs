//! Turns lifespans into offsets of one arena.

/// Bytes that must be there from one instruction to another (half-open).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) bytes: usize,
}

/// Rounds up to the arena's alignment.
pub(crate) fn aligned(bytes: usize) -> usize {
    bytes.next_multiple_of(plimsoll_device::backend::ALIGNMENT)
}

/// An offset for each span, and the bytes of the arena: spans that overlap in time do not overlap in place.
pub(crate) fn assign(spans: &[Span]) -> (Vec<usize>, usize) {
    // Largest first, each at the lowest offset free over its whole lifespan.
    let mut order: Vec<usize> = (0..spans.len()).collect();
    order.sort_by_key(|&i| (std::cmp::Reverse(aligned(spans[i].bytes)), spans[i].start, i));
    let mut offsets = vec![0; spans.len()];
    let mut placed: Vec<usize> = Vec::new();
    let mut height = 0;
    for &i in &order {
        let (span, bytes) = (spans[i], aligned(spans[i].bytes));
        let mut taken: Vec<(usize, usize)> = placed
            .iter()
            .filter(|&&j| spans[j].start < span.end && span.start < spans[j].end)
            .map(|&j| (offsets[j], offsets[j] + aligned(spans[j].bytes)))
            .collect();
        taken.sort_unstable();
        let mut offset = 0;
        for (low, high) in taken {
            if offset + bytes <= low {
                break;
            }
            offset = offset.max(high);
        }
        offsets[i] = offset;
        height = height.max(offset + bytes);
        placed.push(i);
    }
    (offsets, height)
}
