//! Turns a capacity into a packing under it, or into the proof that none exists.
//!
//! Items are placed one by one, each at the lowest offset its placed neighbours leave, in canonical order: by
//! offset, then by rank, so that each packing is reached along one path only. This is MiniMalloc's search
//! (Moffitt, 2023) made incremental, with its inferences:
//! - *dominance*: no item goes above a place where another would fit below it;
//! - *section inference*: what is placed in a section, or the lowest offset of what is not, is its floor, and the
//!   floor plus all bytes to come must stay under the capacity;
//! - *monotonic floor*: nothing to come lies lower than what was placed last;
//! - *decomposition*: where no item to come crosses from one section to the next, both sides are solved apart;
//!
//! and one of our own, *postponement*: an item passed over at its lowest offset will rest on a neighbour that is
//! not placed yet, so its lowest offset rises to the lowest top such a neighbour can have, at once. An item
//! without such a neighbour may not be passed over, which is MiniMalloc's *hatless pruning*. Where a search
//! ended with and without it, on MiniMalloc's hard instances, postponement took from 1.1 to 57 times fewer nodes.

use super::effort::Effort;
use super::part::Part;
use super::state::State;

const NONE: u32 = u32::MAX;

/// How a search ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    /// The offsets are a packing under the capacity.
    Found,
    /// There is none.
    Impossible,
    /// The nodes or the effort ran out.
    Stopped,
}

/// Sections `first..last` and the items that live in them, the entries `low..high` of the list.
#[derive(Clone, Copy, Debug)]
struct Region {
    low: u32,
    high: u32,
    first: u32,
    last: u32,
    /// The offset and rank of the item placed last: none to come sorts before it.
    previous: (u64, u32),
}

/// A choice between candidates for the next item of a region.
#[derive(Clone, Copy, Debug)]
struct Frame {
    region: Region,
    /// Its candidates are `from..to` in the list of candidates, those before `next` were tried.
    from: u32,
    next: u32,
    to: u32,
    /// How much was placed before.
    mark: u32,
    /// The frame to return to when no candidate is left: of the choice that made this region.
    parent: u32,
    /// The regions to solve after this one, as the head of a list in `agenda`, and the agenda's length.
    pending: u32,
    agenda: u32,
}

/// The memory of searches over one part, reused from search to search.
#[derive(Debug)]
pub(super) struct Search<'a> {
    part: &'a Part,
    pub state: State<'a>,
    /// The items, those of each region together, and the place of each item in that list.
    list: Vec<u32>,
    place: Vec<u32>,
    candidates: Vec<(u64, u32, u32)>,
    frames: Vec<Frame>,
    /// Regions to be solved, each with the frame that made it and the next one of its list.
    agenda: Vec<(Region, u32, u32)>,
}

impl<'a> Search<'a> {
    pub fn new(part: &'a Part) -> Self {
        let n = part.len();
        Search {
            part,
            state: State::new(part),
            list: (0..n as u32).collect(),
            place: (0..n as u32).collect(),
            candidates: Vec::new(),
            frames: Vec::with_capacity(n + 1),
            agenda: Vec::new(),
        }
    }

