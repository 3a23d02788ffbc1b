//! Turns a step into its ledger: what each part was planned to take, beside what the system and the allocator count for it.
//!
//! Nothing planned is repeated as measured. Of the host's memory, a tensor takes the pages of it that are resident; of a
//! device's own, which is mapped when it is taken, the bytes of its block. What no tensor takes is the program's.

use plimsoll_device::{Bytes, Kind as LedgerKind, Ledger, LibraryBytes, process};
use plimsoll_graph::{Site, TensorOps};

use super::profiling::Profiling;
use super::step::Step;
use super::variant::Variant;
use crate::device::{Buffer, Device, own, padded};
use crate::memory::FixedMemory;

/// What is planned and measured of a step.
pub(super) fn ledger(step: &Step) -> Ledger {
    // Pages that nobody holds are given back when a plan is made, and so before it is looked at what is held.
    step.device.memory().release_unused();
    let mut rows = Rows { ledger: Ledger::new(), planned: Bytes::ZERO, measured: Bytes::ZERO };
    // What tensors with rows of their own take of the allocator's books.
    let mut booked = Bytes::ZERO;
    let (elsewhere, _) = elsewhere(&step.device);
    for ((name, kind), tensor) in step.state.names.iter().zip(&step.state.tensors) {
        let planned = padded(tensor.ty().bytes());
        let Ok(buffer) = tensor.buffer(Site::here()) else { continue };
        if buffer.is_hosted() {
            rows.ledger.plan(elsewhere, name, planned);
            rows.ledger.set(elsewhere, name, buffer.bytes().into());
            continue;
        }
        booked += padded(buffer.bytes());
        rows.add(*kind, name, planned, taken(&step.device, buffer, 0, buffer.bytes()));
    }
    let Some(variant) = step.largest() else { return rows.ledger };
    let FixedMemory { program, tensors, inputs, reserved, ranks } = variant.info.account;
    let others = (tensors + inputs).saturating_sub(rows.planned);
    workspace_rows(step, variant, &mut rows);
    booked += padded(step.workspace.buffer().bytes());
    let memory = step.device.memory_info();
    let taken = if step.device.has_own_memory() { memory.reserved } else { memory.current };
    let name = "batches, results and other tensors";
    rows.add(LedgerKind::Input, name, others, Some(taken.saturating_sub(booked)));
    let staging = step.device.host_staging();
    if staging > Bytes::ZERO {
        rows.ledger.plan(LedgerKind::Host, "operands of ops on the host", staging);
        rows.ledger.set(LedgerKind::Host, "operands of ops on the host", staging);
    }
    if ranks > Bytes::ZERO {
        // As it was measured when they were connected: the system does not tell it from the program's own pages.
        rows.add(LedgerKind::Library, "ranks", ranks, Some(ranks));
    }
    let reserved = reserved.saturating_sub(profile_row(step, reserved, &mut rows));
    let own = own(&step.device)
        .map(|own| own.saturating_sub(ranks))
        .or_else(|| process::own_resident().map(|resident| resident.saturating_sub(rows.measured)));
    program_rows(&step.device, program, reserved, own, &mut rows);
    let rest = variant.info.planned.saturating_sub(rows.planned);
    if rest > Bytes::ZERO {
        rows.add(LedgerKind::Program, "room for planning, ends of pages", rest, None);
    }
    host_row(step, variant, &mut rows.ledger);
    rows.ledger
}

/// What a profile takes of the host's memory. Returns how much of what is `reserved` is for it.
fn profile_row(step: &Step, reserved: Bytes, rows: &mut Rows) -> Bytes {
    let Some((planned, held)) = step.profiling.as_ref().map(Profiling::planned_and_held) else {
        return Bytes::ZERO;
    };
    if step.device.has_own_memory() {
        rows.ledger.plan(LedgerKind::Host, "profile", planned);
        rows.ledger.set(LedgerKind::Host, "profile", held);
        return Bytes::ZERO;
    }
    // A step that is profiled though nobody made room for it in the plan has none there.
    let planned = planned.min(reserved);
    rows.add(LedgerKind::Other, "profile", planned, Some(held));
    planned
}

/// What is no tensor: of a card each library's part, as it was measured when it was started, and the rest of what was declared for them.
fn program_rows(device: &Device, program: Bytes, reserved: Bytes, own: Option<Bytes>, rows: &mut Rows) {
    let (mut planned, mut measured) = (program + reserved, own);
    let libraries = device.libraries();
    for LibraryBytes { name, bytes } in &libraries {
        let (part, found) = (planned.min(*bytes), measured.map(|left| left.min(*bytes)));
        rows.add(LedgerKind::Library, name, part, found);
        planned = planned.saturating_sub(part);
        measured = measured.map(|left| left.saturating_sub(*bytes));
    }
    // What a pipeline holds are pages like the program's own: the system counts them together.
    let name = match (libraries.is_empty(), reserved > Bytes::ZERO) {
        (true, true) => "program and input pipelines",
        (true, false) => "program",
        (false, _) => "what libraries load later",
    };
    rows.add(LedgerKind::Program, name, planned, measured);
}

