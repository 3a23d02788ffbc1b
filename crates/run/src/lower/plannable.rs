//! A graph that is ready to be planned: lowered to the planner's problem, with a planner that remembers its searches.

use std::sync::Arc;

use plimsoll_device::Bytes;
use plimsoll_graph::Graph;
use plimsoll_plan::{Infeasible, Plan, PlanError, Planner, ProblemError, Request};

use super::{Lowered, PlannedGraph, Roles};
use crate::device::Device;
use crate::error::{Error, Result};

/// A graph before it has a plan. All bytes here are of the arena: state and inputs have their own.
pub(crate) struct PlannableGraph {
    lowered: Arc<Lowered>,
    planner: Planner,
    residents: u64,
}

impl PlannableGraph {
    /// Lowers a graph and times its kernels.
    pub(crate) fn new(
        graph: Graph,
        roles: &Roles<'_>,
        device: &Device,
        room: Option<Bytes>,
    ) -> Result<PlannableGraph> {
        let mut graph = PlannableGraph::untimed(graph, roles, device, Bytes::ZERO)?;
        graph.time(device, room)?;
        Ok(graph)
    }

    /// Lowers a graph with the times that are known. Its floor is that of the timed graph: no floor depends on times. Plans
    /// may copy to so many bytes of the `host` what does not fit, where the device can.
    pub(crate) fn untimed(
        graph: Graph,
        roles: &Roles<'_>,
        device: &Device,
        host: Bytes,
    ) -> Result<PlannableGraph> {
        let graph = Arc::new(graph);
        let lowered = Arc::new(Lowered::new(graph, roles, device, host > Bytes::ZERO)?);
        let request = Request { host_budget: host.get(), ..Request::within(0) };
        let planner = Planner::new(&lowered.problem, &request).map_err(|error| match error {
            ProblemError::TooLarge => Error::TooLarge,
            error => broken(error),
        })?;
        let resident = |t: &&plimsoll_plan::Tensor| t.home == plimsoll_plan::Home::Resident;
        let tensors = lowered.problem.tensors.iter().filter(resident);
        let residents = tensors.map(plimsoll_plan::Tensor::padded_bytes).sum();
        Ok(PlannableGraph { lowered, planner, residents })
    }

    /// Times kernels that have not been timed, where the device says so and their operands fit into `room`.
    pub(crate) fn time(&mut self, device: &Device, room: Option<Bytes>) -> Result<()> {
        device.costs().time(&self.lowered.graph, device, room)?;
        let carries = self.lowered.problem.ops.iter().any(|op| op.carry.is_some());
        if carries || self.lowered.problem.link.is_some() {
            device.costs().time_link(device, room.unwrap_or(Bytes(u64::MAX)))?;
        }
        // Whoever was given a plan keeps the times that it was made with.
        if Arc::make_mut(&mut self.lowered).time(device) {
            self.planner.time(&self.lowered.problem);
        }
        Ok(())
    }

    /// The bytes that timing each of its kernels takes.
    pub(crate) fn timing_needs(&self, device: &Device) -> Result<Vec<Bytes>> {
        device.costs().needs(&self.lowered.graph, device)
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

    /// How many ops are planned.
    pub(crate) fn ops(&self) -> usize {
        self.lowered.problem.ops.len()
    }

    /// Predicted nanoseconds without recomputation.
    pub(crate) fn unlimited_ns(&self) -> u64 {
        self.lowered.problem.unlimited_ns()
    }

    /// The fastest plan within so many bytes, or why there is none.
    pub(crate) fn plan(&mut self, bytes: u64) -> Result<Result<PlannedGraph, Box<Infeasible>>> {
        match self.planner.plan(bytes.saturating_add(self.residents)) {
            Ok(plan) => Ok(Ok(self.planned(plan))),
            Err(PlanError::Infeasible(refusal)) => Ok(Err(refusal)),
            Err(e) => Err(broken(e)),
        }
    }

    /// The fastest plan within so many bytes, if it takes less than so many nanoseconds.
    pub(crate) fn plan_faster(&mut self, bytes: u64, than: u64) -> Result<Option<PlannedGraph>> {
        let plan = self.planner.plan_faster(bytes.saturating_add(self.residents), than).map_err(broken)?;
        Ok(plan.map(|plan| self.planned(plan)))
    }

    fn planned(&self, plan: Plan) -> PlannedGraph {
        PlannedGraph { lowered: self.lowered.clone(), plan, residents: self.residents }
    }

    /// What the arena would take if every value had bytes of its own, and scratch the most that an op needs.
    pub(crate) fn unshared(&self) -> u64 {
        let problem = &self.lowered.problem;
        let transient = |t: &&plimsoll_plan::Tensor| t.home == plimsoll_plan::Home::Transient;
        let tensors = problem.tensors.iter().filter(transient).map(plimsoll_plan::Tensor::padded_bytes);
        let scratch = problem.ops.iter().map(|op| op.scratch);
        tensors.sum::<u64>() + scratch.max().unwrap_or(0)
    }

    /// The plan that recomputes nothing.
    pub(crate) fn fastest(&mut self) -> Result<PlannedGraph> {
        let unlimited = self.unlimited();
        self.plan(unlimited)?.map_err(|_| broken("the plan without a limit has no room"))
    }

    /// The plan that takes the least memory among those predicted to cost at most `factor` of the fastest one's time.
    pub(crate) fn lean(&mut self, factor: f64) -> Result<PlannedGraph> {
        let mut best = self.fastest()?;
        let unlimited = self.unlimited();
        let allowed = best.figures().predicted_ns as f64 * factor;
        // Halving the step, from an eighth of the bytes down to a sixty-fourth.
        let mut step = unlimited / 8;
        let least_step = step / 8;
        while step > least_step && step > 0 {
            let bytes = best.bytes().saturating_sub(step);
            match self.plan(bytes)? {
                Ok(plan) if plan.figures().predicted_ns as f64 <= allowed => best = plan,
                _ => step /= 2,
            }
        }
        Ok(best)
    }
}

fn broken(why: impl std::fmt::Display) -> Error {
    Error::Internal(format!("planning failed: {why}"))
}
