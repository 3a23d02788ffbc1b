//! Replays a plan over a map of the arena's bytes and refuses it unless every byte is as promised.
//!
//! This is the one module the contract rests on, so it shares no code with the planner: it knows only `Problem`
//! and `Plan`, and trusts neither. It keeps, for both memories, which byte ranges hold which tensor (and which
//! version of it); a write destroys whatever it touches; a read must find its tensor whole. Lifespans, replays
//! and copies need no rules of their own: they are right exactly if every read is.

use crate::plan::{Plan, Step};
use crate::problem::{Carry, Home, OpId, Problem, TensorId};
use std::collections::BTreeMap;
use thiserror::Error;

/// What is wrong with a plan. `step` counts from 0.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Fault {
    /// The problem itself contradicts itself.
    #[error("the problem is not valid: {0}")]
    Problem(String),
    /// A step names something that does not exist.
    #[error("step {step} names {what}, which does not exist")]
    Unknown {
        /// The step.
        step: usize,
        /// What it named.
        what: String,
    },
    /// A step does not have one offset for each operand.
    #[error("step {step} runs {op} with a wrong number of offsets")]
    Operands {
        /// The step.
        step: usize,
        /// The op.
        op: OpId,
    },
    /// A read does not find the tensor (or the version of it) that it was promised.
    #[error("step {step} reads {tensor} at {offset}, where it is not whole or not the promised version")]
    StaleRead {
        /// The step; the number of steps for what must be there at the end.
        step: usize,
        /// The tensor.
        tensor: TensorId,
        /// Where it was looked for.
        offset: u64,
    },
    /// Two operands of one step overlap though they must not.
    #[error("step {step} has operands that overlap in the arena at byte {offset}")]
    Overlap {
        /// The step.
        step: usize,
        /// The first byte of the second of them.
        offset: u64,
    },
    /// An offset breaks the tensor's alignment.
    #[error("{tensor} lies at {offset}, which is not a multiple of its alignment")]
    Misaligned {
        /// The tensor.
        tensor: TensorId,
        /// Where it lies.
        offset: u64,
    },
    /// Scratch breaks the problem's alignment for it.
    #[error("step {step} has scratch at {offset}, which is not a multiple of its alignment")]
    MisalignedScratch {
        /// The step.
        step: usize,
        /// Where it lies.
        offset: u64,
    },
    /// A byte past the budget is used.
    #[error("step {step} uses bytes up to {end}, past the budget of {budget}")]
    PastBudget {
        /// The step.
        step: usize,
        /// The end of the range.
        end: u64,
        /// The budget.
        budget: u64,
    },
    /// A resident is missing, doubled, or not resident.
    #[error("{tensor} is a resident without exactly one place, or has a place without being one")]
    Resident {
        /// The tensor.
        tensor: TensorId,
    },
    /// An op's first run is called a replay, a later one is not, or an op that must not be replayed is.
    #[error("step {step} runs {op} as a replay though it has not run, or again though it may not")]
    Replay {
        /// The step.
        step: usize,
        /// The op.
        op: OpId,
    },
    /// A state update comes out of its turn.
    #[error("step {step} lets {op} update {tensor} out of turn")]
    UpdateOrder {
        /// The step.
        step: usize,
        /// The op.
        op: OpId,
        /// The state.
        tensor: TensorId,
    },
    /// An op never runs.
    #[error("{op} never runs")]
    NeverRuns {
        /// The op.
        op: OpId,
    },
    /// An output is missing at the end.
    #[error("output {tensor} has no place at the end")]
    NoOutput {
        /// The tensor.
        tensor: TensorId,
    },
    /// A copy is not allowed: no link, or of a resident.
    #[error("step {step} copies {tensor}, but there is no link or it is not a transient of its own bytes")]
    Copy {
        /// The step.
        step: usize,
        /// The tensor.
        tensor: TensorId,
    },
    /// Bytes that a copy still reads or writes are written over.
    #[error("step {step} writes to byte {offset}, which a copy under way still needs")]
    Busy {
        /// The step.
        step: usize,
        /// The first byte of what it writes.
        offset: u64,
    },
    /// A copy is started twice, or awaited without having been started, or never awaited.
    #[error(
        "step {step} starts a copy of {tensor} that is under way, awaits one that is not, or leaves one behind"
    )]
    Await {
        /// The step; the number of steps for a copy that is under way at the end.
        step: usize,
        /// The tensor.
        tensor: TensorId,
    },
    /// A printed figure is not what the replay saw.
    #[error("the plan says {figure} is {claimed}, but it is {seen}")]
    Figure {
        /// Which figure.
        figure: &'static str,
        /// What the plan says.
        claimed: u64,
        /// What was seen.
        seen: u64,
    },
}

