//! Makes schedules with checkpoints: the stretch before the peak is cut into segments, what lies between cuts is dropped, and each
//! segment is run again from the nearest checkpoint when the stretch after the peak first reads something of it.
//!
//! Dropping one tensor after another (see `repair`) is good at saving little and poor at saving nearly everything: each drop relies on
//! neighbours that the next drops take away. A whole segment relies only on the tensors that cross its start, so such a schedule
//! works however little memory there is. With as many checkpoints as segments each segment is run again once; with fewer,
//! checkpoints are made anew on the way, halving the distance each time, as in the reversal of long recurrences.

use super::state::State;
use crate::indexed_problem::IndexedProblem;
use crate::parallel;

/// On how many cores at most schedules are tried at once: each holds one.
const AT_ONCE: usize = 4;

/// What checkpoint schedules take and cost, for several numbers of segments and checkpoints.
pub(crate) struct CheckpointSchedules {
    pub stretch: Stretch,
    /// (most held at once, time added, segments, checkpoints)
    rows: Vec<(u64, u64, usize, usize)>,
}

impl CheckpointSchedules {
    /// Tries numbers of segments up to `most`, and of checkpoints for each.
    pub fn new(indexed: &IndexedProblem, most: usize) -> CheckpointSchedules {
        let [table] = CheckpointSchedules::timed([&indexed.ns], indexed, most);
        table
    }

    /// Like [`CheckpointSchedules::new`], for several times of the ops at once: what a schedule takes does not depend on them.
    pub fn timed<const N: usize>(
        times: [&[u64]; N],
        indexed: &IndexedProblem,
        most: usize,
    ) -> [CheckpointSchedules; N] {
        let mut fresh = State::new(indexed);
        let stretch = Stretch::new(&mut fresh);
        // What runs everything several times over is no good even as a start.
        let limits = times.map(|ns| 3 * ns.iter().sum::<u64>());
        let try_one = |&(segments, checkpoints): &(usize, usize)| {
            let mut state = fresh.clone();
            stretch.apply(&mut state, segments, checkpoints);
            let again = || (0..indexed.ops).flat_map(|stage| state.remakes(stage));
            let extra_ns = times.map(|ns| again().map(|&op| ns[op as usize]).sum::<u64>());
            let is_good = extra_ns.iter().zip(&limits).any(|(extra_ns, limit)| extra_ns <= limit);
            (if is_good { state.peak() as u64 } else { 0 }, extra_ns)
        };
        let tried = numbers(most);
        // Each core takes every so manieth, so that all of them have long ones and short ones.
        let cores = parallel::spare(AT_ONCE);
        let share = |core: usize| {
            let (own, try_one) = (tried.iter().skip(core).step_by(cores), &try_one);
            move || own.map(try_one).collect::<Vec<_>>()
        };
        let found = parallel::each((0..cores).map(share).collect());
        let mut rows = [(); N].map(|()| Vec::new());
        for (i, &(segments, checkpoints)) in tried.iter().enumerate() {
            let (peak, extra_ns) = found[i % cores][i / cores];
            for ((rows, extra_ns), limit) in rows.iter_mut().zip(extra_ns).zip(limits) {
                if extra_ns <= limit {
                    rows.push((peak, extra_ns, segments, checkpoints));
                }
            }
        }
        rows.map(|rows| CheckpointSchedules { stretch: stretch.clone(), rows })
    }

    /// Legs and checkpoints that take least.
    pub fn lowest(&self) -> Option<(usize, usize)> {
        self.rows.iter().min().map(|r| (r.2, r.3))
    }

    /// The least time added within a budget, with segments and checkpoints.
    pub fn fastest(&self, budget: u64) -> Option<(u64, usize, usize)> {
        self.rows.iter().filter(|r| r.0 <= budget).map(|r| (r.1, r.2, r.3)).min()
    }

    /// Legs and checkpoints that are worth trying for a budget: the cheapest that fit, and one that nearly does.
    pub fn cheapest(&self, budget: u64) -> Vec<(usize, usize)> {
        let mut chosen = Vec::new();
        for (from, to, count) in [(0, budget, 2), (budget + 1, budget + budget / 3, 1)] {
            let mut rows: Vec<_> = self.rows.iter().filter(|r| (from..=to).contains(&r.0)).collect();
            // Of equally cheap ones those with the longest segments rely least on each other.
            let least = rows.iter().map(|r| r.1).min().unwrap_or(0);
            rows.sort_unstable_by_key(|r| {
                (r.1 > least + least / 16, if r.1 > least + least / 16 { r.1 } else { r.2 as u64 })
            });
            chosen.extend(rows.iter().take(count).map(|r| (r.2, r.3)));
        }
        chosen
    }
}

