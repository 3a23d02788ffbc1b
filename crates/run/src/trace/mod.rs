//! Turns the body of a training step into a graph, for as many samples as a candidate wants.
//!
//! A step is traced with values that have types and no bytes: nothing is computed and nothing is allocated.

mod options;
mod step_fn;

pub use options::StepOptions;
pub use step_fn::{StepArgs, StepFn, StepResult};

use plimsoll_device::stopwatch::during;
use plimsoll_graph::micro_batch::{Frame, Splits, shares, splits};
use plimsoll_graph::{DType, Graph, Site, TensorOps, Type};
use plimsoll_record::Kind;

use crate::device::Device;
use crate::error::{Error, Result};
use crate::tensor::{Tensor, Tracing};

/// A part of a step's state, as far as planning must know it.
#[derive(Clone, Debug, PartialEq)]
pub struct StateSpec {
    /// What plans, refusals and reports call it.
    pub name: String,
    /// What it is for.
    pub kind: Kind,
    /// Its type.
    pub ty: Type,
    /// Whether it is in the host's memory now.
    pub is_hosted: bool,
}

impl StateSpec {
    /// A part of the state that is on the device, or will be.
    pub fn new(name: impl Into<String>, kind: Kind, ty: Type) -> StateSpec {
        StateSpec { name: name.into(), kind, ty, is_hosted: false }
    }
}

/// What is traced: a step's body, and the types it is called with.
#[derive(Clone)]
pub(crate) struct Traceable {
    pub(crate) device: Device,
    pub(crate) body: StepFn,
    pub(crate) state: Vec<StateSpec>,
    pub(crate) inputs: Vec<Type>,
    /// Samples in the inputs, where their first axis counts them.
    pub(crate) batch: Option<usize>,
    pub(crate) site: Site,
}

/// The step traced for some number of samples.
pub(crate) struct Traced {
    pub(crate) graph: Graph,
    pub(crate) captured: Vec<Tensor>,
    pub(crate) frame: Frame,
}

impl Traceable {
    /// Traces the step for so many samples, or for inputs as they are.
    pub(crate) fn trace(&self, samples: Option<usize>) -> Result<Traced> {
        during("traced", || self.trace_now(samples))
    }

    fn trace_now(&self, samples: Option<usize>) -> Result<Traced> {
        let tracing = Tracing::new();
        let state: Vec<Tensor> =
            self.state.iter().map(|part| tracing.argument(&part.name, part.ty.clone())).collect();
        let inputs: Vec<Tensor> = self
            .inputs
            .iter()
            .enumerate()
            .map(|(i, ty)| {
                let shape = samples.map_or(ty.shape.clone(), |samples| ty.shape.with(0, samples));
                tracing.argument(&format!("input {i}"), ty.with_shape(shape))
            })
            .collect();
        let first = tracing.argument("first sample", Type::new(DType::I64, [1]));
        let pass = StepArgs { state: &state, inputs: &inputs, first: &first };
        let StepResult { state: new, outputs, totals } =
            Site::anew(|| self.device.scope(|| (self.body)(&pass)))?;
        let types = |tensors: &[Tensor]| tensors.iter().map(|t| t.ty().clone()).collect::<Vec<Type>>();
        if types(&new) != types(&state) {
            let why = format!("returns a state of {:?} where it was given {:?}", types(&new), types(&state));
            return Err(Error::Signature { site: self.site, why });
        }
        let frame = Frame { state: state.len(), inputs: inputs.len() + 1, totals: totals.len() };
        let results: Vec<Tensor> = new.into_iter().chain(outputs).chain(totals).collect();
        let graph = tracing.finish(&results, self.site)?;
        Ok(Traced { graph, captured: tracing.captured(), frame })
    }

    /// Whether what ranks compute of their own samples adds up to what one computes of all, however few each has.
    pub(crate) fn shares(&self) -> Result<Splits> {
        // Of a single sample a trace is another one: sums over one row are left out.
        let [few, more] = [4, 6].map(|samples| self.trace(Some(samples)));
        let (few, more) = (few?, more?);
        Ok(shares((&few.graph, &more.graph), (4, 6), &few.frame))
    }

    /// The trace of another batch than the step's; what the model says where it is made for that one alone.
    pub(crate) fn trace_for(&self, samples: usize) -> Result<std::result::Result<Traced, String>> {
        match self.trace(Some(samples)) {
            Ok(traced) => Ok(Ok(traced)),
            Err(error @ (Error::Signature { .. } | Error::Graph(_))) => Ok(Err(error.to_string())),
            Err(error) => Err(error),
        }
    }

    /// Whether the batch can be split into micro-batches, and what that changes: two traces of different batch sizes tell which
    /// axes count samples.
    pub(crate) fn splits(&self, whole: &Traced) -> Result<Splits> {
        let Some(batch) = self.batch.filter(|&batch| batch > 1) else {
            return Ok(Splits::Not("the step has no batch of several samples".into()));
        };
        let half = batch.div_ceil(2);
        let part = match self.trace_for(half)? {
            Ok(part) => part,
            Err(why) => {
                return Ok(Splits::Not(format!("the model is made for {batch} samples; of {half}: {why}")));
            }
        };
        Ok(splits((&part.graph, &whole.graph), (half, batch), &whole.frame))
    }
}
