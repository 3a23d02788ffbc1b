//! Keeps what a search knows of items and sections while it places items and takes them back.
//!
//! Every change is written to a trail, a flat list of what it was before, so that taking back costs what
//! placing did and nothing is allocated in between.

use super::index::Index;
use super::part::Part;
use std::ops::Range;

const NONE: u32 = u32::MAX;

/// What the search knows of an item.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    /// The lowest offset that the placed neighbours leave.
    pub support: u64,
    /// A lower bound on the offset in any packing below this node, at least `support`.
    pub lowest: u64,
    pub size: u64,
    pub rank: u32,
    pub placed: bool,
}

/// An item placed, and the lengths of the trails before.
#[derive(Clone, Copy, Debug)]
struct Placement {
    item: u32,
    supports: u32,
    bounds: u32,
    floors: u32,
}

/// The state of a search.
#[derive(Debug)]
pub(super) struct State<'a> {
    part: &'a Part,
    pub index: Index,
    pub slots: Vec<Slot>,
    /// A lower bound on where what is to come in each section starts.
    floor: Vec<u64>,
    /// The bytes to come in each section.
    total: Vec<u64>,
    /// An item to come whose lowest offset is at most the floor, which thus cannot be raised.
    witness: Vec<u32>,
    /// For an item passed over, a neighbour it may rest on at its lowest offset; checked before it is trusted.
    bearer: Vec<u32>,
    /// How many items to come live both in a section and in the next.
    pub cuts: Vec<u32>,
    placements: Vec<Placement>,
    /// Trails: what changed, and what it was.
    supports: Vec<(u32, u64)>,
    bounds: Vec<(u32, u64)>,
    floors: Vec<(u32, u64)>,
    capacity: u64,
    /// Which of several sections that cannot be completed counts as failed. Either choice leads the learned
    /// orders well on some inputs and astray on others, and a problem mirrored in time wants the other one.
    pub blame_last: bool,
    /// The offsets of what is placed.
    pub offsets: Vec<u64>,
}

impl<'a> State<'a> {
    pub fn new(part: &'a Part) -> Self {
        let (n, sections) = (part.len(), part.total.len());
        State {
            part,
            index: Index::new(part),
            slots: vec![Slot { support: 0, lowest: 0, size: 0, rank: 0, placed: false }; n],
            floor: vec![0; sections],
            total: vec![0; sections],
            witness: vec![0; sections],
            bearer: vec![0; n],
            cuts: vec![0; sections],
            placements: Vec::with_capacity(n),
            supports: Vec::new(),
            bounds: Vec::new(),
            floors: Vec::new(),
            capacity: 0,
            blame_last: false,
            offsets: vec![0; n],
        }
    }

    /// Nothing is placed, all items are ranked by their place in `order`.
    pub fn reset(&mut self, order: &[u32], capacity: u64) {
        let part = self.part;
        for (rank, &b) in order.iter().enumerate() {
            let size = part.items[b as usize].size;
            self.slots[b as usize] = Slot { support: 0, lowest: 0, size, rank: rank as u32, placed: false };
        }
        self.floor.fill(0);
        self.total.copy_from_slice(&part.total);
        self.cuts.fill(0);
        for b in 0..part.len() {
            let span = part.span(b);
            for cut in &mut self.cuts[span.start..span.end - 1] {
                *cut += 1;
            }
        }
        for section in 0..self.witness.len() {
            self.witness[section] = self.index.members(section)[0];
        }
        self.placements.clear();
        self.supports.clear();
        self.bounds.clear();
        self.floors.clear();
        self.capacity = capacity;
    }

    /// How many items are placed.
    pub fn placed(&self) -> usize {
        self.placements.len()
    }

    /// Places item `b`; None if some section of its region gets too full, else whether the region fell apart.
    pub fn put(&mut self, b: u32, offset: u64, region: Range<u32>, failures: &mut [u64]) -> Option<bool> {
        let part = self.part;
        self.placements.push(Placement {
            item: b,
            supports: self.supports.len() as u32,
            bounds: self.bounds.len() as u32,
            floors: self.floors.len() as u32,
        });
        let size = self.slots[b as usize].size;
        self.slots[b as usize].placed = true;
        self.offsets[b as usize] = offset;
        let top = offset + size;
        let (mut left, mut right) = (NONE, 0);
        for &j in self.index.neighbours(b as usize) {
            let slot = &mut self.slots[j as usize];
            if slot.placed || slot.support >= top {
                continue;
            }
            self.supports.push((j, slot.support));
            slot.support = part.align(j as usize, top);
            if slot.lowest < slot.support {
                self.bounds.push((j, slot.lowest));
                slot.lowest = slot.support;
                left = left.min(part.first[j as usize]);
                right = right.max(part.last[j as usize]);
            }
        }
        let span = part.span(b as usize);
        for section in span.clone() {
            self.floors.push((section as u32, self.floor[section]));
            self.floor[section] = top;
            self.total[section] -= size;
        }
        let mut split = false;
        for cut in &mut self.cuts[span.start..span.end - 1] {
            *cut -= 1;
            split |= *cut == 0;
        }
        if left < right {
            self.raise_floors(left, right);
        }
        if self.overfull(region, offset, failures) { None } else { Some(split) }
    }

