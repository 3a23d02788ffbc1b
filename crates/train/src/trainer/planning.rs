//! From data to a plan, and from a plan to a training that is ready for it.
//!
//! Apart from `trainer`, which is what a user calls: here stands how the memory limit is divided before it is asked for.

use std::borrow::Borrow;
use std::time::Duration;

use plimsoll_data::{Dataset, FieldSpec};
use plimsoll_device::Bytes;
use plimsoll_graph::Type;
use plimsoll_nn::{Clip, Kept, Net, Parallel, Parts, Pipeline, Recipe, Training};
use plimsoll_run::{Error as RunError, Frontier, PlanFigures, Precision, StepPlan, StepPlanner};

use super::Trainer;
use super::host::batch_types;
use super::pipelines::{Pipelines, Share};
use super::ways_out::Way;
use crate::error::{Error, Result};

/// What the parameters of a model that is only used start with.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Values {
    /// What its layers say.
    Drawn,
    /// Zeros, because somebody is about to set them all.
    Blank,
}

/// What a recipe says of the host's memory beside a device of its own.
#[derive(PartialEq)]
struct HostRequest {
    limit: Option<Bytes>,
    beside: Bytes,
}

impl HostRequest {
    fn of(recipe: &Recipe) -> HostRequest {
        HostRequest { limit: recipe.request.host_limit, beside: recipe.host_beside }
    }
}