/// Numbers of segments up to `most`, with numbers of checkpoints for each.
fn numbers(most: usize) -> Vec<(usize, usize)> {
    let mut all = Vec::new();
    let mut segments = 2;
    while segments <= most {
        let mut checkpoints = segments;
        while checkpoints > 0 {
            all.push((segments, checkpoints));
            checkpoints = if checkpoints > 4 { checkpoints / 2 } else { checkpoints - 1 };
        }
        segments = if segments < 8 { segments + 1 } else { segments * 4 / 3 };
    }
    all
}

/// The stretch before the peak, and what crosses the peak.
#[derive(Clone)]
pub(crate) struct Stretch {
    peak: u32,
    /// For each tensor made before the peak, its last use up to the peak.
    last: Vec<u32>,
    /// For each tensor, its first use after the peak; `u32::MAX` if it may not be dropped or does not cross.
    next: Vec<u32>,
    /// For each position up to the peak, the bytes that cross into it on the way to the peak.
    across: Vec<u64>,
    /// For each position up to the peak, the bytes made before it that can be dropped.
    dropped: Vec<u64>,
}

impl Stretch {
    /// The stretch up to the worst stage of a schedule without replays.
    pub fn new(fresh: &mut State) -> Stretch {
        let peak = fresh.worst_stage();
        let indexed = fresh.indexed;
        let tensors = indexed.tensors() as usize;
        let (mut last, mut next) = (vec![0; tensors], vec![u32::MAX; tensors]);
        let mut change = vec![0i64; peak as usize + 2];
        let mut dropped = vec![0u64; peak as usize + 2];
        for t in 0..indexed.tensors() {
            let made = indexed.producer[t as usize];
            if made >= peak {
                continue;
            }
            let bytes = indexed.size[t as usize];
            let used = fresh.uses.of(t);
            let after = used.partition_point(|&u| u <= peak);
            last[t as usize] = used[..after].last().copied().unwrap_or(made);
            change[made as usize + 1] += bytes as i64;
            change[last[t as usize] as usize + 1] -= bytes as i64;
            let wanted = used.get(after).copied().filter(|&u| u < indexed.ops && fresh.can_insert(u, made));
            if let Some(wanted) = wanted.filter(|_| bytes > 0) {
                next[t as usize] = wanted;
                dropped[made as usize + 1] += bytes;
            }
        }
        let mut held = 0;
        let sum = |c: &i64| {
            held += c;
            held as u64
        };
        let across = change.iter().map(sum).collect();
        (1..dropped.len()).for_each(|at| dropped[at] += dropped[at - 1]);
        Stretch { peak, last, next, across, dropped }
    }

    /// Where each of about `segments` segments begins: near equal shares of what can be dropped, where least crosses.
    fn starts(&self, segments: usize) -> Vec<u32> {
        let all = self.dropped.last().copied().unwrap_or(0) as f64;
        let at = |share: f64| self.dropped.partition_point(|&d| (d as f64) < share * all);
        let mut starts = vec![0];
        for segment in 1..segments {
            let middle = segment as f64 / segments as f64;
            let (from, to) = (at(middle - 0.4 / segments as f64), at(middle + 0.4 / segments as f64));
            let best = (from..=to.min(self.peak as usize)).min_by_key(|&p| self.across[p]);
            if let Some(best) = best.filter(|&b| b as u32 > starts[starts.len() - 1]) {
                starts.push(best as u32);
            }
        }
        starts
    }

    /// Whether a tensor crosses into `position` on the way to the peak.
    fn crosses(&self, made: u32, t: u32, position: u32) -> bool {
        made < position && self.last[t as usize] >= position
    }

