//! What a step is made of and on what terms: its state, its options, what its body is given and gives back.

use plimsoll_device::Bytes;
use plimsoll_graph::{Site, TensorOps, Type};
use plimsoll_plan::{Exactness, Kind};

use crate::compile::is_movable;
use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// A tensor that a step keeps from run to run.
#[derive(Clone)]
pub struct Held {
    /// What plans, refusals and reports call it.
    pub name: String,
    /// What it is for.
    pub kind: Kind,
    /// Its value before the first run.
    pub tensor: Tensor,
}

impl Held {
    /// The same in the host's memory, as long as `left` has room for it: where the optimizer's state is made that a plan may keep
    /// there, so that it never takes any of a device that has none for it. The first plan puts everything where it belongs. What
    /// no plan would keep there stays where it is.
    ///
    /// # Errors
    /// The host has no more memory.
    #[track_caller]
    pub fn hosted(self, left: &mut Bytes) -> Result<Held> {
        let (site, bytes) = (Site::here(), self.tensor.ty().bytes());
        let device = self.tensor.buffer(site)?.device();
        let wanted = is_movable(device, self.kind, bytes) && Bytes::from(bytes) <= *left;
        if !wanted || self.tensor.is_hosted() || device.backend().rough_link().is_none() {
            return Ok(self);
        }
        *left = left.saturating_sub(bytes.into());
        let tensor = self.tensor.hosted()?;
        Ok(Held { tensor, ..self })
    }
}

/// How a step is compiled.
///
/// ```
/// use plimsoll_run::StepOptions;
/// let options = StepOptions { memory: Some("64MiB".parse().unwrap()), ..StepOptions::default() };
/// assert_eq!(options.shapes, 4);
/// ```
#[derive(Clone, Debug)]
pub struct StepOptions {
    /// The line: the most that the process may take, as the system counts it. Without one a step takes the least memory
    /// that is predicted to cost at most one percent of time over the fastest plan.
    pub memory: Option<Bytes>,
    /// How much of the host's memory a plan may copy activations to and fetch them back from, beside the kernels, and keep state
    /// of the optimizer in that comes to the device for its update: pinned memory, taken once when the step is compiled. None and zero mean that nothing is copied. Only a device with memory of
    /// its own has a use for it; on the CPU it is not looked at.
    pub host_memory: Option<Bytes>,
    /// How far a plan may depart from the bits of an unlimited run.
    pub exactness: Exactness,
    /// Whether the first axis of every input counts samples, so that the body may be traced for fewer of them.
    pub batched: bool,
    /// Samples in a micro-batch, where that is not for the planner to choose.
    pub micro_batch: Option<usize>,
    /// What the process will take for other things while the step runs: an input pipeline, say.
    pub beside: Bytes,
    /// Whether the next batch of inputs is on its way while the step runs, so that there are two of them.
    pub ahead: bool,
    /// Whether the first output, the loss, must be finite: if it is not, the step is an error and changes nothing. Without
    /// this, a step that is not finite is like any other.
    pub guarded: bool,
    /// For how many input shapes compiled forms are kept; the one that was not used for longest makes room for another.
    pub shapes: usize,
}

impl Default for StepOptions {
    fn default() -> StepOptions {
        StepOptions {
            memory: None,
            host_memory: None,
            exactness: Exactness::Bitwise,
            batched: false,
            micro_batch: None,
            beside: Bytes::ZERO,
            ahead: false,
            guarded: false,
            shapes: 4,
        }
    }
}

/// What the body of a step is given.
pub struct Pass<'a> {
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

/// Samples in the inputs, where their first axis counts them.
pub(crate) fn batch_of(options: &StepOptions, inputs: &[Type], site: Site) -> Result<Option<usize>> {
    if let Some(ty) = inputs.iter().find(|ty| ty.is_too_large()) {
        let why = format!("has an input of {ty}, which no machine can hold; make the batch smaller");
        return Err(Error::Signature { site, why });
    }
    if !options.batched {
        return Ok(None);
    }
    let batch = inputs.first().and_then(|ty| ty.shape.first().copied());
    if let Some(ty) = inputs.iter().find(|ty| ty.shape.first().copied() != batch) {
        let why = format!("has an input of {ty}, whose first axis is not the batch of the others");
        return Err(Error::Signature { site, why });
    }
    Ok(batch)
}
