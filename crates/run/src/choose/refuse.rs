//! Why a step cannot be run as was asked, and what would help.

use plimsoll_device::Bytes;
use plimsoll_graph::counted;
use plimsoll_graph::micro_batch::Splits;
use plimsoll_plan::{Exactness, Job, in_turn};

use super::StepToPlan;
use super::candidate::Candidate;
use super::candidate_bytes::side_by_side_parts;
use super::fixed::planning;
use super::limits::{StepLimits, is_worth_interleaving, micro_batch_sizes};
use super::placement::StatePlacement;
use super::subject::MANY_OPS;
use crate::device::{blocks, whole_pages};
use crate::error::{Error, Result};
use crate::memory::Remedy;
use crate::trace::{Traceable, Traced};

/// More host memory than any step copies to.
const MUCH: Bytes = Bytes::gib(1 << 16);

/// A way out that is yet to be looked at.
type Way<'a> = Job<'a, Result<Option<Remedy>>>;

/// So many of the heaviest tensors are named.
const HEAVIEST: usize = 5;

impl StepToPlan {
    /// Why a memory limit cannot be kept, and what would help. `smallest` is the candidate that takes least, where it is at hand; with it
    /// there is memory to look at ways out beside each other.
    pub(super) fn refuse(
        &self,
        limit: Bytes,
        limits: &StepLimits,
        smallest: Option<&mut Candidate>,
    ) -> Result<Error> {
        let account = limits.account;
        // With as much on the host as may be.
        let placement = self.placements().pop().unwrap_or_default();
        let allowed = limits.splits.is_some_and(|needed| self.options.request.exactness >= needed);
        let mut made;
        let smallest = match smallest {
            Some(candidate) => candidate,
            None => {
                made = match limits.specs.last().filter(|spec| spec.is_side_by_side()) {
                    Some(spec) => self.candidate(spec, None)?,
                    None => self.smallest(allowed, &placement)?,
                };
                &mut made
            }
        };
        // Of a long step fewer smaller batches are looked at.
        let (refusal, is_long) = (smallest.refusal()?, smallest.ops() > MANY_OPS);
        let ways = self.in_passing().ways(limits, &placement, allowed, is_long)?;
        let state = self.step.state.iter().map(|part| (part.name.clone(), part.ty.bytes().into()));
        let largest = refusal.iter().flat_map(|refusal| &refusal.largest);
        let mut heaviest: Vec<(String, Bytes)> =
            state.chain(largest.map(|t| (t.name.clone(), Bytes(t.bytes)))).collect();
        heaviest.sort_by(|a, b| (b.1, &a.0).cmp(&(a.1, &b.0)));
        heaviest.dedup();
        heaviest.truncate(HEAVIEST);
        Ok(Error::Infeasible { asked: limit, least: limits.floor(), account, refusal, heaviest, ways })
    }

    /// What would lower the least, each with memory that is enough for it: the least of some is lower, since not all candidates are looked at.
    fn ways(
        &self,
        limits: &StepLimits,
        placement: &StatePlacement,
        allowed: bool,
        is_long: bool,
    ) -> Result<Vec<Remedy>> {
        // What takes longest to look at is begun first, and told last.
        let offloading = move || self.by_offloading(limits.account.total(), allowed, is_long);
        let mut ways: Vec<Way<'_>> = vec![Box::new(offloading)];
        if !allowed {
            let splits = limits.splits.is_some() && self.step.batch.is_some();
            if splits {
                ways.push(Box::new(move || self.by_splitting(limits, placement)));
            }
            let batch = self.step.batch.unwrap_or(1);
            let smaller = [batch / 2, batch / 4, 1].into_iter().filter(|&n| n > 0 && n < batch);
            let most = if is_long { 1 } else { 3 - usize::from(splits) };
            for samples in smaller.take(most) {
                ways.push(Box::new(move || self.by_a_smaller_batch(samples, limits, placement)));
            }
        }
        let mut looked_at = in_turn(ways);
        looked_at.rotate_left(1);
        let mut found = Vec::new();
        for remedy in looked_at {
            found.extend(remedy?.filter(|remedy| remedy.least < limits.floor()));
        }
        Ok(found)
    }

    /// What micro-batches would take, where they can be made and were not allowed.
    fn by_splitting(&self, limits: &StepLimits, placement: &StatePlacement) -> Result<Option<Remedy>> {
        let (Some(needed), Some(batch)) = (limits.splits, self.step.batch) else { return Ok(None) };
        let mut split = self.passes(least_samples(batch), placement)?;
        // The whole batch is planned before it is split, and no micro-batches side by side are looked at then.
        let enough = self.with_planning(split.enough(), limits.first_ops);
        let flag = format!("--exact {needed}");
        let change = match needed {
            Exactness::Approximate => "micro-batches, each with statistics of its own",
            _ => "micro-batches: the same sums in another order",
        };
        let beside = limits.account.total().saturating_sub(limits.left_behind);
        Ok(Some(Remedy { flag, change: change.into(), least: beside + enough }))
    }

