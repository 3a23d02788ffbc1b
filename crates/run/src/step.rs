//! A training step: a traced function over state that it updates in place.
//!
//! The state's bytes, the arena and the results are taken once, when the step is compiled; running it allocates
//! nothing.

use std::sync::Arc;
use std::time::Instant;

use plimsoll_device::{Bytes, process};
use plimsoll_graph::{Graph, Site, TensorOps, Type, passes};

use crate::device::Device;
use crate::error::{Error, Result};
use crate::function::finish;
use crate::program::{Line, Program};
use crate::tensor::{Buffer, Tensor};
use crate::tracing::Tracing;

/// A step without a line takes the least memory that is predicted to cost at most this much time over the fastest plan.
const LEAN: f64 = 1.01;

/// What the body of a step gives back.
pub struct StepResult {
    /// The new state, in the order and of the types of the old.
    pub state: Vec<Tensor>,
    /// What else is to be seen: the loss, say.
    pub outputs: Vec<Tensor>,
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
///     Ok(StepResult { state: vec![state[0].sub(&grad.mul_scalar(0.1)?)?], outputs: vec![loss] })
/// })?;
/// for _ in 0..100 {
///     step.run(&[])?;
/// }
/// assert!((step.state()[0].to_vec::<f32>()?[0] - 3.0).abs() < 1e-4);
/// # Ok::<(), plimsoll_run::Error>(())
/// ```
pub struct Step {
    program: Program,
    device: Device,
    state: Vec<Tensor>,
    n_inputs: usize,
    outputs: Vec<Tensor>,
    captured: Vec<Tensor>,
    arena: Buffer,
    /// Pointers of state, inputs and captured tensors; those of the inputs are set at each run.
    arguments: Vec<*mut u8>,
    results: Vec<*mut u8>,
    info: StepInfo,
}

/// What was planned for a step. Bytes are of the whole process, as the system will count it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepInfo {
    /// What the plan will take.
    pub planned: Bytes,
    /// The least for which there is a plan.
    pub floor: Bytes,
    /// What the fastest plan would take.
    pub unlimited: Bytes,
    /// The most bytes of the arena that are needed at once: no packing could be smaller.
    pub live: Bytes,
    /// Predicted seconds of a step.
    pub predicted_seconds: f64,
    /// Predicted seconds without a line.
    pub unlimited_seconds: f64,
    /// Ops that run a second time instead of keeping their results.
    pub recomputed_ops: u64,
    /// Seconds that planning took.
    pub plan_seconds: f64,
}

impl StepInfo {
    fn new(program: &Program, elsewhere: Bytes, plan_seconds: f64) -> StepInfo {
        let figures = program.figures();
        StepInfo {
            planned: elsewhere + program.arena_bytes().into(),
            floor: elsewhere + Bytes(figures.floor_bytes),
            unlimited: elsewhere + Bytes(figures.unlimited_bytes),
            live: Bytes(figures.live_bytes),
            predicted_seconds: figures.predicted_ns as f64 / 1e9,
            unlimited_seconds: figures.unlimited_ns as f64 / 1e9,
            recomputed_ops: figures.recomputed_ops,
            plan_seconds,
        }
    }
}

/// Pages that will be touched and are not yet: kernels' code, stacks, the books of the allocator.
const RESERVE: Bytes = Bytes::mib(3);
/// What the process takes beside the arena is rounded up to this, so that two runs of one program count alike.
const GRAIN: u64 = 2 << 20;

/// What the process takes beside the arena: what it has now, inputs that are still to come, and a reserve.
fn elsewhere(staged: Bytes) -> Bytes {
    let now = process::resident().unwrap_or(Bytes::ZERO);
    Bytes((now + staged + RESERVE).get().next_multiple_of(GRAIN))
}

