//! Turns an order of items into a packing in one pass, from the bottom up, without ever going back.
//!
//! The tops of what was placed form a skyline of plateaus over the sections. The lowest plateau is filled with
//! the first item, by rank, that lives only inside it; where none does, the plateau is raised to its lower
//! wall and what lay between is lost. This visits the packings a canonical search would visit first (lowest
//! offset, then rank), but needs one query an item instead of an update of all its neighbours.

use super::load::Load;
use super::part::Part;
use super::waiting::Waiting;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

const NONE: u32 = u32::MAX;

/// How many items may be passed over for one that leaves no section too full.
pub(super) const LOOKAHEAD: usize = 64;

/// A stretch of sections with the same top.
#[derive(Clone, Copy, Debug)]
struct Plateau {
    top: u64,
    /// One past its last section; 0 where no plateau starts.
    end: u32,
    /// The start of the plateau before it.
    before: u32,
}

/// The memory of dives over one part, reused from dive to dive.
#[derive(Debug)]
pub(super) struct Diver<'a> {
    part: &'a Part,
    load: Load,
    waiting: Waiting,
    /// The plateau that starts at each section.
    plateaus: Vec<Plateau>,
    /// Plateaus by top; those that no longer are as they were pushed are passed over.
    lowest: BinaryHeap<Reverse<(u64, u32, u32)>>,
    passed: Vec<u32>,
    /// The offsets of the last dive that reached the end.
    pub offsets: Vec<u64>,
}

impl<'a> Diver<'a> {
    pub fn new(part: &'a Part) -> Self {
        Diver {
            part,
            load: Load::new(&part.total),
            waiting: Waiting::new(part),
            plateaus: vec![Plateau { top: 0, end: 0, before: NONE }; part.total.len()],
            lowest: BinaryHeap::new(),
            passed: Vec::new(),
            offsets: vec![0; part.len()],
        }
    }

    /// The steps taken since the last call.
    pub fn take_steps(&mut self) -> u64 {
        20 * std::mem::take(&mut self.waiting.visited) + 50 * self.part.len() as u64
    }

    /// Packs along `order`, aiming at `target`, and gives the height; None once `limit` or more is certain.
    ///
    /// A section that can no longer be completed under the target is counted in `failures`, and the target
    /// is raised to what it needs.
    pub fn dive(
        &mut self,
        order: &[u32],
        mut target: u64,
        limit: u64,
        lookahead: usize,
        failures: &mut [u64],
    ) -> Option<u64> {
        let part = self.part;
        self.load.reset(&part.total);
        self.waiting.reset(order);
        self.lowest.clear();
        self.put(0, part.total.len() as u32, 0, NONE);
        let mut height = 0;
        while let Some(Reverse((top, start, end))) = self.lowest.pop() {
            let plateau = self.plateaus[start as usize];
            if plateau.end != end || plateau.top != top {
                continue;
            }
            let span = start as usize..end as usize;
            let walls = self.walls(start, end);
            if let Some(rank) = self.choose(order, span.clone(), top, walls, target, lookahead) {
                let b = order[rank as usize] as usize;
                let offset = part.align(b, top);
                self.offsets[b] = offset;
                height = height.max(offset + part.items[b].size);
                if height >= limit {
                    return None;
                }
                self.place(b, offset, start, end, walls);
                continue;
            }
            let raised = walls.0.min(walls.1);
            if raised == u64::MAX {
                break;
            }
            let need = raised + self.load.most(span.clone());
            if need > target {
                failures[self.load.fullest(span)] += 1;
                if need >= limit {
                    return None;
                }
                target = need;
            }
            self.raise(start, end, raised, walls);
        }
        Some(height)
    }

