//! One way to run a step, whole or in micro-batches, and its plans within a line.

use plimsoll_device::Bytes;
use plimsoll_graph::Type;
use plimsoll_plan::{Infeasible, Plan};

use super::hosting::Hosting;
use crate::device::Device;
use crate::draft::Draft;
use crate::error::Result;
use crate::tensor::Tensor;

/// A step without a line takes the least memory that is predicted to cost at most this much time over the fastest plan.
const LEAN: f64 = 1.01;

/// One way to run the step, before it is planned.
pub(crate) struct Candidate {
    pub(super) drafts: Vec<(Draft, Vec<Tensor>, usize, usize)>,
    pub(super) update: Option<(Draft, Vec<Tensor>)>,
    pub(super) sums: Vec<Type>,
    pub(super) guard: Option<usize>,
    pub(super) passed: Vec<usize>,
    pub(super) updated: Vec<usize>,
    /// Bytes of the device beside arena and account: what passes share, and state that could be on the host.
    pub(super) extra: Bytes,
    pub(super) hosting: Hosting,
    /// Whether its kernels have been timed.
    pub(super) is_timed: bool,
}

impl Candidate {
    /// The parts, each with how often it runs.
    pub(super) fn parts(&self) -> impl Iterator<Item = (&Draft, u64)> {
        let passes = self.drafts.iter().map(|(draft, _, _, runs)| (draft, *runs as u64));
        passes.chain(self.update.iter().map(|(draft, _)| (draft, 1)))
    }

    pub(super) fn all(&mut self) -> impl Iterator<Item = (&mut Draft, u64)> {
        let passes = self.drafts.iter_mut().map(|(draft, _, _, runs)| (draft, *runs as u64));
        passes.chain(self.update.iter_mut().map(|(draft, _)| (draft, 1)))
    }

    pub(super) fn micro_batches(&self) -> usize {
        self.drafts.iter().map(|(_, _, _, runs)| runs).sum()
    }

    /// Bytes beside the account: the least with which it can run.
    pub(super) fn floor(&mut self) -> Bytes {
        let extra = self.extra;
        extra + Bytes(self.all().map(|(draft, _)| draft.floor()).max().unwrap_or(0))
    }

    pub(crate) fn bound(&mut self) -> Bytes {
        let extra = self.extra;
        extra + Bytes(self.all().map(|(draft, _)| draft.bound()).max().unwrap_or(0))
    }

    pub(super) fn ops(&self) -> usize {
        self.parts().map(|(draft, _)| draft.ops()).sum()
    }

    /// Times its kernels, as far as their operands fit into `room`. No floor depends on that.
    pub(crate) fn time(&mut self, device: &Device, room: Bytes) -> Result<()> {
        if self.is_timed {
            return Ok(());
        }
        self.is_timed = true;
        self.all().try_for_each(|(draft, _)| draft.time(device, Some(room)))
    }

    /// The bytes that timing each of its kernels takes, ascending.
    pub(super) fn timing_needs(&self, device: &Device) -> Result<Vec<Bytes>> {
        let mut all = Vec::new();
        for (draft, _) in self.parts() {
            all.extend(draft.timing_needs(device)?);
        }
        all.sort_unstable();
        all.dedup();
        Ok(all)
    }

    pub(crate) fn unlimited_ns(&self) -> u64 {
        self.parts().map(|(draft, runs)| draft.unlimited_ns() * runs).sum()
    }

    /// The fastest plans within so many bytes beside the account, with their time, if that is less than so many nanoseconds.
    pub(crate) fn plan(&mut self, room: Bytes, than: u64) -> Result<Option<(Vec<Plan>, u64)>> {
        let arena = room.saturating_sub(self.extra).get();
        if room < self.extra {
            return Ok(None);
        }
        // What no part can do without: the rest may be taken by any one of them.
        let mut least: u64 = self.parts().map(|(draft, runs)| draft.unlimited_ns() * runs).sum();
        let (mut plans, mut ns) = (Vec::new(), 0);
        for (draft, runs) in self.all() {
            let most = draft.unlimited();
            least -= draft.unlimited_ns() * runs;
            let than =
                if than == u64::MAX { than } else { than.saturating_sub(ns + least).div_ceil(runs.max(1)) };
            let Some(plan) = draft.plan_faster(arena.min(most), than)? else { return Ok(None) };
            ns += plan.figures.predicted_ns * runs;
            plans.push(plan);
        }
        Ok(Some((plans, ns)))
    }

    /// The plans that take the least memory among those predicted to cost little more than the fastest.
    pub(crate) fn lean(&mut self) -> Result<(Vec<Plan>, u64)> {
        let (mut plans, mut ns) = (Vec::new(), 0);
        for (draft, runs) in self.all() {
            let plan = draft.lean(LEAN)?;
            ns += plan.figures.predicted_ns * runs;
            plans.push(plan);
        }
        Ok((plans, ns))
    }

    /// Why there is no plan, said of the part that needs most; `None` if none needs an arena.
    pub(super) fn refusal(&mut self) -> Result<Option<Box<Infeasible>>> {
        let worst = self.all().map(|(draft, _)| (draft.floor(), draft)).max_by_key(|(floor, _)| *floor);
        match worst {
            Some((floor, draft)) if floor > 0 => Ok(draft.plan(floor - 1)?.err()),
            _ => Ok(None),
        }
    }
}
