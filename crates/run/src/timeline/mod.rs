//! Turns a compiled step into its record ([`plimsoll_record::Step`]): what each instruction is, and who holds which bytes of the
//! arena from when to when.
//!
//! Nothing is kept for it while a step runs: a program knows its instructions, and from its plan who holds which bytes when. The
//! record takes a few dozen bytes an instruction, far less than planning was declared to take, and is made before the
//! arena's pages are touched.

mod figures;
mod of_plan;
mod recorder;
mod residents;
mod section;

#[cfg(test)]
mod tests;

use plimsoll_device::backend::ALIGNMENT;
use plimsoll_graph::Type;
use plimsoll_record as record;

use crate::choose::PlanFigures;
use crate::device::Device;
use crate::lower::Extent;
use crate::program::Part;
use crate::trace::StateSpec;
use recorder::Recorder;
use section::record_section;

/// What the record of a step is made from.
pub(crate) struct Recorded<'a> {
    pub(crate) device: &'a Device,
    pub(crate) state: &'a [StateSpec],
    /// Which of the state is on the host.
    pub(crate) hosted: &'a [bool],
    pub(crate) inputs: &'a [Type],
    pub(crate) outputs: &'a [Type],
    pub(crate) batch: usize,
    pub(crate) passes: Vec<&'a Part>,
    pub(crate) update: Option<&'a Part>,
    /// How many sums passes add to.
    pub(crate) n_sums: usize,
    /// State that passes change, whose old values are kept until the step is done.
    pub(crate) passed: Vec<usize>,
    pub(crate) info: &'a PlanFigures,
    pub(crate) memory_limit: Option<u64>,
}

impl Recorded<'_> {
    /// The record of the step.
    pub(crate) fn timeline(&self) -> record::Step {
        let mut to = Recorder::default();
        let outside = self.record_residents(&mut to);
        let extent = if self.update.is_some() { Extent::Pass } else { Extent::Step };
        for &part in &self.passes {
            record_section(&mut to, self.device, part, extent);
        }
        if let Some(update) = self.update {
            record_section(&mut to, self.device, update, Extent::Update);
        }
        let account = &self.info.account;
        let residents: u64 = to.step.residents.iter().map(|r| r.bytes).sum();
        let parts = self.passes.iter().chain(&self.update);
        let arena_bytes = parts.map(|part| part.program.arena_bytes()).max().unwrap_or(0) as u64;
        let (program_bytes, pipeline_bytes) =
            ((account.program + account.ranks).get(), account.reserved.get());
        let other_bytes = (account.tensors + account.inputs).get().saturating_sub(outside);
        let held = program_bytes + pipeline_bytes + other_bytes + residents + arena_bytes;
        let planned_bytes = self.info.planned.get();
        let bytes = record::StepBytes {
            planned_bytes,
            program_bytes,
            pipeline_bytes,
            other_bytes,
            arena_bytes,
            unused_bytes: planned_bytes.saturating_sub(held),
        };
        record::Step { memory_limit_bytes: self.memory_limit, bytes, ..to.step }
    }
}

fn padded(bytes: usize) -> u64 {
    bytes.next_multiple_of(ALIGNMENT) as u64
}

/// A shape as records have it.
fn shape(ty: &Type) -> Box<[u64]> {
    ty.shape.iter().map(|&n| n as u64).collect()
}
