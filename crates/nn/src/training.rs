//! Turns a model, a loss and an optimizer into one compiled step.

mod computation;
mod due;
mod layout;
mod ranks;
mod recipe;
pub(crate) mod shards;
mod splits;
mod stages;
mod start;
mod whole;
mod whole_source;

pub use recipe::{Clip, Parallel, Recipe};
pub use stages::{Pipeline, StageFigures, Stages};
pub use whole::OfRanks;
pub use whole_source::{OwnState, WholeSource};

use std::sync::Arc;

use plimsoll_device::{Bytes, Ledger};
use plimsoll_graph::TensorOps;
use plimsoll_graph::ops::Rank;
use plimsoll_run::{
    Device, MeasuredStep, Mode, PlanFigures, Result, StateSpec, Step, StepPlanner, Tensor, record,
};
use smallvec::SmallVec;

use crate::error::refuse;
use crate::{Model, Net, Param};
use computation::Computation;
use layout::{Divided, Layout, Share, Start};
use start::{beside, drawn, on_host, others, parameters, specs, zeros};

/// What a step did.
#[derive(Clone, Copy, Debug)]
pub struct Outcome<'a> {
    /// The mean loss of the batch.
    pub loss: f64,
    /// Whether the update was left out because a gradient was not finite (with a loss scale only).
    pub skipped: bool,
    /// What the loss is multiplied by before the gradient is taken, where it is.
    pub loss_scale: Option<f64>,
    /// The norm of all gradients together before they were clipped, where they are clipped by it.
    pub gradient_norm: Option<f64>,
    /// The sums of each metric over the batch.
    pub sums: &'a [Tensor],
}

/// A model in training: forward, loss, backward and update are one program over state that it owns.
///
/// ```
/// use plimsoll_graph::{DType, Type};
/// use plimsoll_nn::{Adam, Recipe, Training, model};
/// use plimsoll_run::Tensor;
/// let (x, y) = (Type::new(DType::F32, [4, 2]), Type::new(DType::I64, [4]));
/// let recipe = Recipe::cross_entropy(Adam::new(0.1), x, y);
/// let mut training = Training::new(model(|net, x| net.dense("out", &x[0], 2, true)), recipe, 42)?;
/// let x = Tensor::from_slice(&[0.0f32, 1.0, 1.0, 0.0, 0.1, 0.9, 0.8, 0.2], [4, 2])?;
/// let y = Tensor::from_slice(&[1i64, 0, 1, 0], [4])?;
/// let first = training.step(&[&x], &y)?;
/// for _ in 0..50 {
///     training.step(&[&x], &y)?;
/// }
/// assert!(training.step(&[&x], &y)? < first / 2.0);
/// # Ok::<(), plimsoll_run::Error>(())
/// ```
pub struct Training {
    step: Step,
    params: Vec<Param>,
    /// What each part of the state behind the parameters starts with; nothing where no step is compiled.
    starts: Vec<Start>,
    handles: Handles,
}

/// What whoever runs a step must know of it: where it takes its learning rates and a rank's share, what it gives, and what ranks have of its state.
struct Handles {
    /// Where the learning rate is in the state.
    rate: usize,
    /// How many learning rates there are, one behind the other.
    rates: usize,
    n_metrics: usize,
    /// Whether the loss has a scale, which steps give.
    scaled: bool,
    /// Whether steps give the norm of their gradients.
    normed: bool,
    /// Where it stands which samples of a batch are this rank's, where ranks share one.
    share: Option<Share>,
    /// Which rank it is.
    rank: Rank,
    /// Which parts of the state ranks have of each other's.
    wholes: Vec<Divided>,
    /// What ranks have of each other's.
    parallel: Parallel,
    /// The model cut into stages, where ranks have one each.
    stages: Option<Arc<Stages>>,
}

