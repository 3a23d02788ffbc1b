//! Finds the schedule of a step that takes least, and schedules that take little on the way to it.
//!
//! First schedules come by checkpoints and by dropping tensors one by one; the lowest are then pressed lower, step by step,
//! and one_replay_a_stage where they are stuck. Nothing here looks at how long an op takes.

use crate::budget_grid::BudgetGrid;
use crate::exhaustive::{Steps, fastest};
use crate::indexed_problem::IndexedProblem;
use crate::problem::Problem;
use crate::recompute::checkpoints::CheckpointSchedules;
use crate::recompute::improve::improve;
use crate::recompute::repair::{Outcome, Repair, Score};
use crate::recompute::replay_stages::{one_replay_a_stage, one_replay_a_stage_of};
use crate::recompute::state::{SavedReplays, State};
use crate::schedule::Schedule;
use std::sync::Arc;

/// What rng starts from when a schedule is first pressed.
const SEED: u64 = 3;

/// The schedule that takes least.
pub(crate) struct Floor {
    pub schedule: Schedule,
    /// The least that levels are searched for: what it took before its actions were put in another order, which levels do not do.
    pub lowest: u64,
    /// Schedules found on the way to it, the highest first.
    pub low_peaks: Vec<LowPeakSchedule>,
    /// What schedules by checkpoints take and cost with the times of the ops, where that came with the search.
    pub checkpoints: Option<CheckpointSchedules>,
}

/// A schedule that takes little.
pub(crate) struct LowPeakSchedule {
    pub live: u64,
    pub ns: u64,
    pub saved: SavedReplays,
    pub indexed: Arc<IndexedProblem>,
}

impl Floor {
    /// The same with the times of `problem`.
    pub fn time(mut self, problem: &Problem) -> Floor {
        self.schedule.time(problem);
        self.low_peaks = self.low_peaks.into_iter().map(|low| low.time(problem)).collect();
        self.checkpoints = None;
        self
    }
}

impl LowPeakSchedule {
    pub fn new(saved: SavedReplays, indexed: Arc<IndexedProblem>) -> LowPeakSchedule {
        let mut state = saved.restore(&indexed);
        LowPeakSchedule { live: state.peak() as u64, ns: indexed.base_ns() + state.extra_ns, saved, indexed }
    }

    fn time(self, problem: &Problem) -> LowPeakSchedule {
        let mut indexed = IndexedProblem::clone(&self.indexed);
        indexed.time(problem);
        LowPeakSchedule::new(self.saved, Arc::new(indexed))
    }
}

