//! Reorders the actions of a schedule by small moves, so that less is held where most is, without changing what it computes.
//!
//! Two actions may change places if neither writes what the other touches. An action is moved together with whatever between its old
//! place and its new one depends on it, so every order that comes of this is one that the step allows, gives the same bits and
//! takes as long. Each value is then read by the same actions as before, which is what makes a move cheap to judge: only the
//! stretch that changed has to be walked again.

use crate::indexed_problem::IndexedProblem;
use crate::lifespan::Action;
use crate::problem::{OpId, Problem};
use crate::rng::Rng;
use crate::steps::count;

/// How far an action is moved at most: in three of four moves, and in the fourth. Near moves succeed more often and are quick to judge;
/// far ones reach orders that near ones do not.
const NEAR: usize = 24;
const FAR: usize = 200;

/// A schedule without copies whose actions can be moved.
pub(crate) struct ActionOrder<'a> {
    indexed: &'a IndexedProblem,
    /// For each op the tensors it touches, and whether it writes them.
    touched: Vec<Vec<(u32, bool)>>,
    /// The actions as they were numbered at first, and their numbers in the present order.
    ops: Vec<u32>,
    order: Vec<u32>,
    /// For each action the values it reads and those it makes.
    ins: Vec<Vec<u32>>,
    outs: Vec<Vec<u32>>,
    /// For each value its bytes and the place in the order of its last use, past the end if it is kept.
    size: Vec<u64>,
    last: Vec<u32>,
    /// The bytes held during each action, and those held from the action before it into it.
    held: Vec<u64>,
    across: Vec<u64>,
    /// What is moved together: which tensors it reads and writes, by the number of the move.
    stamp: u32,
    read: Vec<u32>,
    written: Vec<u32>,
    /// How many uses of each value a stretch has left.
    uses: Vec<u32>,
}

