//! What the process takes beside the arena of a step, as the system will count it.
//!
//! A memory limit is a contract about the whole process, so everything that is not planned must be known before the plan is:
//! the program's own pages, tensors that exist, batches that are still to come. The figure must be the same in every
//! run of the same program, or a run at exactly the reported least would be a matter of luck. So the program's pages
//! are declared, not measured: a round figure above what they come to, whatever was done before: kernels timed or not, a model
//! read from a file or built. Only where the process already has more than that (a large program around the engine) is it
//! measured, and then what was measured first stays as long as it holds.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use plimsoll_device::{Bytes, process};

use crate::device::{Device, blocks, code, own};
use crate::memory::FixedMemory;

/// What the program is declared to take of the host: code, stacks, tables, what planning leaves behind. Most of it is pages of
/// code, of which a build with assertions has more. A release build was seen to take 21.2 MiB beside a model of a few KiB, while that was planned.
/// The one figure for it: whoever needs it asks here.
pub const PROGRAM: Bytes = Bytes::mib(if cfg!(debug_assertions) { 40 } else { 24 });
/// Pages that will be touched and are not yet, once a step is planned and its kernels are timed: stacks, the books of the allocator.
const RESERVE: Bytes = Bytes::mib(1);
/// The same before that, where the program is measured: planning and timing touch code too.
const GROWTH: Bytes = Bytes::mib(4);
/// How much more than it needs a figure that was measured before may be, and still stay.
const STALE: Bytes = Bytes::mib(16);
/// What a device with memory of its own may take after it is measured: code that libraries load when they first need it,
/// and recordings of steps.
const DEVICE_RESERVE: Bytes = Bytes::mib(32);
/// What code that is compiled for a device is declared to take of its memory: whether it has been loaded, when a step is planned, must
/// not show in what is said of the step. The thirty sources of a U-Net were seen to take 2 MiB of an H200.
const DEVICE_CODE: Bytes = Bytes::mib(4);
/// What is measured of a device is rounded up to this, for the same reason as below.
const DEVICE_GRAIN: u64 = 16 << 20;
/// A measured figure is rounded up to this, so that two runs count alike as far as can be.
const GRAIN: u64 = 2 << 20;

/// What planning takes for itself while it runs, for each op and in all. It runs where the arena will be, so it counts only
/// where the arena is smaller than that.
const PLANNING_PER_OP: Bytes = Bytes::kib(16);
const PLANNING: Bytes = Bytes::mib(1);

/// The least that must be free beside everything else, for a step of so many ops to be planned at all.
/// Planning is the host's work and takes nothing of a device with memory of its own.
pub(crate) fn planning(device: &Device, ops: usize) -> Bytes {
    if own(device).is_some() {
        return Bytes::ZERO;
    }
    PLANNING + Bytes(PLANNING_PER_OP.get() * ops as u64)
}

impl FixedMemory {
    /// The account of the process as it stands, before blocks of the `staged` sizes are there. `started` says that what
    /// stands `beside` is there already.
    ///
    /// On a device with memory of its own, the limit counts that and nothing of the host's.
    pub(crate) fn measure(
        device: &Device,
        staged: impl Iterator<Item = usize>,
        beside: Bytes,
        started: bool,
    ) -> FixedMemory {
        device.memory().release_unused();
        let (staged, tensors) = (blocks(device, staged), device.memory_info().current);
        if let Some(own) = own(device) {
            let own = own + undeclared_code(device);
            let all = Bytes((own + DEVICE_RESERVE).get().next_multiple_of(DEVICE_GRAIN));
            // The device counts what connects ranks there with all else that is no tensor: it has a row of its own.
            let ranks = ranks_on(device).min(own);
            let (program, inputs) = (all.saturating_sub(ranks), staged);
            return FixedMemory { program, tensors, inputs, ranks, ..FixedMemory::NOTHING };
        }
        process::release_unused_heap();
        process::release_unused_code();
        // Ranks are connected before anything is planned.
        let ranks = device.ranks().map_or(Bytes::ZERO, |peers| peers.own_bytes());
        let known = tensors + ranks + if started { beside } else { Bytes::ZERO };
        FixedMemory { program: program(known), tensors, inputs: staged, reserved: beside, ranks }
    }

    /// Counts so much for what stands beside a step that has not begun, instead of what was counted for it.
    pub(crate) fn set_reserved(&mut self, device: &Device, beside: Bytes) {
        // What stands beside is in the host's memory: see `measure`.
        self.reserved = if own(device).is_some() { Bytes::ZERO } else { beside };
    }

    /// Whether the process, as it stands now, is within its part.
    pub(crate) fn holds(&self, device: &Device, started: bool) -> bool {
        device.memory().release_unused();
        if let Some(own) = own(device) {
            // Half of the reserve is for what is loaded while plans are made, half for what the first steps load.
            return own + Bytes(DEVICE_RESERVE.get() / 2) <= self.for_no_tensor();
        }
        let started = if started { self.reserved } else { Bytes::ZERO };
        let known = device.memory_info().current + self.ranks + started;
        let own = process::own_resident().unwrap_or(Bytes::ZERO).saturating_sub(known);
        own + RESERVE <= self.program
    }
}

/// What is declared for code of a device beyond what is loaded of it, and so measured.
fn undeclared_code(device: &Device) -> Bytes {
    code(device).map_or(Bytes::ZERO, |loaded| DEVICE_CODE.saturating_sub(loaded))
}

/// What connecting ranks took of a device with memory of its own: nothing where they exchange values in the host's.
fn ranks_on(device: &Device) -> Bytes {
    let on_device = device.ranks().filter(|peers| !peers.is_on_host());
    on_device.map_or(Bytes::ZERO, |peers| peers.own_bytes())
}