    /// Raises the floor of sections to the lowest offset of what is to come there.
    fn raise_floors(&mut self, left: u32, right: u32) {
        for section in left as usize..right as usize {
            let witness = self.slots[self.witness[section] as usize];
            if self.total[section] == 0 || !witness.placed && witness.lowest <= self.floor[section] {
                continue;
            }
            let (mut lowest, mut who) = (u64::MAX, NONE);
            for &j in self.index.members(section) {
                let slot = self.slots[j as usize];
                if !slot.placed && slot.lowest < lowest {
                    (lowest, who) = (slot.lowest, j);
                    if lowest <= self.floor[section] {
                        break;
                    }
                }
            }
            if who != NONE {
                self.witness[section] = who;
                if lowest > self.floor[section] {
                    self.floors.push((section as u32, self.floor[section]));
                    self.floor[section] = lowest;
                }
            }
        }
    }

    /// Lifts item `b`, passed over where it was, onto the lowest neighbour it may rest on; false if it cannot be.
    pub fn postpone(&mut self, b: u32, failures: &mut [u64]) -> bool {
        let part = self.part;
        let known = self.slots[b as usize].lowest;
        let mut lowest = u64::MAX;
        for &j in self.index.neighbours(b as usize) {
            let slot = self.slots[j as usize];
            if !slot.placed && slot.lowest + slot.size < lowest {
                lowest = slot.lowest + slot.size;
                self.bearer[b as usize] = j;
                if lowest <= known {
                    return true;
                }
            }
        }
        if lowest == u64::MAX {
            return false;
        }
        let lowest = part.align(b as usize, lowest);
        let slot = &mut self.slots[b as usize];
        self.bounds.push((b, slot.lowest));
        slot.lowest = lowest;
        self.raise_floors(part.first[b as usize], part.last[b as usize]);
        !self.overfull(part.first[b as usize]..part.last[b as usize], 0, failures)
    }

    /// Lifts those of `items` that were passed over and whose bearer was placed or rose; false if one has none left.
    pub fn bear(&mut self, items: &[u32], failures: &mut [u64]) -> bool {
        for &b in items {
            let slot = self.slots[b as usize];
            if slot.lowest > slot.support {
                let bearer = self.slots[self.bearer[b as usize] as usize];
                if (bearer.placed || bearer.lowest + bearer.size > slot.lowest) && !self.postpone(b, failures)
                {
                    return false;
                }
            }
        }
        true
    }

    /// Whether some section can no longer be completed when nothing to come is lower than `offset`.
    ///
    /// One of them, the first or the last, is counted as failed.
    fn overfull(&self, sections: Range<u32>, offset: u64, failures: &mut [u64]) -> bool {
        let over = |&section: &usize| self.floor[section].max(offset) + self.total[section] > self.capacity;
        let mut sections = sections.start as usize..sections.end as usize;
        let found = if self.blame_last { sections.rfind(over) } else { sections.find(over) };
        if let Some(section) = found {
            failures[section] += 1;
        }
        found.is_some()
    }

    /// Takes back all but the first `mark` placements.
    pub fn undo(&mut self, mark: usize) {
        while self.placements.len() > mark {
            let Some(placement) = self.placements.pop() else { break };
            for (section, floor) in self.floors.drain(placement.floors as usize..).rev() {
                self.floor[section as usize] = floor;
            }
            for (j, lowest) in self.bounds.drain(placement.bounds as usize..).rev() {
                self.slots[j as usize].lowest = lowest;
            }
            for (j, support) in self.supports.drain(placement.supports as usize..).rev() {
                self.slots[j as usize].support = support;
            }
            let slot = &mut self.slots[placement.item as usize];
            slot.placed = false;
            let span = self.part.span(placement.item as usize);
            for total in &mut self.total[span.clone()] {
                *total += slot.size;
            }
            for cut in &mut self.cuts[span.start..span.end - 1] {
                *cut += 1;
            }
        }
    }
}
