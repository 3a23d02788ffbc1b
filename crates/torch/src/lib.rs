//! PyTorch programs as models to train: what `torch.export` writes is read as data, and each op of it is one of ours or several.
//!
//! [`Program`] is an exported program as plain data: nodes with named arguments, a signature, kept tensors. [`TorchModel`] is that as a
//! model of the engine: parameters and buffers are state by their names in the module, and the nodes run, one after the other, as ops
//! over tensors. What is not known is refused by the op's name, with the line of the user's own source.

mod archive;
mod call;
mod cycled;
mod defaults;
mod error;
mod flow;
mod known;
mod model;
mod ops;
mod optim;
mod orders;
mod place;
mod program;
mod schema;
mod shares;
mod stored;
mod value;
mod walk;

pub use archive::Limits;
pub use cycled::Cycled;
pub use error::{Error, Result};
pub use model::{ProgramLoss, TorchModel};
pub use ops::known_ops;
pub use optim::{Rule, TorchOptimizer};
pub use program::{Held, Input, Kind, Length, Level, Output, Program, Values};