impl Handles {
    fn new(recipe: &Recipe, layout: &Layout) -> Handles {
        Handles {
            rate: layout.rate,
            rates: layout.rates,
            n_metrics: recipe.metrics.len(),
            scaled: layout.scale.is_some(),
            normed: recipe.clip.is_some_and(Clip::knows_norm),
            share: layout.share,
            rank: recipe.rank,
            wholes: layout.wholes.clone(),
            parallel: recipe.parallel,
            stages: recipe.stages.clone(),
        }
    }
}

impl Training {
    /// Traces and compiles; parameters start as the model's layers say, from a seed.
    #[track_caller]
    pub fn new(model: impl Model + 'static, recipe: Recipe, seed: u64) -> Result<Training> {
        let (recipe, params) = discovered(&model, recipe)?;
        let values = drawn(&recipe, &params, seed)?;
        Training::compile(model, recipe, params, values, seed)
    }

    /// Traces and compiles with given values of the parameters, in the order [`Net::discover`] lists them.
    #[track_caller]
    pub fn with_values(
        model: impl Model + 'static,
        recipe: Recipe,
        params: Vec<Param>,
        values: Vec<Tensor>,
    ) -> Result<Training> {
        let recipe = arranged(&model, recipe, &params)?;
        let held = params.iter().zip(values).map(|(param, value)| recipe.held(param, value));
        let values = held.collect::<Result<Vec<Tensor>>>()?;
        Training::compile(model, recipe, params, values, 0)
    }

    /// A step of this model, traced once to be planned for any memory limit: for a plan, other limits beside it, and the frontier.
    /// Nothing is computed, no weights are drawn, and no memory is taken for a step.
    ///
    /// ```
    /// use plimsoll_graph::{DType, Type};
    /// use plimsoll_nn::{Adam, Recipe, Training, model};
    /// let (x, y) = (Type::new(DType::F32, [64, 256]), Type::new(DType::I64, [64]));
    /// let recipe = Recipe::cross_entropy(Adam::new(0.1), x, y);
    /// let mut planner = Training::planner(model(|net, x| net.dense("out", &x[0], 10, true)), recipe)?;
    /// let plan = planner.plan(Some(planner.floor()))?;
    /// assert!(plan.figures.planned <= planner.floor());
    /// assert!(planner.frontier(8, None)?.points.len() <= 8);
    /// # Ok::<(), plimsoll_run::Error>(())
    /// ```
    #[track_caller]
    pub fn planner(model: impl Model + 'static, recipe: Recipe) -> Result<StepPlanner> {
        let (options, types) = (recipe.options(), recipe.types());
        let (state, step) = untrained(model, recipe)?;
        StepPlanner::new(&options, &Device::current()?, state, &types, move |pass| step.train(pass))
    }

    /// A step of this model, to be asked for a memory limit that is enough, which is found sooner than the least: see [`MeasuredStep`].
    #[track_caller]
    pub fn measured(model: impl Model + 'static, recipe: Recipe) -> Result<MeasuredStep> {
        let (options, types) = (recipe.options(), recipe.types());
        let (state, step) = untrained(model, recipe)?;
        StepPlanner::measured(&options, &Device::current()?, state, &types, move |pass| step.train(pass))
    }

    /// As [`Training::planner`], for the same model with another recipe: what is there of its state is counted once.
    #[track_caller]
    pub fn planner_of(&self, model: impl Model + 'static, recipe: Recipe) -> Result<StepPlanner> {
        let (recipe, params) = discovered(&model, recipe)?;
        let (layout, held) = Layout::new(&recipe, &params);
        let more = if self.is_idle() { others(held).collect() } else { Vec::new() };
        let (options, types) = (recipe.options(), recipe.types());
        let traced = Computation { model, recipe, params, layout };
        self.step.planner(&options, more, &types, move |pass| traced.train(pass))
    }

    /// What a training in stages comes to; nothing where ranks have none.
    #[track_caller]
    pub fn pipeline(model: &(impl Model + ?Sized), recipe: Recipe) -> Result<Option<Pipeline>> {
        let (recipe, params) = discovered(model, recipe)?;
        recipe.stages.as_ref().map(|stages| Pipeline::new(stages, model, &recipe, &params)).transpose()
    }

