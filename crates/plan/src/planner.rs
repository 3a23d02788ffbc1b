//! Turns a problem and a request into a plan, or into the reasons why there is none.
//!
//! Where copies to the host are allowed, schedules without them are
//! looked for too: the search with more choices is not always the luckier one, and what is allowed must not make a plan slower or
//! the floor higher. How much of a copy runs beside ops is known only when a schedule is there, so schedules are looked for with a
//! guess at that, and are then taken for what they really take.

use crate::budget_grid::BudgetGrid;
use crate::check::ProblemError;
use crate::effort::Effort;
use crate::emit::emit;
use crate::estimate::{copy_overlap_divisor, least_ns};
use crate::infeasible::{Infeasible, explain};
use crate::lifespan::lifespans;
use crate::plan::{Figures, Plan, Request};
use crate::problem::{OpId, Problem};
use crate::schedule::Schedule;
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
    families: Vec<Family>,
    /// When to stop searching, if the request says so.
    deadline: Option<Instant>,
}

/// One search: the step in one order, with or without copies to the host.
struct Family {
    /// Bytes of the host that it may copy to.
    host_budget: u64,
    /// What its search divides the time of a copy by, and which share of the guess at that it is.
    copy_overlap_divisor: u64,
    share: u64,
    /// A bound on its time, without looking at memory.
    least_ns: u64,
    /// `None` until it is wanted.
    grid: Option<BudgetGrid>,
    order: Vec<OpId>,
}

impl Planner {
    /// Prepares to plan `problem`; the request's budget is not looked at.
    pub fn new(problem: &Problem, request: &Request) -> Result<Planner, ProblemError> {
        problem.check()?;
        let (problem, unlinked) = (Arc::new(problem.clone()), unlinked(problem));
        let mut families = Vec::new();
        let most = if problem.link.is_some() { request.host_budget } else { 0 };
        let mut copying = vec![(0, 1, 1)];
        if most > 0 {
            let copy_overlap_divisor = copy_overlap_divisor(&problem);
            copying.push((most, copy_overlap_divisor, 1));
            // State that is copied anyway leaves less of the link to guess about.
            if problem.ops.iter().all(|op| op.carry.is_none()) {
                copying.push((most, copy_overlap_divisor.div_ceil(2), 2));
            }
        }
        for order in crate::order::candidates(&problem) {
            let least_ns = least_ns(&problem);
            families.extend(copying.iter().map(|&(host_budget, copy_overlap_divisor, share)| {
                let order = order.clone();
                Family { host_budget, copy_overlap_divisor, share, least_ns, grid: None, order }
            }));
        }
        let deadline = request.deadline_ms.map(|ms| Instant::now() + Duration::from_millis(ms));
        Ok(Planner { problem, unlinked, request: request.clone(), families, deadline })
    }

    /// Takes the times of `problem`, which is otherwise the one it was made for. No floor depends on times, so floors that
    /// were found stay.
    pub fn time(&mut self, problem: &Problem) {
        (self.problem, self.unlinked) = (Arc::new(problem.clone()), unlinked(problem));
        let copy_overlap_divisor = copy_overlap_divisor(problem);
        for family in &mut self.families {
            family.least_ns = least_ns(&self.problem);
            let copy_overlap_divisor =
                if family.host_budget > 0 { copy_overlap_divisor.div_ceil(family.share) } else { 1 };
            if std::mem::replace(&mut family.copy_overlap_divisor, copy_overlap_divisor)
                != copy_overlap_divisor
            {
                family.grid = None;
            }
            let problem = if family.host_budget > 0 { &self.problem } else { &self.unlinked };
            if let Some(grid) = &mut family.grid {
                grid.time(problem.clone());
            }
        }
    }

    /// The least budget for which there is a plan.
    pub fn floor_bytes(&mut self) -> u64 {
        (0..self.families.len()).map(|f| self.grid(f).floor_bytes()).min().unwrap_or(0)
    }

    /// What no plan of this step can go below, whatever is recomputed.
    pub fn bound_bytes(&mut self) -> u64 {
        (0..self.families.len()).map(|f| self.grid(f).bounds.floor().0).min().unwrap_or(0)
    }

    /// The bytes of the step without recomputation and offload.
    pub fn unlimited_bytes(&mut self) -> u64 {
        self.grid(0).unlimited_bytes()
    }

