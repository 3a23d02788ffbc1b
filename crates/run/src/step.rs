//! A training step: a traced function over state that it updates in place.
//!
//! The state's bytes, the arena and the results are taken once, when the step is compiled; running it allocates
//! nothing.

use std::sync::Arc;
use std::time::Instant;

use plimsoll_device::{Bytes, Kind as LedgerKind, Ledger, process};
use plimsoll_graph::{Site, TensorOps, Type};
use plimsoll_plan::{Exactness, Kind};

use crate::account::Account;
use crate::compile::{Compile, Compiled, Part, staged};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::tensor::{Buffer, Tensor};

/// How often a step is planned again because planning left more pages behind than were declared.
const MOST_TRIES: usize = 4;

/// A tensor that a step keeps from run to run.
#[derive(Clone)]
pub struct Held {
    /// What plans, refusals and reports call it.
    pub name: String,
    /// What it is for.
    pub kind: Kind,
    /// Its value before the first run.
    pub tensor: Tensor,
}

/// How a step is compiled.
#[derive(Clone, Debug)]
pub struct StepOptions {
    /// The line: the most that the process may take, as the system counts it. Without one a step takes the least memory
    /// that is predicted to cost at most one percent of time over the fastest plan.
    pub memory: Option<Bytes>,
    /// How far a plan may depart from the bits of an unlimited run.
    pub exactness: Exactness,
    /// Samples in a batch, if the first axis of every input counts them and the body may be traced for fewer.
    pub batch: Option<usize>,
    /// Samples in a micro-batch, where that is not for the planner to choose.
    pub micro_batch: Option<usize>,
    /// What the process will take for other things while the step runs: an input pipeline, say.
    pub beside: Bytes,
}

impl Default for StepOptions {
    fn default() -> StepOptions {
        StepOptions {
            memory: None,
            exactness: Exactness::Bitwise,
            batch: None,
            micro_batch: None,
            beside: Bytes::ZERO,
        }
    }
}

/// What the body of a step is given.
pub struct Pass<'a> {
    /// The state.
    pub state: &'a [Tensor],
    /// The inputs: the whole batch, or a micro-batch of it.
    pub inputs: &'a [Tensor],
    /// The position in the batch of the first sample, `i64[1]`: what random ops need so that a mask does not depend on
    /// how the batch is split.
    pub first: &'a Tensor,
}

/// What the body of a step gives back.
#[derive(Default)]
pub struct StepResult {
    /// The new state, in the order and of the types of the old.
    pub state: Vec<Tensor>,
    /// What else is to be seen, each a mean over the samples: the loss, say.
    pub outputs: Vec<Tensor>,
    /// More of it, each a total over the samples: counts for a metric, say.
    pub totals: Vec<Tensor>,
}

/// A compiled step with its state.
///
/// ```
/// use plimsoll_run::{Step, StepResult, Tape, Tensor, TensorOps};
/// // Fit w to 3 by gradient descent on (w - 3)².
/// let w = Tensor::from_slice(&[0.0f32], [1])?;
/// let mut step = Step::compile(vec![w], &[], |state, _| {
///     let tape = Tape::new();
///     tape.watch(&state[0])?;
///     let loss = state[0].add_scalar(-3.0)?.square()?.sum(&[], false)?;
///     let grad = tape.gradient(&loss, &[&state[0]])?.remove(0);
///     let state = vec![state[0].sub(&grad.mul_scalar(0.1)?)?];
///     Ok(StepResult { state, outputs: vec![loss], totals: vec![] })
/// })?;
/// for _ in 0..100 {
///     step.run(&[])?;
/// }
/// assert!((step.state()[0].to_vec::<f32>()?[0] - 3.0).abs() < 1e-4);
/// # Ok::<(), plimsoll_run::Error>(())
/// ```
pub struct Step {
    device: Device,
    names: Vec<(String, Kind)>,
    state: Vec<Tensor>,
    inputs: Vec<Type>,
    outputs: Vec<Tensor>,
    passes: Vec<Bound>,
    update: Option<Bound>,
    /// What passes add up; zeroed before the first.
    sums: Vec<Arc<Buffer>>,
    /// Where rows of an input are copied to if they are not aligned.
    rows: Vec<Option<Buffer>>,
    /// The position of each pass's first sample.
    firsts: Vec<Tensor>,
    arena: Buffer,
    info: StepInfo,
}

