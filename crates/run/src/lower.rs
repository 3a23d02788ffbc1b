//! Turns a graph into the planner's problem, and a plan into instructions.
//!
//! Arguments become residents, so that the planner knows which version of a parameter each op is promised. An op that
//! can write a new parameter over the old one updates its resident; any other new state is copied there at the end.
//! Results have bytes of their own outside the arena and weigh nothing in the problem.

use std::sync::Arc;

use plimsoll_device::backend::ALIGNMENT;
use plimsoll_graph::{DType, Graph, Node, NodeId, Op, Phase as GraphPhase, Type, ValueId};
use plimsoll_plan as plan;
use plimsoll_plan::{Home, Kind, Phase, Plan, Problem, Tensor, TensorId};
use smallvec::SmallVec;

use crate::costs::Costs;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::order::{changes_after, early_updates};
use crate::program::{Instruction, Place};

/// What a graph's arguments are for, and which results take their place.
#[derive(Default)]
pub(crate) struct Roles<'a> {
    /// `replaces[r] = Some(a)` says that result `r` is the new value of argument `a`.
    pub(crate) replaces: &'a [Option<usize>],
    /// What the first arguments are for; all others are inputs.
    pub(crate) kinds: &'a [Kind],
    /// A result that must be finite, or nothing may be changed: no argument is written before it is known.
    pub(crate) guard: Option<usize>,
    /// Which of the first arguments are in the host's memory: brought before they are wanted, and taken back once changed.
    pub(crate) hosted: &'a [bool],
}

impl Roles<'_> {
    fn is_hosted(&self, argument: usize) -> bool {
        self.hosted.get(argument).copied().unwrap_or(false)
    }
}

/// A graph as the planner's problem, with the way back.
pub(crate) struct Lowered {
    pub(crate) graph: Arc<Graph>,
    /// What the planner sees.
    pub(crate) problem: Problem,
    /// What each op of the problem does.
    sources: Vec<Source>,
    /// For each value, the one whose bytes it uses: itself unless it is a view.
    roots: Vec<ValueId>,
    /// Where the bytes of each root are.
    locations: Vec<Option<Location>>,
    /// The node that makes the guarded result, and where that is.
    guard: Option<(NodeId, Location)>,
    /// Copies before the first op and after the last.
    first: Vec<Instruction>,
    last: Vec<Instruction>,
}

/// Where bytes are, and the tensor that stands for them in the problem.
#[derive(Clone, Copy, Debug)]
struct Location {
    tensor: TensorId,
    /// `None` for what the plan places.
    fixed: Option<Place>,
}

enum Source {
    Run(NodeId),
    Copy {
        from: Location,
        to: Location,
        bytes: usize,
    },
    /// Between an argument that is on the host and what stands for it on the device.
    Carry {
        argument: usize,
        at: Location,
        bytes: usize,
        out: bool,
    },
}

