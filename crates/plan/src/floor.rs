//! Finds the schedule of a step that takes least, and schedules that take little on the way to it.
//!
//! First schedules come from checkpoints and from dropping tensors one by one; the peaks of the lowest are then lowered further (see
//! `low_peak`). Nothing here looks at how long an op takes: every op counts as one unit of time, so that the floor of a step does
//! not change when its ops are timed anew.

use crate::copy_price::CopyPrice;
use crate::exhaustive::{Allowance, fastest};
use crate::indexed_problem::IndexedProblem;
use crate::low_peak::{LowPeakSchedule, lower_peak};
use crate::parallel;
use crate::problem::Problem;
use crate::recompute::checkpoints::CheckpointSchedules;
use crate::recompute::replay_stages::{one_replay_a_stage, one_replay_a_stage_of};
use crate::recompute::state::State;
use crate::schedule::Schedule;
use crate::starts::drop_one_by_one;
use crate::step_search::StepSearch;
use std::sync::Arc;

/// What random numbers start from when a schedule's peak is first lowered.
const SEED: u64 = 3;
/// Schedules that hold this part more than the lowest are not lowered further: they would take as long and hardly get there.
const FAR: u64 = 4;
/// The search starts again only while the least found is this part above the bound: below that there is little left to gain.
const NEAR_BOUND: u64 = 32;
/// Schedules that hold up to this part more than the least are packed: a higher peak sometimes packs into a lower arena.
const PACKED_WITHIN: u64 = 16;

/// After peaks have been lowered once, lowering them further gains less than this part of what is not resident: of 149 random steps and
/// known shapes it gained a seventh of one, and mostly nothing.
const LOWERED_FURTHER: u64 = 4;

/// Whether the floor may be below `bytes` in a step of which so much is `resident`, by what schedules hold whose peaks have been lowered
/// once.
pub(crate) fn may_go_below(bytes: u64, lowered_once: u64, resident: u64) -> bool {
    lowered_once <= bytes.saturating_add(bytes.saturating_sub(resident) / LOWERED_FURTHER)
}

/// The schedule that takes least.
pub(crate) struct Floor {
    /// As it was first packed, with one unit of time for each op: how low it can be packed must not depend on times either.
    packed: Schedule,
    /// Packed as low as is found, once somebody has asked for that.
    repacked: Option<Schedule>,
    /// The least that schedules held whose peaks had been lowered once.
    pub lowered_once: u64,
    /// The least budget that levels are searched for: what the schedule held before its actions were reordered, which levels do not do.
    pub lowest: u64,
    /// Schedules found on the way to it, the highest first.
    pub low_peaks: Vec<LowPeakSchedule>,
    /// What checkpoint schedules take and cost with the times of the ops, where that came with the search.
    pub checkpoints: Option<CheckpointSchedules>,
}

/// Schedules that hold little at once, as they are found on the way to the floor.
pub(crate) struct LowPeaks {
    /// The step in which every op takes one unit of time.
    untimed: Arc<IndexedProblem>,
    /// The lowest first schedules: what is lowered.
    near: Vec<LowPeakSchedule>,
    found: Vec<LowPeakSchedule>,
    /// What checkpoint schedules take and cost with the times of the ops; `None` once those have changed.
    checkpoints: Option<CheckpointSchedules>,
}

impl LowPeaks {
    /// Lowers the peaks of first schedules once.
    pub fn first(step: &StepSearch) -> LowPeaks {
        let bound = step.bounds.floor().0;
        let untimed = Arc::new(one_unit_each(&step.indexed));
        let both = [&untimed.ns[..], &step.indexed.ns];
        let [table, timed] = CheckpointSchedules::timed(both, &untimed, step.effort.most_segments);
        let starts = starts(step, &untimed, &table, bound);
        let live = starts.iter().map(|start| start.live).min().unwrap_or(0);
        let (near, mut found): (Vec<LowPeakSchedule>, Vec<LowPeakSchedule>) =
            starts.into_iter().partition(|start| start.live <= live + live / FAR);
        found.extend(lowered(step, &near, bound, SEED));
        LowPeaks { untimed, near, found, checkpoints: Some(timed) }
    }

