//! The body of a step: what it is given and what it gives back.

use std::sync::Arc;

use crate::error::Result;
use crate::tensor::Tensor;

/// What the body of a step is given.
pub struct StepArgs<'a> {
    /// The state.
    pub state: &'a [Tensor],
    /// The inputs: the whole batch, or a micro-batch of it.
    pub inputs: &'a [Tensor],
    /// The position in the batch of the first sample, `i64[1]`: what random ops need so that a mask does not depend on
    /// how the batch is split.
    pub first: &'a Tensor,
}

/// What the body of a step gives back.
#[derive(Default)]
pub struct StepResult {
    /// The new state, in the order and of the types of the old.
    pub state: Vec<Tensor>,
    /// What else is to be seen, each a mean over the samples: the loss, say.
    pub outputs: Vec<Tensor>,
    /// More of it, each a total over the samples: counts for a metric, say.
    pub totals: Vec<Tensor>,
}

/// The body of a step. It is traced, never run: once for each number of samples that is considered for a micro-batch.
pub type StepFn = Arc<dyn Fn(&StepArgs<'_>) -> Result<StepResult> + Send + Sync>;
