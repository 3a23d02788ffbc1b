//! Turns a compiled step into a record of it for people: what each instruction is, and who holds which bytes of the
//! arena from when to when.
//!
//! Nothing is kept for it while a step runs: a program's instructions say where every operand lies, so following them
//! once gives every tensor's stay in the arena. The record takes a few dozen bytes an instruction, far less than planning
//! was declared to take, and is made before the arena's pages are touched.

use plimsoll_device::backend::ALIGNMENT;
use plimsoll_graph::{DType, Graph, NodeId, Phase as GraphPhase, Shape, Site, Type, ValueId};
use plimsoll_plan::Kind;
use rustc_hash::FxHashMap;
use serde::{Serialize, Serializer};
use smallvec::SmallVec;

use crate::choose::{StepInfo, staged};
use crate::device::Device;
use crate::lower::{Place, roots};
use crate::program::{Instruction, Part};
use crate::trace::StateSpec;

/// One step, instruction by instruction. Numbers like [`Moment::layer`] are places in [`Timeline::names`] or
/// [`Timeline::sites`].
///
/// ```
/// use plimsoll_run::{Step, StepResult, Tensor, TensorOps};
/// let w = Tensor::from_slice(&[1.0f32; 1000], [1000])?;
/// let step = Step::compile(vec![w], &[], |state, _| {
///     let total = state[0].exp()?.sum(&[], false)?;
///     Ok(StepResult { state: state.to_vec(), outputs: vec![total], totals: vec![] })
/// })?;
/// let timeline = step.timeline().unwrap();
/// assert!(timeline.instructions.iter().any(|i| i.op == "exp" || i.op == "sum" || i.op == "fused"));
/// assert_eq!(timeline.residents[0].bytes, 4032);
/// # Ok::<(), plimsoll_run::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Timeline {
    /// The line, if there is one.
    pub line_bytes: Option<u64>,
    /// What the whole process will take.
    pub planned_bytes: u64,
    /// The program's own pages, as they are declared.
    pub program_bytes: u64,
    /// What the caller declared beside the step: input pipelines.
    pub pipeline_bytes: u64,
    /// Tensors that are neither of the step's state nor staged.
    pub other_bytes: u64,
    /// Bytes of the arena.
    pub arena_bytes: u64,
    /// What is planned and held by nothing: room that only planning needs, ends of pages. With it, program, pipelines, others,
    /// residents and arena add up to what is planned.
    pub unused_bytes: u64,
    /// Names of layers and tensors.
    pub names: Vec<String>,
    /// Source lines.
    pub sites: Vec<String>,
    /// What is there all the step long.
    pub residents: Vec<Resident>,
    /// The programs that the step consists of, in a row.
    pub stretches: Vec<Stretch>,
    /// Everything that is done.
    pub instructions: Vec<Moment>,
    /// Everything that lies in the arena, in the order in which it gets there.
    pub tensors: Vec<Interval>,
}

/// What bytes are for, in a record of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Purpose {
    /// A weight, or what else a model learns.
    Parameter,
    /// A gradient, or a sum of them.
    Gradient,
    /// State of the optimizer, and what an update computes.
    Optimizer,
    /// A value of the forward pass.
    Activation,
    /// What a kernel needs while it runs.
    Scratch,
    /// A batch.
    Input,
    /// Anything else.
    Other,
}

/// A tensor that is there all the step long.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Resident {
    /// What it is called.
    pub name: u32,
    /// What it is for.
    pub kind: Purpose,
    /// Its shape.
    #[serde(serialize_with = "shape")]
    pub shape: Shape,
    /// Its element type.
    pub dtype: &'static str,
    /// Its bytes, rounded up to the alignment.
    pub bytes: u64,
    /// The line of the op that reads it first, where one does.
    pub site: Option<u32>,
}

/// A program of the step: all of it, or where the batch is split, a pass or the update.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Stretch {
    /// What it is.
    pub name: &'static str,
    /// Its first instruction.
    pub first: u32,
    /// Samples it is run on.
    pub samples: usize,
    /// How often it is run.
    pub runs: usize,
}

