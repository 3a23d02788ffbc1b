//! Turns named tensors into a `.safetensors` file and such a file into named tensors, one tensor at a time.
//!
//! The format: eight bytes with the length of a JSON header, the header (name → dtype, shape, byte range; string
//! metadata), then the tensors' bytes without gaps. It is the whole format, so it is written by hand here: a
//! [`Writer`] takes the tensors piece by piece (a checkpoint never needs a second copy in memory), and a [`Reader`]
//! copies one tensor at a time into a buffer of the caller's.
//!
//! ```
//! use plimsoll_formats::Element;
//! use plimsoll_formats::safetensors::{Limits, Reader, TensorView, write};
//! use std::collections::BTreeMap;
//! use std::io::Cursor;
//!
//! let weights = [1.0f32, 2.0, 3.0].map(f32::to_le_bytes).concat();
//! let tensor = TensorView { name: "dense/kernel", element: Element::F32, shape: &[3, 1], bytes: &weights };
//! let mut file = Vec::new();
//! write(&mut file, &[tensor], &BTreeMap::from([("step".into(), "7".into())]))?;
//!
//! let mut reader = Reader::new(Cursor::new(file), Limits::default())?;
//! assert_eq!(reader.metadata()["step"], "7");
//! let mut back = vec![0; reader.tensor("dense/kernel")?.bytes];
//! reader.read_into("dense/kernel", &mut back)?;
//! assert_eq!(back, weights);
//! # Ok::<(), plimsoll_formats::safetensors::Error>(())
//! ```

mod header;
mod read;
mod write;

pub use header::Tensor;
pub use read::{Limits, Reader};
pub use write::{Spec, TensorView, Writer, write};

use crate::Element;
use std::io;

/// What can be wrong with a `.safetensors` file, or with what is to become one.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The system refused to read or write.
    #[error("the file could not be read or written: {0}")]
    Io(#[from] io::Error),
    /// What is wrong with a file of that name.
    #[error("{file}: {source}")]
    File {
        /// The file.
        file: String,
        /// What is wrong with it.
        source: Box<Error>,
    },
    /// The file ends before what it announces.
    #[error("the file has {found} bytes but announces {expected}; it is torn or not a safetensors file")]
    Truncated {
        /// Bytes the header promises.
        expected: u64,
        /// Bytes there are.
        found: u64,
    },
    /// Bytes follow the last tensor.
    #[error("{0} bytes follow the last tensor; the file is not a safetensors file or was written over")]
    Trailing(u64),
    /// The header is larger than the caller allows.
    #[error("the header has {bytes} bytes, over the limit of {limit}; raise the limit if you trust the file")]
    HeaderTooLarge {
        /// Bytes the file announces.
        bytes: u64,
        /// Bytes the caller allows.
        limit: u64,
    },
    /// The header is not the JSON it should be.
    #[error("the header is not that of a safetensors file: {0}")]
    Header(String),
    /// A tensor's entry contradicts itself or the file.
    #[error("tensor {name:?}: {reason}")]
    Tensor {
        /// The tensor.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// No tensor of that name.
    #[error("the file holds no tensor {0:?}")]
    Missing(String),
    /// The caller's buffer does not have the tensor's size.
    #[error("tensor {name:?} has {expected} bytes but the buffer for it has {found}")]
    Buffer {
        /// The tensor.
        name: String,
        /// Bytes of the tensor.
        expected: usize,
        /// Bytes of the buffer.
        found: usize,
    },
    /// More or fewer bytes were written than announced.
    #[error("tensor {name:?} was announced with {expected} bytes but {found} were written")]
    Written {
        /// The tensor.
        name: String,
        /// Bytes announced.
        expected: usize,
        /// Bytes given.
        found: usize,
    },
}

impl Element {
    /// The name safetensors headers use.
    const fn safetensors_name(self) -> &'static str {
        match self {
            Element::F64 => "F64",
            Element::F32 => "F32",
            Element::F16 => "F16",
            Element::BF16 => "BF16",
            Element::I64 => "I64",
            Element::I32 => "I32",
            Element::I16 => "I16",
            Element::I8 => "I8",
            Element::U64 => "U64",
            Element::U32 => "U32",
            Element::U16 => "U16",
            Element::U8 => "U8",
            Element::Bool => "BOOL",
        }
    }

    fn from_safetensors_name(name: &str) -> Option<Element> {
        Element::ALL.into_iter().find(|element| element.safetensors_name() == name)
    }
}
