//! A graph that is ready to be planned: lowered to the planner's problem, with a planner that remembers its searches.

use std::sync::Arc;

use plimsoll_device::Bytes;
use plimsoll_graph::{Graph, Phase};
use plimsoll_plan::{Infeasible, Plan, PlanError, Planner, ProblemError, Request};

use crate::device::Device;
use crate::error::{Error, Result};
use crate::lower::{Lowered, Roles};
use crate::peak::{Peak, fullest};
use crate::program::Program;

/// A graph before it has a plan. All bytes here are of the arena: state and inputs have their own.
pub(crate) struct Draft {
    lowered: Lowered,
    planner: Planner,
    residents: u64,
}

impl Draft {
    /// Lowers a graph and times its kernels.
    pub(crate) fn new(
        graph: Graph,
        roles: &Roles<'_>,
        device: &Device,
        room: Option<Bytes>,
    ) -> Result<Draft> {
        let mut draft = Draft::untimed(graph, roles, device, Bytes::ZERO)?;
        draft.time(device, room)?;
        Ok(draft)
    }

    /// Lowers a graph with the times that are known. Its floor is that of the timed draft: no floor depends on times. Plans
    /// may copy to so many bytes of the `host` what does not fit, where the device can.
    pub(crate) fn untimed(graph: Graph, roles: &Roles<'_>, device: &Device, host: Bytes) -> Result<Draft> {
        let graph = Arc::new(graph);
        let lowered = Lowered::new(graph, roles, device, host > Bytes::ZERO)?;
        let request = Request { host_budget: host.get(), ..Request::within(0) };
        let planner = Planner::new(&lowered.problem, &request).map_err(|error| match error {
            ProblemError::TooLarge => Error::TooLarge,
            error => broken(error),
        })?;
        let resident = |t: &&plimsoll_plan::Tensor| t.home == plimsoll_plan::Home::Resident;
        let tensors = lowered.problem.tensors.iter().filter(resident);
        let residents = tensors.map(plimsoll_plan::Tensor::padded_bytes).sum();
        Ok(Draft { lowered, planner, residents })
    }

