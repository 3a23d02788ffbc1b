//! Finds what no plan can beat: the bytes of the largest working set, and the time that missing bytes must cost.
//!
//! Both hold for plans that first run the ops in the given order, which is how the planner's schedules look.

use crate::indexed_problem::IndexedProblem;
use crate::instant::{Line, lines};
use crate::problem::Link;
use std::sync::OnceLock;

/// What must be there while each op first runs, and what may be missing then.
pub(crate) struct Bounds {
    /// For each op, bytes that must be there: residents, operands, scratch, and what cannot be made again.
    must: Vec<u64>,
    /// For each op, bytes that are there in a plan without replays.
    live: Vec<u64>,
    /// Transients that can be made again, cheapest byte first: (price of a byte, bytes, op made, op last used).
    items: Vec<Item>,
    least: IndexedProblem,
    /// What the fullest instants say of the time; found when it is first asked for.
    lines: OnceLock<Vec<Line>>,
    /// For each op, the time of it and of all behind it.
    rest: Vec<u64>,
}

/// How many arcs may be looked at for the lines of an instant. More give tighter bounds in long steps, and take longer.
const MOST_ARCS: u64 = 12_000_000;

struct Item {
    ns_per_byte: f64,
    bytes: u64,
    made: u32,
    last: u32,
}

impl Bounds {
    pub fn new(least: IndexedProblem) -> Bounds {
        let indexed = &least;
        let ops = indexed.ops as usize;
        let uses = indexed.uses();
        let mut must_change = vec![0i64; ops + 1];
        let mut live_change = vec![0i64; ops + 1];
        let mut items = Vec::new();
        let host = indexed.copy_ns.is_some();
        // For each op that makes a transient, until where that is used.
        let mut ends: Vec<Vec<(u32, u32)>> = vec![Vec::new(); ops];
        let spans = (0..indexed.tensors()).flat_map(|t| {
            indexed.spans(t, &uses[t as usize]).map(move |(made, last)| (t as usize, made, last))
        });
        for (t, producer, last) in spans {
            ends[producer as usize].push((t as u32, last));
            let bytes = indexed.size[t];
            let end = (last as usize).max(producer as usize + 1);
            let first = producer as usize + 1;
            live_change[first.min(ops)] += bytes as i64;
            live_change[end] -= bytes as i64;
            let outs: u64 = indexed.outs.of(producer).iter().map(|&t| indexed.size[t as usize]).sum();
            let again = indexed.replay_until[producer as usize];
            // A drop at op `s` is made good after `s`, so only before `again` does dropping help.
            let until = if indexed.keep[t] { first } else { end.min((again as usize).max(first)) };
            let until = if host && !indexed.keep[t] { end } else { until };
            must_change[until.min(ops)] += bytes as i64;
            must_change[end] -= bytes as i64;
            if until > first && bytes > 0 {
                let ns = if host { 0 } else { indexed.ns[producer as usize] };
                let ns_per_byte = ns as f64 / outs as f64;
                items.push(Item { ns_per_byte, bytes, made: producer, last: until as u32 });
            }
        }
        items.sort_by(|a, b| a.ns_per_byte.total_cmp(&b.ns_per_byte).then(a.made.cmp(&b.made)));
        let (must, live) = (Vec::with_capacity(ops), Vec::with_capacity(ops));
        let mut bounds = (must, live);
        let (mut must, mut live) = (0i64, 0i64);
        let bytes = |t: &u32| indexed.size[*t as usize];
        let mut last: Vec<u32> = vec![0; uses.len()];
        for op in 0..indexed.ops {
            must += must_change[op as usize];
            live += live_change[op as usize];
            // Operands that are live past this op are in the sums already; those that end here are not.
            let across = |t: &&u32| last[**t as usize] > op;
            let pinned = |t: &&u32| {
                let again = indexed.replay_until[indexed.producer[**t as usize] as usize];
                across(t) && (indexed.keep[**t as usize] || (!host && op >= again))
            };
            let ins = indexed.ins.of(op);
            let outs: u64 = indexed.outs.of(op).iter().map(bytes).sum();
            let shared = indexed.pairs.of(op).chunks_exact(2).filter(|pair| last[pair[0] as usize] == op);
            let own = outs + indexed.scratch[op as usize];
            let own = own - shared.map(|pair| bytes(&pair[1])).sum::<u64>();
            let all: u64 = ins.iter().map(bytes).sum();
            let in_must: u64 = ins.iter().filter(pinned).map(bytes).sum();
            let in_live: u64 = ins.iter().filter(across).map(bytes).sum();
            // A pair may be shared in the least plan even if the input is wanted later and made again then.
            let may_share: u64 = indexed.pairs.of(op).chunks_exact(2).map(|pair| bytes(&pair[1])).sum();
            let least = outs.saturating_sub(may_share) + indexed.scratch[op as usize];
            bounds.0.push(indexed.resident_bytes + must as u64 + all - in_must + least);
            bounds.1.push(indexed.resident_bytes + live as u64 + all - in_live + own);
            ends[op as usize].iter().for_each(|&(t, end)| last[t as usize] = end);
        }
        let (must, live) = bounds;
        let mut rest = indexed.ns.clone();
        for op in (1..rest.len()).rev() {
            rest[op - 1] += rest[op];
        }
        Bounds { must, live, items, rest, least, lines: OnceLock::new() }
    }

