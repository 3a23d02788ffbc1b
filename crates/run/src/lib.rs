//! Turns op calls into results: tensors (eager and traced), the gradient tape, traced functions and training steps.
//!
//! What is not here: layers, optimizers, files.

mod error;

mod device;
mod feed;
mod host;
mod tensor;

mod sketch;
mod tape;
mod tracing;

mod costs;
mod draft;
mod lower;
mod order;
mod peak;
mod profile;
mod program;
mod refusal;
mod times;
mod timing;

mod account;
mod compile;
mod function;
mod step;
mod survey;
mod timeline;
mod variant;

#[cfg(test)]
mod stand;

pub use account::{Account, PROGRAM};
pub use device::{Counted, Device, MemoryInfo, Placement};
pub use error::{Error, Result};
pub use feed::Feed;
pub use function::{Function, function};
pub use peak::Peak;
pub use plimsoll_cuda::Options as CudaOptions;
pub use plimsoll_graph::TensorOps;
pub use plimsoll_plan::Exactness;
pub use plimsoll_record as record;
pub use plimsoll_record::Kind;
pub use profile::Profile;
pub use refusal::Way;
pub use sketch::Sketch;
pub use step::{Held, Pass, Step, StepInfo, StepOptions, StepResult};
pub use survey::{Frontier, FrontierPoint, Survey, undominated};
pub use tape::Tape;
pub use tensor::Tensor;
pub use tracing::{asked_at, asked_from, named};
