//! What is known of a step before a memory limit is looked at and any kernel is timed: the least it takes, what it takes without a
//! limit, and which candidates there are.

use plimsoll_device::Bytes;
use plimsoll_graph::micro_batch::Splits;
use plimsoll_graph::{Graph, Type, passes};
use plimsoll_plan::Exactness;

use super::StepToPlan;
use super::candidate::{Candidate, CandidateSpec};
use super::fixed::planning;
use super::placement::StatePlacement;
use super::subject::load_kernels;
use crate::device::{Device, full_pages, whole_pages};
use crate::error::{Error, Result};
use crate::memory::FixedMemory;
use crate::trace::Traced;

/// Kernels whose operands take no more are timed however little the step itself takes; of others the roofline says enough.
const TIMED_ANYWAY: Bytes = Bytes::mib(16);

/// Bytes kept for the outputs of other forms of a step: a smaller last batch, an evaluation.
const LATER_OUTPUTS: usize = 4096;

/// What is known of a step before a limit is looked at.
pub(crate) struct StepLimits {
    pub(super) account: FixedMemory,
    pub(super) outputs: Vec<Type>,
    /// What exactness a split takes, if the step can be split at all.
    pub(super) splits: Option<Exactness>,
    /// What to consider beside the first candidate: state on the host, then micro-batches, then both.
    pub(super) specs: Vec<CandidateSpec>,
    /// What planning needs for itself, in the arena's place.
    pub(super) planning: Bytes,
    /// What timing each kernel of the first candidate takes beside that, ascending.
    timing: Vec<Bytes>,
    /// Bytes beside the account: the least with which any candidate can run, and what the fastest plan takes.
    pub(super) least: Bytes,
    pub(super) unlimited: Bytes,
    pub(super) unlimited_ns: u64,
    /// Bytes beside the account if every value had its own.
    pub(super) unshared: Bytes,
    /// Bytes beside the account that no plan of a candidate can go below: of the first, then of the specs in their order.
    bounds: Vec<Bytes>,
    /// Bytes beside the account: the least floor that was found, before room for planning is counted.
    lowest: Bytes,
    /// By spec: which family it belongs to. The first candidate is the first of family 0.
    families: Vec<usize>,
}

/// Candidates that differ in nothing but the size of their micro-batches, by their numbers: 0 is the first candidate, 1 the first spec.
pub(super) struct Family {
    /// Those that are likely to fit, the largest first.
    pub(super) likely: Vec<usize>,
    /// Larger ones, the smallest first.
    pub(super) larger: Vec<usize>,
}

/// How far a guess at what the whole batch takes may be off.
const DOUBT: f64 = 1.5;

impl StepLimits {
    /// The least memory limit for which there is a plan, at the exactness that was allowed.
    pub(super) fn floor(&self) -> Bytes {
        self.account.total() + self.least
    }

    /// The most that timing a kernel may take: what the largest kernel does for which the limit has room beside what planning
    /// takes, and state that may yet go to the host (`movable`).
    pub(super) fn timing(&self, limit: Option<Bytes>, movable: Bytes) -> Bytes {
        let taken = self.account.total() + movable + self.planning;
        let room = limit.map_or(Bytes::MAX, |limit| limit.saturating_sub(taken));
        let fits = self.timing.partition_point(|&bytes| bytes <= room);
        self.timing[..fits].last().copied().unwrap_or_default()
    }

    /// What a candidate is likely to take at least: as much over its bound as the one that takes least.
    fn guess(&self, index: usize) -> f64 {
        let tightest = self.bounds.iter().min().map_or(1, |bound| bound.get().max(1));
        self.bounds[index].get() as f64 * self.lowest.get() as f64 / tightest as f64
    }

    /// Whether the whole batch is worth a look within so many bytes beside the account.
    pub(super) fn may_fit_whole(&self, room: Bytes) -> bool {
        self.guess(0) <= DOUBT * room.get() as f64
    }

