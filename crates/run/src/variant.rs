//! A step compiled for inputs of certain types: its programs, and where in the step's workspace they run.

use plimsoll_device::backend::ALIGNMENT;
use plimsoll_graph::{Site, Type};

use crate::compile::{Compiled, Part, staged};
use crate::device::Device;
use crate::error::Result;
use crate::step::StepInfo;
use crate::tensor::{Buffer, Tensor};

/// One compiled form of a step. The workspace that all variants share holds sums, rows, then the arena:
///
/// ```text
/// | sums over micro-batches | rows of a micro-batch | arena |
/// ```
pub(crate) struct Variant {
    pub(crate) inputs: Vec<Type>,
    pub(crate) outputs: Vec<Tensor>,
    pub(crate) info: StepInfo,
    passes: Vec<Bound>,
    update: Option<Bound>,
    /// Offsets and bytes of the sums.
    sums: Vec<(usize, usize)>,
    /// Offsets of rows that are copied because they are not aligned.
    rows: Vec<Option<usize>>,
    arena: usize,
    arena_bytes: usize,
    /// The position of each pass's first sample.
    firsts: Vec<Tensor>,
}

/// A part of the step with what it is called with; the lists are filled anew for each run and allocated once.
struct Bound {
    part: Part,
    arguments: Vec<*mut u8>,
    results: Vec<*mut u8>,
    /// What each result is.
    targets: Vec<Target>,
}

#[derive(Clone, Copy)]
enum Target {
    State(usize),
    Output(usize),
    Sum(usize),
}

// SAFETY: the pointers are set anew at each run, from buffers that live through it.
unsafe impl Send for Bound {}

impl Variant {
    /// Takes the small memory that a compiled step needs for itself; the workspace is the step's.
    pub(crate) fn new(
        compiled: Compiled,
        inputs: &[Type],
        batch: usize,
        device: &Device,
        n_state: usize,
        info: StepInfo,
        site: Site,
    ) -> Result<Variant> {
        let Compiled { passes, update, sums, passed, updated, outputs, .. } = compiled;
        let mut end = 0;
        let mut place = |bytes: usize| {
            let start = end;
            end += bytes.next_multiple_of(ALIGNMENT);
            start
        };
        let samples = passes.first().map_or(1, |p| p.samples);
        let sums: Vec<(usize, usize)> = sums.iter().map(|ty| (place(ty.bytes()), ty.bytes())).collect();
        let mut row = |ty: &Type| {
            let bytes = staged(ty, batch, samples).get() as usize;
            (update.is_some() && bytes > 0).then(|| place(bytes))
        };
        let rows = inputs.iter().map(&mut row).collect();
        let arena = end;
        let arena_bytes = passes.iter().chain(&update).map(|p| p.program.arena_bytes()).max().unwrap_or(0);
        let mut firsts = Vec::new();
        let mut at = 0;
        for part in &passes {
            for _ in 0..part.runs {
                firsts.push(device.scope(|| Tensor::from_slice(&[at as i64], [1]))?);
                at += part.samples;
            }
        }
        let n_outputs = outputs.len();
        let outputs = outputs
            .into_iter()
            .map(|ty| Tensor::uninitialized(device, ty, "step output", site))
            .collect::<Result<Vec<Tensor>>>()?;
        let states = |which: &[usize]| which.iter().map(|&i| Target::State(i)).collect::<Vec<_>>();
        let give = (0..n_outputs).map(Target::Output);
        let (of_pass, of_update) = match update {
            None => (states(&(0..n_state).collect::<Vec<_>>()).into_iter().chain(give).collect(), vec![]),
            Some(_) => {
                let totals = (0..sums.len()).map(Target::Sum);
                let of_pass: Vec<Target> = states(&passed).into_iter().chain(totals).collect();
                (of_pass, states(&updated).into_iter().chain(give).collect())
            }
        };
        let bind = |part: Part, targets: Vec<Target>| {
            let n = n_state + inputs.len() + 1 + part.captured.len() + sums.len();
            let (arguments, results) =
                (vec![std::ptr::null_mut(); n], vec![std::ptr::null_mut(); targets.len()]);
            Bound { part, arguments, results, targets }
        };
        let passes = passes.into_iter().map(|part| bind(part, of_pass.clone())).collect();
        let update = update.map(|part| bind(part, of_update));
        let inputs = inputs.to_vec();
        Ok(Variant { inputs, outputs, info, passes, update, sums, rows, arena, arena_bytes, firsts })
    }