impl Lowered {
    /// Lowers a graph. With `offload`, what it makes may be copied to the host and back, where the device can.
    pub(crate) fn new(
        graph: Arc<Graph>,
        roles: &Roles<'_>,
        device: &Device,
        offload: bool,
    ) -> Result<Lowered> {
        let replaces = roles.replaces;
        let mut problem = Problem::new(1);
        problem.scratch_alignment = ALIGNMENT as u64;
        problem.link = if offload { device.costs().link(device.backend()) } else { None };
        let locations = vec![None; graph.values().len()];
        let (sources, first, last) = (Vec::new(), Vec::new(), Vec::new());
        let roots = roots(&graph);
        let mut lowered =
            Lowered { graph: graph.clone(), problem, sources, roots, locations, guard: None, first, last };
        let overwritten: Vec<ValueId> = replaces.iter().flatten().map(|&a| graph.inputs()[a]).collect();
        // Arguments that are still to be brought from the host.
        let mut away: Vec<(ValueId, usize)> = Vec::new();
        for (a, &v) in graph.inputs().iter().enumerate() {
            let (kind, bytes) = (roles.kinds.get(a).copied().unwrap_or(Kind::Input), graph.ty(v).bytes());
            if roles.is_hosted(a) {
                lowered.locate(v, Home::Transient, kind, bytes, None);
                away.push((v, a));
            } else {
                lowered.locate(v, Home::Resident, kind, bytes, Some(Place::Argument(a)));
            }
        }
        let guarded = roles.guard.map(|r| lowered.roots[graph.outputs()[r].index()]);
        let guard = guarded.and_then(|root| graph.info(root).producer).map(|(maker, _)| maker);
        let mut order = early_updates(&graph, &overwritten);
        if let Some(guard) = guard {
            order = changes_after(&graph, order, guard, replaces);
        }
        lowered.updates_in_place(replaces, &order, guard);
        let mut commits = lowered.results(roles)?;
        let costs = device.costs();
        for (v, a) in lowered.wanted_at_once(roles, &away) {
            lowered.fetch(v, a, device, &costs)?;
            away.retain(|&(other, _)| other != v);
        }
        if let (Some(root), Some(maker)) = (guarded, guard) {
            lowered.guard = Some((maker, lowered.location(root)?));
        }
        let first_backward = graph.nodes().iter().position(|node| node.phase == GraphPhase::Backward);
        for &id in &order {
            let node = graph.node(id);
            if node.op.is_view() {
                continue;
            }
            // Its state comes just before it; the planner sees how much earlier there is room for it.
            let reads = |v: ValueId| node.inputs.iter().any(|i| lowered.roots[i.index()] == v);
            let wanted: Vec<(ValueId, usize)> = away.extract_if(.., |(v, _)| reads(*v)).collect();
            for (v, a) in wanted {
                lowered.fetch(v, a, device, &costs)?;
            }
            let update = first_backward.is_some_and(|b| id.index() > b) && node.phase == GraphPhase::Forward;
            lowered.run(id, node, if update { Phase::Once } else { Phase::Each }, device, &costs)?;
            // New state goes back as soon as it is there.
            let made = |commit: &mut Commit| {
                let is_new = matches!(commit.from, From::Root(root) if node.outputs.contains(&root));
                is_new && matches!(commit.to, To::Hosted(_))
            };
            for commit in commits.extract_if(.., made).collect::<Vec<Commit>>() {
                lowered.commit(commit, device, &costs)?;
            }
        }
        for commit in commits {
            lowered.commit(commit, device, &costs)?;
        }
        Ok(lowered)
    }

    /// Arguments on the host that are results as they were given, so that they are wanted before anything runs.
    fn wanted_at_once(&self, roles: &Roles<'_>, away: &[(ValueId, usize)]) -> Vec<(ValueId, usize)> {
        let leaves = |v: ValueId, a: usize| {
            let outputs = self.graph.outputs().iter().enumerate();
            let same = |(r, w): (usize, &ValueId)| {
                self.roots[w.index()] == v && roles.replaces.get(r).copied().flatten() != Some(a)
            };
            outputs.into_iter().any(same)
        };
        away.iter().copied().filter(|&(v, a)| leaves(v, a)).collect()
    }

    /// Brings an argument from the host.
    fn fetch(&mut self, v: ValueId, argument: usize, device: &Device, costs: &Costs) -> Result<()> {
        let (at, bytes) = (self.location(v)?, self.graph.ty(v).bytes());
        let name = format!("fetch {}", self.graph.info(v).name);
        let op = plan::Op::fetch(name, at.tensor, carry_ns(device, costs, bytes));
        self.problem.op(plan::Op { phase: Phase::Once, ..op });
        self.sources.push(Source::Carry { argument, at, bytes, out: false });
        Ok(())
    }

