//! Bounds the time a budget costs by what must be there, or be made again, after one instant of the step.
//!
//! While an op runs for the first time, only so many bytes are there; whatever later ops want of what was made before is
//! either among them or is made again afterwards, and a replay wants its own operands in the same way. The cheapest such
//! choice under a price per byte held is a minimum cut, and a cut for every price gives a line below the time of every
//! plan (Lagrange's bound). Unlike a knapsack of single tensors (see `bounds`) this sees that a cheap op may have dear
//! operands which nobody else keeps: the softmax of attention costs its scores too.
//!
//! Any flow is at most as much as any cut, so a search for the largest flow that stops early still gives a bound.

use crate::flow::{ENDLESS, Flow};
use crate::indexed_problem::IndexedProblem;

/// A bound for one price: no plan within `budget` adds less than `ns - price * budget`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line {
    ns: f64,
    price: f64,
}

impl Line {
    /// The bound at a budget; below zero where it says nothing.
    pub fn at(&self, budget: u64) -> f64 {
        self.ns - self.price * budget as f64
    }
}

/// For how many prices cuts are looked for. More give tighter bounds, which rule out more levels, and take longer.
const PRICES: usize = 14;
/// Flow is counted in these shares of a nanosecond.
const UNIT: f64 = 1024.0;
/// Steps of more nanoseconds than this have no lines: sums of flow would not fit a number.
const LONGEST: f64 = 1e13;

/// The lines for the instant at which op `at` runs; `most` is how many arcs may be looked at.
pub(crate) fn lines(indexed: &IndexedProblem, at: u32, most: u64) -> Vec<Line> {
    let instant = Instant::new(indexed, at);
    let all: f64 = indexed.base_ns() as f64;
    let (mut lines, mut work) = (Vec::new(), most);
    if all > LONGEST {
        return lines;
    }
    // Nothing is made again, or saving a little is worth the whole step: between these all prices lie.
    let held = Choice { bytes: instant.wanted_bytes as f64, ns: 0.0 };
    let mut solve = |price: f64| {
        let (flow, choice, used) = instant.cheapest(price, work / 4);
        work = work.saturating_sub(used);
        lines.push(Line { ns: flow + price * instant.fixed as f64, price });
        choice
    };
    let Some(low) = (if held.bytes > 0.0 { solve(32.0 * all / held.bytes) } else { None }) else {
        return lines;
    };
    let mut open = vec![(held, low)];
    for _ in 0..PRICES {
        // The pair of neighbours between which most may be hidden.
        let area = |(a, b): &(Choice, Choice)| (a.bytes - b.bytes) * (b.ns - a.ns);
        let Some(widest) = (0..open.len()).max_by(|&a, &b| area(&open[a]).total_cmp(&area(&open[b]))) else {
            break;
        };
        let (a, b) = open.swap_remove(widest);
        if area(&(a, b)) <= 0.0 {
            continue;
        }
        let price = (b.ns - a.ns) / (a.bytes - b.bytes);
        if let Some(middle) = solve(price) {
            let between = middle.bytes < a.bytes && middle.bytes > b.bytes;
            if between {
                open.extend([(a, middle), (middle, b)]);
            }
        }
    }
    lines
}

/// What a cut holds and what it makes again.
#[derive(Clone, Copy, Debug)]
struct Choice {
    bytes: f64,
    ns: f64,
}

/// What is wanted after the instant, as a graph: node `p` is "op p runs again", node `ops + t` "transient t is there".
struct Instant<'a> {
    indexed: &'a IndexedProblem,
    at: u32,
    /// Bytes there whatever is chosen.
    fixed: u64,
    /// Transients of the time before that are wanted after it.
    wanted: Vec<bool>,
    wanted_bytes: u64,
    /// Transients that are there at no price: the op's own operands, and what is made anew after it.
    free: Vec<bool>,
}