    /// The rank of the item to place on the plateau `span`; it waits no more.
    fn choose(
        &mut self,
        order: &[u32],
        span: Range<usize>,
        top: u64,
        walls: (u64, u64),
        target: u64,
        lookahead: usize,
    ) -> Option<u32> {
        let part = self.part;
        let mut chosen = None;
        while self.passed.len() < lookahead {
            let Some(rank) = self.waiting.first_inside(span.clone()) else { break };
            let b = order[rank as usize] as usize;
            self.waiting.remove(b);
            self.passed.push(rank);
            let (inner, end) = (part.span(b), part.align(b, top) + part.items[b].size);
            if lookahead == 1
                || self.can_complete(span.start..inner.start, (walls.0, end), target)
                    && self.can_complete(inner.end..span.end, (end, walls.1), target)
            {
                chosen = Some(rank);
                break;
            }
        }
        // Where all leave a section too full the first is as good as any.
        let chosen = chosen.or(self.passed.first().copied());
        while let Some(rank) = self.passed.pop() {
            if Some(rank) != chosen {
                self.waiting.restore(order[rank as usize] as usize, rank);
            }
        }
        chosen
    }

    /// Whether the fullest section of a stretch between two walls can still stay under `target`.
    fn can_complete(&mut self, span: Range<usize>, walls: (u64, u64), target: u64) -> bool {
        if span.is_empty() {
            return true;
        }
        let raised = walls.0.min(walls.1);
        if raised != u64::MAX && raised + self.load.most(span.clone()) <= target {
            return true;
        }
        let fullest = self.load.fullest(span.clone());
        self.waiting.any_through(span, fullest)
    }

    /// The tops on both sides of a plateau.
    fn walls(&self, start: u32, end: u32) -> (u64, u64) {
        let before = self.plateaus[start as usize].before;
        let left = if before == NONE { u64::MAX } else { self.plateaus[before as usize].top };
        let right = self.plateaus.get(end as usize).map_or(u64::MAX, |plateau| plateau.top);
        (left, right)
    }

    fn put(&mut self, start: u32, end: u32, top: u64, before: u32) {
        self.plateaus[start as usize] = Plateau { top, end, before };
        if let Some(after) = self.plateaus.get_mut(end as usize) {
            after.before = start;
        }
        self.lowest.push(Reverse((top, start, end)));
    }

    /// Places item `b` on the plateau `start..end`, which it cuts in up to three.
    fn place(&mut self, b: usize, offset: u64, start: u32, end: u32, walls: (u64, u64)) {
        let part = self.part;
        let size = part.items[b].size;
        let Plateau { top: old, before, .. } = self.plateaus[start as usize];
        let top = offset + size;
        self.load.take(part.span(b), size);
        let (first, last) = (part.first[b], part.last[b]);
        if first > start {
            self.put(start, first, old, before);
            self.put(first, last, top, start);
        } else {
            self.put(first, last, top, before);
        }
        if last < end {
            self.put(last, end, old, first);
        }
        // Equal neighbours become one plateau, or an item as long as both would not be seen to fit.
        let right = if last == end && walls.1 == top { self.absorb(end) } else { last };
        let left = if first == start && walls.0 == top { before } else { first };
        if (left, right) != (first, last) {
            self.merge(left, first, right, top);
        }
    }

    /// Raises the plateau `start..end` to its lower wall, with which it becomes one.
    fn raise(&mut self, start: u32, end: u32, top: u64, walls: (u64, u64)) {
        let right = if walls.1 == top { self.absorb(end) } else { end };
        let left = if walls.0 == top { self.plateaus[start as usize].before } else { start };
        self.merge(left, start, right, top);
    }

    /// Ends the plateau that starts at `start` and says where it reached to.
    fn absorb(&mut self, start: u32) -> u32 {
        std::mem::take(&mut self.plateaus[start as usize].end)
    }

    /// Makes one plateau of `left..right`, of which another started at `start`.
    fn merge(&mut self, left: u32, start: u32, right: u32, top: u64) {
        if left != start {
            self.absorb(start);
        }
        let before = self.plateaus[left as usize].before;
        self.put(left, right, top, before);
    }
}