/// Which ranges of one memory hold which tensor, whole and unharmed.
#[derive(Default)]
struct ByteMap {
    /// Start of range -> (end, tensor, version). Ranges never overlap.
    ranges: BTreeMap<u64, (u64, TensorId, u32)>,
    highest: u64,
}

impl ByteMap {
    /// Destroys everything that shares a byte with `start..end`.
    fn destroy(&mut self, start: u64, end: u64) {
        self.highest = self.highest.max(end);
        if start == end {
            return;
        }
        while let Some((&from, _)) = self.ranges.range(..end).next_back().filter(|(_, r)| r.0 > start) {
            self.ranges.remove(&from);
        }
    }

    fn put(&mut self, start: u64, end: u64, tensor: TensorId, version: u32) {
        self.destroy(start, end);
        if start < end {
            self.ranges.insert(start, (end, tensor, version));
        }
    }

    fn holds(&self, start: u64, tensor: TensorId, version: u32) -> bool {
        self.ranges.get(&start).is_some_and(|r| (r.1, r.2) == (tensor, version))
    }
}

/// A copy that was started and not awaited yet, with the bytes it needs on both sides, and when it is done.
struct Copy {
    tensor: TensorId,
    out: bool,
    device: (u64, u64),
    host: (u64, u64),
    done_ns: u64,
}

struct Replay<'a> {
    problem: &'a Problem,
    plan: &'a Plan,
    device: ByteMap,
    host: ByteMap,
    /// For each op, whether it has run.
    ran: Vec<bool>,
    /// For each tensor, how often it has been updated so far.
    version: Vec<u32>,
    /// For each op, the versions its reads are promised and the versions its updates find, from program order.
    promised: Vec<Vec<u32>>,
    found: Vec<Vec<u32>>,
    resident_at: Vec<Option<u64>>,
    step: usize,
    /// When the ops so far are done, and when the engines that copy in and out are free.
    ns: u64,
    engine_ns: [u64; 2],
    copies: Vec<Copy>,
    replays: u64,
    offloads: u64,
}

/// Checks a plan for a problem.
pub fn verify(problem: &Problem, plan: &Plan) -> Result<(), Fault> {
    problem.check().map_err(|error| Fault::Problem(error.to_string()))?;
    let (promised, found) = promised_versions(problem);
    let mut replay = Replay {
        problem,
        plan,
        device: ByteMap::default(),
        host: ByteMap::default(),
        ran: vec![false; problem.ops.len()],
        version: vec![0; problem.tensors.len()],
        promised,
        found,
        resident_at: vec![None; problem.tensors.len()],
        step: 0,
        ns: 0,
        engine_ns: [0, 0],
        copies: Vec::new(),
        replays: 0,
        offloads: 0,
    };
    replay.place_residents()?;
    for (index, step) in plan.steps.iter().enumerate() {
        replay.step = index;
        match step {
            Step::Run { op, replay: again, reads, writes, scratch } => {
                replay.run(*op, *again, reads, writes, *scratch)?;
            }
            Step::Offload { tensor, from, to } => replay.copy(*tensor, *from, *to, true)?,
            Step::Prefetch { tensor, from, to } => replay.copy(*tensor, *from, *to, false)?,
            Step::Await { tensor, offload } => replay.wait(*tensor, *offload)?,
        }
    }
    replay.step = plan.steps.len();
    replay.finish()
}

/// The version of each read that program order promises, and the version that each update finds.
fn promised_versions(problem: &Problem) -> (Vec<Vec<u32>>, Vec<Vec<u32>>) {
    let mut version = vec![0u32; problem.tensors.len()];
    let mut promised = Vec::with_capacity(problem.ops.len());
    let mut found = Vec::with_capacity(problem.ops.len());
    for op in &problem.ops {
        promised.push(op.reads.iter().map(|&t| version[problem.root(t).0.index()]).collect());
        found.push(op.updates.iter().map(|&t| version[t.index()]).collect());
        op.updates.iter().for_each(|t| version[t.index()] += 1);
    }
    (promised, found)
}

