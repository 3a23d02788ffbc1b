//! Turns a graph into a flat list of kernel calls at fixed offsets of one arena, and runs it.
//!
//! Values that are views of one another, or written over one another, share a slot. A slot is an argument's bytes, a
//! result's bytes, or a range of the arena. After a program is made, running it allocates nothing.

use plimsoll_device::backend::{Call, Operand};
use plimsoll_graph::{Graph, NodeId, Op, Site, Type, ValueId};
use smallvec::SmallVec;

use crate::device::Device;
use crate::error::{Error, Result};
use crate::layout::{Span, assign};
use crate::order::early_updates;

/// Where a slot's bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// The bytes of an argument.
    Argument(usize),
    /// The bytes of a result.
    Result(usize),
    /// An offset of the arena.
    Arena(usize),
}

/// One kernel call.
#[derive(Debug)]
struct Instruction {
    node: NodeId,
    inputs: SmallVec<[Place; 4]>,
    outputs: SmallVec<[Place; 2]>,
    scratch: Place,
    scratch_bytes: usize,
}

/// Bytes moved after the last kernel: results that no kernel could write where they belong.
#[derive(Clone, Copy, Debug)]
struct Move {
    from: Place,
    to: Place,
    bytes: usize,
}

/// A compiled graph.
#[derive(Debug)]
pub(crate) struct Program {
    graph: Graph,
    instructions: Vec<Instruction>,
    moves: Vec<Move>,
    arena_bytes: usize,
}

/// A set of values that share bytes.
struct Slot {
    bytes: usize,
    start: usize,
    end: usize,
    place: Option<Place>,
}

impl Program {
    /// Compiles a graph for a device. `replaces[r] = Some(a)` says that result `r` is written into argument `a`.
    pub(crate) fn new(graph: Graph, device: &Device, replaces: &[Option<usize>]) -> Result<Program> {
        Builder::new(&graph, replaces).build(device).map(|(instructions, moves, arena_bytes)| Program {
            graph,
            instructions,
            moves,
            arena_bytes,
        })
    }

    /// The bytes of the arena it runs in.
    pub(crate) fn arena_bytes(&self) -> usize {
        self.arena_bytes
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
    /// replace are written; results that replace an argument are given that argument's pointer. The arena has
    /// [`Program::arena_bytes`] bytes. Nothing else may use any of it meanwhile.
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
            // SAFETY: offsets lie inside the arena by construction.
            Place::Arena(offset) => unsafe { arena.add(offset) },
        };
        for instruction in &self.instructions {
            let node = self.graph.node(instruction.node);
            let operand = |(v, place): (&ValueId, &Place)| Operand { ty: self.graph.ty(*v), ptr: at(*place) };
            let inputs: SmallVec<[Operand<'_>; 24]> =
                node.inputs.iter().zip(&instruction.inputs).map(operand).collect();
            let outputs: SmallVec<[Operand<'_>; 8]> =
                node.outputs.iter().zip(&instruction.outputs).map(operand).collect();
            let call = Call {
                op: &node.op,
                inputs: &inputs,
                outputs: &outputs,
                scratch: at(instruction.scratch),
                scratch_bytes: instruction.scratch_bytes,
            };
            // SAFETY: the caller's promise, and slots that live at once are disjoint by construction.
            unsafe { device.backend().run(&call) }
                .map_err(|fault| Error::Fault { fault, site: node.site })?;
        }
        for m in &self.moves {
            // SAFETY: both ends hold this many bytes; a move between the same bytes is legal with `copy`.
            unsafe { at(m.from).copy_to(at(m.to), m.bytes) };
        }
        Ok(())
    }

    /// The user's line of the first op, for errors that belong to the program as a whole.
    pub(crate) fn site(&self) -> Option<Site> {
        self.graph.nodes().first().map(|node| node.site)
    }
}

struct Builder<'a> {
    graph: &'a Graph,
    order: Vec<NodeId>,
    /// For each value the last step that reads it; the number of steps for results.
    last_use: Vec<usize>,
    /// For each value, the argument that it replaces as a result.
    replaces: Vec<Option<usize>>,
    slots: Vec<Slot>,
    slot_of: Vec<Option<usize>>,
}