    /// A model that is only to be evaluated or used: no step is compiled, and nothing is kept for an optimizer. Parameters
    /// start as the model's layers say, from a seed. [`Training::begin`] makes a training of it.
    #[track_caller]
    pub fn idle(model: impl Model + 'static, recipe: Recipe, seed: u64) -> Result<Training> {
        let (recipe, params) = discovered(&model, recipe)?;
        let values = drawn(&recipe, &params, seed)?;
        Training::unused(model, recipe, params, values)
    }

    /// As [`Training::idle`], but all parameters are zeros until [`Training::restore`] sets them: without the time and the
    /// memory that it takes to draw them.
    #[track_caller]
    pub fn blank(model: impl Model + 'static, recipe: Recipe) -> Result<Training> {
        let (recipe, params) = discovered(&model, recipe)?;
        let values = zeros(&params, &recipe)?;
        Training::unused(model, recipe, params, values)
    }

    #[track_caller]
    fn unused(
        model: impl Model + 'static,
        recipe: Recipe,
        params: Vec<Param>,
        values: Vec<Tensor>,
    ) -> Result<Training> {
        let (layout, _) = Layout::new(&recipe, &params);
        let step = Step::idle(recipe.options(), parameters(&params, values))?;
        Ok(Training::over(step, Arc::new(Computation { model, recipe, params, layout }), Vec::new()))
    }

    #[track_caller]
    fn compile(
        model: impl Model + 'static,
        recipe: Recipe,
        params: Vec<Param>,
        values: Vec<Tensor>,
        seed: u64,
    ) -> Result<Training> {
        let (layout, kept) = Layout::new(&recipe, &params);
        let mut held = parameters(&params, values);
        let taken = on_host(held.iter().map(|part| &part.tensor));
        held.extend(beside(&kept, &recipe, taken, seed)?);
        let (options, types) = (recipe.options(), recipe.types());
        let trained = Arc::new(Computation { model, recipe, params, layout });
        let traced = trained.clone();
        let step = Step::compile_with(options, held, &types, move |pass| traced.train(pass))?;
        let starts = kept.into_iter().map(|(_, _, start)| start).collect();
        Ok(Training::over(step, trained, starts))
    }

