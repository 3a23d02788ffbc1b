//! Turns a problem and a request into a plan, or into the reasons why there is none.
//!
//! Where copies to the host are allowed, schedules without them are searched for too: a search with more choices does not always find
//! the better schedule, and allowing copies must not make a plan slower or the floor higher. How much of a copy runs beside ops is
//! known only when a schedule is there, so the search works with a guess, and the schedules it finds are then timed as they are.

use crate::budget_grid::BudgetGrid;
use crate::check::ProblemError;
use crate::defer::{Deferred, deferred};
use crate::effort::Effort;
use crate::emit::emit;
use crate::estimate::{copy_overlap_divisor, least_ns};
use crate::floor::may_go_below;
use crate::infeasible::{Infeasible, explain};
use crate::lifespan::lifespans;
use crate::order::best_order;
use crate::plan::{Figures, Plan, Request};
use crate::problem::{Home, OpId, Problem, Tensor};
use crate::schedule::Schedule;
use crate::step_search::StepSearch;
use crate::verify::{Fault, verify};
use std::sync::Arc;
use std::time::{Duration, Instant};
use thiserror::Error;

/// Why there is no plan.
#[derive(Debug, Error)]
pub enum PlanError {
    /// The problem contradicts itself.
    #[error(transparent)]
    Problem(#[from] ProblemError),
    /// Nothing fits the budget.
    #[error(transparent)]
    Infeasible(Box<Infeasible>),
    /// The planner made a plan that its own verifier refuses.
    #[error(
        "the planner made a plan that does not hold ({0}); this is a defect of the planner, please report it"
    )]
    Defect(#[from] Fault),
}

/// Plans a step.
///
/// ```
/// use plimsoll_plan::{Op, Problem, Request, Tensor, plan};
/// let mut step = Problem::new();
/// let a = step.tensor(Tensor::transient("a", 1024));
/// let b = step.tensor(Tensor::transient("b", 1024));
/// let c = step.tensor(Tensor::output("c", 1024));
/// step.op(Op::new("make a", &[], &[a], 10));
/// step.op(Op::new("make b", &[a], &[b], 10));
/// step.op(Op::new("make c", &[b], &[c], 10));
/// let plan = plan(&step, &Request::within(2048)).unwrap();
/// assert_eq!(plan.figures.arena_bytes, 2048);
/// assert_eq!(plan.figures.predicted_ns, 30);
/// ```
pub fn plan(problem: &Problem, request: &Request) -> Result<Plan, PlanError> {
    Planner::new(problem, request)?.plan(request.budget)
}

/// Plans one step for several budgets; what was searched for one serves the next.
pub struct Planner {
    problem: Arc<Problem>,
    /// The same without a link to the host.
    unlinked: Arc<Problem>,
    request: Request,
    searches: Vec<Search>,
    /// The order in which the step is searched; found when it is first searched.
    order: Option<Vec<OpId>>,
    /// When to stop searching, if the request says so.
    deadline: Option<Instant>,
}

/// One search: the step in one order, with or without copies to the host.
struct Search {
    /// Bytes of the host that it may copy to.
    host_budget: u64,
    /// What it divides the time of a copy by that runs beside ops.
    copy_overlap_divisor: u64,
    /// A bound on its time, without looking at memory.
    least_ns: u64,
    /// `None` until it is wanted.
    grid: Option<BudgetGrid>,
}

impl Planner {
    /// Prepares to plan `problem`; the request's budget is not looked at.
    pub fn new(problem: &Problem, request: &Request) -> Result<Planner, ProblemError> {
        problem.check()?;
        let (problem, unlinked) = (Arc::new(problem.clone()), unlinked(problem));
        let host_budget = if problem.link.is_some() { request.host_budget } else { 0 };
        let least_ns = least_ns(&problem);
        let search = |host_budget: u64, copy_overlap_divisor: u64| Search {
            host_budget,
            copy_overlap_divisor,
            least_ns,
            grid: None,
        };
        let copying = (host_budget > 0).then(|| search(host_budget, copy_overlap_divisor(&problem)));
        let searches = std::iter::once(search(0, 1)).chain(copying).collect();
        let deadline = request.deadline_ms.map(|ms| Instant::now() + Duration::from_millis(ms));
        Ok(Planner { problem, unlinked, request: request.clone(), searches, order: None, deadline })
    }