/// What an instruction does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Did {
    /// Runs an op.
    Run,
    /// Runs an op again, whose results were given up.
    Again,
    /// Copies bytes.
    Copy,
    /// Looks whether the loss is finite.
    Check,
    /// Starts to copy a tensor to the host, beside what follows.
    Offload,
    /// Starts to copy it back.
    Prefetch,
    /// Waits for such a copy.
    Await,
}

/// One instruction.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Moment {
    /// The op.
    pub op: &'static str,
    /// The layer that asked for it.
    pub layer: u32,
    /// The source line that did.
    pub site: Option<u32>,
    /// Predicted microseconds.
    pub us: f64,
    /// What it does.
    pub what: Did,
    /// `forward`, `backward` or `update`.
    pub phase: &'static str,
}

/// A tensor's stay in the arena, from one instruction up to, not including, another.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Interval {
    /// What it is called.
    pub name: u32,
    /// The layer that made it.
    pub layer: u32,
    /// What it is for.
    pub kind: Purpose,
    /// Its shape.
    #[serde(serialize_with = "shape")]
    pub shape: Shape,
    /// Its element type.
    pub dtype: &'static str,
    /// Its bytes, rounded up to the alignment.
    pub bytes: u64,
    /// Where it lies.
    pub offset: u64,
    /// The instruction that makes it.
    pub from: u32,
    /// The first instruction that it need not be there for.
    pub to: u32,
    /// Whether it was there before in this step and is made again.
    pub again: bool,
    /// The source line that made it.
    pub site: Option<u32>,
}

fn shape<S: Serializer>(shape: &Shape, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(shape.iter())
}

impl Timeline {
    /// The largest sum of bytes that tensors hold in the arena at one instruction, and which instruction that is.
    pub fn peak(&self) -> (usize, u64) {
        let mut change = vec![0i64; self.instructions.len() + 1];
        for tensor in &self.tensors {
            change[tensor.from as usize] += tensor.bytes as i64;
            change[tensor.to as usize] -= tensor.bytes as i64;
        }
        let (mut held, mut peak) = (0, (0, 0));
        for (i, change) in change.iter().enumerate() {
            held += change;
            if held > peak.1 {
                peak = (i, held);
            }
        }
        (peak.0, peak.1 as u64)
    }
}

/// What a timeline is made from.
pub(crate) struct Recorded<'a> {
    pub(crate) device: &'a Device,
    pub(crate) state: &'a [StateSpec],
    /// Which of the state is on the host.
    pub(crate) hosted: &'a [bool],
    pub(crate) inputs: &'a [Type],
    pub(crate) outputs: &'a [Type],
    pub(crate) batch: usize,
    pub(crate) passes: Vec<&'a Part>,
    pub(crate) update: Option<&'a Part>,
    /// How many sums passes add to.
    pub(crate) n_sums: usize,
    /// State that passes change, whose old values are kept until the step is done.
    pub(crate) passed: Vec<usize>,
    pub(crate) info: &'a StepInfo,
    pub(crate) line: Option<u64>,
}

