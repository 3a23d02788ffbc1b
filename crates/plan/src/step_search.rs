//! Holds what every search of one step has in common: the step in one order, what no plan of it can beat, and how hard to try.

use crate::bounds::Bounds;
use crate::copy_price::CopyPrice;
use crate::effort::Effort;
use crate::indexed_problem::IndexedProblem;
use crate::problem::{OpId, Problem};
use std::sync::Arc;
use std::time::Instant;

/// A step in one order, and how it is searched.
#[derive(Clone)]
pub(crate) struct StepSearch {
    pub problem: Arc<Problem>,
    pub indexed: Arc<IndexedProblem>,
    /// Bytes of the host that schedules may copy to.
    pub host_budget: u64,
    pub bounds: Arc<Bounds>,
    /// The same of the step without copies to the host, where there may be some.
    pub bounds_without_copies: Option<Arc<Bounds>>,
    /// For how long the link can copy beside ops, both ways together: to the host before the step holds most, and back after it.
    pub beside_ns: u64,
    pub effort: Effort,
    /// When to stop improving, if ever. What is searched after it is only started.
    pub deadline: Option<Instant>,
}

impl StepSearch {
    /// Prepares to search `problem` in the order `order`; the search divides the time of a copy by `copy_overlap_divisor`.
    pub fn new(
        problem: Arc<Problem>,
        order: &[OpId],
        host_budget: u64,
        copy_overlap_divisor: u64,
        effort: Effort,
        deadline: Option<Instant>,
    ) -> StepSearch {
        let mut indexed = IndexedProblem::new(&problem, order);
        let without_copies = Arc::new(Bounds::new(IndexedProblem { copy_ns: None, ..indexed.clone() }));
        // State that lives on the host comes back after that too.
        let fetched = indexed.carried.iter().flatten().filter(|copy| !copy.out).map(|copy| copy.ns).sum();
        let (before, after) = without_copies.around_fullest();
        let beside_ns = 2 * before.min(after.saturating_sub(fetched));
        indexed.copy_price = CopyPrice { divisor: copy_overlap_divisor, beside_ns };
        let (bounds, bounds_without_copies) = match host_budget {
            0 => (without_copies, None),
            _ => (Arc::new(Bounds::new(indexed.clone())), Some(without_copies)),
        };
        let indexed = Arc::new(indexed);
        StepSearch {
            problem,
            indexed,
            host_budget,
            bounds,
            bounds_without_copies,
            beside_ns,
            effort,
            deadline,
        }
    }

    /// The same step with the times of `problem`.
    pub fn timed(&self, problem: Arc<Problem>, copy_overlap_divisor: u64) -> StepSearch {
        let (order, host_budget) = (&self.indexed.op_id, self.host_budget);
        StepSearch::new(problem, order, host_budget, copy_overlap_divisor, self.effort, self.deadline)
    }

    /// The same step, in a search in which copies count for another time.
    pub fn at_price(&self, copy_price: CopyPrice) -> StepSearch {
        let indexed = Arc::new(IndexedProblem { copy_price, ..IndexedProblem::clone(&self.indexed) });
        StepSearch { indexed, ..self.clone() }
    }

    /// The time of all ops, each run once.
    pub fn least_ns(&self) -> u64 {
        self.indexed.base_ns()
    }

    /// The least time that any plan can have within `budget`; `None` if there is no plan.
    pub fn bound_ns(&self, budget: u64) -> Option<u64> {
        self.bounds.extra_ns(budget).map(|extra| self.least_ns() + extra)
    }

    /// The same, given that only plans that take less than `ns` are of interest: at least `ns` where there are none.
    pub fn bound_below(&self, budget: u64, ns: u64) -> Option<u64> {
        let bound = self.bound_ns(budget)?;
        match (&self.bounds_without_copies, self.problem.link) {
            (Some(without), Some(link)) if ns < u64::MAX => {
                let extra = without.extra_ns_copying(budget, link, self.host_budget, ns);
                Some(bound.max(self.least_ns() + extra))
            }
            _ => Some(bound),
        }
    }

    /// Whether the deadline has passed.
    pub fn is_late(&self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }
}