    /// Searches for a packing under `capacity` through at most `nodes` placements.
    ///
    /// The sections in which a placement failed are counted in `failures`.
    pub fn run(
        &mut self,
        order: &[u32],
        capacity: u64,
        mut nodes: u64,
        failures: &mut [u64],
        effort: &mut Effort,
    ) -> Outcome {
        if self.part.live() > capacity {
            return Outcome::Impossible;
        }
        self.state.reset(order, capacity);
        self.candidates.clear();
        self.frames.clear();
        self.agenda.clear();
        let sections = self.part.total.len() as u32;
        let whole = Region { low: 0, high: order.len() as u32, first: 0, last: sections, previous: (0, 0) };
        self.enter(whole, NONE, NONE);
        loop {
            let Some(frame) = self.frames.last().copied() else { return Outcome::Impossible };
            let at = self.frames.len() - 1;
            self.state.undo(frame.mark as usize);
            let region = frame.region;
            let tried = frame.next > frame.from;
            let alive = frame.next < frame.to
                && if tried {
                    self.state.postpone(self.candidates[frame.next as usize - 1].2, failures)
                } else {
                    self.state.bear(&self.list[region.low as usize..region.high as usize], failures)
                };
            if !alive {
                self.leave(frame);
                continue;
            }
            if tried && self.alike(frame.next as usize - 1, frame.next as usize) {
                self.frames[at].next += 1;
                continue;
            }
            if nodes == 0 || nodes.is_multiple_of(256) && effort.is_spent() {
                return Outcome::Stopped;
            }
            nodes -= 1;
            self.frames[at].next += 1;
            let (offset, rank, b) = self.candidates[frame.next as usize];
            let degree = self.state.index.neighbours(b as usize).len() as u64;
            effort.spend(
                300 + 2 * u64::from(region.high - region.low + region.last - region.first) + 5 * degree,
            );
            self.swap(b, region.low);
            let Some(split) = self.state.put(b, offset, region.first..region.last, failures) else {
                continue;
            };
            let rest = Region { low: region.low + 1, previous: (offset, rank), ..region };
            if rest.low < rest.high && !split {
                self.enter(rest, at as u32, frame.pending);
                continue;
            }
            let pending = self.divide(rest, at as u32, frame.pending);
            if pending == NONE {
                return Outcome::Found;
            }
            let (region, parent, pending) = self.agenda[pending as usize];
            self.enter(region, parent, pending);
        }
    }

    /// Opens a choice between the items that may be placed next in `region`.
    fn enter(&mut self, region: Region, parent: u32, pending: u32) {
        let from = self.candidates.len();
        // Dominance: at or above the lowest possible top an item would cover a place where another fits.
        let mut ceiling = u64::MAX;
        for &b in &self.list[region.low as usize..region.high as usize] {
            let slot = self.state.slots[b as usize];
            ceiling = ceiling.min(slot.support + slot.size);
            // A postponed item is no candidate before a neighbour lifts it to its bound.
            let key = (slot.support, slot.rank);
            if slot.support < ceiling && slot.lowest == slot.support && key >= region.previous {
                self.candidates.push((key.0, key.1, b));
            }
        }
        let mut to = from;
        for at in from..self.candidates.len() {
            if self.candidates[at].0 < ceiling {
                self.candidates.swap(at, to);
                to += 1;
            }
        }
        self.candidates.truncate(to);
        self.candidates[from..].sort_unstable();
        self.frames.push(Frame {
            region,
            from: from as u32,
            next: from as u32,
            to: to as u32,
            mark: self.state.placed() as u32,
            parent,
            pending,
            agenda: self.agenda.len() as u32,
        });
    }

    /// Gives up a choice and all made since the one it came from.
    fn leave(&mut self, frame: Frame) {
        let keep = if frame.parent == NONE { 0 } else { frame.parent as usize + 1 };
        self.frames.truncate(keep);
        if let Some(parent) = self.frames.last() {
            self.candidates.truncate(parent.to as usize);
            self.agenda.truncate(parent.agenda as usize);
        }
    }

    /// Moves item `b` to the front of its region.
    fn swap(&mut self, b: u32, front: u32) {
        let (other, place) = (self.list[front as usize], self.place[b as usize]);
        self.list[front as usize] = b;
        self.list[place as usize] = other;
        self.place[b as usize] = front;
        self.place[other as usize] = place;
    }

    /// Puts the regions into which `rest` has fallen before `pending` on the agenda.
    fn divide(&mut self, rest: Region, parent: u32, mut pending: u32) -> u32 {
        let part = self.part;
        let list = &mut self.list[rest.low as usize..rest.high as usize];
        list.sort_unstable_by_key(|&b| (part.first[b as usize], b));
        for (at, &b) in list.iter().enumerate() {
            self.place[b as usize] = rest.low + at as u32;
        }
        // From the right, so that the leftmost comes to lie at the head.
        let (mut high, mut last) = (rest.high, rest.last);
        for section in (rest.first..rest.last).rev() {
            if section > rest.first && self.state.cuts[section as usize - 1] > 0 {
                continue;
            }
            let mut low = high;
            while low > rest.low && part.first[self.list[low as usize - 1] as usize] >= section {
                low -= 1;
            }
            if low < high {
                let region = Region { low, high, first: section, last, ..rest };
                self.agenda.push((region, parent, pending));
                pending = self.agenda.len() as u32 - 1;
            }
            (high, last) = (low, section);
        }
        pending
    }

