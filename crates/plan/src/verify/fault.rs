//! Says what is wrong with a plan, and where.

use crate::problem::{OpId, TensorId};
use thiserror::Error;

/// What is wrong with a plan. `step` counts from 0.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Fault {
    /// The problem itself contradicts itself.
    #[error("the problem is not valid: {0}")]
    Problem(String),
    /// A step names something that does not exist.
    #[error("step {step} names {what}, which does not exist")]
    Unknown {
        /// The step.
        step: usize,
        /// What it named.
        what: String,
    },
    /// A step does not have one offset for each operand.
    #[error("step {step} runs {op} with a wrong number of offsets")]
    Operands {
        /// The step.
        step: usize,
        /// The op.
        op: OpId,
    },
    /// A read does not find the tensor (or the version of it) that it was promised.
    #[error("step {step} reads {tensor} at {offset}, where it is not whole or not the promised version")]
    StaleRead {
        /// The step; the number of steps for what must be there at the end.
        step: usize,
        /// The tensor.
        tensor: TensorId,
        /// Where it was looked for.
        offset: u64,
    },
    /// Two operands of one step overlap though they must not.
    #[error("step {step} has operands that overlap in the arena at byte {offset}")]
    Overlap {
        /// The step.
        step: usize,
        /// The first byte of the second of them.
        offset: u64,
    },
    /// An offset breaks the tensor's alignment.
    #[error("{tensor} lies at {offset}, which is not a multiple of its alignment")]
    Misaligned {
        /// The tensor.
        tensor: TensorId,
        /// Where it lies.
        offset: u64,
    },
    /// Scratch breaks the problem's alignment for it.
    #[error("step {step} has scratch at {offset}, which is not a multiple of its alignment")]
    MisalignedScratch {
        /// The step.
        step: usize,
        /// Where it lies.
        offset: u64,
    },
    /// A byte past the budget is used.
    #[error("step {step} uses bytes up to {end}, past the budget of {budget}")]
    PastBudget {
        /// The step.
        step: usize,
        /// The end of the range.
        end: u64,
        /// The budget.
        budget: u64,
    },
    /// A resident is missing, doubled, or not resident.
    #[error("{tensor} is a resident without exactly one place, or has a place without being one")]
    Resident {
        /// The tensor.
        tensor: TensorId,
    },
    /// An op's first run is called a replay, a later one is not, or an op that must not be replayed is.
    #[error("step {step} runs {op} as a replay though it has not run, or again though it may not")]
    Replay {
        /// The step.
        step: usize,
        /// The op.
        op: OpId,
    },
    /// A state update comes out of its turn.
    #[error("step {step} lets {op} update {tensor} out of turn")]
    UpdateOrder {
        /// The step.
        step: usize,
        /// The op.
        op: OpId,
        /// The state.
        tensor: TensorId,
    },
    /// An op never runs.
    #[error("{op} never runs")]
    NeverRuns {
        /// The op.
        op: OpId,
    },
    /// An output is missing at the end.
    #[error("output {tensor} has no place at the end")]
    NoOutput {
        /// The tensor.
        tensor: TensorId,
    },
    /// A copy is not allowed: no link, or of a resident.
    #[error("step {step} copies {tensor}, but there is no link or it is not a transient of its own bytes")]
    Copy {
        /// The step.
        step: usize,
        /// The tensor.
        tensor: TensorId,
    },
    /// Bytes that a copy still reads or writes are written over.
    #[error("step {step} writes to byte {offset}, which a copy under way still needs")]
    Busy {
        /// The step.
        step: usize,
        /// The first byte of what it writes.
        offset: u64,
    },
    /// A copy is started twice, or awaited without having been started, or never awaited.
    #[error(
        "step {step} starts a copy of {tensor} that is under way, awaits one that is not, or leaves one behind"
    )]
    Await {
        /// The step; the number of steps for a copy that is under way at the end.
        step: usize,
        /// The tensor.
        tensor: TensorId,
    },
    /// A printed figure is not what the replay saw.
    #[error("the plan says {figure} is {claimed}, but it is {seen}")]
    Figure {
        /// Which figure.
        figure: &'static str,
        /// What the plan says.
        claimed: u64,
        /// What was seen.
        seen: u64,
    },
}
