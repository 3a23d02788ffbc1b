//! Turns buffers into independent parts whose time axis is counted in sections.
//!
//! A *section* is a largest set of buffers that are live together: between two of them something starts and
//! something else ends. Offsets only have to be told apart inside a section, so sections replace time, and
//! there are far fewer of them than there are starts and ends.
//!
//! Two reductions cost nothing, since they never raise the best height: where no buffer crosses from one
//! section to the next the problem falls apart there, and a buffer that is live in every section of its part
//! may lie at the bottom. They are applied in turn until neither changes anything.

use std::ops::Range;

/// A buffer as the packer counts it: sizes and alignments in units, the lifespan still in time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Item {
    /// Its position in the caller's list.
    pub id: usize,
    pub lower: u64,
    pub upper: u64,
    pub size: u64,
    pub alignment: u64,
}

/// Buffers to be packed together above `base`, independent of those in every other part.
#[derive(Debug)]
pub(super) struct Part {
    pub items: Vec<Item>,
    /// The bytes (in units) already taken below this part by buffers that live as long as it does.
    pub base: u64,
    /// The sections `first[b]..last[b]` in which item b is live.
    pub first: Vec<u32>,
    pub last: Vec<u32>,
    /// Whether every offset is allowed to every item.
    pub unaligned: bool,
    /// How long each item lives: in time, or in sections where only some sections were kept.
    pub length: Vec<u64>,
    /// The bytes (in units) live in each section.
    pub total: Vec<u64>,
}

impl Part {
    fn new(base: u64, items: Vec<Item>) -> Part {
        let (first, last, sections) = sections(&items);
        let (mut born, mut died) = (vec![0; sections], vec![0; sections + 1]);
        for (b, item) in items.iter().enumerate() {
            born[first[b] as usize] += item.size;
            died[last[b] as usize] += item.size;
        }
        let mut live = 0;
        let total = (0..sections)
            .map(|section| {
                live = live + born[section] - died[section];
                live
            })
            .collect();
        let length = items.iter().map(|item| item.upper - item.lower).collect();
        let unaligned = items.iter().all(|item| item.alignment == 1);
        Part { base, items, first, last, length, total, unaligned }
    }

    /// What is left of this part if only the sections in `keep` count; an item's id is its position here.
    ///
    /// Its height is a lower bound on the whole part's, and where few sections are nearly full it is a small
    /// problem that holds most of the difficulty.
    pub fn restrict(&self, keep: &[bool]) -> Part {
        let mut index = Vec::with_capacity(keep.len() + 1);
        let mut kept = 0u32;
        for &keep in keep {
            index.push(kept);
            kept += u32::from(keep);
        }
        index.push(kept);
        let mut core = Part {
            base: self.base,
            items: Vec::new(),
            first: Vec::new(),
            last: Vec::new(),
            length: Vec::new(),
            total: self.total.iter().zip(keep).filter(|(_, keep)| **keep).map(|(total, _)| *total).collect(),
            unaligned: self.unaligned,
        };
        for (b, item) in self.items.iter().enumerate() {
            let (first, last) = (index[self.first[b] as usize], index[self.last[b] as usize]);
            if first < last {
                core.items.push(Item { id: b, ..*item });
                core.first.push(first);
                core.last.push(last);
                core.length.push(u64::from(last - first));
            }
        }
        core
    }

    /// The number of items.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// The sections in which item `b` is live.
    pub fn span(&self, b: usize) -> Range<usize> {
        self.first[b] as usize..self.last[b] as usize
    }

    /// The most bytes live at once: no packing is lower.
    pub fn live(&self) -> u64 {
        self.total.iter().copied().max().unwrap_or(0)
    }

    /// The lowest offset at or above `offset` that item `b` may have.
    #[inline]
    pub fn align(&self, b: usize, offset: u64) -> u64 {
        if self.unaligned { offset } else { offset.next_multiple_of(self.items[b].alignment) }
    }

    /// The height of a complete set of offsets.
    pub fn height(&self, offsets: &[u64]) -> u64 {
        self.items.iter().zip(offsets).map(|(item, offset)| offset + item.size).max().unwrap_or(0)
    }
}

