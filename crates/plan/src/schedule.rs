//! Holds a schedule that was found, with its offsets once someone has asked for them.

use crate::indexed_problem::IndexedProblem;
use crate::lifespan::{Action, lifespans};
use crate::overlap::{awaited, makespan, overlap};
use crate::place::{Places, place, usual_work};
use crate::problem::Problem;
use crate::recompute::state::State;
use std::sync::Arc;

/// A schedule that was found: the actions of a step, with what they take.
pub(crate) struct Schedule {
    pub actions: Vec<Action>,
    pub indexed: Arc<IndexedProblem>,
    /// The budget it was searched for.
    pub budget: u64,
    pub ns: u64,
    /// The most bytes that are live at once.
    pub live: u64,
    pub packed: Option<Places>,
    /// What [`Schedule::repacked`] found, if it was asked and there was something to find.
    repacked: Option<Box<Schedule>>,
    /// Whether it is itself what such a search found.
    is_repacked: bool,
}

impl Schedule {
    pub fn new(state: &mut State, indexed: &Arc<IndexedProblem>, budget: u64) -> Schedule {
        let (mut ns, mut live) = (indexed.base_ns() + state.extra_ns, state.peak() as u64);
        let mut actions = awaited(indexed, state.actions());
        if indexed.carries() || actions.iter().any(|action| matches!(action, Action::Load(_))) {
            (actions, live) = overlap(indexed, actions, budget.max(live));
            ns = makespan(indexed, &actions);
        }
        Schedule::of(actions, indexed.clone(), budget, ns, live)
    }

    /// A schedule whose time and bytes are known.
    pub fn of(
        actions: Vec<Action>,
        indexed: Arc<IndexedProblem>,
        budget: u64,
        ns: u64,
        live: u64,
    ) -> Schedule {
        Schedule { budget, ns, live, indexed, actions, packed: None, repacked: None, is_repacked: false }
    }

    /// For how long ops wait for copies.
    pub fn waits_ns(&self) -> u64 {
        let ns =
            |action: &Action| if let Action::Run(op) = *action { self.indexed.ns[op as usize] } else { 0 };
        self.ns.saturating_sub(self.actions.iter().map(ns).sum())
    }

    /// The offsets of its buffers. They do not depend on any request, so that every request sees the same.
    pub fn places(&mut self, scratch_alignment: u64) -> &Places {
        let (indexed, actions, enough) = (&self.indexed, &self.actions, self.budget.max(self.live));
        // Without a budget of its own the lowest packing is wanted.
        let enough = if enough == u64::MAX { self.live } else { enough };
        self.packed.get_or_insert_with(|| {
            let spans = lifespans(indexed, actions, scratch_alignment);
            place(&spans, indexed.resident_bytes, enough, usual_work(spans.buffers.len()))
        })
    }

    /// The same schedule, or another that takes as long and no more bytes, packed as low as is found.
    ///
    /// [`Schedule::places`] stops at the budget, which is all that a search asks for. For the one schedule that becomes a plan it is
    /// worth searching on: see `repack`. With `to_the_end` until nothing lower is found, as for figures that others are compared with.
    pub fn repacked(&mut self, problem: &Problem, host_budget: u64, to_the_end: bool) -> &mut Schedule {
        let height = self.arena(problem.scratch_alignment);
        if self.repacked.is_none() && height > self.live && !self.is_repacked {
            self.repacked =
                Some(Box::new(self.with_lower_packing(height, problem, host_budget, 0, to_the_end)));
        }
        match self.repacked {
            Some(ref mut repacked) => repacked,
            None => self,
        }
    }

    /// Like [`Schedule::repacked`], for a schedule of which only the bytes count and which has been packed: another may take up to an eighth
    /// longer.
    pub fn lowered(&self, problem: &Problem, host_budget: u64) -> Schedule {
        let height = self.packed.as_ref().map_or(u64::MAX, |packed| packed.height);
        // What is as low as what is live stays as it is.
        let is_low = height <= self.live;
        let same = || Schedule {
            packed: self.packed.clone(),
            ..Schedule::of(self.actions.clone(), self.indexed.clone(), self.budget, self.ns, self.live)
        };
        let lowered = if is_low {
            same()
        } else {
            self.with_lower_packing(height, problem, host_budget, self.ns / 8, false)
        };
        let budget = if is_low { lowered.budget } else { lowered.live };
        Schedule { budget, is_repacked: !is_low, ..lowered }
    }

    /// Takes the times of `problem`, which differ from those it was made with in nothing else.
    pub fn time(&mut self, problem: &Problem) {
        let mut indexed = IndexedProblem::clone(&self.indexed);
        indexed.time(problem);
        self.ns = makespan(&indexed, &self.actions);
        self.indexed = Arc::new(indexed);
        self.repacked = None;
    }

    /// The bytes its buffers take once they have offsets.
    pub fn arena(&mut self, scratch_alignment: u64) -> u64 {
        self.places(scratch_alignment).height
    }
}
