//! Turns a plan into instructions: where the planner's offsets meet the graph's nodes.

use plimsoll_graph::{DType, ValueId};
use plimsoll_plan as plan;
use plimsoll_plan::{Plan, TensorId};

use super::Instruction;
use crate::error::{Error, Result};
use crate::lower::{Location, Lowered, Move, Place, Source, Span};

/// The instructions of a plan, and the arena that they run in.
pub(super) struct Instructions {
    pub(super) all: Vec<Instruction>,
    /// Bytes of the arena. Residents are not in it: they have their own.
    pub(super) arena_bytes: usize,
    /// Who holds which bytes of the arena, from when to when.
    pub(super) spans: Vec<Span>,
}

impl Instructions {
    /// The instructions of a plan.
    pub(super) fn new(lowered: &Lowered, plan: &Plan) -> Result<Instructions> {
        let resident = |p: &plan::Placed| p.offset + lowered.problem.tensors[p.tensor.index()].padded_bytes();
        let base = plan.residents.iter().map(resident).max().unwrap_or(0);
        let copy = |&Move { from, to, bytes }: &Move| Instruction::Copy { from, to, bytes };
        let mut instructions: Vec<Instruction> = lowered.first.iter().map(copy).collect();
        let mut copies = UnderWay::default();
        let bytes = |tensor: &TensorId| lowered.problem.tensors[tensor.index()].bytes as usize;
        let in_arena = |offset: u64| offset.checked_sub(base).map(|offset| Place::Arena(offset as usize));
        let resident = || Error::Internal("a plan copies a resident to the host".into());
        let mut starts = Vec::with_capacity(plan.steps.len() + 1);
        for step in &plan.steps {
            starts.push(instructions.len() as u32);
            let (op, reads, writes, scratch, replay) = match step {
                plan::Step::Run { op, reads, writes, scratch, replay, .. } => {
                    (op, reads, writes, scratch, replay)
                }
                plan::Step::Offload { tensor, from, to } => {
                    let (from, to) = (in_arena(*from).ok_or_else(resident)?, *to as usize);
                    let (value, bytes, slot) =
                        (lowered.value(*tensor), bytes(tensor), copies.start(*tensor, true));
                    instructions.push(Instruction::Offload { value, from, to, bytes, slot });
                    continue;
                }
                plan::Step::Prefetch { tensor, from, to } => {
                    let (from, to) = (*from as usize, in_arena(*to).ok_or_else(resident)?);
                    let (value, bytes, slot) =
                        (lowered.value(*tensor), bytes(tensor), copies.start(*tensor, false));
                    instructions.push(Instruction::Prefetch { value, from, to, bytes, slot });
                    continue;
                }
                plan::Step::Await { tensor, offload } => {
                    instructions.extend(copies.end(*tensor, *offload));
                    continue;
                }
            };
            let planned = &lowered.problem.ops[op.index()];
            let place = |location: Location| match location.fixed {
                Some(place) => Ok(place),
                // What has no bytes lies anywhere.
                None if lowered.problem.tensors[location.tensor.index()].bytes == 0 => Ok(Place::Arena(0)),
                None => {
                    let known = planned.reads.iter().zip(reads).chain(planned.writes.iter().zip(writes));
                    let offset =
                        known.into_iter().find(|(t, _)| **t == location.tensor).map(|(_, offset)| *offset);
                    let offset = offset.and_then(|offset| offset.checked_sub(base));
                    offset
                        .map(|o| Place::Arena(o as usize))
                        .ok_or_else(|| Error::Internal("a plan misses an operand".into()))
                }
            };
            instructions.push(match &lowered.sources[op.index()] {
                Source::Copy { from, to, bytes } => {
                    Instruction::Copy { from: place(*from)?, to: place(*to)?, bytes: *bytes }
                }
                Source::Carry { argument, at, bytes, out } => {
                    let (at, slot) = (place(*at)?, copies.start(at.tensor, *out));
                    let (argument, bytes) = (*argument, *bytes);
                    match out {
                        true => Instruction::Store { argument, from: at, bytes, slot },
                        false => Instruction::Fetch { argument, to: at, bytes, slot },
                    }
                }
                Source::Run(id) => {
                    let node = lowered.graph.node(*id);
                    let at = |v: &ValueId| place(lowered.location_at(lowered.roots[v.index()], op.index())?);
                    let scratch_bytes = planned.scratch as usize;
                    let scratch = if scratch_bytes > 0 { scratch.saturating_sub(base) as usize } else { 0 };
                    Instruction::Run {
                        node: *id,
                        inputs: node.inputs.iter().map(at).collect::<Result<_>>()?,
                        outputs: node.outputs.iter().map(at).collect::<Result<_>>()?,
                        scratch: Place::Arena(scratch),
                        scratch_bytes,
                        on_host: lowered.hosts[id.index()],
                    }
                }
            });
            if let (Source::Run(id), Some((maker, guard)), false) =
                (&lowered.sources[op.index()], lowered.guard, *replay)
                && *id == maker
            {
                let value = lowered.graph.node(*id).outputs.iter().find(|v| lowered.roots[v.index()] == **v);
                let dtype = value.map_or(DType::F32, |&v| lowered.graph.ty(v).dtype);
                // A recording ends at a check, and what it starts it must wait for.
                instructions.extend(copies.end_all());
                instructions.push(Instruction::Check { at: place(guard)?, dtype, node: *id });
            }
        }
        starts.push(instructions.len() as u32);
        let spans = lowered.spans(plan, base, &starts);
        instructions.extend(lowered.last.iter().map(copy));
        // They stay for as long as the program does.
        instructions.shrink_to_fit();
        let arena_bytes = plan.figures.arena_bytes.saturating_sub(base) as usize;
        Ok(Instructions { all: instructions, arena_bytes, spans })
    }
}

/// The copies that are under way at some point of a program, by slot: the tensor, and whether it goes to the host.
#[derive(Default)]
struct UnderWay(Vec<Option<(TensorId, bool)>>);

impl UnderWay {
    /// Gives a copy the first slot that is free.
    fn start(&mut self, tensor: TensorId, out: bool) -> usize {
        let free = self.0.iter().position(Option::is_none);
        let slot = free.unwrap_or_else(|| {
            self.0.push(None);
            self.0.len() - 1
        });
        self.0[slot] = Some((tensor, out));
        slot
    }

    /// The wait for a copy; none if it was waited for before the plan asks for that.
    fn end(&mut self, tensor: TensorId, out: bool) -> Option<Instruction> {
        let slot = self.0.iter().position(|copy| *copy == Some((tensor, out)))?;
        self.0[slot] = None;
        Some(Instruction::Await { slot })
    }

    /// The waits for all of them.
    fn end_all(&mut self) -> impl Iterator<Item = Instruction> {
        let waits = |(slot, copy): (usize, &mut Option<_>)| copy.take().map(|_| Instruction::Await { slot });
        self.0.iter_mut().enumerate().filter_map(waits)
    }
}