    /// Takes the times of `problem`, which is otherwise the one it was made for. No floor depends on times, so floors that
    /// were found stay.
    pub fn time(&mut self, problem: &Problem) {
        (self.problem, self.unlinked) = (Arc::new(problem.clone()), unlinked(problem));
        let guess = copy_overlap_divisor(problem);
        for search in &mut self.searches {
            search.least_ns = least_ns(&self.problem);
            let copies = search.host_budget > 0;
            search.copy_overlap_divisor = if copies { guess } else { 1 };
            let problem = if copies { &self.problem } else { &self.unlinked };
            if let Some(grid) = &mut search.grid {
                grid.time(problem.clone(), search.copy_overlap_divisor);
            }
        }
    }

    /// The least budget for which there is a plan.
    pub fn floor_bytes(&mut self) -> u64 {
        (0..self.searches.len()).map(|f| self.grid(f).floor_bytes()).min().unwrap_or(0)
    }

    /// A budget for which there is a plan, found sooner than the least: what takes least is not packed as low as it can be.
    pub fn enough_bytes(&mut self) -> u64 {
        (0..self.searches.len()).map(|f| self.grid(f).enough_bytes()).min().unwrap_or(0)
    }

    /// The least that schedules hold whose peaks have been lowered once: the first figure on the way to [`Planner::floor_bytes`]. It depends
    /// on nothing but the problem, as that does.
    pub fn lowered_once_bytes(&mut self) -> u64 {
        (0..self.searches.len()).map(|f| self.grid(f).lowered_once()).min().unwrap_or(0)
    }

    /// Whether the least budget may be below `bytes`, by what [`Planner::lowered_once_bytes`] said: not where that is far above.
    pub fn may_go_below(&self, bytes: u64, lowered_once: u64) -> bool {
        let resident = self.problem.tensors.iter().filter(|t| t.home == Home::Resident);
        may_go_below(bytes, lowered_once, resident.map(Tensor::padded_bytes).sum())
    }

    /// The least budget for which there is a plan, if that is below `bytes`. Where it is far above, that is seen sooner than
    /// [`Planner::floor_bytes`] finds it.
    pub fn floor_below(&mut self, bytes: u64) -> Option<u64> {
        let lowered_once = self.lowered_once_bytes();
        let may_be = self.may_go_below(bytes, lowered_once);
        may_be.then(|| self.floor_bytes()).filter(|floor| *floor < bytes)
    }

    /// Looks for the least budget as far as plans within larger ones need it, so that they are found sooner.
    pub fn look_for_floor(&mut self) {
        (0..self.searches.len()).for_each(|f| self.grid(f).look_for_floor());
    }

    /// Whether the least budget has been found, so that [`Planner::floor_bytes`] takes no time.
    pub fn knows_floor(&self) -> bool {
        self.searches.iter().all(|search| search.grid.as_ref().is_some_and(BudgetGrid::knows_floor))
    }

    /// What no plan of this step can go below, whatever is recomputed.
    pub fn bound_bytes(&mut self) -> u64 {
        (0..self.searches.len()).map(|f| self.grid(f).step.bounds.floor().0).min().unwrap_or(0)
    }

    /// The least nanoseconds that any plan within `budget` can take; `None` if there can be no plan.
    pub fn bound_ns(&mut self, budget: u64) -> Option<u64> {
        let least = |f: usize| self.searches[f].least_ns;
        let bounds: Vec<u64> = (0..self.searches.len()).map(least).collect();
        let bound = |(f, least)| self.grid(f).step.bound_ns(budget).map(|ns: u64| ns.max(least));
        bounds.into_iter().enumerate().filter_map(bound).min()
    }

    /// The bytes of the step without recomputation and offload.
    pub fn unlimited_bytes(&mut self) -> u64 {
        self.grid(0).unlimited_bytes()
    }

    fn grid(&mut self, search: usize) -> &mut BudgetGrid {
        let search = &mut self.searches[search];
        let (request, deadline, copies) = (&self.request, self.deadline, search.host_budget > 0);
        let problem = if copies { &self.problem } else { &self.unlinked };
        // No order depends on times.
        let order = self.order.get_or_insert_with(|| best_order(&self.problem));
        search.grid.get_or_insert_with(|| {
            let effort = Effort::new(order.len() as u32, request.effort);
            let effort = if copies { effort.beside_another() } else { effort };
            let (host_budget, divisor) = (search.host_budget, search.copy_overlap_divisor);
            let problem = problem.clone();
            BudgetGrid::new(StepSearch::new(problem, order, host_budget, divisor, effort, deadline))
        })
    }

