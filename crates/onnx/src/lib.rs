//! ONNX files as models to train, and models as ONNX files.
//!
//! A file is read as plain data, within limits, and never runs anything ([`OnnxFile`]). Its graph is run over the engine's tensors
//! ([`OnnxModel`]): what is known beforehand (shapes, constants) is computed when the model is read, weights are parameters that train, batch
//! norm and dropout are put back into the form in which they train. What has no counterpart here is refused by op and node.
//!
//! `docs/onnx.md` lists the ops.

mod error;

// Made from a published schema, not written here.
#[rustfmt::skip]
#[path = "../third_party/messages.rs"]
mod messages;

mod constant;
mod limits;

mod functions;

mod file;

mod bind;
mod value;

mod call;
mod ops;

mod roles;
mod run;
mod write;

mod model;

mod inspect;

mod export;

#[cfg(test)]
mod hostile;

pub use bind::Lengths;
pub use constant::Constant;
pub use error::{Error, Result};
pub use export::write_model;
pub use file::{Axis, Graph, Node, OnnxFile, Port, Stored};
pub use inspect::{Inspection, WeightInfo, inspect};
pub use limits::Limits;
pub use model::{OnnxModel, evaluate};
pub use ops::names as op_names;
