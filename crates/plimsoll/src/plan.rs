//! What a training step takes, asked before it runs.
//!
//! [`Trainer::plan`](crate::train::Trainer::plan) answers with a [`StepPlan`], whose [`PlanFigures`] say the bytes and the seconds
//! of a step; [`Frontier`] says what other memory limits would buy. [`MemoryRequest`] is all that can be asked of memory.

#[doc(inline)]
pub use plimsoll_run::{
    Exactness, FixedMemory, Frontier, FrontierPoint, MemoryRequest, Peak, PlanFigures, Precision, Remedy,
    StepPlan, StepPlanner,
};
