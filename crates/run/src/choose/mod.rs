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
use limits::StepLimits;

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
            (None, Some(limit)) => Err(self.subject.refuse(limit, &self.limits)?),
            (None, None) => Err(Error::Internal("a step without a limit has no plan".into())),
        }
    }

    /// The fastest of all candidates within a limit.
    fn fastest(&mut self, limit: Bytes) -> Result<Option<StepPlan>> {
        // No floor depends on how long kernels take, so a refusal need not wait until they are timed.
        let device = self.subject.step.device.clone();
        let Some(room) = self.limits.room(&device, limit).filter(|_| limit >= self.floor()) else {
            return Ok(None);
        };
        self.time()?;
        let subject = self.subject.clone();
        let timing = subject.timing_room(&self.limits);
        let unlimited_ns = self.limits.unlimited_ns;
        let planned = |candidate: &Candidate, planned: Planned| {
            // Never a split for speed: a prediction that parts take less time than the whole counts as the whole's.
            let ns = planned.ns.max(unlimited_ns);
            StepPlan::new(&subject, candidate, Planned { ns, ..planned })
        };
        let mut best =
            self.first.plan(room, u64::MAX)?.map(|plans| StepPlan::new(&subject, &self.first, plans));
        for (i, spec) in self.limits.specs.iter().enumerate() {
            let known = best.as_ref().map_or(u64::MAX, |plan| plan.ns);
            if known <= unlimited_ns {
                break;
            }
            let mut made;
            let candidate = match &mut self.others {
                Some(kept) => &mut kept[i],
                None => {
                    made = subject.candidate(spec, None)?;
                    &mut made
                }
            };
            if candidate.bound() > room {
                continue;
            }
            candidate.time(&device, timing)?;
            if candidate.unlimited_ns().max(unlimited_ns) >= known {
                continue;
            }
            if let Some(plans) = candidate.plan(room, known)? {
                let plan = planned(candidate, plans);
                if plan.ns < known {
                    best = Some(plan);
                }
            }
        }
        Ok(best)
    }

    /// Times the kernels of the first candidate, if they have not been.
    fn time(&mut self) -> Result<()> {
        let room = self.subject.timing_room(&self.limits);
        self.first.time(&self.subject.step.device, room)?;
        self.limits.unlimited_ns = self.first.unlimited_ns();
        Ok(())
    }
}