    /// Whether two candidates can be exchanged, so that what failed for one fails for the other.
    fn alike(&self, tried: usize, next: usize) -> bool {
        let ((offset, _, a), (other, _, b)) = (self.candidates[tried], self.candidates[next]);
        let part = self.part;
        offset == other
            && part.span(a as usize) == part.span(b as usize)
            && part.items[a as usize].size == part.items[b as usize].size
            && part.items[a as usize].alignment == part.items[b as usize].alignment
    }
}

#[cfg(test)]
mod tests {
    use super::super::part::{Item, split};
    use super::*;

    /// The lowest height, by first fit along every order.
    fn lowest(
        part: &Part,
        left: &mut Vec<usize>,
        placed: &mut Vec<(usize, u64)>,
        height: u64,
        best: &mut u64,
    ) {
        if left.is_empty() || height >= *best {
            *best = height.min(*best);
            return;
        }
        for at in 0..left.len() {
            let b = left.swap_remove(at);
            let size = part.items[b].size;
            let meets = |j: usize| part.first[j] < part.last[b] && part.first[b] < part.last[j];
            let fits = |offset: u64| {
                placed.iter().all(|&(j, other)| {
                    !meets(j) || other >= offset + size || offset >= other + part.items[j].size
                })
            };
            let offset = (0..).find(|&offset| part.align(b, offset) == offset && fits(offset)).unwrap_or(0);
            placed.push((b, offset));
            lowest(part, left, placed, height.max(offset + size), best);
            placed.pop();
            left.push(b);
            let end = left.len() - 1;
            left.swap(at, end);
        }
    }

    #[test]
    fn every_order_finds_the_lowest_height_and_proves_that_none_is_lower() {
        let mut random = 7u64;
        let mut below = move |bound: u64| {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (random >> 33) % bound
        };
        let mut proofs = 0;
        for round in 0..400 {
            let items = (0..6).map(|id| {
                let lower = below(7);
                let alignment = if round % 2 == 0 { 1 } else { 1 + below(4) };
                Item { id, lower, upper: lower + 1 + below(5), size: 1 + below(6), alignment }
            });
            for part in split(items.collect(), &mut Vec::new()) {
                let mut best = u64::MAX;
                lowest(&part, &mut (0..part.len()).collect(), &mut Vec::new(), 0, &mut best);
                let mut search = Search::new(&part);
                let (mut failures, mut effort) = (vec![0; part.total.len()], Effort::new(10.0, 10.0));
                let mut order: Vec<u32> = (0..part.len() as u32).collect();
                for _ in 0..3 {
                    let swap = (below(order.len() as u64) as usize, below(order.len() as u64) as usize);
                    order.swap(swap.0, swap.1);
                    let mut run =
                        |capacity| search.run(&order, capacity, 1 << 20, &mut failures, &mut effort);
                    assert_eq!(run(best - 1), Outcome::Impossible, "{part:?}");
                    assert_eq!(run(best), Outcome::Found, "{part:?}");
                    assert_eq!(part.height(&search.state.offsets), best);
                }
                proofs += u32::from(best > part.live());
            }
        }
        assert!(proofs > 20, "too few problems whose proof needs the search");
    }

    #[test]
    fn a_search_stops_when_its_nodes_are_used_up() {
        let items =
            (0..9).map(|id| Item { id, lower: id as u64, upper: id as u64 + 3, size: 5, alignment: 1 });
        let part = &split(items.collect(), &mut Vec::new())[0];
        let order: Vec<u32> = (0..part.len() as u32).collect();
        let mut failures = vec![0; part.total.len()];
        let mut search = Search::new(part);
        let mut effort = Effort::new(1.0, 10.0);
        assert_eq!(search.run(&order, 15, 4, &mut failures, &mut effort), Outcome::Stopped);
        assert_eq!(search.run(&order, 15, 1000, &mut failures, &mut effort), Outcome::Found);
    }
}