impl Recorded<'_> {
    /// Follows the step.
    pub(crate) fn timeline(&self) -> Timeline {
        let mut to = Recorder {
            device: self.device,
            timeline: Timeline::default(),
            names: FxHashMap::default(),
            sites: FxHashMap::default(),
        };
        let outside = self.residents(&mut to);
        let is_split = self.update.is_some();
        for &part in &self.passes {
            to.part(if is_split { "pass" } else { "step" }, part);
        }
        if let Some(update) = self.update {
            to.part("update", update);
        }
        let account = &self.info.account;
        let residents: u64 = to.timeline.residents.iter().map(|r| r.bytes).sum();
        let parts = self.passes.iter().chain(&self.update);
        let arena_bytes = parts.map(|part| part.program.arena_bytes()).max().unwrap_or(0) as u64;
        let (program_bytes, pipeline_bytes) = (account.program.get(), account.beside.get());
        let other_bytes = (account.tensors + account.staged).get().saturating_sub(outside);
        let held = program_bytes + pipeline_bytes + other_bytes + residents + arena_bytes;
        Timeline {
            line_bytes: self.line,
            planned_bytes: self.info.planned.get(),
            program_bytes,
            pipeline_bytes,
            other_bytes,
            arena_bytes,
            unused_bytes: self.info.planned.get().saturating_sub(held),
            ..to.timeline
        }
    }

    /// State, inputs and outputs; where the batch is split, also what lies in the workspace before the arena. Returns the bytes
    /// of what does not lie in the workspace.
    fn residents(&self, to: &mut Recorder<'_>) -> u64 {
        let first = self.passes.first().copied();
        for (i, state) in self.state.iter().enumerate().filter(|(i, _)| !self.hosted[*i]) {
            let reader = first.filter(|_| state.kind == Kind::Parameter).map(|part| (part, i));
            to.resident(&state.name, purpose(state.kind), &state.ty, reader);
        }
        for (i, ty) in self.inputs.iter().enumerate() {
            let reader = first.map(|part| (part, self.state.len() + i));
            to.resident(&format!("input {i}"), Purpose::Input, ty, reader);
        }
        for (i, ty) in self.outputs.iter().enumerate() {
            to.resident(&format!("output {i}"), Purpose::Other, ty, None);
        }
        let outside = to.timeline.residents.iter().map(|r| r.bytes).sum();
        let (Some(pass), Some(_)) = (first, self.update) else { return outside };
        let graph = pass.program.graph();
        let sums = graph.inputs().len().saturating_sub(self.n_sums);
        for &v in &graph.inputs()[sums..] {
            let info = graph.info(v);
            to.resident(&info.name, Purpose::Gradient, &info.ty, None);
        }
        let fixed = !self.device.backend().is_host();
        for (i, ty) in self.inputs.iter().enumerate() {
            if staged(ty, self.batch, pass.samples, fixed).get() > 0 {
                let rows = ty.with_shape(ty.shape.with(0, pass.samples));
                to.resident(&format!("rows of input {i}"), Purpose::Input, &rows, None);
            }
        }
        for &i in &self.passed {
            let name = format!("{} before the step", self.state[i].name);
            to.resident(&name, Purpose::Other, &self.state[i].ty, None);
        }
        outside
    }
}

/// A timeline in the making.
struct Recorder<'a> {
    device: &'a Device,
    timeline: Timeline,
    names: FxHashMap<String, u32>,
    sites: FxHashMap<Site, u32>,
}

impl Recorder<'_> {
    /// Adds what stays. The reader is a program, and as which argument it reads this.
    fn resident(&mut self, name: &str, kind: Purpose, ty: &Type, reader: Option<(&Part, usize)>) {
        let first = reader.and_then(|(part, argument)| {
            let graph = part.program.graph();
            let value = *graph.inputs().get(argument)?;
            graph.nodes().iter().find(|node| node.inputs.contains(&value))
        });
        let site = first.and_then(|node| self.site(node.site));
        let name = self.name(name);
        let (shape, dtype, bytes) = (ty.shape.clone(), ty.dtype.name(), padded(ty.bytes()));
        self.timeline.residents.push(Resident { name, kind, shape, dtype, bytes, site });
    }

    /// Adds a program behind the others.
    fn part(&mut self, name: &'static str, part: &Part) {
        let first = self.timeline.instructions.len() as u32;
        self.timeline.stretches.push(Stretch { name, first, samples: part.samples, runs: part.runs });
        Follow::new(self, part, name).run();
    }

    fn name(&mut self, name: &str) -> u32 {
        if let Some(&known) = self.names.get(name) {
            return known;
        }
        let at = self.timeline.names.len() as u32;
        self.timeline.names.push(name.into());
        self.names.insert(name.into(), at);
        at
    }

    fn site(&mut self, site: Site) -> Option<u32> {
        let site = site.known()?;
        let sites = &mut self.timeline.sites;
        Some(*self.sites.entry(site).or_insert_with(|| {
            sites.push(site.to_string());
            sites.len() as u32 - 1
        }))
    }
}

