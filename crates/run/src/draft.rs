//! A graph that is ready to be planned: lowered to the planner's problem, with a planner that remembers its searches.

use std::sync::Arc;

use plimsoll_device::Bytes;
use plimsoll_graph::Graph;
use plimsoll_plan::{Infeasible, Plan, PlanError, Planner, Request};

use crate::device::Device;
use crate::error::{Error, Result};
use crate::lower::{Lowered, Roles};
use crate::program::Program;

/// A graph before it has a plan. All bytes here are of the arena: state and inputs have their own.
pub(crate) struct Draft {
    lowered: Lowered,
    planner: Planner,
    residents: u64,
}

impl Draft {
    /// Lowers a graph. Kernels that have not been timed are, where the device says so and their operands fit into `room`.
    pub(crate) fn new(
        graph: Graph,
        roles: &Roles<'_>,
        device: &Device,
        room: Option<Bytes>,
    ) -> Result<Draft> {
        device.costs().time(&graph, device, room)?;
        let graph = Arc::new(graph);
        let lowered = Lowered::new(graph, roles, device)?;
        let planner = Planner::new(&lowered.problem, &Request::within(0)).map_err(broken)?;
        let resident = |t: &&plimsoll_plan::Tensor| t.home == plimsoll_plan::Home::Resident;
        let tensors = lowered.problem.tensors.iter().filter(resident);
        let residents = tensors.map(plimsoll_plan::Tensor::padded_bytes).sum();
        Ok(Draft { lowered, planner, residents })
    }

    /// What a plan takes that recomputes nothing.
    pub(crate) fn unlimited(&mut self) -> u64 {
        self.planner.unlimited_bytes().saturating_sub(self.residents)
    }

    /// The least for which there is a plan.
    pub(crate) fn floor(&mut self) -> u64 {
        self.planner.floor_bytes().saturating_sub(self.residents)
    }

    /// What no plan can go below.
    pub(crate) fn bound(&mut self) -> u64 {
        self.planner.bound_bytes().saturating_sub(self.residents)
    }

    /// Predicted nanoseconds without recomputation.
    pub(crate) fn unlimited_ns(&self) -> u64 {
        self.lowered.problem.unlimited_ns()
    }

    /// The fastest plan within so many bytes, or why there is none.
    pub(crate) fn plan(&mut self, bytes: u64) -> Result<Result<Plan, Box<Infeasible>>> {
        match self.planner.plan(bytes.saturating_add(self.residents)) {
            Ok(plan) => Ok(Ok(plan)),
            Err(PlanError::Infeasible(refusal)) => Ok(Err(refusal)),
            Err(e) => Err(broken(e)),
        }
    }

    /// The bytes of a plan of this draft.
    pub(crate) fn bytes_of(&self, plan: &Plan) -> u64 {
        plan.figures.arena_bytes.saturating_sub(self.residents)
    }

    /// The plan that recomputes nothing.
    pub(crate) fn fastest(&mut self) -> Result<Plan> {
        let unlimited = self.unlimited();
        self.plan(unlimited)?.map_err(|_| broken("the plan without a line has no room"))
    }

    /// The plan that takes the least memory among those predicted to cost at most `factor` of the fastest one's time.
    pub(crate) fn lean(&mut self, factor: f64) -> Result<Plan> {
        let mut best = self.fastest()?;
        let unlimited = self.unlimited();
        let allowed = best.figures.predicted_ns as f64 * factor;
        // Halving the step, from an eighth of the bytes down to a sixty-fourth.
        let mut step = unlimited / 8;
        let least_step = step / 8;
        while step > least_step && step > 0 {
            let bytes = self.bytes_of(&best).saturating_sub(step);
            match self.plan(bytes)? {
                Ok(plan) if plan.figures.predicted_ns as f64 <= allowed => best = plan,
                _ => step /= 2,
            }
        }
        Ok(best)
    }

    /// The program of a plan.
    pub(crate) fn program(self, plan: Plan, device: &Device) -> Result<Program> {
        Program::new(self.lowered, plan, self.residents, device)
    }
}

fn broken(why: impl std::fmt::Display) -> Error {
    Error::Internal(format!("planning failed: {why}"))
}