    /// Plans the step within `budget` bytes.
    pub fn plan(&mut self, budget: u64) -> Result<Plan, PlanError> {
        match self.plan_faster(budget, u64::MAX)? {
            Some(mut plan) => {
                plan.figures.floor_bytes = self.floor_bytes();
                Ok(plan)
            }
            None => Err(PlanError::Infeasible(Box::new(self.refusal(budget)))),
        }
    }

    /// Plans the step within `budget` bytes, if it then takes less than `than` nanoseconds: what cannot is not searched. The plan's
    /// figures say no floor (`floor_bytes` is 0), since a plan can often be had without looking for it: ask [`Planner::floor_bytes`].
    pub fn plan_faster(&mut self, budget: u64, than: u64) -> Result<Option<Plan>, PlanError> {
        let mut best: Option<usize> = None;
        let mut best_ns = than;
        for f in 0..self.searches.len() {
            if self.searches[f].least_ns >= best_ns {
                continue;
            }
            let grid = self.grid(f);
            if grid.step.bound_below(budget, best_ns).is_none_or(|bound| bound >= best_ns) {
                continue;
            }
            if let Some(schedule) = grid.fastest(budget, best_ns) {
                best_ns = schedule.ns;
                best = Some(f);
            }
        }
        let Some(f) = best else { return Ok(None) };
        let copied_to = self.searches[f].host_budget;
        let host_budget = self.request.host_budget;
        let unlimited_ns = self.problem.unlimited_ns();
        let unlimited_bytes = self.unlimited_bytes();
        let grid = self.grid(f);
        let mut bound_bytes = grid.step.bounds.floor().0;
        let mut lower_bound_ns = grid.step.bound_ns(budget).unwrap_or(grid.step.least_ns());
        let problem = grid.step.problem.clone();
        let Some(schedule) = grid.fastest(budget, than) else { return Ok(None) };
        let schedule = schedule.repacked(&problem, copied_to, false);
        let mut plan = write(&problem, schedule, budget);
        // The figures are of whatever is allowed, copies too.
        let others = if host_budget > 0 { self.searches.len() } else { 0 };
        for other in (0..others).filter(|&other| other != f) {
            let grid = self.grid(other);
            bound_bytes = bound_bytes.min(grid.step.bounds.floor().0);
            lower_bound_ns = lower_bound_ns.min(grid.step.bound_ns(budget).unwrap_or(grid.step.least_ns()));
        }
        plan.budget = budget;
        plan.host_budget = host_budget;
        plan.figures = Figures {
            unlimited_ns,
            unlimited_bytes,
            floor_bytes: 0,
            bound_bytes: bound_bytes.min(plan.figures.arena_bytes),
            lower_bound_ns: lower_bound_ns.min(plan.figures.predicted_ns),
            ..plan.figures
        };
        verify(&problem, &plan)?;
        Ok(Some(plan))
    }

    fn refusal(&mut self, budget: u64) -> Infeasible {
        let least = (0..self.searches.len()).map(|f| (self.grid(f).floor_bytes(), f)).min();
        let bound = self.bound_bytes();
        explain(budget, bound, self.grid(least.map_or(0, |least| least.1)))
    }
}

fn unlinked(problem: &Problem) -> Arc<Problem> {
    Arc::new(Problem { link: None, ..problem.clone() })
}

/// Writes a schedule as a plan, without the figures that need a grid.
fn write(problem: &Problem, schedule: &mut Schedule, budget: u64) -> Plan {
    let (alignment, live) = (problem.scratch_alignment, schedule.live);
    let (indexed, actions) = (schedule.indexed.clone(), schedule.actions.clone());
    if let Some(Deferred { actions, spans, places, live }) = deferred(problem, &indexed, &actions, budget) {
        let mut plan = emit(problem, &indexed, &actions, &spans, &places);
        plan.figures.live_bytes = live.min(plan.figures.arena_bytes);
        return plan;
    }
    let spans = lifespans(&indexed, &actions, alignment);
    let mut plan = emit(problem, &indexed, &actions, &spans, schedule.places(alignment));
    plan.figures.live_bytes = live.min(plan.figures.arena_bytes);
    plan
}