    /// Puts a value into its place.
    fn commit(&mut self, commit: Commit, device: &Device, costs: &Costs) -> Result<()> {
        let Commit { from, to, bytes } = commit;
        let from = match from {
            From::Aside(location) => location,
            From::Root(root) => self.location(root)?,
        };
        let argument = match to {
            To::Hosted(argument) => argument,
            To::Place(to) => {
                self.copy(from, to, bytes);
                return Ok(());
            }
        };
        let name = format!("store {}", self.graph.info(self.graph.inputs()[argument]).name);
        let mut op = plan::Op::store(name, from.tensor, carry_ns(device, costs, bytes));
        self.wait_for_guard(&mut op);
        self.problem.op(plan::Op { phase: Phase::Once, ..op });
        self.sources.push(Source::Carry { argument, at: from, bytes, out: true });
        Ok(())
    }

    /// Finds the new values of arguments that their makers can write over the old ones: nobody else reads the old value
    /// any more, it is no result, and the op's in-place rule allows it.
    fn updates_in_place(&mut self, replaces: &[Option<usize>], order: &[NodeId], guard: Option<NodeId>) {
        let graph = self.graph.clone();
        let mut step_of = vec![0; graph.nodes().len()];
        order.iter().enumerate().for_each(|(step, id)| step_of[id.index()] = step);
        let mut last_read = vec![0; graph.values().len()];
        for (i, node) in graph.nodes().iter().enumerate() {
            for v in &node.inputs {
                let root = self.roots[v.index()].index();
                last_read[root] = last_read[root].max(step_of[i]);
            }
        }
        for (r, &v) in graph.outputs().iter().enumerate() {
            let Some(a) = replaces.get(r).copied().flatten() else { continue };
            let (new, old) = (self.roots[v.index()], graph.inputs()[a]);
            let Some((maker, o)) = graph.info(new).producer else { continue };
            let node = graph.node(maker);
            let allowed =
                node.op.in_place().into_iter().any(|(out, i)| {
                    out == o && self.roots[node.inputs[i].index()] == old && self.alone(node, i)
                });
            let leaves = graph.outputs().iter().any(|w| self.roots[w.index()] == old);
            let fits = graph.ty(new).bytes() == graph.ty(old).bytes();
            let known = guard.is_none_or(|guard| step_of[maker.index()] > step_of[guard.index()]);
            let here = self.locations[old.index()].is_some_and(|location| location.fixed.is_some());
            if known && here && allowed && !leaves && fits && last_read[old.index()] <= step_of[maker.index()]
            {
                self.locations[new.index()] = self.locations[old.index()];
            }
        }
    }

    /// Gives every result its place. What must be copied into an argument after the last op is returned.
    fn results(&mut self, roles: &Roles<'_>) -> Result<Vec<Commit>> {
        let graph = self.graph.clone();
        let mut commits = Vec::new();
        for (r, &v) in graph.outputs().iter().enumerate() {
            let (root, bytes) = (self.roots[v.index()], graph.ty(v).bytes());
            let argument = graph.info(root).producer.is_none();
            let present = self.locations[root.index()].and_then(|l| l.fixed);
            let Some(a) = roles.replaces.get(r).copied().flatten() else {
                let to = Place::Result(r);
                match present {
                    // An argument's old value leaves before anything is written, all else after everything is.
                    Some(from) if argument => self.first.push(Instruction::Copy { from, to, bytes }),
                    Some(from) => self.last.push(Instruction::Copy { from, to, bytes }),
                    // An argument that is on the host, as it is.
                    None if argument => {
                        let tensor = Tensor::output(self.graph.info(root).name.clone(), 0);
                        let result = Location { tensor: self.problem.tensor(tensor), fixed: Some(to) };
                        commits.push(Commit { from: From::Root(root), to: To::Place(result), bytes });
                    }
                    None => {
                        self.locate(root, Home::Output, Kind::Other, 0, Some(to));
                    }
                }
                continue;
            };
            if root == graph.inputs()[a] {
                continue;
            }
            let place = self.location(graph.inputs()[a])?;
            let to = if roles.is_hosted(a) { To::Hosted(a) } else { To::Place(place) };
            match present {
                Some(present) if Some(present) == place.fixed => {}
                Some(place) if argument => {
                    // One argument's old value becomes another's new one: put aside before either is written.
                    let from = Location { fixed: Some(place), ..self.location(root)? };
                    let name = self.graph.info(root).name.clone();
                    let aside = self
                        .problem
                        .tensor(Tensor { kind: Kind::Other, ..Tensor::transient(name, bytes as u64) });
                    let aside = Location { tensor: aside, fixed: None };
                    self.copy(from, aside, bytes);
                    commits.push(Commit { from: From::Aside(aside), to, bytes });
                }
                _ => commits.push(Commit { from: From::Root(root), to, bytes }),
            }
        }
        Ok(commits)
    }

