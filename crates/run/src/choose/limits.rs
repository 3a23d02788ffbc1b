//! What is known of a step before a memory limit is looked at and any kernel is timed: the least it takes, what it takes without a
//! limit, and which candidates there are.

use plimsoll_device::Bytes;
use plimsoll_graph::micro_batch::Splits;
use plimsoll_graph::{Graph, Type, passes};
use plimsoll_plan::{Digest, Exactness};

use super::StepToPlan;
use super::candidate::{Candidate, CandidateSpec};
use super::fixed::planning;
use super::placement::StatePlacement;
use super::subject::load_kernels;
use crate::device::{Answer, Device, KeptCandidate, KeptCandidates, full_pages, whole_pages};
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
    /// What tells the step with all its candidates from others.
    pub(super) asked: Digest,
    /// By spec: which family it belongs to. The first candidate is the first of family 0.
    families: Vec<usize>,
}

/// Which way of choosing among candidates this is: another one gets another number, so that no choice is taken that it did not make.
const CHOICE: u32 = 1;

/// How far a guess at what a candidate takes may be off.
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

    /// Whether a candidate may run with so many bytes beside the account, by its bound.
    pub(super) fn may_fit(&self, index: usize, room: Bytes) -> bool {
        self.bounds[index] <= room
    }

    /// Whether a candidate is worth a look within so many bytes beside the account: whether it is at least not unlikely to fit.
    pub(super) fn is_worth_a_look(&self, index: usize, room: Bytes) -> bool {
        self.guess(index) <= DOUBT * room.get() as f64
    }

    /// Whether a candidate is one of larger micro-batches than another that keeps its state where it does, but not of the whole batch.
    pub(super) fn is_larger(&self, index: usize, than: usize) -> bool {
        let family = |index: usize| index.checked_sub(1).map(|spec| self.families[spec]);
        index > 0 && index < than && family(index) == family(than)
    }

    /// The time of a candidate as it counts. Never a split for speed: a prediction that parts take less time than the whole counts as
    /// the whole's.
    pub(super) fn as_if_whole(&self, index: usize, ns: u64) -> u64 {
        if index == 0 { ns } else { ns.max(self.unlimited_ns) }
    }

    /// Bytes beside the account within a limit, in whole pages; none where the limit does not even hold the account.
    pub(super) fn room(&self, device: &Device, limit: Bytes) -> Option<Bytes> {
        limit.checked_sub(self.account.total()).map(|room| full_pages(device, room))
    }
}

impl StepToPlan {
    /// What is known of the step, and its first candidate. Unless an earlier process found that, the others are made for it, the smallest
    /// first, and handed to `made`: whoever plans for one limit lets go of each at once, since two at a time would be counted.
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
        let asked = asked(&first, &specs);
        let (bounds, least) = match self.known_candidates(asked, &first, &specs)? {
            Some(known) => known,
            None => self.look_at_candidates(asked, &mut first, &specs, &whole, &mut made)?,
        };
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
            asked,
            families,
            specs,
        };
        Ok((limits, first))
    }

    /// Makes all candidates: what no plan of each can go below, and the least with which one can run. What was found is kept.
    fn look_at_candidates(
        &self,
        asked: Digest,
        first: &mut Candidate,
        specs: &[CandidateSpec],
        whole: &Traced,
        made: &mut impl FnMut(Candidate),
    ) -> Result<(Vec<Bytes>, Bytes)> {
        // The last specs take least; what cannot take less is not searched for how little it can take.
        let mut least = Bytes(u64::MAX);
        let mut least_of = (0, first.digests().0);
        let mut bounds = Vec::with_capacity(specs.len() + 1);
        let mut look = |index: usize, candidate: &mut Candidate| {
            bounds.push(candidate.bound());
            if candidate.bound() < least
                && let Some(floor) = candidate.floor_below(least)
            {
                (least, least_of) = (floor, (index, candidate.digests().0));
            }
        };
        for (i, spec) in specs.iter().enumerate().rev() {
            let mut candidate = self.candidate(spec, Some(whole))?;
            look(i + 1, &mut candidate);
            made(candidate);
        }
        look(0, first);
        bounds.reverse();
        let answer = Answer::Candidates(KeptCandidates {
            bounds: bounds.iter().map(|bound| bound.get()).collect(),
            least: least.get(),
            least_of: KeptCandidate { index: least_of.0, digest: least_of.1.to_string() },
        });
        self.step.device.answers(|answers| answers.keep(asked, &answer));
        Ok((bounds, least))
    }

    /// The same as an earlier process found it, if the candidate with the least is the one that it was.
    fn known_candidates(
        &self,
        asked: Digest,
        first: &Candidate,
        specs: &[CandidateSpec],
    ) -> Result<Option<(Vec<Bytes>, Bytes)>> {
        let Some(Answer::Candidates(known)) = self.step.device.answers(|answers| answers.answer(asked))
        else {
            return Ok(None);
        };
        let KeptCandidates { bounds, least, least_of: KeptCandidate { index, digest } } = known;
        let is_same = match (index.checked_sub(1), specs.get(index.wrapping_sub(1))) {
            (None, _) => first.digests().0.to_string() == digest,
            (_, Some(spec)) => self.candidate(spec, None)?.digests().0.to_string() == digest,
            _ => false,
        };
        let is_whole = is_same && bounds.len() == specs.len() + 1;
        Ok(is_whole.then(|| (bounds.into_iter().map(Bytes).collect(), Bytes(least))))
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
        let floor = self.smallest(allowed, &placement)?.enough();
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

/// What tells a step with its candidates from others: its first candidate, and how the others differ from that.
fn asked(first: &Candidate, specs: &[CandidateSpec]) -> Digest {
    let start = first.digests().0.with(("candidates", CHOICE));
    specs.iter().fold(start, |sum, spec| {
        let StatePlacement { hosted, device, host, host_free } = &spec.placement;
        sum.with((spec.samples, hosted, device.get(), host.get(), host_free.get()))
    })
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