impl BudgetGrid {
    /// Looks for the schedule that takes least: by checkpoints and by dropping tensors one by one, then by pressing the best of
    /// those lower. Every op counts as one unit of time here, so that the floor of a step does not change when its ops are
    /// timed anew.
    pub fn find_floor(&self) -> Floor {
        let bound = self.bounds.floor().0;
        let mut bare = IndexedProblem::clone(&self.indexed);
        bare.ns.iter_mut().for_each(|ns| *ns = 1);
        bare.copy_ns.iter_mut().flatten().for_each(|ns| *ns = 1);
        bare.carried.iter_mut().flatten().for_each(|copy| copy.ns = 1);
        let bare = Arc::new(bare);
        let fresh = State::new(&bare).save();
        let mut found = vec![LowPeakSchedule::new(fresh, bare.clone())];
        let [table, timed] =
            CheckpointSchedules::timed([&bare.ns, &self.indexed.ns], &bare, self.effort.segments);
        if let Some((segments, checkpoints)) = table.lowest() {
            let mut state = State::new(&bare);
            table.stretch.apply(&mut state, segments, checkpoints);
            let (indexed, saved) = one_replay_a_stage(&state);
            found.push(LowPeakSchedule::new(saved, Arc::new(indexed)));
        }
        let mut live = found.iter().map(|f| f.live).min().unwrap_or(0);
        let (mut low, mut at) = (bound, bound);
        while low < live && live - low > live / self.effort.open {
            let tried =
                self.start(&bare, at, self.effort.floor, None).map(|f| LowPeakSchedule::new(f, bare.clone()));
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
        let (near, mut low_peaks): (Vec<LowPeakSchedule>, Vec<LowPeakSchedule>) =
            found.into_iter().partition(|start| start.live <= live + live / 4);
        near.iter().for_each(|start| self.lower_peak(start, bound, SEED, &mut low_peaks));
        // Where a schedule gets stuck is a matter of rng: while much is left open, and that helps, it is pressed again.
        for seed in (1..=self.effort.again).map(|n| SEED + n) {
            let least = low_peaks.iter().map(|low| low.live).min().unwrap_or(u64::MAX);
            if least.saturating_sub(bound) <= bound / 32 || self.is_late() {
                break;
            }
            let mut more = Vec::new();
            near.iter().for_each(|start| self.lower_peak(start, bound, seed, &mut more));
            more.retain(|low| low.live < least);
            if more.is_empty() {
                break;
            }
            low_peaks.append(&mut more);
        }
        self.search_exhaustively(&bare, bound, &mut low_peaks);
        Floor { checkpoints: Some(timed), ..self.timed(low_peaks) }
    }

    /// Adds the lowest schedules of a small step, found by trying all. The lowest may have a hole wherever its buffers are put,
    /// so some follow that hold a little more.
    fn search_exhaustively(
        &self,
        bare: &Arc<IndexedProblem>,
        bound: u64,
        low_peaks: &mut Vec<LowPeakSchedule>,
    ) {
        let mut live = low_peaks.iter().map(|low| low.live).min().unwrap_or(0);
        let mut steps = Steps::of_the_floor();
        let mut add = |budget: u64| {
            let (indexed, saved) = one_replay_a_stage_of(bare, &fastest(bare, budget, &mut steps)?);
            low_peaks.push(LowPeakSchedule::new(saved, Arc::new(indexed)));
            low_peaks.last().map(|low| low.live)
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

    /// The lowest of `low_peaks` once packed, and all of them as starts for levels, with the times of their ops.
    fn timed(&self, mut low_peaks: Vec<LowPeakSchedule>) -> Floor {
        low_peaks.sort_by_key(|low| std::cmp::Reverse(low.live));
        let least = low_peaks.last().map_or(0, |low| low.live);
        let alignment = self.problem.scratch_alignment;
        // Holding less does not always pack lower, so several are packed.
        let mut schedule: Option<Schedule> = None;
        for low in
            low_peaks.iter().rev().filter(|low| low.live <= least + least / 16).take(self.effort.packed)
        {
            let mut next = Schedule::new(&mut low.saved.restore(&low.indexed), &low.indexed, low.live);
            let best = schedule.as_mut().map_or(u64::MAX, |schedule| schedule.arena(alignment));
            if low.live < best && next.arena(alignment) < best {
                schedule = Some(next);
            }
        }
        let fresh = || Schedule::new(&mut State::new(&self.indexed), &self.indexed, self.unlimited_live);
        let schedule = schedule.unwrap_or_else(fresh);
        let lowest = schedule.live;
        let schedule = schedule.into_repacked(&self.problem, self.host_budget);
        let lowest = lowest.max(schedule.live);
        Floor { schedule, lowest, low_peaks, checkpoints: None }.time(&self.problem)
    }

    /// Presses a schedule lower, step by step, and keeps what it was on the way. Where it is stuck it is one_replay_a_stage.
    fn lower_peak(
        &self,
        start: &LowPeakSchedule,
        bound: u64,
        seed: u64,
        low_peaks: &mut Vec<LowPeakSchedule>,
    ) {
        let (mut indexed, mut saved) = (start.indexed.clone(), start.saved.clone());
        let (mut fails, mut step) = (0, 64);
        let mut kept = u64::MAX;
        let mut left = 48 * self.effort.floor;
        loop {
            let mut state = saved.restore(&indexed);
            state.work = 0;
            let mut live = state.peak() as u64;
            let mut repair = Repair::new(&state, live, self.host_budget, seed);
            let mut stuck = false;
            let over = |state: &State, repair: &Repair| state.work + repair.work > left || self.is_late();
            while fails < self.effort.fails && live > bound && !stuck && !over(&state, &repair) {
                improve(&mut state, &mut repair, self.effort.floor / 8);
                if live < kept - kept / 24 {
                    low_peaks.push(LowPeakSchedule::new(state.clone().save(), indexed.clone()));
                    kept = live;
                }
                repair.budget = (live - live / step - 1).max(bound) as i64;
                let (gap, noise) = ([0.0, 0.5, 1.0][fails % 3], [0.3, 1.0][fails / 3 % 2]);
                match repair.try_run(
                    &mut state,
                    Score { gap, noise },
                    8 * indexed.base_ns(),
                    self.effort.floor,
                ) {
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
            let (next, schedule) = one_replay_a_stage(&state);
            if !stuck || fails >= self.effort.fails || left == 0 || next.ops == indexed.ops {
                low_peaks.push(LowPeakSchedule::new(state.save(), indexed));
                return;
            }
            (indexed, saved) = (Arc::new(next), schedule);
        }
    }
}