    fn run(&mut self, id: NodeId, node: &Node, phase: Phase, device: &Device, costs: &Costs) -> Result<()> {
        let graph = self.graph.clone();
        let mut op = plan::Op::new(name(node), &[], &[], 0);
        for v in &node.inputs {
            let tensor = self.location(self.roots[v.index()])?.tensor;
            if !op.reads.contains(&tensor) {
                op.reads.push(tensor);
            }
        }
        for (o, &v) in node.outputs.iter().enumerate() {
            let location = match self.locations[v.index()] {
                Some(location) => location,
                None => {
                    let kind =
                        if node.phase == GraphPhase::Backward { Kind::Gradient } else { Kind::Activation };
                    self.locate(v, Home::Transient, kind, graph.ty(v).bytes(), None)
                }
            };
            if let Some(Place::Argument(_)) = location.fixed {
                op.updates.push(location.tensor);
                op.replayable = false;
                self.wait_for_guard(&mut op);
                continue;
            }
            op.writes.push(location.tensor);
            for (_, i) in
                node.op.in_place().into_iter().filter(|&(out, _)| out == o && location.fixed.is_none())
            {
                let input = self.location(self.roots[node.inputs[i].index()])?;
                let same = graph.ty(node.inputs[i]).dtype == graph.ty(v).dtype
                    && graph.ty(node.inputs[i]).elements() == graph.ty(v).elements();
                if input.fixed.is_none() && same && self.alone(node, i) {
                    op.in_place.push((input.tensor, location.tensor));
                }
            }
        }
        let types = |ids: &[ValueId]| -> SmallVec<[&Type; 4]> { ids.iter().map(|&v| graph.ty(v)).collect() };
        let (inputs, outputs) = (types(&node.inputs), types(&node.outputs));
        let scratch = device.backend().scratch(&node.op, &inputs, &outputs)? as u64;
        let seconds = seconds(&graph, node, device, costs);
        op.algorithms = vec![plan::Algorithm { scratch, ..plan::Algorithm::of_ns((seconds * 1e9) as u64) }];
        op.phase = phase;
        self.problem.op(op);
        self.sources.push(Source::Run(id));
        Ok(())
    }

    /// Gives every op the time that is known of its kernel by now; returns whether any time has changed.
    pub(crate) fn time(&mut self, device: &Device) -> bool {
        let costs = device.costs();
        let mut changed = false;
        for (op, source) in self.problem.ops.iter_mut().zip(&self.sources) {
            let ns = match source {
                Source::Run(id) => (seconds(&self.graph, self.graph.node(*id), device, &costs) * 1e9) as u64,
                Source::Carry { bytes, .. } => carry_ns(device, &costs, *bytes),
                Source::Copy { .. } => continue,
            };
            for way in &mut op.algorithms {
                changed |= std::mem::replace(&mut way.ns, ns) != ns;
            }
        }
        if self.problem.link.is_some() {
            let link = costs.link(device.backend());
            changed |= std::mem::replace(&mut self.problem.link, link) != link;
        }
        changed
    }