    /// Changes `state`, which has no replays, to about `segments` segments of which `checkpoints` are held at once.
    pub fn apply(&self, state: &mut State, segments: usize, checkpoints: usize) {
        let starts = self.starts(segments);
        let indexed = state.indexed;
        let segment_of = |position: u32| starts.partition_point(|&s| s <= position) - 1;
        let mut items: Vec<Vec<u32>> = vec![Vec::new(); starts.len()];
        let mut crossing: Vec<Vec<u32>> = vec![Vec::new(); starts.len()];
        for t in 0..indexed.tensors() {
            let made = indexed.producer[t as usize];
            if made >= self.peak {
                continue;
            }
            let segment = segment_of(made);
            if self.next[t as usize] < u32::MAX {
                items[segment].push(t);
            }
            let later = starts[segment + 1..].iter().take_while(|&&s| self.last[t as usize] >= s);
            debug_assert!(later.clone().all(|&s| self.crosses(made, t, s)));
            (segment + 1..segment + 1 + later.count()).for_each(|start| crossing[start].push(t));
        }
        // Checkpoint 0 is the start, which needs nothing. The first ones are made as the step first runs.
        let mut held = vec![0usize];
        place(&mut held, starts.len(), checkpoints);
        let mut holds = vec![0u32; indexed.tensors() as usize];
        held.iter().for_each(|&s| crossing[s].iter().for_each(|&t| holds[t as usize] += 1));
        // Tensors that cannot be made again stay.
        let first = |segment: &usize| items[*segment].iter().map(|&t| self.next[t as usize]).min();
        let mut order: Vec<usize> = (0..starts.len()).filter(|segment| first(segment).is_some()).collect();
        order.sort_by_key(|segment| (first(segment), std::cmp::Reverse(*segment)));
        let mut in_chain = vec![u32::MAX; indexed.ops as usize];
        for k in 0..order.len() {
            let segment = order[k];
            let wanted = items[segment].iter().copied().filter(|&t| holds[t as usize] == 0);
            let mut stack: Vec<u32> = wanted.collect();
            let Some(stage) = stack.iter().map(|&t| self.next[t as usize]).min() else { continue };
            let before = held.len();
            held.sort_unstable();
            let reached = held.partition_point(|&s| s <= segment);
            let mut way: Vec<usize> = vec![held[reached - 1]];
            place(&mut way, segment, 1 + checkpoints.saturating_sub(before));
            for &s in &way[1..] {
                stack.extend(crossing[s].iter().copied().filter(|&t| holds[t as usize] == 0));
            }
            while let Some(t) = stack.pop() {
                let op = indexed.producer[t as usize];
                if in_chain[op as usize] == k as u32 {
                    continue;
                }
                in_chain[op as usize] = k as u32;
                if !state.can_insert(stage, op) {
                    continue;
                }
                state.insert(stage, op);
                let missing = |t: &&u32| {
                    let made = indexed.producer[**t as usize];
                    holds[**t as usize] == 0 && !indexed.keep[**t as usize] && made < self.peak
                };
                stack.extend(indexed.ins.of(op).iter().filter(missing));
            }
            for &s in &way[1..] {
                held.push(s);
                crossing[s].iter().for_each(|&t| holds[t as usize] += 1);
            }
            // CheckpointSchedules that no later segment starts from are let go.
            let rest = &order[k + 1..];
            let all = held.clone();
            held.retain(|&s| {
                let next = all.iter().copied().filter(|&other| other > s).min().unwrap_or(usize::MAX);
                let needed = s == 0 || rest.iter().any(|&segment| segment >= s && segment < next);
                if !needed {
                    crossing[s].iter().for_each(|&t| holds[t as usize] -= 1);
                }
                needed
            });
        }
    }
}

/// Adds checkpoints between the last of `way` and `end`, evenly, until there are `count`.
fn place(way: &mut Vec<usize>, end: usize, count: usize) {
    let from = way[way.len() - 1];
    let slots = count.saturating_sub(way.len()).min(end.saturating_sub(from + 1));
    way.extend((1..=slots).map(|k| from + (end - from) * k / (slots + 1)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::{Op, OpId, Problem, Tensor, TensorId};

    /// A chain of `length` ops and its backward pass.
    fn chain(length: u32) -> Problem {
        let mut step = Problem::new();
        let made: Vec<TensorId> =
            (0..length).map(|n| step.tensor(Tensor::transient(format!("x{n}"), 64))).collect();
        for n in 0..length as usize {
            step.op(Op::new(format!("f{n}"), &made[n.saturating_sub(1)..n], &[made[n]], 10));
        }
        let mut gradient = made[length as usize - 1];
        for n in (0..length as usize).rev() {
            let next = step.tensor(Tensor::transient(format!("g{n}"), 64));
            step.op(Op::new(format!("b{n}"), &[made[n], gradient], &[next], 10));
            gradient = next;
        }
        step
    }

    #[test]
    fn fewer_snapshots_take_fewer_bytes_and_more_time() {
        let step = chain(64);
        let order: Vec<OpId> = (0..step.ops.len() as u32).map(OpId).collect();
        let indexed = IndexedProblem::new(&step, &order);
        let mut fresh = State::new(&indexed);
        let whole = fresh.peak();
        let stretch = Stretch::new(&mut fresh);
        let mut last = (whole, 0);
        for checkpoints in [8, 4, 2] {
            let mut state = fresh.clone();
            stretch.apply(&mut state, 8, checkpoints);
            let now = (state.peak(), state.extra_ns);
            assert!(now.0 < last.0 && now.1 > last.1, "{checkpoints}: {now:?} after {last:?}");
            last = now;
        }
        // Eight segments of eight tensors, of which about one and the checkpoints are there at a time.
        assert!(last.0 < whole / 3);
    }

    #[test]
    fn a_step_without_anything_to_drop_has_no_legs() {
        let mut step = Problem::new();
        let only = step.tensor(Tensor::output("only", 64));
        step.op(Op::new("make", &[], &[only], 10));
        let table = CheckpointSchedules::new(&IndexedProblem::new(&step, &[OpId(0)]), 8);
        let (segments, checkpoints) = table.lowest().unwrap_or((1, 1));
        let indexed = IndexedProblem::new(&step, &[OpId(0)]);
        let mut state = State::new(&indexed);
        table.stretch.apply(&mut state, segments, checkpoints);
        assert_eq!((state.pairs, state.peak()), (0, 64));
    }
}
