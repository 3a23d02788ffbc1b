//! Turns a step's plan into the programs that run it.

use plimsoll_graph::Type;

use super::Program;
use crate::choose::{PlannedPart, Shared, StepPlan};
use crate::error::Result;
use crate::tensor::Tensor;

/// One part of a compiled step: a program, what it captured, and how often it runs on how many samples.
pub(crate) struct Part {
    pub(crate) program: Program,
    pub(crate) captured: Vec<Tensor>,
    pub(crate) samples: usize,
    pub(crate) runs: usize,
}

/// A compiled step.
pub(crate) struct StepProgram {
    /// The passes over the batch; where it is not split, one part that is the whole step.
    pub(crate) passes: Vec<Part>,
    /// What runs after all passes of a split batch.
    pub(crate) update: Option<Part>,
    pub(crate) shared: Shared,
    pub(crate) outputs: Vec<Type>,
}

impl Part {
    fn new(part: &PlannedPart) -> Result<Part> {
        let (captured, samples, runs) = (part.captured.clone(), part.samples, part.runs);
        Ok(Part { program: Program::new(&part.graph)?, captured, samples, runs })
    }
}

impl StepProgram {
    /// The programs of a plan.
    pub(crate) fn new(plan: &StepPlan) -> Result<StepProgram> {
        Ok(StepProgram {
            passes: plan.passes.iter().map(Part::new).collect::<Result<Vec<Part>>>()?,
            update: plan.update.as_ref().map(Part::new).transpose()?,
            shared: plan.shared.clone(),
            outputs: plan.outputs.clone(),
        })
    }
}