impl Replay<'_> {
    /// What a tensor takes in the arena: its bytes and the padding up to its alignment.
    fn bytes(&self, tensor: TensorId) -> u64 {
        let t = &self.problem.tensors[tensor.index()];
        t.bytes.div_ceil(t.alignment) * t.alignment
    }

    /// The end of a range, if it is inside the budget.
    fn end(&self, offset: u64, bytes: u64, budget: u64) -> Result<u64, Fault> {
        let end = offset.saturating_add(bytes);
        if end > budget {
            return Err(Fault::PastBudget { step: self.step, end, budget });
        }
        Ok(end)
    }

    fn aligned(&self, tensor: TensorId, offset: u64) -> Result<(), Fault> {
        match offset.is_multiple_of(self.problem.tensors[tensor.index()].alignment) {
            true => Ok(()),
            false => Err(Fault::Misaligned { tensor, offset }),
        }
    }

    fn place_residents(&mut self) -> Result<(), Fault> {
        for placed in &self.plan.residents {
            let tensor = placed.tensor;
            let known = self.problem.tensors.get(tensor.index());
            let own = known.is_some_and(|t| t.home == Home::Resident && t.view.is_none());
            if !own || self.resident_at[tensor.index()].is_some() {
                return Err(Fault::Resident { tensor });
            }
            self.aligned(tensor, placed.offset)?;
            let end = self.end(placed.offset, self.bytes(tensor), self.plan.budget)?;
            let before = self.device.ranges.len();
            self.device.put(placed.offset, end, tensor, 0);
            if self.device.ranges.len() != before + usize::from(placed.offset < end) {
                return Err(Fault::Overlap { step: 0, offset: placed.offset });
            }
            self.resident_at[tensor.index()] = Some(placed.offset);
        }
        for (index, t) in self.problem.tensors.iter().enumerate() {
            if t.home == Home::Resident && t.view.is_none() && self.resident_at[index].is_none() {
                return Err(Fault::Resident { tensor: TensorId(index as u32) });
            }
        }
        Ok(())
    }

    /// Finds the root of `tensor` whole at its place, in the given version, and returns its byte range.
    fn expect(&self, tensor: TensorId, offset: u64, version: u32) -> Result<(u64, u64), Fault> {
        let (root, inside) = self.problem.root(tensor);
        let stale = Fault::StaleRead { step: self.step, tensor, offset };
        let start = offset.checked_sub(inside).ok_or(stale.clone())?;
        if self.bytes(root) == 0 {
            return Ok((start, start));
        }
        if !self.device.holds(start, root, version) {
            return Err(stale);
        }
        Ok((start, start + self.bytes(root)))
    }

    fn run(
        &mut self,
        id: OpId,
        again: bool,
        reads: &[u64],
        writes: &[u64],
        scratch: u64,
    ) -> Result<(), Fault> {
        let step = self.step;
        let problem = self.problem;
        let Some(op) = problem.ops.get(id.index()) else {
            return Err(Fault::Unknown { step, what: id.to_string() });
        };
        if reads.len() != op.reads.len() || writes.len() != op.writes.len() {
            return Err(Fault::Operands { step, op: id });
        }
        let ran = std::mem::replace(&mut self.ran[id.index()], true);
        if ran != again || ran && !op.replayable {
            return Err(Fault::Replay { step, op: id });
        }

        // What it reads must be there, and so must the state that it changes.
        let mut held: Vec<(u64, u64, Option<TensorId>)> = Vec::new();
        for (k, (&tensor, &offset)) in op.reads.iter().zip(reads).enumerate() {
            let (start, end) = self.expect(tensor, offset, self.promised[id.index()][k])?;
            self.end(start, end - start, self.plan.budget)?;
            held.push((start, end, Some(self.problem.root(tensor).0)));
        }
        for (k, &tensor) in op.updates.iter().enumerate() {
            let place = self.resident_at[tensor.index()].unwrap_or(u64::MAX);
            if !again && self.version[tensor.index()] != self.found[id.index()][k] {
                return Err(Fault::UpdateOrder { step, op: id, tensor });
            }
            held.push((place, place.saturating_add(self.bytes(tensor)), None));
        }
        // What it writes may only lie on what it reads where the op says so.
        let mut fresh: Vec<(u64, u64)> = Vec::new();
        for (&tensor, &offset) in op.writes.iter().zip(writes) {
            self.aligned(tensor, offset)?;
            let end = self.end(offset, self.bytes(tensor), self.plan.budget)?;
            for &(from, to, read) in &held {
                let touches = offset < to && from < end;
                let allowed = read.is_some_and(|read| {
                    from == offset
                        && op.in_place.iter().any(|&(r, w)| self.problem.root(r).0 == read && w == tensor)
                });
                if touches && !allowed {
                    return Err(Fault::Overlap { step, offset });
                }
            }
            fresh.push((offset, end));
        }
        let unit = self.problem.scratch_alignment;
        let scratch_end = self.end(scratch, op.scratch.div_ceil(unit) * unit, self.plan.budget)?;
        if !scratch.is_multiple_of(unit) {
            return Err(Fault::MisalignedScratch { step, offset: scratch });
        }
        if held.iter().any(|&(from, to, _)| scratch < to && from < scratch_end) {
            return Err(Fault::Overlap { step, offset: scratch });
        }
        fresh.push((scratch, scratch_end));
        for (k, a) in fresh.iter().enumerate() {
            if fresh[..k].iter().any(|b| a.0 < b.1 && b.0 < a.1) {
                return Err(Fault::Overlap { step, offset: a.0 });
            }
        }
        // Residents are never written over, not even after their last read: they outlive the step.
        for &(start, end) in &fresh {
            let mut touched = self.device.ranges.range(..end).rev().take_while(|(_, r)| r.0 > start);
            if start < end && touched.any(|(_, r)| self.resident_at[r.1.index()].is_some()) {
                return Err(Fault::Overlap { step, offset: start });
            }
        }
        for &(start, end) in &fresh {
            self.free(start, end, |copy| copy.device)?;
        }
        self.device.destroy(scratch, scratch_end);
        if let Some(way) = op.carry {
            // It is done when it is awaited: until then what it brings is not there, and what it takes must stay.
            let out = way == Carry::Out;
            let (tensor, device) = match out {
                true => (op.reads[0], (held[0].0, held[0].1)),
                false => (op.writes[0], fresh[0]),
            };
            if self.copies.iter().any(|copy| (copy.tensor, copy.out) == (tensor, out)) {
                return Err(Fault::Await { step, tensor });
            }
            if !out {
                self.device.destroy(device.0, device.1);
            }
            let engine = &mut self.engine_ns[usize::from(out)];
            *engine = (*engine).max(self.ns).saturating_add(op.ns);
            let done_ns = *engine;
            self.copies.push(Copy { tensor, out, device, host: (0, 0), done_ns });
            return Ok(());
        }
        for (&tensor, &(start, end)) in op.writes.iter().zip(&fresh) {
            self.device.put(start, end, tensor, 0);
        }
        if !again {
            for &tensor in &op.updates {
                let place = self.resident_at[tensor.index()].unwrap_or(u64::MAX);
                self.version[tensor.index()] += 1;
                let version = self.version[tensor.index()];
                self.device.put(place, place.saturating_add(self.bytes(tensor)), tensor, version);
            }
        }
        self.ns = self.ns.saturating_add(op.ns);
        self.replays += u64::from(again);
        Ok(())
    }

    fn copy(&mut self, tensor: TensorId, from: u64, to: u64, out: bool) -> Result<(), Fault> {
        let step = self.step;
        let fault = Fault::Copy { step, tensor };
        let Some(t) = self.problem.tensors.get(tensor.index()) else {
            return Err(Fault::Unknown { step, what: tensor.to_string() });
        };
        let link = self.problem.link.ok_or(fault.clone())?;
        if t.home == Home::Resident || t.view.is_some() {
            return Err(fault);
        }
        let (source, budget) = match out {
            true => (&self.device, self.plan.host_budget),
            false => (&self.host, self.plan.budget),
        };
        if t.bytes > 0 && !source.holds(from, tensor, 0) {
            return Err(Fault::StaleRead { step, tensor, offset: from });
        }
        self.aligned(tensor, to)?;
        let end = self.end(to, self.bytes(tensor), budget)?;
        if !out {
            let mut touched = self.device.ranges.range(..end).rev().take_while(|(_, r)| r.0 > to);
            if touched.any(|(_, r)| self.resident_at[r.1.index()].is_some()) {
                return Err(Fault::Overlap { step, offset: to });
            }
        }
        if self.copies.iter().any(|copy| (copy.tensor, copy.out) == (tensor, out)) {
            return Err(Fault::Await { step, tensor });
        }
        let source = (from, from.saturating_add(self.bytes(tensor)));
        let (device, host) = if out { (source, (to, end)) } else { ((to, end), source) };
        // The target is nobody's until the copy is awaited, and no other copy may need it.
        match out {
            true => self.free(to, end, |copy| copy.host)?,
            false => self.free(to, end, |copy| copy.device)?,
        }
        if out { &mut self.host } else { &mut self.device }.destroy(to, end);
        let engine = &mut self.engine_ns[usize::from(out)];
        *engine = (*engine).max(self.ns).saturating_add(link.ns(t.bytes));
        let done_ns = *engine;
        self.copies.push(Copy { tensor, out, device, host, done_ns });
        self.offloads += u64::from(out);
        Ok(())
    }

    /// Refuses a write to bytes that a copy under way needs.
    fn free(&self, start: u64, end: u64, side: impl Fn(&Copy) -> (u64, u64)) -> Result<(), Fault> {
        let touches = |copy: &Copy| side(copy).0 < end && start < side(copy).1;
        match self.copies.iter().any(touches) {
            true => Err(Fault::Busy { step: self.step, offset: start }),
            false => Ok(()),
        }
    }

    /// Ends a copy: from now on its target holds the tensor.
    fn wait(&mut self, tensor: TensorId, out: bool) -> Result<(), Fault> {
        let under_way = self.copies.iter().position(|copy| (copy.tensor, copy.out) == (tensor, out));
        let Some(at) = under_way else { return Err(Fault::Await { step: self.step, tensor }) };
        let copy = self.copies.swap_remove(at);
        match out {
            true => self.host.put(copy.host.0, copy.host.1, tensor, 0),
            false => self.device.put(copy.device.0, copy.device.1, tensor, 0),
        }
        self.ns = self.ns.max(copy.done_ns);
        Ok(())
    }

    fn finish(self) -> Result<(), Fault> {
        if let Some(copy) = self.copies.first() {
            return Err(Fault::Await { step: self.step, tensor: copy.tensor });
        }
        if let Some(index) = self.ran.iter().position(|ran| !ran) {
            return Err(Fault::NeverRuns { op: OpId(index as u32) });
        }
        let outputs: BTreeMap<TensorId, u64> =
            self.plan.outputs.iter().map(|p| (p.tensor, p.offset)).collect();
        for (index, t) in self.problem.tensors.iter().enumerate() {
            let tensor = TensorId(index as u32);
            if t.home == Home::Output && t.view.is_none() {
                let offset = *outputs.get(&tensor).ok_or(Fault::NoOutput { tensor })?;
                self.expect(tensor, offset, 0)?;
            }
            if let Some(offset) = self.resident_at[index] {
                self.expect(tensor, offset, self.version[index])?;
            }
        }
        let figures = &self.plan.figures;
        let checks = [
            ("predicted_ns", figures.predicted_ns, self.ns),
            ("recomputed_ops", figures.recomputed_ops, self.replays),
            ("offloaded_tensors", figures.offloaded_tensors, self.offloads),
            ("arena_bytes", figures.arena_bytes, self.device.highest),
            ("host_bytes", figures.host_bytes, self.host.highest),
            ("live_bytes", figures.live_bytes.max(figures.arena_bytes), figures.arena_bytes),
        ];
        match checks.into_iter().find(|(_, claimed, seen)| claimed != seen) {
            Some((figure, claimed, seen)) => Err(Fault::Figure { figure, claimed, seen }),
            None => Ok(()),
        }
    }
}
