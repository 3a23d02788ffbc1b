//! A step compiled for inputs of certain types: its programs, and where in the step's workspace they run.

use std::sync::atomic::{AtomicU64, Ordering};

use plimsoll_device::backend::{ALIGNMENT, HostArena};
use plimsoll_graph::{DType, Site, TensorOps, Type};

use super::profiling::Profiling;
use super::step::Mode;
use crate::choose::{PlanFigures, Shared, staged};
use crate::device::{Buffer, Device, Watch};
use crate::error::{Error, Result};
use crate::program::{Clock, Meanwhile, Part, ProgramMemory, Recorded, StepProgram, check};
use crate::tensor::Tensor;

/// One compiled form of a step. The workspace that all variants share holds, in this order:
///
/// ```text
/// | sums over micro-batches | rows of a micro-batch, its position | old values of what passes change | arena |
/// ```
pub(crate) struct Variant {
    /// A number that no other form of the process has.
    id: u64,
    /// What the step is run for.
    pub(crate) mode: Mode,
    pub(crate) inputs: Vec<Type>,
    pub(crate) outputs: Vec<Tensor>,
    pub(crate) info: PlanFigures,
    passes: Vec<Bound>,
    update: Option<Bound>,
    /// Offsets and bytes of the sums.
    sums: Vec<(usize, usize)>,
    /// The sum that must be finite before the update, with its element type.
    guard: Option<(usize, DType)>,
    /// Offsets of rows that are copied because they are not aligned.
    rows: Vec<Option<usize>>,
    /// Where the position of the pass at hand is copied to, on a device that records passes.
    first: Option<usize>,
    /// State that passes change, and where its old values are put until the step is done.
    kept: Vec<(usize, usize)>,
    arena: usize,
    arena_bytes: usize,
    /// The position of each pass's first sample.
    firsts: Vec<Tensor>,
    /// How long its first runs take.
    watch: Watch,
}

/// A part of the step with what it is called with; the lists are filled anew for each run and allocated once.
struct Bound {
    part: Part,
    arguments: Vec<*mut u8>,
    results: Vec<*mut u8>,
    /// What each result is.
    targets: Vec<Target>,
    /// The memory of the last runs on a device that records, the latest at the end: inputs may come in two places by turns.
    seen: Vec<Seen>,
    /// What its runs are timed with, where they are. Behind what is recorded with it.
    clock: Option<Clock>,
    is_timed: bool,
}

/// Memory that a part has run in, and the program as recorded over it.
struct Seen {
    arguments: Vec<*mut u8>,
    results: Vec<*mut u8>,
    arena: *mut u8,
    /// The generation of the host's memory.
    host: u64,
    recorded: Option<Recorded>,
}

