//! What can be wrong with a file, an arena or a call: which, where, and what to do.

use alloc::string::String;
use core::fmt;

/// Why a model was refused, or why it did not run.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The file is not a whole `.tflite` file.
    Damaged {
        /// What could not be read.
        what: &'static str,
        /// At which byte of the file.
        at: usize,
    },
    /// The file says more of something than this reader takes.
    Limit {
        /// What there is too much of.
        what: &'static str,
        /// How much the file has.
        found: usize,
        /// How much may be.
        most: usize,
    },
    /// An operator that cannot be run.
    Refused {
        /// TensorFlow Lite's name of it.
        op: &'static str,
        /// Which of the file's operators it is.
        index: usize,
        /// What is not supported or does not fit.
        why: &'static str,
    },
    /// An operator that is no builtin one.
    Custom {
        /// Its name in the file.
        name: String,
        /// Which of the file's operators it is.
        index: usize,
    },
    /// A tensor whose description means nothing, or nothing that is supported.
    Tensor {
        /// Which of the file's tensors it is.
        index: usize,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The arena has too few bytes.
    Arena {
        /// What [`Model::arena_bytes`](crate::Model::arena_bytes) says.
        need: usize,
        /// What was given.
        have: usize,
    },
    /// There is no such input or output.
    Number {
        /// `input` or `output`.
        what: &'static str,
        /// Which was asked for.
        index: usize,
        /// How many there are.
        count: usize,
    },
    /// A slice of the wrong length.
    Length {
        /// Of what.
        what: &'static str,
        /// How many values it must have.
        need: usize,
        /// How many it has.
        have: usize,
    },
    /// Values of this type cannot be converted to or from `f32`; read or write their bytes.
    Type {
        /// `input` or `output`.
        what: &'static str,
        /// Which.
        index: usize,
    },
    /// A value that an operator met while running is out of its range.
    Value {
        /// The operator.
        op: &'static str,
        /// Which of the file's operators it is.
        index: usize,
        /// What was wrong.
        why: &'static str,
    },
    /// A rule of this crate was broken: please report it.
    Bug(&'static str),
}

/// A result of this crate.
pub type Result<T> = core::result::Result<T, Error>;

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Damaged { what, at } => {
                write!(f, "not a whole .tflite file: {what} cannot be read at byte {at}")
            }
            Self::Limit { what, found, most } => {
                write!(f, "the file has {found} {what}; at most {most} are read")
            }
            Self::Refused { op, index, why } => write!(f, "operator {index} ({op}) cannot be run: {why}"),
            Self::Custom { name, index } => write!(
                f,
                "operator {index} is the custom operator '{name}', which cannot be run; convert with builtin operators only"
            ),
            Self::Tensor { index, why } => write!(f, "tensor {index} cannot be used: {why}"),
            Self::Arena { need, have } => {
                write!(f, "the arena has {have} bytes and the model needs {need}; see `Model::arena_bytes`")
            }
            Self::Number { what, index, count } => {
                write!(f, "there is no {what} {index}; the model has {count}, counted from 0")
            }
            Self::Length { what, need, have } => write!(f, "{what} must be {need} and are {have}"),
            Self::Type { what, index } => write!(
                f,
                "values of {what} {index} are no numbers to convert to or from f32; use its bytes instead"
            ),
            Self::Value { op, index, why } => write!(f, "operator {index} ({op}) stopped: {why}"),
            Self::Bug(what) => write!(f, "a rule of plimsoll-lite was broken ({what}); please report it"),
        }
    }
}

#[cfg(feature = "std")]
impl std::error::Error for Error {}
