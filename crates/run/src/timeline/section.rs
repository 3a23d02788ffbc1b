//! Turns one program of a step into a section of its record: its instructions, and what lies in the arena meanwhile.

use plimsoll_graph::{Graph, NodeId, Type, ValueId};
use plimsoll_record::{Action, Instruction as Line, Interval, Kind, Phase, Section};
use smallvec::SmallVec;

use super::recorder::Recorder;
use super::shape;

use crate::device::Device;
use crate::lower::Place;
use crate::lower::{Extent, Phases, Span};
use crate::program::{Instruction, Part};

/// Adds a program behind the others.
pub(super) fn record_section(to: &mut Recorder, device: &Device, part: &Part, extent: Extent) {
    let first = to.step.instructions.len() as u32;
    let (samples, runs) = (part.samples as u64, part.runs as u64);
    to.step.sections.push(Section { name: extent.name().into(), first, samples, runs });
    let graph = part.program.graph();
    let instructions = part.program.instructions();
    let (phases, ran) = (Phases::new(graph, extent), vec![false; graph.nodes().len()]);
    let mut program = ProgramLines { to, device, graph, phases, ran, copies: Vec::new() };
    for instruction in instructions {
        let line = program.line(instruction);
        program.to.step.instructions.push(line);
    }
    for span in part.program.spans() {
        let made_by = &instructions[span.from as usize];
        let interval = program.interval(span, made_by, first);
        program.to.step.tensors.push(interval);
    }
}

/// The instructions of one program on their way into a record.
struct ProgramLines<'a> {
    to: &'a mut Recorder,
    device: &'a Device,
    graph: &'a Graph,
    phases: Phases,
    /// Which nodes have run by now.
    ran: Vec<bool>,
    /// The copy that each slot carries out: the wait for it is told like the copy.
    copies: Vec<Option<Line>>,
}

