//! A graph as a flat list of kernel calls at fixed offsets of one arena, made by the planner, and how it runs.
//!
//! After a program is made, running it allocates nothing.

mod instructions;
mod meanwhile;
mod memory;
#[cfg(test)]
mod random_graphs;
mod recorded;
mod step_program;

pub(crate) use meanwhile::Meanwhile;
pub(crate) use memory::ProgramMemory;
pub(crate) use recorded::Recorded;
pub(crate) use step_program::{Part, StepProgram};

use std::sync::Arc;

use plimsoll_device::backend::{Call, Fault, Operand};
use plimsoll_graph::{DType, Graph, Node, NodeId, Site, Type, ValueId};
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
}

impl Program {
    /// The program of a plan.
    pub(crate) fn new(planned: &PlannedGraph) -> Result<Program> {
        let graph = planned.lowered().graph.clone();
        let Instructions { all: instructions, arena_bytes, spans } =
            Instructions::new(planned.lowered(), planned.plan())?;
        let host_bytes = planned.figures().host_bytes as usize;
        let slot = |i: &Instruction| match i {
            Instruction::Offload { slot, .. } | Instruction::Prefetch { slot, .. } => slot + 1,
            Instruction::Fetch { slot, .. } | Instruction::Store { slot, .. } => slot + 1,
            _ => 0,
        };
        let slots = instructions.iter().map(slot).max().unwrap_or(0);
        Ok(Program { graph, instructions, spans, arena_bytes: arena_bytes.max(1), host_bytes, slots })
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

    /// The types of its results.
    pub(crate) fn result_types(&self) -> impl Iterator<Item = &Type> {
        self.graph.outputs().iter().map(|&v| self.graph.ty(v))
    }

    /// Runs it.
    ///
    /// # Safety
    /// Pointers must be live memory of `device`, aligned and as large as the types say; those of arguments that results
    /// replace are written. The arena has [`Program::arena_bytes`] bytes, and the host's is fit for
    /// [`Program::host_room`]. Nothing else may use any of it meanwhile.
    pub(crate) unsafe fn run(&self, device: &Device, memory: ProgramMemory<'_>) -> Result<()> {
        // SAFETY: the caller's promise.
        let done = unsafe { self.run_some(&self.instructions, device, memory) };
        self.settled(done, memory)
    }

    /// Ends the copies of a run that failed, so that none reaches into the next.
    fn settled<T>(&self, done: Result<T>, memory: ProgramMemory<'_>) -> Result<T> {
        if let (Err(_), Some(host)) = (&done, memory.host) {
            // What went wrong first is what is told.
            host.settle().ok();
        }
        done
    }

    /// # Safety
    /// As for [`Program::run`].
    unsafe fn run_some(
        &self,
        instructions: &[Instruction],
        device: &Device,
        memory: ProgramMemory<'_>,
    ) -> Result<()> {
        // SAFETY: the memory is this program's.
        let at = |place: Place| unsafe { memory.at(place) };
        let host =
            || memory.host.ok_or_else(|| Error::Internal("a program has no host memory to copy to".into()));
        for instruction in instructions {
            let (id, inputs, outputs, scratch, scratch_bytes) = match instruction {
                Instruction::Run { node, inputs, outputs, scratch, scratch_bytes } => {
                    (node, inputs, outputs, scratch, *scratch_bytes)
                }
                Instruction::Check { at: place, dtype, node } => {
                    let site = self.graph.node(*node).site;
                    // SAFETY: the place holds at least one element of this type, which was just written.
                    unsafe { check(device, at(*place), *dtype, site) }?;
                    continue;
                }
                Instruction::Copy { from, to, bytes } => {
                    // SAFETY: both ends hold this many bytes.
                    unsafe { device.backend().copy(at(*to), at(*from), *bytes) }
                        .map_err(|fault| self.fault(fault))?;
                    continue;
                }
                Instruction::Offload { from, to, bytes, slot, .. } => {
                    // SAFETY: a verified plan leaves both ends alone until it waits for the copy.
                    unsafe { host()?.offload(at(*from), *to, *bytes, *slot) }
                        .map_err(|fault| self.fault(fault))?;
                    continue;
                }
                Instruction::Prefetch { from, to, bytes, slot, .. } => {
                    // SAFETY: as above.
                    unsafe { host()?.prefetch(*from, at(*to), *bytes, *slot) }
                        .map_err(|fault| self.fault(fault))?;
                    continue;
                }
                Instruction::Fetch { argument, to, bytes, slot } => {
                    // SAFETY: as above, and an argument on the host has bytes of its own there.
                    unsafe { host()?.fetch(memory.arguments[*argument], at(*to), *bytes, *slot) }
                        .map_err(|fault| self.fault(fault))?;
                    continue;
                }
                Instruction::Store { argument, from, bytes, slot } => {
                    // SAFETY: as above.
                    unsafe { host()?.store(at(*from), memory.arguments[*argument], *bytes, *slot) }
                        .map_err(|fault| self.fault(fault))?;
                    continue;
                }
                Instruction::Await { slot } => {
                    host()?.wait(*slot).map_err(|fault| self.fault(fault))?;
                    continue;
                }
            };
            let node = self.graph.node(*id);
            let operand = |(v, place): (&ValueId, &Place)| Operand { ty: self.graph.ty(*v), ptr: at(*place) };
            let inputs: SmallVec<[Operand<'_>; 24]> = node.inputs.iter().zip(inputs).map(operand).collect();
            let outputs: SmallVec<[Operand<'_>; 8]> = node.outputs.iter().zip(outputs).map(operand).collect();
            let call = Call {
                op: &node.op,
                inputs: &inputs,
                outputs: &outputs,
                scratch: at(*scratch),
                scratch_bytes,
            };
            // SAFETY: the caller's promise, and operands that live at once are disjoint in a verified plan.
            unsafe { device.backend().run(&call) }
                .map_err(|fault| Error::Fault { fault, site: node.site })?;
        }
        Ok(())
    }

    /// An error that belongs to no op.
    fn fault(&self, fault: Fault) -> Error {
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
    // SAFETY: the caller's promise.
    unsafe { device.backend().download(at, bytes) }.map_err(|fault| Error::Fault { fault, site })?;
    let value = element(dtype, bytes);
    if value.is_finite() { Ok(()) } else { Err(Error::NotFinite { value, site }) }
}