impl<'a> ActionOrder<'a> {
    /// The schedule `actions`, or `None` if it copies: what a copy takes depends on what runs beside it.
    pub fn new(
        problem: &Problem,
        indexed: &'a IndexedProblem,
        actions: &[Action],
    ) -> Option<ActionOrder<'a>> {
        let run = |action: &Action| if let Action::Run(op) = *action { Some(op) } else { None };
        let ops: Vec<u32> = actions.iter().map(run).collect::<Option<_>>()?;
        let touched = |id: &OpId| {
            let Some(op) = problem.ops.get(id.index()) else { return Vec::new() };
            let reads = op.reads.iter().map(|&t| (problem.root(t).0.0, false));
            reads.chain(op.writes.iter().chain(&op.updates).map(|t| (t.0, true))).collect()
        };
        let (n, tensors) = (ops.len(), problem.tensors.len());
        let mut all = ActionOrder {
            indexed,
            touched: indexed.op_id.iter().map(touched).collect(),
            order: (0..n as u32).collect(),
            ins: Vec::with_capacity(n),
            outs: Vec::with_capacity(n),
            size: Vec::new(),
            last: Vec::new(),
            held: vec![0; n],
            across: vec![0; n + 1],
            stamp: 0,
            read: vec![0; tensors],
            written: vec![0; tensors],
            uses: Vec::new(),
            ops,
        };
        let mut value = vec![0u32; indexed.tensors() as usize];
        for (time, &op) in all.ops.iter().enumerate() {
            let ins: Vec<u32> = indexed.ins.of(op).iter().map(|&t| value[t as usize]).collect();
            ins.iter().for_each(|&v| all.last[v as usize] = time as u32);
            for &t in indexed.outs.of(op) {
                value[t as usize] = all.size.len() as u32;
                all.size.push(indexed.size[t as usize]);
                all.last.push(time as u32);
            }
            all.ins.push(ins);
            all.outs.push(indexed.outs.of(op).iter().map(|&t| value[t as usize]).collect());
        }
        for t in (0..indexed.tensors() as usize).filter(|&t| indexed.keep[t]) {
            all.last[value[t] as usize] = n as u32;
        }
        all.uses = vec![0; all.size.len()];
        let mut held = Vec::with_capacity(n);
        all.walk(0, &all.order.clone(), &mut held);
        for (time, (during, after)) in held.into_iter().enumerate() {
            all.held[time] = during;
            all.across[time + 1] = after;
        }
        Some(all)
    }

    /// The actions in their present order.
    pub fn actions(&self) -> Vec<Action> {
        self.order.iter().map(|&action| Action::Run(self.ops[action as usize])).collect()
    }

    /// The most that is held at once, residents not counted.
    pub fn peak(&self) -> u64 {
        self.held.iter().copied().max().unwrap_or(0)
    }

    /// Tries so many moves, and keeps those that hold at most `room` at once and are better, or worse by little. An action that holds
    /// all of `room` counts one, and one that holds less next to nothing; a move may add up to `temperature` of that.
    pub fn anneal_order(&mut self, room: u64, trials: usize, temperature: f64, rng: &mut Rng) {
        let weight = |held: u64| {
            let square = (held as f64 / room as f64) * (held as f64 / room as f64);
            square * square * square * square
        };
        let n = self.order.len();
        let (mut first, mut second) = (Vec::new(), Vec::new());
        let mut held = Vec::new();
        for _ in 0..trials {
            let at = rng.below(n);
            let reach = if rng.below(4) == 0 { FAR } else { NEAR };
            let reach = 1 + rng.below(reach);
            let later = rng.below(2) == 0;
            let (from, to) =
                if later { (at, (at + reach + 1).min(n)) } else { (at.saturating_sub(reach), at + 1) };
            count((to - from) as u64);
            first.clear();
            second.clear();
            self.divide(from, to, later, &mut first, &mut second);
            if first.is_empty() || second.is_empty() {
                continue;
            }
            first.append(&mut second);
            held.clear();
            self.walk(from, &first, &mut held);
            let most = held.iter().map(|h| h.0).max().unwrap_or(0);
            let old: f64 = self.held[from..to].iter().map(|&h| weight(h)).sum();
            let new: f64 = held.iter().map(|h| weight(h.0)).sum();
            if most <= room && new <= old + temperature * rng.unit() {
                self.keep(from, &first, &held);
            }
        }
    }

    /// Divides the stretch `from..to` into what comes first and what comes second where its first action goes to its end, or its
    /// last one to its start.
    fn divide(&mut self, from: usize, to: usize, later: bool, first: &mut Vec<u32>, second: &mut Vec<u32>) {
        self.stamp += 1;
        let (moved, passed) = if later { (&mut *second, &mut *first) } else { (&mut *first, &mut *second) };
        for k in 0..to - from {
            let action = self.order[if later { from + k } else { to - 1 - k }];
            let touched = &self.touched[self.ops[action as usize] as usize];
            let bound = touched.iter().any(|&(t, writes)| {
                self.written[t as usize] == self.stamp || writes && self.read[t as usize] == self.stamp
            });
            if k > 0 && !bound {
                passed.push(action);
                continue;
            }
            for &(t, writes) in touched {
                let list = if writes { &mut self.written } else { &mut self.read };
                list[t as usize] = self.stamp;
            }
            moved.push(action);
        }
        if !later {
            first.reverse();
            second.reverse();
        }
    }

    /// What is held during and after each action of a stretch that begins at `from`, were it in the order `actions`.
    fn walk(&mut self, from: usize, actions: &[u32], held: &mut Vec<(u64, u64)>) {
        let (indexed, to) = (self.indexed, (from + actions.len()) as u32);
        for &action in actions {
            self.outs[action as usize].iter().for_each(|&v| self.uses[v as usize] = 0);
            self.ins[action as usize].iter().for_each(|&v| self.uses[v as usize] = 0);
        }
        for &action in actions {
            self.ins[action as usize].iter().for_each(|&v| self.uses[v as usize] += 1);
        }
        let mut live = self.across[from];
        for &action in actions {
            let op = self.ops[action as usize];
            let (ins, outs) = (&self.ins[action as usize], &self.outs[action as usize]);
            live += outs.iter().map(|&v| self.size[v as usize]).sum::<u64>();
            let mut gone = 0;
            for &v in ins {
                self.uses[v as usize] -= 1;
                if self.uses[v as usize] == 0 && self.last[v as usize] < to {
                    gone += self.size[v as usize];
                }
            }
            let mut during = live + indexed.scratch[op as usize];
            for pair in indexed.pairs.of(op).chunks_exact(2) {
                let read = indexed.ins.of(op).iter().position(|&t| t == pair[0]).map(|k| ins[k] as usize);
                // What takes the place of something that goes is not held beside it.
                if read.is_some_and(|v| self.uses[v] == 0 && self.last[v] < to) {
                    during -= indexed.size[pair[1] as usize];
                }
            }
            let unused = |v: &&u32| self.uses[**v as usize] == 0 && self.last[**v as usize] < to;
            gone += outs.iter().filter(unused).map(|&v| self.size[v as usize]).sum::<u64>();
            live -= gone;
            held.push((during, live));
        }
    }

    /// Takes `actions`, which were walked, for the stretch that begins at `from`.
    fn keep(&mut self, from: usize, actions: &[u32], held: &[(u64, u64)]) {
        let to = (from + actions.len()) as u32;
        for (k, (&action, &(during, after))) in actions.iter().zip(held).enumerate() {
            let time = from + k;
            self.order[time] = action;
            self.held[time] = during;
            self.across[time + 1] = after;
            for &v in self.ins[action as usize].iter().chain(&self.outs[action as usize]) {
                if self.last[v as usize] < to {
                    self.last[v as usize] = time as u32;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lifespan::{lifespans, profile};
    use crate::problem::{Op, Tensor};

    /// Eight branches that are all made before any is used, each with a weight of its own that is updated at the end.
    fn branches() -> Problem {
        let mut step = Problem::new();
        let mut wide = Vec::new();
        let weights: Vec<_> = (0..8).map(|i| step.tensor(Tensor::resident(format!("w{i}"), 64))).collect();
        for (i, &weight) in weights.iter().enumerate() {
            let made = step.tensor(Tensor::transient(format!("a{i}"), 1024));
            let next = step.tensor(Tensor::transient(format!("b{i}"), 1024));
            step.op(Op::new(format!("make {i}"), &[weight], &[made], 10));
            let mut over = Op::new(format!("change {i}"), &[made], &[next], 10);
            over.in_place = vec![(made, next)];
            step.op(over);
            wide.push(next);
        }
        for (i, &weight) in weights.iter().enumerate() {
            let grad = step.tensor(Tensor::transient(format!("g{i}"), 64));
            let mut narrow = Op::new(format!("narrow {i}"), &[wide[i], weight], &[grad], 10);
            narrow.scratch = 64;
            step.op(narrow);
            let mut update = Op::new(format!("update {i}"), &[grad], &[], 1);
            (update.updates, update.replayable) = (vec![weight], false);
            step.op(update);
        }
        step
    }

    fn in_order() -> Vec<Action> {
        (0..32).map(Action::Run).collect()
    }

    fn indexed(step: &Problem) -> IndexedProblem {
        IndexedProblem::new(step, &(0..step.ops.len() as u32).map(OpId).collect::<Vec<_>>())
    }

    #[test]
    fn what_is_held_after_many_moves_is_what_the_lifespans_say() {
        let step = branches();
        let indexed = indexed(&step);
        // With replays: all of the first branch is made again before it is used.
        let actions: Vec<Action> = (0..16).chain([0, 1]).chain(16..32).map(Action::Run).collect();
        let mut order = ActionOrder::new(&step, &indexed, &actions).unwrap();
        let mut rng = Rng(5);
        let mut changed = 0;
        for _ in 0..200 {
            let before = order.actions();
            order.anneal_order(order.peak(), 3, 1.0, &mut rng);
            let actions = order.actions();
            changed += u32::from(before != actions);
            let spans = lifespans(&indexed, &actions, step.scratch_alignment);
            assert_eq!(order.held, profile(&spans.buffers, actions.len()));
        }
        assert!(changed > 20, "the order changed {changed} times");
    }

    #[test]
    fn branches_are_used_one_after_the_other() {
        let step = branches();
        let indexed = indexed(&step);
        let mut order = ActionOrder::new(&step, &indexed, &in_order()).unwrap();
        assert_eq!(order.peak(), 8 * 1024 + 128);
        order.anneal_order(order.peak(), 4000, 0.0, &mut Rng(1));
        assert!(order.peak() < 4 * 1024, "{} bytes are held", order.peak());
    }

    #[test]
    fn an_update_stays_behind_all_that_read_what_it_changes() {
        let step = branches();
        let indexed = indexed(&step);
        let actions = in_order();
        let mut order = ActionOrder::new(&step, &indexed, &actions).unwrap();
        for seed in 0..50 {
            order.anneal_order(u64::MAX, 50, 1e9, &mut Rng(seed));
            let actions = order.actions();
            let at = |op: u32| actions.iter().position(|&action| action == Action::Run(op)).unwrap();
            for i in 0..8 {
                assert!(at(2 * i) < at(2 * i + 1) && at(2 * i + 1) < at(16 + 2 * i));
                assert!(at(16 + 2 * i) < at(17 + 2 * i), "the weight is changed before it is read");
            }
        }
        assert_ne!(order.actions(), actions);
    }

    #[test]
    fn copies_are_left_where_they_are() {
        let step = branches();
        let actions = [Action::Run(0), Action::Store(0), Action::Stored(0)];
        assert!(ActionOrder::new(&step, &indexed(&step), &actions).is_none());
    }
}