/// A part of the step with the memory it runs over.
struct Bound {
    part: Part,
    /// Pointers of state, inputs, first sample, captured tensors and sums; those that vary are set at each run.
    arguments: Vec<*mut u8>,
    results: Vec<*mut u8>,
    /// For each result, the state or output it stands for; `None` for a sum.
    targets: Vec<Option<Target>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Target {
    State(usize),
    Output(usize),
}

/// What was planned for a step. Bytes are of the whole process, as the system will count it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepInfo {
    /// What the plan will take.
    pub planned: Bytes,
    /// The least for which there is a plan, at the exactness that was allowed.
    pub floor: Bytes,
    /// What the fastest plan would take.
    pub unlimited: Bytes,
    /// The most bytes of the arena that are needed at once: no packing could be smaller.
    pub live: Bytes,
    /// The parts of what is taken beside the arena.
    pub account: Account,
    /// Predicted seconds of a step.
    pub predicted_seconds: f64,
    /// Predicted seconds without a line.
    pub unlimited_seconds: f64,
    /// Ops that run again instead of keeping their results.
    pub recomputed_ops: u64,
    /// Into how many micro-batches the batch is split.
    pub micro_batches: usize,
    /// How far the plan departs from the bits of an unlimited run.
    pub exactness: Exactness,
    /// Seconds that tracing, timing of kernels and planning took.
    pub plan_seconds: f64,
}

impl StepInfo {
    fn new(compiled: &Compiled, plan_seconds: f64) -> StepInfo {
        let parts = || compiled.passes.iter().chain(&compiled.update);
        let arena = parts().map(|p| p.program.arena_bytes()).max().unwrap_or(0);
        let live = parts().map(|p| p.program.figures().live_bytes).max().unwrap_or(0);
        let again = |p: &Part| p.program.figures().recomputed_ops * p.runs as u64;
        StepInfo {
            planned: compiled.account.elsewhere() + compiled.extra + arena.into(),
            floor: compiled.floor,
            unlimited: compiled.unlimited,
            live: Bytes(live),
            account: compiled.account,
            predicted_seconds: compiled.predicted_ns as f64 / 1e9,
            unlimited_seconds: compiled.unlimited_ns as f64 / 1e9,
            recomputed_ops: parts().map(again).sum(),
            micro_batches: compiled.passes.iter().map(|p| p.runs).sum(),
            exactness: compiled.exactness,
            plan_seconds,
        }
    }
}

// SAFETY: the pointers are into buffers that the step owns or, for inputs, are set anew at each run.
unsafe impl Send for Step {}

impl Step {
    /// Traces and compiles a step over a state and inputs of the given types, without a line and without splitting.
    #[track_caller]
    pub fn compile(
        state: Vec<Tensor>,
        inputs: &[Type],
        body: impl Fn(&[Tensor], &[Tensor]) -> Result<StepResult>,
    ) -> Result<Step> {
        let kind = Kind::Parameter;
        let named = |(i, tensor): (usize, Tensor)| Held { name: format!("state {i}"), kind, tensor };
        let held = state.into_iter().enumerate().map(named).collect();
        Step::compile_with(&StepOptions::default(), held, inputs, |pass| body(pass.state, pass.inputs))
    }

