//! Turns files into plain data and plain data into files: numbers, weights, models and curves.
//!
//! Files come from strangers, so every reader here is safe code that bounds what a file can make it do: no length field is
//! believed before it has been compared with the size of the file, no buffer is larger than the caller's [limits] say,
//! nothing recurses without a bound, and nothing found in a file is executed. Writers stream: they hold a header in memory,
//! never a second copy of the tensors.
//!
//! What is not here: tensors, layers and training. This crate knows the element types of `plimsoll-graph` and
//! nothing else of the workspace.
//!
//! [limits]: safetensors::Limits

mod deflated;
mod element;
mod file_error;
mod stored;

pub mod csv;
pub mod example;
pub mod idx;
pub mod image;
pub mod npy;
pub mod npz;
#[cfg(feature = "parquet")]
pub mod parquet;
pub mod tar;
pub mod tfrecord;

pub mod durable;
pub mod keras;
pub mod safetensors;
pub mod tensorboard;

pub use deflated::deflated_bytes;
pub use element::Element;
pub use file_error::{FileError, Result};
pub use stored::Stored;
