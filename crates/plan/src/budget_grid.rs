//! Plans a step for a fixed row of budgets, so that more bytes never plan a slower step.
//!
//! A search that starts anew for every budget is not monotone: it may be luckier with less. So the searches are
//! done at levels that depend only on the step, and a request takes the fastest schedule of all levels at or below
//! its budget; a larger budget chooses from more. Levels that cannot be faster than what is at hand, by the lower
//! bound, are not searched, which changes nothing in the outcome.
//!
//! A level is searched from first schedules of its own (see `starts`), then its schedule climbs to just below the next level in
//! small sublevels, at each of which the schedule of the last is improved with the bytes gained.

use crate::bounds::Bounds;
use crate::effort::Effort;
use crate::floor::Floor;
use crate::indexed_problem::IndexedProblem;
use crate::problem::{OpId, Problem};
use crate::recompute::checkpoints::CheckpointSchedules;
use crate::recompute::improve::improve;
use crate::recompute::repair::Repair;
use crate::recompute::state::{SavedReplays, State};
use crate::schedule::Schedule;
use std::sync::Arc;
use std::time::Instant;

/// How much higher each sublevel of a level is than the one below; after the last comes the next level.
const SUBLEVEL: f64 = 1.0026;

/// How much more than it was searched in a schedule may take for copies beside its ops, where there are any in any case.
const ROOMS: [f64; 3] = [1.01, 1.03, 1.1];

/// A step in one order, and the schedules found for it so far.
pub(crate) struct BudgetGrid {
    pub problem: Arc<Problem>,
    pub host_budget: u64,
    /// What the search divides the time of a copy by.
    pub copy_overlap_divisor: u64,
    pub effort: Effort,
    pub indexed: Arc<IndexedProblem>,
    pub bounds: Bounds,
    /// The same of the step without copies to the host, where there may be some.
    without_copies: Option<Bounds>,
    /// The least time of all ops.
    pub least_ns: u64,
    pub unlimited_live: u64,
    /// By level: `None` if not searched yet, empty if nothing was found.
    levels: Vec<Option<Vec<Schedule>>>,
    pub floor: Option<Floor>,
    /// What schedules by checkpoints take and cost; `None` until it is wanted.
    pub checkpoints: Option<CheckpointSchedules>,
    /// When to stop improving, if ever. Levels searched after it are only started.
    pub deadline: Option<Instant>,
}

impl BudgetGrid {
    pub fn new(
        problem: Arc<Problem>,
        order: &[OpId],
        host_budget: u64,
        copy_overlap_divisor: u64,
        effort: Effort,
    ) -> BudgetGrid {
        let indexed =
            Arc::new(IndexedProblem { copy_overlap_divisor, ..IndexedProblem::new(&problem, order) });
        let without_copies = IndexedProblem { copy_ns: None, ..IndexedProblem::clone(&indexed) };
        let (bounds, without_copies) = match host_budget {
            0 => (Bounds::new(without_copies), None),
            _ => (Bounds::new(IndexedProblem::clone(&indexed)), Some(Bounds::new(without_copies))),
        };
        let mut grid = BudgetGrid {
            problem,
            host_budget,
            copy_overlap_divisor,
            effort,
            least_ns: indexed.base_ns(),
            bounds,
            without_copies,
            unlimited_live: 0,
            indexed,
            levels: Vec::new(),
            floor: None,
            checkpoints: None,
            deadline: None,
        };
        let top = Schedule::new(&mut State::new(&grid.indexed), &grid.indexed, u64::MAX);
        grid.unlimited_live = top.live;
        grid.levels.push(Some(vec![top]));
        grid
    }

    /// Takes the times of `problem`. Schedules that were searched by other times are forgotten; the floor and the packing of
    /// the step without replays depend on none.
    pub fn time(&mut self, problem: Arc<Problem>) {
        let order = self.indexed.op_id.clone();
        let (host_budget, copy_overlap_divisor) = (self.host_budget, self.copy_overlap_divisor);
        let mut fresh = BudgetGrid::new(problem, &order, host_budget, copy_overlap_divisor, self.effort);
        fresh.deadline = self.deadline;
        fresh.floor = self.floor.take().map(|floor| floor.time(&fresh.problem));
        if let Some(mut top) = self.levels[0].take().and_then(|mut schedules| schedules.pop()) {
            top.time(&fresh.problem);
            fresh.levels[0] = Some(vec![top]);
        }
        *self = fresh;
    }

    /// The budget of a level; level 0 is the step without replays, the last one is the floor.
    fn level_budget(&self, level: usize) -> u64 {
        let lowest = self.floor.as_ref().map_or(0, |floor| floor.lowest);
        ((self.unlimited_live as f64 * SUBLEVEL.powf(-f64::from(self.effort.sublevels) * level as f64))
            as u64)
            .max(lowest)
    }

    /// The bytes of the step without replays, packed.
    pub fn unlimited_bytes(&mut self) -> u64 {
        let (problem, host_budget) = (&self.problem, self.host_budget);
        let top = self.levels[0].as_mut().and_then(|r| r.first_mut());
        let bytes = top.map_or(0, |top| top.tight(problem, host_budget).arena(problem.scratch_alignment));
        // In another order it may take less than bounds allow in this one, by which it would be refused.
        bytes.max(self.bounds.floor().0)
    }

    /// The least time that any plan of this grid can have within `budget`.
    pub fn bound_ns(&self, budget: u64) -> Option<u64> {
        self.bounds.extra_ns(budget).map(|extra| self.least_ns + extra)
    }

