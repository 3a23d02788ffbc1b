//! Turns a model, a loss and an optimizer into one compiled step.

use std::sync::Arc;
use std::time::Duration;

use plimsoll_device::{Bytes, Ledger};
use plimsoll_graph::{DType, TensorOps, Type};
use plimsoll_run::{
    Device, Exactness, Frontier, Held, Kind, Pass, Result, Step, StepInfo, StepOptions, StepResult, Survey,
    Tape, Tensor, Timeline,
};
use smallvec::SmallVec;

use crate::error::refuse;
use crate::optim::clip_by_plain_norm;
use crate::scale::LossScale;
use crate::{
    Loss, Measure, Model, Net, Optimizer, Param, Precision, UpdateAt, clip_by_global_norm, clip_by_value,
    softmax_cross_entropy,
};

/// A bound on gradients.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Clip {
    /// Every element is held between -x and x.
    Value(f64),
    /// All gradients together are scaled down to this norm where it is larger, as PyTorch does it: 1e-6 is added to the norm.
    Norm(f64),
    /// As `Norm`, as Keras does it: nothing is added.
    PlainNorm(f64),
}

/// How a model is trained.
#[derive(Clone)]
pub struct Recipe {
    /// What is made smaller.
    pub loss: Arc<dyn Loss>,
    /// How.
    pub optimizer: Arc<dyn Optimizer>,
    /// In which element type.
    pub precision: Precision,
    /// A bound on gradients.
    pub clip: Option<Clip>,
    /// What is counted beside the loss.
    pub metrics: Vec<Measure>,
    /// The types of the model's inputs.
    pub inputs: Vec<Type>,
    /// The types of the labels.
    pub labels: Vec<Type>,
    /// The line: the most that the process may take, as the system counts it.
    pub memory: Option<Bytes>,
    /// How much of the host's memory activations may be copied to and fetched back from, where the device's memory is its
    /// own: see [`StepOptions::host_memory`].
    pub host_memory: Option<Bytes>,
    /// How far a plan may depart from the bits of an unlimited run: whether the batch may be split.
    pub exactness: Exactness,
    /// Samples in a micro-batch, where that is not for the planner to choose.
    pub micro_batch: Option<usize>,
    /// What the process will take beside the step: an input pipeline, say.
    pub beside: Bytes,
    /// Whether the next batch is on its way to the device while a step runs, so that two of them are there.
    pub ahead: bool,
}

impl Recipe {
    /// A loss and an optimizer over one input, in f32, no line.
    pub fn new(
        loss: impl Loss + 'static,
        optimizer: impl Optimizer + 'static,
        input: Type,
        labels: Type,
    ) -> Recipe {
        Recipe {
            loss: Arc::new(loss),
            optimizer: Arc::new(optimizer),
            precision: Precision::F32,
            clip: None,
            metrics: Vec::new(),
            inputs: vec![input],
            labels: vec![labels],
            memory: None,
            host_memory: None,
            exactness: Exactness::Reassociated,
            micro_batch: None,
            beside: Bytes::ZERO,
            ahead: false,
        }
    }

    /// An optimizer on the mean cross-entropy, one input, f32, no line.
    pub fn cross_entropy(optimizer: impl Optimizer + 'static, input: Type, labels: Type) -> Recipe {
        Recipe::new(softmax_cross_entropy, optimizer, input, labels)
    }

    fn options(&self) -> StepOptions {
        StepOptions {
            memory: self.memory,
            host_memory: self.host_memory,
            exactness: self.exactness,
            batched: true,
            micro_batch: self.micro_batch,
            beside: self.beside,
            ahead: self.ahead,
            guarded: !self.precision.needs_loss_scale(),
            // Training, evaluation and prediction, each with a last batch that has fewer samples.
            shapes: 6,
        }
    }
}

/// What a step did.
#[derive(Clone, Copy, Debug)]
pub struct Outcome<'a> {
    /// The mean loss of the batch.
    pub loss: f64,
    /// Whether the update was left out because a gradient was not finite (with a loss scale only).
    pub skipped: bool,
    /// What the loss is multiplied by before the gradient is taken, where it is.
    pub loss_scale: Option<f64>,
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
    /// Where the learning rate is in the state.
    rate: usize,
    n_metrics: usize,
    scaled: bool,
    evaluation: usize,
    prediction: usize,
}

