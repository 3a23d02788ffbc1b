//! The compiled forms of a step: planned when inputs of new types come, and anew when there is more or less memory than was
//! planned.
//!
//! Apart from `step`, since a reader of what a step does need not know when it is planned.

use std::sync::Arc;
use std::time::Instant;

use plimsoll_device::{Bytes, process};
use plimsoll_graph::{Site, Type};

use super::step::{Mode, Step};
use super::variant::Variant;
use crate::Exactness;
use crate::choose::{PlanFigures, Present, StepPlan, StepPlanner, StepToPlan};
use crate::device::{blocks, own};
use crate::error::{Error, Result};
use crate::program::StepProgram;
use crate::trace::{StateSpec, StepArgs, StepOptions, StepResult};

/// How often a step is planned again because planning left more pages behind than were declared.
const MOST_TRIES: usize = 4;

/// What is left of a plan once its programs are made: a plan itself is larger, and must be gone before it is looked at what the
/// process takes.
struct Compiled {
    program: StepProgram,
    figures: PlanFigures,
    /// Which state is on the host.
    hosted: Vec<bool>,
    batch: usize,
    remark: Option<String>,
}

impl Compiled {
    fn new(plan: StepPlan) -> Result<Compiled> {
        let said: Vec<String> = plan.remarks();
        let (program, remark) =
            (StepProgram::new(&plan)?, Some(said.join("; ")).filter(|said| !said.is_empty()));
        let (hosted, batch) = (plan.placement.hosted, plan.subject.step.batch.unwrap_or(1));
        Ok(Compiled { program, figures: plan.figures, hosted, batch, remark })
    }
}

impl Step {
    /// Makes the form for inputs of these types the last of the list, compiling it if it is not there. `present` says that such
    /// inputs exist.
    pub(super) fn prepare(&mut self, mode: Mode, inputs: &[Type], present: bool, site: Site) -> Result<()> {
        if let Some(i) = self.variants.iter().position(|v| v.mode == mode && v.inputs == inputs) {
            // Without moving anything where it is the last already: the steady state.
            self.variants[i..].rotate_left(1);
            return Ok(());
        }
        let mut tries = 0;
        loop {
            // The workspace holds nothing between runs; while a plan is made and kernels are timed, its bytes are free.
            self.workspace.give_back(site)?;
            self.workspace.start_copying(self.options.request.host_limit, site)?;
            // Where the state is kept is for the first plan of the step itself to say, and the others keep to it.
            let is_settled = mode != Mode::Train || self.variants.iter().any(|v| v.mode == Mode::Train);
            let options = self.options.clone();
            let built = match self.build(mode, inputs, &options, present, is_settled, site) {
                Err(refusal @ Error::Infeasible { .. }) if is_settled && self.may_move_state() => {
                    self.build_elsewhere(mode, inputs, &options, present, site).ok_or(refusal)
                }
                built => built,
            };
            let variant = match built {
                Ok(variant) => variant,
                Err(error) => {
                    // What went wrong first is what is told; a workspace that is too small is looked at before a run.
                    self.fit_workspace(site).ok();
                    return Err(error);
                }
            };
            let is_full = self.variants.len() >= self.options.shapes.max(1);
            self.variants.push(variant);
            let fitted = self.fit_workspace(site);
            tries += 1;
            let is_refused = matches!(fitted, Err(Error::OutOfMemory(_))) && self.device.capacity().is_some();
            if is_refused && tries < MOST_TRIES {
                // Somebody else took memory of the device since the plan was made: the next keeps to what is left. So must
                // the forms from before, which share the workspace, when they are wanted again.
                self.variants.clear();
                continue;
            }
            if fitted.is_ok() && is_full {
                self.variants.remove(0);
            }
            return fitted;
        }
    }

    pub(super) fn fit_workspace(&mut self, site: Site) -> Result<()> {
        self.workspace.fit(&self.variants, self.options.request.limit, site)
    }

    /// Whether state may be kept elsewhere than on the device.
    fn may_move_state(&self) -> bool {
        self.options.request.host_limit.is_some_and(|host| host > Bytes::ZERO)
    }

