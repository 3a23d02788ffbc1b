//! A graph that is ready to be planned: lowered to the planner's problem, with a planner that remembers its searches.

use std::sync::Arc;

use plimsoll_device::Bytes;
use plimsoll_device::stopwatch::during;
use plimsoll_graph::Graph;
use plimsoll_plan::{Digest, Infeasible, Plan, PlanError, Planner, ProblemError, Request, verify};
use plimsoll_record::KeptBytes;

use super::{Lowered, PlannedGraph, Roles};
use crate::device::{Answer, Device};
use crate::error::{Error, Result};

/// A graph before it has a plan. All bytes here are of the arena: state and inputs have their own.
pub(crate) struct PlannableGraph {
    lowered: Arc<Lowered>,
    planner: Planner,
    residents: u64,
    /// Where it will run: answers of the planner are kept with it.
    device: Device,
    /// What tells its problem from others, without times; and the times.
    digests: (Digest, Digest),
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
        let lowered = during("lowered", || Lowered::new(graph, roles, device, host > Bytes::ZERO))?;
        let lowered = Arc::new(lowered);
        let effort = u32::from(!roles.in_haste);
        let request = Request { host_budget: host.get(), effort, ..Request::within(0) };
        let planner = Planner::new(&lowered.problem, &request).map_err(|error| match error {
            ProblemError::TooLarge => Error::TooLarge,
            error => broken(error),
        })?;
        let resident = |t: &&plimsoll_plan::Tensor| t.home == plimsoll_plan::Home::Resident;
        let tensors = lowered.problem.tensors.iter().filter(resident);
        let residents = tensors.map(plimsoll_plan::Tensor::padded_bytes).sum();
        let problem = &lowered.problem;
        let asked = problem.digest().with(host.get()).with(u64::from(effort));
        let digests = (asked, problem.digest_of_times());
        Ok(PlannableGraph { lowered, planner, residents, device: device.clone(), digests })
    }

    /// Times kernels that have not been timed, where the device says so and their operands fit into `room`.
    pub(crate) fn time(&mut self, device: &Device, room: Option<Bytes>) -> Result<()> {
        during("kernels timed", || device.costs().time(&self.lowered.graph, device, room))?;
        let carries = self.lowered.problem.ops.iter().any(|op| op.carry.is_some());
        if carries || self.lowered.problem.link.is_some() {
            device.costs().time_link(device, room.unwrap_or(Bytes(u64::MAX)))?;
        }
        // Whoever was given a plan keeps the times that it was made with.
        if Arc::make_mut(&mut self.lowered).time(device) {
            self.planner.time(&self.lowered.problem);
            self.digests.1 = self.lowered.problem.digest_of_times();
        }
        Ok(())
    }

    /// What tells this from other graphs whose bytes are known.
    fn asked(&self) -> Digest {
        let (problem, times) = self.digests;
        // State that comes from the host beside ops is there for as long as its copy takes.
        let carries = self.lowered.problem.ops.iter().any(|op| op.carry.is_some());
        if carries { problem.with(times.0) } else { problem }
    }

    /// What tells its problem from others, and the same with the times of its ops.
    pub(crate) fn digests(&self) -> (Digest, Digest) {
        (self.asked(), self.digests.0.with(self.digests.1.0))
    }

    /// The least for which there is a plan, if somebody has looked for it.
    pub(crate) fn known_floor(&self) -> Option<u64> {
        let known = self.device.answers(|answers| answers.bytes(self.asked()));
        known.floor.map(|floor| floor.saturating_sub(self.residents))
    }

    /// One of the figures that depend on no time: as it is known, or found by the planner and remembered.
    fn bytes(
        &mut self,
        of: impl Fn(&mut KeptBytes) -> &mut Option<u64>,
        find: impl FnOnce(&mut Planner) -> u64,
    ) -> u64 {
        self.budget(self.asked(), of, find).saturating_sub(self.residents)
    }

    /// A budget that has no place among the figures of a graph: it has a line of its own, by its name.
    fn named_budget(&mut self, name: &str, find: impl FnOnce(&mut Planner) -> u64) -> u64 {
        self.budget(self.asked().with(name), |known| &mut known.floor, find)
    }

    /// A budget, with what is resident in it: as it is known of what was asked, or found and remembered.
    fn budget(
        &mut self,
        asked: Digest,
        of: impl Fn(&mut KeptBytes) -> &mut Option<u64>,
        find: impl FnOnce(&mut Planner) -> u64,
    ) -> u64 {
        let mut known = self.device.answers(|answers| answers.bytes(asked));
        if let Some(bytes) = *of(&mut known) {
            return bytes;
        }
        let found = find(&mut self.planner);
        *of(&mut known) = Some(found);
        self.device.answers(|answers| answers.keep_bytes(asked, known));
        found
    }

    /// The bytes that timing each of its kernels takes.
    pub(crate) fn timing_needs(&self, device: &Device) -> Result<Vec<Bytes>> {
        device.costs().needs(&self.lowered.graph, device)
    }

    /// What a plan takes that recomputes nothing.
    pub(crate) fn unlimited(&mut self) -> u64 {
        self.bytes(|known| &mut known.unlimited, Planner::unlimited_bytes)
    }

    /// The least for which there is a plan.
    pub(crate) fn floor(&mut self) -> u64 {
        self.bytes(|known| &mut known.floor, Planner::floor_bytes)
    }

    /// Bytes for which there is a plan, found sooner than the least.
    pub(crate) fn enough(&mut self) -> u64 {
        self.named_budget("enough", Planner::enough_bytes).saturating_sub(self.residents)
    }

    /// The least for which there is a plan, if that is below so many bytes: whether it is, is mostly seen sooner. The answer is the same
    /// whether the least is known or not.
    pub(crate) fn floor_below(&mut self, bytes: u64) -> Option<u64> {
        let lowered_once = self.lowered_once();
        let may_be = self.planner.may_go_below(bytes.saturating_add(self.residents), lowered_once);
        may_be.then(|| self.floor()).filter(|floor| *floor < bytes)
    }

    /// The first figure on the way to the least.
    pub(crate) fn lowered_once(&mut self) -> u64 {
        self.named_budget("lowered once", Planner::lowered_once_bytes)
    }

    /// Looks for the least as far as plans within more need it.
    pub(crate) fn look_for_floor(&mut self) {
        self.planner.look_for_floor();
    }

    /// What no plan can go below.
    pub(crate) fn bound(&mut self) -> u64 {
        self.bytes(|known| &mut known.bound, Planner::bound_bytes)
    }

    /// The least nanoseconds that any plan within so many bytes can take; nothing if there is none.
    pub(crate) fn bound_ns(&mut self, bytes: u64) -> Option<u64> {
        self.planner.bound_ns(bytes.saturating_add(self.residents))
    }

    /// How many ops are planned.
    pub(crate) fn ops(&self) -> usize {
        self.lowered.problem.ops.len()
    }

    /// Predicted nanoseconds without recomputation.
    pub(crate) fn unlimited_ns(&self) -> u64 {
        self.lowered.problem.unlimited_ns()
    }

    /// Why there is no plan within less than the least; nothing where that is nothing.
    pub(crate) fn refusal(&mut self) -> Result<Option<Box<Infeasible>>> {
        let Some(bytes) = self.floor().checked_sub(1) else { return Ok(None) };
        // A refusal says names, which are no part of a problem's digest.
        let problem = &self.lowered.problem;
        let names = problem.ops.iter().map(|op| &op.name).chain(problem.tensors.iter().map(|t| &t.name));
        let asked = names.fold(self.asked().with("refusal"), |sum, name| sum.with(name));
        if let Some(Answer::Refusal(refusal)) = self.device.answers(|answers| answers.answer(asked)) {
            return Ok(Some(refusal));
        }
        let refusal = match self.planner.plan(bytes.saturating_add(self.residents)) {
            Err(PlanError::Infeasible(refusal)) => refusal,
            Err(e) => return Err(broken(e)),
            Ok(_) => return Err(broken("there is a plan below the least")),
        };
        let answer = Answer::Refusal(refusal.clone());
        self.device.answers(|answers| answers.keep(asked, &answer));
        Ok(Some(refusal))
    }

    /// The fastest plan within so many bytes, or why there is none.
    pub(crate) fn plan(&mut self, bytes: u64) -> Result<Result<PlannedGraph, Box<Infeasible>>> {
        if let Some(plan) = self.plan_faster(bytes, u64::MAX)? {
            return Ok(Ok(plan));
        }
        match self.planner.plan(bytes.saturating_add(self.residents)) {
            Ok(plan) => Ok(Ok(self.planned(plan, false))),
            Err(PlanError::Infeasible(refusal)) => Ok(Err(refusal)),
            Err(e) => Err(broken(e)),
        }
    }

    /// The fastest plan within so many bytes, if it takes less than so many nanoseconds: one that was kept, or one that is searched
    /// for and then kept.
    pub(crate) fn plan_faster(&mut self, bytes: u64, than: u64) -> Result<Option<PlannedGraph>> {
        let budget = bytes.saturating_add(self.residents);
        let (problem, times) = self.digests;
        let asked = problem.with((times.0, budget));
        match self.device.answers(|answers| answers.answer(asked)) {
            Some(Answer::NoneBelow(ns)) if than <= ns => return Ok(None),
            Some(Answer::Plan(plan)) => match self.holds(&plan, budget) {
                Ok(()) if plan.figures.predicted_ns >= than => return Ok(None),
                Ok(()) => return Ok(Some(self.planned(plan, true))),
                Err(why) => {
                    self.device.answers(|answers| answers.forget(asked, &format!("{asked}.json: {why}")))
                }
            },
            Some(_) | None => {}
        }
        let plan = self.planner.plan_faster(budget, than).map_err(broken)?;
        if self.planner.knows_floor() {
            self.floor();
        }
        let answer = plan.map_or(Answer::NoneBelow(than), Answer::Plan);
        self.device.answers(|answers| answers.keep(asked, &answer));
        match answer {
            Answer::Plan(plan) => Ok(Some(self.planned(plan, false))),
            _ => Ok(None),
        }
    }

    /// Whether a plan that was kept is one of this problem, within these bytes: as the independent verifier says.
    fn holds(&self, plan: &Plan, budget: u64) -> Result<(), String> {
        if plan.budget != budget {
            return Err(format!("it was made for {} bytes, and {budget} were asked for", plan.budget));
        }
        verify(&self.lowered.problem, plan).map_err(|fault| fault.to_string())
    }

    fn planned(&self, plan: Plan, is_kept: bool) -> PlannedGraph {
        PlannedGraph { lowered: self.lowered.clone(), plan, residents: self.residents, is_kept }
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
            // What takes longer is not searched for.
            match self.plan_faster(bytes, (allowed as u64).saturating_add(1))? {
                Some(plan) if plan.figures().predicted_ns as f64 <= allowed => best = plan,
                _ => step /= 2,
            }
        }
        // What goes on beside ops has room to.
        let beside = self.beside();
        if beside > 0
            && let Some(plan) = self.plan_faster(best.bytes().saturating_add(beside), u64::MAX)?
        {
            best = plan;
        }
        Ok(best)
    }

    /// What exchanges hold while they are under way, all together: with so much more than a plan takes otherwise, none need be waited for before its time.
    pub(crate) fn beside(&self) -> u64 {
        let problem = &self.lowered.problem;
        let bytes = |op: &plimsoll_plan::Op| {
            let made: u64 = op.writes.iter().map(|t| problem.tensors[t.index()].padded_bytes()).sum();
            made + op.scratch.next_multiple_of(problem.scratch_alignment)
        };
        problem.ops.iter().filter(|op| op.beside).map(bytes).sum()
    }
}

fn broken(why: impl std::fmt::Display) -> Error {
    Error::Internal(format!("planning failed: {why}"))
}
