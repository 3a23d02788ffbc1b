//! What was planned for a step, in figures.

use plimsoll_device::Bytes;
use plimsoll_plan::Exactness;

use crate::memory::{FixedMemory, HostAccount};
use crate::peak::Peak;

/// What was planned for a step. Bytes are of the whole process, as the system will count it.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanFigures {
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
    pub account: FixedMemory,
    /// What every plan for this step takes beside its workspace: program, pipelines, tensors that exist and stay, a batch.
    pub outside: Bytes,
    /// Predicted seconds of a step.
    pub predicted_seconds: f64,
    /// Predicted seconds without a limit.
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
    /// Bytes of those in which state lives between updates.
    pub hosted_bytes: Bytes,
    /// Whether those are of a disk, where the device has one beside its memory, and not of the host's memory.
    pub is_on_disk: bool,
    /// Everything that the process will take of the host's memory beside a device's own, where a trainer knows it: with its pipelines.
    pub host: Option<HostAccount>,
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
    /// Whether the plan was kept from before and was not searched for: see [`Device::keep_plans`](crate::Device::keep_plans).
    pub from_cache: bool,
    /// What is held when most is: by kind, by name, at which op.
    pub peak: Peak,
}

impl PlanFigures {
    /// Nothing planned.
    pub(crate) const NOTHING: PlanFigures = PlanFigures {
        planned: Bytes::ZERO,
        floor: Bytes::ZERO,
        unlimited: Bytes::ZERO,
        live: Bytes::ZERO,
        arena: Bytes::ZERO,
        account: FixedMemory::NOTHING,
        outside: Bytes::ZERO,
        predicted_seconds: 0.0,
        unlimited_seconds: 0.0,
        unshared: Bytes::ZERO,
        kept: Bytes::ZERO,
        kept_seconds: 0.0,
        recomputed_ops: 0,
        host_bytes: Bytes::ZERO,
        hosted_bytes: Bytes::ZERO,
        is_on_disk: false,
        host: None,
        offloaded_bytes: Bytes::ZERO,
        offloaded_copies: 0,
        micro_batches: 0,
        exactness: Exactness::Bitwise,
        plan_seconds: 0.0,
        from_cache: false,
        peak: Peak::NOTHING,
    };

    /// What is taken of the host's memory and of a disk to copy to, of whichever copies go to.
    pub fn taken_elsewhere(&self) -> (Bytes, Bytes) {
        if self.is_on_disk { (Bytes::ZERO, self.host_bytes) } else { (self.host_bytes, Bytes::ZERO) }
    }

    /// Where copies go, in words.
    pub fn elsewhere(&self) -> &'static str {
        if self.is_on_disk { "the disk" } else { "the host" }
    }

    /// What is copied to the host and back and what lives there, in words; none where nothing is.
    pub fn copies(&self) -> Option<String> {
        let (copies, host, hosted) = (self.offloaded_copies, self.host_bytes, self.hosted_bytes);
        let of = self.elsewhere();
        match (copies, hosted) {
            (0, Bytes::ZERO) => None,
            (_, Bytes::ZERO) => Some(format!("{copies} copies to {host} of {of} and back")),
            _ => Some(format!("{copies} copies to {host} of {of} and back, {hosted} of it state")),
        }
    }
}
