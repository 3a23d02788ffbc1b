//! Turns a schedule into ones that hold less and less at once, by one small cut of the budget after the other.

use crate::copy_price::CopyPrice;
use crate::indexed_problem::IndexedProblem;
use crate::problem::Problem;
use crate::recompute::improve::improve;
use crate::recompute::repair::{Outcome, Repair, Score};
use crate::recompute::replay_stages::one_replay_a_stage;
use crate::recompute::state::{SavedReplays, State};
use crate::schedule::Schedule;
use crate::step_search::StepSearch;
use std::sync::Arc;

/// How many attempts on the floor one schedule may take the work of. More lowers floors further and takes longer to plan.
const ATTEMPTS: u64 = 48;
/// Each cut takes this part of what is held, at first and at least; a cut that fails is followed by one half as large. Small cuts
/// succeed more often, and it takes more of them.
const FIRST_CUT: u64 = 64;
const LEAST_CUT: u64 = 1 << 12;
/// A schedule on the way is kept where it holds this part less than the last that was kept: enough of them for levels to start from.
const KEPT_APART: u64 = 24;

/// A schedule that holds little at once.
pub(crate) struct LowPeakSchedule {
    pub live: u64,
    pub ns: u64,
    pub saved: SavedReplays,
    pub indexed: Arc<IndexedProblem>,
}

impl LowPeakSchedule {
    pub fn new(saved: SavedReplays, indexed: Arc<IndexedProblem>) -> LowPeakSchedule {
        let mut state = saved.restore(&indexed);
        LowPeakSchedule { live: state.peak() as u64, ns: indexed.base_ns() + state.extra_ns, saved, indexed }
    }

    /// It as a schedule to be packed.
    pub fn schedule(&self) -> Schedule {
        Schedule::new(&mut self.saved.restore(&self.indexed), &self.indexed, self.live)
    }

    /// The same with the times of `problem`.
    pub fn time(self, problem: &Problem) -> LowPeakSchedule {
        let mut indexed = IndexedProblem::clone(&self.indexed);
        indexed.time(problem);
        let ns = indexed.base_ns() + self.saved.extra_ns(&indexed);
        LowPeakSchedule { ns, indexed: Arc::new(indexed), ..self }
    }

    /// The same where copies count for another time.
    pub fn at_price(&self, copy_price: CopyPrice) -> LowPeakSchedule {
        let indexed = IndexedProblem { copy_price, ..IndexedProblem::clone(&self.indexed) };
        let ns = indexed.base_ns() + self.saved.extra_ns(&indexed);
        LowPeakSchedule { live: self.live, ns, saved: self.saved.clone(), indexed: Arc::new(indexed) }
    }
}

/// Lowers the peak of a schedule as far as is found, but not below `bound`, and adds schedules on the way and the last one to `found`.
/// Where nothing can be dropped any more, every replay gets a stage of its own, so that more can.
pub(crate) fn lower_peak(
    step: &StepSearch,
    start: &LowPeakSchedule,
    bound: u64,
    seed: u64,
    found: &mut Vec<LowPeakSchedule>,
) {
    let effort = &step.effort;
    let (mut indexed, mut saved) = (start.indexed.clone(), start.saved.clone());
    let (mut failures, mut cut) = (0, FIRST_CUT);
    let mut kept = u64::MAX;
    let mut left = ATTEMPTS * effort.floor;
    loop {
        let mut state = saved.restore(&indexed);
        state.work = 0;
        let mut live = state.peak() as u64;
        let mut repair = Repair::new(&state, live, step.host_budget, seed);
        let mut stuck = false;
        let over = |state: &State, repair: &Repair| state.work + repair.work > left || step.is_late();
        while failures < effort.most_failures && live > bound && !stuck && !over(&state, &repair) {
            improve(&mut state, &mut repair, effort.floor / 8);
            if live < kept - kept / KEPT_APART {
                found.push(LowPeakSchedule::new(state.clone().save(), indexed.clone()));
                kept = live;
            }
            repair.budget = (live - live / cut - 1).max(bound) as i64;
            let (gap, noise) = ([0.0, 0.5, 1.0][failures % 3], [0.3, 1.0][failures / 3 % 2]);
            match repair.try_run(&mut state, Score { gap, noise }, 8 * indexed.base_ns(), effort.floor) {
                Outcome::Fits => {
                    repair.give_back(&mut state, 4 * effort.floor);
                    live = state.peak() as u64;
                }
                outcome => {
                    state.undo_to(0);
                    failures += 1;
                    cut = (2 * cut).min(LEAST_CUT);
                    stuck = outcome == Outcome::Stuck;
                }
            }
            state.keep_changes();
            repair.budget = live as i64;
        }
        left = left.saturating_sub(state.work + repair.work);
        let (next, replays) = one_replay_a_stage(&state);
        if !stuck || failures >= effort.most_failures || left == 0 || next.ops == indexed.ops {
            found.push(LowPeakSchedule::new(state.save(), indexed));
            return;
        }
        (indexed, saved) = (Arc::new(next), replays);
    }
}
