//! Plans a step for a fixed grid of budgets, so that more bytes never plan a slower step.
//!
//! A search that starts anew for every budget is not monotone: it may be luckier with less. So searches are done at levels that
//! depend only on the step, and a request takes the fastest schedule of all levels at or below its budget; a larger budget chooses
//! from more. Levels that cannot be faster than what has been found, by the lower bound, are not searched, which changes nothing in
//! the outcome.
//!
//! A level is searched from first schedules of its own (see `starts`). Its schedule is then improved at sublevels, which rise in small
//! steps to just below the next level: at each the schedule of the one below gets the bytes gained.

use crate::floor::{Floor, LowPeaks};
use crate::level::{SUBLEVEL, search_level};
use crate::look_ahead::{WEIGHTS, look_ahead};
use crate::parallel;
use crate::problem::Problem;
use crate::recompute::checkpoints::CheckpointSchedules;
use crate::recompute::repair::Repair;
use crate::recompute::replay_stages::one_replay_a_stage_of;
use crate::recompute::state::State;
use crate::schedule::Schedule;
use crate::step_search::StepSearch;
use std::sync::Arc;

/// With how much of a budget a schedule is looked for at once, until its buffers pack into it.
const PACKED_PARTS: [f64; 4] = [1.0, 0.99, 0.97, 0.92];

/// A schedule that takes this part longer than another is not looked for at once: giving back replays saves less than that.
const SLOWER: u64 = 8;

/// How many schedules of a level are packed beside each other at most.
const PACKED_AT_ONCE: usize = 4;

/// The schedules of a step that were found so far, by budget.
pub(crate) struct BudgetGrid {
    pub step: StepSearch,
    /// The most that the step without replays holds at once.
    unlimited_live: u64,
    /// By level: `None` if not searched yet, empty if nothing was found.
    levels: Vec<Option<Vec<Schedule>>>,
    floor: Option<Floor>,
    /// What was found on the way to the floor, while that is not wanted yet.
    peaks: Option<LowPeaks>,
    /// What checkpoint schedules take and cost; `None` until it is wanted.
    checkpoints: Option<CheckpointSchedules>,
    /// Where there is a deadline: the best schedule for a budget that can be had at once.
    at_once: Option<Schedule>,
}

impl BudgetGrid {
    pub fn new(step: StepSearch) -> BudgetGrid {
        let top = Schedule::new(&mut State::new(&step.indexed), &step.indexed, u64::MAX);
        let unlimited_live = top.live;
        let levels = vec![Some(vec![top])];
        BudgetGrid {
            step,
            unlimited_live,
            levels,
            floor: None,
            peaks: None,
            checkpoints: None,
            at_once: None,
        }
    }

    /// Takes the times of `problem`; the search divides that of a copy by `copy_overlap_divisor`. Schedules that were searched by other
    /// times are forgotten; the floor and the packing of the step without replays depend on none.
    pub fn time(&mut self, problem: Arc<Problem>, copy_overlap_divisor: u64) {
        let mut fresh = BudgetGrid::new(self.step.timed(problem, copy_overlap_divisor));
        fresh.floor = self.floor.take().map(|floor| floor.time(&fresh.step.problem));
        fresh.peaks = self.peaks.take().map(LowPeaks::time);
        if let Some(mut top) = self.levels[0].take().and_then(|mut schedules| schedules.pop()) {
            top.time(&fresh.step.problem);
            fresh.levels[0] = Some(vec![top]);
        }
        *self = fresh;
    }

    /// The budget of a level; level 0 is the step without replays, the last one is the floor.
    fn level_budget(&self, level: usize) -> u64 {
        let lowest = self.floor.as_ref().map_or(0, |floor| floor.lowest);
        let sublevels = f64::from(self.step.effort.sublevels) * level as f64;
        ((self.unlimited_live as f64 * SUBLEVEL.powf(-sublevels)) as u64).max(lowest)
    }

    /// The bytes of the step without replays, packed.
    pub fn unlimited_bytes(&mut self) -> u64 {
        let (problem, host_budget) = (&self.step.problem, self.step.host_budget);
        let top = self.levels[0].as_mut().and_then(|level| level.first_mut());
        let bytes =
            top.map_or(0, |top| top.repacked(problem, host_budget, true).arena(problem.scratch_alignment));
        // Repacking may change the order of ops and take less than the bounds, which hold for this order. The planner refuses
        // budgets below the bounds, so it must not promise them.
        bytes.max(self.step.bounds.floor().0)
    }