    /// What a smaller batch would take.
    fn by_a_smaller_batch(
        &self,
        samples: usize,
        limits: &StepLimits,
        placement: &StatePlacement,
    ) -> Result<Option<Remedy>> {
        let batch = self.step.batch.unwrap_or(1);
        let Ok(traced) = self.step.trace_for(samples)? else { return Ok(None) };
        let mut fewer = self.whole(&traced, placement)?;
        let staged = |samples| blocks(&self.step.device, self.staged(&limits.outputs, samples).into_iter());
        let saved = staged(None).saturating_sub(staged(Some(samples)));
        let enough = self.with_planning(fewer.enough(), fewer.ops());
        // Micro-batches of fewer samples may be more of them, and a search leaves the more behind; where they are not looked at, nothing.
        let parts = side_by_side_parts(samples).filter(|_| is_worth_interleaving(&mut fewer)).unwrap_or(0);
        let before = side_by_side_parts(batch).unwrap_or(1).max(1);
        let left_behind = match parts {
            0 => Bytes::ZERO,
            parts => Bytes((limits.left_behind.get() * parts.max(before) as u64).div_ceil(before as u64)),
        };
        let beside = (limits.account.total() + left_behind).saturating_sub(limits.left_behind + saved);
        let least = beside + enough;
        let (flag, change) = (format!("--batch {samples}"), counted(samples, "sample") + " a step");
        Ok(Some(Remedy { flag, change, least }))
    }

    /// A floor as it counts beside the account: planning a step of so many ops needs room too.
    fn with_planning(&self, floor: Bytes, ops: usize) -> Bytes {
        let device = &self.step.device;
        whole_pages(device, floor.max(planning(device, ops)))
    }

    /// What host memory would help, or on the CPU a disk, where the device can copy to it and less or none was allowed.
    fn by_offloading(&self, elsewhere: Bytes, allowed: bool, is_long: bool) -> Result<Option<Remedy>> {
        let device = match self.step.device.copies_to_host() {
            true => self.step.device.clone(),
            false => match self.step.device.imagining_disk(MUCH) {
                Some(device) => device,
                None => return Ok(None),
            },
        };
        let step = Traceable { device: device.clone(), ..self.step.clone() };
        let options = self.options.clone().host_limit(Some(MUCH));
        let hosting = StepToPlan { step, options, ..self.clone() };
        let mut placement = hosting.placements().pop().unwrap_or_default();
        // Of a long step only state goes to a disk here: what its activations would take there only a plan can say.
        let only_state = is_long && device.disk().is_some() && placement.host > Bytes::ZERO;
        if only_state {
            placement.host_free = Bytes::ZERO;
        }
        let mut candidate = hosting.smallest(allowed, &placement)?;
        let enough = candidate.enough();
        let mut host = placement.host;
        if !only_state {
            let Some(planned) = candidate.plan(enough, u64::MAX)? else { return Ok(None) };
            let parts = planned.passes.iter().chain(&planned.update);
            host += Bytes(parts.map(|part| part.graph.figures().host_bytes).max().unwrap_or(0));
        }
        // More than is needed is no help where it was allowed already.
        if host <= self.host() {
            return Ok(None);
        }
        // State that may move with host memory and not without it is counted with the account here.
        let beside = elsewhere.saturating_sub(hosting.movable_bytes().saturating_sub(self.movable_bytes()));
        let mib = |bytes: Bytes| format!("{}MiB", bytes.get().div_ceil(1 << 20));
        let more = if self.host() == Bytes::ZERO { "" } else { "more " };
        let (flag, change) = match device.disk() {
            None => (
                format!("--host-memory {}", mib(host + self.options.host_beside)),
                format!("{more}host memory to copy to and fetch from"),
            ),
            // Of a disk that is only thought of, the folder at hand stands for one.
            Some(disk) => {
                let folder = disk.folder().to_str().filter(|folder| !folder.is_empty()).unwrap_or(".");
                let change = match more {
                    "" if only_state => "weights and state in files of a folder, this one or another",
                    "" => "weights, state and activations in files of a folder, this one or another",
                    _ => "more of the disk for weights, state and activations",
                };
                (format!("--disk {folder}:{}", mib(host)), change.to_string())
            }
        };
        Ok(Some(Remedy { flag, change, least: beside + hosting.with_planning(enough, candidate.ops()) }))
    }

    /// The candidate that takes least: the smallest micro-batches, where they are allowed.
    pub(super) fn smallest(&self, allowed: bool, placement: &StatePlacement) -> Result<Candidate> {
        match self.step.batch {
            Some(batch) if allowed => self.passes(least_samples(batch), placement),
            batch => self.whole(&self.step.trace(batch)?, placement),
        }
    }

    /// Why the batch is not split as the caller asks.
    pub(super) fn cannot_split(&self, whole: &Traced) -> Result<Error> {
        let allowed = self.options.request.exactness;
        let why = match self.step.splits(whole)? {
            Splits::Exactly => format!("only {allowed} plans are allowed; allow {}", Exactness::Reassociated),
            Splits::Approximately(why) if allowed == Exactness::Bitwise => format!(
                "{why}, and only {allowed} plans are allowed; allow {} ones to have micro-batches take them together",
                Exactness::Reassociated
            ),
            Splits::Approximately(why) => format!(
                "{why}, which micro-batches would change; allow {} plans to have statistics of each micro-batch instead",
                Exactness::Approximate
            ),
            Splits::Not(why) => why,
        };
        Ok(Error::Split { why, site: self.step.site })
    }
}

/// The smallest micro-batches of a batch.
fn least_samples(batch: usize) -> usize {
    micro_batch_sizes(batch).last().copied().unwrap_or(batch)
}