    /// A training over a step, with an evaluation and a prediction beside it.
    fn over<M: Model + 'static>(mut step: Step, model: Arc<Computation<M>>, starts: Vec<Start>) -> Training {
        let (params, handles) = (model.params.clone(), Handles::new(&model.recipe, &model.layout));
        let evaluated = model.clone();
        step.set_body(Mode::Evaluate, move |pass| evaluated.evaluate(pass));
        step.set_body(Mode::Predict, move |pass| model.predict(pass));
        Training { step, params, starts, handles }
    }

    /// Whether there is no step to train with: the model is only evaluated or used.
    pub fn is_idle(&self) -> bool {
        self.starts.is_empty()
    }

    /// Makes a training of a model that was only used ([`Training::idle`]): the same model's parameters keep their values, the
    /// optimizer starts anew, and a step is compiled. Nothing happens where there is one already.
    ///
    /// ```
    /// use plimsoll_graph::{DType, Type};
    /// use plimsoll_nn::{Adam, Recipe, Training, model};
    /// use plimsoll_run::Tensor;
    /// let (x, y) = (Type::new(DType::F32, [4, 2]), Type::new(DType::I64, [4]));
    /// let recipe = || Recipe::cross_entropy(Adam::new(0.1), x.clone(), y.clone());
    /// let dense = || model(|net, x| net.dense("out", &x[0], 2, true));
    /// let mut training = Training::idle(dense(), recipe(), 42)?;
    /// let x = Tensor::from_slice(&[0.0f32, 1.0, 1.0, 0.0, 0.1, 0.9, 0.8, 0.2], [4, 2])?;
    /// let before = training.predict(&[&x])?[0].to_vec::<f32>()?;
    /// training.begin(dense(), recipe(), 42)?;
    /// assert_eq!(training.predict(&[&x])?[0].to_vec::<f32>()?, before);
    /// training.step(&[&x], &Tensor::from_slice(&[1i64, 0, 1, 0], [4])?)?;
    /// assert_ne!(training.predict(&[&x])?[0].to_vec::<f32>()?, before);
    /// # Ok::<(), plimsoll_run::Error>(())
    /// ```
    ///
    /// # Errors
    /// The model has other parameters, or there is no plan within the memory limit; then everything is as it was.
    #[track_caller]
    pub fn begin(&mut self, model: impl Model + 'static, recipe: Recipe, seed: u64) -> Result<()> {
        if !self.is_idle() {
            return Ok(());
        }
        let (recipe, params) = discovered(&model, recipe)?;
        let same = |(a, b): (&Param, &Param)| a.name == b.name && a.ty == b.ty;
        let held = |(param, value): (&Param, &Tensor)| recipe.held_type(param) == *value.ty();
        let is_same = params.len() == self.params.len() && params.iter().zip(&self.params).all(same);
        if !is_same || !params.iter().zip(self.values()).all(held) {
            return Err(refuse("begins to train another model than the one that was used"));
        }
        let (layout, kept) = Layout::new(&recipe, &params);
        let handles = Handles::new(&recipe, &layout);
        let (options, types, for_state) = (recipe.options(), recipe.types(), recipe.clone());
        let body = Computation { model, recipe, params, layout };
        let taken = on_host(self.step.state().iter());
        let more = || beside(&kept, &for_state, taken, seed);
        self.step.begin(options, more, &types, move |pass| body.train(pass))?;
        self.handles = handles;
        self.starts = kept.into_iter().map(|(_, _, start)| start).collect();
        Ok(())
    }

    /// Sets everything but the parameters back to where a training starts: the optimizer's state, the number of updates, the
    /// random state. For weights that come from elsewhere.
    pub fn restart(&mut self, seed: u64) -> Result<()> {
        for (i, start) in self.starts.iter().enumerate() {
            let at = self.params.len() + i;
            let bytes = start.bytes(self.step.state()[at].ty(), seed)?;
            self.step.set_state(at, &bytes)?;
        }
        Ok(())
    }

    /// The loss and the metrics' sums on a batch (inputs, then labels), as a user of the model would have them: dropout
    /// drops nothing, norms use their running statistics. Nothing is changed.
    #[track_caller]
    pub fn evaluate(&mut self, batch: &[&Tensor]) -> Result<Outcome<'_>> {
        let n = self.handles.n_metrics;
        let outputs = self.step.run_mode(Mode::Evaluate, batch)?;
        let (means, sums) = outputs.split_at(outputs.len() - n);
        Ok(Outcome { loss: means[0].item()?, skipped: false, loss_scale: None, gradient_norm: None, sums })
    }

    /// What the model makes of inputs, as a user of it would have it.
    #[track_caller]
    pub fn predict(&mut self, inputs: &[&Tensor]) -> Result<&[Tensor]> {
        self.step.run_mode(Mode::Predict, inputs)
    }

    /// One step on a batch; returns its loss.
    #[track_caller]
    pub fn step(&mut self, inputs: &[&Tensor], labels: &Tensor) -> Result<f64> {
        let arguments: SmallVec<[&Tensor; 8]> = inputs.iter().copied().chain([labels]).collect();
        Ok(self.run(&arguments)?.loss)
    }

    /// One step on a batch: inputs, then labels.
    #[track_caller]
    pub fn run(&mut self, batch: &[&Tensor]) -> Result<Outcome<'_>> {
        self.run_while(batch, || ())
    }

    /// As [`Training::run`], and does something else while the device works: gets the next batch, say.
    #[track_caller]
    pub fn run_while(&mut self, batch: &[&Tensor], meanwhile: impl FnMut()) -> Result<Outcome<'_>> {
        let (n, scaled, normed) = (self.handles.n_metrics, self.handles.scaled, self.handles.normed);
        let outputs = self.step.run_while(batch, meanwhile)?;
        let (means, sums) = outputs.split_at(outputs.len() - n);
        let loss = means[0].item()?;
        let (skipped, loss_scale) = match scaled {
            true => (means[1].item()? == 0.0, Some(means[2].item()?)),
            false => (false, None),
        };
        let gradient_norm = means.last().filter(|_| normed).map(Tensor::item).transpose()?;
        Ok(Outcome { loss, skipped, loss_scale, gradient_norm, sums })
    }

    /// Sets the learning rate of the steps that follow.
    ///
    /// # Errors
    /// It is no number, or less than zero.
    #[track_caller]
    pub fn set_rate(&mut self, rate: f64) -> Result<()> {
        if !rate.is_finite() || rate < 0.0 {
            return Err(refuse(format!("sets a learning rate of {rate}; it must be a number of at least 0")));
        }
        self.step.set_state(self.handles.rate, &rate.to_ne_bytes())
    }

    /// Sets the learning rates of the steps that follow, of an optimizer that has several ([`Optimizer::rates`](crate::Optimizer::rates)).
    ///
    /// # Errors
    /// They are fewer or more than it has; one is no number, or less than zero.
    #[track_caller]
    pub fn set_rates(&mut self, rates: &[f64]) -> Result<()> {
        if rates.len() != self.handles.rates {
            let (given, own) = (rates.len(), self.handles.rates);
            return Err(refuse(format!("sets {given} learning rates of an optimizer that has {own}")));
        }
        if let Some(rate) = rates.iter().find(|rate| !rate.is_finite() || **rate < 0.0) {
            return Err(refuse(format!("sets a learning rate of {rate}; it must be a number of at least 0")));
        }
        for (i, rate) in rates.iter().enumerate() {
            self.step.set_state(self.handles.rate + i, &rate.to_ne_bytes())?;
        }
        Ok(())
    }

    /// Says which samples of the whole batch the steps that follow are given, where several ranks share one ([`Recipe::rank`]): those from
    /// `first` on, so many of `whole`. A rank that has none is given any one sample, which counts for nothing.
    ///
    /// # Errors
    /// No ranks share the batch.
    #[track_caller]
    pub fn set_share(&mut self, first: usize, samples: usize, whole: usize) -> Result<()> {
        let Some(share) = self.handles.share else {
            return Err(refuse("is told its share of a batch, which no ranks share"));
        };
        // Where each has all samples, its share of the loss stays as it is.
        if self.handles.parallel == Parallel::Tensor {
            return Ok(());
        }
        let alike = if self.handles.parallel.is_tensor() {
            self.handles.parallel.model_of(self.handles.rank).ranks
        } else {
            1
        };
        let of_batch = samples as f64 / (whole.max(1) * alike) as f64;
        self.step.set_state(share.of_batch, &of_batch.to_ne_bytes())?;
        self.step.set_state(share.first, &(first as i64).to_ne_bytes())
    }

    /// Plans anew for another memory limit; weights and everything else that is trained stay as they are.
    ///
    /// # Errors
    /// There is no plan within it; training can go on under the old limit.
    #[track_caller]
    pub fn set_memory_limit(&mut self, limit: Option<Bytes>) -> Result<()> {
        self.step.replan(self.step.options().clone().limit(limit))
    }

    /// That the step was planned anew by itself since the last call, and why: libraries of a card took more than they had
    /// declared, say.
    pub fn take_notice(&mut self) -> Option<String> {
        self.step.take_notice()
    }

    /// What should be known of the step as it is, once: that f64 tensors enter it though its other floats are narrower, say.
    pub fn take_remark(&mut self) -> Option<String> {
        self.step.take_remark()
    }

    /// The parameters, in the order of [`Training::values`].
    pub fn params(&self) -> &[Param] {
        &self.params
    }

    /// The parameters' values as they stand.
    pub fn values(&self) -> &[Tensor] {
        &self.step.state()[..self.params.len()]
    }

    /// Whether every rank is given a share of the batch ([`Training::set_share`]), and not all of it.
    pub fn shares_batch(&self) -> bool {
        self.handles.share.is_some()
    }

    /// The model cut into stages, where ranks have one each.
    pub fn stages(&self) -> Option<&Stages> {
        self.handles.stages.as_deref()
    }

    /// Which rank it is.
    pub fn rank(&self) -> Rank {
        self.handles.rank
    }

    /// What ranks must say alike before a step: what it exchanges, in order ([`Step::exchanges`]); of stages, how the model is cut.
    pub fn exchanges(&self) -> Vec<String> {
        if let Some(stages) = &self.handles.stages {
            return stages.said();
        }
        let mut said = self.step.exchanges();
        if self.handles.parallel.groups().is_some() {
            // Groups may have one sample more or less, and exchange as much more within.
            let kind = |text: &str| text.split([' ', '(', '[']).next().map_or(0, str::len);
            said.iter_mut().for_each(|text| text.truncate(kind(text)));
        }
        said
    }

    /// The number of trained elements.
    pub fn n_trained(&self) -> usize {
        self.params.iter().filter(|p| p.trained).map(|p| p.ty.elements()).sum()
    }

    /// What was planned for a step.
    pub fn info(&self) -> &PlanFigures {
        self.step.info()
    }

    /// For how many shapes of the batch compiled steps are kept.
    pub fn n_shapes(&self) -> usize {
        self.step.n_shapes()
    }

    /// The record of the step, instruction by instruction; see [`Step::timeline`].
    pub fn timeline(&self) -> Option<record::Step> {
        self.step.timeline()
    }

    /// Measures the next steps, so many of them; see [`Step::profile`].
    ///
    /// # Errors
    /// None are asked for, or the device has no room for its part.
    #[track_caller]
    pub fn profile(&mut self, steps: usize) -> Result<()> {
        self.step.profile(steps)
    }

    /// Whether steps that are to be measured are still to come.
    pub fn is_profiling(&self) -> bool {
        self.step.is_profiling()
    }

    /// What was measured since, with the record of the step that it is of; see [`Step::take_profile`].
    pub fn take_profile(&mut self) -> Option<(record::Step, record::Profile)> {
        self.step.take_profile()
    }

    /// Adds what was waited for data before the last step to what is measured of it.
    pub fn waited_for_data(&mut self, seconds: f64) {
        self.step.waited_for_data(seconds);
    }

    /// The account of the step's memory, planned and measured side by side.
    pub fn ledger(&self) -> Ledger {
        self.step.ledger()
    }

    /// Bytes that activations, gradients and scratch share.
    pub fn arena_bytes(&self) -> Bytes {
        self.step.arena_bytes()
    }

    /// Bytes of parameters, statistics and optimizer state.
    pub fn state_bytes(&self) -> Bytes {
        self.step.state_bytes()
    }
}

/// The parameters of a model, and the recipe with what it says of them.
fn discovered(model: &(impl Model + ?Sized), recipe: Recipe) -> Result<(Recipe, Vec<Param>)> {
    let params = Net::discover_in(recipe.request.precision, &recipe.inputs, model)?;
    Ok((arranged(model, recipe, &params)?, params))
}

/// The recipe with what ranks have of the model: parts of its weights, or stages of it.
fn arranged(model: &(impl Model + ?Sized), recipe: Recipe, params: &[Param]) -> Result<Recipe> {
    recipe.check_precision()?;
    let recipe = recipe.parted(model, params)?;
    if !recipe.is_staged() {
        return Ok(Recipe { stages: None, ..recipe });
    }
    let stages = Some(Arc::new(Stages::new(model, &recipe, params)?));
    Ok(Recipe { stages, ..recipe })
}

/// What a step of a model will keep, and what it computes, before there is any of it.
fn untrained<M: Model>(model: M, recipe: Recipe) -> Result<(Vec<StateSpec>, Computation<M>)> {
    let (recipe, params) = discovered(&model, recipe)?;
    let (layout, held) = Layout::new(&recipe, &params);
    Ok((specs(&recipe, &params, held), Computation { model, recipe, params, layout }))
}
