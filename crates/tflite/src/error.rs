//! What can be wrong with a TensorFlow Lite model: always the place in it and the reason.

use std::io;

/// Why a model cannot be read, used or written as TensorFlow Lite's.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The system refused to read or write.
    #[error("{file}: it could not be read or written: {why}")]
    Io {
        /// The file.
        file: String,
        /// What the system said.
        why: io::Error,
    },
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
    #[error("{place} has no counterpart in TensorFlow Lite: {why}")]
    Export {
        /// The layer and op, or the parameter.
        place: String,
        /// What stands against it.
        why: String,
    },
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
}

/// A refusal of the op at hand: whoever walks the graph adds the place.
pub(crate) fn refuse<T>(why: impl Into<String>) -> Result<T> {
    Err(Error::Export { place: String::new(), why: why.into() })
}
