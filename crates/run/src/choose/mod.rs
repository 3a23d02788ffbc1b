//! Turns a step and a memory limit into the fastest verified plan that keeps it: the one place where that is chosen.
//!
//! `plan`, `frontier` and training ask here alike. A step is traced and its candidates are lowered; kernels are timed when the
//! first limit that can be kept asks for it. Asking has no side effect but the cache of kernel times: no weights are
//! drawn and no memory is taken for the step.

mod candidate;
mod candidate_bytes;
mod fixed;
mod frontier;
mod info;
mod limits;
mod placement;
mod refuse;
mod step_plan;
mod subject;

pub(crate) use candidate::{PlannedPart, Shared, staged};
pub(crate) use fixed::left_for_libraries;
pub use fixed::{PROGRAM, host_program, only_plans};
pub use frontier::{Frontier, FrontierPoint, undominated};
pub use info::PlanFigures;
pub(crate) use placement::is_movable;
pub use step_plan::StepPlan;
pub(crate) use subject::{Present, StepToPlan};

use std::sync::Arc;
use std::time::Instant;

use plimsoll_device::Bytes;
use plimsoll_graph::{Site, Type};

use crate::device::{Answer, Device, KeptCandidate};
use crate::error::{Error, Result};
use crate::memory::FixedMemory;
use crate::trace::{StateSpec, StepArgs, StepOptions, StepResult};
use candidate::{Candidate, Planned};
use limits::StepLimits;

/// Micro-batches side by side are looked at where nothing else fits or takes this much longer than without a limit.
const SLOW: f64 = 1.1;

/// A step that can be planned for any memory limit.
///
/// ```
/// use plimsoll_graph::{DType, Type};
/// use plimsoll_run::{Device, Kind, StateSpec, StepOptions, StepPlanner, StepResult, TensorOps};
/// let (w, x) = (Type::new(DType::F32, [512, 512]), Type::new(DType::F32, [64, 512]));
/// let state = vec![StateSpec::new("w", Kind::Parameter, w)];
/// let options = StepOptions { batched: true, ..StepOptions::default() };
/// let mut planner = StepPlanner::new(&options, &Device::current()?, state, &[x], |pass| {
///     let loss = pass.inputs[0].matmul(&pass.state[0])?.tanh()?.square()?.mean(&[], false)?;
///     Ok(StepResult { state: pass.state.to_vec(), outputs: vec![loss], totals: vec![] })
/// })?;
/// let without_a_limit = planner.plan(None)?;
/// let frontier = planner.frontier(8, None)?;
/// assert_eq!(frontier.points[0].limit, without_a_limit.figures.floor);
/// # Ok::<(), plimsoll_run::Error>(())
/// ```
pub struct StepPlanner {
    subject: Arc<StepToPlan>,
    limits: StepLimits,
    /// The whole batch, or the micro-batches that the caller asked for.
    first: Candidate,
    /// The others in the order of their specs, as far as they have been made, where they are kept for further limits; else each is made
    /// when it is looked at.
    others: Option<Vec<Option<Candidate>>>,
    start: Instant,
}

/// A step that is yet to be searched, with what the process takes beside it. That is counted with the tensors that exist and the memory
/// that the process has, so that a step is measured while nobody traces or searches another; searching several beside each other then
/// finds what searching each alone does.
pub struct MeasuredStep {
    subject: StepToPlan,
    elsewhere: FixedMemory,
}

impl MeasuredStep {
    /// A memory limit that is enough for the step, found without looking at every candidate: with the smallest micro-batches where they
    /// are allowed, else whole. [`StepPlanner::floor`] is no higher.
    pub fn enough(&self) -> Result<Bytes> {
        self.subject.enough(self.elsewhere)
    }
}

