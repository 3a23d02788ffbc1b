//! Turns a graph into the planner's problem (`commits`: where its results go; `order`: in what order it is written down), and keeps
//! the way back from the problem's ops and tensors to the graph's.
//!
//! Arguments become residents, so that the planner knows which version of a parameter each op is promised. An op that
//! can write a new parameter over the old one updates its resident; any other new state is copied there at the end.
//! Results have bytes of their own outside the arena and weigh nothing in the problem. Who holds which bytes of a plan is read off it in
//! `spans`.

mod commits;
mod order;
mod phases;
mod place;
mod plannable;
mod planned;
mod spans;

pub(crate) use phases::{Extent, Phases};
pub(crate) use place::{Move, Place};
pub(crate) use plannable::PlannableGraph;
pub(crate) use planned::PlannedGraph;
pub(crate) use spans::Span;

use std::sync::Arc;

use plimsoll_device::backend::ALIGNMENT;
use plimsoll_graph::{Graph, Node, NodeId, Op, Type, ValueId};
use plimsoll_plan as plan;
use plimsoll_plan::{Home, Kind, Problem, Tensor, TensorId};
use plimsoll_record::Phase;
use smallvec::SmallVec;

use commits::{Commit, From, To};

use crate::device::Device;
use crate::error::{Error, Result};
use order::{changes_after, early_updates};

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
    /// How much of a step the graph is.
    pub(crate) extent: Extent,
    /// Whether its plans are searched in less time: it is long, and stands beside another that was searched well.
    pub(crate) in_haste: bool,
}

impl Roles<'_> {
    fn is_hosted(&self, argument: usize) -> bool {
        self.hosted.get(argument).copied().unwrap_or(false)
    }
}

/// A graph as the planner's problem, with the way back.
#[derive(Clone)]
pub(crate) struct Lowered {
    pub(crate) graph: Arc<Graph>,
    /// What the planner sees.
    pub(crate) problem: Problem,
    /// What each op of the problem does.
    pub(crate) sources: Vec<Source>,
    /// For each value, the one whose bytes it uses: itself unless it is a view.
    pub(crate) roots: Vec<ValueId>,
    /// Where the bytes of each root are; of one that was brought from the host more than once, where they were last.
    locations: Vec<Option<Location>>,
    /// What was brought from the host, in order: the value, the op that brought it, where to, and for which phase.
    brought: Vec<Brought>,
    /// Which nodes run on the host though their operands are on the device.
    pub(crate) hosts: Vec<bool>,
    /// Which phase each node belongs to.
    phases: Phases,
    /// The node that makes the guarded result, and where that is.
    pub(crate) guard: Option<(NodeId, Location)>,
    /// Copies before the first op and after the last.
    pub(crate) first: Vec<Move>,
    pub(crate) last: Vec<Move>,
}

/// An argument of the host on the device, from an op on.
#[derive(Clone, Copy, Debug)]
struct Brought {
    value: ValueId,
    argument: usize,
    op: usize,
    at: Location,
    phase: Phase,
}

/// Where bytes are, and the tensor that stands for them in the problem.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Location {
    pub(crate) tensor: TensorId,
    /// `None` for what the plan places.
    pub(crate) fixed: Option<Place>,
}