    /// The bytes of workspace it needs.
    pub(crate) fn workspace(&self) -> usize {
        self.arena + self.arena_bytes
    }

    pub(crate) fn arena_bytes(&self) -> usize {
        self.arena_bytes
    }

    /// Bytes of the sums over micro-batches.
    pub(crate) fn sum_bytes(&self) -> usize {
        self.sums.iter().map(|(_, bytes)| bytes).sum()
    }

    /// Runs the step once.
    ///
    /// # Safety
    /// Nobody else may hold the state's or the outputs' bytes; inputs are of the variant's types; all is on `device`. The
    /// workspace has [`Variant::workspace`] bytes.
    pub(crate) unsafe fn run(
        &mut self,
        device: &Device,
        state: &[Tensor],
        inputs: &[&Tensor],
        workspace: &Buffer,
        site: Site,
    ) -> Result<()> {
        let base = workspace.ptr();
        let Variant { outputs, passes, update, sums, rows, arena, firsts, .. } = self;
        for (offset, bytes) in &*sums {
            // SAFETY: the workspace holds the sums; it is the CPU's memory.
            unsafe { base.add(*offset).write_bytes(0, *bytes) };
        }
        let split = update.is_some();
        let (mut sample, mut pass) = (0, 0);
        for bound in passes {
            for _ in 0..bound.part.runs {
                bound.point(state, outputs, &firsts[pass], sums, base, inputs.len(), site)?;
                for (i, (input, ty)) in inputs.iter().zip(&self.inputs).enumerate() {
                    let mut source = input.buffer(site)?.ptr();
                    if split {
                        let row = ty.bytes() / ty.shape.first().copied().unwrap_or(1).max(1);
                        // SAFETY: the micro-batches' rows lie inside the input, which is of its type.
                        source = unsafe { source.add(sample * row) };
                        if let Some(offset) = rows[i] {
                            // SAFETY: the workspace has room for the rows of the largest micro-batch there.
                            let copy = unsafe { base.add(offset) };
                            // SAFETY: as above; an input is no part of the workspace.
                            unsafe { copy.copy_from(source, row * bound.part.samples) };
                            source = copy;
                        }
                    }
                    bound.arguments[state.len() + i] = source;
                }
                // SAFETY: the caller's promise; the arena lies behind sums and rows.
                unsafe { bound.run(device, base.add(*arena)) }?;
                sample += bound.part.samples;
                pass += 1;
            }
        }
        if let Some(bound) = update {
            bound.point(state, outputs, &firsts[0], sums, base, inputs.len(), site)?;
            // SAFETY: as above; an update reads no inputs.
            unsafe { bound.run(device, base.add(*arena)) }?;
        }
        Ok(())
    }
}

impl Bound {
    /// Sets all arguments but the inputs, and all results.
    fn point(
        &mut self,
        state: &[Tensor],
        outputs: &[Tensor],
        first: &Tensor,
        sums: &[(usize, usize)],
        base: *mut u8,
        n_inputs: usize,
        site: Site,
    ) -> Result<()> {
        // SAFETY: the sums' offsets lie inside the workspace.
        let sum = |i: usize| unsafe { base.add(sums[i].0) };
        for (slot, tensor) in self.arguments.iter_mut().zip(state) {
            *slot = tensor.buffer(site)?.ptr();
        }
        let mut at = state.len() + n_inputs;
        for tensor in std::iter::once(first).chain(&self.part.captured) {
            self.arguments[at] = tensor.buffer(site)?.ptr();
            at += 1;
        }
        for i in 0..sums.len() {
            self.arguments[at + i] = sum(i);
        }
        for (slot, target) in self.results.iter_mut().zip(&self.targets) {
            *slot = match *target {
                Target::State(i) => state[i].buffer(site)?.ptr(),
                Target::Output(i) => outputs[i].buffer(site)?.ptr(),
                Target::Sum(i) => sum(i),
            };
        }
        Ok(())
    }

    /// # Safety
    /// As for [`crate::program::Program::run`].
    unsafe fn run(&self, device: &Device, arena: *mut u8) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.part.program.run(device, &self.arguments, &self.results, arena) }
    }
}