impl Instant<'_> {
    fn new(indexed: &IndexedProblem, at: u32) -> Instant<'_> {
        let tensors = indexed.tensors() as usize;
        let (mut wanted, mut free) = (vec![false; tensors], vec![false; tensors]);
        let bytes = |list: &[u32]| -> u64 { list.iter().map(|&t| indexed.size[t as usize]).sum() };
        indexed.ins.of(at).iter().for_each(|&t| free[t as usize] = true);
        let before = |t: u32| indexed.producer[t as usize] < at && !indexed.ins.of(at).contains(&t);
        let anew: Vec<u32> =
            (0..indexed.tensors()).map(|t| indexed.anew_after(t, at).unwrap_or(u32::MAX)).collect();
        for op in at + 1..indexed.ops {
            let is_wanted = |t: &&u32| before(**t) && op < anew[**t as usize];
            indexed.ins.of(op).iter().filter(is_wanted).for_each(|&t| wanted[t as usize] = true);
        }
        // What is made anew afterwards is there for whatever runs again then.
        anew.iter().zip(&mut free).filter(|(made, _)| **made < u32::MAX).for_each(|(_, free)| *free = true);
        for t in (0..indexed.tensors()).filter(|&t| indexed.keep[t as usize] && before(t)) {
            wanted[t as usize] = true;
        }
        let shared: u64 =
            indexed.pairs.of(at).chunks_exact(2).map(|pair| indexed.size[pair[1] as usize]).sum();
        let made = bytes(indexed.outs.of(at)).saturating_sub(shared) + indexed.scratch[at as usize];
        let fixed = indexed.resident_bytes + bytes(indexed.ins.of(at)) + made;
        let wanted_bytes = (0..tensors).filter(|&t| wanted[t]).map(|t| indexed.size[t]).sum();
        Instant { indexed, at, fixed, wanted, wanted_bytes, free }
    }

    /// A bound on what is cheapest at a price per byte held, in nanoseconds, what the cheapest choice is if it was found,
    /// and how many arcs were looked at.
    fn cheapest(&self, price: f64, most: u64) -> (f64, Option<Choice>, u64) {
        let indexed = self.indexed;
        let (source, sink) = (indexed.ops + indexed.tensors(), indexed.ops + indexed.tensors() + 1);
        let mut flow = Flow::new(sink as usize + 1);
        let cost = |t: usize| ((price * indexed.size[t] as f64 * UNIT) as i64).min(ENDLESS);
        let again = |op: u32| self.at < indexed.replay_until[op as usize];
        // Only what is wanted, at first or by a replay, has a part in it.
        let mut seen = vec![false; indexed.tensors() as usize];
        let mut ran = vec![false; indexed.ops as usize];
        let mut stack: Vec<u32> = (0..indexed.tensors()).filter(|&t| self.wanted[t as usize]).collect();
        for &t in &stack {
            seen[t as usize] = true;
            flow.arc(source, indexed.ops + t, ENDLESS);
        }
        while let Some(t) = stack.pop() {
            let op = indexed.producer[t as usize];
            if !again(op) || indexed.keep[t as usize] {
                flow.arc(indexed.ops + t, sink, cost(t as usize));
                continue;
            }
            flow.arc(indexed.ops + t, op, cost(t as usize));
            if std::mem::replace(&mut ran[op as usize], true) {
                continue;
            }
            flow.arc(op, sink, (indexed.ns[op as usize] as f64 * UNIT) as i64);
            for &u in indexed.ins.of(op).iter().filter(|&&u| !self.free[u as usize]) {
                flow.arc(op, indexed.ops + u, ENDLESS);
                if !std::mem::replace(&mut seen[u as usize], true) {
                    stack.push(u);
                }
            }
        }
        flow.close();
        let (sum, is_most) = flow.largest(source, sink, most);
        let choice = is_most.then(|| {
            let there = |node: u32| flow.level[node as usize] >= 0;
            let held = |t: &u32| {
                let op = indexed.producer[*t as usize];
                there(indexed.ops + t) && (!again(op) || indexed.keep[*t as usize] || !there(op))
            };
            let bytes: u64 = (0..indexed.tensors()).filter(held).map(|t| indexed.size[t as usize]).sum();
            let ns: u64 = (0..indexed.ops).filter(|&op| there(op)).map(|op| indexed.ns[op as usize]).sum();
            Choice { bytes: bytes as f64, ns: ns as f64 }
        });
        (sum as f64 / UNIT, choice, flow.work)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::{Op, OpId, Problem, Tensor};

    fn best(lines: &[Line], budget: u64) -> f64 {
        lines.iter().map(|line| line.at(budget)).fold(0.0, f64::max)
    }

    #[test]
    fn a_cheap_op_costs_its_dear_operand_too() {
        let mut step = Problem::new();
        let [a, b, c] = ["a", "b", "c"].map(|name| step.tensor(Tensor::transient(name, 1024)));
        let end = step.tensor(Tensor::output("end", 64));
        step.op(Op::new("dear", &[], &[a], 900));
        step.op(Op::new("cheap", &[a], &[b], 10));
        step.op(Op::new("other", &[], &[c], 5000));
        step.op(Op::new("end", &[b, c], &[end], 10));
        let order: Vec<OpId> = (0..4).map(OpId).collect();
        let indexed = IndexedProblem::new(&step, &order);
        // While `other` runs there is room for its result alone, so `b` comes again, and `a` before it.
        let lines = lines(&indexed, 2, 1 << 20);
        assert!((best(&lines, 1024) - 910.0).abs() < 1.0, "{lines:?}");
        assert_eq!(best(&lines, 2048), 0.0);
    }

    #[test]
    fn a_search_that_is_cut_short_gives_a_lower_bound() {
        let mut step = Problem::new();
        let mut made = Vec::new();
        for n in 0..40usize {
            let next = step.tensor(Tensor::transient(format!("x{n}"), 64 * (1 + n as u64 % 5)));
            step.op(Op::new(
                format!("f{n}"),
                &made[n.saturating_sub(2)..n],
                &[next],
                10 + 7 * (n as u64 % 3),
            ));
            made.push(next);
        }
        for n in (0..40).rev() {
            step.op(Op::new(format!("b{n}"), &[made[n]], &[], 10));
        }
        let order: Vec<OpId> = (0..80).map(OpId).collect();
        let indexed = IndexedProblem::new(&step, &order);
        let whole = lines(&indexed, 39, 1 << 24);
        for most in [0, 400, 1600, 6400] {
            let part = lines(&indexed, 39, most);
            for budget in [1000, 2000, 4000, 6000] {
                assert!(best(&part, budget) <= best(&whole, budget) + 1.0, "{most} {budget}");
            }
        }
        assert!(best(&whole, 3000) > 0.0);
    }
}
