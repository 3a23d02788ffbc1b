//! Finds the schedule of a step that takes least, and schedules that take little on the way to it.
//!
//! First schedules come by snapshots and by dropping tensors one by one; the lowest are then pressed lower, step by step,
//! and spread where they are stuck. Nothing here looks at how long an op takes.

use crate::dense::Dense;
use crate::entry::Entry;
use crate::exact::{Steps, fastest};
use crate::ladder::Ladder;
use crate::problem::Problem;
use crate::recompute::improve::improve;
use crate::recompute::repair::{Outcome, Repair, Score};
use crate::recompute::snapshots::Snapshots;
use crate::recompute::spread::{spread, spread_acts};
use crate::recompute::state::{Frozen, State};
use std::sync::Arc;

/// What chance starts from when a schedule is first pressed.
const SEED: u64 = 3;

/// The schedule that takes least.
pub(crate) struct Floor {
    pub entry: Entry,
    /// The least that rungs are searched for: what it took before its acts were put in another order, which rungs do not do.
    pub lowest: u64,
    /// Schedules found on the way to it, the highest first.
    pub lows: Vec<Low>,
    /// What schedules by snapshots take and cost with the times of the ops, where that came with the search.
    pub snapshots: Option<Snapshots>,
}

/// A schedule that takes little.
pub(crate) struct Low {
    pub live: u64,
    pub ns: u64,
    pub frozen: Frozen,
    pub dense: Arc<Dense>,
}

impl Floor {
    /// The same with the times of `problem`.
    pub fn time(mut self, problem: &Problem) -> Floor {
        self.entry.time(problem);
        self.lows = self.lows.into_iter().map(|low| low.time(problem)).collect();
        self.snapshots = None;
        self
    }
}

impl Low {
    pub fn new(frozen: Frozen, dense: Arc<Dense>) -> Low {
        let mut state = frozen.thaw(&dense);
        Low { live: state.peak() as u64, ns: dense.base_ns() + state.extra_ns, frozen, dense }
    }

    fn time(self, problem: &Problem) -> Low {
        let mut dense = Dense::clone(&self.dense);
        dense.time(problem);
        Low::new(self.frozen, Arc::new(dense))
    }
}

impl Ladder {
    /// Looks for the schedule that takes least: by snapshots and by dropping tensors one by one, then by pressing the best of
    /// those lower. Every op counts as one unit of time here, so that the floor of a step does not change when its ops are
    /// timed anew.
    pub fn find_floor(&self) -> Floor {
        let bound = self.bounds.floor().0;
        let lean = self.lean(bound, true);
        let mut bare = Dense::clone(&lean);
        bare.ns.iter_mut().for_each(|ns| *ns = 1);
        bare.copy_ns.iter_mut().flatten().for_each(|ns| *ns = 1);
        bare.carried.iter_mut().flatten().for_each(|copy| copy.ns = 1);
        let bare = Arc::new(bare);
        let fresh = State::new(&bare).freeze();
        let mut found = vec![Low::new(fresh, bare.clone())];
        let [table, timed] = Snapshots::timed([&bare.ns, &self.plain.ns], &bare, self.effort.legs);
        if let Some((legs, snapshots)) = table.lowest() {
            let mut state = State::new(&bare);
            table.stretch.apply(&mut state, legs, snapshots);
            let (dense, frozen) = spread(&state);
            found.push(Low::new(frozen, Arc::new(dense)));
        }
        let mut live = found.iter().map(|f| f.live).min().unwrap_or(0);
        let (mut low, mut at) = (bound, bound);
        while low < live && live - low > live / self.effort.open {
            let tried = self.start(&bare, at, self.effort.floor, None).map(|f| Low::new(f, bare.clone()));
            match tried {
                Some(lower) if lower.live < live => {
                    live = lower.live;
                    found.push(lower);
                }
                // Nothing, or nothing lower (a step whose transients weigh nothing has nothing to give): the interval
                // closes from below, so that the search ends.
                _ => low = at + 1,
            }
            at = (low as f64 * live as f64).sqrt() as u64;
            at = at.clamp(low, live.max(low));
        }
        found.sort_by_key(|f| f.live);
        found.truncate(2);
        // What is far behind is not pressed, but is a schedule all the same.
        let (near, mut lows): (Vec<Low>, Vec<Low>) =
            found.into_iter().partition(|start| start.live <= live + live / 4);
        near.iter().for_each(|start| self.press(start, bound, SEED, &mut lows));
        // Where a schedule gets stuck is a matter of chance: while much is left open, and that helps, it is pressed again.
        for seed in (1..=self.effort.again).map(|n| SEED + n) {
            let least = lows.iter().map(|low| low.live).min().unwrap_or(u64::MAX);
            if least.saturating_sub(bound) <= bound / 32 || self.is_late() {
                break;
            }
            let mut more = Vec::new();
            near.iter().for_each(|start| self.press(start, bound, seed, &mut more));
            more.retain(|low| low.live < least);
            if more.is_empty() {
                break;
            }
            lows.append(&mut more);
        }
        self.exhaust(&bare, bound, &mut lows);
        // Rungs start from the step with the first algorithm of every op.
        let snapshots = Some(timed).filter(|_| Arc::ptr_eq(&lean, &self.plain));
        Floor { snapshots, ..self.timed(lows) }
    }

