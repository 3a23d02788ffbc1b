//! What can be wrong with an ONNX model: always the place in it and the reason.

use std::io;

use plimsoll_nn::blocks::Unwritable;
pub(crate) use plimsoll_nn::blocks::refuse;

/// Why an ONNX model cannot be read, used or written.
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
    #[error("{file}: {why}")]
    Damaged {
        /// The file.
        file: String,
        /// What is wrong, and where.
        why: String,
    },
    /// Something is larger than the caller allows.
    #[error("{file}: {what} is {found}, over the limit of {limit}; raise the limit if you trust the file")]
    Limit {
        /// The file.
        file: String,
        /// What is too large.
        what: &'static str,
        /// How large it is.
        found: u64,
        /// How large it may be.
        limit: u64,
    },
    /// An op, or a way to use it, that has no counterpart here.
    #[error("{node} is a {op}, {why}")]
    Unsupported {
        /// The node, by name or by what it makes.
        node: String,
        /// Its op.
        op: String,
        /// What stands against it.
        why: String,
    },
    /// An input that does not fit, or that is not said enough of.
    #[error("input {name}: {why}")]
    Input {
        /// Its name.
        name: String,
        /// What is wrong.
        why: String,
    },
    /// A model of ours has a part that cannot be written down in ONNX.
    #[error("{} has no counterpart in ONNX: {}", .0.place, .0.why)]
    Export(Unwritable),
    /// The engine refused: shapes that do not fit, memory that is not there.
    #[error(transparent)]
    Run(#[from] plimsoll_run::Error),
}

/// What the bridge's functions return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn damaged(file: &str, why: impl Into<String>) -> Error {
        Error::Damaged { file: file.into(), why: why.into() }
    }

    pub(crate) fn export(place: impl Into<String>, why: impl Into<String>) -> Error {
        Error::Export(Unwritable::new(place, why))
    }
}
