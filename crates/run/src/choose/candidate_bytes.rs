//! What all candidates of a step take, whatever the times of their ops are: found by making each of them, or known from an earlier
//! process.

use std::sync::mpsc;

use plimsoll_device::Bytes;
use plimsoll_plan::{Digest, Job, in_turn, is_on_all_cores};

use super::StepToPlan;
use super::candidate::{Candidate, CandidateSpec, Split};
use super::placement::StatePlacement;
use crate::device::{Answer, KeptCandidate, KeptCandidates, KeptSideBySide};
use crate::error::Result;
use crate::trace::Traced;

/// What decides which candidates there are and which is chosen: a choice that any other lines made is not taken for one of these.
const SOURCES: [&str; 3] =
    [include_str!("candidate_bytes.rs"), include_str!("limits.rs"), include_str!("mod.rs")];

/// Into how many micro-batches a batch is split that run side by side: with more of them the least hardly falls, and planning takes longer.
const SIDE_BY_SIDE: usize = 4;

/// The least of micro-batches side by side is mostly this part above what no plan of them can go below.
const LIKELY_OVER: u64 = 4;

/// Bytes beside the account that candidates take.
pub(super) struct CandidateBytes {
    /// What no plan can go below: of the first candidate, then of the specs in their order.
    pub(super) bounds: Vec<Bytes>,
    /// The least floor but for that of micro-batches side by side, where it is lower than theirs.
    pub(super) lowest: Option<Bytes>,
    pub(super) side_by_side: Option<SideBySide>,
}

/// What was found of the candidates that were looked at.
struct Found {
    /// What no plan of each can go below.
    bounds: Vec<Bytes>,
    /// The least floor of all.
    least: Bytes,
    /// The least but for that of micro-batches side by side, where it is lower: the candidate with its number and digest.
    lowest: Option<(Bytes, usize, Digest)>,
}

impl Found {
    /// Looks at the next candidate. What cannot take less than the least is not searched for how little it can take.
    fn look(&mut self, index: usize, candidate: &mut Candidate) {
        let bound = candidate.bound();
        self.bounds.push(bound);
        if bound < self.least
            && let Some(floor) = candidate.floor_below(self.least)
        {
            (self.least, self.lowest) = (floor, Some((floor, index, candidate.digests().0)));
        }
    }

    /// Where there is memory for it: what looking at candidates begins with, for those that are worth a look, beside each other.
    fn lower_once<'a>(&self, candidates: impl Iterator<Item = &'a mut Candidate>) {
        if !is_on_all_cores() {
            return;
        }
        let worth = candidates.filter_map(|candidate| (candidate.bound() < self.least).then_some(candidate));
        in_turn(worth.map(|candidate| Box::new(|| candidate.lower_once()) as Job<'_, ()>).collect());
    }
}

/// Micro-batches side by side, where the step can be written so: the last of the specs.
pub(super) struct SideBySide {
    pub(super) spec: CandidateSpec,
    pub(super) ops: usize,
    pub(super) floor: Bytes,
}

/// The candidates whose bytes are asked for.
pub(super) struct Candidates<'a> {
    pub(super) first: &'a mut Candidate,
    /// The others, but for micro-batches side by side.
    pub(super) specs: &'a [CandidateSpec],
    /// The trace of the whole batch.
    pub(super) whole: &'a Traced,
    /// Where micro-batches side by side would keep the state, if they are to be looked at.
    pub(super) side_by_side: Option<StatePlacement>,
    /// Bytes beside the account within the limit that will be asked for, where there is one. Nothing that is found depends on it.
    pub(super) room: Option<Bytes>,
}

impl Candidates<'_> {
    /// What tells them from those of other steps: the first candidate, and how the others differ from that.
    pub(super) fn digest(&self) -> Digest {
        let start = SOURCES.iter().fold(self.first.digests().0, |sum, source| sum.with(*source));
        let passes = self.specs.iter().map(|spec| (spec.split, &spec.placement));
        let side_by_side = self.side_by_side.iter().map(|placement| (Some(Split::SideBySide(0)), placement));
        passes.chain(side_by_side).fold(start, |sum, (split, placement)| {
            let StatePlacement { hosted, device, host, host_free } = placement;
            sum.with((split, hosted, device.get(), host.get(), host_free.get()))
        })
    }
}

