//! From data to a plan, and from a plan to a training that is ready for it.
//!
//! Apart from `trainer`, which is what a user calls: here stands how the memory limit is divided before it is asked for.

use std::borrow::Borrow;
use std::time::Duration;

use plimsoll_data::Dataset;
use plimsoll_device::Bytes;
use plimsoll_graph::Type;
use plimsoll_nn::{Clip, Net, Recipe, Training};
use plimsoll_run::{Error as RunError, Frontier, MemoryRequest, PlanFigures, StepPlan, StepPlanner};

use super::Trainer;
use super::pipelines::{Pipelines, Share};
use crate::error::{Error, Result};

/// What the parameters of a model that is only used start with.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Values {
    /// What its layers say.
    Drawn,
    /// Zeros, because somebody is about to set them all.
    Blank,
}

impl Trainer {
    /// What a step on such data will take, before it starts; or a refusal that says the least and ways out. It is what
    /// [`Trainer::fit`] will do, to the byte; asking draws no weights and takes no memory for a step.
    ///
    /// ```
    /// use plimsoll_data::{Column, Dataset};
    /// use plimsoll_nn::{Adam, Sequential, softmax_cross_entropy};
    /// use plimsoll_train::Trainer;
    /// let x = Column::memory("x", vec![0.5f32; 6400], [64])?;
    /// let data = Dataset::columns([x, Column::memory("y", vec![0i64; 100], [])?])?.batch(20);
    /// let model = Sequential::new([64]).dense(256).relu().dense(2);
    /// let trainer = Trainer::new(model, softmax_cross_entropy, Adam::new(1e-2)).memory_limit("200MiB")?;
    /// let plan = trainer.plan(&data)?;
    /// assert!(plan.figures.floor <= plan.figures.planned);
    /// # Ok::<(), plimsoll_train::Error>(())
    /// ```
    pub fn plan(&self, data: impl Borrow<Dataset>) -> Result<StepPlan> {
        let (device, data) = (self.on()?, data.borrow());
        let planned = device.scope(|| {
            let limit = self.request.limit;
            let (mut plan, share) = first_that_fits(self.attempts(data)?, |recipe, is_last| {
                let mut planner = self.planner(recipe)?;
                // A refusal with ways out takes time: only of the last attempt is it told.
                let fits = limit.is_none_or(|limit| limit >= planner.floor());
                if fits || is_last { planner.plan(limit).map(Some) } else { Ok(None) }
            })?;
            plan.figures = self.pipelines(share)?.with_least(plan.figures, data)?;
            Ok(plan)
        });
        planned.map_err(|error| self.advised(error, data))
    }

    /// What memory buys in a step on such data: the plans that no other beats in both memory and time, of so many limits, as
    /// many as are found within `time`. Nothing is run and no memory is taken for a step.
    pub fn frontier(
        &self,
        data: impl Borrow<Dataset>,
        limits: usize,
        time: Option<Duration>,
    ) -> Result<Frontier> {
        let (device, data) = (self.on()?, data.borrow());
        device.scope(|| {
            let share = self.look_at_last_batch(data, Share::default(), None)?;
            let mut recipe = self.recipe(data, true)?;
            // With pipelines that take the least, as for the least that a plan names.
            recipe.reserved = self.beside(&recipe)? + self.pipelines(share)?.least(data)?;
            Ok(self.planner(recipe)?.frontier_from(share.last_batch_floor, limits, time)?)
        })
    }

    /// The least memory limit for a step on such data: with pipelines that take the least. Needs no kernel timed.
    ///
    /// ```
    /// use plimsoll_data::{Column, Dataset};
    /// use plimsoll_nn::{Adam, Sequential, softmax_cross_entropy};
    /// use plimsoll_train::Trainer;
    /// let x = Column::memory("x", vec![0.5f32; 6400], [64])?;
    /// let data = Dataset::columns([x, Column::memory("y", vec![0i64; 100], [])?])?.batch(20);
    /// let model = Sequential::new([64]).dense(256).relu().dense(2);
    /// let trainer = Trainer::new(model, softmax_cross_entropy, Adam::new(1e-2));
    /// assert!(trainer.least(&data)? <= trainer.plan(&data)?.figures.planned);
    /// # Ok::<(), plimsoll_train::Error>(())
    /// ```
    pub fn least(&self, data: impl Borrow<Dataset>) -> Result<Bytes> {
        let device = self.on()?;
        device.scope(|| self.least_for(data.borrow()))
    }

