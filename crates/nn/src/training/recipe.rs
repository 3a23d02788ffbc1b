//! How a model is trained: loss, optimizer, precision, line.

use std::sync::Arc;

use plimsoll_device::Bytes;
use plimsoll_graph::Type;
use plimsoll_run::{Exactness, StepOptions};

use crate::{Loss, Measure, Optimizer, Precision, softmax_cross_entropy};

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

    /// The types of inputs and labels, as a step is given them.
    pub(super) fn types(&self) -> Vec<Type> {
        self.inputs.iter().chain(&self.labels).cloned().collect()
    }

    pub(super) fn options(&self) -> StepOptions {
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