    /// Lets an op that changes state read the guarded result, so that no order puts it before that is known.
    fn wait_for_guard(&self, op: &mut plan::Op) {
        if let Some((_, guard)) = self.guard
            && !op.reads.contains(&guard.tensor)
        {
            op.reads.push(guard.tensor);
        }
    }

    fn copy(&mut self, from: Location, to: Location, bytes: usize) {
        let mut op = plan::Op::new("copy", &[from.tensor], &[], 0);
        match to.fixed {
            Some(Place::Argument(_)) => {
                op.updates.push(to.tensor);
                self.wait_for_guard(&mut op);
            }
            _ => op.writes.push(to.tensor),
        }
        op.replayable = to.fixed.is_none();
        op.phase = Phase::Once;
        self.problem.op(op);
        self.sources.push(Source::Copy { from, to, bytes });
    }

    fn locate(&mut self, v: ValueId, home: Home, kind: Kind, bytes: usize, fixed: Option<Place>) -> Location {
        let info = self.graph.info(v);
        let alignment = ALIGNMENT as u64;
        let tensor = Tensor {
            name: info.name.clone(),
            bytes: bytes as u64,
            batch_bytes: 0,
            alignment,
            home,
            kind,
            view: None,
        };
        let location = Location { tensor: self.problem.tensor(tensor), fixed };
        self.locations[v.index()] = Some(location);
        location
    }

    fn location(&self, root: ValueId) -> Result<Location> {
        self.locations[root.index()]
            .ok_or_else(|| Error::Internal(format!("value %{} is read before it is made", root.0)))
    }

    /// Whether input `i` may be written over without harm to the node's other inputs.
    fn alone(&self, node: &Node, i: usize) -> bool {
        let root = |j: usize| self.roots[node.inputs[j].index()];
        (0..node.inputs.len()).all(|j| {
            j == i || root(j) != root(i) || (node.inputs[j] == node.inputs[i] && elementwise(&node.op))
        })
    }

    /// The node that an op of the problem runs; none for a copy.
    pub(crate) fn node(&self, op: usize) -> Option<&Node> {
        match self.sources.get(op)? {
            Source::Run(id) => Some(self.graph.node(*id)),
            Source::Copy { .. } | Source::Carry { .. } => None,
        }
    }

    /// The value that a tensor of the problem stands for; none for what is only put aside.
    fn value(&self, tensor: TensorId) -> Option<ValueId> {
        let stands = |location: &Option<Location>| location.is_some_and(|l| l.tensor == tensor);
        self.locations.iter().position(stands).map(|v| ValueId(v as u32))
    }