    /// As [`Step::compile`], with options: under a line, the fastest plan with which the process, as the system counts
    /// it, stays within it; or a refusal that names the least that would do.
    ///
    /// The body is traced once for each number of samples that is considered for a micro-batch.
    #[track_caller]
    pub fn compile_with(
        options: &StepOptions,
        held: Vec<Held>,
        inputs: &[Type],
        body: impl Fn(&Pass<'_>) -> Result<StepResult>,
    ) -> Result<Step> {
        let site = Site::here();
        let device = match held.first() {
            Some(first) => first.tensor.buffer(site)?.device().clone(),
            None => Device::current()?,
        };
        if let Some(batch) = options.batch
            && let Some(ty) = inputs.iter().find(|ty| ty.shape.first() != Some(&batch))
        {
            let why = format!("has an input of {ty} where the first axis should be a batch of {batch}");
            return Err(Error::Signature { site, why });
        }
        let held = held
            .into_iter()
            .map(|h| Ok(Held { tensor: own(h.tensor, site)?, ..h }))
            .collect::<Result<Vec<Held>>>()?;
        let start = Instant::now();
        let compile = Compile { device: &device, held: &held, inputs, options, body: &body, site };
        let mut compiled = compile.run()?;
        process::release_unused_heap();
        // Planning may leave more pages behind than were declared; then it is done again with so much less.
        for _ in 0..MOST_TRIES {
            if options.memory.is_none() || compiled.account.holds(&device) {
                break;
            }
            compiled = compile.run()?;
            process::release_unused_heap();
        }
        let info = StepInfo::new(&compiled, start.elapsed().as_secs_f64());
        Step::install(compiled, info, device, held, inputs, options.batch.unwrap_or(1), site)
    }

    /// Takes the memory that a compiled step runs over.
    fn install(
        compiled: Compiled,
        info: StepInfo,
        device: Device,
        held: Vec<Held>,
        inputs: &[Type],
        batch: usize,
        site: Site,
    ) -> Result<Step> {
        let buffer = |bytes: usize, what| Ok(Arc::new(Buffer::new(&device, bytes, what, site)?));
        let Compiled { passes, update, sums, passed, updated, outputs, .. } = compiled;
        let outputs = outputs
            .into_iter()
            .map(|ty| Ok(Tensor::eager(ty.clone(), buffer(ty.bytes(), "step output")?)))
            .collect::<Result<Vec<Tensor>>>()?;
        let sums = sums
            .iter()
            .map(|ty| buffer(ty.bytes(), "sum over micro-batches"))
            .collect::<Result<Vec<Arc<Buffer>>>>()?;
        let samples = passes.first().map_or(1, |p| p.samples);
        let rows = inputs
            .iter()
            .map(|ty| match staged(ty, batch, samples) {
                _ if update.is_none() => Ok(None),
                Bytes::ZERO => Ok(None),
                bytes => Ok(Some(Buffer::new(&device, bytes.get() as usize, "rows of a micro-batch", site)?)),
            })
            .collect::<Result<Vec<Option<Buffer>>>>()?;
        let mut firsts = Vec::new();
        let mut at = 0;
        for part in &passes {
            for _ in 0..part.runs {
                firsts.push(device.scope(|| Tensor::from_slice(&[at as i64], [1]))?);
                at += part.samples;
            }
        }
        let parts = || passes.iter().chain(&update);
        let arena = parts().map(|p| p.program.arena_bytes()).max().unwrap_or(1);
        let arena = Buffer::new(&device, arena, "step arena", site)?;
        let n = held.len();
        let whole: Vec<Option<Target>> = (0..n)
            .map(|i| Some(Target::State(i)))
            .chain((0..outputs.len()).map(|i| Some(Target::Output(i))))
            .collect();
        let states = |which: &[usize]| which.iter().map(|&i| Some(Target::State(i))).collect::<Vec<_>>();
        let split = update.is_some();
        let (state, names) = held.into_iter().map(|h| (h.tensor, (h.name, h.kind))).unzip();
        let mut step = Step {
            device: device.clone(),
            names,
            state,
            inputs: inputs.to_vec(),
            outputs,
            passes: Vec::new(),
            update: None,
            sums,
            rows,
            firsts,
            arena,
            info,
        };
        for part in passes {
            let targets = match split {
                false => whole.clone(),
                true => states(&passed).into_iter().chain(step.sums.iter().map(|_| None)).collect(),
            };
            let bound = step.bind(part, targets, site)?;
            step.passes.push(bound);
        }
        if let Some(part) = update {
            let results = (0..step.outputs.len()).map(|i| Some(Target::Output(i)));
            let targets = states(&updated).into_iter().chain(results).collect();
            step.update = Some(step.bind(part, targets, site)?);
        }
        Ok(step)
    }

    fn bind(&self, part: Part, targets: Vec<Option<Target>>, site: Site) -> Result<Bound> {
        let pointer = |t: &Tensor| Ok(t.buffer(site)?.ptr());
        let mut arguments = self.state.iter().map(pointer).collect::<Result<Vec<*mut u8>>>()?;
        arguments.extend(self.inputs.iter().map(|_| std::ptr::null_mut::<u8>()));
        arguments.push(pointer(&self.firsts[0])?);
        arguments.extend(part.captured.iter().map(pointer).collect::<Result<Vec<_>>>()?);
        arguments.extend(self.sums.iter().map(|sum| sum.ptr()));
        let mut sums = self.sums.iter();
        let results = targets
            .iter()
            .map(|target| match target {
                Some(Target::State(i)) => pointer(&self.state[*i]),
                Some(Target::Output(i)) => pointer(&self.outputs[*i]),
                None => sums
                    .next()
                    .map(|sum| sum.ptr())
                    .ok_or_else(|| Error::Internal("a pass gives more sums than there are".into())),
            })
            .collect::<Result<Vec<*mut u8>>>()?;
        Ok(Bound { part, arguments, results, targets })
    }

    /// Runs the step once: the state is updated, the outputs are overwritten.
    #[track_caller]
    pub fn run(&mut self, inputs: &[&Tensor]) -> Result<&[Tensor]> {
        let site = Site::here();
        self.check(inputs, site)?;
        self.unshare(site)?;
        let n = self.state.len();
        for sum in &self.sums {
            // SAFETY: the sums are the step's own, this many bytes of the CPU's memory.
            unsafe { sum.ptr().write_bytes(0, sum.bytes()) };
        }
        let (mut sample, mut pass) = (0, 0);
        let split = self.update.is_some();
        for bound in &mut self.passes {
            for _ in 0..bound.part.runs {
                for (i, (input, ty)) in inputs.iter().zip(&self.inputs).enumerate() {
                    let source = input.buffer(site)?.ptr();
                    bound.arguments[n + i] = if split {
                        let row = ty.bytes() / ty.shape.first().copied().unwrap_or(1).max(1);
                        // SAFETY: the micro-batches' rows lie inside the input, which was checked against its type.
                        let rows = unsafe { source.add(sample * row) };
                        match &self.rows[i] {
                            None => rows,
                            Some(copy) => {
                                // SAFETY: the copy has room for the rows of the largest micro-batch and is the step's own.
                                unsafe { copy.ptr().copy_from(rows, row * bound.part.samples) };
                                copy.ptr()
                            }
                        }
                    } else {
                        source
                    };
                }
                bound.arguments[n + inputs.len()] = self.firsts[pass].buffer(site)?.ptr();
                // SAFETY: state, outputs, sums and arena are the step's own and nobody else holds a clone of them, inputs
                // are alive through their tensors, captured ones through the step.
                unsafe { bound.run(&self.device, &self.arena) }?;
                sample += bound.part.samples;
                pass += 1;
            }
        }
        if let Some(bound) = &mut self.update {
            // SAFETY: as above; an update reads no inputs.
            unsafe { bound.run(&self.device, &self.arena) }?;
        }
        Ok(&self.outputs)
    }

    fn check(&self, inputs: &[&Tensor], site: Site) -> Result<()> {
        if inputs.len() != self.inputs.len() {
            let why = format!("gives {} inputs to a step of {}", inputs.len(), self.inputs.len());
            return Err(Error::Signature { site, why });
        }
        for (i, (input, ty)) in inputs.iter().zip(&self.inputs).enumerate() {
            if input.ty() != ty {
                let why = format!("gives {} as input {i} to a step of {ty}", input.ty());
                return Err(Error::Signature { site, why });
            }
            let buffer = input.buffer(site)?;
            if !buffer.device().same(&self.device) {
                let (first, second) = (self.device.name().to_string(), buffer.device().name().to_string());
                return Err(Error::TwoDevices { op: "step", site, first, second });
            }
        }
        Ok(())
    }

    /// Gives state and outputs of which somebody holds a clone bytes of their own, so that a clone keeps what it saw.
    fn unshare(&mut self, site: Site) -> Result<()> {
        for i in 0..self.state.len() {
            if Arc::strong_count(self.state[i].buffer(site)?) > 1 {
                self.state[i] = self.state[i].copy()?;
                let pointer = self.state[i].buffer(site)?.ptr();
                self.parts_mut().for_each(|bound| bound.arguments[i] = pointer);
                self.point(Target::State(i), pointer);
            }
        }
        for i in 0..self.outputs.len() {
            if Arc::strong_count(self.outputs[i].buffer(site)?) > 1 {
                let ty = self.outputs[i].ty().clone();
                let fresh = Arc::new(Buffer::new(&self.device, ty.bytes(), "step output", site)?);
                let pointer = fresh.ptr();
                self.outputs[i] = Tensor::eager(ty, fresh);
                self.point(Target::Output(i), pointer);
            }
        }
        Ok(())
    }

    fn parts_mut(&mut self) -> impl Iterator<Item = &mut Bound> {
        self.passes.iter_mut().chain(&mut self.update)
    }

    fn point(&mut self, target: Target, pointer: *mut u8) {
        for bound in self.parts_mut() {
            if let Some(r) = bound.targets.iter().position(|t| *t == Some(target)) {
                bound.results[r] = pointer;
            }
        }
    }

    /// The state as it stands. A clone keeps what it saw: the next run copies what is shared before it writes.
    pub fn state(&self) -> &[Tensor] {
        &self.state
    }

    /// The state by itself, when the step is no longer needed.
    pub fn into_state(self) -> Vec<Tensor> {
        self.state
    }

    /// The outputs of the last run, then its totals.
    pub fn outputs(&self) -> &[Tensor] {
        &self.outputs
    }

    /// What was planned.
    pub fn info(&self) -> &StepInfo {
        &self.info
    }

    /// Bytes of the arena that activations, gradients and scratch share.
    pub fn arena_bytes(&self) -> Bytes {
        self.arena.bytes().into()
    }

    /// Bytes of the state.
    pub fn state_bytes(&self) -> Bytes {
        self.state.iter().map(|t| Bytes::from(t.ty().bytes())).sum()
    }

    /// The account of the step's memory, planned and measured side by side.
    pub fn ledger(&self) -> Ledger {
        let mut ledger = Ledger::new();
        let account = self.info.account;
        let mut row = |kind: LedgerKind, name: &str, planned: Bytes, measured: Bytes| {
            ledger.plan(kind, name, planned);
            ledger.set(kind, name, measured);
        };
        for ((name, kind), tensor) in self.names.iter().zip(&self.state) {
            let bytes = Bytes::from(tensor.ty().bytes());
            row(ledger_kind(*kind), name, bytes, bytes);
        }
        for (i, ty) in self.inputs.iter().enumerate() {
            let bytes = Bytes::from(ty.bytes());
            row(LedgerKind::Input, &format!("input {i}"), bytes, bytes);
        }
        let sums: Bytes = self.sums.iter().map(|sum| Bytes::from(sum.bytes())).sum();
        if sums > Bytes::ZERO {
            row(LedgerKind::Gradient, "sums over micro-batches", sums, sums);
        }
        let parts = self.passes.iter().chain(&self.update);
        let planned = parts.map(|bound| bound.part.program.arena_bytes()).max().unwrap_or(0);
        row(LedgerKind::Activation, "arena", planned.into(), self.arena_bytes());
        let own = process::resident().unwrap_or(Bytes::ZERO);
        let own = own.saturating_sub(self.device.memory_info().current);
        row(LedgerKind::Program, "program", account.program, own);
        ledger
    }
}

impl Bound {
    /// # Safety
    /// As for [`crate::program::Program::run`].
    unsafe fn run(&self, device: &Device, arena: &Buffer) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.part.program.run(device, &self.arguments, &self.results, arena.ptr()) }
    }
}

fn ledger_kind(kind: Kind) -> LedgerKind {
    match kind {
        Kind::Parameter => LedgerKind::Parameter,
        Kind::Gradient => LedgerKind::Gradient,
        Kind::Optimizer => LedgerKind::Optimizer,
        Kind::Activation => LedgerKind::Activation,
        Kind::Input => LedgerKind::Input,
        Kind::Other => LedgerKind::Program,
    }
}

/// The tensor with bytes that nobody else can see.
fn own(tensor: Tensor, site: Site) -> Result<Tensor> {
    if Arc::strong_count(tensor.buffer(site)?) == 1 { Ok(tensor) } else { tensor.copy() }
}
