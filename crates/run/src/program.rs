//! A graph as a flat list of kernel calls at fixed offsets of one arena, made by the planner, and how it runs.
//!
//! After a program is made, running it allocates nothing.

use plimsoll_device::Bytes;
use plimsoll_device::backend::{Call, Operand};
use plimsoll_graph::{Graph, NodeId, Site, Type, ValueId};
use plimsoll_plan::{Figures, PlanError, Planner, Request};
use smallvec::SmallVec;

use crate::device::Device;
use crate::error::{Error, Result};
use crate::lower::Lowered;

/// Where bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// The bytes of an argument.
    Argument(usize),
    /// The bytes of a result.
    Result(usize),
    /// An offset of the arena.
    Arena(usize),
}

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
}

/// How much memory a program may use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Line {
    /// What the fastest plan takes.
    Fastest,
    /// The least that is predicted to cost at most this factor of the fastest plan's time.
    Lean(f64),
    /// At most `line` bytes, of which `elsewhere` are taken by other things than the arena.
    Within { line: Bytes, elsewhere: Bytes },
}

/// A compiled graph.
#[derive(Debug)]
pub(crate) struct Program {
    graph: Graph,
    instructions: Vec<Instruction>,
    arena_bytes: usize,
    figures: Figures,
}

impl Program {
    /// Compiles a graph for a device. `replaces[r] = Some(a)` says that result `r` is the new value of argument `a` and
    /// is written there.
    pub(crate) fn new(
        graph: Graph,
        device: &Device,
        replaces: &[Option<usize>],
        line: Line,
    ) -> Result<Program> {
        let lowered = Lowered::new(&graph, replaces, device)?;
        let residents: u64 = lowered
            .problem
            .tensors
            .iter()
            .filter(|t| t.home == plimsoll_plan::Home::Resident)
            .map(plimsoll_plan::Tensor::padded_bytes)
            .sum();
        let request = Request::within(0);
        let broken = |e: &dyn std::fmt::Display| Error::Internal(format!("planning failed: {e}"));
        let mut planner = Planner::new(&lowered.problem, &request).map_err(|e| broken(&e))?;
        let unlimited = planner.unlimited_bytes();
        let mut plan_within = |budget: u64| match planner.plan(budget) {
            Ok(plan) => Ok(plan),
            Err(PlanError::Infeasible(refusal)) => {
                let (asked, elsewhere) = match line {
                    Line::Within { line, elsewhere } => (line, elsewhere),
                    _ => (Bytes(budget), Bytes(residents)),
                };
                let least = elsewhere + Bytes(refusal.floor_bytes.saturating_sub(residents));
                Err(Error::Infeasible { asked, least, elsewhere, refusal })
            }
            Err(e) => Err(broken(&e)),
        };
        let plan = match line {
            Line::Fastest => plan_within(unlimited)?,
            Line::Within { line, elsewhere } => {
                plan_within((residents + line.saturating_sub(elsewhere).get()).min(unlimited))?
            }
            Line::Lean(factor) => {
                let mut best = plan_within(unlimited)?;
                let allowed = best.figures.predicted_ns as f64 * factor;
                // Halving the step, from an eighth of the transient bytes down to a sixty-fourth.
                let mut step = (unlimited - residents.min(unlimited)) / 8;
                let least_step = step / 8;
                while step > least_step && step > 0 {
                    match plan_within(best.figures.arena_bytes.saturating_sub(step)) {
                        Ok(plan) if plan.figures.predicted_ns as f64 <= allowed => best = plan,
                        Ok(_) | Err(Error::Infeasible { .. }) => step /= 2,
                        Err(e) => return Err(e),
                    }
                }
                best
            }
        };
        let mut figures = plan.figures.clone();
        figures.floor_bytes = figures.floor_bytes.saturating_sub(residents);
        figures.unlimited_bytes = figures.unlimited_bytes.saturating_sub(residents);
        figures.live_bytes = figures.live_bytes.saturating_sub(residents);
        let (instructions, arena_bytes) = lowered.instructions(&plan)?;
        graph.nodes().iter().for_each(|node| device.placed(node.op.name(), node.site));
        Ok(Program { graph, instructions, arena_bytes: arena_bytes.max(1), figures })
    }

    /// The bytes of the arena it runs in.
    pub(crate) fn arena_bytes(&self) -> usize {
        self.arena_bytes
    }

    /// What the plan promises; floor, live and unlimited bytes are those of the arena.
    pub(crate) fn figures(&self) -> &Figures {
        &self.figures
    }

    /// The types of its results.
    pub(crate) fn result_types(&self) -> impl Iterator<Item = &Type> {
        self.graph.outputs().iter().map(|&v| self.graph.ty(v))
    }

    /// The types of its arguments.
    pub(crate) fn argument_types(&self) -> impl Iterator<Item = &Type> {
        self.graph.inputs().iter().map(|&v| self.graph.ty(v))
    }

    /// Runs it.
    ///
    /// # Safety
    /// Pointers must be live memory of `device`, aligned and as large as the types say; those of arguments that results
    /// replace are written. The arena has [`Program::arena_bytes`] bytes. Nothing else may use any of it meanwhile.
    pub(crate) unsafe fn run(
        &self,
        device: &Device,
        arguments: &[*mut u8],
        results: &[*mut u8],
        arena: *mut u8,
    ) -> Result<()> {
        let at = |place: Place| match place {
            Place::Argument(i) => arguments[i],
            Place::Result(i) => results[i],
            // SAFETY: a verified plan's offsets lie inside the arena.
            Place::Arena(offset) => unsafe { arena.add(offset) },
        };
        for instruction in &self.instructions {
            let (id, inputs, outputs, scratch, scratch_bytes) = match instruction {
                Instruction::Run { node, inputs, outputs, scratch, scratch_bytes } => {
                    (node, inputs, outputs, scratch, *scratch_bytes)
                }
                Instruction::Copy { from, to, bytes } => {
                    // SAFETY: both ends hold this many bytes.
                    unsafe { at(*from).copy_to(at(*to), *bytes) };
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

    /// The user's line of the first op, for errors that belong to the program as a whole.
    pub(crate) fn site(&self) -> Option<Site> {
        self.graph.nodes().first().map(|node| node.site)
    }
}
