//! What is known of a step before a memory limit is looked at and any kernel is timed: the least it takes, what it takes without a
//! limit, and which candidates there are.

use plimsoll_device::Bytes;
use plimsoll_graph::micro_batch::Splits;
use plimsoll_graph::{Graph, Type, passes};
use plimsoll_plan::Exactness;

use super::StepToPlan;
use super::candidate::{Candidate, CandidateSpec, Split};
use super::fixed::{PROGRAM, planning};
use super::placement::StatePlacement;
use super::subject::load_kernels;
use crate::device::{Device, full_pages, whole_pages};
use crate::error::{Error, Result};
use crate::memory::FixedMemory;
use crate::trace::Traced;

/// Kernels whose operands take no more are timed however little the step itself takes; of others the roofline says enough.
const TIMED_ANYWAY: Bytes = Bytes::mib(16);

/// A step whose least is below this is not looked at in micro-batches side by side: there is little to save.
const WORTH_INTERLEAVING: Bytes = Bytes::mib(48);
/// Into how many micro-batches a batch is split that run side by side: with more of them the least hardly falls, and planning takes longer.
const SIDE_BY_SIDE: usize = 4;

/// What a search for micro-batches side by side leaves behind, for each op of theirs.
const LEFT_PER_OP: Bytes = Bytes::kib(8);

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
    /// Bytes beside the account: the least floor that was found of those in a family, before room for planning is counted.
    lowest: Bytes,
    /// By spec: which family it belongs to; micro-batches side by side to none. The first candidate is the first of family 0.
    families: Vec<Option<usize>>,
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
        let in_a_family = |index: &usize| *index == 0 || self.families[*index - 1].is_some();
        let bounds = (0..self.bounds.len()).filter(in_a_family).map(|index| self.bounds[index]);
        let tightest = bounds.min().map_or(1, |bound| bound.get().max(1));
        self.bounds[index].get() as f64 * self.lowest.get() as f64 / tightest as f64
    }

    /// Whether the whole batch is worth a look within so many bytes beside the account.
    pub(super) fn may_fit_whole(&self, room: Bytes) -> bool {
        self.guess(0) <= DOUBT * room.get() as f64
    }

    /// The candidates by family, with a guess at which of them fit into so many bytes beside the account.
    pub(super) fn families(&self, room: Bytes) -> Vec<Family> {
        let n = self.families.iter().flatten().map(|family| family + 1).max().unwrap_or(1);
        let family = |f: usize| {
            let specs =
                self.families.iter().enumerate().filter(|(_, of)| **of == Some(f)).map(|(i, _)| i + 1);
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
        let mut account = self.account(&outputs);
        let said = self.step.splits(&whole)?;
        let needed = exactness_of(&said);
        let allowed = needed.is_some_and(|needed| self.options.request.exactness >= needed);
        let (here, split, mut specs) = self.specs(&whole, allowed)?;
        let spec = CandidateSpec { placement: here.clone(), split };
        let mut first = self.candidate(&spec, Some(&whole))?;
        if split.is_none() && self.shares_statistics(&said) && first.bound() >= WORTH_INTERLEAVING {
            let last = specs.last().map_or(here.clone(), |spec| spec.placement.clone());
            specs.extend(self.split_side_by_side(&whole, &last)?);
        }
        // The last specs take least; what cannot take less is not searched for how little it can take.
        let (mut lowest, mut side_by_side) = (Bytes(u64::MAX), Bytes(u64::MAX));
        let mut ops = first.ops();
        let mut bounds = Vec::with_capacity(specs.len() + 1);
        for spec in specs.iter().rev() {
            let mut candidate = self.candidate(spec, Some(&whole))?;
            bounds.push(candidate.bound());
            if spec.is_side_by_side() {
                side_by_side = side_by_side.min(candidate.floor());
                ops = ops.max(candidate.ops());
            } else if candidate.bound() < lowest {
                lowest = lowest.min(candidate.floor());
            }
            made(candidate);
        }
        bounds.push(first.bound());
        bounds.reverse();
        if first.bound() < lowest {
            lowest = lowest.min(first.floor());
        }
        let least = lowest.min(side_by_side);
        if side_by_side < Bytes(u64::MAX) && device.backend().is_host() {
            // What a search over many ops leaves in the heap is counted whether it was done in this process or is known.
            account.program = account.program.max(PROGRAM + Bytes(LEFT_PER_OP.get() * ops as u64));
        }
        let mut placements = vec![&here];
        let families = specs
            .iter()
            .map(|spec| match placements.iter().position(|placement| **placement == spec.placement) {
                _ if spec.is_side_by_side() => None,
                Some(family) => Some(family),
                None => {
                    placements.push(&spec.placement);
                    Some(placements.len() - 1)
                }
            })
            .collect();
        let planning = planning(device, ops);
        let unlimited = first.unlimited();
        let mut timing = first.timing_needs(device)?;
        timing.retain(|bytes| *bytes <= unlimited.max(TIMED_ANYWAY));
        let before = planning + timing.last().copied().unwrap_or_default();
        let limits = StepLimits {
            account,
            outputs,
            splits: needed,
            planning,
            timing,
            least: whole_pages(device, least.max(planning)),
            unlimited: whole_pages(device, before.max(unlimited)),
            unlimited_ns: first.unlimited_ns(),
            unshared: first.unshared(),
            bounds,
            lowest,
            families,
            specs,
        };
        Ok((limits, first))
    }

    /// Whether micro-batches of the step share statistics: they have some, and statistics of their own are not allowed.
    fn shares_statistics(&self, said: &Splits) -> bool {
        let shared = self.options.request.exactness == Exactness::Reassociated;
        shared && matches!(said, Splits::Approximately(_))
    }

    /// The spec of micro-batches that run side by side, where the step can be written so.
    fn split_side_by_side(
        &self,
        whole: &Traced,
        placement: &StatePlacement,
    ) -> Result<Option<CandidateSpec>> {
        let Some(batch) = self.step.batch else { return Ok(None) };
        for parts in [SIDE_BY_SIDE, 2] {
            let samples = batch.div_ceil(parts);
            if samples < batch && self.side_by_side(whole, samples, placement)?.is_some() {
                let split = Some(Split::SideBySide(samples));
                return Ok(Some(CandidateSpec { placement: placement.clone(), split }));
            }
        }
        Ok(None)
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
        let needed = exactness_of(&self.step.splits(&whole)?);
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
    ) -> Result<(StatePlacement, Option<Split>, Vec<CandidateSpec>)> {
        let (split, sizes) = match (self.step.batch, self.options.request.micro_batch) {
            (Some(_), Some(0)) => {
                let why = "micro-batches of 0 samples were asked for; 1 is the least".into();
                return Err(Error::Split { why, site: self.step.site });
            }
            (Some(batch), Some(samples)) if samples < batch => {
                (Some(self.split_as_asked(whole, samples, allowed)?), Vec::new())
            }
            (Some(batch), None) if allowed => (None, micro_batch_sizes(batch)),
            _ => (None, Vec::new()),
        };
        let mut placements = self.placements().into_iter();
        let here = placements.next().unwrap_or_default();
        let others: Vec<StatePlacement> = placements.collect();
        let spec = |placement: &StatePlacement, split| CandidateSpec { placement: placement.clone(), split };
        let mut specs: Vec<CandidateSpec> = others.iter().map(|placement| spec(placement, split)).collect();
        for placement in [&here].into_iter().chain(others.last()) {
            specs.extend(sizes.iter().map(|&samples| spec(placement, Some(Split::Passes(samples)))));
        }
        Ok((here, split, specs))
    }

    /// Micro-batches of the size that the caller asked for.
    fn split_as_asked(&self, whole: &Traced, samples: usize, allowed: bool) -> Result<Split> {
        if allowed {
            return Ok(Split::Passes(samples));
        }
        let placement = StatePlacement::default();
        let shares = self.shares_statistics(&self.step.splits(whole)?)
            && self.side_by_side(whole, samples, &placement)?.is_some();
        if shares { Ok(Split::SideBySide(samples)) } else { Err(self.cannot_split(whole)?) }
    }

    /// What kernels may be timed in, before any state has gone to the host.
    pub(super) fn timing_room(&self, limits: &StepLimits) -> Bytes {
        limits.timing(self.options.request.limit, self.movable_bytes())
    }
}

/// What exactness passes over parts of the batch take, if it can be split into them at all.
fn exactness_of(said: &Splits) -> Option<Exactness> {
    match said {
        Splits::Exactly => Some(Exactness::Reassociated),
        Splits::Approximately(_) => Some(Exactness::Approximate),
        Splits::Not(_) => None,
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
