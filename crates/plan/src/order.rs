//! Finds an order of a step's ops that holds less at once.
//!
//! Any order that keeps every op after what it reads, and every read of a state on its side of the state's updates,
//! gives the same bits. Program order is the first candidate; the others are lists made by a rule: run at once
//! whatever frees more than it takes (which is how an update comes to run as soon as its gradient is complete, so
//! that gradients never all live at once), or always run what adds least. The best is then polished around its peak.
//! An order by demand holds no less while everything is kept, but may hold far less once things are dropped and made
//! again: a tree whose leaves all come first is wide at its peak_with_drops, and depth first it is narrow.

use crate::indexed_problem::IndexedProblem;
use crate::lifespan::{Action, lifespans, profile};
use crate::problem::{OpId, Problem};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// What an order's peak must be, as a share of program order's, to be taken instead, because program order is what
/// people expect to see in a plan.
const WORTH: f64 = 0.995;
/// The same for orders that scatter layers: tensors made together are then wanted far apart, which makes chains of
/// replays long. A traced LSTM whose peak such an order lowered by 1.6 % had its floor more than doubled by it.
const WORTH_SCATTERING: f64 = 0.9;

/// What [`peak_with_drops`] of the order by demand must be, as a share of that of the best other order, to be taken instead: program
/// order is what people expect to see, so little is not worth a change.
const WORTH_DEMAND: f64 = 0.8;

/// The order to plan: another than program order only where it holds clearly less.
pub(crate) fn best_order(problem: &Problem) -> Vec<OpId> {
    let orders = Orders::new(problem);
    let before = dependencies(problem);
    let mut best = orders.indexed.op_id.clone();
    let mut least = orders.peak(&best);
    let first = least;
    let share = |worth: f64| (first as f64 * worth) as u64;
    let (wanted, wanted_scattering) = (share(WORTH), share(WORTH_SCATTERING));
    for (rule, wanted) in [(Rule::FreeAtOnce, wanted), (Rule::AddLeast, wanted_scattering)] {
        let order = list(&orders.indexed, &before, rule);
        let peak = orders.peak(&order);
        if peak < least.min(wanted) {
            (least, best) = (peak, order);
        }
    }
    // Polishing looks at whole orders, so its trials are few in long steps.
    let trials = (400_000 / problem.ops.len().max(1)).min(200);
    let polished = polish(&orders, &before, best.clone(), trials);
    let peak = orders.peak(&polished);
    if peak < least.min(wanted) {
        (least, best) = (peak, polished);
    }
    let demand = by_demand(&before);
    let no_worse = orders.peak(&demand) <= least + least / 100;
    if no_worse
        && (orders.peak_with_drops(&demand) as f64) < WORTH_DEMAND * orders.peak_with_drops(&best) as f64
    {
        best = demand;
    }
    best
}

/// A step whose orders are compared. It is numbered once, in program order: an order is then a sequence of actions on it.
struct Orders<'a> {
    problem: &'a Problem,
    indexed: IndexedProblem,
}

impl Orders<'_> {
    fn new(problem: &Problem) -> Orders<'_> {
        let program: Vec<OpId> = (0..problem.ops.len() as u32).map(OpId).collect();
        Orders { problem, indexed: IndexedProblem::new(problem, &program) }
    }

    /// The bytes held during each op of an order, without replays.
    fn held(&self, order: &[OpId]) -> Vec<u64> {
        let actions: Vec<Action> = order.iter().map(|op| Action::Run(op.0)).collect();
        let spans = lifespans(&self.indexed, &actions, self.problem.scratch_alignment);
        profile(&spans.buffers, actions.len())
    }

    /// The most that an order holds at once, without replays.
    fn peak(&self, order: &[OpId]) -> u64 {
        self.held(order).into_iter().max().unwrap_or(0)
    }

    /// The most that an order would hold at once if whatever crosses its peak were dropped there and made again for nothing:
    /// a guess at how low replays can bring it.
    fn peak_with_drops(&self, order: &[OpId]) -> u64 {
        let indexed = IndexedProblem::new(self.problem, order);
        let memory = self.held(order);
        let most = memory.iter().copied().max().unwrap_or(0);
        let peak = memory.iter().position(|&m| m == most).unwrap_or(0) as u32;
        let mut uses: Vec<Vec<u32>> = indexed.producer.iter().map(|&p| vec![p]).collect();
        for op in 0..indexed.ops {
            indexed.ins.of(op).iter().for_each(|&t| uses[t as usize].push(op));
        }
        let mut change = vec![0i64; order.len() + 1];
        for (t, uses) in uses.iter().enumerate() {
            let mut hold = |from: u32, to: u32| {
                change[from as usize] += indexed.size[t] as i64;
                change[to as usize + 1] -= indexed.size[t] as i64;
            };
            let (first, last) =
                (uses[0], if indexed.keep[t] { indexed.ops - 1 } else { uses[uses.len() - 1] });
            if !indexed.anew.of(t as u32).is_empty() {
                indexed.spans(t as u32, uses).for_each(|(made, last)| hold(made, last));
                continue;
            }
            let after = uses.partition_point(|&u| u <= peak);
            let again = uses.get(after).filter(|&&u| u <= indexed.replay_until[first as usize]);
            match again.filter(|_| after > 0 && !indexed.keep[t]) {
                Some(&again) => {
                    hold(first, uses[after - 1]);
                    hold(again, last);
                }
                None => hold(first, last),
            }
        }
        let mut sum = 0;
        let sums = change.iter().map(|c| {
            sum += c;
            sum
        });
        sums.max().unwrap_or(0) as u64
    }
}