/// Splits `items` into parts; what was found to lie at the bottom is given its offset in `settled`.
pub(super) fn split(items: Vec<Item>, settled: &mut Vec<(usize, u64)>) -> Vec<Part> {
    let mut parts = Vec::new();
    // A deep nest of lifespans could be peeled one by one; past this many items looked at it is left as it is.
    let mut allowance = 64 * items.len();
    let mut pending = vec![(0, items)];
    while let Some((base, items)) = pending.pop() {
        let part = Part::new(base, items);
        if part.len() > allowance {
            parts.push(part);
            continue;
        }
        allowance -= part.len();
        let runs = runs(&part);
        if runs.len() > 1 {
            let mut groups = vec![Vec::new(); runs.len()];
            for (b, item) in part.items.iter().enumerate() {
                let group = runs.partition_point(|run| run.end <= part.first[b] as usize);
                groups[group].push(*item);
            }
            pending.extend(groups.into_iter().map(|group| (base, group)));
            continue;
        }
        // With alignments the padding below the rest could grow, so only then is peeling not free.
        let residents: Vec<usize> =
            (0..part.len()).filter(|&b| part.span(b) == (0..part.total.len())).collect();
        if residents.is_empty() || !part.unaligned {
            if part.len() > 0 {
                parts.push(part);
            }
            continue;
        }
        let mut top = base;
        for &b in &residents {
            settled.push((part.items[b].id, top));
            top += part.items[b].size;
        }
        let rest: Vec<Item> = (0..part.len())
            .filter(|&b| part.span(b) != (0..part.total.len()))
            .map(|b| part.items[b])
            .collect();
        pending.push((top, rest));
    }
    // The part that needs most comes first: its height is what the others may use too.
    parts.sort_by_key(|part| (std::cmp::Reverse(part.base + part.live()), part.items[0].id));
    parts
}

/// The stretches of sections between which no item crosses.
fn runs(part: &Part) -> Vec<Range<usize>> {
    let sections = part.total.len();
    let mut reach = vec![0; sections];
    for b in 0..part.len() {
        let span = part.span(b);
        reach[span.start] = reach[span.start].max(span.end);
    }
    let mut runs = Vec::new();
    let (mut start, mut end) = (0, 0);
    for (section, &reach) in reach.iter().enumerate() {
        if section == end && section > start {
            runs.push(start..section);
            start = section;
        }
        end = end.max(reach);
    }
    if sections > start {
        runs.push(start..sections);
    }
    runs
}

/// The span of sections of each item, and how many sections there are.
fn sections(items: &[Item]) -> (Vec<u32>, Vec<u32>, usize) {
    // An end sorts before a start at the same instant, since lifespans are half open.
    let mut events: Vec<(u64, bool, usize)> = Vec::with_capacity(2 * items.len());
    for (b, item) in items.iter().enumerate() {
        events.push((item.lower, true, b));
        events.push((item.upper, false, b));
    }
    events.sort_unstable();
    let (mut first, mut last) = (vec![0; items.len()], vec![0; items.len()]);
    let (mut section, mut started) = (0u32, false);
    for (_, start, b) in events {
        if start {
            started = true;
            first[b] = section;
        } else {
            section += u32::from(started);
            started = false;
            last[b] = section;
        }
    }
    (first, last, section as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(id: usize, lower: u64, upper: u64, size: u64) -> Item {
        Item { id, lower, upper, size, alignment: 1 }
    }

    // time  0 1 2 3 4 5 6 7
    //   a   ├───┤
    //   b     ├───┤
    //   c       ├───┤
    //   d         ├───┤
    //   e               ├─┤    shares no instant with the others but
    //   f   ├─────────────┤    which lives through all and is peeled
    #[test]
    fn residents_are_peeled_and_the_rest_falls_apart() {
        let chain = (0..4).map(|id| item(id, id as u64, id as u64 + 2, 10));
        let items = chain.chain([item(4, 6, 7, 50), item(5, 0, 7, 3)]).collect();
        let mut settled = Vec::new();
        let parts = split(items, &mut settled);
        // Once f is peeled, e is all of its part, and so is peeled as well.
        assert_eq!(settled, [(5, 0), (4, 3)]);
        assert_eq!(parts.len(), 1);
        assert_eq!((parts[0].base, parts[0].total.as_slice()), (3, [20, 20, 20].as_slice()));
    }

    #[test]
    fn a_section_is_a_largest_set_of_items_live_together() {
        // a ends as b starts, and nothing starts between the ends of b and c: two sections, not four instants.
        let part = Part::new(0, vec![item(0, 0, 2, 1), item(1, 2, 4, 2), item(2, 1, 6, 4)]);
        assert_eq!(part.total, [5, 6]);
        assert_eq!([part.span(0), part.span(1), part.span(2)], [0..1, 1..2, 0..2]);
    }

    #[test]
    fn a_restricted_part_keeps_what_lives_in_the_sections_kept() {
        let part = Part::new(0, vec![item(0, 0, 2, 1), item(1, 2, 4, 2), item(2, 1, 6, 4)]);
        let core = part.restrict(&[false, true]);
        assert_eq!(core.total, [6]);
        assert_eq!(core.items.iter().map(|item| item.id).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(core.length, [1, 1]);
    }
}