    /// Times kernels that have not been timed, where the device says so and their operands fit into `room`.
    pub(crate) fn time(&mut self, device: &Device, room: Option<Bytes>) -> Result<()> {
        device.costs().time(&self.lowered.graph, device, room)?;
        let carries = self.lowered.problem.ops.iter().any(|op| op.carry.is_some());
        if carries || self.lowered.problem.link.is_some() {
            device.costs().time_link(device, room.unwrap_or(Bytes(u64::MAX)))?;
        }
        if self.lowered.time(device) {
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
    pub(crate) fn plan(&mut self, bytes: u64) -> Result<Result<Plan, Box<Infeasible>>> {
        match self.planner.plan(bytes.saturating_add(self.residents)) {
            Ok(plan) => Ok(Ok(plan)),
            Err(PlanError::Infeasible(refusal)) => Ok(Err(refusal)),
            Err(e) => Err(broken(e)),
        }
    }

    /// The fastest plan within so many bytes, if it takes less than so many nanoseconds.
    pub(crate) fn plan_faster(&mut self, bytes: u64, than: u64) -> Result<Option<Plan>> {
        self.planner.plan_faster(bytes.saturating_add(self.residents), than).map_err(broken)
    }

    /// The bytes of a plan of this draft.
    pub(crate) fn bytes_of(&self, plan: &Plan) -> u64 {
        plan.figures.arena_bytes.saturating_sub(self.residents)
    }

    /// The most bytes of the arena that a plan of this draft needs at once.
    pub(crate) fn live_of(&self, plan: &Plan) -> u64 {
        plan.figures.live_bytes.saturating_sub(self.residents)
    }

    /// How many copies to the host and back a plan of this draft has, and the bytes that go to the host.
    pub(crate) fn copies_of(&self, plan: &Plan) -> (u64, u64) {
        let (mut copies, mut bytes) = (0, 0);
        for step in &plan.steps {
            match step {
                plimsoll_plan::Step::Offload { tensor, .. } => {
                    copies += 1;
                    bytes += self.lowered.problem.tensors[tensor.index()].bytes;
                }
                plimsoll_plan::Step::Prefetch { .. } => copies += 1,
                plimsoll_plan::Step::Run { op, .. } => {
                    let op = &self.lowered.problem.ops[op.index()];
                    copies += u64::from(op.carry.is_some());
                    if let (Some(plimsoll_plan::Carry::Out), Some(stored)) = (op.carry, op.reads.first()) {
                        bytes += self.lowered.problem.tensors[stored.index()].bytes;
                    }
                }
                plimsoll_plan::Step::Await { .. } => {}
            }
        }
        (copies, bytes)
    }

    /// What the arena would take if a plan of this draft computed nothing again.
    pub(crate) fn unlimited_of(&self, plan: &Plan) -> u64 {
        plan.figures.unlimited_bytes.saturating_sub(self.residents)
    }

    /// What the arena would take if every value had bytes of its own, and scratch the most that an op needs.
    pub(crate) fn unshared(&self) -> u64 {
        let problem = &self.lowered.problem;
        let transient = |t: &&plimsoll_plan::Tensor| t.home == plimsoll_plan::Home::Transient;
        let tensors = problem.tensors.iter().filter(transient).map(plimsoll_plan::Tensor::padded_bytes);
        let scratch = problem.ops.iter().map(|op| op.scratch);
        tensors.sum::<u64>() + scratch.max().unwrap_or(0)
    }

    /// What the arena holds where a plan of this draft holds most.
    pub(crate) fn peak(&self, plan: &Plan) -> Option<Peak> {
        let fullest = fullest(&self.lowered.problem, plan)?;
        let node = self.lowered.node(fullest.op);
        Some(Peak {
            op: self.lowered.problem.ops[fullest.op].name.clone(),
            site: node.and_then(|node| node.site.known()),
            backward: node.is_some_and(|node| node.phase == Phase::Backward),
            step: fullest.step,
            steps: plan.steps.len(),
            kinds: fullest.kinds.into_iter().map(|(kind, bytes)| (kind, Bytes(bytes))).collect(),
            unused: Bytes::ZERO,
            largest: fullest.largest,
        })
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
        Program::new(self.lowered, plan, device)
    }
}

fn broken(why: impl std::fmt::Display) -> Error {
    Error::Internal(format!("planning failed: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_graph::example::Dice;
    use plimsoll_graph::passes::sample::random_graph;
    use plimsoll_graph::reference::interpret;
    use plimsoll_graph::{DType, Site};

    use crate::Tensor;
    use crate::tensor::Buffer;

    /// Plans a graph within so many bytes and runs it.
    fn run(graph: &Graph, arguments: &[Tensor], bytes: u64, device: &Device) -> (Vec<Tensor>, u64) {
        let mut draft = Draft::new(graph.clone(), &Roles::default(), device, None).unwrap();
        let plan = draft.plan(bytes).unwrap().unwrap();
        let fullest = fullest(&draft.lowered.problem, &plan);
        assert_eq!(fullest.map_or(0, |f| f.live), draft.live_of(&plan), "the peak is where most is live");
        let replays = plan.figures.recomputed_ops;
        let program = draft.program(plan, device).unwrap();
        assert!(program.arena_bytes() as u64 <= bytes.max(1));
        let site = Site::here();
        let new = |bytes| Buffer::new(device, bytes, "test", site).unwrap();
        let arena = new(program.arena_bytes());
        let results: Vec<Tensor> =
            program.result_types().map(|ty| Tensor::eager(ty.clone(), Arc::new(new(ty.bytes())))).collect();
        let pointers =
            |tensors: &[Tensor]| tensors.iter().map(|t| t.buffer(site).unwrap().ptr()).collect::<Vec<_>>();
        let room = crate::program::Room { arena: arena.ptr(), host: None };
        // SAFETY: arguments are only read, results and arena are fresh and of the sizes the program says.
        unsafe { program.run(device, &pointers(arguments), &pointers(&results), room) }.unwrap();
        (results, replays)
    }

    #[test]
    fn random_graphs_under_random_budgets_mean_what_the_reference_says() {
        let device = Device::cpu_with(2, Bytes::mib(64)).unwrap();
        let mut dice = Dice::new(11);
        let mut replayed = 0;
        for seed in 0..150 {
            let (graph, values) = random_graph(seed, DType::F64).unwrap();
            let expected = interpret(&graph, &values);
            let graph = plimsoll_graph::passes::optimize(&graph).unwrap();
            let arguments: Vec<Tensor> = device.scope(|| {
                let types = graph.inputs().iter().map(|&v| graph.ty(v).clone());
                values.iter().zip(types).map(|(a, ty)| Tensor::from_f64(&a.data, ty).unwrap()).collect()
            });
            let mut draft = Draft::new(graph.clone(), &Roles::default(), &device, None).unwrap();
            let (floor, most) = (draft.floor(), draft.unlimited());
            assert!(
                floor == 0 || draft.plan(floor - 1).unwrap().is_err(),
                "graph {seed} fits below its floor"
            );
            let mut bits: Option<Vec<Vec<u8>>> = None;
            for bytes in [floor, most, dice.range(floor as usize, most as usize + 1) as u64] {
                let (results, replays) = run(&graph, &arguments, bytes, &device);
                replayed += replays;
                for (found, expected) in results.iter().zip(&expected) {
                    for (a, b) in found.to_f64().unwrap().iter().zip(&expected.data) {
                        let close =
                            (a - b).abs() <= 1e-6 * (1.0 + b.abs()) || (a.is_nan() && b.is_nan()) || a == b;
                        assert!(close, "graph {seed} in {bytes} bytes: {a} and {b}");
                    }
                }
                let found: Vec<Vec<u8>> = results.iter().map(|t| t.to_bytes().unwrap()).collect();
                assert_eq!(
                    bits.get_or_insert_with(|| found.clone()),
                    &found,
                    "graph {seed} in {bytes} bytes"
                );
            }
        }
        assert!(replayed > 100, "only {replayed} ops were run again");
    }
}