    /// The candidates by family, with a guess at which of them fit into so many bytes beside the account.
    pub(super) fn families(&self, room: Bytes) -> Vec<Family> {
        let n = self.families.iter().map(|family| family + 1).max().unwrap_or(1);
        let family = |f: usize| {
            let specs = self.families.iter().enumerate().filter(|(_, of)| **of == f).map(|(i, _)| i + 1);
            let mut larger: Vec<usize> = (f == 0).then_some(0).into_iter().chain(specs).collect();
            let fits = |index: &usize| self.guess(*index) <= room.get() as f64;
            let at = larger.iter().position(fits).unwrap_or(larger.len().saturating_sub(1));
            let likely = larger.split_off(at);
            larger.reverse();
            Family { likely, larger }
        };
        (0..n).map(family).collect()
    }

    /// Bytes beside the account within a limit, in whole pages; none where the limit does not even hold the account.
    pub(super) fn room(&self, device: &Device, limit: Bytes) -> Option<Bytes> {
        limit.checked_sub(self.account.total()).map(|room| full_pages(device, room))
    }
}

impl StepToPlan {
    /// What is known of the step, and its first candidate. The others are made for that, the smallest first, and handed to
    /// `made`: whoever plans for one limit lets go of each at once, since two at a time would be counted.
    pub(super) fn limits(&self, mut made: impl FnMut(Candidate)) -> Result<(StepLimits, Candidate)> {
        let device = &self.step.device;
        let whole = self.step.trace(self.step.batch)?;
        let outputs = self.results(&whole.graph);
        if !device.backend().is_host() {
            load_kernels(&passes::optimize(&whole.graph)?, device)?;
        }
        let account = self.account(&outputs);
        let (splits, exactness) = match self.step.splits(&whole)? {
            Splits::Exactly => (true, Exactness::Reassociated),
            Splits::Approximately(_) => (true, Exactness::Approximate),
            Splits::Not(_) => (false, Exactness::Approximate),
        };
        let allowed = splits && self.options.request.exactness >= exactness;
        let (here, samples, specs) = self.specs(&whole, allowed)?;
        let mut first = match samples {
            Some(samples) => self.split(samples, &here)?,
            None => self.whole(&whole, &here)?,
        };
        // The last specs take least; what cannot take less is not searched for how little it can take.
        let mut least = Bytes(u64::MAX);
        let mut bounds = Vec::with_capacity(specs.len() + 1);
        for spec in specs.iter().rev() {
            let mut candidate = self.candidate(spec, Some(&whole))?;
            bounds.push(candidate.bound());
            if candidate.bound() < least {
                least = least.min(candidate.floor());
            }
            made(candidate);
        }
        bounds.push(first.bound());
        bounds.reverse();
        if first.bound() < least {
            least = least.min(first.floor());
        }
        let mut placements = vec![&here];
        let families = specs
            .iter()
            .map(|spec| match placements.iter().position(|placement| **placement == spec.placement) {
                Some(family) => family,
                None => {
                    placements.push(&spec.placement);
                    placements.len() - 1
                }
            })
            .collect();
        let planning = planning(device, first.ops());
        let unlimited = first.unlimited();
        let mut timing = first.timing_needs(device)?;
        timing.retain(|bytes| *bytes <= unlimited.max(TIMED_ANYWAY));
        let before = planning + timing.last().copied().unwrap_or_default();
        let limits = StepLimits {
            account,
            outputs,
            splits: splits.then_some(exactness),
            planning,
            timing,
            least: whole_pages(device, least.max(planning)),
            unlimited: whole_pages(device, before.max(unlimited)),
            unlimited_ns: first.unlimited_ns(),
            unshared: first.unshared(),
            bounds,
            lowest: least,
            families,
            specs,
        };
        Ok((limits, first))
    }

    /// The types of what a traced step gives beside its new state.
    fn results(&self, graph: &Graph) -> Vec<Type> {
        graph.outputs()[self.step.state.len()..].iter().map(|&v| graph.ty(v).clone()).collect()
    }