    /// The instructions of a plan, and the bytes of their arena (the residents' excepted, which have their own).
    pub(crate) fn instructions(mut self, plan: &Plan) -> Result<(Vec<Instruction>, usize)> {
        let resident = |p: &plan::Placed| p.offset + self.problem.tensors[p.tensor.index()].padded_bytes();
        let base = plan.residents.iter().map(resident).max().unwrap_or(0);
        let mut instructions = std::mem::take(&mut self.first);
        let mut copies = UnderWay::default();
        let bytes = |tensor: &TensorId| self.problem.tensors[tensor.index()].bytes as usize;
        let in_arena = |offset: u64| offset.checked_sub(base).map(|offset| Place::Arena(offset as usize));
        let resident = || Error::Internal("a plan copies a resident to the host".into());
        for step in &plan.steps {
            let (op, reads, writes, scratch, replay) = match step {
                plan::Step::Run { op, reads, writes, scratch, replay, .. } => {
                    (op, reads, writes, scratch, replay)
                }
                plan::Step::Offload { tensor, from, to } => {
                    let (from, to) = (in_arena(*from).ok_or_else(resident)?, *to as usize);
                    let (value, bytes, slot) =
                        (self.value(*tensor), bytes(tensor), copies.start(*tensor, true));
                    instructions.push(Instruction::Offload { value, from, to, bytes, slot });
                    continue;
                }
                plan::Step::Prefetch { tensor, from, to } => {
                    let (from, to) = (*from as usize, in_arena(*to).ok_or_else(resident)?);
                    let (value, bytes, slot) =
                        (self.value(*tensor), bytes(tensor), copies.start(*tensor, false));
                    instructions.push(Instruction::Prefetch { value, from, to, bytes, slot });
                    continue;
                }
                plan::Step::Await { tensor, offload } => {
                    instructions.extend(copies.end(*tensor, *offload));
                    continue;
                }
            };
            let planned = &self.problem.ops[op.index()];
            let place = |location: Location| match location.fixed {
                Some(place) => Ok(place),
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
            instructions.push(match &self.sources[op.index()] {
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
                    let node = self.graph.node(*id);
                    let at = |v: &ValueId| place(self.location(self.roots[v.index()])?);
                    let scratch_bytes = planned.algorithms.first().map_or(0, |a| a.scratch) as usize;
                    let scratch = if scratch_bytes > 0 { scratch.saturating_sub(base) as usize } else { 0 };
                    Instruction::Run {
                        node: *id,
                        inputs: node.inputs.iter().map(at).collect::<Result<_>>()?,
                        outputs: node.outputs.iter().map(at).collect::<Result<_>>()?,
                        scratch: Place::Arena(scratch),
                        scratch_bytes,
                    }
                }
            });
            if let (Source::Run(id), Some((maker, guard)), false) =
                (&self.sources[op.index()], self.guard, *replay)
                && *id == maker
            {
                let value = self.graph.node(*id).outputs.iter().find(|v| self.roots[v.index()] == **v);
                let dtype = value.map_or(DType::F32, |&v| self.graph.ty(v).dtype);
                // A recording ends at a check, and what it starts it must wait for.
                instructions.extend(copies.end_all());
                instructions.push(Instruction::Check { at: place(guard)?, dtype, node: *id });
            }
        }
        instructions.append(&mut self.last);
        Ok((instructions, plan.figures.arena_bytes.saturating_sub(base) as usize))
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

/// Nanoseconds of a copy from or to the host.
fn carry_ns(device: &Device, costs: &Costs, bytes: usize) -> u64 {
    costs.link(device.backend()).map_or(0, |link| link.ns(bytes as u64))
}

/// Seconds of a node's kernel, as far as is known.
fn seconds(graph: &Graph, node: &Node, device: &Device, costs: &Costs) -> f64 {
    let types = |ids: &[ValueId]| -> SmallVec<[&Type; 4]> { ids.iter().map(|&v| graph.ty(v)).collect() };
    costs.seconds(device.backend(), &node.op, &types(&node.inputs), &types(&node.outputs))
}

/// A value that is put into its place once it is there.
struct Commit {
    from: From,
    to: To,
    bytes: usize,
}

/// Where it goes: to an argument or a result, or to an argument that is on the host.
enum To {
    Place(Location),
    Hosted(usize),
}

/// Where it comes from.
enum From {
    Root(ValueId),
    Aside(Location),
}

/// For each value, the one whose bytes it uses.
pub(crate) fn roots(graph: &Graph) -> Vec<ValueId> {
    let mut roots: Vec<ValueId> = (0..graph.values().len() as u32).map(ValueId).collect();
    for node in graph.nodes().iter().filter(|node| node.op.is_view()) {
        roots[node.outputs[0].index()] = roots[node.inputs[0].index()];
    }
    roots
}

/// What people call a node: its layer's path and its op.
fn name(node: &Node) -> String {
    if node.scope.is_empty() { node.op.name().into() } else { format!("{}/{}", node.scope, node.op.name()) }
}

/// Whether an op reads element i of each input for element i of its outputs only.
fn elementwise(op: &Op) -> bool {
    matches!(op, Op::Unary(_) | Op::Binary(_) | Op::Select(_) | Op::ReluGrad(_) | Op::Fused(_))
}