/// So many recordings of a part are kept.
const MOST_SEEN: usize = 2;

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
        program: StepProgram,
        mode: Mode,
        inputs: &[Type],
        batch: usize,
        device: &Device,
        state: &[Tensor],
        info: PlanFigures,
        site: Site,
    ) -> Result<Variant> {
        let n_state = state.len();
        let StepProgram { passes, update, shared, outputs } = program;
        let Shared { sums, guard, passed, updated } = shared;
        let guard = guard.map(|i| (i, sums[i].dtype));
        let mut end = 0;
        let mut place = |bytes: usize| {
            let start = end;
            end += bytes.next_multiple_of(ALIGNMENT);
            start
        };
        let samples = passes.first().map_or(1, |p| p.samples);
        let fixed = !device.backend().is_host();
        let sums: Vec<(usize, usize)> = sums.iter().map(|ty| (place(ty.bytes()), ty.bytes())).collect();
        let mut row = |ty: &Type| {
            let bytes = staged(ty, batch, samples, fixed).get() as usize;
            (update.is_some() && bytes > 0).then(|| place(bytes))
        };
        let rows = inputs.iter().map(&mut row).collect();
        let first = (update.is_some() && fixed).then(|| place(size_of::<i64>()));
        let kept = passed.iter().map(|&i| (i, place(state[i].ty().bytes()))).collect();
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
            Bound { part, arguments, results, targets, seen: Vec::new(), clock: None, is_timed: false }
        };
        let passes = passes.into_iter().map(|part| bind(part, of_pass.clone())).collect();
        let update = update.map(|part| bind(part, of_update));
        let inputs = inputs.to_vec();
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Ok(Variant {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            mode,
            inputs,
            outputs,
            info,
            passes,
            update,
            sums,
            guard,
            rows,
            first,
            kept,
            arena,
            arena_bytes,
            firsts,
            watch: Watch::default(),
        })
    }

    /// Takes note of how long a run took. Once enough have, the times of its kernels are held against them, for plans to come: a
    /// program that is there stays as it is.
    pub(crate) fn ran_for(&mut self, device: &Device, seconds: f64) {
        let Some(took) = self.watch.add(seconds) else { return };
        let parts = self.passes.iter().chain(&self.update).map(|bound| &bound.part);
        let kernels = parts.flat_map(|part| {
            let nodes = part.program.nodes_run();
            nodes.map(|node| (part.program.graph(), node, part.runs))
        });
        device.costs().compare(device, kernels, took);
    }

    /// Records anew from the next run on.
    pub(crate) fn forget_recordings(&mut self) {
        self.passes.iter_mut().chain(&mut self.update).for_each(|bound| bound.seen.clear());
    }

    /// Its number.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Times every instruction from the next run on. Returns how many numbers and how many runs of programs that gives a step.
    pub(crate) fn start_clocks(&mut self, device: &Device) -> Result<(usize, usize)> {
        self.stop_clocks();
        let (mut numbers, mut runs) = (0, 0);
        for bound in self.passes.iter_mut().chain(&mut self.update) {
            let clock = Clock::new(device, &bound.part.program)?;
            numbers += clock.numbers() * bound.part.runs;
            runs += bound.part.runs;
            (bound.clock, bound.is_timed) = (Some(clock), true);
        }
        Ok((numbers, runs))
    }

    /// Times nothing any more; what was timed last can still be read.
    pub(crate) fn rest_clocks(&mut self) {
        self.forget_recordings();
        self.passes.iter_mut().chain(&mut self.update).for_each(|bound| bound.is_timed = false);
    }

    /// Times nothing any more and lets go of the clocks.
    pub(crate) fn stop_clocks(&mut self) {
        // What was recorded sets the clocks, and goes first.
        self.rest_clocks();
        self.passes.iter_mut().chain(&mut self.update).for_each(|bound| bound.clock = None);
    }

    /// The clocks in the order in which programs run, as often as they do, with the section of the step's record that each is of.
    pub(crate) fn clocks(&self) -> impl Iterator<Item = (usize, &Clock)> {
        let bounds = self.passes.iter().chain(&self.update).enumerate();
        bounds.flat_map(|(section, bound)| {
            let clock = bound.clock.iter().cycle().take(bound.part.runs);
            clock.map(move |clock| (section, clock))
        })
    }

    /// Bytes that each instruction reads, writes or moves, in the order of the step's record.
    pub(crate) fn instruction_bytes(&self) -> impl Iterator<Item = usize> {
        self.passes.iter().chain(&self.update).flat_map(|bound| bound.part.program.instruction_bytes())
    }

    /// The sizes of the tensors that are its own: results, and positions of passes.
    pub(crate) fn own_bytes(&self) -> impl Iterator<Item = usize> {
        self.outputs.iter().chain(&self.firsts).map(|tensor| tensor.ty().bytes())
    }

    /// The bytes of workspace it needs.
    pub(crate) fn workspace(&self) -> usize {
        self.arena + self.arena_bytes
    }

    /// The bytes of the host's memory it copies to, and how many copies are under way at once.
    pub(crate) fn host_room(&self) -> (usize, usize) {
        let rooms = || self.passes.iter().chain(&self.update).map(|bound| bound.part.program.host_room());
        let (bytes, slots) = (rooms().map(|room| room.0).max(), rooms().map(|room| room.1).max());
        (bytes.unwrap_or(0), slots.unwrap_or(0))
    }

    /// Its programs over the batch, and the one behind them.
    pub(crate) fn parts(&self) -> (Vec<&Part>, Option<&Part>) {
        (self.passes.iter().map(|bound| &bound.part).collect(), self.update.as_ref().map(|bound| &bound.part))
    }

    /// How many sums passes add to, and which state they change.
    pub(crate) fn sums_and_kept(&self) -> (usize, Vec<usize>) {
        (self.sums.len(), self.kept.iter().map(|(i, _)| *i).collect())
    }

    pub(crate) fn arena_bytes(&self) -> usize {
        self.arena_bytes
    }

    /// Bytes of the sums over micro-batches.
    pub(crate) fn sum_bytes(&self) -> usize {
        self.sums.iter().map(|(_, bytes)| bytes).sum()
    }

    /// Runs the step once, or not at all: if it fails, the state is as it was.
    ///
    /// # Safety
    /// Nobody else may hold the state's or the outputs' bytes; inputs are of the variant's types; all is on `device`. The
    /// workspace has [`Variant::workspace`] bytes, and the host's memory is fit for [`Variant::host_room`].
    pub(crate) unsafe fn run(
        &mut self,
        device: &Device,
        state: &[Tensor],
        inputs: &[&Tensor],
        workspace: &Buffer,
        host: Option<&dyn HostArena>,
        meanwhile: &mut Meanwhile<'_>,
        profiling: Option<&mut Profiling>,
        site: Site,
    ) -> Result<()> {
        let base = workspace.ptr();
        let fault = |fault| Error::Fault { fault, site };
        for &(i, offset) in &self.kept {
            let (old, bytes) = (state[i].buffer(site)?.ptr(), state[i].ty().bytes());
            // SAFETY: the workspace has room for the old values there.
            unsafe { device.backend().copy(base.add(offset), old, bytes) }.map_err(fault)?;
        }
        // SAFETY: the caller's promise.
        let done = unsafe { self.attempt(device, state, inputs, base, host, meanwhile, profiling, site) };
        // However the step went, what was to be done beside it is done.
        meanwhile.now();
        if done.is_err() {
            // A whole step checks its loss before it changes anything; what passes have changed is put back here.
            for &(i, offset) in &self.kept {
                let (old, bytes) = (state[i].buffer(site)?.ptr(), state[i].ty().bytes());
                // SAFETY: as above, the other way.
                unsafe { device.backend().copy(old, base.add(offset), bytes) }.map_err(fault)?;
            }
        }
        done
    }

    /// # Safety
    /// As for [`Variant::run`].
    unsafe fn attempt(
        &mut self,
        device: &Device,
        state: &[Tensor],
        inputs: &[&Tensor],
        base: *mut u8,
        host: Option<&dyn HostArena>,
        meanwhile: &mut Meanwhile<'_>,
        mut profiling: Option<&mut Profiling>,
        site: Site,
    ) -> Result<()> {
        // SAFETY: the arena lies in the workspace, behind everything else.
        let arena = unsafe { base.add(self.arena) };
        let Variant { outputs, passes, update, sums, guard, rows, first, firsts, .. } = self;
        let fault = |fault| Error::Fault { fault, site };
        for (offset, bytes) in &*sums {
            // SAFETY: the workspace holds the sums.
            unsafe { device.backend().zero(base.add(*offset), *bytes) }.map_err(fault)?;
        }
        let split = update.is_some();
        let (mut sample, mut pass) = (0, 0);
        for bound in passes {
            for _ in 0..bound.part.runs {
                let mut position = firsts[pass].buffer(site)?.ptr();
                if let Some(offset) = *first {
                    // SAFETY: the workspace has room for it there.
                    unsafe {
                        let place = base.add(offset);
                        device.backend().copy(place, position, size_of::<i64>()).map_err(fault)?;
                        position = place;
                    }
                }
                bound.point(state, outputs, position, sums, base, inputs.len(), site)?;
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
                            unsafe { device.backend().copy(copy, source, row * bound.part.samples) }
                                .map_err(fault)?;
                            source = copy;
                        }
                    }
                    bound.arguments[state.len() + i] = source;
                }
                // SAFETY: the caller's promise.
                unsafe { bound.run(device, arena, host, meanwhile, site) }?;
                bound.timed(device, meanwhile, profiling.as_deref_mut(), !split)?;
                sample += bound.part.samples;
                pass += 1;
            }
        }
        if let Some((sum, dtype)) = *guard {
            // SAFETY: the sum is in the workspace and was written by the passes.
            unsafe { check(device, base.add(sums[sum].0), dtype, site) }?;
        }
        if let Some(bound) = update {
            let position = firsts[0].buffer(site)?.ptr();
            bound.point(state, outputs, position, sums, base, inputs.len(), site)?;
            // SAFETY: as above; an update reads no inputs.
            unsafe { bound.run(device, arena, host, meanwhile, site) }?;
            bound.timed(device, meanwhile, profiling, true)?;
        }
        meanwhile.now();
        // What kernels refuse is known when they are done.
        device.backend().synchronize().map_err(fault)
    }
}