    /// Adds the lowest schedules of a small step, found by trying all. The lowest may have a hole wherever its buffers are put,
    /// so some follow that hold a little more.
    fn exhaust(&self, bare: &Arc<Dense>, bound: u64, lows: &mut Vec<Low>) {
        let mut live = lows.iter().map(|low| low.live).min().unwrap_or(0);
        let mut steps = Steps::of_the_floor();
        let mut add = |budget: u64| {
            let (dense, frozen) = spread_acts(bare, &fastest(bare, budget, &mut steps)?);
            lows.push(Low::new(frozen, Arc::new(dense)));
            lows.last().map(|low| low.live)
        };
        while live > bound
            && let Some(lower) = add(live - 1)
        {
            live = lower;
        }
        for more in 0..8 {
            add(live + live * more / 64);
        }
    }

    /// The lowest of `lows` once packed, and all of them as starts for rungs, with the times of their ops.
    fn timed(&self, mut lows: Vec<Low>) -> Floor {
        lows.sort_by_key(|low| std::cmp::Reverse(low.live));
        let least = lows.last().map_or(0, |low| low.live);
        let alignment = self.problem.scratch_alignment;
        // Holding less does not always pack lower, so several are packed.
        let mut entry: Option<Entry> = None;
        for low in lows.iter().rev().filter(|low| low.live <= least + least / 16).take(self.effort.packed) {
            let mut next = Entry::new(&mut low.frozen.thaw(&low.dense), &low.dense, low.live);
            let best = entry.as_mut().map_or(u64::MAX, |entry| entry.arena(alignment));
            if low.live < best && next.arena(alignment) < best {
                entry = Some(next);
            }
        }
        let fresh = || Entry::new(&mut State::new(&self.plain), &self.plain, self.unlimited_live);
        let entry = entry.unwrap_or_else(fresh);
        let lowest = entry.live;
        let entry = entry.into_tight(&self.problem, self.host_budget);
        let lowest = lowest.max(entry.live);
        Floor { entry, lowest, lows, snapshots: None }.time(&self.problem)
    }

    /// Presses a schedule lower, step by step, and keeps what it was on the way. Where it is stuck it is spread.
    fn press(&self, start: &Low, bound: u64, seed: u64, lows: &mut Vec<Low>) {
        let (mut dense, mut frozen) = (start.dense.clone(), start.frozen.clone());
        let (mut fails, mut step) = (0, 64);
        let mut kept = u64::MAX;
        let mut left = 48 * self.effort.floor;
        loop {
            let mut state = frozen.thaw(&dense);
            state.work = 0;
            let mut live = state.peak() as u64;
            let mut repair = Repair::new(&state, live, self.host_budget, seed);
            let mut stuck = false;
            let over = |state: &State, repair: &Repair| state.work + repair.work > left || self.is_late();
            while fails < self.effort.fails && live > bound && !stuck && !over(&state, &repair) {
                improve(&mut state, &mut repair, self.effort.floor / 8);
                if live < kept - kept / 24 {
                    lows.push(Low::new(state.clone().freeze(), dense.clone()));
                    kept = live;
                }
                repair.budget = (live - live / step - 1).max(bound) as i64;
                let (gap, noise) = ([0.0, 0.5, 1.0][fails % 3], [0.3, 1.0][fails / 3 % 2]);
                match repair.try_run(&mut state, Score { gap, noise }, 8 * dense.base_ns(), self.effort.floor)
                {
                    Outcome::Fits => {
                        repair.give_back(&mut state, 4 * self.effort.floor);
                        live = state.peak() as u64;
                    }
                    outcome => {
                        state.undo_to(0);
                        fails += 1;
                        step = (2 * step).min(1 << 12);
                        stuck = outcome == Outcome::Stuck;
                    }
                }
                state.keep_changes();
                repair.budget = live as i64;
            }
            left = left.saturating_sub(state.work + repair.work);
            let (next, schedule) = spread(&state);
            if !stuck || fails >= self.effort.fails || left == 0 || next.ops == dense.ops {
                lows.push(Low::new(state.freeze(), dense));
                return;
            }
            (dense, frozen) = (Arc::new(next), schedule);
        }
    }
}