impl StepToPlan {
    /// What the candidates take: as an earlier process found it, else by making them. Those that were made are handed to `made` with their
    /// numbers, one after the other.
    pub(super) fn candidate_bytes(
        &self,
        mut candidates: Candidates<'_>,
        made: &mut impl FnMut(usize, Candidate),
    ) -> Result<CandidateBytes> {
        match self.known_bytes(&mut candidates, made)? {
            Some(known) => Ok(known),
            None => self.find_bytes(&mut candidates, made),
        }
    }

    /// Makes all candidates, the smallest first, to see what they take. What was found is kept.
    fn find_bytes(
        &self,
        candidates: &mut Candidates<'_>,
        made: &mut impl FnMut(usize, Candidate),
    ) -> Result<CandidateBytes> {
        let asked = candidates.digest();
        let Candidates { first, specs, whole, side_by_side, room } = candidates;
        let mut found =
            Found { bounds: Vec::with_capacity(specs.len() + 2), least: Bytes::MAX, lowest: None };
        let (mut side, mut kept_side) = (None, None);
        if let Some(placement) = side_by_side
            && let Some((samples, mut candidate)) =
                self.side_by_side_and_first(whole, placement, first, *room)?
        {
            let (ops, digest) = (candidate.ops(), candidate.digests().0.to_string());
            found.bounds.push(candidate.bound());
            found.least = candidate.floor();
            side = Some(SideBySide { spec: spec(samples, placement), ops, floor: found.least });
            kept_side = Some(KeptSideBySide { samples, digest });
            made(specs.len() + 1, candidate);
        }
        // Where there is memory for all of them at once they are made beside each other, else each when its turn comes.
        let mut ahead = Vec::new();
        if is_on_all_cores() {
            let whole: &Traced = whole;
            let make =
                |spec| -> Job<'_, Result<Candidate>> { Box::new(move || self.candidate(spec, Some(whole))) };
            ahead = in_turn(specs.iter().map(make).collect()).into_iter().collect::<Result<_>>()?;
        }
        // The last specs take least; what cannot take less is not searched for how little it can take.
        for (i, spec) in specs.iter().enumerate().rev() {
            let mut candidate = match ahead.pop() {
                Some(candidate) => candidate,
                None => self.candidate(spec, Some(whole))?,
            };
            found.look(i + 1, &mut candidate);
            made(i + 1, candidate);
            if i + 1 == specs.len() {
                found.lower_once(ahead.iter_mut().chain([&mut **first]));
            }
        }
        found.look(0, first);
        let Found { mut bounds, lowest, .. } = found;
        bounds.reverse();
        let answer = Answer::Candidates(KeptCandidates {
            bounds: bounds.iter().map(|bound| bound.get()).collect(),
            lowest_of: lowest.map(|(_, index, digest)| KeptCandidate { index, digest: digest.to_string() }),
            side_by_side: kept_side,
        });
        self.step.device.answers(|answers| answers.keep(asked, &answer));
        Ok(CandidateBytes { bounds, lowest: lowest.map(|lowest| lowest.0), side_by_side: side })
    }