/// Room for what a device's libraries load after the process is measured.
const HOST_GROWTH: Bytes = Bytes::mib(64);
/// What is measured of the host beside a device with memory of its own is rounded up to this.
const HOST_GRAIN: u64 = 16 << 20;

/// What the process takes of the host's memory beside a device with memory of its own, tensors, pipelines and copies apart: the program
/// and the device's driver and libraries, as declared. Where the process has more than that when this is first asked (a large program
/// around the engine), as measured then: from then on the figure stays.
pub fn host_program(device: &Device) -> Bytes {
    static FIRST: OnceLock<Bytes> = OnceLock::new();
    let libraries = device.backend().host_program();
    let own = *FIRST.get_or_init(|| {
        // The emulator's tensors are in the host's memory.
        let taken = device.taken().unwrap_or(Bytes::ZERO);
        let tensors = device.memory_info().reserved.saturating_sub(taken);
        process::own_resident().unwrap_or(Bytes::ZERO).saturating_sub(tensors)
    });
    host_figure(own, libraries)
}

/// What to declare for a process of which `own` bytes are resident, on a device whose libraries are declared to take so much.
fn host_figure(own: Bytes, libraries: Bytes) -> Bytes {
    // Without libraries there is nothing that they load.
    let growth = if libraries > Bytes::ZERO { HOST_GROWTH } else { GROWTH };
    if own + growth <= PROGRAM + libraries {
        return PROGRAM + libraries;
    }
    Bytes((own + growth).get().next_multiple_of(HOST_GRAIN))
}

/// Whether this process only plans.
static ONLY_PLANS: AtomicBool = AtomicBool::new(false);

/// Says that this process plans and runs nothing: what its first plan counts for the program, all others count. What searches leave behind,
/// on however many threads, is nothing that the process will have for which they plan.
pub fn only_plans() {
    ONLY_PLANS.store(true, Ordering::Relaxed);
}

/// The program's pages, where `known` bytes of the process are something else.
fn program(known: Bytes) -> Bytes {
    static FIRST: OnceLock<Bytes> = OnceLock::new();
    if cfg!(test) {
        // Tests share a process: what is resident is mostly what others of them hold at the moment.
        return PROGRAM;
    }
    match ONLY_PLANS.load(Ordering::Relaxed) {
        true => *FIRST.get_or_init(|| program_now(known)),
        false => program_now(known),
    }
}

/// The same as it stands now, or as it was measured before, where that holds.
fn program_now(known: Bytes) -> Bytes {
    static MEASURED: AtomicU64 = AtomicU64::new(0);
    let own = process::own_resident().unwrap_or(Bytes::ZERO).saturating_sub(known);
    let (figure, measured) = declared(own, Bytes(MEASURED.load(Ordering::Relaxed)));
    if let Some(measured) = measured {
        MEASURED.store(measured.get(), Ordering::Relaxed);
    }
    figure
}

/// What to declare for a program of which `own` bytes are resident, where `before` was declared once, and what is to be
/// remembered of that.
fn declared(own: Bytes, before: Bytes) -> (Bytes, Option<Bytes>) {
    let holds = |figure: Bytes| own + RESERVE <= figure;
    if holds(PROGRAM) {
        return (PROGRAM, None);
    }
    if holds(before) && before <= own + STALE {
        return (before, None);
    }
    let fresh = Bytes((own + GROWTH).get().next_multiple_of(GRAIN));
    (fresh, Some(fresh))
}

/// What eager ops must leave for all but tensors, where the process takes `own` for that now and was declared to take
/// so much: room for what the next steps load, as far as it was declared.
pub(crate) fn left_for_libraries(own: Bytes, declared: Bytes) -> Bytes {
    (own + Bytes(DEVICE_RESERVE.get() / 2)).min(declared).max(own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_program_counts_as_declared_and_a_large_one_as_first_measured() {
        let (nothing, mib) = (Bytes::ZERO, Bytes::mib);
        for own in [mib(1), mib(8), PROGRAM.saturating_sub(RESERVE)] {
            assert_eq!(declared(own, nothing), (PROGRAM, None));
            assert_eq!(declared(own, mib(64)), (PROGRAM, None), "a smaller program is declared again");
        }
        let above = |more: u64| PROGRAM + mib(more);
        let (first, kept) = declared(above(9), nothing);
        assert_eq!((first, kept), (above(14), Some(above(14))));
        // Planning, timing and the step itself touch a few more pages, or let go of some: the figure stays.
        for own in [6, 9, 12, 13].map(above) {
            assert_eq!(declared(own, first), (first, None), "{own}");
        }
        // What no longer holds is measured anew, and so is what is far too much.
        assert_eq!(declared(above(14), first).0, above(18));
        assert_eq!(declared(PROGRAM.saturating_sub(mib(4)), first).0, PROGRAM);
    }

    #[test]
    fn the_host_beside_a_card_counts_as_declared_and_a_larger_process_as_measured() {
        let (mib, libraries) = (Bytes::mib, Bytes::mib(768));
        for own in [mib(5), mib(400), PROGRAM + libraries.saturating_sub(HOST_GROWTH)] {
            assert_eq!(host_figure(own, libraries), PROGRAM + libraries, "{own}");
        }
        assert_eq!(host_figure(mib(1000), libraries), mib(1072));
        assert_eq!(host_figure(mib(5), Bytes::ZERO), PROGRAM);
        assert_eq!(host_figure(mib(60), Bytes::ZERO), mib(64));
    }
}