impl<'a> Builder<'a> {
    fn new(graph: &'a Graph, replaces: &[Option<usize>]) -> Builder<'a> {
        let overwritten: Vec<ValueId> = replaces.iter().flatten().map(|&a| graph.inputs()[a]).collect();
        let order = early_updates(graph, &overwritten);
        let mut last_use = vec![0; graph.values().len()];
        for (step, &node) in order.iter().enumerate() {
            graph.node(node).inputs.iter().for_each(|v| last_use[v.index()] = step);
        }
        let mut target = vec![None; graph.values().len()];
        for (r, &v) in graph.outputs().iter().enumerate() {
            last_use[v.index()] = order.len();
            target[v.index()] = target[v.index()].or(replaces.get(r).copied().flatten());
        }
        let mut builder = Builder {
            graph,
            order,
            last_use,
            replaces: target,
            slots: Vec::new(),
            slot_of: vec![None; graph.values().len()],
        };
        for (a, &v) in graph.inputs().iter().enumerate() {
            builder.new_slot(v, 0, Some(Place::Argument(a)));
        }
        builder
    }

    fn new_slot(&mut self, v: ValueId, start: usize, place: Option<Place>) {
        // A value that nothing reads lives through the step that writes it all the same.
        let (bytes, end) = (self.graph.ty(v).bytes(), self.last_use[v.index()].max(start));
        self.slot_of[v.index()] = Some(self.slots.len());
        self.slots.push(Slot { bytes, start, end, place });
    }

    fn join(&mut self, v: ValueId, slot: usize) {
        self.slot_of[v.index()] = Some(slot);
        self.slots[slot].end = self.slots[slot].end.max(self.last_use[v.index()]);
    }

    fn slot(&self, v: ValueId) -> Result<usize> {
        self.slot_of[v.index()]
            .ok_or_else(|| Error::Internal(format!("value %{} is read before it is made", v.0)))
    }

    fn build(mut self, device: &Device) -> Result<(Vec<Instruction>, Vec<Move>, usize)> {
        let order = self.order.clone();
        let mut scratch: Vec<(usize, usize)> = Vec::new();
        for (step, &id) in order.iter().enumerate() {
            let node = self.graph.node(id);
            if node.op.is_view() {
                let slot = self.slot(node.inputs[0])?;
                self.join(node.outputs[0], slot);
                continue;
            }
            for o in 0..node.outputs.len() {
                match self.in_place(step, id, o)? {
                    Some(slot) => self.join(node.outputs[o], slot),
                    None => self.new_slot(node.outputs[o], step, None),
                }
            }
            let types =
                |ids: &[ValueId]| -> SmallVec<[&Type; 4]> { ids.iter().map(|&v| self.graph.ty(v)).collect() };
            let bytes = device.backend().scratch(&node.op, &types(&node.inputs), &types(&node.outputs))?;
            if bytes > 0 {
                scratch.push((step, bytes));
            }
        }
        let moves = self.place_results()?;
        let spans: Vec<Span> = self
            .slots
            .iter()
            .filter(|slot| slot.place.is_none())
            .map(|slot| Span { start: slot.start, end: slot.end + 1, bytes: slot.bytes })
            .chain(scratch.iter().map(|&(step, bytes)| Span { start: step, end: step + 1, bytes }))
            .collect();
        let (offsets, arena_bytes) = assign(&spans)?;
        let mut offset = offsets.into_iter();
        for slot in self.slots.iter_mut().filter(|slot| slot.place.is_none()) {
            slot.place = offset.next().map(Place::Arena);
        }
        let mut scratch = scratch.into_iter().zip(offset).peekable();
        let mut instructions = Vec::with_capacity(order.len());
        for (step, &id) in order.iter().enumerate() {
            let node = self.graph.node(id);
            if node.op.is_view() {
                continue;
            }
            let (scratch, scratch_bytes) = match scratch.next_if(|((at, _), _)| *at == step) {
                Some(((_, bytes), offset)) => (Place::Arena(offset), bytes),
                None => (Place::Arena(0), 0),
            };
            instructions.push(Instruction {
                node: id,
                inputs: self.places(&node.inputs)?,
                outputs: self.places(&node.outputs)?,
                scratch,
                scratch_bytes,
            });
        }
        let moves = moves.into_iter().map(|(from, to, bytes)| {
            let to = match to {
                Destination::Place(place) => place,
                Destination::Slot(slot) => self.place(slot)?,
            };
            Ok(Move { from: self.place(from)?, to, bytes })
        });
        Ok((instructions, moves.collect::<Result<_>>()?, arena_bytes.max(1)))
    }

    fn place(&self, slot: usize) -> Result<Place> {
        self.slots[slot].place.ok_or_else(|| Error::Internal("a slot was given no place".into()))
    }

    fn places<A: smallvec::Array<Item = Place>>(&self, ids: &[ValueId]) -> Result<SmallVec<A>> {
        ids.iter().map(|&v| self.place(self.slot(v)?)).collect()
    }

    /// The slot of an input that output `o` of a node may be written over, if any.
    fn in_place(&self, step: usize, id: NodeId, o: usize) -> Result<Option<usize>> {
        let node = self.graph.node(id);
        let output = node.outputs[o];
        let target = self.replaces[output.index()].map(Place::Argument);
        let mut best = None;
        for (_, i) in node.op.in_place().into_iter().filter(|&(out, _)| out == o) {
            let input = node.inputs[i];
            let slot = self.slot(input)?;
            let dies = self.slots[slot].end == step && self.last_use[input.index()] == step;
            let alone = node.inputs.iter().enumerate().all(|(j, &v)| {
                j == i || self.slot_of[v.index()] != Some(slot) || (v == input && elementwise(&node.op))
            });
            let untaken = node.outputs[..o].iter().all(|v| self.slot_of[v.index()] != Some(slot));
            if !(dies && alone && untaken && self.graph.ty(input) == self.graph.ty(output)) {
                continue;
            }
            match self.slots[slot].place {
                // An argument is written over only by the result that replaces it.
                Some(place) if Some(place) == target => return Ok(Some(slot)),
                Some(_) => {}
                None if target.is_none() => best = best.or(Some(slot)),
                None => {}
            }
        }
        Ok(best)
    }

    /// Gives every result its place, and says what must be moved there at the end: (slot, place, bytes), in order.
    fn place_results(&mut self) -> Result<Vec<(usize, Destination, usize)>> {
        // Old values that leave as results go first, while arguments still hold them; then arguments are replaced.
        let (mut leave, mut replace) = (Vec::new(), Vec::new());
        for (r, &v) in self.graph.outputs().iter().enumerate() {
            let slot = self.slot(v)?;
            let bytes = self.graph.ty(v).bytes();
            let first = self.graph.outputs()[..r].iter().all(|&other| other != v);
            let to = match self.replaces[v.index()] {
                Some(a) if first => Place::Argument(a),
                _ => Place::Result(r),
            };
            match (self.slots[slot].place, to) {
                (Some(place), _) if place == to => {}
                // A fresh slot is the result itself: its maker writes where the result belongs.
                (None, Place::Result(_)) => self.slots[slot].place = Some(to),
                (_, Place::Result(_)) => leave.push((slot, Destination::Place(to), bytes)),
                (Some(Place::Argument(_)), _) => {
                    // One argument's old value becomes another's new one: put aside before either is written.
                    let (n, aside) = (self.order.len(), self.slots.len());
                    self.slots.push(Slot { bytes, start: n, end: n, place: None });
                    leave.push((slot, Destination::Slot(aside), bytes));
                    replace.push((aside, Destination::Place(to), bytes));
                }
                _ => replace.push((slot, Destination::Place(to), bytes)),
            }
        }
        leave.append(&mut replace);
        Ok(leave)
    }
}

/// Where a move goes: a known place, or a slot that is given one later.
enum Destination {
    Place(Place),
    Slot(usize),
}

/// Whether an op reads element i of each input for element i of its outputs only.
fn elementwise(op: &Op) -> bool {
    matches!(op, Op::Unary(_) | Op::Binary(_) | Op::Select(_) | Op::ReluGrad(_) | Op::Fused(_))
}
