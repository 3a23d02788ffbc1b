//! Turns a model, a loss and an optimizer into one compiled step.

use std::sync::Arc;

use plimsoll_device::Bytes;
use plimsoll_graph::{DType, TensorOps, Type};
use plimsoll_run::{Result, Step, StepInfo, StepResult, Tape, Tensor};

use smallvec::SmallVec;

use crate::error::refuse;
use crate::{Loss, Model, Net, Optimizer, Param, Precision, UpdateAt, softmax_cross_entropy};

/// How a model is trained.
#[derive(Clone)]
pub struct Recipe {
    /// What is made smaller.
    pub loss: Arc<dyn Loss>,
    /// How.
    pub optimizer: Arc<dyn Optimizer>,
    /// In which element type.
    pub precision: Precision,
    /// The types of the model's inputs.
    pub inputs: Vec<Type>,
    /// The type of the labels.
    pub labels: Type,
    /// The line: the most that the process may take, as the system counts it.
    pub memory: Option<Bytes>,
}

impl Recipe {
    /// A loss and an optimizer over one input, in f32, no line.
    pub fn new(
        loss: impl Loss + 'static,
        optimizer: impl Optimizer + 'static,
        input: Type,
        labels: Type,
    ) -> Recipe {
        let (loss, optimizer) = (Arc::new(loss), Arc::new(optimizer));
        Recipe { loss, optimizer, precision: Precision::F32, inputs: vec![input], labels, memory: None }
    }

    /// An optimizer on the mean cross-entropy, one input, f32, no line.
    pub fn cross_entropy(optimizer: impl Optimizer + 'static, input: Type, labels: Type) -> Recipe {
        Recipe::new(softmax_cross_entropy, optimizer, input, labels)
    }
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
    rate: Tensor,
}

impl Training {
    /// Traces and compiles; parameters start as the model's layers say, from a seed.
    pub fn new(model: impl Model, recipe: Recipe, seed: u64) -> Result<Training> {
        let params = Net::discover(&recipe.inputs, &model)?;
        let values =
            params.iter().map(|p| p.init.draw(&p.name, &p.ty, seed)).collect::<Result<Vec<Tensor>>>()?;
        Training::compile(model, recipe, params, values, seed)
    }

    /// Traces and compiles with given values of the parameters, in the order [`Net::discover`] lists them.
    pub fn with_values(
        model: impl Model,
        recipe: Recipe,
        params: Vec<Param>,
        values: Vec<Tensor>,
    ) -> Result<Training> {
        Training::compile(model, recipe, params, values, 0)
    }

    fn compile(
        model: impl Model,
        recipe: Recipe,
        params: Vec<Param>,
        values: Vec<Tensor>,
        seed: u64,
    ) -> Result<Training> {
        let Recipe { loss, optimizer, precision, inputs, labels, memory } = recipe;
        let trained: Vec<usize> = (0..params.len()).filter(|&i| params[i].trained).collect();
        let n = params.len();
        // State: parameters, the slots of each trained one, the number of updates, the key of random layers.
        let mut state = values;
        let mut slots = Vec::new();
        for &i in &trained {
            let first = state.len();
            for slot in optimizer.slots(&params[i]) {
                state.push(Tensor::full(slot.ty, slot.init)?);
            }
            slots.push(first..state.len());
        }
        let (count, key) = (state.len(), state.len() + 1);
        state.push(Tensor::zeros(Type::new(DType::F64, []))?);
        state.push(Tensor::from_slice(&[seed as i64, 0, 0], [3])?);
        let next_step = Tensor::from_slice(&[0i64, 1, 0], [3])?;
        let rate = Tensor::from_slice(&[optimizer.rate()], [])?;
        let types: Vec<Type> = inputs.into_iter().chain([labels, rate.ty().clone()]).collect();
        let step = Step::compile_within(memory, state, &types, |state, inputs| {
            let [inputs @ .., labels, rate] = inputs else {
                return Err(refuse("gives a step no labels"));
            };
            let wrt: Vec<&Tensor> = trained.iter().map(|&i| &state[i]).collect();
            let tape = Tape::new();
            for w in &wrt {
                tape.watch(w)?;
            }
            let mut net = Net::bound(&params, &state[..n], true).precision(precision).key(state[key].clone());
            let outputs = model.forward(&mut net, inputs)?;
            let loss = loss.loss(&outputs, std::slice::from_ref(labels))?;
            let grads = tape.gradient(&loss, &wrt)?;
            let t = state[count].add_scalar(1.0)?;
            let scalars = optimizer.prepare(&t, rate)?;
            let mut new: Vec<Tensor> = state.to_vec();
            for ((&i, slots), grad) in trained.iter().zip(&slots).zip(&grads) {
                let at = UpdateAt { count: &t, rate, scalars: &scalars, param: &params[i] };
                let (value, updated) = optimizer.update(&at, &state[i], grad, &state[slots.clone()])?;
                if updated.len() != slots.len() {
                    let (name, given, own) = (optimizer.name(), updated.len(), slots.len());
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
            new[count] = t;
            new[key] = state[key].add(&next_step)?;
            Ok(StepResult { state: new, outputs: vec![loss] })
        })?;
        Ok(Training { step, params, rate })
    }

    /// One step on a batch; returns its loss.
    #[track_caller]
    pub fn step(&mut self, inputs: &[&Tensor], labels: &Tensor) -> Result<f64> {
        let arguments: SmallVec<[&Tensor; 8]> = inputs.iter().copied().chain([labels, &self.rate]).collect();
        self.step.run(&arguments)?[0].item()
    }

    /// Sets the learning rate of the steps that follow.
    pub fn set_rate(&mut self, rate: f64) -> Result<()> {
        self.rate = Tensor::from_slice(&[rate], [])?;
        Ok(())
    }

    /// The parameters, in the order of [`Training::values`].
    pub fn params(&self) -> &[Param] {
        &self.params
    }

    /// The parameters' values as they stand.
    pub fn values(&self) -> &[Tensor] {
        &self.step.state()[..self.params.len()]
    }

    /// The number of trained elements.
    pub fn n_trained(&self) -> usize {
        self.params.iter().filter(|p| p.trained).map(|p| p.ty.elements()).sum()
    }

    /// What was planned for a step.
    pub fn info(&self) -> &StepInfo {
        self.step.info()
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