/// The parts of the workspace: sums, what else stands before the arena, the arena.
fn workspace_rows(step: &Step, variant: &Variant, rows: &mut Rows) {
    let (sums, arena) = (variant.sum_bytes(), variant.arena_bytes());
    let before = variant.workspace().saturating_sub(arena);
    let all = step.workspace.buffer().bytes();
    let mut part = |kind, name, from: usize, to: usize, planned: usize| {
        if planned > 0 {
            rows.add(
                kind,
                name,
                planned.into(),
                taken(&step.device, step.workspace.buffer(), from.min(all), to.min(all)),
            );
        }
    };
    part(LedgerKind::Gradient, "sums over micro-batches", 0, sums, sums);
    part(LedgerKind::Input, "rows of a micro-batch, values before it", sums, before, before - sums);
    // Another form of the step may need a larger arena: then there is that one.
    part(LedgerKind::Activation, "arena", before, all, arena);
}

fn host_row(step: &Step, variant: &Variant, ledger: &mut Ledger) {
    let copied = variant.info.host_bytes.saturating_sub(variant.info.hosted_bytes);
    if copied > Bytes::ZERO {
        let held = Bytes::from(step.workspace.host_bytes());
        let (kind, name) = elsewhere(&step.device);
        ledger.plan(kind, name, copied);
        ledger.set(kind, name, held);
    }
}

/// What a device copies to: the kind of it, and what copies there are called.
fn elsewhere(device: &Device) -> (LedgerKind, &'static str) {
    match device.disk() {
        Some(_) => (LedgerKind::Disk, "copies to the disk"),
        None => (LedgerKind::Host, "copies to the host"),
    }
}

/// What a part of a buffer takes: of the host's memory what is resident, where the system says; of a device's, all of it.
fn taken(device: &Device, buffer: &Buffer, from: usize, to: usize) -> Option<Bytes> {
    let bytes = to.saturating_sub(from);
    if device.has_own_memory() {
        return Some(bytes.into());
    }
    process::resident_in(buffer.ptr().wrapping_add(from), bytes)
}

/// A ledger in the making, with the sums of what is booked.
struct Rows {
    ledger: Ledger,
    planned: Bytes,
    measured: Bytes,
}

impl Rows {
    fn add(&mut self, kind: LedgerKind, name: &str, planned: Bytes, measured: Option<Bytes>) {
        self.ledger.plan(kind, name, planned);
        self.planned += planned;
        if let Some(measured) = measured {
            self.ledger.set(kind, name, measured);
            self.measured += measured;
        }
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_graph::{DType, Type};
    use plimsoll_plan::{Exactness, Kind};

    use super::*;
    use crate::execute::chain::chain;
    use crate::{Device, StateTensor, StepOptions, Tensor};

    /// A chain of layers over a batch of 512, in micro-batches of 128 where `split`.
    fn step(split: bool) -> (Device, Step) {
        let device = Device::cpu_with(1, Bytes::mib(256)).unwrap();
        let step = device.scope(|| {
            let tensor = Tensor::from_slice(&vec![0.01f32; 256 * 256], [256, 256]).unwrap();
            let held = vec![StateTensor { name: "weight".into(), kind: Kind::Parameter, tensor }];
            let options = StepOptions { batched: true, reserved: Bytes::mib(3), ..StepOptions::default() }
                .micro_batch(split.then_some(128))
                .exactness(Exactness::Reassociated);
            Step::compile_with(options, held, &[Type::new(DType::F32, [512, 256])], chain(8))
        });
        (device, step.unwrap())
    }

    fn measured(ledger: &Ledger, kind: LedgerKind, name: &str) -> Option<Bytes> {
        ledger.row(kind, name).unwrap_or_else(|| panic!("no row {name} in\n{ledger}")).measured
    }

    #[test]
    fn what_is_planned_adds_up_to_the_plan() {
        for split in [false, true] {
            let (_device, step) = step(split);
            let ledger = step.ledger();
            assert_eq!(ledger.planned(), step.info().planned, "\n{ledger}");
            let sum: Bytes = ledger.rows().filter_map(|(_, _, row)| row.measured).sum();
            assert_eq!(ledger.measured(), sum);
            let arena = ledger.row(LedgerKind::Activation, "arena").unwrap();
            assert_eq!(arena.planned, step.info().arena);
            assert_eq!(ledger.row(LedgerKind::Gradient, "sums over micro-batches").is_some(), split);
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn an_arena_takes_nothing_before_the_first_step_and_all_of_it_after() {
        let (device, mut step) = step(false);
        let (name, kind) = ("arena", LedgerKind::Activation);
        let planned = step.info().arena;
        assert!(planned > Bytes::mib(1));
        let before = measured(&step.ledger(), kind, name).unwrap();
        assert!(before.get() < planned.get() / 8, "{before} of {planned} before anything was run");
        let batch = device.scope(|| Tensor::zeros(Type::new(DType::F32, [512, 256]))).unwrap();
        step.run(&[&batch]).unwrap();
        let ledger = step.ledger();
        let after = measured(&ledger, kind, name).unwrap();
        assert!(after > Bytes(planned.get() / 10 * 9) && after <= planned, "{after} of {planned}");
        assert_eq!(measured(&ledger, LedgerKind::Parameter, "weight"), Some(Bytes::kib(256)));
        // The batch is the caller's tensor: it is found in the allocator's books.
        let others = measured(&ledger, LedgerKind::Input, "batches, results and other tensors").unwrap();
        assert!(others >= Bytes::kib(512) && others < Bytes::kib(520), "{others}");
        let program = ledger.row(LedgerKind::Program, "program and input pipelines").unwrap();
        assert!(program.measured.is_some_and(|bytes| bytes > Bytes::mib(1)), "{ledger}");
    }
}