    /// What the fullest instant says of the time that a budget costs. Copies to the host have no part in it.
    fn lines(&self) -> &[Line] {
        self.lines.get_or_init(|| match self.fullest() {
            Some(op) if self.least.copy_ns.is_none() => lines(&self.least, op as u32, MOST_ARCS),
            _ => Vec::new(),
        })
    }

    /// The times of all ops before the fullest one, and of it and those behind it.
    pub fn around_fullest(&self) -> (u64, u64) {
        let after = self.fullest().map_or(0, |op| self.rest[op]);
        (self.rest.first().map_or(0, |all| all - after), after)
    }

    fn fullest(&self) -> Option<usize> {
        (0..self.live.len()).max_by_key(|&op| (self.live[op], std::cmp::Reverse(op)))
    }

    /// No plan is smaller than this, and the op that makes it so.
    pub fn floor(&self) -> (u64, u32) {
        let worst = (0..self.must.len()).max_by_key(|&op| (self.must[op], std::cmp::Reverse(op)));
        worst.map_or((0, 0), |op| (self.must[op], op as u32))
    }

    /// No plan within `budget` adds less time than this; `None` if none exists.
    ///
    /// At each op the bytes over the budget must be missing, and each of them that is wanted later costs at least
    /// its share of its producer's time: a fractional knapsack, at the op where it is dearest.
    pub fn extra_ns(&self, budget: u64) -> Option<u64> {
        (self.floor().0 <= budget).then(|| self.extra_ns_beside(budget, |_| 0))
    }

    /// The same for plans that copy to the host over `link` and take less than `ns` in all; bounds that know of no copies.
    ///
    /// What is on the host while an op first runs has been copied there by then: no more than the link carries in the time that the
    /// op and those behind it leave. On a device with so much more memory, the plan would do without its copies.
    pub fn extra_ns_copying(&self, budget: u64, link: Link, host_budget: u64, ns: u64) -> u64 {
        let copied = |op: usize| {
            let before = u128::from(ns.saturating_sub(self.rest[op]));
            let bytes = before * u128::from(link.bytes_per_second) / 1_000_000_000;
            // Tensors are copied without what pads them, and are held with it.
            let padded = bytes + bytes / 32 + 4096;
            u64::try_from(padded).unwrap_or(u64::MAX).min(host_budget)
        };
        self.extra_ns_beside(budget, copied)
    }

    /// What [`Bounds::extra_ns`] says where some bytes are held elsewhere while each op first runs.
    fn extra_ns_beside(&self, budget: u64, elsewhere: impl Fn(usize) -> u64) -> u64 {
        let (mut starts, mut ends): (Vec<u32>, Vec<u32>) =
            ((0..self.items.len() as u32).collect(), Vec::new());
        ends.extend(&starts);
        starts.sort_by_key(|&i| self.items[i as usize].made);
        ends.sort_by_key(|&i| self.items[i as usize].last);
        let mut sums = Sums::new(self.items.len());
        let (mut next_start, mut next_end) = (0, 0);
        let mut worst = 0f64;
        for op in 0..self.live.len() as u32 {
            while next_start < starts.len() && self.items[starts[next_start] as usize].made < op {
                let item = &self.items[starts[next_start] as usize];
                sums.add(
                    starts[next_start] as usize,
                    item.bytes as i64,
                    item.bytes as f64 * item.ns_per_byte,
                );
                next_start += 1;
            }
            while next_end < ends.len() && self.items[ends[next_end] as usize].last <= op {
                let item = &self.items[ends[next_end] as usize];
                sums.add(
                    ends[next_end] as usize,
                    -(item.bytes as i64),
                    -(item.bytes as f64 * item.ns_per_byte),
                );
                next_end += 1;
            }
            let over = self.live[op as usize].saturating_sub(budget).saturating_sub(elsewhere(op as usize));
            if over > 0 {
                worst = worst.max(sums.cheapest(over, |i| self.items[i].ns_per_byte));
            }
        }
        if worst > 0.0 {
            let budget = budget.saturating_add(self.fullest().map_or(0, elsewhere));
            worst = self.lines().iter().map(|line| line.at(budget)).fold(worst, f64::max);
        }
        // Times are whole, so the bound may be rounded up; but sums of rounded products err in the last places, and a
        // bound must not.
        (worst * (1.0 - 1e-9) - 1e-3).ceil().max(0.0) as u64
    }
}

/// Prefix sums of bytes and times over items in the order of their price.
struct Sums {
    bytes: Vec<i64>,
    ns: Vec<f64>,
}

impl Sums {
    fn new(items: usize) -> Sums {
        let size = items.next_power_of_two() + 1;
        Sums { bytes: vec![0; size], ns: vec![0.0; size] }
    }

    fn add(&mut self, item: usize, bytes: i64, ns: f64) {
        let mut at = item + 1;
        while at < self.bytes.len() {
            self.bytes[at] += bytes;
            self.ns[at] += ns;
            at += at & at.wrapping_neg();
        }
    }

    /// The least time for which `bytes` can be missing.
    fn cheapest(&self, bytes: u64, ns_per_byte: impl Fn(usize) -> f64) -> f64 {
        let (mut at, mut left, mut ns) = (0, bytes as i64, 0.0);
        let mut step = self.bytes.len() - 1;
        while step > 0 {
            if at + step < self.bytes.len() && self.bytes[at + step] <= left {
                at += step;
                left -= self.bytes[at];
                ns += self.ns[at];
            }
            step /= 2;
        }
        if left > 0 && at + 1 < self.bytes.len() { ns + left as f64 * ns_per_byte(at) } else { ns }
    }
}