/// Runs each op as late as it can, just before the first op that needs it: depth first, from the ops that nobody needs.
fn by_demand(before: &[Vec<u32>]) -> Vec<OpId> {
    let mut needed = vec![false; before.len()];
    before.iter().flatten().for_each(|&b| needed[b as usize] = true);
    let mut order = Vec::with_capacity(before.len());
    let mut entered = vec![false; before.len()];
    let mut stack: Vec<(u32, usize)> = Vec::new();
    for root in (0..before.len() as u32).filter(|&op| !needed[op as usize]) {
        stack.push((root, 0));
        entered[root as usize] = true;
        while let Some((op, next)) = stack.pop() {
            match before[op as usize].get(next) {
                Some(&needs) => {
                    stack.push((op, next + 1));
                    if !std::mem::replace(&mut entered[needs as usize], true) {
                        stack.push((needs, 0));
                    }
                }
                None => order.push(OpId(op)),
            }
        }
    }
    order
}

/// For each op, the ops that must run before it.
pub(crate) fn dependencies(problem: &Problem) -> Vec<Vec<u32>> {
    let mut producer: Vec<Option<u32>> = vec![None; problem.tensors.len()];
    let mut updater: Vec<Option<u32>> = vec![None; problem.tensors.len()];
    let mut readers: Vec<Vec<u32>> = vec![Vec::new(); problem.tensors.len()];
    let mut before: Vec<Vec<u32>> = Vec::with_capacity(problem.ops.len());
    for (index, op) in problem.ops.iter().enumerate() {
        let mut list: Vec<u32> = Vec::new();
        for &t in &op.reads {
            let root = problem.root(t).0.index();
            list.extend(producer[root]);
            list.extend(updater[root]);
            readers[root].push(index as u32);
        }
        for &t in &op.updates {
            list.extend(updater[t.index()]);
            list.extend(readers[t.index()].drain(..).filter(|&r| r != index as u32));
            updater[t.index()] = Some(index as u32);
        }
        op.writes.iter().for_each(|t| producer[t.index()] = Some(index as u32));
        list.sort_unstable();
        list.dedup();
        before.push(list);
    }
    before
}

#[derive(Clone, Copy, PartialEq)]
enum Rule {
    FreeAtOnce,
    AddLeast,
}

/// Lists the ops by a rule; equal ops in program order.
fn list(indexed: &IndexedProblem, before: &[Vec<u32>], rule: Rule) -> Vec<OpId> {
    let mut uses = vec![0u32; indexed.tensors() as usize];
    for op in 0..indexed.ops {
        indexed.ins.of(op).iter().for_each(|&t| uses[t as usize] += 1);
    }
    let mut after: Vec<Vec<u32>> = vec![Vec::new(); before.len()];
    let mut missing: Vec<u32> = before.iter().map(|b| b.len() as u32).collect();
    for (op, list) in before.iter().enumerate() {
        list.iter().for_each(|&b| after[b as usize].push(op as u32));
    }
    // What an op adds changes only when one of its inputs loses a user, and then only downwards, so a stale entry
    // is never too good: entries are pushed again when they improve.
    let adds = |op: u32, uses: &[u32]| -> i64 {
        let size = |t: &u32| indexed.size[*t as usize] as i64;
        let made: i64 = indexed
            .outs
            .of(op)
            .iter()
            .filter(|t| uses[**t as usize] > 0 || indexed.keep[**t as usize])
            .map(size)
            .sum();
        let gone = |t: &&u32| uses[**t as usize] == 1 && !indexed.keep[**t as usize];
        made - indexed.ins.of(op).iter().filter(gone).map(size).sum::<i64>()
    };
    let key = |op: u32, uses: &[u32]| match (rule, adds(op, uses)) {
        (Rule::FreeAtOnce, added) if added <= 0 => (0, op),
        (Rule::FreeAtOnce, _) => (1, op),
        (Rule::AddLeast, added) => (added, op),
    };
    let mut users: Vec<Vec<u32>> = vec![Vec::new(); indexed.tensors() as usize];
    for op in 0..indexed.ops {
        indexed.ins.of(op).iter().for_each(|&t| users[t as usize].push(op));
    }
    let mut ready = BinaryHeap::new();
    let mut done = vec![false; before.len()];
    ready.extend((0..indexed.ops).filter(|&op| missing[op as usize] == 0).map(|op| Reverse(key(op, &uses))));
    let mut order = Vec::with_capacity(before.len());
    while let Some(Reverse((_, op))) = ready.pop() {
        if std::mem::replace(&mut done[op as usize], true) {
            continue;
        }
        order.push(OpId(op));
        for &t in indexed.ins.of(op) {
            uses[t as usize] -= 1;
            if uses[t as usize] == 1 {
                let last =
                    users[t as usize].iter().filter(|&&u| !done[u as usize] && missing[u as usize] == 0);
                last.for_each(|&u| ready.push(Reverse(key(u, &uses))));
            }
        }
        for &next in &after[op as usize] {
            missing[next as usize] -= 1;
            if missing[next as usize] == 0 {
                ready.push(Reverse(key(next, &uses)));
            }
        }
    }
    order
}

