//! Replays a plan over a map of the arena's bytes and refuses it unless every byte is as promised.
//!
//! This is the one module the contract rests on, so it shares no code with the planner: it knows only `Problem`
//! and `Plan`, and trusts neither. It keeps, for both memories, which byte ranges hold which tensor (and which
//! version of it); a write destroys whatever it touches; a read must find its tensor whole. Lifespans, replays
//! and copies need no rules of their own: they are right exactly if every read is.

mod byte_map;
mod copies;
mod fault;

pub use fault::Fault;

use crate::plan::{Plan, Step};
use crate::problem::{Carry, Home, Op, OpId, Problem, TensorId};
use byte_map::ByteMap;
use copies::{Copies, Copy};
use std::collections::BTreeMap;

/// Where a step says that an op's operands and scratch lie.
struct Offsets<'a> {
    reads: &'a [u64],
    writes: &'a [u64],
    scratch: u64,
}

/// Bytes that an op needs as they are: of a tensor that it reads, or of state that it changes.
struct Operand {
    range: (u64, u64),
    read: Option<TensorId>,
}

fn overlap(a: (u64, u64), b: (u64, u64)) -> bool {
    a.0 < b.1 && b.0 < a.1
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
    /// When the ops so far are done.
    ns: u64,
    copies: Copies,
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
        copies: Copies::default(),
        replays: 0,
        offloads: 0,
    };
    replay.place_residents()?;
    for (index, step) in plan.steps.iter().enumerate() {
        replay.step = index;
        match step {
            Step::Run { op, replay: again, reads, writes, scratch } => {
                replay.run(*op, *again, &Offsets { reads, writes, scratch: *scratch })?;
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
            let before = self.device.len();
            self.device.put(placed.offset, end, tensor, 0);
            if self.device.len() != before + usize::from(placed.offset < end) {
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

    fn run(&mut self, id: OpId, again: bool, offsets: &Offsets<'_>) -> Result<(), Fault> {
        let (problem, step) = (self.problem, self.step);
        let Some(op) = problem.ops.get(id.index()) else {
            return Err(Fault::Unknown { step, what: id.to_string() });
        };
        if offsets.reads.len() != op.reads.len() || offsets.writes.len() != op.writes.len() {
            return Err(Fault::Operands { step, op: id });
        }
        let ran = std::mem::replace(&mut self.ran[id.index()], true);
        if ran != again || ran && !op.replayable {
            return Err(Fault::Replay { step, op: id });
        }
        let held = self.find_operands(id, op, again, offsets.reads)?;
        let mut fresh = self.place_writes(op, offsets.writes, &held)?;
        let scratch = self.place_scratch(op, offsets.scratch, &held)?;
        fresh.push(scratch);
        self.check_fresh(&fresh)?;
        self.device.destroy(scratch.0, scratch.1);
        match op.carry {
            Some(way) => self.start_carry(op, way == Carry::Out, &held, &fresh),
            None => {
                self.write(op, again, &fresh);
                Ok(())
            }
        }
    }

    /// Finds what an op reads whole at its place, and the state that it changes in its turn.
    fn find_operands(&self, id: OpId, op: &Op, again: bool, reads: &[u64]) -> Result<Vec<Operand>, Fault> {
        let mut held = Vec::new();
        for (k, (&tensor, &offset)) in op.reads.iter().zip(reads).enumerate() {
            let (start, end) = self.expect(tensor, offset, self.promised[id.index()][k])?;
            self.end(start, end - start, self.plan.budget)?;
            held.push(Operand { range: (start, end), read: Some(self.problem.root(tensor).0) });
        }
        for (k, &tensor) in op.updates.iter().enumerate() {
            let place = self.resident_at[tensor.index()].unwrap_or(u64::MAX);
            if !again && self.version[tensor.index()] != self.found[id.index()][k] {
                return Err(Fault::UpdateOrder { step: self.step, op: id, tensor });
            }
            held.push(Operand { range: (place, place.saturating_add(self.bytes(tensor))), read: None });
        }
        Ok(held)
    }

    /// The ranges that an op writes. They may lie on what it reads only where the op says so.
    fn place_writes(&self, op: &Op, writes: &[u64], held: &[Operand]) -> Result<Vec<(u64, u64)>, Fault> {
        let mut fresh = Vec::new();
        for (&tensor, &offset) in op.writes.iter().zip(writes) {
            self.aligned(tensor, offset)?;
            let end = self.end(offset, self.bytes(tensor), self.plan.budget)?;
            let in_place = |read: TensorId| {
                op.in_place.iter().any(|&(r, w)| self.problem.root(r).0 == read && w == tensor)
            };
            let allowed = |operand: &Operand| operand.range.0 == offset && operand.read.is_some_and(in_place);
            if held.iter().any(|operand| overlap(operand.range, (offset, end)) && !allowed(operand)) {
                return Err(Fault::Overlap { step: self.step, offset });
            }
            fresh.push((offset, end));
        }
        Ok(fresh)
    }

    /// The range of an op's scratch, which lies on none of its operands.
    fn place_scratch(&self, op: &Op, offset: u64, held: &[Operand]) -> Result<(u64, u64), Fault> {
        let unit = self.problem.scratch_alignment;
        let end = self.end(offset, op.scratch.div_ceil(unit) * unit, self.plan.budget)?;
        if !offset.is_multiple_of(unit) {
            return Err(Fault::MisalignedScratch { step: self.step, offset });
        }
        if held.iter().any(|operand| overlap(operand.range, (offset, end))) {
            return Err(Fault::Overlap { step: self.step, offset });
        }
        Ok((offset, end))
    }

    /// Refuses ranges to write that lie on each other, on a resident or on bytes that a copy needs.
    fn check_fresh(&self, fresh: &[(u64, u64)]) -> Result<(), Fault> {
        for (k, &range) in fresh.iter().enumerate() {
            if fresh[..k].iter().any(|&other| overlap(range, other)) {
                return Err(Fault::Overlap { step: self.step, offset: range.0 });
            }
        }
        for &(start, end) in fresh.iter().filter(|range| range.0 < range.1) {
            self.off_residents(start, end)?;
        }
        fresh.iter().try_for_each(|&(start, end)| self.free(start, end, |copy| copy.device))
    }

    /// Refuses a write over a resident, even after its last read: it outlives the step.
    fn off_residents(&self, start: u64, end: u64) -> Result<(), Fault> {
        let is_resident = |tensor: TensorId| self.resident_at[tensor.index()].is_some();
        match self.device.touched(start, end).any(is_resident) {
            true => Err(Fault::Overlap { step: self.step, offset: start }),
            false => Ok(()),
        }
    }

    /// Starts the copy that an op is. Until it is awaited, what it brings is not there, and what it takes must stay.
    fn start_carry(
        &mut self,
        op: &Op,
        out: bool,
        held: &[Operand],
        fresh: &[(u64, u64)],
    ) -> Result<(), Fault> {
        let (tensor, device) = match out {
            true => (op.reads[0], held[0].range),
            false => (op.writes[0], fresh[0]),
        };
        self.not_under_way(tensor, out)?;
        if !out {
            self.device.destroy(device.0, device.1);
        }
        self.copies.start(Copy { tensor, out, device, host: (0, 0), done_ns: 0 }, self.ns, op.ns);
        Ok(())
    }

    /// Writes what an op makes, and on its first run the new versions of the state it changes.
    fn write(&mut self, op: &Op, again: bool, fresh: &[(u64, u64)]) {
        for (&tensor, &(start, end)) in op.writes.iter().zip(fresh) {
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
            self.off_residents(to, end)?;
        }
        self.not_under_way(tensor, out)?;
        let source = (from, from.saturating_add(self.bytes(tensor)));
        let (device, host) = if out { (source, (to, end)) } else { ((to, end), source) };
        // The target is nobody's until the copy is awaited, and no other copy may need it.
        match out {
            true => self.free(to, end, |copy| copy.host)?,
            false => self.free(to, end, |copy| copy.device)?,
        }
        if out { &mut self.host } else { &mut self.device }.destroy(to, end);
        self.copies.start(Copy { tensor, out, device, host, done_ns: 0 }, self.ns, link.ns(t.bytes));
        self.offloads += u64::from(out);
        Ok(())
    }

    /// Refuses a copy of a tensor that is being copied the same way.
    fn not_under_way(&self, tensor: TensorId, out: bool) -> Result<(), Fault> {
        match self.copies.has(tensor, out) {
            true => Err(Fault::Await { step: self.step, tensor }),
            false => Ok(()),
        }
    }

    /// Refuses a write to bytes that a copy under way needs.
    fn free(&self, start: u64, end: u64, side: impl Fn(&Copy) -> (u64, u64)) -> Result<(), Fault> {
        match self.copies.need((start, end), side) {
            true => Err(Fault::Busy { step: self.step, offset: start }),
            false => Ok(()),
        }
    }

    /// Ends a copy: from now on its target holds the tensor.
    fn wait(&mut self, tensor: TensorId, out: bool) -> Result<(), Fault> {
        let copy = self.copies.take(tensor, out).ok_or(Fault::Await { step: self.step, tensor })?;
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