impl Training {
    /// Traces and compiles; parameters start as the model's layers say, from a seed.
    #[track_caller]
    pub fn new(model: impl Model + 'static, recipe: Recipe, seed: u64) -> Result<Training> {
        let params = Net::discover_in(recipe.precision, &recipe.inputs, &model)?;
        let values =
            params.iter().map(|p| p.init.draw(&p.name, &p.ty, seed)).collect::<Result<Vec<Tensor>>>()?;
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
        Training::compile(model, recipe, params, values, 0)
    }

    /// What would be planned for a step of this model: nothing is computed and no memory is taken for it. Returns the plan and
    /// the bytes of its arena.
    #[track_caller]
    pub fn plan(model: impl Model + 'static, recipe: Recipe) -> Result<(StepInfo, Bytes)> {
        let memory = recipe.memory;
        let info = Training::survey(model, recipe)?.plan(memory)?;
        let arena = info.arena;
        Ok((info, arena))
    }

    /// What memory buys in a step of this model: the plans that no other beats in both memory and time, of `lines` lines from
    /// the least to that of the fastest plan, as many as are found within `limit`.
    #[track_caller]
    pub fn frontier(
        model: impl Model + 'static,
        recipe: Recipe,
        lines: usize,
        limit: Option<Duration>,
    ) -> Result<Frontier> {
        Training::survey(model, recipe)?.frontier(lines, limit)
    }

    /// A step of this model, traced once to be planned for any line: for a plan, other lines beside it, and the frontier.
    ///
    /// ```
    /// use plimsoll_graph::{DType, Type};
    /// use plimsoll_nn::{Adam, Recipe, Training, model};
    /// let (x, y) = (Type::new(DType::F32, [64, 256]), Type::new(DType::I64, [64]));
    /// let recipe = Recipe::cross_entropy(Adam::new(0.1), x, y);
    /// let mut survey = Training::survey(model(|net, x| net.dense("out", &x[0], 10, true)), recipe)?;
    /// let plan = survey.plan(Some(survey.floor()))?;
    /// assert!(plan.planned <= survey.floor());
    /// assert!(survey.frontier(8, None)?.points.len() <= 8);
    /// # Ok::<(), plimsoll_run::Error>(())
    /// ```
    #[track_caller]
    pub fn survey(model: impl Model + 'static, recipe: Recipe) -> Result<Survey<'static>> {
        let params = Net::discover_in(recipe.precision, &recipe.inputs, &model)?;
        let (layout, held) = Layout::new(&recipe, &params);
        let types: Vec<Type> = recipe.inputs.iter().chain(&recipe.labels).cloned().collect();
        let held: Vec<(String, Kind, Type)> = params
            .iter()
            .map(|p| (p.name.clone(), Kind::Parameter, p.ty.clone()))
            .chain(held.into_iter().map(|(name, ty, _)| (name, Kind::Optimizer, ty)))
            .collect();
        let options = recipe.options();
        let body = Body { model, recipe, params, layout };
        Survey::new(&options, &Device::current()?, &held, &types, move |pass| body.train(pass))
    }

    /// A model that is only to be evaluated or used: no step is compiled. Values come from [`Training::restore`].
    #[track_caller]
    pub fn idle(model: impl Model + 'static, recipe: Recipe, seed: u64) -> Result<Training> {
        let params = Net::discover_in(recipe.precision, &recipe.inputs, &model)?;
        let values = params.iter().map(|p| Tensor::zeros(p.ty.clone())).collect::<Result<Vec<Tensor>>>()?;
        Training::build(model, recipe, params, values, seed, false)
    }

    #[track_caller]
    fn compile(
        model: impl Model + 'static,
        recipe: Recipe,
        params: Vec<Param>,
        values: Vec<Tensor>,
        seed: u64,
    ) -> Result<Training> {
        Training::build(model, recipe, params, values, seed, true)
    }

    #[track_caller]
    fn build(
        model: impl Model + 'static,
        recipe: Recipe,
        params: Vec<Param>,
        values: Vec<Tensor>,
        seed: u64,
        is_trained: bool,
    ) -> Result<Training> {
        let (layout, optimizer) = Layout::new(&recipe, &params);
        let parameter =
            |(p, tensor): (&Param, Tensor)| Held { name: p.name.clone(), kind: Kind::Parameter, tensor };
        let mut held: Vec<Held> = params.iter().zip(values).map(parameter).collect();
        let mut host = recipe.host_memory.unwrap_or(Bytes::ZERO);
        // Without training there is no need for the optimizer's state.
        for (name, ty, start) in optimizer.into_iter().filter(|_| is_trained) {
            let tensor = match start {
                Start::Value(value) => Tensor::full(ty, value)?,
                Start::Seed => Tensor::from_slice(&[seed as i64, 0], [2])?,
            };
            held.push(Held { name, kind: Kind::Optimizer, tensor }.hosted(&mut host)?);
        }
        let types: Vec<Type> = recipe.inputs.iter().chain(&recipe.labels).cloned().collect();
        let (rate, n_metrics) = (layout.rate, recipe.metrics.len());
        let scaled = layout.scale.is_some();
        let options = recipe.options();
        let body = Arc::new(Body { model, recipe, params: params.clone(), layout });
        let trained = body.clone();
        let mut step = match is_trained {
            true => Step::compile_with(options, held, &types, move |pass| trained.train(pass))?,
            false => Step::idle(options, held, |_| Err(refuse("trains a model that is only to be used")))?,
        };
        let evaluated = body.clone();
        let evaluation = step.add_body(move |pass| evaluated.evaluate(pass));
        let prediction = step.add_body(move |pass| body.predict(pass));
        Ok(Training { step, params, rate, n_metrics, scaled, evaluation, prediction })
    }

    /// The loss and the metrics' sums on a batch (inputs, then labels), as a user of the model would have them: dropout
    /// drops nothing, norms use their running statistics. Nothing is changed.
    #[track_caller]
    pub fn evaluate(&mut self, batch: &[&Tensor]) -> Result<Outcome<'_>> {
        let n = self.n_metrics;
        let outputs = self.step.run_body(self.evaluation, batch)?;
        let (means, sums) = outputs.split_at(outputs.len() - n);
        Ok(Outcome { loss: means[0].item()?, skipped: false, loss_scale: None, sums })
    }