    /// Whether the step without replays fits, so that nothing need be searched: no schedule is faster. Where something is copied beside
    /// ops, one that has more room may be.
    fn fits_whole(&mut self, budget: u64) -> bool {
        let copies = self.step.indexed.carries() || self.step.host_budget > 0;
        !copies && self.unlimited_live <= budget && self.unlimited_bytes() <= budget
    }

    /// The fastest schedule that fits `budget` and is faster than `faster_than`.
    pub fn fastest(&mut self, budget: u64, faster_than: u64) -> Option<&mut Schedule> {
        let alignment = self.step.problem.scratch_alignment;
        let mut best: Option<(usize, usize)> = None;
        let mut best_ns = faster_than;
        self.look_ahead(budget);
        if self.fits_whole(budget) {
            let top = self.levels[0].as_mut().and_then(|level| level.first_mut());
            return top.filter(|top| top.ns < faster_than);
        }
        if !self.floor_fits(budget) {
            return None;
        }
        let mut level = 0;
        let lowest = self.floor.as_ref().map_or(u64::MAX, |floor| floor.lowest);
        while level == 0 || self.level_budget(level - 1) > lowest {
            // Schedules of this level have less than the level above.
            let ceiling = if level == 0 { u64::MAX } else { self.level_budget(level - 1) };
            let bound = self.step.bound_below(ceiling.min(budget), best_ns);
            let hopeless = bound.is_none_or(|bound| bound >= best_ns);
            if level > 0 && hopeless {
                break;
            }
            if level == 0 || self.level_budget(level) <= budget {
                self.search(level);
                // Packed to the end before it may become a plan, so that the figure does not depend on what is asked first.
                let top = self.unlimited_bytes();
                let schedules = self.levels[level].as_mut().map_or(&mut [][..], |found| &mut found[..]);
                for k in (0..schedules.len()).rev() {
                    let may_fit = |schedule: &Schedule| {
                        schedule.ns < best_ns && schedule.budget.max(schedule.live) <= budget
                    };
                    // Of the step without replays the lowest packing counts, because that is what no budget means.
                    let fits = match level {
                        0 => schedules[k].ns < best_ns && top <= budget,
                        _ => {
                            may_fit(&schedules[k])
                                && pack_last(&mut schedules[..=k], may_fit, alignment) <= budget
                        }
                    };
                    if fits {
                        best = Some((level, k));
                        best_ns = schedules[k].ns;
                    }
                }
            }
            level += 1;
        }
        if self.at_once.as_ref().is_some_and(|at_once| at_once.ns < best_ns) {
            return self.at_once.as_mut();
        }
        match best {
            Some((level, k)) => self.levels[level].as_mut().map(|found| &mut found[k]),
            None => {
                let step = &self.step;
                let floor = self.floor.as_mut().map(|floor| floor.schedule(step));
                floor.filter(|schedule| schedule.ns < faster_than)
            }
        }
    }

    /// Where a deadline may cut the search off: makes sure that there is a schedule for this budget before it begins, so that nothing
    /// worse comes out of it. Without a deadline the search is never cut off, and more bytes never plan a slower step.
    fn look_ahead(&mut self, budget: u64) {
        let known = self.at_once.as_ref().is_some_and(|at_once| at_once.budget == budget);
        if self.step.deadline.is_none() || known || self.step.indexed.carries() {
            return;
        }
        self.at_once = None;
        let alignment = self.step.problem.scratch_alignment;
        for how in WEIGHTS {
            for part in PACKED_PARTS {
                // What takes far longer than what is in hand is given up early.
                let most_ns =
                    self.at_once.as_ref().map_or(u64::MAX, |best| best.ns.saturating_add(best.ns / SLOWER));
                let budget_part = (budget as f64 * part) as u64;
                // With less still there is nothing, or nothing faster.
                let Some(actions) = look_ahead(&self.step.indexed, budget_part, how, most_ns) else { break };
                let (indexed, saved) = one_replay_a_stage_of(&self.step.indexed, &actions);
                let indexed = Arc::new(indexed);
                let mut state = saved.restore(&indexed);
                let mut repair = Repair::new(&state, budget, self.step.host_budget, 1);
                if state.peak() as u64 > budget {
                    continue;
                }
                repair.give_back(&mut state, self.step.effort.floor);
                let mut schedule = Schedule::new(&mut state, &indexed, budget);
                let best_ns = self.at_once.as_ref().map_or(u64::MAX, |best| best.ns);
                let is_better = |schedule: &Schedule| schedule.ns < best_ns;
                if !is_better(&schedule) {
                    break;
                }
                // What holds more for longer packs less well: the pass as it was may fit where that does not.
                if schedule.arena(alignment) > budget {
                    schedule = Schedule::new(&mut saved.restore(&indexed), &indexed, budget);
                }
                // Else it is looked for with less.
                if schedule.arena(alignment) <= budget {
                    self.at_once = Some(schedule).filter(is_better).or(self.at_once.take());
                    break;
                }
            }
        }
    }

