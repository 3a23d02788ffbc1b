//! A training step: a traced function over state that it updates in place.
//!
//! The state's bytes, the arena and the results are taken once, when the step is compiled; running it allocates
//! nothing.

use std::sync::Arc;
use std::time::Instant;

use plimsoll_device::backend::HostArena;
use plimsoll_device::{Bytes, Kind as LedgerKind, Ledger, process};
use plimsoll_graph::{Site, TensorOps, Type};
use plimsoll_plan::{Exactness, Kind};

use crate::account::{Account, own as own_bytes};
use crate::compile::{Compile, Compiled};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::peak::{Peak, ledger_kind};
use crate::survey::Survey;
use crate::tensor::{Buffer, Tensor};
use crate::timeline::{Recorded, Timeline};
use crate::variant::{Meanwhile, Variant};

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
///
/// ```
/// use plimsoll_run::StepOptions;
/// let options = StepOptions { memory: Some("64MiB".parse().unwrap()), ..StepOptions::default() };
/// assert_eq!(options.shapes, 4);
/// ```
#[derive(Clone, Debug)]
pub struct StepOptions {
    /// The line: the most that the process may take, as the system counts it. Without one a step takes the least memory
    /// that is predicted to cost at most one percent of time over the fastest plan.
    pub memory: Option<Bytes>,
    /// How much of the host's memory a plan may copy activations to and fetch them back from, beside the kernels: pinned
    /// memory, taken once when the step is compiled. None and zero mean that nothing is copied. Only a device with memory of
    /// its own has a use for it; on the CPU it is not looked at.
    pub host_memory: Option<Bytes>,
    /// How far a plan may depart from the bits of an unlimited run.
    pub exactness: Exactness,
    /// Whether the first axis of every input counts samples, so that the body may be traced for fewer of them.
    pub batched: bool,
    /// Samples in a micro-batch, where that is not for the planner to choose.
    pub micro_batch: Option<usize>,
    /// What the process will take for other things while the step runs: an input pipeline, say.
    pub beside: Bytes,
    /// Whether the next batch of inputs is on its way while the step runs, so that there are two of them.
    pub ahead: bool,
    /// Whether the first output, the loss, must be finite: if it is not, the step is an error and changes nothing. Without
    /// this, a step that is not finite is like any other.
    pub guarded: bool,
    /// For how many input shapes compiled forms are kept; the one that was not used for longest makes room for another.
    pub shapes: usize,
}