/// Moves ops near the peak out of its way, as long as the peak falls.
fn polish(orders: &Orders<'_>, before: &[Vec<u32>], mut order: Vec<OpId>, trials: usize) -> Vec<OpId> {
    let mut memory = orders.held(&order);
    let mut least = memory.iter().copied().max().unwrap_or(0);
    let mut left = trials;
    'again: loop {
        let Some(at) = memory.iter().position(|&m| m == least) else { return order };
        // Ops before the peak are put off past it, ops after it are run ahead of it, nearest first.
        for distance in 0..24usize {
            for later in [true, false] {
                let from = if later { at.checked_sub(distance) } else { Some(at + distance + 1) };
                let Some(from) = from.filter(|&f| f < order.len()) else { continue };
                if left == 0 {
                    return order;
                }
                let to = if later { at + 1 } else { at };
                let Some(trial) = moved(before, &order, from, to) else { continue };
                left -= 1;
                let held = orders.held(&trial);
                let peak = held.iter().copied().max().unwrap_or(0);
                if peak < least {
                    (order, memory, least) = (trial, held, peak);
                    continue 'again;
                }
            }
        }
        return order;
    }
}

/// The order with the op at `from` moved to `to`, if nothing depends on its staying.
fn moved(before: &[Vec<u32>], order: &[OpId], from: usize, to: usize) -> Option<Vec<OpId>> {
    let op = order[from];
    let (low, high) = (from.min(to), from.max(to).min(order.len() - 1));
    let needs = |a: OpId, b: OpId| before[a.index()].contains(&b.0);
    let blocked = match from < to {
        true => order[from + 1..=high].iter().any(|&other| needs(other, op)),
        false => order[low..from].iter().any(|&other| needs(op, other)),
    };
    if blocked || low == high {
        return None;
    }
    let mut trial = order.to_vec();
    trial.remove(from);
    trial.insert(if from < to { high } else { low }, op);
    Some(trial)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::{Op, Tensor};

    /// Four gradients, then four updates: in program order all gradients live at once.
    fn updates_at_the_end() -> Problem {
        let mut p = Problem::new();
        let weights: Vec<_> = (0..4).map(|i| p.tensor(Tensor::resident(format!("w{i}"), 64))).collect();
        let grads: Vec<_> = (0..4).map(|i| p.tensor(Tensor::transient(format!("g{i}"), 1024))).collect();
        (0..4).for_each(|i| _ = p.op(Op::new(format!("backward{i}"), &[weights[i]], &[grads[i]], 10)));
        for i in 0..4 {
            let mut sgd = Op::new(format!("sgd{i}"), &[grads[i]], &[], 1);
            sgd.updates = vec![weights[i]];
            p.op(sgd);
        }
        p
    }

    #[test]
    fn an_update_runs_as_soon_as_its_gradient_is_complete() {
        let problem = updates_at_the_end();
        let order = best_order(&problem);
        assert_eq!(Orders::new(&problem).peak(&order), 1024);
        let names: Vec<&str> = order.iter().map(|op| problem.ops[op.index()].name.as_str()).collect();
        assert_eq!(names[..4], ["backward0", "sgd0", "backward1", "sgd1"]);
    }

    #[test]
    fn a_reader_of_the_old_weight_stays_before_its_update() {
        let mut problem = updates_at_the_end();
        let late = problem.tensor(Tensor::output("late", 64));
        // Reads weight 0 before its update, in program order.
        problem.ops.insert(4, Op::new("reader", &[crate::TensorId(0)], &[late], 5));
        let order = best_order(&problem);
        let at = |name: &str| order.iter().position(|op| problem.ops[op.index()].name == name);
        assert!(at("reader") < at("sgd0"));
    }

    #[test]
    fn program_order_stays_where_nothing_is_gained() {
        let mut p = Problem::new();
        let mut last = p.tensor(Tensor::resident("w", 64));
        for i in 0..5 {
            let next = p.tensor(Tensor::transient(format!("x{i}"), 512));
            p.op(Op::new(format!("op{i}"), &[last], &[next], 10));
            last = next;
        }
        assert_eq!(best_order(&p), (0..5).map(OpId).collect::<Vec<_>>());
    }
}