/// Follows one program.
struct Follow<'a, 'b> {
    to: &'a mut Recorder<'b>,
    graph: &'a Graph,
    instructions: &'a [Instruction],
    part: &'static str,
    first_backward: usize,
    roots: Vec<ValueId>,
    /// The interval that each root is in now.
    held: Vec<Option<usize>>,
    /// The interval that was put at each offset last.
    at: FxHashMap<usize, usize>,
    ran: Vec<bool>,
    /// The interval that the copy of each slot is from or to.
    copied: Vec<Option<usize>>,
}

impl<'a, 'b> Follow<'a, 'b> {
    fn new(to: &'a mut Recorder<'b>, part: &'a Part, name: &'static str) -> Follow<'a, 'b> {
        let graph = part.program.graph();
        let backward = |node: &plimsoll_graph::Node| node.phase == GraphPhase::Backward;
        Follow {
            to,
            graph,
            instructions: part.program.instructions(),
            part: name,
            first_backward: graph.nodes().iter().position(backward).unwrap_or(usize::MAX),
            roots: roots(graph),
            held: vec![None; graph.values().len()],
            at: FxHashMap::default(),
            ran: vec![false; graph.nodes().len()],
            copied: Vec::new(),
        }
    }

    fn run(&mut self) {
        for instruction in self.instructions {
            let now = self.to.timeline.instructions.len() as u32;
            let moment = match instruction {
                Instruction::Run { node, inputs, outputs, scratch, scratch_bytes } => {
                    let scratch = (*scratch_bytes > 0).then_some((*scratch, *scratch_bytes));
                    self.kernel(*node, inputs, outputs, scratch, now)
                }
                Instruction::Copy { from, to, bytes } => self.copy(*from, *to, *bytes, now),
                Instruction::Check { node, .. } => {
                    let node = self.graph.node(*node);
                    let (layer, site) = (self.to.name(&node.scope), self.to.site(node.site));
                    Moment { op: "check", layer, site, us: 0.0, what: Did::Check, phase: "forward" }
                }
                Instruction::Offload { value, from, slot, .. } => self.offload(*value, *from, *slot, now),
                Instruction::Prefetch { value, to, bytes, slot, .. } => {
                    self.prefetch(*value, *to, *bytes, *slot, now)
                }
                Instruction::Fetch { argument, to, slot, .. } => self.fetch(*argument, *to, *slot, now),
                Instruction::Store { from, slot, .. } => {
                    Moment { phase: "update", ..self.offload(None, *from, *slot, now) }
                }
                Instruction::Await { slot } => self.wait(*slot, now),
            };
            self.to.timeline.instructions.push(moment);
        }
    }

    fn kernel(
        &mut self,
        id: NodeId,
        inputs: &[Place],
        outputs: &[Place],
        scratch: Option<(Place, usize)>,
        now: u32,
    ) -> Moment {
        let (graph, node) = (self.graph, self.graph.node(id));
        let again = std::mem::replace(&mut self.ran[id.index()], true);
        let (layer, site) = (self.to.name(&node.scope), self.to.site(node.site));
        let phase = self.phase(id);
        for (v, place) in node.inputs.iter().zip(inputs) {
            if let (Some(held), Place::Arena(_)) = (self.held[self.roots[v.index()].index()], place) {
                self.to.timeline.tensors[held].to = now + 1;
            }
        }
        for (v, place) in node.outputs.iter().zip(outputs) {
            let Place::Arena(offset) = *place else { continue };
            let info = graph.info(*v);
            // What lay here and was read for the last time makes room in this very instruction.
            if let Some(&before) = self.at.get(&offset)
                && self.to.timeline.tensors[before].to > now
            {
                self.to.timeline.tensors[before].to = now;
            }
            let kind = match phase {
                "backward" => Purpose::Gradient,
                "update" => Purpose::Optimizer,
                _ => Purpose::Activation,
            };
            let name = self.to.name(&info.name);
            let at = self.place(name, layer, kind, &info.ty, offset, now, again, site);
            self.held[self.roots[v.index()].index()] = Some(at);
        }
        if let Some((Place::Arena(offset), bytes)) = scratch {
            let (name, ty) = (self.to.name("scratch"), Type::new(DType::U8, [bytes]));
            self.place(name, layer, Purpose::Scratch, &ty, offset, now, again, site);
        }
        let types = |ids: &[ValueId]| -> SmallVec<[&Type; 4]> { ids.iter().map(|&v| graph.ty(v)).collect() };
        let device = self.to.device;
        let (inputs, outputs) = (types(&node.inputs), types(&node.outputs));
        let seconds = device.costs().seconds(device.backend(), &node.op, &inputs, &outputs);
        let us = (seconds * 1e9).round() / 1e3;
        Moment { op: node.op.name(), layer, site, us, what: if again { Did::Again } else { Did::Run }, phase }
    }

