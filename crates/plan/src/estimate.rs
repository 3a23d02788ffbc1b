//! Turns a problem's times into two estimates for a search: the least time it can take, and how much of a copy runs beside ops.

use crate::order::dependencies;
use crate::problem::{Carry, Problem};

/// The largest divisor: even a copy that runs beside ops entirely counts for a 64th of its time, so that none is made without need.
const MOST_COPY_OVERLAP: u64 = 64;

/// A tensor is mostly made again together with others that it is made of, so that more copies seem better than recomputing than its own
/// op says: they count for so many times the time that this gives.
const DEARER: u64 = 2;

/// What the search divides the time of a copy beside ops by. It is chosen so that about as many copies seem better than recomputing as the
/// link can carry while the ops run: a search that finds more worth while copies what gains little.
pub(crate) fn copy_overlap_divisor(problem: &Problem) -> u64 {
    let Some(link) = problem.link else { return 1 };
    let n = problem.tensors.len();
    let (mut made, mut used) = (vec![None; n], vec![0; n]);
    for (at, op) in problem.ops.iter().enumerate() {
        op.reads.iter().for_each(|t| used[t.index()] = at);
        op.writes.iter().for_each(|t| {
            made[t.index()].get_or_insert(at);
        });
    }
    // Each way a copy has about half of the step: what is made in its first half is wanted in its second. State that lives on
    // the host takes its part of that.
    let carried = problem.ops.iter().filter(|op| op.carry == Some(Carry::In)).map(|op| op.ns);
    let mut left = (problem.unlimited_ns() / 2).saturating_sub(carried.sum());
    let mut gains: Vec<(f64, u64)> = Vec::new();
    for (t, tensor) in problem.tensors.iter().enumerate() {
        let far = |at: &usize| used[t] > at + problem.ops.len() / 8 && problem.ops[*at].carry.is_none();
        let Some(at) = made[t].filter(far) else { continue };
        let copy = link.ns(tensor.bytes).max(1);
        let again = problem.ops[at].ns;
        gains.push((again as f64 / copy as f64, copy));
    }
    gains.sort_by(|a, b| b.0.total_cmp(&a.0));
    let last = gains.iter().find(|(_, copy)| {
        let fits = *copy <= left;
        left = left.saturating_sub(*copy);
        !fits
    });
    // There and back it costs its time twice.
    last.map_or(MOST_COPY_OVERLAP, |(gain, _)| {
        (2.0 / gain.max(1e-9) + 1.0).clamp(1.0, MOST_COPY_OVERLAP as f64) as u64
    })
    .div_ceil(DEARER)
}

/// A bound on the time of a step, without looking at memory.
pub(crate) fn least_ns(problem: &Problem) -> u64 {
    problem.unlimited_ns().max(copies_ns(problem))
}

/// A bound by copies of state: nothing goes to the host before what makes it has run, and nothing that came from there is of use
/// before what it is for has.
fn copies_ns(problem: &Problem) -> u64 {
    let copies = |way: Carry| (0..problem.ops.len()).filter(move |&op| problem.ops[op].carry == Some(way));
    if copies(Carry::In).chain(copies(Carry::Out)).next().is_none() {
        return 0;
    }
    let before = dependencies(problem);
    let mut after = vec![Vec::new(); before.len()];
    for (op, needs) in before.iter().enumerate() {
        needs.iter().for_each(|&need| after[need as usize].push(op as u32));
    }
    // The time of all ops that an op needs, or that need it.
    let reached = |from: usize, next: &[Vec<u32>]| {
        let (mut seen, mut stack, mut ns) = (vec![false; next.len()], vec![from], 0);
        while let Some(op) = stack.pop() {
            for &other in &next[op] {
                if !std::mem::replace(&mut seen[other as usize], true) {
                    ns += problem.ops[other as usize].own_ns();
                    stack.push(other as usize);
                }
            }
        }
        ns
    };
    // The copies that cannot begin before some time, or must end so long before the end, follow each other in what is left.
    let one_way = |way: Carry, next: &[Vec<u32>]| {
        let mut all: Vec<(u64, u64)> =
            copies(way).map(|op| (reached(op, next), problem.ops[op].ns)).collect();
        all.sort_unstable();
        let mut sum = 0;
        all.into_iter()
            .rev()
            .map(|(beside, ns)| {
                sum += ns;
                beside + sum
            })
            .max()
            .unwrap_or(0)
    };
    one_way(Carry::Out, &before).max(one_way(Carry::In, &after))
}
