//! A graph as a flat list of kernel calls at fixed offsets of one arena, made by the planner, and how it runs.
//!
//! After a program is made, running it allocates nothing. How its instructions are carried out is in `run`, and how a device records
//! them in `recorded`: either is a subject of its own.

mod clock;
mod flights;
mod instructions;
mod meanwhile;
mod memory;
#[cfg(test)]
mod random_graphs;
mod recorded;
mod run;
mod step_program;

pub(crate) use clock::Clock;
pub(crate) use meanwhile::Meanwhile;
pub(crate) use memory::ProgramMemory;
pub(crate) use recorded::Recorded;
pub(crate) use step_program::{Part, StepProgram};

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize};

use plimsoll_device::backend::Fault;
use plimsoll_graph::{DType, Graph, Node, NodeId, Op, Site, Type, ValueId};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::device::Device;
use crate::error::{Error, Result};
use crate::lower::{Place, PlannedGraph, Span};
use crate::tensor::element;
use instructions::Instructions;

/// One thing to do.
#[derive(Debug)]
pub(crate) enum Instruction {
    /// Run a kernel.
    Run {
        node: NodeId,
        inputs: SmallVec<[Place; 4]>,
        outputs: SmallVec<[Place; 2]>,
        scratch: Place,
        scratch_bytes: usize,
        /// On the host, though its operands are on the device.
        on_host: bool,
    },
    /// Move bytes.
    Copy { from: Place, to: Place, bytes: usize },
    /// Go on only if a number is finite.
    Check { at: Place, dtype: DType, node: NodeId },
    /// Start to copy a value to an offset of the host's arena.
    Offload { value: Option<ValueId>, from: Place, to: usize, bytes: usize, slot: usize },
    /// Start to copy it back.
    Prefetch { value: Option<ValueId>, from: usize, to: Place, bytes: usize, slot: usize },
    /// Start to copy an argument that is in the host's memory to the device.
    Fetch { argument: usize, to: Place, bytes: usize, slot: usize },
    /// Start to copy its new value back.
    Store { argument: usize, from: Place, bytes: usize, slot: usize },
    /// Wait for the copy of a slot.
    Await { slot: usize },
    /// Wait for an exchange with other ranks that was started.
    Finish { node: NodeId },
}

/// A compiled graph.
#[derive(Debug)]
pub(crate) struct Program {
    graph: Arc<Graph>,
    instructions: Vec<Instruction>,
    /// Who holds which bytes of the arena, from when to when.
    spans: Vec<Span>,
    arena_bytes: usize,
    host_bytes: usize,
    /// How many copies are under way at once.
    slots: usize,
    /// Bytes that a run copies from the host and to it.
    up: usize,
    down: usize,
    /// Exchanges that go on beside other instructions, each with the number that it was started under.
    flights: FxHashMap<NodeId, AtomicU64>,
    /// How many of them are under way.
    flying: AtomicUsize,
}

impl Program {
    /// The program of a plan.
    pub(crate) fn new(planned: &PlannedGraph) -> Result<Program> {
        let graph = planned.lowered().graph.clone();
        let Instructions { all, arena_bytes, mut spans } =
            Instructions::new(planned.lowered(), planned.plan())?;
        let (instructions, started) = flights::finish_late(all, &mut spans, &graph);
        let flights = started.into_iter().map(|node| (node, AtomicU64::new(0))).collect();
        let host_bytes = planned.figures().host_bytes as usize;
        let slot = |i: &Instruction| match i {
            Instruction::Offload { slot, .. } | Instruction::Prefetch { slot, .. } => slot + 1,
            Instruction::Fetch { slot, .. } | Instruction::Store { slot, .. } => slot + 1,
            _ => 0,
        };
        let slots = instructions.iter().map(slot).max().unwrap_or(0);
        let (mut up, mut down) = (0, 0);
        for instruction in &instructions {
            match instruction {
                Instruction::Offload { bytes, .. } | Instruction::Store { bytes, .. } => down += bytes,
                Instruction::Prefetch { bytes, .. } | Instruction::Fetch { bytes, .. } => up += bytes,
                _ => {}
            }
        }
        let arena_bytes = arena_bytes.max(1);
        let flying = AtomicUsize::new(0);
        Ok(Program { graph, instructions, spans, arena_bytes, host_bytes, slots, up, down, flights, flying })
    }

