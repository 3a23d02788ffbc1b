//! Files in the formats of others, turned into numbers and back.
//!
//! Every reader here meets files that may be damaged or hostile: it checks a length before it allocates by it,
//! and answers with an error that names the file and, where there is one, the record.

mod element;
mod file_error;

pub mod csv;
pub mod example;
pub mod idx;
pub mod image;
pub mod npy;
pub mod npz;
#[cfg(feature = "parquet")]
pub mod parquet;
pub mod tfrecord;

pub use element::{Element, Kind};
pub use file_error::{FileError, Result};
