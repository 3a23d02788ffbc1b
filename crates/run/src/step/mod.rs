//! A training step: a traced function over state that it updates in place.
//!
//! The state's bytes, the arena and the results are taken once, when the step is compiled; running it allocates
//! nothing.

mod begin;
mod info;
mod ledger;
mod room;
mod shown;
mod terms;

pub use info::StepInfo;
pub(crate) use terms::batch_of;
pub use terms::{Held, Pass, StepOptions, StepResult};

use std::sync::Arc;
use std::time::Instant;

use plimsoll_device::backend::HostArena;
use plimsoll_device::{Bytes, process};
use plimsoll_graph::{Site, TensorOps, Type};
use plimsoll_plan::Kind;

use crate::Exactness;
use crate::compile::{Compile, Compiled};
use crate::device::{Device, Hold};
use crate::error::{Error, Result};
use crate::survey::Survey;
use crate::tensor::{Buffer, Tensor};
use crate::variant::{Meanwhile, Variant};

/// How often a step is planned again because planning left more pages behind than were declared.
const MOST_TRIES: usize = 4;

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
    /// What the line leaves for others, once the workspace is there.
    hold: Option<Hold>,
    /// How often the step itself has run since it was planned.
    runs: u64,
    /// What happened that its owner should be told.
    notice: Option<String>,
    /// What all of them copy to, one at a time; none where nothing may be copied.
    host: Option<Box<dyn HostArena>>,
}

type Body = Box<dyn Fn(&Pass<'_>) -> Result<StepResult> + Send>;

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
        let (hold, host, runs, notice) = (None, None, 0, None);
        let mut step =
            Step { device, options, bodies, names, state, variants, workspace, hold, host, runs, notice };
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
    pub(super) fn prepare(&mut self, body: usize, inputs: &[Type], present: bool, site: Site) -> Result<()> {
        if let Some(i) = self.variants.iter().position(|v| v.body == body && v.inputs == inputs) {
            // Without moving anything where it is the last already: the steady state.
            self.variants[i..].rotate_left(1);
            return Ok(());
        }
        let mut tries = 0;
        loop {
            // The workspace holds nothing between runs; while a plan is made and kernels are timed, its bytes are free.
            self.drop_workspace(site)?;
            self.start_copying(self.options.host_memory, site)?;
            // Where the state is kept is for the first plan of the step itself to say, and the others keep to it.
            let is_settled = body != 0 || self.variants.iter().any(|v| v.body == 0);
            let options = self.options.clone();
            let variant = match self.build(body, inputs, &options, present, is_settled, site) {
                Ok(variant) => variant,
                Err(error) => {
                    // What went wrong first is what is told; a workspace that is too small is looked at before a run.
                    self.fit_workspace(site).ok();
                    return Err(error);
                }
            };
            let is_full = self.variants.len() >= self.options.shapes.max(1);
            self.variants.push(variant);
            let fitted = self.fit_workspace(site);
            tries += 1;
            let is_refused = matches!(fitted, Err(Error::OutOfMemory(_))) && self.device.capacity().is_some();
            if is_refused && tries < MOST_TRIES {
                // Somebody else took memory of the device since the plan was made: the next keeps to what is left. So must
                // the forms from before, which share the workspace, when they are wanted again.
                self.variants.clear();
                continue;
            }
            if fitted.is_ok() && is_full {
                self.variants.remove(0);
            }
            return fitted;
        }
    }

    /// Compiles a form of the step. Unless it `is_settled` where the state is kept, that is chosen anew, and forms that were
    /// compiled for another choice are forgotten.
    pub(super) fn build(
        &mut self,
        body: usize,
        inputs: &[Type],
        options: &StepOptions,
        present: bool,
        is_settled: bool,
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
        let hosted = self.hosted();
        let settled = is_settled.then_some(&hosted[..]);
        let compile = Compile {
            device,
            state,
            names,
            inputs,
            batch,
            options,
            guarded,
            absent: Bytes::ZERO,
            settled,
            started,
            present,
            body: &**traced,
            site,
        };
        let plan = |compile: &Compile<'_>| -> Result<Compiled> {
            let mut compiled = compile.run()?;
            process::release_unused_heap();
            for _ in 0..MOST_TRIES {
                // Without a line too: what is announced is what the process keeps to.
                if compiled.info.account.holds(&self.device, started) {
                    break;
                }
                compiled = compile.run()?;
                process::release_unused_heap();
            }
            Ok(compiled)
        };
        // Without a line the process keeps to what was announced when it began, for smaller batches too, where the same bits can
        // be had within it.
        let announced = self.variants.iter().map(|variant| variant.info.planned).max();
        let mut compiled = match announced.filter(|_| options.memory.is_none()) {
            None => plan(&compile)?,
            memory => {
                let options = &StepOptions { memory, exactness: Exactness::Bitwise, ..options.clone() };
                match plan(&Compile { options, ..compile }) {
                    Err(Error::Infeasible { .. }) => plan(&compile)?,
                    planned => planned?,
                }
            }
        };
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
        self.settle_state(&compiled.hosted, site)?;
        Variant::new(compiled, body, inputs, batch.unwrap_or(1), &self.device, &self.state, info, site)
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
            self.fit_or_plan_anew(true, site)?;
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
        let start = Instant::now();
        // SAFETY: nobody else holds the state or the outputs, inputs are alive through their tensors and of the
        // variant's types, and workspace and host memory were made for the largest variant.
        unsafe { variant.run(device, state, inputs, workspace, host.as_deref(), meanwhile, site) }?;
        // What a card does beside the host is not seen from here.
        if body == 0 && device.backend().is_host() {
            variant.ran_for(device, start.elapsed().as_secs_f64());
        }
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
                // Recordings copy from and to addresses of the host, which may come to hold something else.
                if tensor.is_hosted() {
                    self.variants.iter_mut().for_each(Variant::forget_recordings);
                }
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
}

/// The tensor with bytes that nobody else can see.
fn own(tensor: Tensor, site: Site) -> Result<Tensor> {
    if Arc::strong_count(tensor.buffer(site)?) == 1 { Ok(tensor) } else { tensor.copy() }
}