    /// The bytes of the host's arena that it copies to, and how many copies are under way at once.
    pub(crate) fn host_room(&self) -> (usize, usize) {
        (self.host_bytes, self.slots)
    }

    /// The bytes of the arena it runs in.
    pub(crate) fn arena_bytes(&self) -> usize {
        self.arena_bytes
    }

    /// What it computes.
    pub(crate) fn graph(&self) -> &Graph {
        &self.graph
    }

    /// What it does, in order.
    pub(crate) fn instructions(&self) -> &[Instruction] {
        &self.instructions
    }

    /// Who holds which bytes of its arena, from which instruction to which, in the order in which they are made.
    pub(crate) fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// The nodes whose kernels it runs, as often as it runs them.
    pub(crate) fn nodes_run(&self) -> impl Iterator<Item = &Node> {
        self.instructions.iter().filter_map(|instruction| match instruction {
            Instruction::Run { node, .. } => Some(self.graph.node(*node)),
            _ => None,
        })
    }

    /// What it exchanges with other ranks, in order.
    pub(crate) fn exchanges(&self) -> impl Iterator<Item = String> {
        self.nodes_run().filter_map(|node| match &node.op {
            Op::Exchange(exchange) => {
                let x = self.graph.ty(node.inputs[0]);
                Some(format!("{} of {} {}", node.op, exchange.len(x), x.dtype))
            }
            _ => None,
        })
    }

    /// Bytes that each instruction reads, writes or moves.
    pub(crate) fn instruction_bytes(&self) -> impl Iterator<Item = usize> {
        self.instructions.iter().map(|instruction| match instruction {
            Instruction::Run { node, .. } => {
                let node = self.graph.node(*node);
                node.inputs.iter().chain(&node.outputs).map(|&v| self.graph.ty(v).bytes()).sum()
            }
            Instruction::Check { dtype, .. } => dtype.bytes(),
            Instruction::Copy { bytes, .. }
            | Instruction::Offload { bytes, .. }
            | Instruction::Prefetch { bytes, .. }
            | Instruction::Fetch { bytes, .. }
            | Instruction::Store { bytes, .. } => *bytes,
            Instruction::Await { .. } | Instruction::Finish { .. } => 0,
        })
    }

    /// Counts what a run has copied between the host and the device.
    pub(crate) fn count_traffic(&self, device: &Device) {
        device.count_up(self.up);
        device.count_down(self.down);
    }

    /// Whether some of its ops run on the host of a device with memory of its own, or wait for other ranks.
    pub(crate) fn has_host_ops(&self) -> bool {
        let is_exchange = |node: &NodeId| self.graph.node(*node).op.is_exchange();
        self.instructions.iter().any(|i| match i {
            Instruction::Run { on_host, node, .. } => *on_host || is_exchange(node),
            _ => false,
        })
    }

    /// The types of its results.
    pub(crate) fn result_types(&self) -> impl Iterator<Item = &Type> {
        self.graph.outputs().iter().map(|&v| self.graph.ty(v))
    }

    /// An error that belongs to no op.
    pub(crate) fn fault(&self, fault: Fault) -> Error {
        Error::Fault { fault, site: self.site().unwrap_or(Site::here()) }
    }

    /// The user's line of the first op, for errors that belong to the program as a whole.
    pub(crate) fn site(&self) -> Option<Site> {
        self.graph.nodes().first().map(|node| node.site)
    }
}

/// Waits for a number and refuses one that is not finite.
///
/// # Safety
/// `at` must be live memory of the device that holds an element of this type.
pub(crate) unsafe fn check(device: &Device, at: *mut u8, dtype: DType, site: Site) -> Result<()> {
    let mut bytes = [0; 8];
    let bytes = &mut bytes[..dtype.bytes()];
    device.count_down(bytes.len());
    // SAFETY: the caller's promise.
    unsafe { device.backend().download(at, bytes) }.map_err(|fault| Error::Fault { fault, site })?;
    let value = element(dtype, bytes);
    if value.is_finite() { Ok(()) } else { Err(Error::NotFinite { value, site }) }
}