    /// Bytes that are moved: of a state's old value put aside, or of a new value into its place.
    fn copy(&mut self, from: Place, to: Place, bytes: usize, now: u32) -> Moment {
        if let Place::Arena(offset) = from
            && let Some(&held) = self.at.get(&offset)
        {
            self.to.timeline.tensors[held].to = now + 1;
        }
        let argument = |place: Place| match place {
            Place::Argument(a) => self.graph.inputs().get(a),
            Place::Result(r) => self.graph.outputs().get(r),
            Place::Arena(_) => None,
        };
        let name = argument(to).or(argument(from)).map_or("", |&v| self.graph.info(v).name.as_str());
        let name = self.to.name(name);
        if let Place::Arena(offset) = to {
            let ty = Type::new(DType::U8, [bytes]);
            self.place(name, name, Purpose::Other, &ty, offset, now, false, None);
        }
        Moment { op: "copy", layer: name, site: None, us: 0.0, what: Did::Copy, phase: "update" }
    }

    /// A copy to the host: its source stays where it is until it has been waited for.
    fn offload(&mut self, value: Option<ValueId>, from: Place, slot: usize, now: u32) -> Moment {
        let root = value.and_then(|v| self.held[self.roots[v.index()].index()]);
        let held = root.or_else(|| match from {
            Place::Arena(offset) => self.at.get(&offset).copied(),
            _ => None,
        });
        self.copies(held, slot, now, "offload", Did::Offload)
    }

    /// A copy back: its target is taken from now on.
    fn prefetch(&mut self, value: Option<ValueId>, to: Place, bytes: usize, slot: usize, now: u32) -> Moment {
        let before = value.and_then(|v| self.held[self.roots[v.index()].index()]);
        let held = match (to, before.map(|held| self.to.timeline.tensors[held].clone())) {
            (Place::Arena(offset), Some(was)) => {
                let ty = value.map_or(Type::new(DType::U8, [bytes]), |v| self.graph.ty(v).clone());
                Some(self.place(was.name, was.layer, was.kind, &ty, offset, now, was.again, was.site))
            }
            (Place::Arena(offset), None) => {
                let (name, ty) = (self.to.name(""), Type::new(DType::U8, [bytes]));
                Some(self.place(name, name, Purpose::Other, &ty, offset, now, false, None))
            }
            _ => None,
        };
        if let Some(v) = value {
            self.held[self.roots[v.index()].index()] = held;
        }
        self.copies(held, slot, now, "prefetch", Did::Prefetch)
    }

    /// State that comes from the host for its update.
    fn fetch(&mut self, argument: usize, to: Place, slot: usize, now: u32) -> Moment {
        let (graph, value) = (self.graph, self.graph.inputs()[argument]);
        let info = graph.info(value);
        let name = self.to.name(&info.name);
        if let Place::Arena(offset) = to {
            let held = self.place(name, name, Purpose::Optimizer, &info.ty, offset, now, false, None);
            self.held[self.roots[value.index()].index()] = Some(held);
        }
        let held = self.held[self.roots[value.index()].index()];
        Moment { phase: "update", ..self.copies(held, slot, now, "prefetch", Did::Prefetch) }
    }

