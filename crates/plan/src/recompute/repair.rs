//! Makes a schedule fit: at the worst stage, drops what costs least to have again, until nothing is over.
//!
//! A tensor that is held across the worst stage is dropped there and made again just before its next use, with
//! whatever chain of replays that takes. An input that is not held at that time is held on if that fits, and made
//! again too if it does not. A chain that makes something anew early may save making it later: those later
//! replays are given back where there is room.

use super::state::{Remake, State};
use crate::rng::Rng;
use crate::steps::count;

/// How the price of a drop is weighed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Score {
    /// Exponent of the length of the gap (in stages) that the drop frees.
    pub gap: f64,
    /// How much random numbers change a price, as a share of it.
    pub noise: f64,
}

/// How an attempt to make a schedule fit ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It fits.
    Fits,
    /// Nothing that could be dropped lowers the worst stage.
    Stuck,
    /// The work or the time that was allowed is used up.
    Spent,
}

/// The tools of repair, kept between calls so that nothing is allocated anew.
pub(crate) struct Repair {
    pub budget: i64,
    pub host_budget: u64,
    pub rng: Rng,
    /// Work done so far, in tensors and ops looked at.
    pub work: u64,
    /// The stage that is being lowered and what it holds, which is over the budget.
    full: (u32, i64),
    stamp: u32,
    seen: Vec<u32>,
    stack: Vec<u32>,
    chain: Vec<u32>,
    candidates: Vec<(f64, u32, u32)>,
}

/// Chains of more replays than this are not considered: they cost much, and following them takes long.
const CHAIN_LIMIT: usize = 400;

impl Repair {
    pub fn new(state: &State, budget: u64, host_budget: u64, seed: u64) -> Repair {
        Repair {
            budget: budget as i64,
            host_budget,
            rng: Rng(seed),
            work: 0,
            full: (0, i64::MIN),
            stamp: 0,
            seen: vec![0; state.indexed.ops as usize],
            stack: Vec::new(),
            chain: Vec::new(),
            candidates: Vec::new(),
        }
    }

    /// Collects in `self.chain` what to make again in `stage` so that `t` is there; returns the time that takes, or
    /// `None` if it cannot be done.
    fn chain(&mut self, state: &State, stage: u32, t: u32) -> Option<u64> {
        self.stamp += 1;
        self.chain.clear();
        self.stack.clear();
        let indexed = state.indexed;
        let mut ns = self.want(state, stage, t)?;
        while let Some(op) = self.stack.pop() {
            self.work += 1;
            count(1);
            self.chain.push(op);
            ns += indexed.ns[op as usize];
            if self.chain.len() > CHAIN_LIMIT {
                return None;
            }
            for &t in indexed.ins.of(op) {
                if self.seen[indexed.producer[t as usize] as usize] == self.stamp
                    || state.uses.is_held(t, stage)
                {
                    continue;
                }
                let made = state.uses.made_before(t, stage);
                let last = state.uses.last_use_before(t, made, stage);
                let room = self.budget - indexed.size[t as usize] as i64;
                let from = last.max(made + 1);
                // Mostly the stage that is being lowered lies between, and nothing more has to be looked at.
                let is_full = from <= self.full.0 && self.full.0 <= stage && self.full.1 > room;
                if is_full || state.settled_peak_in(from, stage) > room {
                    ns += self.want(state, stage, t)?;
                }
            }
        }
        Some(ns)
    }

    /// Has `t` made again in `stage`: by its producer, whose turn comes later, or by a load, whose time is returned.
    fn want(&mut self, state: &State, stage: u32, t: u32) -> Option<u64> {
        let producer = state.indexed.producer[t as usize];
        let load = state.indexed.ops + t;
        let replay = state.can_insert(stage, producer);
        if self.host_budget > 0 && state.can_insert(stage, load) {
            let room = state.host_bytes + state.indexed.size[t as usize] <= self.host_budget;
            let ns = state.ns(load);
            if (room || state.is_offloaded(t)) && (!replay || ns < state.indexed.ns[producer as usize]) {
                self.chain.push(load);
                return Some(ns);
            }
        }
        if !replay {
            return None;
        }
        self.seen[producer as usize] = self.stamp;
        self.stack.push(producer);
        Some(0)
    }

    /// Drops `t` between `stage` and its next use `next`; the chain must have been found just before.
    fn apply(&mut self, state: &mut State, next: u32) {
        let chain = std::mem::take(&mut self.chain);
        for &what in &chain {
            // Two inputs may have wanted the same tensor in two ways.
            if state.can_insert(next, what) {
                state.insert(next, what);
            }
        }
        for &what in &chain {
            self.give_back_after(state, next, what);
        }
        self.chain = chain;
    }

    /// Tries to do without the next making of `what` after `stage`, now that it is made in `stage`.
    fn give_back_after(&mut self, state: &mut State, stage: u32, what: Remake) {
        loop {
            let load;
            let outs = match what.checked_sub(state.indexed.ops) {
                None => state.indexed.outs.of(what),
                Some(t) => {
                    load = [t];
                    &load
                }
            };
            let after = outs.iter().filter_map(|&t| state.uses.made_after(t, stage)).min();
            let Some(later) = after.filter(|&later| state.has(later, what)) else { return };
            let worst = state.peak_in(stage, later).max(self.budget);
            if !state.might_remove(later, what, worst) {
                return;
            }
            let before = state.journal_mark();
            state.remove(later, what);
            if state.peak_in(stage, later) > worst {
                state.undo_to(before);
                return;
            }
        }
    }

