//! Finds the fastest schedule of a small step by trying every one, best first.
//!
//! Searches that change a schedule bit by bit (see `recompute`) may end beside the one schedule that fits a tight budget. A step
//! of a few ops has few enough sets of tensors that can be held at once to look at them all: from each, run the next op, or
//! any earlier one again, and let go only of what must go to make room. What is held longer than it is used costs nothing,
//! since lifespans end at the last use.
//!
//! What is not here: copies to the host, and offsets. A schedule that holds little enough may still have no packing.

use crate::dense::Dense;
use crate::lifespan::Act;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// Steps of more ops are not looked at.
pub(crate) const MOST_OPS: u32 = 24;
/// A search ends after so many sets.
const MOST_SETS: usize = 20_000;

/// How a set was reached: from which other, by running what.
#[derive(Clone, Copy)]
struct Node {
    held: u64,
    next: u32,
    from: u32,
    op: u32,
}

/// What a search knows of a step.
struct Small<'a> {
    dense: &'a Dense,
    /// What each op reads, writes and may write over, as sets.
    ins: Vec<u64>,
    outs: Vec<u64>,
    over: Vec<u64>,
}

/// The schedule with the least time of replays that holds no more than `budget` at once; none if there is none, or if the step
/// is too large to tell.
pub(crate) fn fastest(dense: &Dense, budget: u64) -> Option<Vec<Act>> {
    if dense.ops > MOST_OPS || dense.tensors() > 64 {
        return None;
    }
    let room = budget.checked_sub(dense.resident_bytes)?;
    let set = |list: &[u32]| list.iter().fold(0u64, |set, &t| set | 1 << t);
    let over = |op: u32| dense.pairs.of(op).chunks_exact(2).fold(0u64, |set, pair| set | 1 << pair[0]);
    let small = Small {
        dense,
        ins: (0..dense.ops).map(|op| set(dense.ins.of(op))).collect(),
        outs: (0..dense.ops).map(|op| set(dense.outs.of(op))).collect(),
        over: (0..dense.ops).map(over).collect(),
    };
    small.search(room)
}

impl Small<'_> {
    fn bytes(&self, set: u64) -> u64 {
        members(set).map(|t| self.dense.size[t as usize]).sum()
    }

    fn search(&self, room: u64) -> Option<Vec<Act>> {
        let dense = self.dense;
        let keep = (0..dense.tensors()).filter(|&t| dense.keep[t as usize]).fold(0u64, |set, t| set | 1 << t);
        let mut nodes = vec![Node { held: 0, next: 0, from: 0, op: 0 }];
        let mut best: HashMap<(u64, u32), u64> = HashMap::from([((0, 0), 0)]);
        // Of equal times the one that has got furthest is looked at first.
        let mut queue = BinaryHeap::from([(Reverse(0u64), 0u32, Reverse(0u32))]);
        while let Some((Reverse(ns), _, Reverse(at))) = queue.pop() {
            let Node { held, next, .. } = nodes[at as usize];
            if best.get(&(held, next)).is_some_and(|&known| known < ns) {
                continue;
            }
            if next == dense.ops {
                if held & keep == keep {
                    return Some(self.acts(&nodes, at));
                }
                continue;
            }
            if nodes.len() > MOST_SETS {
                return None;
            }
            for op in 0..=next {
                let useful = op == next
                    || next <= dense.replay_until[op as usize] && self.outs[op as usize] & !held != 0;
                if !useful || self.ins[op as usize] & !held != 0 {
                    continue;
                }
                let (ns, next) = if op == next { (ns, next + 1) } else { (ns + dense.ns[op as usize], next) };
                self.each_way(held, op, room, &mut |held| {
                    let known = best.entry((held, next)).or_insert(u64::MAX);
                    if ns < *known {
                        *known = ns;
                        queue.push((Reverse(ns), next, Reverse(nodes.len() as u32)));
                        nodes.push(Node { held, next, from: at, op });
                    }
                });
            }
        }
        None
    }

    /// Every set that may be held after `op` has run, of those that let go of nothing without need.
    fn each_way(&self, held: u64, op: u32, room: u64, found: &mut impl FnMut(u64)) {
        let (outs, scratch) = (self.outs[op as usize], self.dense.scratch[op as usize]);
        // What is held already and is made again is in the way of itself until it has been let go.
        let held = held & !outs;
        let over = self.over[op as usize];
        let mut least = self.bytes(held | outs) + scratch;
        let free: Vec<u32> = members(held & (!self.ins[op as usize] | over))
            .filter(|&t| self.dense.size[t as usize] > 0)
            .collect();
        let rest: u64 = free.iter().map(|&t| self.dense.size[t as usize]).sum();
        least -= rest.min(least);
        if least <= room {
            self.choose(&free, held | outs, self.bytes(held | outs) + scratch, room, rest, found);
        }
    }

    /// Lets go of some of `free`, which has `rest` bytes, until what is held, now `all`, fits.
    fn choose(&self, free: &[u32], set: u64, all: u64, room: u64, rest: u64, found: &mut impl FnMut(u64)) {
        if all <= room {
            return found(set);
        }
        let Some((&t, others)) = free.split_first() else { return };
        let size = self.dense.size[t as usize];
        if all - rest > room {
            return;
        }
        self.choose(others, set & !(1 << t), all - size, room, rest - size, found);
        self.choose(others, set, all, room, rest - size, found);
    }

    /// The ops on the way to a node.
    fn acts(&self, nodes: &[Node], mut at: u32) -> Vec<Act> {
        let mut acts = Vec::new();
        while at != 0 {
            acts.push(Act::Run(nodes[at as usize].op));
            at = nodes[at as usize].from;
        }
        acts.reverse();
        acts
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
    fn there_and_back(sizes: [u64; 4]) -> Dense {
        let mut step = Problem::new(1);
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
        Dense::new(&step, &(0..8).map(OpId).collect::<Vec<_>>())
    }

    fn replays(dense: &Dense, budget: u64) -> Option<u64> {
        let ns = |act: &Act| if let Act::Run(op) = *act { dense.ns[op as usize] } else { 0 };
        fastest(dense, budget).map(|acts| acts.iter().map(ns).sum::<u64>() - dense.base_ns())
    }

    #[test]
    fn nothing_runs_again_where_all_fits_and_the_cheapest_does_where_it_does_not() {
        let dense = there_and_back([8, 8, 8, 8]);
        assert_eq!(replays(&dense, 33), Some(0));
        // One of the first three has to go before the first sink is made, and the first is the cheapest to make again.
        assert_eq!(replays(&dense, 32), Some(10));
        assert!(replays(&dense, 16).is_some_and(|ns| ns > 10));
        assert_eq!(replays(&dense, 15), None);
    }

    #[test]
    fn a_step_of_many_ops_is_left_alone() {
        let mut step = Problem::new(1);
        for n in 0..=MOST_OPS {
            let t = step.tensor(Tensor::output(format!("x{n}"), 64));
            step.op(Op::new(format!("f{n}"), &[], &[t], 1));
        }
        let order: Vec<OpId> = (0..=MOST_OPS).map(OpId).collect();
        assert!(fastest(&Dense::new(&step, &order), u64::MAX).is_none());
    }
}