    fn wait(&mut self, slot: usize, now: u32) -> Moment {
        let held = self.copied.get(slot).copied().flatten();
        self.copies(held, slot, now, "await", Did::Await)
    }

    /// What a copy and the wait for it have in common: the tensor is there meanwhile.
    fn copies(&mut self, held: Option<usize>, slot: usize, now: u32, op: &'static str, what: Did) -> Moment {
        if self.copied.len() <= slot {
            self.copied.resize(slot + 1, None);
        }
        self.copied[slot] = held;
        let tensor = held.map(|held| {
            let tensor = &mut self.to.timeline.tensors[held];
            tensor.to = tensor.to.max(now + 1);
            (tensor.layer, tensor.site, tensor.kind)
        });
        let (layer, site, kind) = tensor.unwrap_or_else(|| (self.to.name(""), None, Purpose::Other));
        let phase = if kind == Purpose::Gradient || what == Did::Prefetch { "backward" } else { "forward" };
        Moment { op, layer, site, us: 0.0, what, phase }
    }

    fn place(
        &mut self,
        name: u32,
        layer: u32,
        kind: Purpose,
        ty: &Type,
        offset: usize,
        now: u32,
        again: bool,
        site: Option<u32>,
    ) -> usize {
        let tensors = &mut self.to.timeline.tensors;
        let (shape, dtype, bytes) = (ty.shape.clone(), ty.dtype.name(), padded(ty.bytes()));
        let (from, to) = (now, now + 1);
        let place = offset as u64;
        tensors.push(Interval {
            name,
            layer,
            kind,
            shape,
            dtype,
            bytes,
            offset: place,
            from,
            to,
            again,
            site,
        });
        self.at.insert(offset, tensors.len() - 1);
        tensors.len() - 1
    }

    /// Which part of the step a node belongs to. Code of the model that runs behind the first gradient is the update's,
    /// or in a pass of a split batch, adds to the sums.
    fn phase(&self, id: NodeId) -> &'static str {
        let node = self.graph.node(id);
        match (self.part, node.phase) {
            ("update", _) => "update",
            (_, GraphPhase::Backward) => "backward",
            (_, GraphPhase::Forward) if id.index() < self.first_backward => "forward",
            ("pass", _) => "backward",
            _ => "update",
        }
    }
}

/// What the parts of a step's state are for.
fn purpose(kind: Kind) -> Purpose {
    match kind {
        Kind::Parameter => Purpose::Parameter,
        Kind::Gradient => Purpose::Gradient,
        Kind::Optimizer => Purpose::Optimizer,
        Kind::Activation => Purpose::Activation,
        Kind::Input => Purpose::Input,
        Kind::Other => Purpose::Other,
    }
}