    fn least_for(&self, data: &Dataset) -> Result<Bytes> {
        let share = self.look_at_last_batch(data, Share::default(), None)?;
        let mut recipe = self.recipe(data, true)?;
        recipe.reserved = self.beside(&recipe)? + self.pipelines(share)?.least(data)?;
        Ok(self.planner(recipe)?.floor().max(share.last_batch_floor))
    }

    /// As [`Trainer::frontier`], for a run that was: with what it took beside its workspace
    /// ([`PlanFigures::outside`](plimsoll_run::PlanFigures::outside)), whatever this process takes. The plan within the trainer's own
    /// limit comes with it, so that it can be seen whether it is the one that was run.
    pub fn frontier_outside(
        &self,
        data: impl Borrow<Dataset>,
        outside: Bytes,
        limits: usize,
        time: Option<Duration>,
    ) -> Result<(PlanFigures, Frontier)> {
        let device = self.on()?;
        device.scope(|| {
            let mut planner = self.planner(self.recipe(data.borrow(), true)?)?;
            planner.set_outside(outside);
            Ok((planner.plan(self.request.limit)?.figures, planner.frontier(limits, time)?))
        })
    }

    /// Gets ready to train on data like this: the step is planned and compiled, weights are drawn unless they are there, and memory
    /// is taken. [`Trainer::fit`] does it by itself; call it to look at the training before. Returns what was planned.
    pub fn compile(&mut self, data: impl Borrow<Dataset>) -> Result<PlanFigures> {
        let device = self.pinned()?;
        device.scope(|| self.ready(data.borrow()))?;
        let none = || Error::Mismatch("there is no model to plan for".into());
        self.info(data.borrow())?.ok_or_else(none)
    }

    /// What was planned. The least is that with pipelines that take the least.
    pub(crate) fn info(&self, data: &Dataset) -> Result<Option<PlanFigures>> {
        let Some(training) = &self.training else { return Ok(None) };
        self.pipelines(self.share)?.with_least(training.info().clone(), data).map(Some)
    }

    /// The recipe for data like this.
    pub(crate) fn recipe(&self, data: &Dataset, labelled: bool) -> Result<Recipe> {
        let Some(batch) = data.batch_size() else {
            return Err(Error::Mismatch("the data makes no batches; call .batch(n) on it".into()));
        };
        let batch = data.samples()?.map_or(batch, |n| batch.min(n.max(1) as usize));
        let spec = data.spec()?;
        if labelled && (spec.len() < 2 || spec.len() <= self.n_labels) {
            let (n, labels) = (spec.len(), self.n_labels);
            let why =
                format!("a sample has {n} fields, of which {labels} are labels; there must be inputs too");
            return Err(Error::Mismatch(why));
        }
        let ty = |field: &plimsoll_data::FieldSpec| {
            let shape: Vec<usize> = std::iter::once(batch).chain(field.shape.iter().copied()).collect();
            Type::new(field.dtype, &shape[..])
        };
        // What has fewer fields has no labels.
        let n_labels = if spec.len() > self.n_labels { self.n_labels } else { 0 };
        let (inputs, labels) = spec.split_at(spec.len() - n_labels);
        let host_limit = self.pipelines(self.share)?.left_for_copies(data)?;
        Ok(Recipe {
            loss: self.loss.clone(),
            optimizer: self.optimizer.clone(),
            request: MemoryRequest { host_limit, ..self.request.clone() },
            clip: self.clip,
            metrics: self.metrics.clone(),
            inputs: inputs.iter().map(ty).collect(),
            labels: labels.iter().map(ty).collect(),
            reserved: Bytes::ZERO,
            // A device with memory of its own is given the next batch while it computes, unless that is only random numbers.
            ahead: labelled && self.on()?.has_own_memory() && !data.is_random()?,
        })
    }