    /// The same, given that only plans that take less than `ns` are of interest: at least `ns` where there are none.
    pub fn bound_below(&self, budget: u64, ns: u64) -> Option<u64> {
        let bound = self.bound_ns(budget)?;
        let (Some(without), Some(link)) = (&self.without_copies, self.problem.link) else {
            return Some(bound);
        };
        match ns {
            u64::MAX => Some(bound),
            ns => {
                Some(bound.max(self.least_ns + without.extra_ns_copying(budget, link, self.host_budget, ns)))
            }
        }
    }

    /// The fastest schedule that fits `budget` and is faster than `faster_than`.
    pub fn fastest(&mut self, budget: u64, faster_than: u64) -> Option<&mut Schedule> {
        let alignment = self.problem.scratch_alignment;
        let mut best: Option<(usize, usize)> = None;
        let mut best_ns = faster_than;
        if self.floor_bytes() > budget {
            return None;
        }
        let mut level = 0;
        let lowest = self.floor.as_ref().map_or(u64::MAX, |floor| floor.lowest);
        while level == 0 || self.level_budget(level - 1) > lowest {
            // Schedules of this level have less than the level above.
            let ceiling = if level == 0 { u64::MAX } else { self.level_budget(level - 1) };
            let bound = self.bound_below(ceiling.min(budget), best_ns);
            let hopeless = bound.is_none_or(|bound| bound >= best_ns);
            if level > 0 && hopeless {
                break;
            }
            if level == 0 || self.level_budget(level) <= budget {
                self.search(level);
                let top = self.unlimited_bytes();
                let schedules = self.levels[level].as_mut().map_or(&mut [][..], |r| &mut r[..]);
                for (k, schedule) in schedules.iter_mut().enumerate().rev() {
                    // Of the step without replays the lowest packing counts, because that is what no budget means.
                    let fits = match level {
                        _ if schedule.ns >= best_ns => false,
                        0 => top <= budget,
                        _ => {
                            schedule.budget.max(schedule.live) <= budget
                                && schedule.arena(alignment) <= budget
                        }
                    };
                    if fits {
                        best = Some((level, k));
                        best_ns = schedule.ns;
                    }
                }
            }
            level += 1;
        }
        match best {
            Some((level, k)) => self.levels[level].as_mut().map(|r| &mut r[k]),
            None => self
                .floor
                .as_mut()
                .map(|floor| &mut floor.schedule)
                .filter(|schedule| schedule.ns < faster_than),
        }
    }

    /// The schedule that takes least.
    pub fn floor_schedule(&mut self) -> Option<&mut Schedule> {
        self.floor_bytes();
        self.floor.as_mut().map(|floor| &mut floor.schedule)
    }

    /// The least budget for which a schedule is found.
    pub fn floor_bytes(&mut self) -> u64 {
        if self.floor.is_none() {
            self.floor = Some(self.find_floor());
        }
        let alignment = self.problem.scratch_alignment;
        let top = self.unlimited_bytes();
        let floor = self.floor.as_mut().map_or(top, |floor| floor.schedule.arena(alignment));
        // How far copies run beside ops depends on times, and what that takes too; a floor must not.
        let least = if self.indexed.carries() { floor } else { floor.min(top) };
        least.max(self.bounds.floor().0)
    }

    pub fn is_late(&self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
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
        for start in self.first_schedules(budget) {
            self.search_sublevels(budget, start, &mut schedules);
        }
        self.levels[level] = Some(schedules);
    }

    /// Improves a schedule at a level and at each of its sublevels. A first schedule that fits by then and is faster takes over.
    fn search_sublevels(
        &self,
        level: u64,
        start: (SavedReplays, Arc<IndexedProblem>),
        schedules: &mut Vec<Schedule>,
    ) {
        let (mut saved, mut indexed) = start;
        let mut sublevel = 0;
        loop {
            let mut state = saved.restore(&indexed);
            let mut repair = Repair::new(&state, level, self.host_budget, 7);
            let mut work = self.effort.level;
            let mut last_ns = u64::MAX;
            let faster = loop {
                let budget = (level as f64 * SUBLEVEL.powi(sublevel as i32)) as u64;
                let ns = indexed.base_ns() + state.extra_ns;
                let faster = if last_ns < u64::MAX { self.faster_start(budget, ns) } else { None };
                if faster.is_some() || sublevel >= self.effort.sublevels {
                    break faster;
                }
                repair.budget = budget as i64;
                if !self.is_late() {
                    if last_ns < u64::MAX {
                        repair.give_back(&mut state, work);
                    }
                    improve(&mut state, &mut repair, work);
                }
                if state.extra_ns < last_ns {
                    schedules.push(Schedule::new(&mut state, &indexed, budget));
                    // The more room, the earlier state can be on its way from the host, and the later on its way back.
                    let rooms: &[f64] = if indexed.carries() { &ROOMS } else { &[] };
                    let more = rooms.iter().map(|room| (budget as f64 * room) as u64);
                    schedules.extend(more.map(|more| Schedule::new(&mut state, &indexed, more)));
                }
                if self.is_late() {
                    return;
                }
                last_ns = state.extra_ns;
                work = self.effort.sublevel;
                sublevel += if sublevel == 0 { 1 } else { self.effort.stride as u32 };
            };
            match faster {
                Some(faster) => (saved, indexed) = faster,
                None => return,
            }
        }
    }
}