    /// What the model makes of inputs, as a user of it would have it.
    #[track_caller]
    pub fn predict(&mut self, inputs: &[&Tensor]) -> Result<&[Tensor]> {
        self.step.run_body(self.prediction, inputs)
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
        let (n, scaled) = (self.n_metrics, self.scaled);
        let outputs = self.step.run_while(batch, meanwhile)?;
        let (means, sums) = outputs.split_at(outputs.len() - n);
        let loss = means[0].item()?;
        let (skipped, loss_scale) = match scaled {
            true => (means[1].item()? == 0.0, Some(means[2].item()?)),
            false => (false, None),
        };
        Ok(Outcome { loss, skipped, loss_scale, sums })
    }

    /// Sets the learning rate of the steps that follow.
    pub fn set_rate(&mut self, rate: f64) -> Result<()> {
        self.step.set_state(self.rate, &rate.to_ne_bytes())
    }

    /// Plans anew for another line; weights and everything else that is trained stay as they are.
    ///
    /// # Errors
    /// There is no plan within it; training can go on under the old line.
    #[track_caller]
    pub fn set_memory(&mut self, memory: Option<Bytes>) -> Result<()> {
        let options = StepOptions { memory, ..self.step.options().clone() };
        self.step.replan(options)
    }

    /// That the step was planned anew by itself since the last call, and why: libraries of a card took more than they had
    /// declared, say.
    pub fn take_notice(&mut self) -> Option<String> {
        self.step.take_notice()
    }

    /// The parameters, in the order of [`Training::values`].
    pub fn params(&self) -> &[Param] {
        &self.params
    }

    /// The parameters' values as they stand.
    pub fn values(&self) -> &[Tensor] {
        &self.step.state()[..self.params.len()]
    }

    /// Everything that is kept from step to step, by name: parameters, statistics, the optimizer's state, counters and the
    /// random state. With [`Training::restore`], what a checkpoint holds.
    pub fn state(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.step.names().iter().map(|(name, _)| name.as_str()).zip(self.step.state())
    }

    /// Sets one part of the state from its bytes, as [`Tensor::to_bytes`] gives them.
    #[track_caller]
    pub fn restore(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        let at = self.step.names().iter().position(|(known, _)| known == name);
        let at = at.ok_or_else(|| refuse(format!("restores {name}, which the training does not have")))?;
        self.step.set_state(at, bytes)
    }

    /// The number of trained elements.
    pub fn n_trained(&self) -> usize {
        self.params.iter().filter(|p| p.trained).map(|p| p.ty.elements()).sum()
    }

