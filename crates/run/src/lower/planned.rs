//! A graph with its verified plan, and what can be said of the two.

use std::sync::Arc;

use plimsoll_device::Bytes;
use plimsoll_graph::{Node, Phase, Type, ValueId};
use plimsoll_plan as plan;
use plimsoll_plan::{Figures, Plan};

use smallvec::SmallVec;

use super::Lowered;
use crate::device::Device;
use crate::peak::{Peak, fullest};

/// A graph and the plan by which it will run. All bytes here are of the arena: state and inputs have their own.
#[derive(Clone)]
pub(crate) struct PlannedGraph {
    pub(super) lowered: Arc<Lowered>,
    pub(super) plan: Plan,
    /// Bytes of what has its own.
    pub(super) residents: u64,
    /// Whether the plan was kept by an earlier process, or earlier by this one.
    pub(super) is_kept: bool,
}

impl PlannedGraph {
    /// What the plan is of.
    pub(crate) fn lowered(&self) -> &Lowered {
        &self.lowered
    }

    /// The order and the offsets.
    pub(crate) fn plan(&self) -> &Plan {
        &self.plan
    }

    /// What the planner says of its plan, residents and all.
    pub(crate) fn figures(&self) -> &Figures {
        &self.plan.figures
    }

    /// Whether the plan was kept, and was not searched for.
    pub(crate) fn is_kept(&self) -> bool {
        self.is_kept
    }

    /// Bytes of its arena.
    pub(crate) fn bytes(&self) -> u64 {
        self.plan.figures.arena_bytes.saturating_sub(self.residents)
    }

    /// The most bytes of the arena that are needed at once.
    pub(crate) fn live(&self) -> u64 {
        self.plan.figures.live_bytes.saturating_sub(self.residents)
    }

    /// Bytes of the host's memory that its ops there take, one at a time.
    pub(crate) fn host_staging(&self, device: &Device) -> u64 {
        let Lowered { graph, hosts, .. } = &*self.lowered;
        let needs = |node: &Node| {
            let types =
                |ids: &[ValueId]| -> SmallVec<[&Type; 4]> { ids.iter().map(|&v| graph.ty(v)).collect() };
            device.host_needs(&node.op, &types(&node.inputs), &types(&node.outputs)).map_or(0, Bytes::get)
        };
        let on_host = graph.nodes().iter().zip(hosts).filter(|(_, on_host)| **on_host);
        on_host.map(|(node, _)| needs(node)).max().unwrap_or(0)
    }

    /// How many copies to the host and back the plan has, and the bytes that go to the host.
    pub(crate) fn copies(&self) -> (u64, u64) {
        let (mut copies, mut bytes) = (0, 0);
        for step in &self.plan.steps {
            match step {
                plan::Step::Offload { tensor, .. } => {
                    copies += 1;
                    bytes += self.lowered.problem.tensors[tensor.index()].bytes;
                }
                plan::Step::Prefetch { .. } => copies += 1,
                plan::Step::Run { op, .. } => {
                    let op = &self.lowered.problem.ops[op.index()];
                    copies += u64::from(op.carry.is_some());
                    if let (Some(plan::Carry::Out), Some(stored)) = (op.carry, op.reads.first()) {
                        bytes += self.lowered.problem.tensors[stored.index()].bytes;
                    }
                }
                plan::Step::Await { .. } => {}
            }
        }
        (copies, bytes)
    }

    /// What the arena would take if the plan computed nothing again.
    pub(crate) fn kept(&self) -> u64 {
        self.plan.figures.unlimited_bytes.saturating_sub(self.residents)
    }

    /// What the arena holds where the plan holds most.
    pub(crate) fn peak(&self) -> Option<Peak> {
        let fullest = fullest(&self.lowered.problem, &self.plan)?;
        let node = self.lowered.node(fullest.op);
        Some(Peak {
            op: self.lowered.problem.ops[fullest.op].name.clone(),
            site: node.and_then(|node| node.site.known()),
            backward: node.is_some_and(|node| node.phase == Phase::Backward),
            step: fullest.step,
            steps: self.plan.steps.len(),
            kinds: fullest.kinds.into_iter().map(|(kind, bytes)| (kind, Bytes(bytes))).collect(),
            unused: Bytes::ZERO,
            largest: fullest.largest,
        })
    }
}