impl Bound {
    /// Sets all arguments but the inputs, and all results.
    fn point(
        &mut self,
        state: &[Tensor],
        outputs: &[Tensor],
        first: *mut u8,
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
        self.arguments[at] = first;
        at += 1;
        for tensor in &self.part.captured {
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

    /// Waits for a run whose time is taken and reads its clock. Behind the last of a step, what is to be done meanwhile is done first.
    fn timed(
        &self,
        device: &Device,
        meanwhile: &mut Meanwhile<'_>,
        profiling: Option<&mut Profiling>,
        is_last: bool,
    ) -> Result<()> {
        let (Some(profiling), Some(clock)) = (profiling, &self.clock) else { return Ok(()) };
        if is_last {
            meanwhile.now();
        }
        profiling.read(device, &self.part.program, clock)
    }

    /// Runs the part. A device that records is given the recording from the third run over the same memory on: the first
    /// may load code, which cannot be recorded.
    ///
    /// # Safety
    /// As for [`crate::program::Program::run`].
    unsafe fn run(
        &mut self,
        device: &Device,
        arena: *mut u8,
        host: Option<&dyn HostArena>,
        meanwhile: &mut Meanwhile<'_>,
        site: Site,
    ) -> Result<()> {
        let Bound { part, arguments, results, seen, clock, is_timed, .. } = self;
        let clock = clock.as_ref().filter(|_| *is_timed);
        let memory = ProgramMemory { arguments: &*arguments, results: &*results, arena, host };
        let host = host.map_or(0, |host| host.generation());
        let same = |seen: &Seen| {
            (seen.arena, seen.host) == (arena, host)
                && seen.arguments == *arguments
                && seen.results == *results
        };
        let known = seen.iter().position(same);
        if let Some(recorded) = known.and_then(|i| seen[i].recorded.as_ref()) {
            // SAFETY: the caller's promise, and the memory is what it was recorded with.
            return unsafe { recorded.replay(&part.program, device, clock, meanwhile, site) };
        }
        // SAFETY: the caller's promise.
        unsafe { part.program.run(device, memory, clock) }?;
        if device.backend().is_host() {
            return Ok(());
        }
        if let Some(i) = known {
            // SAFETY: as above; it is replayed over the same memory only.
            seen[i].recorded = unsafe { part.program.record(device, memory, clock) }?;
            return Ok(());
        }
        // What was recorded elsewhere in memory that is no more goes first, then what was used longest ago.
        seen.retain(|seen| (seen.arena, seen.host) == (arena, host));
        if seen.len() >= MOST_SEEN {
            seen.remove(0);
        }
        let (arguments, results) = (arguments.clone(), results.clone());
        seen.push(Seen { arguments, results, arena, host, recorded: None });
        Ok(())
    }
}