/// Plans a graph under a line. Planning itself leaves pages behind, which count too: if they push the sum over the line,
/// it is planned again with so much less.
fn plan(
    graph: Graph,
    device: &Device,
    replaces: &[Option<usize>],
    memory: Option<Bytes>,
    staged: Bytes,
) -> Result<Program> {
    let Some(line) = memory else { return Program::new(graph, device, replaces, Line::Lean(LEAN)) };
    loop {
        let before = elsewhere(staged);
        let program =
            Program::new(graph.clone(), device, replaces, Line::Within { line, elsewhere: before })?;
        let after = elsewhere(staged);
        if after <= before || after + program.arena_bytes().into() <= line {
            return Ok(program);
        }
    }
}

// SAFETY: the pointers are into buffers that the step owns or, for inputs, are set anew at each run.
unsafe impl Send for Step {}

impl Step {
    /// Traces and compiles a step over a state and inputs of the given types. It takes the least memory that is
    /// predicted to cost at most one percent of time over the fastest plan.
    #[track_caller]
    pub fn compile(
        state: Vec<Tensor>,
        inputs: &[Type],
        body: impl FnOnce(&[Tensor], &[Tensor]) -> Result<StepResult>,
    ) -> Result<Step> {
        Step::compile_within(None, state, inputs, body)
    }

    /// As [`Step::compile`], with a line: the fastest plan with which the process, as the system counts it, stays within
    /// `memory`; or a refusal that names the least that would do.
    #[track_caller]
    pub fn compile_within(
        memory: Option<Bytes>,
        state: Vec<Tensor>,
        inputs: &[Type],
        body: impl FnOnce(&[Tensor], &[Tensor]) -> Result<StepResult>,
    ) -> Result<Step> {
        let site = Site::here();
        let device = match state.first() {
            Some(first) => first.buffer(site)?.device().clone(),
            None => Device::current()?,
        };
        let state = state.into_iter().map(|t| own(t, site)).collect::<Result<Vec<Tensor>>>()?;
        let tracing = Tracing::new();
        let name = |kind: &str, i: usize| format!("{kind} {i}");
        let traced_state: Vec<Tensor> = state
            .iter()
            .enumerate()
            .map(|(i, t)| tracing.argument(&name("state", i), t.ty().clone()))
            .collect();
        let traced_inputs: Vec<Tensor> = inputs
            .iter()
            .enumerate()
            .map(|(i, ty)| tracing.argument(&name("input", i), ty.clone()))
            .collect();
        let StepResult { state: new_state, outputs } =
            device.scope(|| body(&traced_state, &traced_inputs))?;
        let types = |tensors: &[Tensor]| tensors.iter().map(|t| t.ty().clone()).collect::<Vec<Type>>();
        if types(&new_state) != types(&state) {
            let why =
                format!("returns a state of {:?} where it was given {:?}", types(&new_state), types(&state));
            return Err(Error::Signature { site, why });
        }
        let n_state = state.len();
        let results: Vec<Tensor> = new_state.into_iter().chain(outputs).collect();
        let graph = passes::optimize(&finish(&tracing, &results, site)?)?;
        let replaces: Vec<Option<usize>> = (0..results.len()).map(|r| (r < n_state).then_some(r)).collect();
        let start = Instant::now();
        let staged: Bytes = inputs.iter().map(|ty| Bytes::from(ty.bytes())).sum();
        let program = plan(graph, &device, &replaces, memory, staged)?;
        let (plan_seconds, elsewhere) = (start.elapsed().as_secs_f64(), elsewhere(staged));
        let outputs = program
            .result_types()
            .skip(n_state)
            .map(|ty| {
                Ok(Tensor::eager(
                    ty.clone(),
                    Arc::new(Buffer::new(&device, ty.bytes(), "step output", site)?),
                ))
            })
            .collect::<Result<Vec<Tensor>>>()?;
        let arena = Buffer::new(&device, program.arena_bytes(), "step arena", site)?;
        let captured = tracing.captured();
        let pointer = |t: &Tensor| Ok(t.buffer(site)?.ptr());
        let state_pointers = state.iter().map(pointer).collect::<Result<Vec<*mut u8>>>()?;
        let mut arguments = state_pointers.clone();
        arguments.extend(std::iter::repeat_n(std::ptr::null_mut(), inputs.len()));
        arguments.extend(captured.iter().map(pointer).collect::<Result<Vec<_>>>()?);
        let mut results = state_pointers;
        results.extend(outputs.iter().map(pointer).collect::<Result<Vec<_>>>()?);
        let info = StepInfo::new(&program, elsewhere, plan_seconds);
        let n_inputs = inputs.len();
        Ok(Step { program, device, state, n_inputs, outputs, captured, arena, arguments, results, info })
    }