fn padded(bytes: usize) -> u64 {
    bytes.next_multiple_of(ALIGNMENT) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Held, Pass, Step, StepOptions, StepResult, Tape, Tensor, TensorOps};
    use plimsoll_device::Bytes;
    use plimsoll_plan::Exactness;

    /// A chain of layers whose gradients need what every one of them made, batched.
    fn step(options: StepOptions) -> crate::Result<Step> {
        let device = Device::cpu_with(1, Bytes::mib(256)).unwrap();
        device.scope(|| {
            let tensor = Tensor::from_slice(&vec![0.01f32; 256 * 256], [256, 256])?;
            let held = vec![Held { name: "chain/weight".into(), kind: Kind::Parameter, tensor }];
            let inputs = [Type::new(DType::F32, [512, 256])];
            Step::compile_with(options, held, &inputs, |pass: &Pass<'_>| {
                let tape = Tape::new();
                tape.watch(&pass.state[0])?;
                let mut x = pass.inputs[0].clone();
                for i in 0..12 {
                    let layer = || x.matmul(&pass.state[0])?.tanh()?.exp()?.sin();
                    x = crate::named(&format!("layer{i}"), layer)?;
                }
                let loss = x.square()?.mean(&[], false)?;
                let gradient = tape.gradient(&loss, &[&pass.state[0]])?.remove(0);
                let state = vec![pass.state[0].sub(&gradient.mul_scalar(0.1)?)?];
                Ok(StepResult { state, outputs: vec![loss], totals: vec![] })
            })
        })
    }

    fn options(exactness: Exactness) -> StepOptions {
        StepOptions { batched: true, guarded: true, ..StepOptions::default() }.exactness(exactness)
    }

    /// Two tensors that are there at once lie apart, all inside the arena, and add up to what the plan calls live.
    fn consistent(step: &Step) -> Timeline {
        let timeline = step.timeline().unwrap();
        assert_eq!(timeline.peak().1, step.info().live.get());
        assert_eq!(timeline.arena_bytes, step.info().arena.get());
        let residents: u64 = timeline.residents.iter().map(|r| r.bytes).sum();
        let held = timeline.program_bytes + timeline.pipeline_bytes + timeline.other_bytes + residents;
        assert_eq!(held + timeline.arena_bytes + timeline.unused_bytes, step.info().planned.get());
        let us: f64 = timeline.instructions.iter().map(|i| i.us).sum();
        if timeline.stretches.len() == 1 {
            assert!((us / 1e6 - step.info().predicted_seconds).abs() < 1e-6, "{us} µs");
        }
        for (i, a) in timeline.tensors.iter().enumerate() {
            assert!(a.from < a.to && a.to as usize <= timeline.instructions.len(), "{a:?}");
            assert!(a.offset + a.bytes <= timeline.arena_bytes, "{a:?}");
            for b in &timeline.tensors[..i] {
                let at_once = a.from < b.to && b.from < a.to;
                let apart = a.offset + a.bytes <= b.offset || b.offset + b.bytes <= a.offset;
                assert!(!at_once || apart, "{a:?} and {b:?}");
            }
        }
        timeline
    }

    fn again(timeline: &Timeline) -> u64 {
        timeline.instructions.iter().filter(|i| i.what == Did::Again).count() as u64
    }

    #[test]
    fn a_timeline_holds_at_its_peak_what_the_plan_calls_live() {
        let step = step(options(Exactness::Bitwise)).unwrap();
        let timeline = consistent(&step);
        assert_eq!(timeline.stretches.len(), 1);
        assert_eq!(timeline.names[timeline.residents[0].name as usize], "chain/weight");
        assert!(timeline.instructions.iter().any(|i| i.what == Did::Check));
        assert!(timeline.names.iter().any(|name| name == "layer7"));
        assert!(timeline.sites.iter().all(|site| site.contains("timeline.rs:")), "{:?}", timeline.sites);
    }

    #[test]
    fn what_a_line_makes_run_again_is_marked() {
        let free = step(options(Exactness::Bitwise)).unwrap();
        let line = Bytes(free.info().floor.get() + (2 << 20));
        let tight = step(options(Exactness::Bitwise).limit(Some(line))).unwrap();
        let timeline = consistent(&tight);
        assert!(again(&timeline) > 0);
        assert_eq!(again(&timeline), tight.info().recomputed_ops);
        assert!(timeline.tensors.iter().any(|t| t.again));
        assert_eq!(timeline.line_bytes, Some(line.get()));
    }

    #[test]
    fn a_split_batch_is_a_pass_and_an_update_in_a_row() {
        let split = options(Exactness::Reassociated).micro_batch(Some(128));
        let timeline = consistent(&step(split).unwrap());
        let stretches: Vec<(&str, usize, usize)> =
            timeline.stretches.iter().map(|s| (s.name, s.samples, s.runs)).collect();
        assert_eq!(stretches, [("pass", 128, 4), ("update", 0, 1)]);
        let sums = timeline.residents.iter().filter(|r| r.kind == Purpose::Gradient);
        assert!(sums.map(|r| r.bytes).sum::<u64>() >= 256 * 256 * 4);
        assert!(timeline.instructions.iter().any(|i| i.phase == "update"));
    }
}