    fn grid(&mut self, family: usize) -> &mut BudgetGrid {
        let family = &mut self.families[family];
        let (request, deadline) = (&self.request, self.deadline);
        let problem = if family.host_budget > 0 { &self.problem } else { &self.unlinked };
        family.grid.get_or_insert_with(|| {
            let effort = Effort::new(family.order.len() as u32, request.effort);
            let effort = if family.host_budget > 0 { effort.beside_another() } else { effort };
            let mut grid = BudgetGrid::new(
                problem.clone(),
                &family.order,
                family.host_budget,
                family.copy_overlap_divisor,
                effort,
            );
            grid.deadline = deadline;
            grid
        })
    }

    /// Plans the step within `budget` bytes.
    pub fn plan(&mut self, budget: u64) -> Result<Plan, PlanError> {
        match self.plan_faster(budget, u64::MAX)? {
            Some(plan) => Ok(plan),
            None => Err(PlanError::Infeasible(Box::new(self.refusal(budget)))),
        }
    }

    /// Plans the step within `budget` bytes, if it then takes less than `than` nanoseconds: what cannot is not searched.
    pub fn plan_faster(&mut self, budget: u64, than: u64) -> Result<Option<Plan>, PlanError> {
        let mut best: Option<usize> = None;
        let mut best_ns = than;
        for f in 0..self.families.len() {
            if self.families[f].least_ns >= best_ns {
                continue;
            }
            let grid = self.grid(f);
            if grid.bound_below(budget, best_ns).is_none_or(|bound| bound >= best_ns) {
                continue;
            }
            if let Some(schedule) = grid.fastest(budget, best_ns) {
                best_ns = schedule.ns;
                best = Some(f);
            }
        }
        let Some(f) = best else { return Ok(None) };
        let copied_to = self.families[f].host_budget;
        let host_budget = self.request.host_budget;
        let unlimited_ns = self.problem.unlimited_ns();
        let unlimited_bytes = self.unlimited_bytes();
        let grid = self.grid(f);
        let mut floor_bytes = grid.floor_bytes();
        let mut bound_bytes = grid.bounds.floor().0;
        let mut lower_bound_ns = grid.bound_ns(budget).unwrap_or(grid.least_ns);
        let problem = grid.problem.clone();
        let Some(schedule) = grid.fastest(budget, than) else { return Ok(None) };
        let schedule = schedule.tight(&problem, copied_to);
        let mut plan = write(&problem, schedule);
        // The figures are of whatever is allowed, copies too.
        let others = if host_budget > 0 { self.families.len() } else { 0 };
        for other in (0..others).filter(|&other| other != f) {
            let grid = self.grid(other);
            floor_bytes = floor_bytes.min(grid.floor_bytes());
            bound_bytes = bound_bytes.min(grid.bounds.floor().0);
            lower_bound_ns = lower_bound_ns.min(grid.bound_ns(budget).unwrap_or(grid.least_ns));
        }
        plan.budget = budget;
        plan.host_budget = host_budget;
        plan.figures = Figures {
            unlimited_ns,
            unlimited_bytes,
            floor_bytes,
            bound_bytes: bound_bytes.min(plan.figures.arena_bytes),
            lower_bound_ns: lower_bound_ns.min(plan.figures.predicted_ns),
            ..plan.figures
        };
        verify(&problem, &plan)?;
        Ok(Some(plan))
    }

    fn refusal(&mut self, budget: u64) -> Infeasible {
        let least = (0..self.families.len()).map(|f| (self.grid(f).floor_bytes(), f)).min();
        let bound = self.bound_bytes();
        explain(budget, bound, self.grid(least.map_or(0, |least| least.1)))
    }
}

fn unlinked(problem: &Problem) -> Arc<Problem> {
    Arc::new(Problem { link: None, ..problem.clone() })
}

/// Writes a schedule as a plan, without the figures that need a grid.
fn write(problem: &Problem, schedule: &mut Schedule) -> Plan {
    let alignment = problem.scratch_alignment;
    let spans = lifespans(&schedule.indexed, &schedule.actions, alignment);
    let live_bytes = schedule.live;
    let indexed = schedule.indexed.clone();
    let actions = schedule.actions.clone();
    let emitted = emit(problem, &indexed, &actions, &spans, schedule.places(alignment));
    Plan {
        budget: 0,
        host_budget: 0,
        residents: emitted.residents,
        outputs: emitted.outputs,
        steps: emitted.steps,
        figures: Figures {
            predicted_ns: emitted.ns,
            unlimited_ns: 0,
            lower_bound_ns: 0,
            arena_bytes: emitted.arena_bytes,
            live_bytes: live_bytes.min(emitted.arena_bytes),
            unlimited_bytes: 0,
            floor_bytes: 0,
            bound_bytes: 0,
            host_bytes: emitted.host_bytes,
            recomputed_ops: emitted.replays,
            offloaded_tensors: emitted.offloads,
        },
    }
}