    /// What the process takes beside the step and its pipelines: what somebody reserved, and room for the largest parameter where
    /// weights are read back while the step's memory is taken.
    pub(super) fn beside(&self, recipe: &Recipe) -> Result<Bytes> {
        let reads_back = self.reads_back || self.best.as_ref().is_some_and(|best| best.is_restored);
        // Weights and averages change places through two copies of a parameter.
        let copies = if self.is_averaged { 2 } else { usize::from(reads_back) };
        if copies == 0 || self.on()?.has_own_memory() {
            return Ok(self.reserved);
        }
        let params = Net::discover_in(recipe.request.precision, &recipe.inputs, &self.model)?;
        let largest = params.iter().map(|param| param.ty.bytes()).max().unwrap_or(0);
        Ok(self.reserved + Bytes::from(copies * largest))
    }

    /// The step of a recipe, to be planned for any limit: with the state that is there already, where there is some.
    pub(super) fn planner(&self, recipe: Recipe) -> plimsoll_run::Result<StepPlanner> {
        match &self.training {
            Some(training) => training.planner_of(self.model.clone(), recipe),
            None => Training::planner(self.model.clone(), recipe),
        }
    }

    pub(crate) fn pipelines(&self, share: Share) -> Result<Pipelines<'_>> {
        let (request, validation) = (&self.request, self.validation.as_ref());
        Ok(Pipelines { request, device: self.on()?, validation, share })
    }

    /// The data with the memory that its pipeline may take.
    pub(crate) fn bounded(&self, data: &Dataset) -> Result<Dataset> {
        self.pipelines(self.share)?.bounded(data)
    }

    /// The recipe with the pipelines that are wished for, and where there is a limit, with the least behind it.
    fn attempts(&self, data: &Dataset) -> Result<Vec<(Recipe, Share)>> {
        self.check_settings()?;
        let is_lean =
            self.share.is_lean && self.training.as_ref().is_some_and(|training| !training.is_idle());
        let wished =
            self.look_at_last_batch(data, Share { is_lean, ..Share::default() }, self.request.limit)?;
        let mut shares = vec![wished];
        if self.request.host_limit.is_none() && !wished.is_lean {
            shares.push(Share { is_lean: true, ..wished });
        }
        let recipe = self.recipe(data, true)?;
        let with = |share: Share| {
            let beside = self.beside(&recipe)? + self.pipelines(share)?.declared(data)?;
            Ok((Recipe { reserved: beside, ..recipe.clone() }, share))
        };
        shares.into_iter().map(with).collect()
    }

    /// Finds the least with which a smaller last batch of a pass can be run: kernels of other sizes need other scratch, so that it
    /// can need more memory than a full one.
    ///
    /// # Errors
    /// The limit is lower: the refusal is that of the last batch.
    pub(super) fn look_at_last_batch(
        &self,
        data: &Dataset,
        mut share: Share,
        limit: Option<Bytes>,
    ) -> Result<Share> {
        let (Some(batch), Some(samples)) = (data.batch_size(), data.samples()?) else { return Ok(share) };
        let rest = (samples % batch as u64) as usize;
        // What has fewer samples than a batch has no full one.
        if rest == 0 || samples < batch as u64 {
            return Ok(share);
        }
        let full = self.recipe(data, true)?;
        let smaller = |types: &[Type]| -> Vec<Type> {
            types.iter().map(|ty| Type::new(ty.dtype, ty.shape.with(0, rest))).collect()
        };
        let bytes =
            |recipe: &Recipe| recipe.inputs.iter().chain(&recipe.labels).map(Type::bytes).sum::<usize>();
        let mut recipe =
            Recipe { inputs: smaller(&full.inputs), labels: smaller(&full.labels), ..full.clone() };
        recipe.request.micro_batch = full.request.micro_batch.map(|samples| samples.min(rest));
        // It lies in the tensors of a full batch.
        let unused = Bytes::from(bytes(&full) - bytes(&recipe));
        let least = self.pipelines(share)?.least(data)?;
        recipe.reserved = self.beside(&full)? + least + unused;
        let mut planner = self.planner(recipe)?;
        share.last_batch_floor = planner.floor();
        if let Some(limit) = limit.filter(|limit| *limit < share.last_batch_floor) {
            planner.plan(Some(limit))?;
        }
        // Pipelines that take all they wish would leave it too little.
        let more = self.pipelines(share)?.declared(data)?.saturating_sub(least);
        share.is_lean |= limit.is_some_and(|limit| limit < share.last_batch_floor + more);
        Ok(share)
    }

    /// Compiles the training for data like this, if that has not been done; a model that was only used until now keeps its
    /// parameters. Returns the data with the memory its pipeline has.
    pub(crate) fn ready(&mut self, data: &Dataset) -> Result<Dataset> {
        self.check_settings()?;
        if self.training.as_ref().is_none_or(Training::is_idle) {
            let attempts = self.attempts(data)?;
            let begin = |recipe: Recipe, _: bool| {
                let n_inputs = recipe.inputs.len();
                self.begin(recipe).map(|()| Some(n_inputs))
            };
            let begun = first_that_fits(attempts, begin);
            (self.n_inputs, self.share) = begun.map_err(|error| self.advised(error, data))?;
        }
        self.bounded(data)
    }

    fn begin(&mut self, recipe: Recipe) -> plimsoll_run::Result<()> {
        match &mut self.training {
            Some(training) => training.begin(self.model.clone(), recipe, self.seed),
            none => {
                *none = Some(Training::new(self.model.clone(), recipe, self.seed)?);
                Ok(())
            }
        }
    }

    /// As [`Trainer::ready`], for a model that is only to be used.
    pub(crate) fn usable(&mut self, data: &Dataset, values: Values) -> Result<Dataset> {
        if self.training.is_none() {
            let mut recipe = self.recipe(data, false)?;
            let params = Net::discover_in(recipe.request.precision, &recipe.inputs, &self.model)?;
            let weights = params.iter().map(|param| param.ty.bytes() as u64).sum();
            self.share.taken = self.reserved + Bytes(weights) + plimsoll_run::PROGRAM;
            recipe.reserved = self.reserved + self.pipelines(self.share)?.declared(data)?;
            self.n_inputs = recipe.inputs.len();
            self.training = Some(match values {
                Values::Drawn => Training::idle(self.model.clone(), recipe, self.seed)?,
                Values::Blank => Training::blank(self.model.clone(), recipe)?,
            });
        }
        self.bounded(data)
    }

    /// Refuses settings with which every step would go wrong.
    fn check_settings(&self) -> Result<()> {
        check_rate(self.optimizer.rate(), None)?;
        let bound = match self.clip {
            Some(Clip::Value(bound) | Clip::Norm(bound) | Clip::PlainNorm(bound)) => bound,
            None => return Ok(()),
        };
        if bound.is_finite() && bound > 0.0 {
            return Ok(());
        }
        Err(Error::Setting { what: "the bound on gradients".into(), value: bound, must: "above 0" })
    }
}

/// Plans with the first attempt that is not refused for want of memory. `plan` is told whether there is another, and may then say
/// nothing instead of a refusal.
fn first_that_fits<T>(
    attempts: Vec<(Recipe, Share)>,
    mut plan: impl FnMut(Recipe, bool) -> plimsoll_run::Result<Option<T>>,
) -> Result<(T, Share)> {
    let n = attempts.len();
    for (i, (recipe, share)) in attempts.into_iter().enumerate() {
        match plan(recipe, i + 1 == n) {
            Ok(None) | Err(RunError::Infeasible { .. }) if i + 1 < n => {}
            Ok(None) => break,
            Ok(Some(planned)) => return Ok((planned, share)),
            Err(error) => return Err(error.into()),
        }
    }
    Err(Error::Mismatch("there is nothing to plan".into()))
}

/// Refuses a learning rate that is none.
pub(crate) fn check_rate(rate: f64, step: Option<u64>) -> Result<()> {
    if rate.is_finite() && rate >= 0.0 {
        return Ok(());
    }
    let what = match step {
        None => "the learning rate".to_string(),
        Some(step) => format!("the learning rate after step {step}"),
    };
    Err(Error::Setting { what, value: rate, must: "of at least 0" })
}