impl Default for StepOptions {
    fn default() -> StepOptions {
        StepOptions {
            memory: None,
            host_memory: None,
            exactness: Exactness::Bitwise,
            batched: false,
            micro_batch: None,
            beside: Bytes::ZERO,
            ahead: false,
            guarded: false,
            shapes: 4,
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
    options: StepOptions,
    /// The step itself, then whatever else is run over the same state.
    bodies: Vec<Body>,
    names: Vec<(String, Kind)>,
    state: Vec<Tensor>,
    /// The compiled forms, the one used last at the end.
    variants: Vec<Variant>,
    /// What all of them run in, one at a time.
    workspace: Buffer,
    /// How often the step itself has run since it was planned.
    runs: u64,
    /// What happened that its owner should be told.
    notice: Option<String>,
    /// What all of them copy to, one at a time; none where nothing may be copied.
    host: Option<Box<dyn HostArena>>,
}

type Body = Box<dyn Fn(&Pass<'_>) -> Result<StepResult> + Send>;

/// What was planned for a step. Bytes are of the whole process, as the system will count it.
#[derive(Clone, Debug, PartialEq)]
pub struct StepInfo {
    /// What the plan will take.
    pub planned: Bytes,
    /// The least for which there is a plan, at the exactness that was allowed.
    pub floor: Bytes,
    /// What the fastest plan would take.
    pub unlimited: Bytes,
    /// The most bytes of the arena that are needed at once: no packing could be smaller.
    pub live: Bytes,
    /// Bytes of the arena that activations, gradients and scratch share.
    pub arena: Bytes,
    /// The parts of what is taken beside the arena.
    pub account: Account,
    /// Predicted seconds of a step.
    pub predicted_seconds: f64,
    /// Predicted seconds without a line.
    pub unlimited_seconds: f64,
    /// What the fastest plan would take if every value had bytes of its own: what order and sharing save is the rest.
    pub unshared: Bytes,
    /// What the plan would take with its micro-batches if nothing ran again: what splitting saves, and what recomputation.
    pub kept: Bytes,
    /// Predicted seconds of that.
    pub kept_seconds: f64,
    /// Ops that run again instead of keeping their results.
    pub recomputed_ops: u64,
    /// Bytes of the host's memory that are taken to copy to, beside what is planned of the device's.
    pub host_bytes: Bytes,
    /// Bytes that a step copies to the host, to fetch them back later.
    pub offloaded_bytes: Bytes,
    /// Copies to the host and back in a step.
    pub offloaded_copies: u64,
    /// Into how many micro-batches the batch is split.
    pub micro_batches: usize,
    /// How far the plan departs from the bits of an unlimited run.
    pub exactness: Exactness,
    /// Seconds that tracing, timing of kernels and planning took.
    pub plan_seconds: f64,
    /// What is held when most is: by kind, by name, at which op.
    pub peak: Peak,
}

/// The plan of a step before there is one.
static NOTHING: StepInfo = StepInfo {
    planned: Bytes::ZERO,
    floor: Bytes::ZERO,
    unlimited: Bytes::ZERO,
    live: Bytes::ZERO,
    arena: Bytes::ZERO,
    account: Account { program: Bytes::ZERO, tensors: Bytes::ZERO, staged: Bytes::ZERO, beside: Bytes::ZERO },
    predicted_seconds: 0.0,
    unlimited_seconds: 0.0,
    unshared: Bytes::ZERO,
    kept: Bytes::ZERO,
    kept_seconds: 0.0,
    recomputed_ops: 0,
    host_bytes: Bytes::ZERO,
    offloaded_bytes: Bytes::ZERO,
    offloaded_copies: 0,
    micro_batches: 0,
    exactness: Exactness::Bitwise,
    plan_seconds: 0.0,
    peak: Peak::NOTHING,
};

impl Step {
    /// Traces and compiles a step over a state and inputs of the given types, without a line and without splitting.
    #[track_caller]
    pub fn compile(
        state: Vec<Tensor>,
        inputs: &[Type],
        body: impl Fn(&[Tensor], &[Tensor]) -> Result<StepResult> + Send + 'static,
    ) -> Result<Step> {
        let kind = Kind::Parameter;
        let named = |(i, tensor): (usize, Tensor)| Held { name: format!("state {i}"), kind, tensor };
        let held = state.into_iter().enumerate().map(named).collect();
        let body = move |pass: &Pass<'_>| body(pass.state, pass.inputs);
        Step::compile_with(StepOptions::default(), held, inputs, body)
    }

    /// As [`Step::compile`], with options: under a line, the fastest plan with which the process, as the system counts
    /// it, stays within it; or a refusal that names the least that would do.
    ///
    /// The body is traced once for each number of samples that is considered for a micro-batch, and again for inputs of
    /// other types than these when they come.
    #[track_caller]
    pub fn compile_with(
        options: StepOptions,
        held: Vec<Held>,
        inputs: &[Type],
        body: impl Fn(&Pass<'_>) -> Result<StepResult> + Send + 'static,
    ) -> Result<Step> {
        Step::over(options, held, Some(inputs), body)
    }

    /// As [`Step::compile_with`], but nothing is compiled before it is run: for a state of which only other bodies are
    /// wanted.
    #[track_caller]
    pub fn idle(
        options: StepOptions,
        held: Vec<Held>,
        body: impl Fn(&Pass<'_>) -> Result<StepResult> + Send + 'static,
    ) -> Result<Step> {
        Step::over(options, held, None, body)
    }

    /// What [`Step::compile_with`] would plan for a state of these types, on a device: no memory is taken for it.
    #[track_caller]
    pub fn survey(
        options: &StepOptions,
        device: &Device,
        held: &[(String, Kind, Type)],
        inputs: &[Type],
        body: impl Fn(&Pass<'_>) -> Result<StepResult>,
    ) -> Result<(StepInfo, Bytes)> {
        let info = Survey::new(options, device, held, inputs, body)?.plan(options.memory)?;
        let arena = info.arena;
        Ok((info, arena))
    }

    #[track_caller]
    fn over(
        options: StepOptions,
        held: Vec<Held>,
        inputs: Option<&[Type]>,
        body: impl Fn(&Pass<'_>) -> Result<StepResult> + Send + 'static,
    ) -> Result<Step> {
        let site = Site::here();
        let device = match held.first() {
            Some(first) => first.tensor.buffer(site)?.device().clone(),
            None => Device::current()?,
        };
        let (mut names, mut state) = (Vec::new(), Vec::new());
        for Held { name, kind, tensor } in held {
            names.push((name, kind));
            state.push(own(tensor, site)?);
        }
        let workspace = Buffer::new(&device, 0, "step workspace", site)?;
        let bodies: Vec<Body> = vec![Box::new(body)];
        let variants = Vec::new();
        let (host, runs, notice) = (None, 0, None);
        let mut step =
            Step { device, options, bodies, names, state, variants, workspace, host, runs, notice };
        if let Some(inputs) = inputs {
            step.prepare(0, inputs, false, site)?;
        }
        Ok(step)
    }

    /// Adds another computation over the same state, in the same workspace and under the same line: an evaluation, say.
    /// Returns the number to call it by ([`Step::run_body`]).
    pub fn add_body(&mut self, body: impl Fn(&Pass<'_>) -> Result<StepResult> + Send + 'static) -> usize {
        self.bodies.push(Box::new(body));
        self.bodies.len() - 1
    }

    /// Makes the form for inputs of these types the last of the list, compiling it if it is not there. `present` says that such
    /// inputs exist.
    fn prepare(&mut self, body: usize, inputs: &[Type], present: bool, site: Site) -> Result<()> {
        if let Some(i) = self.variants.iter().position(|v| v.body == body && v.inputs == inputs) {
            // Without moving anything where it is the last already: the steady state.
            self.variants[i..].rotate_left(1);
            return Ok(());
        }
        for _ in 0..MOST_TRIES {
            // The workspace holds nothing between runs; while a plan is made and kernels are timed, its bytes are free.
            self.drop_workspace(site)?;
            self.start_copying(self.options.host_memory, site)?;
            let variant = match self.build(body, inputs, &self.options, present, site) {
                Ok(variant) => variant,
                Err(error) => {
                    self.fit_workspace(site)?;
                    return Err(error);
                }
            };
            let is_full = self.variants.len() >= self.options.shapes.max(1);
            self.variants.push(variant);
            match self.fit_workspace(site) {
                // Somebody else took memory of the device since the plan was made: the next keeps to what is left.
                Err(Error::OutOfMemory(_)) if self.device.capacity().is_some() => self.variants.pop(),
                Err(error) => return Err(error),
                Ok(()) if is_full => Some(self.variants.remove(0)),
                Ok(()) => None,
            };
            if self.variants.last().is_some_and(|v| v.body == body && v.inputs == inputs) {
                return Ok(());
            }
        }
        self.fit_workspace(site)
    }

    /// Compiles a form of the step.
    fn build(
        &self,
        body: usize,
        inputs: &[Type],
        options: &StepOptions,
        present: bool,
        site: Site,
    ) -> Result<Variant> {
        let batch = batch_of(options, inputs, site)?;
        let start = Instant::now();
        let (device, state, names) = (&self.device, &self.state, &self.names);
        let Some(traced) = self.bodies.get(body) else {
            return Err(Error::Signature {
                site,
                why: format!("runs body {body} of a step of {}", self.bodies.len()),
            });
        };
        // Only the step itself changes state, so only it can leave something half changed.
        let guarded = options.guarded && body == 0;
        let started = !self.variants.is_empty();
        let compile = Compile {
            device,
            state,
            names,
            inputs,
            batch,
            options,
            guarded,
            absent: Bytes::ZERO,
            started,
            present,
            body: &**traced,
            site,
        };
        let plan = |compile: &Compile<'_>| -> Result<Compiled> {
            let mut compiled = compile.run()?;
            process::release_unused_heap();
            for _ in 0..MOST_TRIES {
                if compile.options.memory.is_none() || compiled.info.account.holds(&self.device, started) {
                    break;
                }
                compiled = compile.run()?;
                process::release_unused_heap();
            }
            Ok(compiled)
        };
        let mut compiled = plan(&compile)?;
        // Whatever the line, a plan must fit into what the device has left; others may have taken some of it.
        if let Some(capacity) = self.device.capacity().filter(|left| compiled.info.planned > *left) {
            let options = &StepOptions { memory: Some(capacity), ..options.clone() };
            compiled = plan(&Compile { options, ..compile }).map_err(|error| match error {
                refusal @ Error::Infeasible { .. } => {
                    Error::Full { device: self.device.name().into(), refusal: Box::new(refusal) }
                }
                other => other,
            })?;
        }
        let info = StepInfo { plan_seconds: start.elapsed().as_secs_f64(), ..compiled.info.clone() };
        Variant::new(compiled, body, inputs, batch.unwrap_or(1), &self.device, state, info, site)
    }

    /// Gives the workspace the size that the largest form needs. The old one is given back first: two would not fit.
    fn fit_workspace(&mut self, site: Site) -> Result<()> {
        let wanted = self.variants.iter().map(Variant::workspace).max().unwrap_or(0);
        if wanted != self.workspace.bytes() {
            self.drop_workspace(site)?;
            self.workspace = Buffer::new(&self.device, wanted, "step workspace", site)?;
        }
        let rooms = || self.variants.iter().map(Variant::host_room);
        let bytes = rooms().map(|(bytes, _)| bytes).max().unwrap_or(0);
        let slots = rooms().map(|(_, slots)| slots).max().unwrap_or(0);
        if let Some(host) = &mut self.host
            && (host.bytes() != bytes || host.slots() < slots)
        {
            host.fit(bytes, slots).map_err(|fault| Error::Fault { fault, site })?;
        }
        Ok(())
    }

    /// Gives back the workspace, the host's part too: while a plan is made, either is free for timing.
    fn drop_workspace(&mut self, site: Site) -> Result<()> {
        self.workspace = Buffer::new(&self.device, 0, "step workspace", site)?;
        self.device.memory().release_unused();
        if let Some(host) = self.host.as_mut().filter(|host| host.bytes() > 0) {
            host.fit(0, 0).map_err(|fault| Error::Fault { fault, site })?;
        }
        Ok(())
    }

    /// Makes what copies beside kernels, where they are allowed and possible: before the device's memory is counted, of which
    /// that takes a little.
    fn start_copying(&mut self, host_memory: Option<Bytes>, site: Site) -> Result<()> {
        if self.host.is_none() && host_memory.is_some_and(|bytes| bytes > Bytes::ZERO) {
            self.host = self.device.backend().host_arena().map_err(|fault| Error::Fault { fault, site })?;
        }
        Ok(())
    }

    /// Plans the step anew for another line or other terms; the state stays as it is.
    ///
    /// # Errors
    /// There is no plan within the new line; the step goes on under the old one.
    #[track_caller]
    pub fn replan(&mut self, options: StepOptions) -> Result<()> {
        let site = Site::here();
        let Some(inputs) = self.variants.iter().rev().find(|v| v.body == 0).map(|v| v.inputs.clone()) else {
            self.options = options;
            self.variants.clear();
            return self.fit_workspace(site);
        };
        self.drop_workspace(site)?;
        self.start_copying(options.host_memory, site)?;
        let variant = match self.build(0, &inputs, &options, false, site) {
            Ok(variant) => variant,
            Err(error) => {
                self.fit_workspace(site)?;
                return Err(error);
            }
        };
        self.options = options;
        self.runs = 0;
        self.variants.clear();
        self.variants.push(variant);
        self.fit_workspace(site)
    }

    /// Looks whether the process takes more of a device's own memory beside the step than was declared, as libraries may
    /// when they first need something, and plans anew if so.
    fn look_again(&mut self, site: Site) -> Result<()> {
        let (Some(line), Some(own)) = (self.options.memory, own_bytes(&self.device)) else { return Ok(()) };
        let declared = self.info().account.program;
        if own <= declared {
            return Ok(());
        }
        let grown = own.saturating_sub(declared);
        let why = format!(
            "libraries and code on {} took {grown:#} more than was declared ({own:#} in all): planned anew within {line:#}",
            self.device.name()
        );
        // What was planned before no longer keeps the line, so there is no going back to it.
        let inputs = self.variants.last().map(|v| v.inputs.clone());
        self.variants.clear();
        self.runs = 0;
        if let Some(inputs) = inputs {
            self.prepare(0, &inputs, true, site)?;
        }
        self.notice = Some(why);
        Ok(())
    }

    /// Under a line, gives back what eager ops have left mapped on a device with memory of its own: nobody uses it, and it
    /// counts.
    fn give_back_idle(&self) {
        if self.options.memory.is_none() || self.device.backend().is_host() {
            return;
        }
        let held = self.device.memory_info();
        if held.reserved > held.current {
            self.device.memory().release_unused();
        }
    }

    /// What happened since the last call that the owner should be told: that the step was planned anew by itself, and why.
    pub fn take_notice(&mut self) -> Option<String> {
        self.notice.take()
    }

    /// Runs the step once: the state is updated, the outputs are overwritten. Inputs of other types than before are
    /// compiled for first.
    #[track_caller]
    pub fn run(&mut self, inputs: &[&Tensor]) -> Result<&[Tensor]> {
        self.run_body(0, inputs)
    }

    /// Runs one of the step's bodies; 0 is the step itself.
    #[track_caller]
    pub fn run_body(&mut self, body: usize, inputs: &[&Tensor]) -> Result<&[Tensor]> {
        self.run_beside(body, inputs, &mut Meanwhile::nothing())
    }

    /// As [`Step::run`], and does something else meanwhile: once the device has work to do and before it is waited for.
    #[track_caller]
    pub fn run_while(&mut self, inputs: &[&Tensor], mut meanwhile: impl FnMut()) -> Result<&[Tensor]> {
        self.run_beside(0, inputs, &mut Meanwhile(Some(&mut meanwhile)))
    }

    #[track_caller]
    fn run_beside(
        &mut self,
        body: usize,
        inputs: &[&Tensor],
        meanwhile: &mut Meanwhile<'_>,
    ) -> Result<&[Tensor]> {
        let site = Site::here();
        self.check(body, inputs, site)?;
        let same =
            |v: &Variant| v.body == body && v.inputs.iter().zip(inputs).all(|(ty, input)| ty == input.ty());
        if !self.variants.last().is_some_and(same) {
            let types: Vec<Type> = inputs.iter().map(|input| input.ty().clone()).collect();
            self.prepare(body, &types, true, site)?;
        }
        // A refusal of memory may have left the workspace too small; without it nothing may run.
        let host_bytes = self.host.as_ref().map_or(0, |host| host.bytes());
        let too_small = |v: &Variant| v.workspace() > self.workspace.bytes() || v.host_room().0 > host_bytes;
        if self.variants.last().is_some_and(too_small) {
            self.fit_workspace(site)?;
        }
        self.give_back_idle();
        if body == 0 {
            // What is loaded late is loaded in the first runs; later ones are looked at more and more rarely.
            if self.runs > 0 && self.runs.is_power_of_two() {
                self.look_again(site)?;
            }
            self.runs += 1;
        }
        self.unshare(site)?;
        let Step { device, state, variants, workspace, host, .. } = self;
        let Some(variant) = variants.last_mut() else {
            return Err(Error::Internal("a step without a compiled form".into()));
        };
        // SAFETY: nobody else holds the state or the outputs, inputs are alive through their tensors and of the
        // variant's types, and workspace and host memory were made for the largest variant.
        unsafe { variant.run(device, state, inputs, workspace, host.as_deref(), meanwhile, site) }?;
        Ok(&variant.outputs)
    }

    fn check(&self, body: usize, inputs: &[&Tensor], site: Site) -> Result<()> {
        for input in inputs {
            let buffer = input.buffer(site)?;
            if !buffer.device().same(&self.device) {
                let (first, second) = (self.device.name().to_string(), buffer.device().name().to_string());
                return Err(Error::TwoDevices { op: "step", site, first, second });
            }
        }
        let Some(variant) = self.variants.iter().rev().find(|v| v.body == body) else { return Ok(()) };
        if inputs.len() != variant.inputs.len() {
            let why = format!("gives {} inputs to a step of {}", inputs.len(), variant.inputs.len());
            return Err(Error::Signature { site, why });
        }
        for (i, (input, ty)) in inputs.iter().zip(&variant.inputs).enumerate() {
            let other = input.ty() != ty;
            if other && (!self.options.batched || input.dtype() != ty.dtype) {
                let why = format!("gives {} as input {i} to a step of {ty}", input.ty());
                return Err(Error::Signature { site, why });
            }
        }
        Ok(())
    }

    /// Gives state and outputs of which somebody holds a clone bytes of their own, so that a clone keeps what it saw.
    fn unshare(&mut self, site: Site) -> Result<()> {
        for tensor in &mut self.state {
            if Arc::strong_count(tensor.buffer(site)?) > 1 {
                *tensor = tensor.copy()?;
            }
        }
        for tensor in self.variants.last_mut().into_iter().flat_map(|v| &mut v.outputs) {
            if Arc::strong_count(tensor.buffer(site)?) > 1 {
                *tensor = Tensor::uninitialized(&self.device, tensor.ty().clone(), "step output", site)?;
            }
        }
        Ok(())
    }

    /// Sets a part of the state.
    ///
    /// # Errors
    /// There is no such part, or the value is of another type.
    #[track_caller]
    pub fn set_state(&mut self, i: usize, value: &[u8]) -> Result<()> {
        let site = Site::here();
        self.unshare(site)?;
        let n = self.state.len();
        let Some(tensor) = self.state.get(i) else {
            return Err(Error::Signature { site, why: format!("sets part {i} of a state of {n}") });
        };
        if tensor.ty().bytes() != value.len() {
            let why = format!("sets a part of the state of {} with {} bytes", tensor.ty(), value.len());
            return Err(Error::Signature { site, why });
        }
        // SAFETY: nobody else holds the bytes, and there are as many of them.
        unsafe { tensor.buffer(site)?.write(value, site) }
    }

    /// The state as it stands. A clone keeps what it saw: the next run copies what is shared before it writes.
    pub fn state(&self) -> &[Tensor] {
        &self.state
    }

    /// What the parts of the state are called and for.
    pub fn names(&self) -> &[(String, Kind)] {
        &self.names
    }

    /// The outputs of the last run, then its totals.
    pub fn outputs(&self) -> &[Tensor] {
        self.variants.last().map_or(&[], |v| &v.outputs)
    }

    /// What was planned for the step itself, of the inputs that need most; of another body, if only such were run; all
    /// zeros before anything was.
    pub fn info(&self) -> &StepInfo {
        let most = self.variants.iter().max_by_key(|v| (v.body == 0, v.info.planned));
        most.map_or(&NOTHING, |v| &v.info)
    }

    /// How many compiled forms are kept.
    pub fn n_shapes(&self) -> usize {
        self.variants.len()
    }

    /// The terms of the step.
    pub fn options(&self) -> &StepOptions {
        &self.options
    }

    /// Bytes of the arena that activations, gradients and scratch share, for the inputs that need most.
    pub fn arena_bytes(&self) -> Bytes {
        let most = self.variants.iter().max_by_key(|v| (v.body == 0, v.info.planned));
        most.map_or(0, Variant::arena_bytes).into()
    }

    /// Bytes of the state.
    pub fn state_bytes(&self) -> Bytes {
        self.state.iter().map(|t| Bytes::from(t.ty().bytes())).sum()
    }

    /// The record of the step itself, for the inputs that need most; none before it was compiled. It is made anew by each
    /// call and takes memory of its own, some hundred bytes an instruction: between steps of a run under a line, there is
    /// no room for it.
    pub fn timeline(&self) -> Option<Timeline> {
        let most = self.variants.iter().filter(|v| v.body == 0).max_by_key(|v| v.info.planned)?;
        let ((passes, update), (n_sums, passed)) = (most.parts(), most.sums_and_kept());
        let recorded = Recorded {
            device: &self.device,
            names: &self.names,
            state: &self.state,
            inputs: &most.inputs,
            outputs: &most.outputs.iter().map(|output| output.ty().clone()).collect::<Vec<Type>>(),
            batch: batch_of(&self.options, &most.inputs, Site::here()).ok().flatten().unwrap_or(1),
            passes,
            update,
            n_sums,
            passed,
            info: &most.info,
            line: self.options.memory.map(Bytes::get),
        };
        Some(recorded.timeline())
    }

    /// The account of the step's memory, planned and measured side by side.
    pub fn ledger(&self) -> Ledger {
        let mut ledger = Ledger::new();
        let mut row = |kind: LedgerKind, name: &str, planned: Bytes, measured: Bytes| {
            ledger.plan(kind, name, planned);
            ledger.set(kind, name, measured);
        };
        for ((name, kind), tensor) in self.names.iter().zip(&self.state) {
            let bytes = Bytes::from(tensor.ty().bytes());
            row(ledger_kind(*kind), name, bytes, bytes);
        }
        let most = self.variants.iter().max_by_key(|v| (v.body == 0, v.info.planned));
        let Some(variant) = most else { return ledger };
        for (i, ty) in variant.inputs.iter().enumerate() {
            let bytes = Bytes::from(ty.bytes());
            row(LedgerKind::Input, &format!("input {i}"), bytes, bytes);
            if self.options.ahead && variant.body == 0 {
                row(LedgerKind::Input, &format!("input {i} of the next batch"), bytes, bytes);
            }
        }
        let (sums, arena) = (Bytes::from(variant.sum_bytes()), Bytes::from(variant.arena_bytes()));
        if sums > Bytes::ZERO {
            row(LedgerKind::Gradient, "sums over micro-batches", sums, sums);
        }
        let before = Bytes::from(variant.workspace()).saturating_sub(arena);
        row(
            LedgerKind::Activation,
            "arena",
            arena,
            Bytes::from(self.workspace.bytes()).saturating_sub(before),
        );
        let held = self.host.as_ref().map_or(Bytes::ZERO, |host| host.bytes().into());
        if variant.info.host_bytes > Bytes::ZERO {
            row(LedgerKind::Host, "copies to the host", variant.info.host_bytes, held);
        }
        let resident = || process::resident().unwrap_or(Bytes::ZERO);
        let own = own_bytes(&self.device)
            .unwrap_or_else(|| resident().saturating_sub(self.device.memory_info().current));
        let Account { program, beside, .. } = variant.info.account;
        row(LedgerKind::Program, "program", program, own);
        // Measured with the program: pipelines and whatever else is declared take the process's own memory.
        if beside > Bytes::ZERO {
            ledger.plan(LedgerKind::Input, "pipelines and what else stands beside", beside);
        }
        ledger
    }
}

/// Samples in the inputs, where their first axis counts them.
pub(crate) fn batch_of(options: &StepOptions, inputs: &[Type], site: Site) -> Result<Option<usize>> {
    if !options.batched {
        return Ok(None);
    }
    let batch = inputs.first().and_then(|ty| ty.shape.first().copied());
    if let Some(ty) = inputs.iter().find(|ty| ty.shape.first().copied() != batch) {
        let why = format!("has an input of {ty}, whose first axis is not the batch of the others");
        return Err(Error::Signature { site, why });
    }
    Ok(batch)
}

/// The tensor with bytes that nobody else can see.
fn own(tensor: Tensor, site: Site) -> Result<Tensor> {
    if Arc::strong_count(tensor.buffer(site)?) == 1 { Ok(tensor) } else { tensor.copy() }
}