    /// What was planned for a step.
    pub fn info(&self) -> &StepInfo {
        self.step.info()
    }

    /// For how many shapes of the batch compiled steps are kept.
    pub fn n_shapes(&self) -> usize {
        self.step.n_shapes()
    }

    /// The record of the step, instruction by instruction; see [`Step::timeline`].
    pub fn timeline(&self) -> Option<Timeline> {
        self.step.timeline()
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

/// Where things are in a step's state: parameters, the slots of each trained one, then single values.
struct Layout {
    trained: Vec<usize>,
    /// For each trained parameter.
    slots: Vec<std::ops::Range<usize>>,
    /// The number of updates.
    count: usize,
    /// Seed and step of random layers.
    key: usize,
    rate: usize,
    scale: Option<LossScale>,
}

/// What a part of the state starts with.
enum Start {
    Value(f64),
    /// The seed, and no steps yet.
    Seed,
}

impl Layout {
    /// The layout, and what is kept beside the parameters: names, types, values to start with.
    fn new(recipe: &Recipe, params: &[Param]) -> (Layout, Vec<(String, Type, Start)>) {
        let mut kept: Vec<(String, Type, Start)> = Vec::new();
        let n = params.len();
        let mut keep = |name: String, ty: Type, start: Start| {
            kept.push((name, ty, start));
            n + kept.len() - 1
        };
        let trained: Vec<usize> = (0..n).filter(|&i| params[i].trained).collect();
        let (mut slots, mut first) = (Vec::new(), n);
        for &i in &trained {
            let mut end = first;
            for slot in recipe.optimizer.slots(&params[i]) {
                let name = format!("{}.{}", params[i].name, slot.name);
                end = keep(name, slot.ty, Start::Value(slot.init)) + 1;
            }
            slots.push(first..end);
            first = end;
        }
        let (f32s, f64s) = (Type::new(DType::F32, []), Type::new(DType::F64, []));
        let count = keep("training.updates".into(), f64s.clone(), Start::Value(0.0));
        let key = keep("training.random".into(), Type::new(DType::I64, [2]), Start::Seed);
        let rate = keep("training.rate".into(), f64s, Start::Value(recipe.optimizer.rate()));
        let scale = recipe.precision.needs_loss_scale().then(|| LossScale {
            scale: keep("training.loss_scale".into(), f32s.clone(), Start::Value(LossScale::START)),
            good: keep("training.finite_steps".into(), f32s.clone(), Start::Value(0.0)),
        });
        (Layout { trained, slots, count, key, rate, scale }, kept)
    }
}

/// What is traced: forward, loss, backward, update.
struct Body<M> {
    model: M,
    recipe: Recipe,
    params: Vec<Param>,
    layout: Layout,
}

impl<M: Model + 'static> Body<M> {
    /// The net for everything but training.
    fn net(&self, pass: &Pass<'_>) -> Net {
        Net::bound(&self.params, &pass.state[..self.params.len()], false).precision(self.recipe.precision)
    }

    fn evaluate(&self, pass: &Pass<'_>) -> Result<StepResult> {
        let (inputs, labels) = pass.inputs.split_at(self.recipe.inputs.len());
        let outputs = self.model.forward(&mut self.net(pass), inputs)?;
        let (loss, parts) = self.recipe.loss.parts(&outputs, labels)?;
        let totals = self.sums(&outputs, labels, &parts)?;
        Ok(StepResult { state: pass.state.to_vec(), outputs: vec![loss], totals })
    }

    fn predict(&self, pass: &Pass<'_>) -> Result<StepResult> {
        let outputs = self.model.forward(&mut self.net(pass).predicting(), pass.inputs)?;
        // Numbers are given as f32, but for those that were asked for in f64.
        let wide = |y: &Tensor| if y.dtype() == DType::F64 { Ok(y.clone()) } else { y.cast(DType::F32) };
        let outputs = outputs.iter().map(wide).collect::<Result<Vec<Tensor>>>()?;
        Ok(StepResult { state: pass.state.to_vec(), outputs, totals: Vec::new() })
    }

    fn sums(&self, outputs: &[Tensor], labels: &[Tensor], parts: &[Tensor]) -> Result<Vec<Tensor>> {
        self.recipe.metrics.iter().map(|measure| measure.sums(outputs, labels, parts)).collect()
    }

    fn train(&self, pass: &Pass<'_>) -> Result<StepResult> {
        let Body { model, recipe, params, layout } = self;
        let state = pass.state;
        let (inputs, labels) = pass.inputs.split_at(recipe.inputs.len());
        let wrt: Vec<&Tensor> = layout.trained.iter().map(|&i| &state[i]).collect();
        let tape = Tape::new();
        for w in &wrt {
            tape.watch(w)?;
        }
        let key = Tensor::concat(&[&state[layout.key], pass.first], 0)?;
        let mut net = Net::bound(params, &state[..params.len()], true).precision(recipe.precision).key(key);
        let outputs = model.forward(&mut net, inputs)?;
        let (loss, parts) = recipe.loss.parts(&outputs, labels)?;
        let totals = self.sums(&outputs, labels, &parts)?;
        let found = match &layout.scale {
            None => tape.try_gradient(&loss, &wrt)?,
            Some(scale) => scale.gradient(&tape, &loss, &wrt, state)?,
        };
        // The parameters that move, with their slots and gradients.
        let (mut moved, mut grads) = (Vec::new(), Vec::new());
        for ((&i, slots), grad) in layout.trained.iter().zip(&layout.slots).zip(found) {
            match grad {
                Some(grad) => {
                    moved.push((i, slots));
                    grads.push(grad);
                }
                None if recipe.loss.leaves_out() => {}
                None => return Err(refuse(format!("has a loss that does not depend on {}", params[i].name))),
            }
        }
        let finite = layout.scale.as_ref().map(|_| LossScale::all_finite(&grads)).transpose()?;
        match recipe.clip {
            None => {}
            Some(Clip::Value(most)) => grads = clip_by_value(&grads, most)?,
            Some(Clip::Norm(most)) => grads = clip_by_global_norm(&grads, most)?.0,
            Some(Clip::PlainNorm(most)) => grads = clip_by_plain_norm(&grads, most)?,
        }
        let count = state[layout.count].add_scalar(1.0)?;
        let rate = &state[layout.rate];
        let prepared = recipe.optimizer.prepare(&count, rate)?;
        let scalars = in_types(&prepared, layout.trained.iter().map(|&i| params[i].ty.dtype))?;
        let mut new: Vec<Tensor> = state.to_vec();
        for ((i, slots), grad) in moved.into_iter().zip(&grads) {
            let own = scalars.iter().find(|(dtype, _)| *dtype == params[i].ty.dtype);
            let scalars = own.map_or(&prepared, |(_, scalars)| scalars);
            let at = UpdateAt { count: &count, rate, scalars, param: &params[i] };
            let (value, updated) = recipe.optimizer.update(&at, &state[i], grad, &state[slots.clone()])?;
            if updated.len() != slots.len() {
                let (name, given, own) = (recipe.optimizer.name(), updated.len(), slots.len());
                return Err(refuse(format!("uses {name}, which updated {given} slots of {own}")));
            }
            new[i] = value;
            new[slots.clone()].clone_from_slice(&updated);
        }
        for (i, update) in net.updates().into_iter().enumerate() {
            if let Some(value) = update {
                new[i] = value;
            }
        }
        new[layout.count] = count;
        let mut outputs = vec![loss];
        if let (Some(scale), Some(finite)) = (&layout.scale, finite) {
            // A step with a gradient that is not finite changes nothing but the scale.
            for (i, value) in new.iter_mut().enumerate() {
                if !matches!(i, i if i == layout.key || i == layout.rate || scale.is(i)) {
                    *value = finite.select(value, &state[i])?;
                }
            }
            scale.update(&finite, state, &mut new)?;
            outputs.extend([finite.cast(DType::F32)?, new[scale.scale].clone()]);
        }
        let next = Tensor::from_slice(&[0i64, 1], [2])?;
        new[layout.key] = state[layout.key].add(&next)?;
        Ok(StepResult { state: new, outputs, totals })
    }
}

/// Scalars by type.
type InTypes = SmallVec<[(DType, Vec<Tensor>); 2]>;

/// An optimizer's scalars in each type that parameters have: usually one.
fn in_types(scalars: &[Tensor], dtypes: impl Iterator<Item = DType>) -> Result<InTypes> {
    let mut all = InTypes::new();
    for dtype in dtypes {
        if all.iter().all(|(known, _)| *known != dtype) {
            all.push((dtype, scalars.iter().map(|x| x.cast(dtype)).collect::<Result<_>>()?));
        }
    }
    Ok(all)
}