    /// The least that one of them holds.
    pub fn least(&self) -> u64 {
        self.found.iter().map(|low| low.live).min().unwrap_or(u64::MAX)
    }

    /// Forgets what depends on the times of ops.
    pub fn time(self) -> LowPeaks {
        LowPeaks { checkpoints: None, ..self }
    }

    /// Lowers peaks further, as long as that helps.
    fn lower_further(&mut self, step: &StepSearch) {
        let bound = step.bounds.floor().0;
        // Where a schedule gets stuck depends on random numbers, so other ones are tried as long as that helps.
        for seed in (1..=step.effort.restarts).map(|n| SEED + n) {
            let least = self.least();
            if least.saturating_sub(bound) <= bound / NEAR_BOUND || step.is_late() {
                break;
            }
            let mut more = lowered(step, &self.near, bound, seed);
            more.retain(|low| low.live < least);
            if more.is_empty() {
                break;
            }
            self.found.append(&mut more);
        }
        search_exhaustively(&self.untimed, bound, &mut self.found);
    }
}

impl Floor {
    /// Looks for the schedule that takes least of a step that holds `unlimited_live` bytes without replays, from what was found before.
    pub fn find(step: &StepSearch, unlimited_live: u64, mut peaks: LowPeaks) -> Floor {
        let lowered_once = peaks.least();
        peaks.lower_further(step);
        let LowPeaks { found, checkpoints, .. } = peaks;
        Floor { lowered_once, checkpoints, ..Floor::packed(step, unlimited_live, found) }
    }

    /// The lowest of `low_peaks` once packed, and all of them as starts for levels, with the times of their ops.
    fn packed(step: &StepSearch, unlimited_live: u64, mut low_peaks: Vec<LowPeakSchedule>) -> Floor {
        low_peaks.sort_by_key(|low| std::cmp::Reverse(low.live));
        let least = low_peaks.last().map_or(0, |low| low.live);
        let alignment = step.problem.scratch_alignment;
        let near = low_peaks.iter().rev().filter(|low| low.live <= least + least / PACKED_WITHIN);
        let packed: Vec<&LowPeakSchedule> = near.take(step.effort.packed).collect();
        let schedule = lowest_packed(&packed, alignment);
        let fresh = || Schedule::new(&mut State::new(&step.indexed), &step.indexed, unlimited_live);
        let mut packed = schedule.unwrap_or_else(fresh);
        packed.arena(alignment);
        let lowest = packed.live;
        Floor { packed, repacked: None, lowered_once: least, lowest, low_peaks, checkpoints: None }
            .time(&step.problem)
    }

    /// The schedule, packed as low as is found.
    pub fn schedule(&mut self, step: &StepSearch) -> &mut Schedule {
        let packed = &self.packed;
        self.repacked.get_or_insert_with(|| {
            let mut lowered = packed.lowered(&step.problem, step.host_budget);
            lowered.time(&step.problem);
            lowered
        })
    }

    /// What the schedule takes as it was first packed: no less than once it is packed as low as is found.
    pub fn first_packed(&mut self, scratch_alignment: u64) -> u64 {
        self.packed.arena(scratch_alignment)
    }

    /// Whether the schedule has been packed as low as is found.
    pub fn is_repacked(&self) -> bool {
        self.repacked.is_some()
    }

    /// Whether the schedule is known to fit `budget` as it was first packed: packed once more it takes no more.
    pub fn fits(&mut self, budget: u64, scratch_alignment: u64) -> bool {
        self.first_packed(scratch_alignment) <= budget
    }

    /// The same with the times of `problem`.
    pub fn time(mut self, problem: &Problem) -> Floor {
        self.repacked.iter_mut().for_each(|schedule| schedule.time(problem));
        self.low_peaks = self.low_peaks.into_iter().map(|low| low.time(problem)).collect();
        self.checkpoints = None;
        self
    }
}

