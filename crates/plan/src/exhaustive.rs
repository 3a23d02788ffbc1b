//! Finds the fastest schedule of a small step by trying every one, best first.
//!
//! Searches that change a schedule bit by bit (see `recompute`) may end beside the one schedule that fits a tight budget. A step
//! of a few ops has few enough sets of tensors that can be held at once to look at them all: from each, run the next op, or
//! any earlier one again, and let go only of what must go to make room. What is held longer than it is used costs nothing,
//! since lifespans end at the last use.
//!
//! The sets grow with the powers of two: twenty branches of one size can be let go of in a million ways at one op. So every
//! search has an allowance of steps, which is looked at wherever a set is made, and one of sets, which bounds its bytes. Where
//! either is used up the search ends without an answer, and the schedule is one that other searches find.
//!
//! What is not here: copies to the host, and offsets. A schedule that holds little enough may still have no packing.

use crate::indexed_problem::IndexedProblem;
use crate::lifespan::Action;
use crate::steps::count;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Allowance of more ops are not looked at.
pub(crate) const MOST_OPS: u32 = 24;
/// The sets that the searches of one level may look at: about a tenth of a second. More would find the fastest schedule of more steps.
const MOST_STEPS: u64 = 2_000_000;
/// A search ends after so many sets. They take somewhat less than a megabyte while it runs: no more than a run declares for
/// planning a short step.
const MOST_SETS: usize = 20_000;

/// How many sets may be looked at, be they new or known: what ends a search that would try every subset.
#[derive(Debug)]
pub(crate) struct Allowance(u64);

impl Allowance {
    /// For the searches of one level.
    pub fn of_a_level() -> Allowance {
        Allowance(MOST_STEPS)
    }

    /// For all searches for the floor, of which there are many.
    pub fn of_the_floor() -> Allowance {
        Allowance(4 * MOST_STEPS)
    }

    /// Takes one; false if there is none left.
    fn take(&mut self) -> bool {
        count(1);
        self.0 = self.0.saturating_sub(1);
        self.0 > 0
    }
}

/// How a set was reached: from which other, by running what, at what time of replays.
#[derive(Clone, Copy)]
struct Node {
    held: u64,
    ns: u64,
    from: u32,
    next: u8,
    op: u8,
}

/// The sets that were reached, and for each the last node that did, which is the fastest: numbers of nodes by the sets' hashes.
/// A map of the standard library takes six times the bytes.
struct Sets {
    nodes: Vec<Node>,
    /// One more than the node's number; nothing if free.
    table: Vec<u32>,
}

impl Sets {
    /// When there are too many, the ops that are left may each reach one more.
    const ROOM: usize = MOST_SETS + 2 + MOST_OPS as usize;
    const SLOTS: usize = (MOST_SETS + MOST_SETS / 2).next_power_of_two();

    fn new() -> Sets {
        let mut nodes = Vec::with_capacity(Sets::ROOM);
        nodes.push(Node { held: 0, ns: 0, from: 0, next: 0, op: 0 });
        let mut sets = Sets { nodes, table: vec![0; Sets::SLOTS] };
        let slot = sets.slot(0, 0);
        sets.table[slot] = 1;
        sets
    }

    fn is_full(&self) -> bool {
        self.nodes.len() > MOST_SETS
    }

    /// Where a set is, or would be. At least a third of the table is free, so there always is such a place.
    fn slot(&self, held: u64, next: u8) -> usize {
        let hash = (held ^ u64::from(next).rotate_right(8)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut slot = (hash ^ hash >> 32) as usize % Sets::SLOTS;
        while let Some(at) = self.table[slot].checked_sub(1) {
            let node = &self.nodes[at as usize];
            if (node.held, node.next) == (held, next) {
                break;
            }
            slot = (slot + 1) % Sets::SLOTS;
        }
        slot
    }

    /// Whether a node is still the fastest that reached its set.
    fn is_fastest(&self, at: u32) -> bool {
        let node = &self.nodes[at as usize];
        self.table[self.slot(node.held, node.next)] == at + 1
    }

    /// Takes a node, unless its set was reached as fast before; returns its number.
    fn reach(&mut self, node: Node) -> Option<u32> {
        let slot = self.slot(node.held, node.next);
        let known = self.table[slot].checked_sub(1).map(|at| self.nodes[at as usize].ns);
        if known.is_some_and(|ns| ns <= node.ns) {
            return None;
        }
        self.nodes.push(node);
        self.table[slot] = self.nodes.len() as u32;
        Some(self.nodes.len() as u32 - 1)
    }
}

/// What a search knows of a step.
struct Small<'a> {
    indexed: &'a IndexedProblem,
    /// What each op reads, writes and may write over, as sets.
    ins: Vec<u64>,
    outs: Vec<u64>,
    over: Vec<u64>,
}

