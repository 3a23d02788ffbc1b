//! Turns op calls into results: tensors (eager and traced), the gradient tape, traced functions and training steps.
//!
//! What is not here: layers, optimizers, files.

mod error;

mod device;
mod host;
mod tensor;

mod sketch;
mod tape;
mod tracing;

mod function;
mod lower;
mod order;
mod program;
mod step;

pub use device::{Device, MemoryInfo, Placement};
pub use error::{Error, Result};
pub use function::{Function, function};
pub use plimsoll_graph::TensorOps;
pub use sketch::Sketch;
pub use step::{Step, StepInfo, StepResult};
pub use tape::Tape;
pub use tensor::Tensor;
pub use tracing::named;