/// The schedule that packs lowest, of several that hold ever more.
fn lowest_packed(low_peaks: &[&LowPeakSchedule], alignment: u64) -> Option<Schedule> {
    /// How many are packed beside each other, behind the first: that mostly packs as low as what is live, and then no other can go below. So
    /// they are packed beside it only by cores that have nothing else to do.
    const PACKED_AT_ONCE: usize = 2;
    let mut lowest: Option<Schedule> = None;
    let mut height = u64::MAX;
    let at_first = parallel::spare(PACKED_AT_ONCE);
    let (first, others) = low_peaks.split_at(low_peaks.len().min(at_first));
    for some in [first].into_iter().chain(others.chunks(PACKED_AT_ONCE)) {
        let pack = |low: &&LowPeakSchedule| {
            let mut next = low.schedule();
            move || {
                let height = next.arena(alignment);
                (next, height)
            }
        };
        let worth = some.iter().filter(|low| low.live < height);
        for (next, packed) in parallel::each(worth.map(pack).collect()) {
            if packed < height {
                (lowest, height) = (Some(next), packed);
            }
        }
    }
    lowest
}

/// The peaks of some schedules lowered, each as far as is found.
fn lowered(step: &StepSearch, starts: &[LowPeakSchedule], bound: u64, seed: u64) -> Vec<LowPeakSchedule> {
    let lower = |start| {
        move || {
            let mut found = Vec::new();
            lower_peak(step, start, bound, seed, &mut found);
            found
        }
    };
    parallel::each(starts.iter().map(lower).collect()).into_iter().flatten().collect()
}

/// The step in which every op and every copy takes one unit of time.
fn one_unit_each(indexed: &IndexedProblem) -> IndexedProblem {
    let mut untimed = indexed.clone();
    untimed.ns.iter_mut().for_each(|ns| *ns = 1);
    untimed.copy_ns.iter_mut().flatten().for_each(|ns| *ns = 1);
    untimed.copy_price = CopyPrice::WHOLE;
    untimed.carried.iter_mut().flatten().for_each(|copy| copy.ns = 1);
    untimed
}

/// The two lowest of: the step without replays, the lowest checkpoint schedule, and what dropping tensors one by one finds for budgets
/// between the bound and the lowest so far.
fn starts(
    step: &StepSearch,
    untimed: &Arc<IndexedProblem>,
    table: &CheckpointSchedules,
    bound: u64,
) -> Vec<LowPeakSchedule> {
    let fresh = State::new(untimed).save();
    let mut found = vec![LowPeakSchedule::new(fresh, untimed.clone())];
    if let Some((segments, checkpoints)) = table.lowest() {
        let mut state = State::new(untimed);
        table.stretch.apply(&mut state, segments, checkpoints);
        let (indexed, saved) = one_replay_a_stage(&state);
        found.push(LowPeakSchedule::new(saved, Arc::new(indexed)));
    }
    let mut live = found.iter().map(|f| f.live).min().unwrap_or(0);
    let (mut low, mut at) = (bound, bound);
    while low < live && live - low > live / step.effort.floor_precision {
        let replays = drop_one_by_one(step, untimed, at, step.effort.floor, None);
        match replays.map(|replays| LowPeakSchedule::new(replays, untimed.clone())) {
            Some(lower) if lower.live < live => {
                live = lower.live;
                found.push(lower);
            }
            // Nothing was found, or nothing lower, as in a step whose transients have no bytes: the interval closes from below, so
            // that the search ends.
            _ => low = at + 1,
        }
        at = (low as f64 * live as f64).sqrt() as u64;
        at = at.clamp(low, live.max(low));
    }
    found.sort_by_key(|f| f.live);
    found.truncate(2);
    found
}

/// Adds the lowest schedules of a small step, found by trying all. The lowest may leave a gap however its buffers are packed, so some
/// follow that hold a little more.
fn search_exhaustively(untimed: &Arc<IndexedProblem>, bound: u64, low_peaks: &mut Vec<LowPeakSchedule>) {
    let mut live = low_peaks.iter().map(|low| low.live).min().unwrap_or(0);
    let mut allowance = Allowance::of_the_floor();
    let mut add = |budget: u64| {
        let (indexed, saved) = one_replay_a_stage_of(untimed, &fastest(untimed, budget, &mut allowance)?);
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
