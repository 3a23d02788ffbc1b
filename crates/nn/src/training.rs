//! Turns a model, a loss and an optimizer into one compiled step.

use plimsoll_device::{Bytes, Ledger};
use plimsoll_graph::{LossOps, TensorOps, Type};
use plimsoll_run::{Exactness, Held, Kind, Result, Step, StepInfo, StepOptions, StepResult, Tape, Tensor};

use smallvec::SmallVec;

use crate::{Adam, Net, Param};

/// Turns a model's output and the labels into the number to make smaller.
pub type Loss = fn(&Tensor, &Tensor) -> Result<Tensor>;

/// The mean over all samples of the cross-entropy of logits `[.., C]` with labels `[..]`.
pub fn mean_cross_entropy(logits: &Tensor, labels: &Tensor) -> Result<Tensor> {
    logits.softmax_cross_entropy(labels)?.mean(&[], false)
}

/// How a model is trained.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// What is made smaller.
    pub loss: Loss,
    /// How.
    pub adam: Adam,
    /// The types of the model's inputs.
    pub inputs: Vec<Type>,
    /// The type of the labels.
    pub labels: Type,
    /// The line: the most that the process may take, as the system counts it.
    pub memory: Option<Bytes>,
    /// How far a plan may depart from the bits of an unlimited run: whether the batch may be split.
    pub exactness: Exactness,
    /// Samples in a micro-batch, where that is not for the planner to choose.
    pub micro_batch: Option<usize>,
}

impl Recipe {
    /// Adam on the mean cross-entropy, one input, no line.
    pub fn cross_entropy(adam: Adam, input: Type, labels: Type) -> Recipe {
        Recipe {
            loss: mean_cross_entropy,
            adam,
            inputs: vec![input],
            labels,
            memory: None,
            exactness: Exactness::Reassociated,
            micro_batch: None,
        }
    }
}

/// A model in training: forward, loss, backward and update are one program over state that it owns.
///
/// ```
/// use plimsoll_graph::{DType, Type};
/// use plimsoll_nn::{Adam, Layers, Recipe, Training};
/// use plimsoll_run::Tensor;
/// let (x, y) = (Type::new(DType::F32, [4, 2]), Type::new(DType::I64, [4]));
/// let recipe = Recipe::cross_entropy(Adam::new(0.1), x, y);
/// let mut training = Training::new(|net, x| net.dense("out", &x[0], 2, true), recipe, 42)?;
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
}

impl Training {
    /// Traces and compiles; parameters start as the model's layers say, from a seed.
    pub fn new(
        model: impl Fn(&mut Net, &[Tensor]) -> Result<Tensor>,
        recipe: Recipe,
        seed: u64,
    ) -> Result<Training> {
        let params = Net::discover(&recipe.inputs, &model)?;
        let values =
            params.iter().map(|p| p.init.draw(&p.name, &p.ty, seed)).collect::<Result<Vec<Tensor>>>()?;
        Training::with_values(model, recipe, params, values)
    }

    /// Traces and compiles with given values of the parameters, in the order [`Net::discover`] lists them.
    pub fn with_values(
        model: impl Fn(&mut Net, &[Tensor]) -> Result<Tensor>,
        recipe: Recipe,
        params: Vec<Param>,
        values: Vec<Tensor>,
    ) -> Result<Training> {
        let Recipe { loss, adam, inputs, labels, memory, exactness, micro_batch } = recipe;
        let trained: Vec<usize> = (0..params.len()).filter(|&i| params[i].trained).collect();
        let (n, k) = (params.len(), trained.len());
        let parameter =
            |(p, tensor): (&Param, Tensor)| Held { name: p.name.clone(), kind: Kind::Parameter, tensor };
        let mut held: Vec<Held> = params.iter().zip(values).map(parameter).collect();
        let mut optimizer = |name: String, ty: Type| -> Result<()> {
            held.push(Held { name, kind: Kind::Optimizer, tensor: Tensor::zeros(ty)? });
            Ok(())
        };
        for moment in ["first moment", "second moment"] {
            for &i in &trained {
                optimizer(format!("{moment} of {}", params[i].name), params[i].ty.clone())?;
            }
        }
        optimizer("steps".into(), Adam::counter())?;
        let types: Vec<Type> = inputs.into_iter().chain([labels]).collect();
        // State: parameters, first moments, second moments, step counter.
        let batch = types[0].shape.first().copied();
        let options = StepOptions { memory, exactness, batch, micro_batch, ..StepOptions::default() };
        let step = Step::compile_with(&options, held, &types, |pass| {
            let state = pass.state;
            let (labels, inputs) = pass.inputs.split_last().ok_or_else(no_labels)?;
            let wrt: Vec<&Tensor> = trained.iter().map(|&i| &state[i]).collect();
            let tape = Tape::new();
            for w in &wrt {
                tape.watch(w)?;
            }
            let mut net = Net::bound(&params, &state[..n], true);
            let loss = loss(&model(&mut net, inputs)?, labels)?;
            let grads = tape.gradient(&loss, &wrt)?;
            let t = state[n + 2 * k].add_scalar(1.0)?;
            let (size, root) = adam.sizes(&t)?;
            let mut new: Vec<Tensor> = state.to_vec();
            for (j, (&i, g)) in trained.iter().zip(&grads).enumerate() {
                let [p, m, v] =
                    adam.update(&state[i], g, &state[n + j], &state[n + k + j], (&size, &root))?;
                (new[i], new[n + j], new[n + k + j]) = (p, m, v);
            }
            for (i, update) in net.updates().into_iter().enumerate() {
                if let Some(value) = update {
                    new[i] = value;
                }
            }
            new[n + 2 * k] = t;
            Ok(StepResult { state: new, outputs: vec![loss], totals: Vec::new() })
        })?;
        Ok(Training { step, params })
    }

    /// One step on a batch; returns its loss.
    #[track_caller]
    pub fn step(&mut self, inputs: &[&Tensor], labels: &Tensor) -> Result<f64> {
        let arguments: SmallVec<[&Tensor; 8]> = inputs.iter().copied().chain([labels]).collect();
        self.step.run(&arguments)?[0].item()
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

fn no_labels() -> plimsoll_run::Error {
    let why = "gives a step no labels".into();
    plimsoll_run::Error::Signature { site: plimsoll_graph::Site::here(), why }
}