    /// Runs the step once: the state is updated, the outputs are overwritten.
    #[track_caller]
    pub fn run(&mut self, inputs: &[&Tensor]) -> Result<&[Tensor]> {
        let site = Site::here();
        if inputs.len() != self.n_inputs {
            let why = format!("gives {} inputs to a step of {}", inputs.len(), self.n_inputs);
            return Err(Error::Signature { site, why });
        }
        let n_state = self.state.len();
        for (i, (input, ty)) in inputs.iter().zip(self.program.argument_types().skip(n_state)).enumerate() {
            if input.ty() != ty {
                return Err(Error::Signature {
                    site,
                    why: format!("gives {} as input {i} to a step of {ty}", input.ty()),
                });
            }
            let buffer = input.buffer(site)?;
            if !buffer.device().same(&self.device) {
                let (first, second) = (self.device.name().to_string(), buffer.device().name().to_string());
                return Err(Error::TwoDevices { op: "step", site, first, second });
            }
            self.arguments[n_state + i] = buffer.ptr();
        }
        self.unshare(site)?;
        // SAFETY: state, outputs and arena are the step's own and nobody else holds a clone of them, inputs are alive through their tensors, captured ones through the step.
        unsafe { self.program.run(&self.device, &self.arguments, &self.results, self.arena.ptr()) }?;
        Ok(&self.outputs)
    }

    /// Gives state and outputs of which somebody holds a clone bytes of their own, so that a clone keeps what it saw.
    fn unshare(&mut self, site: Site) -> Result<()> {
        let n_state = self.state.len();
        for (i, tensor) in self.state.iter_mut().enumerate() {
            if Arc::strong_count(tensor.buffer(site)?) > 1 {
                *tensor = tensor.copy()?;
                self.arguments[i] = tensor.buffer(site)?.ptr();
                self.results[i] = self.arguments[i];
            }
        }
        for (i, tensor) in self.outputs.iter_mut().enumerate() {
            if Arc::strong_count(tensor.buffer(site)?) > 1 {
                let bytes = tensor.ty().bytes();
                let fresh = Arc::new(Buffer::new(&self.device, bytes, "step output", site)?);
                *tensor = Tensor::eager(tensor.ty().clone(), fresh);
                self.results[n_state + i] = tensor.buffer(site)?.ptr();
            }
        }
        Ok(())
    }

    /// The state as it stands. A clone keeps what it saw: the next run copies what is shared before it writes.
    pub fn state(&self) -> &[Tensor] {
        &self.state
    }

    /// The outputs of the last run.
    pub fn outputs(&self) -> &[Tensor] {
        &self.outputs
    }

    /// What was planned.
    pub fn info(&self) -> &StepInfo {
        &self.info
    }

    /// Bytes of the arena that activations, gradients and scratch share.
    pub fn arena_bytes(&self) -> Bytes {
        self.program.arena_bytes().into()
    }

    /// Bytes of the state.
    pub fn state_bytes(&self) -> Bytes {
        self.state.iter().map(|t| Bytes::from(t.ty().bytes())).sum()
    }

    /// Bytes of eager tensors that the body reached for.
    pub fn captured_bytes(&self) -> Bytes {
        self.captured.iter().map(|t| Bytes::from(t.ty().bytes())).sum()
    }
}

/// The tensor with bytes that nobody else can see.
fn own(tensor: Tensor, site: Site) -> Result<Tensor> {
    if Arc::strong_count(tensor.buffer(site)?) == 1 { Ok(tensor) } else { tensor.copy() }
}
