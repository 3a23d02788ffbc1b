//! Keeps the items not yet placed and answers which of them, by rank, is the first that fits inside a span.
//!
//! A tree over the items sorted by their first section, with the lowest rank and the range of last sections
//! below each node: a query goes where the rank is lowest and turns back where nothing ends early enough.

use super::part::Part;
use std::ops::Range;

const NONE: u32 = u32::MAX;

/// The items still to place.
#[derive(Debug)]
pub(super) struct Waiting {
    /// The leaf of each item.
    leaf: Vec<u32>,
    /// The first leaf whose item starts in a section or later.
    starts: Vec<u32>,
    last: Vec<u32>,
    width: usize,
    nodes: Vec<Node>,
    /// The nodes visited so far.
    pub visited: u64,
}

/// What is below: the lowest rank, the earliest and the latest end.
#[derive(Clone, Copy, Debug)]
struct Node {
    rank: u32,
    earliest: u32,
    latest: u32,
}

const EMPTY: Node = Node { rank: NONE, earliest: NONE, latest: 0 };

impl Node {
    fn join(self, other: Node) -> Node {
        Node {
            rank: self.rank.min(other.rank),
            earliest: self.earliest.min(other.earliest),
            latest: self.latest.max(other.latest),
        }
    }
}

/// What a query asks for: items on these leaves that are live in `through` and not from `end` on.
struct Query {
    leaves: Range<usize>,
    through: u32,
    end: u32,
}

impl Waiting {
    pub fn new(part: &Part) -> Waiting {
        let mut sorted: Vec<u32> = (0..part.len() as u32).collect();
        sorted.sort_by_key(|&b| (part.first[b as usize], part.last[b as usize], b));
        let mut leaf = vec![0; part.len()];
        let mut starts = vec![0; part.total.len() + 2];
        for (at, &b) in sorted.iter().enumerate() {
            leaf[b as usize] = at as u32;
            starts[part.first[b as usize] as usize + 1] += 1;
        }
        for section in 1..starts.len() {
            starts[section] += starts[section - 1];
        }
        let width = part.len().next_power_of_two();
        Waiting { leaf, starts, last: part.last.clone(), width, nodes: vec![EMPTY; 2 * width], visited: 0 }
    }

    /// All items wait, ranked by their place in `order`.
    pub fn reset(&mut self, order: &[u32]) {
        self.nodes[self.width..].fill(EMPTY);
        for (rank, &b) in order.iter().enumerate() {
            let end = self.last[b as usize];
            let node = Node { rank: rank as u32, earliest: end, latest: end };
            self.nodes[self.width + self.leaf[b as usize] as usize] = node;
        }
        for at in (1..self.width).rev() {
            self.nodes[at] = self.nodes[2 * at].join(self.nodes[2 * at + 1]);
        }
    }

    /// Item `b` waits no more.
    pub fn remove(&mut self, b: usize) {
        self.set(b, EMPTY);
    }

    /// Item `b` waits again, at `rank`.
    pub fn restore(&mut self, b: usize, rank: u32) {
        self.set(b, Node { rank, earliest: self.last[b], latest: self.last[b] });
    }

    fn set(&mut self, b: usize, node: Node) {
        let mut at = self.width + self.leaf[b] as usize;
        self.nodes[at] = node;
        while at > 1 {
            at /= 2;
            self.nodes[at] = self.nodes[2 * at].join(self.nodes[2 * at + 1]);
        }
    }

    /// The lowest rank of the waiting items that live only inside `span`.
    pub fn first_inside(&mut self, span: Range<usize>) -> Option<u32> {
        let leaves = self.starts[span.start] as usize..self.starts[span.end] as usize;
        let query = Query { leaves, through: 0, end: span.end as u32 };
        let mut best = NONE;
        self.descend(1, 0..self.width, &query, false, &mut best);
        (best != NONE).then_some(best)
    }

    /// Whether some waiting item lives only inside `span` and is live in section `through`.
    pub fn any_through(&mut self, span: Range<usize>, through: usize) -> bool {
        let leaves = self.starts[span.start] as usize..self.starts[through + 1] as usize;
        let query = Query { leaves, through: through as u32, end: span.end as u32 };
        let mut best = NONE;
        self.descend(1, 0..self.width, &query, true, &mut best);
        best != NONE
    }

    /// Lowers `best` to the lowest rank below node `at` that answers `query`, or to the first found if `any` does.
    fn descend(&mut self, at: usize, covers: Range<usize>, query: &Query, any: bool, best: &mut u32) {
        let node = self.nodes[at];
        let outside = covers.end <= query.leaves.start || query.leaves.end <= covers.start;
        if outside || node.rank >= *best || node.earliest > query.end || node.latest <= query.through {
            return;
        }
        self.visited += 1;
        if at >= self.width {
            *best = if any { 0 } else { node.rank };
            return;
        }
        let middle = (covers.start + covers.end) / 2;
        let halves = [(2 * at, covers.start..middle), (2 * at + 1, middle..covers.end)];
        // What starts latest most likely lies in the span; for a rank the lower one makes the other superfluous.
        let right_first = if any { true } else { self.nodes[2 * at + 1].rank < self.nodes[2 * at].rank };
        let [left, right] = halves;
        let (now, then) = if right_first { (right, left) } else { (left, right) };
        self.descend(now.0, now.1, query, any, best);
        self.descend(then.0, then.1, query, any, best);
    }
}

#[cfg(test)]
mod tests {
    use super::super::part::{Item, split};
    use super::*;

    #[test]
    fn queries_answer_as_a_scan_of_all_items_does() {
        let items = (0..90).map(|id| {
            let lower = id as u64 * 31 % 97;
            Item { id, lower, upper: lower + 1 + id as u64 * 17 % 40, size: 1, alignment: 1 }
        });
        let part = &split(items.collect(), &mut Vec::new())[0];
        let order: Vec<u32> = (0..part.len() as u32).map(|at| at * 7 % part.len() as u32).collect();
        assert!(!part.len().is_multiple_of(7), "or it would not be an order");
        let mut waiting = Waiting::new(part);
        waiting.reset(&order);
        let mut gone = vec![false; part.len()];
        let sections = part.total.len();
        for step in 0..400 {
            let start = step * 29 % sections;
            let end = (start + 1 + step * 13 % sections).min(sections);
            let inside = |&rank: &usize| {
                let span = part.span(order[rank] as usize);
                !gone[rank] && start <= span.start && span.end <= end
            };
            let expected = (0..order.len()).find(inside);
            assert_eq!(waiting.first_inside(start..end), expected.map(|rank| rank as u32));
            let through = (start + end - 1) / 2;
            let any = (0..order.len())
                .filter(inside)
                .any(|rank| part.span(order[rank] as usize).contains(&through));
            assert_eq!(waiting.any_through(start..end, through), any);
            if let Some(rank) = expected {
                gone[rank] = true;
                waiting.remove(order[rank] as usize);
            } else if let Some(rank) = gone.iter().position(|&gone| gone) {
                gone[rank] = false;
                waiting.restore(order[rank] as usize, rank as u32);
            }
        }
    }
}
