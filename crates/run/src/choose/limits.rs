//! What is known of a step before a memory limit is looked at and any kernel is timed: the least it takes, what it takes without a
//! limit, and which candidates there are.

use plimsoll_device::Bytes;
use plimsoll_graph::micro_batch::Splits;
use plimsoll_graph::{Graph, Type, passes};
use plimsoll_plan::{Digest, Exactness};

use super::StepToPlan;
use super::candidate::{Candidate, CandidateSpec, Split};
use super::candidate_bytes::{CandidateBytes, Candidates, side_by_side_parts};
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

/// What a search for micro-batches side by side leaves behind, for each op of theirs.
const LEFT_PER_OP: Bytes = Bytes::kib(8);

/// What of [`PROGRAM`] is for the programs of a step.
const USUAL_PROGRAMS: Bytes = Bytes::mib(6);

/// What those take, for each op: its graph, instructions, and places, in each form of the step.
const HELD_PER_OP: Bytes = Bytes::kib(8);

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
    /// How many ops the first candidate has.
    pub(super) first_ops: usize,
    /// What of the account a search for micro-batches side by side leaves behind: nothing where there are none.
    pub(super) left_behind: Bytes,
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
    /// What of those is state on the device.
    state: Vec<Bytes>,
    /// Bytes beside the account: the least floor of those in a family, before room for planning is counted; none where micro-batches
    /// side by side take less, so that nobody looked for it.
    lowest: Option<Bytes>,
    /// What tells the step with all its candidates from others.
    pub(super) asked: Digest,
    /// By spec: which family it belongs to; micro-batches side by side to none. The first candidate is the first of family 0.
    families: Vec<Option<usize>>,
}

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

    /// What a candidate is likely to take at least: as much over its bound as the one that takes least, where that is known. State takes what
    /// it takes, so that only the rest is more: one that keeps all of it on the device is not judged by one that keeps none there.
    fn guess(&self, index: usize) -> f64 {
        let in_families = (0..self.bounds.len()).filter(|&index| self.is_in_a_family(index));
        let beside = |bytes: Bytes, index: usize| bytes.saturating_sub(self.state[index]).get().max(1) as f64;
        let over = match (self.lowest, in_families.min_by_key(|&index| self.bounds[index])) {
            (Some(lowest), Some(tightest)) => {
                beside(lowest, tightest) / beside(self.bounds[tightest], tightest)
            }
            _ => 1.0,
        };
        self.state[index].get() as f64 + beside(self.bounds[index], index) * over.max(1.0)
    }

    /// The candidates in a family that may run with so many bytes beside the account, by their bounds.
    pub(super) fn may_fit(&self, room: Bytes) -> Vec<usize> {
        (0..self.bounds.len())
            .filter(|&index| self.is_in_a_family(index) && self.bounds[index] <= room)
            .collect()
    }

    /// Micro-batches side by side, if there are any and they may run with so many bytes beside the account.
    pub(super) fn side_by_side(&self, room: Bytes) -> Option<usize> {
        (0..self.bounds.len()).find(|&index| !self.is_in_a_family(index) && self.bounds[index] <= room)
    }

    fn is_in_a_family(&self, index: usize) -> bool {
        index == 0 || self.families[index - 1].is_some()
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
    /// first, and handed to `made` with their numbers: whoever plans for one limit lets go of each at once, since two at a time would be
    /// counted.
    pub(super) fn limits(&self, mut made: impl FnMut(usize, Candidate)) -> Result<(StepLimits, Candidate)> {
        let device = &self.step.device;
        let whole = self.step.trace(self.step.batch)?;
        let outputs = self.results(&whole.graph);
        if !device.backend().is_host() {
            load_kernels(&passes::optimize(&whole.graph)?, device)?;
        }
        let mut account = self.account(&outputs);
        let said = self.step.splits(&whole)?;
        if self.options.shared
            && let Splits::Not(why) = self.step.shares()?
        {
            let why = format!("ranks cannot share it, since {why}");
            return Err(Error::Split { why, site: self.step.site });
        }
        let needed = exactness_of(&said);
        let allowed = needed.is_some_and(|needed| self.options.request.exactness >= needed);
        let (here, split, mut specs) = self.specs(&whole, allowed)?;
        let spec = CandidateSpec { placement: here.clone(), split };
        let mut first = self.candidate(&spec, Some(&whole))?;
        let shares = split.is_none() && self.shares_statistics(&said) && is_worth_interleaving(&mut first);
        let last = specs.last().map_or(&here, |spec| &spec.placement);
        let side_by_side = shares.then(|| last.clone());
        let room = self.options.request.limit.map(|limit| limit.saturating_sub(account.total()));
        let candidates = Candidates { first: &mut first, specs: &specs, whole: &whole, side_by_side, room };
        let asked = candidates.digest();
        let CandidateBytes { bounds, lowest, side_by_side } = self.candidate_bytes(candidates, &mut made)?;
        let (mut least, mut ops) = (lowest.unwrap_or(Bytes::MAX), first.ops());
        self.hold_program(&mut account, first.ops());
        let alone = account.program;
        if let Some(found) = side_by_side {
            least = least.min(found.floor);
            ops = ops.max(found.ops);
            specs.push(found.spec);
            self.leave_behind(&mut account, ops);
        }
        let left_behind = account.program.saturating_sub(alone);
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
        let state = [&here].into_iter().chain(specs.iter().map(|spec| &spec.placement));
        let state = state.map(|placement| placement.device).collect();
        let planning = planning(device, ops);
        let unlimited = first.unlimited();
        let mut timing = first.timing_needs(device)?;
        timing.retain(|bytes| *bytes <= unlimited.max(TIMED_ANYWAY));
        let before = planning + timing.last().copied().unwrap_or_default();
        let limits = StepLimits {
            account,
            outputs,
            splits: needed,
            first_ops: first.ops(),
            left_behind,
            planning,
            timing,
            least: whole_pages(device, least.max(planning)),
            unlimited: whole_pages(device, before.max(unlimited)),
            unlimited_ns: first.unlimited_ns(),
            unshared: first.unshared(),
            bounds,
            state,
            lowest,
            asked,
            families,
            specs,
        };
        Ok((limits, first))
    }

    /// Counts what the programs of a step of so many ops take, where that is more than is declared for a usual one: 31 MiB in all were seen at
    /// 2,000 ops.
    fn hold_program(&self, account: &mut FixedMemory, ops: usize) {
        if self.step.device.backend().is_host() {
            let usual = PROGRAM.saturating_sub(USUAL_PROGRAMS);
            account.program = account.program.max(usual + Bytes(HELD_PER_OP.get() * ops as u64));
        }
    }

    /// Counts what a search over so many ops leaves in the heap, whether it was done in this process or is known.
    fn leave_behind(&self, account: &mut FixedMemory, ops: usize) {
        if self.step.device.backend().is_host() {
            account.program = account.program.max(PROGRAM + Bytes(LEFT_PER_OP.get() * ops as u64));
        }
    }

    /// Whether micro-batches of the step share statistics: they have some, and statistics of their own are not allowed.
    fn shares_statistics(&self, said: &Splits) -> bool {
        let shared = self.options.request.exactness == Exactness::Reassociated;
        shared && matches!(said, Splits::Approximately(_))
    }

    /// The types of what a traced step gives beside its new state.
    fn results(&self, graph: &Graph) -> Vec<Type> {
        graph.outputs()[self.step.state.len()..].iter().map(|&v| graph.ty(v).clone()).collect()
    }

    /// What the process takes beside the arena, counted now: constants that the step makes are there while it is traced, and no others
    /// may be.
    pub(super) fn elsewhere(&self) -> Result<FixedMemory> {
        let whole = self.step.trace(self.step.batch)?;
        Ok(self.account(&self.results(&whole.graph)))
    }

    /// A memory limit that is enough where the process takes so much elsewhere: see [`MeasuredStep::enough`](super::MeasuredStep::enough).
    pub(super) fn enough(&self, mut elsewhere: FixedMemory) -> Result<Bytes> {
        let device = &self.step.device;
        let whole = self.step.trace(self.step.batch)?;
        let said = self.step.splits(&whole)?;
        let needed = exactness_of(&said);
        let allowed = needed.is_some_and(|needed| self.options.request.exactness >= needed);
        let placement = self.placements().pop().unwrap_or_default();
        let passing = self.in_passing();
        let mut candidate = passing.whole(&whole, &placement)?;
        let ops = candidate.ops();
        self.hold_program(&mut elsewhere, ops);
        let batch = self.step.batch.unwrap_or(1);
        let is_interleaved = self.options.request.micro_batch.is_none()
            && self.shares_statistics(&said)
            && is_worth_interleaving(&mut candidate);
        if let Some(parts) = side_by_side_parts(batch).filter(|_| is_interleaved) {
            // What they share is there once more.
            self.leave_behind(&mut elsewhere, ops * (parts + 1));
        }
        if allowed && self.step.batch.is_some() {
            candidate = passing.smallest(allowed, &placement)?;
        }
        Ok(elsewhere.total() + whole_pages(device, candidate.enough().max(planning(device, ops))))
    }

    /// The sizes of the blocks in which the step is given a batch and gives back `outputs`; of a batch of fewer samples, where it is asked for.
    pub(super) fn staged(&self, outputs: &[Type], samples: Option<usize>) -> Vec<usize> {
        // The first form of a step leaves room for what later ones give back: a few numbers each.
        let (inputs, later) = match self.present.inputs {
            true => (&[][..], None),
            false => (&self.step.inputs[..], Some(LATER_OUTPUTS)),
        };
        let next = if self.options.ahead { inputs } else { &[] };
        let given = inputs.iter().chain(next).map(|ty| match (samples, self.step.batch) {
            (Some(samples), Some(batch)) if ty.shape.first() == Some(&batch) => ty.bytes() / batch * samples,
            _ => ty.bytes(),
        });
        given.chain(outputs.iter().map(Type::bytes)).chain(later).collect()
    }

    /// What the process takes beside the arena.
    fn account(&self, outputs: &[Type]) -> FixedMemory {
        let staged = self.staged(outputs, None).into_iter();
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

/// Whether a candidate that is not split takes so much that it is looked at in micro-batches side by side.
pub(super) fn is_worth_interleaving(whole: &mut Candidate) -> bool {
    whole.bound() >= WORTH_INTERLEAVING
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