    /// Compiles a form that has no room for the state where another form has it: with more of it on the host, where it stays, if that is enough. But
    /// what is fetched needs room, too; if that is what the form lacks, all places are open, and the two forms take turns.
    fn build_elsewhere(
        &mut self,
        mode: Mode,
        inputs: &[Type],
        options: &StepOptions,
        present: bool,
        site: Site,
    ) -> Option<Variant> {
        let before = self.at_least.replace(self.state.hosted());
        if let Ok(variant) = self.build(mode, inputs, options, present, false, site) {
            self.at_least = Some(self.state.hosted());
            return Some(variant);
        }
        self.at_least = None;
        let variant = self.build(mode, inputs, options, present, false, site).ok();
        if variant.is_none() {
            self.at_least = before;
        }
        variant
    }

    /// Compiles a form of the step. Unless it `is_settled` where the state is kept, that is chosen anew, and forms that were
    /// compiled for another choice are forgotten.
    fn build(
        &mut self,
        mode: Mode,
        inputs: &[Type],
        options: &StepOptions,
        present: bool,
        is_settled: bool,
        site: Site,
    ) -> Result<Variant> {
        let start = Instant::now();
        let others = !self.variants.is_empty();
        let placement = is_settled.then(|| self.state.hosted());
        let state = self.state.tensors.len();
        let at_least = self.at_least.clone();
        let present =
            Present { state, given_back: Bytes::ZERO, inputs: present, others, placement, at_least };
        let plan = |options: &StepOptions| self.plan(mode, inputs, options, &present, site);
        // Without a limit the process keeps to what was announced when it began, for smaller batches too, where the same bits can
        // be had within it.
        let announced = self.variants.iter().map(|variant| variant.info.planned).max();
        let mut planned = match announced.filter(|_| options.request.limit.is_none()) {
            None => plan(options)?,
            limit => match plan(&options.clone().limit(limit).exactness(Exactness::Bitwise)) {
                // Micro-batches that were asked for are no plan of the same bits.
                Err(Error::Infeasible { .. } | Error::Split { .. }) => plan(options)?,
                planned => planned?,
            },
        };
        // Whatever the limit, a plan must fit into what the device has left; others may have taken some of it.
        if let Some(capacity) = self.device.capacity().filter(|left| planned.figures.planned > *left) {
            planned = plan(&options.clone().limit(Some(capacity))).map_err(|error| match error {
                refusal @ Error::Infeasible { .. } => {
                    Error::Full { device: self.device.name().into(), refusal: Box::new(refusal) }
                }
                other => other,
            })?;
        }
        let Compiled { program, figures, hosted, batch, remark } = planned;
        self.remark.take_up(remark);
        let info = PlanFigures { plan_seconds: start.elapsed().as_secs_f64(), ..figures };
        for part in program.passes.iter().chain(&program.update) {
            self.device.log_graph(part.program.graph())?;
        }
        if self.state.hosted() != hosted {
            // Forms that there are know the state where it was.
            self.variants.clear();
            self.state.settle(&hosted, &self.device, site)?;
        }
        Variant::new(program, mode, inputs, batch, &self.device, &self.state.tensors, info, site)
    }

    /// The programs of a form under these options; again, as long as planning itself leaves more pages behind than were declared.
    fn plan(
        &self,
        mode: Mode,
        inputs: &[Type],
        options: &StepOptions,
        present: &Present,
        site: Site,
    ) -> Result<Compiled> {
        let Some(body) = self.body(mode) else {
            let why = format!("asks a step that has nothing to {} with", format!("{mode:?}").to_lowercase());
            return Err(Error::Signature { site, why });
        };
        let once = || -> Result<Compiled> {
            let (state, present) = (self.state.specs(), present.clone());
            let subject = StepToPlan::new(&self.device, options, state, inputs, body.clone(), present, site)?;
            // Only the step itself changes state, so only it can leave something half changed.
            let guarded = subject.guarded && mode == Mode::Train;
            let mut planner = StepPlanner::for_one_limit(StepToPlan { guarded, ..subject })?;
            let plan = planner.plan(options.request.limit)?;
            drop(planner);
            let compiled = Compiled::new(plan)?;
            process::release_unused_heap();
            process::release_unused_code();
            Ok(compiled)
        };
        let mut compiled = once()?;
        for _ in 0..MOST_TRIES {
            // Without a limit too: what is announced is what the process keeps to.
            if compiled.figures.account.holds(&self.device, present.others) {
                break;
            }
            compiled = once()?;
        }
        Ok(compiled)
    }

