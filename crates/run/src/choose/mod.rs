//! Turns a step and a memory limit into the fastest verified plan that keeps it: the one place where that is chosen.
//!
//! `plan`, `frontier` and training ask here alike. A step is traced and its candidates are lowered; kernels are timed when the
//! first limit that can be kept asks for it. Asking has no side effect but the cache of kernel times: no weights are
//! drawn and no memory is taken for the step.

mod candidate;
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
pub use fixed::{PROGRAM, host_program};
pub use frontier::{Frontier, FrontierPoint, undominated};
pub use info::PlanFigures;
pub(crate) use placement::is_movable;
pub use step_plan::StepPlan;
pub(crate) use subject::{Present, StepToPlan};

use std::sync::Arc;
use std::time::Instant;

use plimsoll_device::Bytes;
use plimsoll_graph::{Site, Type};

use crate::device::Device;
use crate::error::{Error, Result};
use crate::memory::FixedMemory;
use crate::trace::{StateSpec, StepArgs, StepOptions, StepResult};
use candidate::{Candidate, Planned};
use limits::{Family, StepLimits};

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
    /// The others in the order of their specs, where they are kept for further limits; else each is made when it is looked at.
    others: Option<Vec<Candidate>>,
    start: Instant,
}

impl StepPlanner {
    /// Traces a step over a state and inputs of these types, on a device. The limit of the options is not looked at, but for
    /// how much memory kernels may be timed in.
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
        let mut others = Vec::new();
        let (limits, first) = subject.limits(|candidate| others.push(candidate))?;
        others.reverse();
        Ok(StepPlanner { subject: Arc::new(subject), limits, first, others: Some(others), start })
    }

    /// As [`StepPlanner::new`], to be asked for one limit: candidates are not kept, so that planning takes little memory.
    pub(crate) fn for_one_limit(subject: StepToPlan) -> Result<StepPlanner> {
        let start = Instant::now();
        let (limits, first) = subject.limits(drop)?;
        Ok(StepPlanner { subject: Arc::new(subject), limits, first, others: None, start })
    }

    /// A memory limit that is enough for a step, found without looking at every candidate: with the smallest micro-batches where they are
    /// allowed, else whole. [`StepPlanner::floor`] is no higher.
    #[track_caller]
    pub fn enough(
        options: &StepOptions,
        device: &Device,
        state: Vec<StateSpec>,
        inputs: &[Type],
        body: impl Fn(&StepArgs<'_>) -> Result<StepResult> + Send + Sync + 'static,
    ) -> Result<Bytes> {
        let (site, present) = (Site::here(), Present::default());
        StepToPlan::new(device, options, state, inputs, Arc::new(body), present, site)?.enough()
    }

    /// The least memory limit for which there is a plan, at the exactness that was allowed.
    pub fn floor(&self) -> Bytes {
        self.limits.floor()
    }

    /// What the fastest plan takes.
    pub fn unlimited(&self) -> Bytes {
        self.limits.account.total() + self.limits.unlimited
    }

    /// Plans from now on for a process that takes so much beside the workspace, whatever this one takes: for the step of a run
    /// that was, with what was said of it then ([`PlanFigures::outside`]).
    pub fn set_outside(&mut self, outside: Bytes) {
        let account = &mut self.limits.account;
        let rest = account.tensors + account.inputs + account.reserved;
        account.program = outside.saturating_sub(rest);
        // Less than this process's own tensors and batches is no account of theirs: only the sum counts then.
        if account.total() > outside {
            *account = FixedMemory { program: outside, ..FixedMemory::NOTHING };
        }
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
                let smallest =
                    self.others.as_mut().map(|others| others.last_mut().unwrap_or(&mut self.first));
                Err(self.subject.refuse(limit, &self.limits, smallest)?)
            }
            (None, None) => Err(Error::Internal("a step without a limit has no plan".into())),
        }
    }

    /// The fastest of all candidates within a limit; of several that are equally fast, the one that stands first.
    fn fastest(&mut self, limit: Bytes) -> Result<Option<StepPlan>> {
        // No floor depends on how long kernels take, so a refusal need not wait until they are timed.
        let device = self.subject.step.device.clone();
        let Some(room) = self.limits.room(&device, limit).filter(|_| limit >= self.floor()) else {
            return Ok(None);
        };
        self.time()?;
        let mut best: Option<(usize, StepPlan)> = None;
        let mut left: Vec<usize> = (0..=self.limits.specs.len()).collect();
        for Family { larger, likely } in self.limits.families(room) {
            left.retain(|index| !likely.contains(index));
            for index in likely {
                self.consider(index, room, &mut best)?;
            }
            // A larger micro-batch takes more memory: behind one that does not fit nobody need look.
            for index in larger {
                left.retain(|other| *other != index);
                if !self.consider(index, room, &mut best)? {
                    break;
                }
            }
        }
        // The whole batch has no sums to keep and may take less than its parts; and a plan that there is must be found.
        for index in left {
            let is_whole = index == 0 && self.limits.may_fit_whole(room);
            let may_be_faster = index.checked_sub(1).is_some_and(|i| self.limits.specs[i].is_side_by_side())
                && best
                    .as_ref()
                    .is_some_and(|(_, plan)| plan.ns as f64 > SLOW * self.limits.unlimited_ns as f64);
            if best.is_none() || is_whole || may_be_faster {
                self.consider(index, room, &mut best)?;
            }
        }
        Ok(best.map(|(_, plan)| plan))
    }

    /// Plans a candidate, if it can be faster than the best so far or stands before it and is as fast; returns whether it may fit.
    fn consider(&mut self, index: usize, room: Bytes, best: &mut Option<(usize, StepPlan)>) -> Result<bool> {
        let (subject, unlimited_ns) = (self.subject.clone(), self.limits.unlimited_ns);
        // What is as fast as the best must stand before it.
        let wanted = match best {
            None => u64::MAX,
            Some((before, plan)) if index < *before => plan.ns.saturating_add(1),
            Some((_, plan)) => plan.ns,
        };
        // Never a split for speed: a prediction that parts take less time than the whole counts as the whole's.
        let ns = |planned: u64| if index == 0 { planned } else { planned.max(unlimited_ns) };
        if ns(0) >= wanted {
            return Ok(true);
        }
        let (device, timing) = (subject.step.device.clone(), subject.timing_room(&self.limits));
        let mut made;
        let candidate = match (index.checked_sub(1), &mut self.others) {
            (None, _) => &mut self.first,
            (Some(i), Some(kept)) => &mut kept[i],
            (Some(i), None) => {
                made = subject.candidate(&self.limits.specs[i], None)?;
                &mut made
            }
        };
        if candidate.bound() > room {
            return Ok(false);
        }
        candidate.time(&device, timing)?;
        if ns(candidate.unlimited_ns()) >= wanted {
            return Ok(true);
        }
        let Some(planned) = candidate.plan(room, wanted)? else {
            return Ok(!candidate.is_known_to_need_more_than(room));
        };
        let ns = ns(planned.ns);
        if ns < wanted {
            *best = Some((index, StepPlan::new(&subject, candidate, Planned { ns, ..planned })));
        }
        Ok(true)
    }

    /// Times the kernels of the first candidate, if they have not been.
    fn time(&mut self) -> Result<()> {
        let room = self.subject.timing_room(&self.limits);
        self.first.time(&self.subject.step.device, room)?;
        self.limits.unlimited_ns = self.first.unlimited_ns();
        Ok(())
    }
}
