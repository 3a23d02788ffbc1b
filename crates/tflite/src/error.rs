//! What can be wrong with a TensorFlow Lite model: always the place in it and the reason.

use plimsoll_formats::FileError;
use plimsoll_nn::blocks::Unwritable;

/// Why a model cannot be read, used or written as TensorFlow Lite's.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file could not be written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The file is not what the schema says.
    #[error("{what}: {why}")]
    Damaged {
        /// The part of the file.
        what: String,
        /// What is wrong.
        why: String,
    },
    /// An op, or a way to use it, that is not known here.
    #[error("op {index} is a {op}, {why}")]
    Unsupported {
        /// Its place in the file.
        index: usize,
        /// Its name.
        op: String,
        /// What stands against it.
        why: String,
    },
    /// A model of ours has a part that TensorFlow Lite has no ops for.
    #[error("{} has no counterpart in TensorFlow Lite: {}", .0.place, .0.why)]
    Export(Unwritable),
    /// A limit of memory that the model cannot be run in.
    #[error(
        "it runs in an arena of {least} bytes at the least that was found, and {limit} are allowed: allow more, or make the model or its inputs smaller"
    )]
    Arena {
        /// The smallest arena that was found.
        least: usize,
        /// What is allowed.
        limit: usize,
    },
    /// Data for a calibration that does not fit, or that is not there.
    #[error("calibration: {0}")]
    Calibration(String),
    /// The engine refused: shapes that do not fit, memory that is not there.
    #[error(transparent)]
    Run(#[from] plimsoll_run::Error),
}

/// What the functions of this crate return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn damaged(what: impl Into<String>, why: impl Into<String>) -> Error {
        Error::Damaged { what: what.into(), why: why.into() }
    }

    pub(crate) fn export(place: impl Into<String>, why: impl Into<String>) -> Error {
        Error::Export(Unwritable::new(place, why))
    }
}

/// A refusal of the op at hand: whoever walks the graph adds the place.
pub(crate) fn refuse<T>(why: impl Into<String>) -> Result<T> {
    Err(Error::export("", why))
}