    /// What would be planned for another step over this state and more behind it: what [`Step::begin`] compiles. Nothing is changed.
    #[track_caller]
    pub fn planner(
        &self,
        options: &StepOptions,
        more: Vec<StateSpec>,
        inputs: &[Type],
        body: impl Fn(&StepArgs<'_>) -> Result<StepResult> + Send + Sync + 'static,
    ) -> Result<StepPlanner> {
        let (site, others) = (Site::here(), self.variants.iter().any(|v| v.mode == Mode::Train));
        // Forms of other modes go with the workspace.
        let results = self.variants.iter().filter(|_| !others).flat_map(Variant::own_bytes);
        let workspace = [self.workspace.buffer().bytes()].into_iter();
        let present = Present {
            state: self.state.tensors.len(),
            given_back: blocks(&self.device, workspace.chain(results)),
            inputs: false,
            others,
            placement: None,
            at_least: None,
        };
        let state = self.state.specs().into_iter().chain(more).collect();
        let body = Arc::new(body);
        StepPlanner::of(StepToPlan::new(&self.device, options, state, inputs, body, present, site)?)
    }

    /// Plans the step anew for another limit or other terms; the state stays as it is.
    ///
    /// # Errors
    /// There is no plan within the new limit; the step goes on under the old one.
    #[track_caller]
    pub fn replan(&mut self, options: StepOptions) -> Result<()> {
        let site = Site::here();
        let trained = self.variants.iter().rev().find(|v| v.mode == Mode::Train);
        let Some(inputs) = trained.map(|v| v.inputs.clone()) else {
            self.options = options;
            self.variants.clear();
            return self.fit_workspace(site);
        };
        self.workspace.give_back(site)?;
        self.workspace.start_copying(options.request.host_limit, site)?;
        let at_least = self.at_least.take();
        let variant = match self.build(Mode::Train, &inputs, &options, false, false, site) {
            Ok(variant) => variant,
            Err(error) => {
                self.at_least = at_least;
                // As in `prepare`: the refusal is told, and not what follows from it.
                self.fit_workspace(site).ok();
                return Err(error);
            }
        };
        self.options = options;
        self.runs = 0;
        self.variants.clear();
        self.variants.push(variant);
        self.fit_or_plan_anew(false, site)
    }

    /// Takes the workspace; where a device has not so much left any more, the form used last is planned anew within what it
    /// has. `present` says that its inputs exist.
    pub(super) fn fit_or_plan_anew(&mut self, present: bool, site: Site) -> Result<()> {
        match self.fit_workspace(site) {
            Err(Error::OutOfMemory(_)) if self.device.capacity().is_some() => {}
            fitted => return fitted,
        }
        let last = self.variants.last().map(|v| (v.mode, v.inputs.clone()));
        // The others share the workspace, and it is not known which of them would fit into a smaller one.
        self.variants.clear();
        match last {
            Some((mode, inputs)) => self.prepare(mode, &inputs, present, site),
            None => self.fit_workspace(site),
        }
    }

    /// Looks whether the process takes more of a device's own memory beside the step than was declared, as libraries may
    /// when they first need something, and plans anew if so.
    pub(super) fn look_again(&mut self, site: Site) -> Result<()> {
        let (Some(limit), Some(own)) = (self.options.request.limit, own(&self.device)) else { return Ok(()) };
        let declared = self.info().account.for_no_tensor();
        if own <= declared {
            self.workspace.hold_others(&self.variants, Some(limit));
            return Ok(());
        }
        let grown = own.saturating_sub(declared);
        let why = format!(
            "libraries and code on {} took {grown:#} more than was declared ({own:#} in all): planned anew within {limit:#}",
            self.device.name()
        );
        // What was planned before no longer keeps the limit, so there is no going back to it.
        let inputs = self.variants.last().map(|v| v.inputs.clone());
        self.variants.clear();
        self.runs = 0;
        if let Some(inputs) = inputs {
            self.prepare(Mode::Train, &inputs, true, site)?;
        }
        self.notice = Some(why);
        Ok(())
    }

    /// Under a memory limit, gives back what eager ops have left mapped on a device with memory of its own: nobody uses it, and it
    /// counts.
    pub(super) fn give_back_idle(&self) {
        if self.options.request.limit.is_none() || self.device.backend().is_host() {
            return;
        }
        let held = self.device.memory_info();
        if held.reserved > held.current {
            self.device.memory().release_unused();
        }
    }
}