/// What an op of the problem does.
#[derive(Clone)]
pub(crate) enum Source {
    /// Runs a node of the graph.
    Run(NodeId),
    /// Copies bytes on the device.
    Copy { from: Location, to: Location, bytes: usize },
    /// Between an argument that is on the host and what stands for it on the device.
    Carry { argument: usize, at: Location, bytes: usize, out: bool },
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
        let mut problem = Problem::new();
        problem.scratch_alignment = ALIGNMENT as u64;
        problem.link = if offload { device.costs().link(device.backend()) } else { None };
        let locations = vec![None; graph.values().len()];
        let (sources, first, last) = (Vec::new(), Vec::new(), Vec::new());
        let (roots, phases) = (roots(&graph), Phases::new(&graph, roles.extent));
        let mut lowered = Lowered {
            graph: graph.clone(),
            problem,
            sources,
            roots,
            locations,
            brought: Vec::new(),
            hosts: vec![false; graph.nodes().len()],
            phases,
            guard: None,
            first,
            last,
        };
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
        // Several may be lowered beside each other, and to ask a library for scratch takes long: times are not locked meanwhile.
        device.costs().look_up(&graph, device)?;
        for (v, a) in lowered.wanted_at_once(roles, &away) {
            lowered.fetch(v, a, Phase::Forward, device)?;
        }
        let again = lowered.may_come_again(roles, &away, guard);
        if let (Some(root), Some(maker)) = (guarded, guard) {
            lowered.guard = Some((maker, lowered.location(root)?));
        }
        for &id in &order {
            let node = graph.node(id);
            if node.op.is_view() {
                continue;
            }
            // Its state comes just before it; the planner sees how much earlier there is room for it.
            let reads = |v: ValueId| node.inputs.iter().any(|i| lowered.roots[i.index()] == v);
            let phase = lowered.phases.of(&graph, id);
            let wanted = away.iter().zip(&again).filter(|((v, _), again)| {
                let before = lowered.brought.iter().rfind(|b| b.value == *v);
                reads(*v) && before.is_none_or(|before| **again && before.phase != phase)
            });
            let wanted: Vec<(ValueId, usize)> = wanted.map(|(away, _)| *away).collect();
            for (v, a) in wanted {
                if lowered.brought.iter().any(|b| b.value == v) {
                    let kind = roles.kinds.get(a).copied().unwrap_or(Kind::Input);
                    lowered.locate(v, Home::Transient, kind, graph.ty(v).bytes(), None);
                }
                lowered.fetch(v, a, phase, device)?;
            }
            lowered.run(id, node, device)?;
            // New state goes back as soon as it is there.
            let made = |commit: &mut Commit| {
                let is_new = matches!(commit.from, From::Root(root) if node.outputs.contains(&root));
                is_new && matches!(commit.to, To::Hosted(_))
            };
            for commit in commits.extract_if(.., made).collect::<Vec<Commit>>() {
                lowered.commit(commit, device)?;
            }
        }
        for commit in commits {
            lowered.commit(commit, device)?;
        }
        Ok(lowered)
    }

    fn run(&mut self, id: NodeId, node: &Node, device: &Device) -> Result<()> {
        let graph = self.graph.clone();
        let mut op = plan::Op::new(name(node), &[], &[], 0);
        // What ranks exchange, they exchange once: the others would not know of a second time.
        op.replayable = !node.op.is_exchange();
        // A card's exchanges are over when they are started.
        let is_several = matches!(&node.op, Op::Exchange(exchange) if exchange.of.ranks > 1);
        op.beside = is_several && device.backend().is_host();
        if let Some(location) = self.gathered_before(node) {
            (self.locations[node.outputs[0].index()], op.anew) = (Some(location), true);
        }
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
                    let kind = self.phases.of(&graph, id).kind();
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
        let chosen = device.choose_node(&graph, node)?;
        self.hosts[id.index()] = chosen.on_host;
        let seconds = seconds(&graph, node, device, chosen.on_host)?;
        (op.scratch, op.ns) = (chosen.scratch as u64, (seconds * 1e9) as u64);
        self.problem.op(op);
        self.sources.push(Source::Run(id));
        Ok(())
    }

    /// Where the same values are that an exchange gathers anew: they are one tensor, made more than once, so that what runs again reads those that are there.
    fn gathered_before(&self, node: &Node) -> Option<Location> {
        if !matches!(&node.op, Op::Exchange(exchange) if exchange.anew && exchange.of.ranks > 1) {
            return None;
        }
        let is_first = |first: &&Node| {
            first.op == node.op
                && self.locations[first.outputs[0].index()].is_some()
                && is_made_alike(&self.graph, first.inputs[0], node.inputs[0])
        };
        let first = self.graph.nodes().iter().find(is_first)?;
        let location = self.locations[first.outputs[0].index()]?;
        let is_made = self.problem.tensors[location.tensor.index()].home == Home::Transient;
        (location.fixed.is_none() && is_made).then_some(location)
    }

    /// Gives every op the time that is known of its kernel by now; returns whether any time has changed.
    pub(crate) fn time(&mut self, device: &Device) -> bool {
        let mut changed = false;
        for (op, source) in self.problem.ops.iter_mut().zip(&self.sources) {
            let ns = match source {
                Source::Run(id) => {
                    let (node, on_host) = (self.graph.node(*id), self.hosts[id.index()]);
                    // Kernels that it was lowered with are there.
                    let Ok(seconds) = seconds(&self.graph, node, device, on_host) else { continue };
                    (seconds * 1e9) as u64
                }
                Source::Carry { bytes, .. } => carry_ns(device, *bytes),
                Source::Copy { .. } => continue,
            };
            changed |= std::mem::replace(&mut op.ns, ns) != ns;
        }
        if self.problem.link.is_some() {
            let link = device.costs().link(device.backend());
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
        self.problem.op(op);
        self.sources.push(Source::Copy { from, to, bytes });
    }

    fn locate(&mut self, v: ValueId, home: Home, kind: Kind, bytes: usize, fixed: Option<Place>) -> Location {
        let info = self.graph.info(v);
        let alignment = ALIGNMENT as u64;
        let tensor =
            Tensor { name: info.name.clone(), bytes: bytes as u64, alignment, home, kind, view: None };
        let location = Location { tensor: self.problem.tensor(tensor), fixed };
        self.locations[v.index()] = Some(location);
        location
    }

    pub(crate) fn location(&self, root: ValueId) -> Result<Location> {
        self.locations[root.index()]
            .ok_or_else(|| Error::Internal(format!("value %{} is read before it is made", root.0)))
    }

    /// Where the bytes of a root are for an op.
    pub(crate) fn location_at(&self, root: ValueId, op: usize) -> Result<Location> {
        let brought = self.brought.iter().rfind(|brought| brought.value == root && brought.op <= op);
        brought.map_or_else(|| self.location(root), |brought| Ok(brought.at))
    }

    /// The value that a tensor of the problem stands for; none for what is only put aside.
    pub(crate) fn value(&self, tensor: TensorId) -> Option<ValueId> {
        let stands = |location: &Option<Location>| location.is_some_and(|l| l.tensor == tensor);
        let brought = || self.brought.iter().find(|b| b.at.tensor == tensor).map(|b| b.value);
        self.locations.iter().position(stands).map(|v| ValueId(v as u32)).or_else(brought)
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
}

/// Nanoseconds of a copy from or to the host.
fn carry_ns(device: &Device, bytes: usize) -> u64 {
    device.costs().link(device.backend()).map_or(0, |link| link.ns(bytes as u64))
}

/// Seconds of a node's kernel, as far as is known.
fn seconds(graph: &Graph, node: &Node, device: &Device, on_host: bool) -> Result<f64> {
    let types = |ids: &[ValueId]| -> SmallVec<[&Type; 4]> { ids.iter().map(|&v| graph.ty(v)).collect() };
    let backend = device.kernels(&node.op, on_host)?;
    Ok(device.costs().seconds(backend, &node.op, &types(&node.inputs), &types(&node.outputs)))
}

/// Whether two values are one, or one that is shaped and cast alike.
fn is_made_alike(graph: &Graph, a: ValueId, b: ValueId) -> bool {
    if a == b {
        return true;
    }
    let maker = |v: ValueId| graph.info(v).producer.map(|(maker, _)| graph.node(maker));
    let (Some(one), Some(other)) = (maker(a), maker(b)) else { return false };
    one.op == other.op
        && (one.op.is_view() || matches!(one.op, Op::Cast(_)))
        && is_made_alike(graph, one.inputs[0], other.inputs[0])
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
