//! Finds first schedules for a budget, for the search of a level to improve.
//!
//! They come from four sources: checkpoint schedules, all schedules of a very small step, schedules with low peaks that were found on
//! the way to the floor, and the step without replays from which tensors are dropped one by one.

use crate::exhaustive::{Allowance, fastest};
use crate::indexed_problem::IndexedProblem;
use crate::low_peak::LowPeakSchedule;
use crate::recompute::checkpoints::CheckpointSchedules;
use crate::recompute::repair::{Repair, Score};
use crate::recompute::replay_stages::{one_replay_a_stage, one_replay_a_stage_of};
use crate::recompute::state::{SavedReplays, State};
use crate::step_search::StepSearch;
use std::sync::Arc;

/// Weights of the gap (see `Score`) in the order in which they are tried.
const GAP_WEIGHTS: [f64; 3] = [0.5, 0.0, 1.0];

/// The best schedule for a budget by dropping tensors one by one, if the time it adds may be less than `than`.
pub(crate) fn drop_one_by_one(
    step: &StepSearch,
    indexed: &IndexedProblem,
    budget: u64,
    work: u64,
    than: Option<u64>,
) -> Option<SavedReplays> {
    let fresh = State::new(indexed);
    let limit = than.unwrap_or(4 * indexed.base_ns());
    let mut best: Option<State> = None;
    for gap in GAP_WEIGHTS.into_iter().take(step.effort.gap_weights) {
        let mut state = fresh.clone();
        let mut repair = Repair::new(&state, budget, step.host_budget, 1);
        // Twice the limit, because some of the time that repairs add is saved again by giving back replays.
        let limit = best.as_ref().map_or(limit, |b| b.extra_ns.min(limit));
        if repair.run(&mut state, Score { gap, noise: 0.0 }, 2 * limit, work) {
            repair.give_back(&mut state, 4 * work);
            if best.as_ref().is_none_or(|b| state.extra_ns < b.extra_ns) {
                best = Some(state);
            }
        }
    }
    Some(best?.save())
}

/// The fastest first schedules for a level, of all sources.
pub(crate) fn first_schedules(
    step: &StepSearch,
    low_peaks: &[LowPeakSchedule],
    table: &CheckpointSchedules,
    budget: u64,
) -> Vec<(SavedReplays, Arc<IndexedProblem>)> {
    let mut found: Vec<(u64, SavedReplays, Arc<IndexedProblem>)> = Vec::new();
    let mut consider = |indexed: Arc<IndexedProblem>, saved: &SavedReplays| {
        let mut state = saved.restore(&indexed);
        let mut repair = Repair::new(&state, budget, step.host_budget, 1);
        let score = Score { gap: 0.5, noise: 0.0 };
        if repair.run(&mut state, score, 64 * indexed.base_ns(), step.effort.floor) {
            repair.give_back(&mut state, 4 * step.effort.floor);
            let ns = indexed.base_ns() + state.extra_ns;
            let saved = state.save();
            found.push((ns, saved, indexed));
        }
        found.iter().map(|f| f.0 - f.2.base_ns()).min()
    };
    let mut than = None;
    for (segments, checkpoints) in table.cheapest(budget) {
        let mut state = State::new(&step.indexed);
        table.stretch.apply(&mut state, segments, checkpoints);
        let (indexed, saved) = one_replay_a_stage(&state);
        than = consider(Arc::new(indexed), &saved);
    }
    if let Some(actions) = fastest(&step.indexed, budget, &mut Allowance::of_a_level()) {
        let (indexed, saved) = one_replay_a_stage_of(&step.indexed, &actions);
        than = consider(Arc::new(indexed), &saved);
    }
    let mut low_peaks: Vec<&LowPeakSchedule> = low_peaks.iter().filter(|low| low.live <= budget).collect();
    low_peaks.sort_by_key(|low| low.ns);
    for low in low_peaks.into_iter().take(2) {
        than = consider(low.indexed.clone(), &low.saved);
    }
    if let Some(saved) = drop_one_by_one(step, &step.indexed, budget, 2 * step.effort.floor, than) {
        let (indexed, saved) = one_replay_a_stage(&saved.restore(&step.indexed));
        consider(Arc::new(indexed), &saved);
    }
    found.sort_by_key(|f| f.0);
    found.truncate(step.effort.starts);
    found.into_iter().map(|(_, saved, indexed)| (saved, indexed)).collect()
}

/// A first schedule that fits `budget` as it is and is clearly faster than one of `ns`: it adds at most nine tenths of the time.
pub(crate) fn faster_start(
    step: &StepSearch,
    low_peaks: &[LowPeakSchedule],
    table: &CheckpointSchedules,
    budget: u64,
    ns: u64,
) -> Option<(SavedReplays, Arc<IndexedProblem>)> {
    let enough = ns - ns.saturating_sub(step.indexed.base_ns()) / 10;
    let low = low_peaks.iter().filter(|low| low.live <= budget).min_by_key(|low| low.ns);
    if let Some(low) = low.filter(|low| low.ns < enough) {
        return Some((low.saved.clone(), low.indexed.clone()));
    }
    let (extra_ns, segments, checkpoints) = table.fastest(budget)?;
    if step.indexed.base_ns() + extra_ns >= enough {
        return None;
    }
    let mut state = State::new(&step.indexed);
    table.stretch.apply(&mut state, segments, checkpoints);
    let (indexed, saved) = one_replay_a_stage(&state);
    Some((saved, Arc::new(indexed)))
}