    /// A memory limit that is enough: see [`StepPlanner::enough`](super::StepPlanner::enough).
    pub(super) fn enough(&self) -> Result<Bytes> {
        let device = &self.step.device;
        let whole = self.step.trace(self.step.batch)?;
        let outputs = self.results(&whole.graph);
        let needed = match self.step.splits(&whole)? {
            Splits::Exactly => Some(Exactness::Reassociated),
            Splits::Approximately(_) => Some(Exactness::Approximate),
            Splits::Not(_) => None,
        };
        let allowed = needed.is_some_and(|needed| self.options.request.exactness >= needed);
        let placement = self.placements().pop().unwrap_or_default();
        let ops = self.whole(&whole, &placement)?.ops();
        let floor = self.smallest(allowed, &placement)?.floor();
        Ok(self.account(&outputs).total() + whole_pages(device, floor.max(planning(device, ops))))
    }

    /// What the process takes beside the arena.
    fn account(&self, outputs: &[Type]) -> FixedMemory {
        // The first form of a step leaves room for what later ones give back: a few numbers each.
        let (inputs, later) = match self.present.inputs {
            true => (&[][..], None),
            false => (&self.step.inputs[..], Some(LATER_OUTPUTS)),
        };
        let next = if self.options.ahead { inputs } else { &[] };
        let staged = inputs.iter().chain(next).chain(outputs).map(Type::bytes).chain(later);
        let mut account =
            FixedMemory::measure(&self.step.device, staged, self.options.reserved, self.present.others);
        // State that may go to the host counts with the candidates that keep it on the device.
        let less = self.present.given_back + self.movable_bytes();
        account.tensors = (account.tensors + self.absent()).saturating_sub(less);
        account
    }

    /// Where the first candidate keeps the state and in what micro-batches it runs, if the caller said so; and the others.
    fn specs(
        &self,
        whole: &Traced,
        allowed: bool,
    ) -> Result<(StatePlacement, Option<usize>, Vec<CandidateSpec>)> {
        let (samples, sizes) = match (self.step.batch, self.options.request.micro_batch) {
            (Some(_), Some(0)) => {
                let why = "micro-batches of 0 samples were asked for; 1 is the least".into();
                return Err(Error::Split { why, site: self.step.site });
            }
            (Some(batch), Some(samples)) if samples < batch => {
                if !allowed {
                    return Err(self.cannot_split(whole)?);
                }
                (Some(samples), Vec::new())
            }
            (Some(batch), None) if allowed => (None, micro_batch_sizes(batch)),
            _ => (None, Vec::new()),
        };
        let mut placements = self.placements().into_iter();
        let here = placements.next().unwrap_or_default();
        let others: Vec<StatePlacement> = placements.collect();
        let spec =
            |placement: &StatePlacement, samples| CandidateSpec { placement: placement.clone(), samples };
        let mut specs: Vec<CandidateSpec> = others.iter().map(|placement| spec(placement, samples)).collect();
        for placement in [&here].into_iter().chain(others.last()) {
            specs.extend(sizes.iter().map(|&s| spec(placement, Some(s))));
        }
        Ok((here, samples, specs))
    }

    /// What kernels may be timed in, before any state has gone to the host.
    pub(super) fn timing_room(&self, limits: &StepLimits) -> Bytes {
        limits.timing(self.options.request.limit, self.movable_bytes())
    }
}

/// The sizes of micro-batches to consider for a batch, descending: about 2/3 of the one before.
pub(super) fn micro_batch_sizes(batch: usize) -> Vec<usize> {
    let mut sizes = Vec::new();
    let (mut two, mut three) = (2, 3);
    while two.min(three) < 2 * batch {
        let parts = two.min(three);
        let samples = batch.div_ceil(parts);
        if samples < batch && sizes.last() != Some(&samples) {
            sizes.push(samples);
        }
        if two < three { two *= 2 } else { three *= 2 }
    }
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn micro_batches_go_down_to_one_sample() {
        assert_eq!(micro_batch_sizes(10), [5, 4, 3, 2, 1]);
        assert_eq!(micro_batch_sizes(64), [32, 22, 16, 11, 8, 6, 4, 3, 2, 1]);
        assert_eq!(micro_batch_sizes(2), [1]);
        assert!(micro_batch_sizes(1).is_empty());
    }
}