/// The schedule with the least time of replays that holds no more than `budget` at once; none if there is none, or if the step
/// is too large to tell with the steps that are left.
pub(crate) fn fastest(indexed: &IndexedProblem, budget: u64, steps: &mut Allowance) -> Option<Vec<Action>> {
    if indexed.ops > MOST_OPS || indexed.tensors() > 64 {
        return None;
    }
    let room = budget.checked_sub(indexed.resident_bytes)?;
    let set = |list: &[u32]| list.iter().fold(0u64, |set, &t| set | 1 << t);
    let over = |op: u32| indexed.pairs.of(op).chunks_exact(2).fold(0u64, |set, pair| set | 1 << pair[0]);
    let small = Small {
        indexed,
        ins: (0..indexed.ops).map(|op| set(indexed.ins.of(op))).collect(),
        outs: (0..indexed.ops).map(|op| set(indexed.outs.of(op))).collect(),
        over: (0..indexed.ops).map(over).collect(),
    };
    small.search(room, steps)
}

impl Small<'_> {
    fn bytes(&self, set: u64) -> u64 {
        members(set).map(|t| self.indexed.size[t as usize]).sum()
    }

    fn search(&self, room: u64, steps: &mut Allowance) -> Option<Vec<Action>> {
        let indexed = self.indexed;
        let keep =
            (0..indexed.tensors()).filter(|&t| indexed.keep[t as usize]).fold(0u64, |set, t| set | 1 << t);
        let mut sets = Sets::new();
        // Of equal times the one that has got furthest is looked at first.
        let mut queue = BinaryHeap::with_capacity(Sets::ROOM);
        queue.push((Reverse(0u64), 0u32, Reverse(0u32)));
        while let Some((Reverse(ns), _, Reverse(at))) = queue.pop() {
            let Node { held, next, .. } = sets.nodes[at as usize];
            if !sets.is_fastest(at) {
                continue;
            }
            let next = u32::from(next);
            if next == indexed.ops {
                if held & keep == keep {
                    return Some(self.actions(&sets.nodes, at));
                }
                continue;
            }
            if sets.is_full() || !steps.take() {
                return None;
            }
            for op in 0..=next {
                let useful = op == next
                    || next <= indexed.replay_until[op as usize] && self.outs[op as usize] & !held != 0;
                if !useful || self.ins[op as usize] & !held != 0 {
                    continue;
                }
                let (ns, next) =
                    if op == next { (ns, next + 1) } else { (ns + indexed.ns[op as usize], next) };
                self.each_way(held, op, room, &mut |held| {
                    let node = Node { held, ns, from: at, next: next as u8, op: op as u8 };
                    if let Some(number) = sets.reach(node) {
                        queue.push((Reverse(ns), next, Reverse(number)));
                    }
                    !sets.is_full() && steps.take()
                });
            }
        }
        None
    }

    /// Every set that may be held after `op` has run, of those that let go of nothing without need; until `found` says that it
    /// is enough.
    fn each_way(&self, held: u64, op: u32, room: u64, found: &mut impl FnMut(u64) -> bool) {
        let (outs, scratch) = (self.outs[op as usize], self.indexed.scratch[op as usize]);
        // What is held already and is made again is in the way of itself until it has been let go.
        let held = held & !outs;
        let over = self.over[op as usize];
        let mut least = self.bytes(held | outs) + scratch;
        let free: Vec<u32> = members(held & (!self.ins[op as usize] | over))
            .filter(|&t| self.indexed.size[t as usize] > 0)
            .collect();
        let rest: u64 = free.iter().map(|&t| self.indexed.size[t as usize]).sum();
        least -= rest.min(least);
        if least <= room {
            self.choose(&free, held | outs, self.bytes(held | outs) + scratch, room, rest, found);
        }
    }

    /// Lets go of some of `free`, which has `rest` bytes, until what is held, now `all`, fits. False once `found` has said that
    /// it is enough. Every call leads to a set, since all of `free` together is enough to let go of.
    fn choose(
        &self,
        free: &[u32],
        set: u64,
        all: u64,
        room: u64,
        rest: u64,
        found: &mut impl FnMut(u64) -> bool,
    ) -> bool {
        if all <= room {
            return found(set);
        }
        let Some((&t, others)) = free.split_first() else { return true };
        let size = self.indexed.size[t as usize];
        if all - rest > room {
            return true;
        }
        self.choose(others, set & !(1 << t), all - size, room, rest - size, found)
            && self.choose(others, set, all, room, rest - size, found)
    }

    /// The ops on the way to a node.
    fn actions(&self, nodes: &[Node], mut at: u32) -> Vec<Action> {
        let mut actions = Vec::new();
        while at != 0 {
            actions.push(Action::Run(u32::from(nodes[at as usize].op)));
            at = nodes[at as usize].from;
        }
        actions.reverse();
        actions
    }
}