    /// Drops what costs least at the worst stages until nothing is over the budget. Gives up (and leaves the
    /// state as it is) if nothing helps or the time added exceeds `limit_ns`.
    pub fn run(&mut self, state: &mut State, score: Score, limit_ns: u64, work: u64) -> bool {
        self.try_run(state, score, limit_ns, work) == Outcome::Fits
    }

    /// Like [`Repair::run`], and says why it gave up.
    pub fn try_run(&mut self, state: &mut State, score: Score, limit_ns: u64, work: u64) -> Outcome {
        let end = self.work + state.work + work;
        while state.peak() > self.budget {
            if self.work + state.work > end || state.extra_ns > limit_ns {
                return Outcome::Spent;
            }
            let stage = state.worst_stage();
            if !self.drop_at(state, stage, score, limit_ns) {
                return Outcome::Stuck;
            }
        }
        if state.extra_ns <= limit_ns { Outcome::Fits } else { Outcome::Spent }
    }

    /// Drops tensors at `stage` until it fits; false if it could not be made any lower.
    fn drop_at(&mut self, state: &mut State, stage: u32, score: Score, limit_ns: u64) -> bool {
        let indexed = state.indexed;
        let start = state.peak_in(stage, stage);
        self.full = (stage, start);
        let mut candidates = std::mem::take(&mut self.candidates);
        candidates.clear();
        self.work += u64::from(indexed.tensors()) / 64;
        count(u64::from(indexed.tensors()));
        for t in 0..indexed.tensors() {
            if indexed.producer[t as usize] > stage || indexed.size[t as usize] == 0 {
                continue;
            }
            let Some(&last) = state.uses.of(t).last() else { continue };
            if last <= stage || indexed.producer[t as usize] > stage {
                continue;
            }
            let Some(next) = state.uses.next_use(t, stage) else { continue };
            if next >= indexed.ops {
                continue;
            }
            if let Some(price) = self.price(state, t, stage, next, score, start - self.budget) {
                candidates.push((price, t, next));
            }
        }
        candidates.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let mut lowered = false;
        for k in 0..candidates.len() {
            let now = state.peak_in(stage, stage);
            let over = now - self.budget;
            if over <= 0 || state.extra_ns > limit_ns {
                break;
            }
            let (price, t, next) = candidates[k];
            if state.uses.next_use(t, stage) != Some(next) {
                continue;
            }
            self.full = (stage, now);
            // Earlier drops may have made this one dearer; then it waits for its turn in the next round.
            let Some(fresh) = self.price(state, t, stage, next, score, over) else { continue };
            if lowered && fresh > price * 1.5 && fresh > candidates.get(k + 1).map_or(f64::MAX, |c| c.0) * 1.2
            {
                continue;
            }
            let before = state.journal_mark();
            self.apply(state, next);
            if state.peak_in(stage, stage) >= now {
                state.undo_to(before);
            } else {
                lowered = true;
            }
        }
        self.candidates = candidates;
        lowered
    }

    /// The price of dropping `t`, which is held after `stage` until `next`. Leaves the chain in `self.chain`.
    fn price(
        &mut self,
        state: &State,
        t: u32,
        stage: u32,
        next: u32,
        score: Score,
        over: i64,
    ) -> Option<f64> {
        let ns = self.chain(state, next, t)?;
        let made = state.uses.made_before(t, stage);
        let last = state.uses.last_use_before(t, made, stage + 1);
        let gap = f64::from(next - last);
        let bytes = (state.indexed.size[t as usize] as i64).min(over.max(1)) as f64;
        // The same numbers as those of the power, which takes far longer.
        let length = match score.gap {
            0.0 => 1.0,
            1.0 => gap,
            exponent => gap.powf(exponent),
        };
        let price = ns as f64 / (bytes * length);
        Some(price * (1.0 + score.noise * (self.rng.unit() - 0.5)))
    }

    /// Tries to do without each replay, dearest first, until `work` is used up.
    pub fn give_back(&mut self, state: &mut State, work: u64) {
        let end = self.work + state.work + work;
        let mut pairs: Vec<(u64, u32, Remake)> =
            state.all_remakes().map(|(stage, what)| (state.ns(what), stage, what)).collect();
        pairs.sort_unstable_by(|a, b| b.cmp(a));
        for (_, stage, what) in pairs {
            if self.work + state.work > end {
                return;
            }
            self.try_without(state, stage, what);
        }
    }

    /// Lets `stage` make `what` no more, if that fits.
    pub fn try_without(&self, state: &mut State, stage: u32, what: Remake) {
        if !state.might_remove(stage, what, self.budget) {
            return;
        }
        let before = state.journal_mark();
        state.remove(stage, what);
        if state.peak() > self.budget {
            state.undo_to(before);
        }
    }
}