impl StepPlanner {
    /// Traces a step over a state and inputs of these types, on a device. The limit of the options is not looked at, but for
    /// how much memory kernels may be timed in, and for what is worth searching ahead where there are cores for it.
    #[track_caller]
    pub fn new(
        options: &StepOptions,
        device: &Device,
        state: Vec<StateSpec>,
        inputs: &[Type],
        body: impl Fn(&StepArgs<'_>) -> Result<StepResult> + Send + Sync + 'static,
    ) -> Result<StepPlanner> {
        let (site, present) = (Site::here(), Present::default());
        StepPlanner::of(StepToPlan::new(device, options, state, inputs, Arc::new(body), present, site)?)
    }

    /// A planner that keeps its candidates, to be asked for many limits.
    pub(crate) fn of(subject: StepToPlan) -> Result<StepPlanner> {
        let start = Instant::now();
        let mut made = Vec::new();
        let (limits, first) = subject.limits(|index, candidate| made.push((index, candidate)))?;
        let mut others: Vec<Option<Candidate>> = limits.specs.iter().map(|_| None).collect();
        for (index, candidate) in made {
            others[index - 1] = Some(candidate);
        }
        Ok(StepPlanner { subject: Arc::new(subject), limits, first, others: Some(others), start })
    }

    /// As [`StepPlanner::new`], to be asked for one limit: candidates are not kept, so that planning takes little memory.
    pub(crate) fn for_one_limit(subject: StepToPlan) -> Result<StepPlanner> {
        let start = Instant::now();
        let (limits, first) = subject.limits(|_, candidate| drop(candidate))?;
        Ok(StepPlanner { subject: Arc::new(subject), limits, first, others: None, start })
    }

    /// A step with what the process takes beside it, counted now, to be asked how much memory is enough for it.
    #[track_caller]
    pub fn measured(
        options: &StepOptions,
        device: &Device,
        state: Vec<StateSpec>,
        inputs: &[Type],
        body: impl Fn(&StepArgs<'_>) -> Result<StepResult> + Send + Sync + 'static,
    ) -> Result<MeasuredStep> {
        let (site, present) = (Site::here(), Present::default());
        let subject = StepToPlan::new(device, options, state, inputs, Arc::new(body), present, site)?;
        Ok(MeasuredStep { elsewhere: subject.elsewhere()?, subject })
    }

    /// The least memory limit for which there is a plan, at the exactness that was allowed.
    pub fn floor(&self) -> Bytes {
        self.limits.floor()
    }

    /// What the fastest plan takes.
    pub fn unlimited(&self) -> Bytes {
        self.limits.account.total() + self.limits.unlimited
    }

    /// Plans from now on beside so many bytes that somebody else takes, instead of those of the options: of a step that has not begun
    /// they change nothing else.
    pub fn set_reserved(&mut self, reserved: Bytes) {
        self.limits.account.set_reserved(&self.subject.step.device, reserved);
        Arc::make_mut(&mut self.subject).options.reserved = reserved;
    }

    /// Plans from now on for a process that takes so much beside the workspace, whatever this one takes: for the step of a run
    /// that was, with what was said of it then ([`PlanFigures::outside`]).
    pub fn set_outside(&mut self, outside: Bytes) {
        let account = &mut self.limits.account;
        let rest = account.tensors + account.inputs + account.reserved + account.ranks;
        account.program = outside.saturating_sub(rest);
        // Less than this process's own tensors and batches is no account of theirs: only the sum counts then.
        if account.total() > outside {
            *account = FixedMemory { program: outside, ..FixedMemory::NOTHING };
        }
        self.limits.left_behind = Bytes::ZERO;
    }

    /// The plan within a memory limit: what a [`Step`](crate::Step) under it runs. Without a limit, the plan that takes the least
    /// memory among those predicted to cost at most one percent of time over the fastest.
    ///
    /// # Errors
    /// [`Error::Infeasible`] if there is none.
    pub fn plan(&mut self, limit: Option<Bytes>) -> Result<StepPlan> {
        let chosen = match limit {
            None => {
                self.time()?;
                let planned = self.first.lean()?;
                planned.map(|planned| StepPlan::new(&self.subject, &self.first, planned))
            }
            Some(limit) => self.fastest(limit)?,
        };
        match (chosen, limit) {
            (Some(plan), _) => Ok(plan.with_figures(&self.limits, limit, self.start)),
            (None, Some(limit)) => {
                // The specs end with the smallest micro-batches; without specs there is only the first.
                let smallest = match &mut self.others {
                    Some(others) if others.is_empty() => Some(&mut self.first),
                    others => others.as_mut().and_then(|others| others.last_mut()?.as_mut()),
                };
                Err(self.subject.refuse(limit, &self.limits, smallest)?)
            }
            (None, None) => Err(Error::Internal("a step without a limit has no plan".into())),
        }
    }

    /// The fastest of all candidates within a limit; of several that are equally fast, the one that stands first. Which one that is, an
    /// earlier process may have found.
    fn fastest(&mut self, limit: Bytes) -> Result<Option<StepPlan>> {
        // No floor depends on how long kernels take, so a refusal need not wait until they are timed.
        let device = self.subject.step.device.clone();
        let Some(room) = self.limits.room(&device, limit).filter(|_| limit >= self.floor()) else {
            return Ok(None);
        };
        self.time()?;
        // The times of all kernels, since those of other candidates are not at hand before these have been made.
        let asked = |planner: &StepPlanner| {
            let (times, own) = (device.costs().digest().0, planner.first.digests().1.0);
            planner.limits.asked.with(("fastest", device.backend().signature(), times, own, room.get()))
        };
        let known = device.answers(|answers| answers.answer(asked(self)));
        if let Some(Answer::Fastest(known)) = known
            && let Some(plan) = self.known_fastest(&known, room)?
        {
            return Ok(Some(plan));
        }
        let Some((index, plan)) = self.search_fastest(room)? else { return Ok(None) };
        let digest = self.with_candidate(index, |candidate, _, _| Ok(candidate.digests().1.to_string()))?;
        // Kernels may have been timed since then.
        let answer = Answer::Fastest(KeptCandidate { index, digest });
        device.answers(|answers| answers.keep(asked(self), &answer));
        Ok(Some(plan))
    }

    /// The plan of the candidate that an earlier process found to be the fastest, if it is the one that it was.
    fn known_fastest(&mut self, known: &KeptCandidate, room: Bytes) -> Result<Option<StepPlan>> {
        let index = known.index;
        if index > self.limits.specs.len() {
            return Ok(None);
        }
        self.with_candidate(index, |candidate, limits, subject| {
            if !known.is(candidate.digests().1) {
                return Ok(None);
            }
            let planned = candidate.plan(room, u64::MAX)?;
            Ok(planned.map(|planned| {
                let ns = limits.as_if_whole(index, planned.ns);
                StepPlan::new(subject, candidate, Planned { ns, ..planned })
            }))
        })
    }

    /// The fastest of all candidates within so many bytes beside the account, and its number.
    ///
    /// What can be fastest by its bound is planned first: the bounds of the others then mostly rule them out.
    fn search_fastest(&mut self, room: Bytes) -> Result<Option<(usize, StepPlan)>> {
        let mut open = self.by_bound(room)?;
        let mut put_off = Vec::new();
        let mut best: Option<(usize, StepPlan)> = None;
        while let Some(next) = open.pop() {
            let (ns, index) = next;
            if best.as_ref().is_some_and(|(before, plan)| (ns, index) >= (plan.ns, *before)) {
                break;
            }
            // A plan that there is must be found, but hardly ever among these.
            if !self.limits.is_worth_a_look(index, room) {
                put_off.push(next);
            } else if !self.consider(index, room, &mut best)? {
                // A larger micro-batch takes more memory: behind one that does not fit nobody need look. The whole batch has no sums
                // to keep and may take less than its parts.
                let hopeless = |&mut (_, other): &mut (u64, usize)| self.limits.is_larger(other, index);
                put_off.extend(open.extract_if(.., hopeless));
            }
        }
        for (_, index) in put_off {
            if best.is_none() {
                self.consider(index, room, &mut best)?;
            }
        }
        let slow = SLOW * self.limits.unlimited_ns as f64;
        if let Some(index) = self.limits.side_by_side(room)
            && best.as_ref().is_none_or(|(_, plan)| plan.ns as f64 > slow)
        {
            self.consider(index, room, &mut best)?;
        }
        Ok(best)
    }

    /// The candidates that may fit into so many bytes beside the account, but for micro-batches side by side, with the least time that each
    /// can take: the least last.
    fn by_bound(&mut self, room: Bytes) -> Result<Vec<(u64, usize)>> {
        let mut open = Vec::new();
        for index in self.limits.may_fit(room) {
            let ns = self.with_candidate(index, |candidate, limits, _| {
                Ok(candidate.bound_ns(room).map(|ns| limits.as_if_whole(index, ns)))
            })?;
            open.extend(ns.map(|ns| (ns, index)));
            // Nothing is faster than the whole batch with room for all of it.
            if ns == Some(self.limits.unlimited_ns) && index == 0 && self.first.unlimited() <= room {
                break;
            }
        }
        open.sort_unstable_by(|a, b| b.cmp(a));
        Ok(open)
    }

    /// What `look` finds in a candidate with times, by its number: as it is kept, or made for that.
    fn with_candidate<T>(
        &mut self,
        index: usize,
        look: impl FnOnce(&mut Candidate, &StepLimits, &Arc<StepToPlan>) -> Result<T>,
    ) -> Result<T> {
        let (limits, subject) = (&self.limits, &self.subject);
        let mut made;
        let candidate = match (index.checked_sub(1), &mut self.others) {
            (None, _) => &mut self.first,
            (Some(i), Some(kept)) => match &mut kept[i] {
                Some(candidate) => candidate,
                none => none.insert(subject.candidate(&limits.specs[i], None)?),
            },
            (Some(i), None) => {
                made = subject.candidate(&limits.specs[i], None)?;
                &mut made
            }
        };
        candidate.time(&subject.step.device, subject.timing_room(limits))?;
        look(candidate, limits, subject)
    }

    /// Plans a candidate, if it can be faster than the best so far or stands before it and is as fast; returns whether it may fit.
    fn consider(&mut self, index: usize, room: Bytes, best: &mut Option<(usize, StepPlan)>) -> Result<bool> {
        // What is as fast as the best must stand before it.
        let wanted = match best {
            None => u64::MAX,
            Some((before, plan)) if index < *before => plan.ns.saturating_add(1),
            Some((_, plan)) => plan.ns,
        };
        self.with_candidate(index, |candidate, limits, subject| {
            if limits.as_if_whole(index, candidate.unlimited_ns()) >= wanted {
                return Ok(true);
            }
            let Some(planned) = candidate.plan(room, wanted)? else {
                return Ok(!candidate.is_known_to_need_more_than(room));
            };
            let ns = limits.as_if_whole(index, planned.ns);
            if ns < wanted {
                *best = Some((index, StepPlan::new(subject, candidate, Planned { ns, ..planned })));
            }
            Ok(true)
        })
    }

    /// Times the kernels of the first candidate, if they have not been.
    fn time(&mut self) -> Result<()> {
        let room = self.subject.timing_room(&self.limits);
        self.first.time(&self.subject.step.device, room)?;
        self.limits.unlimited_ns = self.first.unlimited_ns();
        Ok(())
    }
}