    /// The floor, looked for if that has not been done, and the step it is of.
    fn floor(&mut self) -> (&mut Floor, &StepSearch) {
        let (step, peaks, unlimited_live) = (&self.step, &mut self.peaks, self.unlimited_live);
        let floor = self.floor.get_or_insert_with(|| {
            let peaks = peaks.take().unwrap_or_else(|| LowPeaks::first(step));
            Floor::find(step, unlimited_live, peaks)
        });
        (floor, step)
    }

    /// Looks for the floor, but for packing it as low as is found.
    pub fn look_for_floor(&mut self) {
        self.floor();
    }

    /// The schedule that takes least.
    pub fn floor_schedule(&mut self) -> &mut Schedule {
        let (floor, step) = self.floor();
        floor.schedule(step)
    }

    /// Whether there is a schedule for a budget: mostly seen before the least is found.
    fn floor_fits(&mut self, budget: u64) -> bool {
        let alignment = self.step.problem.scratch_alignment;
        let fits = self.step.bounds.floor().0 <= budget && self.floor().0.fits(budget, alignment);
        fits || self.floor_bytes() <= budget
    }

    /// The least that schedules hold whose peaks have been lowered once: the first figure on the way to the floor. It is the same whether
    /// the floor has been found or not.
    pub fn lowered_once(&mut self) -> u64 {
        match &self.floor {
            Some(floor) => floor.lowered_once,
            None => self.peaks.get_or_insert_with(|| LowPeaks::first(&self.step)).least(),
        }
    }

    /// Whether the schedule that takes least has been found, as low as it packs.
    pub fn knows_floor(&self) -> bool {
        self.floor.as_ref().is_some_and(Floor::is_repacked)
    }

    /// The least budget for which a schedule is found.
    pub fn floor_bytes(&mut self) -> u64 {
        let alignment = self.step.problem.scratch_alignment;
        let packed = self.floor_schedule().arena(alignment);
        self.or_unlimited(packed)
    }

    /// A budget for which a schedule is found, sooner than the least.
    pub fn enough_bytes(&mut self) -> u64 {
        let alignment = self.step.problem.scratch_alignment;
        let packed = self.floor().0.first_packed(alignment);
        self.or_unlimited(packed)
    }

    /// What the floor's schedule takes, or the step without replays where that takes less.
    fn or_unlimited(&mut self, floor: u64) -> u64 {
        // What copies of state beside ops take depends on times. A floor must not, so there only the floor's own schedule counts.
        let least = if self.step.indexed.carries() { floor } else { floor.min(self.unlimited_bytes()) };
        least.max(self.step.bounds.floor().0)
    }

    /// Searches a level, if that has not been done.
    fn search(&mut self, level: usize) {
        if self.levels.len() <= level {
            self.levels.resize_with(level + 1, || None);
        }
        if self.levels[level].is_some() {
            return;
        }
        let budget = self.level_budget(level);
        let mut schedules = Vec::new();
        if let Some(floor) = self.floor.as_mut() {
            let found = floor.checkpoints.take();
            let (indexed, segments) = (&self.step.indexed, self.step.effort.most_segments);
            let table = self
                .checkpoints
                .get_or_insert_with(|| found.unwrap_or_else(|| CheckpointSchedules::new(indexed, segments)));
            schedules = search_level(&self.step, &floor.low_peaks, table, budget);
        }
        self.levels[level] = Some(schedules);
    }
}

/// Packs the last of `schedules` and gives its height. The next ones that are `of_use` are packed beside it by cores that have nothing else to
/// do: they are wanted where it does not fit.
fn pack_last(schedules: &mut [Schedule], of_use: impl Fn(&Schedule) -> bool, alignment: u64) -> u64 {
    if schedules.last().is_some_and(|last| last.packed.is_none()) {
        let next =
            schedules.iter_mut().rev().filter(|schedule| schedule.packed.is_none() && of_use(schedule));
        let some = next.take(parallel::spare(PACKED_AT_ONCE));
        parallel::each(some.map(|schedule| move || schedule.arena(alignment)).collect());
    }
    schedules.last_mut().map_or(u64::MAX, |last| last.arena(alignment))
}