    /// The same as an earlier process found it, if the candidates that take least are those that they were. Their floors are asked
    /// for anew: they are known too, each by its own digest.
    fn known_bytes(
        &self,
        candidates: &mut Candidates<'_>,
        made: &mut impl FnMut(usize, Candidate),
    ) -> Result<Option<CandidateBytes>> {
        let asked = candidates.digest();
        let Some(Answer::Candidates(known)) = self.step.device.answers(|answers| answers.answer(asked))
        else {
            return Ok(None);
        };
        let Candidates { first, specs, whole, side_by_side, .. } = candidates;
        let KeptCandidates { bounds, lowest_of, side_by_side: kept_side } = known;
        let is_whole = bounds.len() == 1 + specs.len() + usize::from(kept_side.is_some());
        if !is_whole || bounds[0] != first.bound().get() {
            return Ok(None);
        }
        let mut side = None;
        if let Some(KeptSideBySide { samples, digest }) = kept_side {
            let Some(placement) = side_by_side else { return Ok(None) };
            let Some(mut candidate) = self.side_by_side(whole, samples, placement)? else { return Ok(None) };
            if candidate.digests().0.to_string() != digest {
                return Ok(None);
            }
            let (ops, floor) = (candidate.ops(), candidate.floor());
            side = Some(SideBySide { spec: spec(samples, placement), ops, floor });
            made(specs.len() + 1, candidate);
        }
        let index = lowest_of.as_ref().map(|lowest| lowest.index.checked_sub(1));
        let is_it = |candidate: &Candidate| lowest_of.as_ref().is_some_and(|it| it.is(candidate.digests().0));
        let lowest = match index {
            None if side.is_some() => None,
            Some(None) if is_it(first) => Some(first.floor()),
            None | Some(None) => return Ok(None),
            Some(Some(i)) => {
                let Some(spec) = specs.get(i) else { return Ok(None) };
                let mut candidate = self.candidate(spec, Some(whole))?;
                if !is_it(&candidate) {
                    return Ok(None);
                }
                let floor = candidate.floor();
                made(i + 1, candidate);
                Some(floor)
            }
        };
        let bounds = bounds.into_iter().map(Bytes).collect();
        Ok(Some(CandidateBytes { bounds, lowest, side_by_side: side }))
    }

    /// Micro-batches that run side by side, with their floor. Where there are cores for it, what a plan of the first candidate will need is
    /// looked for beside that, if such a plan is likely.
    fn side_by_side_and_first(
        &self,
        whole: &Traced,
        placement: &StatePlacement,
        first: &mut Candidate,
        room: Option<Bytes>,
    ) -> Result<Option<(usize, Candidate)>> {
        type Made = Result<Option<(usize, Candidate)>>;
        let (tell, told) = mpsc::channel();
        let mut jobs: Vec<Job<'_, Made>> = vec![Box::new(move || {
            let mut made = self.split_side_by_side(whole, placement)?;
            made.iter_mut().for_each(|(_, candidate)| {
                // Nobody may listen.
                tell.send(candidate.bound()).ok();
                candidate.floor();
            });
            Ok(made)
        })];
        if is_on_all_cores() {
            jobs.push(Box::new(move || {
                let bound = first.bound();
                if room.is_some_and(|room| room < bound) {
                    // There will be no such plan, but the first may still take less.
                    let takes_less = |side: Bytes| bound.get() < side.get() + side.get() / LIKELY_OVER;
                    if told.recv().is_ok_and(takes_less) {
                        first.lower_once();
                    }
                } else if first.unlimited() > room.unwrap_or(Bytes::ZERO) {
                    // What fits whole needs no search.
                    first.look_for_floor();
                }
                Ok(None)
            }));
        }
        in_turn(jobs).swap_remove(0)
    }

    /// Micro-batches that run side by side, and how many samples each has, where the step can be written so.
    fn split_side_by_side(
        &self,
        whole: &Traced,
        placement: &StatePlacement,
    ) -> Result<Option<(usize, Candidate)>> {
        let Some(batch) = self.step.batch else { return Ok(None) };
        for parts in [SIDE_BY_SIDE, 2] {
            let samples = batch.div_ceil(parts);
            if samples < batch
                && let Some(candidate) = self.side_by_side(whole, samples, placement)?
            {
                return Ok(Some((samples, candidate)));
            }
        }
        Ok(None)
    }
}

/// In how many micro-batches side by side a batch is looked at first, if in any.
pub(super) fn side_by_side_parts(batch: usize) -> Option<usize> {
    (batch > 1).then(|| batch.div_ceil(batch.div_ceil(SIDE_BY_SIDE)))
}

fn spec(samples: usize, placement: &StatePlacement) -> CandidateSpec {
    CandidateSpec { placement: placement.clone(), split: Some(Split::SideBySide(samples)) }
}