impl ProgramLines<'_> {
    fn line(&mut self, instruction: &Instruction) -> Line {
        match instruction {
            Instruction::Run { node, .. } => self.kernel(*node),
            Instruction::Copy { from, to, .. } => {
                let layer = self.argument(*to).or(self.argument(*from));
                self.plain("copy", layer, Action::Copy, Phase::Update)
            }
            Instruction::Check { node, .. } => {
                let (layer, site) = self.origin(*node);
                let (op, what, phase) = ("check".into(), Action::Check, Phase::Forward);
                Line { op, layer, site, us: 0.0, what, phase }
            }
            Instruction::Offload { value, slot, .. } => {
                let phase = value.map_or(Phase::Forward, |v| self.phase_of(v));
                self.copy("offload", *value, Action::Offload, phase, *slot)
            }
            Instruction::Prefetch { value, slot, .. } => {
                self.copy("prefetch", *value, Action::Prefetch, Phase::Backward, *slot)
            }
            Instruction::Fetch { argument, slot, .. } => {
                let state = self.graph.inputs().get(*argument).copied();
                self.copy("prefetch", state, Action::Prefetch, Phase::Update, *slot)
            }
            Instruction::Store { argument, slot, .. } => {
                let state = self.graph.inputs().get(*argument).copied();
                self.copy("offload", state, Action::Offload, Phase::Update, *slot)
            }
            Instruction::Await { slot } => match self.copies.get(*slot).cloned().flatten() {
                Some(copy) => Line { op: "await".into(), what: Action::Await, ..copy },
                None => self.plain("await", None, Action::Await, Phase::Forward),
            },
            Instruction::Finish { node } => {
                let ((layer, site), phase) = (self.origin(*node), self.phases.of(self.graph, *node));
                Line { op: "await".into(), layer, site, us: 0.0, what: Action::Await, phase }
            }
        }
    }

    fn kernel(&mut self, id: NodeId) -> Line {
        let (graph, node) = (self.graph, self.graph.node(id));
        let again = std::mem::replace(&mut self.ran[id.index()], true);
        let types = |ids: &[ValueId]| -> SmallVec<[&Type; 4]> { ids.iter().map(|&v| graph.ty(v)).collect() };
        let (inputs, outputs) = (types(&node.inputs), types(&node.outputs));
        let on_host = self.device.is_on_host(graph, node);
        let kernels =
            self.device.kernels(&node.op, on_host.unwrap_or(false)).unwrap_or(self.device.backend());
        let seconds = self.device.costs().seconds(kernels, &node.op, &inputs, &outputs);
        let us = (seconds * 1e9).round() / 1e3;
        let (layer, site) = self.origin(id);
        let what = if again { Action::Again } else { Action::Run };
        Line { op: node.op.name().into(), layer, site, us, what, phase: self.phases.of(graph, id) }
    }

    /// A copy to or from the host that goes on beside what follows.
    fn copy(
        &mut self,
        op: &'static str,
        of: Option<ValueId>,
        what: Action,
        phase: Phase,
        slot: usize,
    ) -> Line {
        let maker = of.and_then(|v| self.graph.info(v).producer);
        let line = match maker {
            Some((maker, _)) => {
                let (layer, site) = self.origin(maker);
                Line { op: op.into(), layer, site, us: 0.0, what, phase }
            }
            None => self.plain(op, of, what, phase),
        };
        if self.copies.len() <= slot {
            self.copies.resize(slot + 1, None);
        }
        self.copies[slot] = Some(line.clone());
        line
    }

    /// An instruction that no node of the graph stands for, named after a value.
    fn plain(&mut self, op: &'static str, of: Option<ValueId>, what: Action, phase: Phase) -> Line {
        let layer = self.to.name(of.map_or("", |v| self.graph.info(v).name.as_str()));
        Line { op: op.into(), layer, site: None, us: 0.0, what, phase }
    }

    /// What holds bytes of the arena. The instructions of the record before this program's are `first`.
    fn interval(&mut self, span: &Span, made_by: &Instruction, first: u32) -> Interval {
        let graph = self.graph;
        let (layer, site) = match (span.value.and_then(|v| graph.info(v).producer), made_by) {
            (Some((maker, _)), _) => self.origin(maker),
            (None, Instruction::Run { node, .. }) => self.origin(*node),
            (None, Instruction::Copy { from, .. }) => {
                let put_aside = self.argument(*from);
                (self.to.name(put_aside.map_or("", |v| graph.info(v).name.as_str())), None)
            }
            (None, _) => (self.to.name(span.value.map_or("", |v| graph.info(v).name.as_str())), None),
        };
        let (name, shape, dtype) = match span.value {
            Some(v) => (self.to.name(&graph.info(v).name), shape(graph.ty(v)), graph.ty(v).dtype.name()),
            None if span.kind == Kind::Scratch => (self.to.name("scratch"), [span.bytes].into(), "u8"),
            None => (layer, [span.bytes].into(), "u8"),
        };
        let (from, to) = (first + span.from, first + span.to);
        let again = self.to.step.instructions[from as usize].what == Action::Again;
        let Span { kind, bytes, offset, .. } = *span;
        Interval { name, layer, kind, shape, dtype: dtype.into(), bytes, offset, from, to, again, site }
    }

    /// The layer and the source line that a node is of.
    fn origin(&mut self, id: NodeId) -> (u32, Option<u32>) {
        let node = self.graph.node(id);
        (self.to.name(&node.scope), self.to.site(node.site))
    }

    /// The phase in which a value is made.
    fn phase_of(&self, v: ValueId) -> Phase {
        let maker = self.graph.info(v).producer;
        maker.map_or(Phase::Forward, |(maker, _)| self.phases.of(self.graph, maker))
    }

    /// The value that an argument or a result is.
    fn argument(&self, place: Place) -> Option<ValueId> {
        match place {
            Place::Argument(a) => self.graph.inputs().get(a).copied(),
            Place::Result(r) => self.graph.outputs().get(r).copied(),
            Place::Arena(_) => None,
        }
    }
}
