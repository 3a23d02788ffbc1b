//! A training step: a traced function over state that it updates in place.
//!
//! The state's bytes, the arena and the results are taken once, when the step is compiled; running it allocates
//! nothing. How its compiled forms are made and made anew is in `forms`.

use std::sync::Arc;
use std::time::Instant;

use plimsoll_device::{Bytes, Ledger};
use plimsoll_graph::{Site, TensorOps, Type};
use plimsoll_record as record;
use plimsoll_record::Kind;

use super::profile;
use super::profiling::Profiling;
use super::state::{State, StateTensor};
use super::variant::Variant;
use super::workspace::Workspace;
use crate::choose::PlanFigures;
use crate::device::{Device, GiveBack};
use crate::error::{Error, Result};
use crate::program::{Meanwhile, Part};
use crate::tensor::{Tensor, timed};
use crate::timeline::Recorded;
use crate::trace::{StepArgs, StepFn, StepOptions, StepResult};

/// What a step is run for. All modes share its state, its workspace and its memory limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The step itself: it changes the state.
    Train,
    /// What says how good the state is.
    Evaluate,
    /// What uses it.
    Predict,
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
    pub(super) device: Device,
    pub(super) options: StepOptions,
    pub(super) bodies: Vec<(Mode, StepFn)>,
    pub(super) state: State,
    /// The compiled forms, the one used last at the end.
    pub(super) variants: Vec<Variant>,
    /// State that stays on the host in any case: a form of the step was refused while it was on the device.
    pub(super) at_least: Option<Vec<bool>>,
    pub(super) workspace: Workspace,
    /// How often the step itself has run since it was planned.
    pub(super) runs: u64,
    /// What happened that its owner should be told.
    pub(super) notice: Option<String>,
    pub(super) remark: Remark,
    /// What is measured of its runs, where somebody asked for that.
    pub(super) profiling: Option<Profiling>,
    /// Behind all that holds memory, so that a step that is dropped leaves none with the process.
    _pages: GiveBack,
}

/// A sentence that is told once, however often a step is planned.
#[derive(Default)]
pub(super) struct Remark {
    next: Option<String>,
    was_told: bool,
}

impl Remark {
    /// Keeps a sentence, unless one was told before.
    pub(super) fn take_up(&mut self, sentence: Option<String>) {
        if !self.was_told {
            self.next = sentence;
        }
    }

    fn tell(&mut self) -> Option<String> {
        self.was_told |= self.next.is_some();
        self.next.take()
    }
}

impl Step {
    /// Traces and compiles a step over a state and inputs of the given types, without a limit and without splitting.
    #[track_caller]
    pub fn compile(
        state: Vec<Tensor>,
        inputs: &[Type],
        body: impl Fn(&[Tensor], &[Tensor]) -> Result<StepResult> + Send + Sync + 'static,
    ) -> Result<Step> {
        let kind = Kind::Parameter;
        let named = |(i, tensor): (usize, Tensor)| StateTensor { name: format!("state {i}"), kind, tensor };
        let held = state.into_iter().enumerate().map(named).collect();
        let body = move |pass: &StepArgs<'_>| body(pass.state, pass.inputs);
        Step::compile_with(StepOptions::default(), held, inputs, body)
    }