/// A shape of batches: how many samples, and how long sequences are, where their lengths vary.
#[derive(Clone, Copy)]
struct BatchShape {
    samples: usize,
    length: Option<usize>,
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
        self.plan_or_ways(data, Vec::new())
    }

    /// As [`Trainer::plan`], with further ways out of a refusal: those that lower the least are told with it. They are looked at only where
    /// there is a refusal.
    pub fn plan_or_ways(&self, data: impl Borrow<Dataset>, ways: Vec<Way<'_>>) -> Result<StepPlan> {
        let (device, data) = (self.on()?, data.borrow());
        let planned = device.scope(|| {
            let limit = self.request.limit;
            let mut last: Option<(HostRequest, StepPlanner)> = None;
            let (mut plan, share) = first_that_fits(self.attempts(data)?, |recipe, is_last| {
                let (host, reserved) = (HostRequest::of(&recipe), recipe.reserved);
                // Where attempts differ in their pipelines alone, the step is traced and searched once.
                let planner =
                    match last.take().filter(|(before, _)| *before == host && self.training.is_none()) {
                        Some((_, mut planner)) => {
                            planner.set_reserved(reserved);
                            planner
                        }
                        None => self.planner(recipe)?,
                    };
                let planner = &mut last.insert((host, planner)).1;
                // A refusal with ways out takes time: only of the last attempt is it told.
                let fits = limit.is_none_or(|limit| limit >= planner.floor());
                if fits || is_last { planner.plan(limit).map(Some) } else { Ok(None) }
            })?;
            plan.figures = self.with_figures(plan.figures, data, share)?;
            Ok(plan)
        });
        planned.map_err(|error| self.advised(error, data, ways))
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
            let share = self.look_at_other_shapes(data, Share::default(), None)?;
            let mut recipe = self.recipe(data, true, share)?;
            // With pipelines that take the least, as for the least that a plan names.
            recipe.reserved = self.beside(&recipe)? + self.pipelines(share)?.least(data)?;
            Ok(self.planner(recipe)?.frontier_from(share.others_floor, limits, time)?)
        })
    }

    /// What training on such data comes to where every rank has a stage of the model ([`Parallel::Pipeline`]); nothing where none has.
    pub fn pipeline(&self, data: impl Borrow<Dataset>) -> Result<Option<Pipeline>> {
        let device = self.on()?;
        device.scope(|| {
            let recipe = self.recipe(data.borrow(), true, Share::default())?;
            Ok(Training::pipeline(&self.model, recipe)?)
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
        let share = self.look_at_other_shapes(data, Share::default(), None)?;
        let mut recipe = self.recipe(data, true, share)?;
        recipe.reserved = self.beside(&recipe)? + self.pipelines(share)?.least(data)?;
        Ok(self.planner(recipe)?.floor().max(share.others_floor))
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
            let mut planner = self.planner(self.recipe(data.borrow(), true, self.share)?)?;
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
        let figures = self.info(data.borrow())?.ok_or_else(none)?;
        self.host = figures.host;
        Ok(figures)
    }

    /// What was planned. The least is that with pipelines that take the least.
    pub(crate) fn info(&self, data: &Dataset) -> Result<Option<PlanFigures>> {
        let Some(training) = &self.training else { return Ok(None) };
        self.with_figures(training.info().clone(), data, self.share).map(Some)
    }

    /// A plan with what only a trainer knows of it: the least with pipelines that take the least, and the account of the host.
    fn with_figures(&self, figures: PlanFigures, data: &Dataset, share: Share) -> Result<PlanFigures> {
        let figures = self.pipelines(share)?.with_least(figures, data)?;
        self.with_host_figures(figures, data, share)
    }

    /// The recipe for data like this, with pipelines that have this share.
    pub(crate) fn recipe(&self, data: &Dataset, labelled: bool, share: Share) -> Result<Recipe> {
        let types = batch_types(data, self.batch_of(data)?)?;
        if labelled && (types.len() < 2 || types.len() <= self.n_labels) {
            let (n, labels) = (types.len(), self.n_labels);
            let why =
                format!("a sample has {n} fields, of which {labels} are labels; there must be inputs too");
            return Err(Error::Mismatch(why));
        }
        let kept = self.optimizer.kept();
        if kept != Kept::F32 && self.request.precision == Precision::F64 {
            let why =
                "is for parameters in f32, and all of this model's are in f64; leave one of the two out";
            return Err(Error::Mismatch(format!("{} {why}", kept.state())));
        }
        self.check_parallel()?;
        // What has fewer fields has no labels.
        let n_labels = if types.len() > self.n_labels { self.n_labels } else { 0 };
        let (inputs, labels) = types.split_at(types.len() - n_labels);
        let recipe = Recipe {
            loss: self.loss.clone(),
            optimizer: self.optimizer.clone(),
            request: self.request.clone(),
            clip: self.clip,
            accumulate: 1,
            scales_loss: false,
            metrics: self.metrics.clone(),
            inputs: inputs.to_vec(),
            labels: labels.to_vec(),
            reserved: Bytes::ZERO,
            host_beside: Bytes::ZERO,
            // A device with memory of its own is given the next batch while it computes, unless that is only random numbers.
            ahead: labelled && self.on()?.has_own_memory() && !data.is_random()?,
            lengths: data.padded_lengths()?.len(),
            rank: self.on()?.rank(),
            parallel: self.parallel,
            sync_batch_norm: self.sync_batch_norm,
            parts: Parts::default(),
            stages: None,
        };
        self.with_host(recipe, data, share)
    }

    /// Samples that a step is given of the batches of such data: this rank's, where several share a batch; fewer than its batch size where it
    /// has not so many.
    pub(super) fn batch_of(&self, data: &Dataset) -> Result<usize> {
        let Some(batch) = data.batch_size() else {
            return Err(Error::Mismatch("the data makes no batches; call .batch(n) on it".into()));
        };
        let whole = batch;
        let batch = data.samples()?.map_or(whole, |n| whole.min(n.max(1) as usize));
        let ranks = self.samples_of()?.ranks;
        if batch < ranks {
            let (what, way) = match batch < whole {
                true => (format!("the data has {batch} samples"), "take more data"),
                false => (format!("a batch has {batch} samples"), "make the batch larger (--batch)"),
            };
            return Err(Error::Mismatch(format!(
                "{what} for {ranks} ranks, and some would never have one; {way}, or take fewer ranks"
            )));
        }
        self.rows(batch)
    }

    /// Samples that a step is given of a batch of so many: at least one, which counts for nothing where none is this rank's own.
    fn rows(&self, batch: usize) -> Result<usize> {
        Ok(self.samples_of()?.shard(batch).len().max(1))
    }

    /// What the process takes beside the step and its pipelines: what somebody reserved, and room for the largest parameter where
    /// weights are read back while the step's memory is taken.
    pub(super) fn beside(&self, recipe: &Recipe) -> Result<Bytes> {
        let reads_back = self.reads_back || self.best.as_ref().is_some_and(|best| best.is_restored);
        // Weights and averages change places through two copies of a parameter.
        let copies = if self.is_averaged { 2 } else { usize::from(reads_back) };
        // A mask is set from a copy of a weight, the sizes of its elements and the mask itself.
        let copies = if self.pruning.is_some() { 3 } else { copies };
        if copies == 0 {
            return Ok(self.reserved);
        }
        let params = Net::discover_in(recipe.request.precision, &recipe.inputs, &self.model)?;
        if let Some(pruning) = &self.pruning {
            pruning.check(&params)?;
        }
        if self.on()?.has_own_memory() {
            return Ok(self.reserved);
        }
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
        Ok(Pipelines { request, device: self.on()?, rank: self.samples_of()?, validation, share })
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
            self.look_at_other_shapes(data, Share { is_lean, ..Share::default() }, self.request.limit)?;
        // What does not go with the model is told before what does not fit.
        self.recipe(data, true, wished)?;
        let wished = self.within_host(data, wished)?;
        let mut shares = vec![wished];
        if (self.request.host_limit.is_none() || self.on()?.has_own_memory()) && !wished.is_lean {
            shares.push(Share { is_lean: true, ..wished });
        }
        let with = |share: Share| {
            let recipe = self.recipe(data, true, share)?;
            let beside = self.beside(&recipe)? + self.pipelines(share)?.declared(data)?;
            Ok((Recipe { reserved: beside, ..recipe }, share))
        };
        shares.into_iter().map(with).collect()
    }

    /// Finds the least with which all other shapes of batches can be run: kernels of other sizes need other scratch, so that a smaller
    /// batch can need more memory than a full one.
    ///
    /// # Errors
    /// The limit is lower: the refusal is that of the shape that needs most.
    pub(super) fn look_at_other_shapes(
        &self,
        data: &Dataset,
        mut share: Share,
        limit: Option<Bytes>,
    ) -> Result<Share> {
        let shapes = self.other_shapes(data)?;
        if shapes.is_empty() {
            return Ok(share);
        }
        let full = self.recipe(data, true, share)?;
        let least = self.pipelines(share)?.least(data)?;
        let planner =
            |shape| -> Result<StepPlanner> { Ok(self.planner(self.for_shape(data, &full, shape, least)?)?) };
        let mut fullest = shapes[0];
        for shape in shapes {
            // One at a time: what planning takes is declared.
            let floor = planner(shape)?.floor();
            if floor > share.others_floor {
                (share.others_floor, fullest) = (floor, shape);
            }
        }
        if let Some(limit) = limit.filter(|limit| *limit < share.others_floor) {
            let reserved = self.beside(&full)? + least;
            let of_full = self.planner(Recipe { reserved, ..full.clone() })?.floor();
            // A full batch that needs as much refuses by itself.
            if of_full < share.others_floor {
                planner(fullest)?.plan(Some(limit))?;
            }
        }
        // Pipelines that take all they wish would leave them too little.
        let more = self.pipelines(share)?.declared(data)?.saturating_sub(least);
        share.is_lean |= limit.is_some_and(|limit| limit < share.others_floor + more);
        Ok(share)
    }

    /// The shapes of batches beside the largest: that of the last batch of a pass, where it has fewer samples, and those of lengths that
    /// sequences are padded to.
    fn other_shapes(&self, data: &Dataset) -> Result<Vec<BatchShape>> {
        let Some(batch) = data.batch_size() else { return Ok(Vec::new()) };
        let mut shapes = Vec::new();
        // What has fewer samples than a batch has no full one.
        if let Some(samples) = data.samples()?.filter(|samples| *samples > batch as u64) {
            let rest = (samples % batch as u64) as usize;
            if rest > 0 {
                shapes.push(BatchShape { samples: self.rows(rest)?, length: None });
            }
        }
        let mut lengths = data.padded_lengths()?;
        lengths.pop();
        let samples = self.rows(batch)?;
        shapes.extend(lengths.into_iter().map(|length| BatchShape { samples, length: Some(length) }));
        Ok(shapes)
    }

    /// The recipe for batches of another shape, beside pipelines that take so much.
    fn for_shape(
        &self,
        data: &Dataset,
        full: &Recipe,
        shape: BatchShape,
        pipelines: Bytes,
    ) -> Result<Recipe> {
        let (spec, n) = (data.spec()?, full.inputs.len());
        let smaller = |types: &[Type], spec: &[FieldSpec]| -> Vec<Type> {
            let one = |(ty, field): (&Type, &FieldSpec)| {
                let rows = ty.shape.with(0, shape.samples.min(ty.shape[0]));
                let shape = match shape.length {
                    Some(length) if field.varying => rows.with(1, length.min(rows[1])),
                    _ => rows,
                };
                Type::new(ty.dtype, shape)
            };
            types.iter().zip(spec).map(one).collect()
        };
        let bytes =
            |recipe: &Recipe| recipe.inputs.iter().chain(&recipe.labels).map(Type::bytes).sum::<usize>();
        let (inputs, labels) = (smaller(&full.inputs, &spec[..n]), smaller(&full.labels, &spec[n..]));
        let mut recipe = Recipe { inputs, labels, ..full.clone() };
        recipe.request.micro_batch = full.request.micro_batch.map(|samples| samples.min(shape.samples));
        // It lies in the tensors of a full batch.
        let unused = Bytes::from(bytes(full) - bytes(&recipe));
        recipe.reserved = self.beside(full)? + pipelines + unused;
        Ok(recipe)
    }

    /// What a step will take for each length that sequences are padded to ([`Dataset::bucket_by_length`]), shortest first: all within
    /// one memory limit. Empty where batches have one length.
    ///
    /// ```
    /// use plimsoll_data::{Dataset, FieldSpec};
    /// use plimsoll_graph::DType;
    /// use plimsoll_nn::{Adam, Recurrent, Sequential, softmax_cross_entropy};
    /// use plimsoll_train::Trainer;
    /// let spec = [FieldSpec::varying("words", DType::I64, [32]), FieldSpec::new("class", DType::I64, [])];
    /// let texts = Dataset::from_fn(spec, 64, |i, out| {
    ///     out.set(0, &vec![1 + (i % 5) as i64; 1 + i as usize % 32])?;
    ///     out.set(1, &[(i % 2) as i64])
    /// });
    /// let data = texts.bucket_by_length(0, &[8, 16], 8)?;
    /// let model = Sequential::tokens_up_to(32).padding(0).embedding(6, 8).gru(Recurrent::last(8)).dense(2);
    /// let trainer = Trainer::new(model, softmax_cross_entropy, Adam::new(1e-2)).memory_limit("200MiB")?;
    /// let plans = trainer.bucket_plans(&data)?;
    /// assert_eq!(plans.iter().map(|(length, _)| *length).collect::<Vec<_>>(), [8, 16, 32]);
    /// # Ok::<(), plimsoll_train::Error>(())
    /// ```
    pub fn bucket_plans(&self, data: impl Borrow<Dataset>) -> Result<Vec<(usize, StepPlan)>> {
        let (device, data) = (self.on()?, data.borrow());
        device.scope(|| {
            let limit = self.request.limit;
            let (_, share) = first_that_fits(self.attempts(data)?, |recipe, _| {
                self.planner(recipe)?.plan(limit).map(Some)
            })?;
            let (full, pipelines) = (self.recipe(data, true, share)?, self.pipelines(share)?.declared(data)?);
            let samples = self.rows(data.batch_size().unwrap_or(1))?;
            let plan = |length: usize| {
                let shape = BatchShape { samples, length: Some(length) };
                let recipe = self.for_shape(data, &full, shape, pipelines)?;
                Ok((length, self.planner(recipe)?.plan(limit)?))
            };
            data.padded_lengths()?.into_iter().map(plan).collect()
        })
    }

    /// Compiles the training for data like this, if that has not been done; a model that was only used until now keeps its
    /// parameters. Returns the data with the memory its pipeline has.
    pub(crate) fn ready(&mut self, data: &Dataset) -> Result<Dataset> {
        self.check_settings()?;
        if self.training.as_ref().is_none_or(Training::is_idle) {
            let (attempts, is_new) = (self.attempts(data), self.training.is_none());
            let begin = |recipe: Recipe, _: bool| {
                let n_inputs = recipe.inputs.len();
                self.begin(recipe).map(|()| Some(n_inputs))
            };
            let begun = attempts.and_then(|attempts| first_that_fits(attempts, begin));
            let begun = self.together(begun);
            // What fits here and not elsewhere was drawn for nothing.
            if is_new && begun.is_err() {
                self.training = None;
            }
            (self.n_inputs, self.share) = begun.map_err(|error| self.advised(error, data, Vec::new()))?;
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
            let mut recipe = self.recipe(data, false, self.share)?;
            self.share = self.within_host(data, self.share)?;
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

    /// Refuses what needs all of a model on every rank where no rank has all of it.
    fn check_parallel(&self) -> Result<()> {
        let is_whole = matches!(self.parallel, Parallel::Data | Parallel::Shard);
        if is_whole || self.on()?.rank().ranks == 1 {
            return Ok(());
        }
        if self.best.as_ref().is_some_and(|best| best.is_restored) {
            let why = "the weights of the best epoch cannot be put back where no rank has all parameters (--restore-best); the checkpoint of that epoch \
                       is kept without it (--best), or take --parallel shard";
            return Err(Error::Mismatch(why.into()));
        }
        self.parallel.check(self.on()?.rank().ranks).map_err(Error::Mismatch)?;
        if self.parallel.is_pipeline() && (self.is_averaged || self.pruning.is_some()) {
            let why = "averages of weights (--ema) and pruning (--prune) look at all of a model, of which every rank has a stage; take --parallel data";
            return Err(Error::Mismatch(why.into()));
        }
        if self.parallel.groups().is_some() && self.sync_batch_norm {
            let why = "statistics over all samples are built for ranks that each have all of a model, and these have parts or stages of it in groups; leave \
                       --sync-batch-norm out, or take --parallel data";
            return Err(Error::Mismatch(why.into()));
        }
        if self.parallel == Parallel::Pipeline && self.sync_batch_norm {
            let why = "statistics are of the whole batch where ranks have stages, whose batch is not shared; leave --sync-batch-norm out";
            return Err(Error::Mismatch(why.into()));
        }
        Ok(())
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