/// The members of a set.
fn members(mut set: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let t = (set != 0).then(|| set.trailing_zeros())?;
        set &= set - 1;
        Some(t)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::{Op, OpId, Problem, Tensor, TensorId};

    /// Four ops that make tensors of the sizes given, and four that want them back, last first.
    fn there_and_back(sizes: [u64; 4]) -> IndexedProblem {
        let mut step = Problem::new();
        let tensor = |name: String, bytes: u64| Tensor { alignment: 1, ..Tensor::transient(name, bytes) };
        let made: Vec<TensorId> =
            (0..4usize).map(|n| step.tensor(tensor(format!("x{n}"), sizes[n]))).collect();
        for n in 0..4usize {
            step.op(Op::new(format!("f{n}"), &made[n.saturating_sub(1)..n], &[made[n]], 10 + n as u64));
        }
        for n in (0..4usize).rev() {
            let sink = step.tensor(tensor(format!("y{n}"), 1));
            step.op(Op::new(format!("b{n}"), &[made[n]], &[sink], 1));
        }
        IndexedProblem::new(&step, &(0..8).map(OpId).collect::<Vec<_>>())
    }

    fn replays(indexed: &IndexedProblem, budget: u64) -> Option<u64> {
        let ns = |action: &Action| if let Action::Run(op) = *action { indexed.ns[op as usize] } else { 0 };
        fastest(indexed, budget, &mut Allowance::of_a_level())
            .map(|actions| actions.iter().map(ns).sum::<u64>() - indexed.base_ns())
    }

    #[test]
    fn nothing_runs_again_where_all_fits_and_the_cheapest_does_where_it_does_not() {
        let indexed = there_and_back([8, 8, 8, 8]);
        assert_eq!(replays(&indexed, 33), Some(0));
        // One of the first three has to go before the first sink is made, and the first is the cheapest to make again.
        assert_eq!(replays(&indexed, 32), Some(10));
        assert!(replays(&indexed, 16).is_some_and(|ns| ns > 10));
        assert_eq!(replays(&indexed, 15), None);
    }

    #[test]
    fn a_step_of_many_ops_is_left_alone() {
        let mut step = Problem::new();
        for n in 0..=MOST_OPS {
            let t = step.tensor(Tensor::output(format!("x{n}"), 64));
            step.op(Op::new(format!("f{n}"), &[], &[t], 1));
        }
        let order: Vec<OpId> = (0..=MOST_OPS).map(OpId).collect();
        assert!(
            fastest(&IndexedProblem::new(&step, &order), u64::MAX, &mut Allowance::of_a_level()).is_none()
        );
    }
}