    /// As [`Step::compile`], with options: under a memory limit, the fastest plan with which the process, as the system counts
    /// it, stays within it; or a refusal that names the least that would do.
    ///
    /// The body is traced once for each number of samples that is considered for a micro-batch, and again for inputs of
    /// other types than these when they come.
    #[track_caller]
    pub fn compile_with(
        options: StepOptions,
        held: Vec<StateTensor>,
        inputs: &[Type],
        body: impl Fn(&StepArgs<'_>) -> Result<StepResult> + Send + Sync + 'static,
    ) -> Result<Step> {
        let mut step = Step::idle(options, held)?;
        step.set_body(Mode::Train, body);
        step.prepare(Mode::Train, inputs, false, Site::here())?;
        Ok(step)
    }

    /// A state of which only other modes are wanted, until [`Step::begin`]: nothing is compiled before it is run.
    #[track_caller]
    pub fn idle(options: StepOptions, held: Vec<StateTensor>) -> Result<Step> {
        let site = Site::here();
        let device = match held.first() {
            Some(first) => first.tensor.buffer(site)?.device().clone(),
            None => Device::current()?,
        };
        let mut state = State::default();
        state.add(held, site)?;
        let workspace = Workspace::new(&device, site)?;
        let (bodies, variants) = (Vec::new(), Vec::new());
        Ok(Step {
            _pages: GiveBack(device.clone()),
            device,
            options,
            bodies,
            state,
            variants,
            at_least: None,
            workspace,
            runs: 0,
            notice: None,
            remark: Remark::default(),
            profiling: None,
        })
    }

    /// Gives a step that was made by [`Step::idle`] a body to train with, over what it has of state and more behind it, and
    /// compiles it for inputs of these types. What it had keeps its values, and its other modes stay.
    ///
    /// `more` is made once the memory that the other modes ran in is given back.
    ///
    /// # Errors
    /// As for [`Step::compile_with`]; the step is then as it was.
    #[track_caller]
    pub fn begin(
        &mut self,
        options: StepOptions,
        more: impl FnOnce() -> Result<Vec<StateTensor>>,
        inputs: &[Type],
        body: impl Fn(&StepArgs<'_>) -> Result<StepResult> + Send + Sync + 'static,
    ) -> Result<()> {
        let site = Site::here();
        let n = self.state.tensors.len();
        // Forms that there are were compiled for the state as it was.
        self.variants.clear();
        self.workspace.give_back(site)?;
        let old_options = std::mem::replace(&mut self.options, options);
        let old_body = self.body(Mode::Train).cloned();
        self.set_body(Mode::Train, body);
        self.runs = 0;
        let added = more().and_then(|more| self.state.add(more, site));
        let begun = added.and_then(|()| self.prepare(Mode::Train, inputs, false, site));
        if begun.is_err() {
            self.variants.clear();
            self.state.truncate(n);
            self.options = old_options;
            self.bodies.retain(|(mode, _)| *mode != Mode::Train);
            self.bodies.extend(old_body.map(|body| (Mode::Train, body)));
            // Why it could not begin is what is told.
            self.fit_workspace(site).ok();
        }
        begun
    }

    /// Sets what a mode computes over the state.
    pub fn set_body(
        &mut self,
        mode: Mode,
        body: impl Fn(&StepArgs<'_>) -> Result<StepResult> + Send + Sync + 'static,
    ) {
        self.bodies.retain(|(other, _)| *other != mode);
        self.variants.retain(|variant| variant.mode != mode);
        self.bodies.push((mode, Arc::new(body)));
    }

    pub(super) fn body(&self, mode: Mode) -> Option<&StepFn> {
        self.bodies.iter().find(|(other, _)| *other == mode).map(|(_, body)| body)
    }

    /// Runs the step once: the state is updated, the outputs are overwritten. Inputs of other types than before are
    /// compiled for first.
    #[track_caller]
    pub fn run(&mut self, inputs: &[&Tensor]) -> Result<&[Tensor]> {
        self.run_mode(Mode::Train, inputs)
    }

    /// Runs one of the step's modes.
    #[track_caller]
    pub fn run_mode(&mut self, mode: Mode, inputs: &[&Tensor]) -> Result<&[Tensor]> {
        self.run_beside(mode, inputs, &mut Meanwhile::nothing())
    }

    /// As [`Step::run`], and does something else meanwhile: once the device has work to do and before it is waited for.
    #[track_caller]
    pub fn run_while(&mut self, inputs: &[&Tensor], mut meanwhile: impl FnMut()) -> Result<&[Tensor]> {
        self.run_beside(Mode::Train, inputs, &mut Meanwhile(Some(&mut meanwhile)))
    }

    #[track_caller]
    fn run_beside(
        &mut self,
        mode: Mode,
        inputs: &[&Tensor],
        meanwhile: &mut Meanwhile<'_>,
    ) -> Result<&[Tensor]> {
        let site = Site::here();
        self.check(mode, inputs, site)?;
        let same =
            |v: &Variant| v.mode == mode && v.inputs.iter().zip(inputs).all(|(ty, input)| ty == input.ty());
        if !self.variants.last().is_some_and(same) {
            let types: Vec<Type> = inputs.iter().map(|input| input.ty().clone()).collect();
            self.prepare(mode, &types, true, site)?;
        }
        if self.variants.last().is_some_and(|variant| self.workspace.is_too_small(variant)) {
            self.fit_or_plan_anew(true, site)?;
        }
        self.give_back_idle();
        if mode == Mode::Train {
            // What is loaded late is loaded in the first runs; later ones are looked at more and more rarely.
            if self.runs > 0 && self.runs.is_power_of_two() {
                self.look_again(site)?;
            }
            self.runs += 1;
        }
        self.unshare(site)?;
        let is_profiled = mode == Mode::Train && self.is_profiled_next()?;
        let Step { device, state, variants, workspace, profiling, .. } = self;
        let Some(variant) = variants.last_mut() else {
            return Err(Error::Internal("a step without a compiled form".into()));
        };
        let mut profiling = profiling.as_mut().filter(|_| is_profiled);
        if let Some(profiling) = &mut profiling {
            profiling.open(device);
        }
        let start = Instant::now();
        let (state, host) = (&state.tensors, workspace.host());
        // SAFETY: nobody else holds the state or the outputs, inputs are alive through their tensors and of the
        // variant's types, and workspace and host memory were made for the largest variant.
        let run = || unsafe {
            let (arena, profiling) = (workspace.buffer(), profiling.as_deref_mut());
            variant.run(device, state, inputs, arena, host, meanwhile, profiling, site)
        };
        let bytes = || inputs.iter().map(|input| input.ty().bytes()).sum();
        let done = timed(device, "step", bytes, site, run);
        if let Some(profiling) = profiling {
            profiling.close(device, done.is_ok());
            if profiling.is_done() {
                variant.rest_clocks();
            }
        }
        done?;
        // What a card does beside the host is not seen from here, and what a step waits for a disk says nothing of kernels.
        if mode == Mode::Train && device.backend().is_host() && variant.info.offloaded_copies == 0 {
            variant.ran_for(device, start.elapsed().as_secs_f64());
        }
        Ok(&variant.outputs)
    }

    fn check(&self, mode: Mode, inputs: &[&Tensor], site: Site) -> Result<()> {
        for input in inputs {
            let buffer = input.buffer(site)?;
            if !buffer.device().same(&self.device) {
                let (first, second) = (self.device.name().to_string(), buffer.device().name().to_string());
                return Err(Error::TwoDevices { op: "step", site, first, second });
            }
        }
        let Some(variant) = self.variants.iter().rev().find(|v| v.mode == mode) else { return Ok(()) };
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
        if self.state.unshare(site)? {
            // Recordings copy from and to addresses of the host, which may come to hold something else.
            self.variants.iter_mut().for_each(Variant::forget_recordings);
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
        self.state.set(i, value, site)
    }

    /// Sets some bytes of a part of the state: what is read a piece at a time need never be there whole.
    ///
    /// # Errors
    /// There is no such part, or it has not as many bytes.
    #[track_caller]
    pub fn set_state_bytes(&mut self, i: usize, at: usize, value: &[u8]) -> Result<()> {
        let site = Site::here();
        self.unshare(site)?;
        self.state.set_bytes_at(i, at, value, site)
    }

    /// The state as it stands. A clone keeps what it saw: the next run copies what is shared before it writes.
    pub fn state(&self) -> &[Tensor] {
        &self.state.tensors
    }

    /// What the parts of the state are called and for.
    pub fn names(&self) -> &[(String, Kind)] {
        &self.state.names
    }

    /// Bytes of the state.
    pub fn state_bytes(&self) -> Bytes {
        self.state.tensors.iter().map(|t| Bytes::from(t.ty().bytes())).sum()
    }

    /// The outputs of the last run, then its totals.
    pub fn outputs(&self) -> &[Tensor] {
        self.variants.last().map_or(&[], |v| &v.outputs)
    }

    /// The terms of the step.
    pub fn options(&self) -> &StepOptions {
        &self.options
    }

    /// The form of the step itself for the inputs that need most; of another mode, if only such were run.
    pub(super) fn largest(&self) -> Option<&Variant> {
        self.variants.iter().max_by_key(|v| (v.mode == Mode::Train, v.info.planned))
    }

    /// What was planned for the step itself, of the inputs that need most; of another mode, if only such were run; all
    /// zeros before anything was.
    pub fn info(&self) -> &PlanFigures {
        self.largest().map_or(const { &PlanFigures::NOTHING }, |v| &v.info)
    }

    /// How many compiled forms are kept.
    pub fn n_shapes(&self) -> usize {
        self.variants.len()
    }

    /// Bytes of the arena that activations, gradients and scratch share, for the inputs that need most.
    pub fn arena_bytes(&self) -> Bytes {
        self.largest().map_or(0, Variant::arena_bytes).into()
    }

    /// The account of the step's memory, planned and measured side by side. What was planned, but for what is on the host
    /// beside a device's own memory, adds up to [`PlanFigures::planned`]; what was measured, to what the system counts for the
    /// process.
    pub fn ledger(&self) -> Ledger {
        super::ledger::ledger(self)
    }

    /// The record of the step itself, for the inputs that need most; none before it was compiled. It is made anew by each
    /// call and takes memory of its own, some hundred bytes an instruction: between steps of a run under a memory limit, there
    /// is no room for it.
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
    pub fn timeline(&self) -> Option<record::Step> {
        let trained = self.variants.iter().filter(|v| v.mode == Mode::Train);
        trained.max_by_key(|v| v.info.planned).map(|most| self.record_of(most))
    }

    /// What the step exchanges with other ranks, in order: all ranks must say the same. Nothing before it was planned.
    pub fn exchanges(&self) -> Vec<String> {
        let trained = self.variants.iter().filter(|v| v.mode == Mode::Train);
        let Some(most) = trained.max_by_key(|v| v.info.planned) else { return Vec::new() };
        let (passes, update) = most.parts();
        let said = |part: &Part| part.program.exchanges().collect::<Vec<String>>();
        passes.into_iter().chain(update).flat_map(said).collect()
    }

    fn record_of(&self, most: &Variant) -> record::Step {
        let ((passes, update), (n_sums, passed)) = (most.parts(), most.sums_and_kept());
        let recorded = Recorded {
            device: &self.device,
            state: &self.state.specs(),
            hosted: &self.state.hosted(),
            inputs: &most.inputs,
            outputs: &most.outputs.iter().map(|output| output.ty().clone()).collect::<Vec<Type>>(),
            batch: self.options.batch_of(&most.inputs, Site::here()).ok().flatten().unwrap_or(1),
            passes,
            update,
            n_sums,
            passed,
            info: &most.info,
            memory_limit: self.options.request.limit.map(Bytes::get),
        };
        recorded.timeline()
    }

    /// Measures the next steps, so many of them, after a few to warm up: the time of every instruction, bytes to and from the device,
    /// waiting. The steps themselves do the same as without it. The buffers for it are taken now and are at most
    /// [`profile_room`](crate::profile_room), which a memory limit on the host must have been told of
    /// ([`StepOptions::reserved`](crate::StepOptions::reserved)).
    ///
    /// On a card, instructions are timed by events on its own queues, inside of what it has recorded.
    ///
    /// ```
    /// use plimsoll_run::{Step, StepResult, Tensor, TensorOps};
    /// let w = Tensor::from_slice(&[1.0f32; 1000], [1000])?;
    /// let mut step = Step::compile(vec![w], &[], |state, _| {
    ///     let total = state[0].exp()?.sum(&[], false)?;
    ///     Ok(StepResult { state: state.to_vec(), outputs: vec![total], totals: vec![] })
    /// })?;
    /// step.profile(4)?;
    /// for _ in 0..10 {
    ///     step.run(&[])?;
    /// }
    /// let (_, profile) = step.take_profile().unwrap();
    /// assert_eq!(profile.steps.len(), 4);
    /// let mean = profile.mean;
    /// assert!(mean.kernel_ms > 0.0 && mean.kernel_ms <= mean.step_ms);
    /// println!("{}", plimsoll_run::record::ProfileTable { rows: &profile.rows, most: 20 });
    /// # Ok::<(), plimsoll_run::Error>(())
    /// ```
    ///
    /// # Errors
    /// No steps are asked for, or the device has no room for its part.
    #[track_caller]
    pub fn profile(&mut self, steps: usize) -> Result<()> {
        self.end_profile();
        let mut profiling = Profiling::new(steps, &self.device, Site::here())?;
        if let Some(form) = self.variants.iter_mut().rev().find(|v| v.mode == Mode::Train) {
            profiling.begin(&self.device, form)?;
        }
        self.profiling = Some(profiling);
        Ok(())
    }

    /// What was measured since [`Step::profile`], with the record of the step that it is of; none where that was not asked for, or no
    /// step has been run since. Nothing is measured any more. As [`Step::timeline`], it takes memory of its own.
    pub fn take_profile(&mut self) -> Option<(record::Step, record::Profile)> {
        let made = self.profiling.as_ref().filter(|profiling| profiling.kept() > 0).and_then(|profiling| {
            let form = self.variants.iter().find(|v| Some(v.id()) == profiling.form)?;
            let step = self.record_of(form);
            let profile = profile::record(profiling, form, &step, &self.device);
            Some((step, profile))
        });
        self.end_profile();
        made
    }

    /// Whether steps that [`Step::profile`] asked for are still to come.
    pub fn is_profiling(&self) -> bool {
        self.profiling.as_ref().is_some_and(|profiling| !profiling.is_done())
    }

    /// Adds what was waited for data before the last step to what is measured of it.
    pub fn waited_for_data(&mut self, seconds: f64) {
        if let Some(profiling) = &mut self.profiling
            && !profiling.is_done()
        {
            profiling.waited_for_data(seconds);
        }
    }

    fn end_profile(&mut self) {
        if self.profiling.take().is_some() {
            self.variants.iter_mut().for_each(Variant::stop_clocks);
        }
    }

    /// Whether the next run of the form at hand is measured. A form that was planned anew is measured from its first run on; one for
    /// other inputs is not.
    fn is_profiled_next(&mut self) -> Result<bool> {
        let Step { device, variants, profiling, .. } = self;
        let Some(profiling) = profiling.as_mut().filter(|profiling| !profiling.is_done()) else {
            return Ok(false);
        };
        let is_there = variants.iter().any(|v| Some(v.id()) == profiling.form);
        let Some(variant) = variants.last_mut() else { return Ok(false) };
        if is_there && Some(variant.id()) != profiling.form {
            profiling.left_out += 1;
            return Ok(false);
        }
        if !is_there {
            profiling.begin(device, variant)?;
        }
        Ok(true)
    }

    /// What happened since the last call that the owner should be told: that the step was planned anew by itself, and why.
    pub fn take_notice(&mut self) -> Option<String> {
        self.notice.take()
    }

    /// What the owner should know of the step as it is, once: that f64 tensors enter it though its other floats are narrower.
    pub fn take_remark(&mut self) -> Option<String> {
        self.remark.tell()
    }
}
