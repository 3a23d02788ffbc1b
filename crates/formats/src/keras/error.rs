//! What can be wrong with a Keras file: always the file, the place in it and the reason.

use std::fmt;
use std::io;

/// Why a Keras file was refused.
#[derive(Debug, thiserror::Error)]
#[error("{file}: {reason}")]
pub struct Error {
    /// The file.
    pub file: String,
    /// What is wrong with it.
    pub reason: Reason,
}

/// What is wrong with a Keras file, and where.
#[derive(Debug, thiserror::Error)]
pub enum Reason {
    /// The system refused to read or write.
    #[error("it could not be read or written: {0}")]
    Io(#[from] io::Error),
    /// Neither a zip archive nor an HDF5 file.
    #[error("it is neither a .keras archive nor an HDF5 file")]
    Format,
    /// The list of weights that are spread over several files.
    #[error(
        "it lists weights that are spread over several files (shards); write them in one, by save_weights without max_shard_size, or save the whole model"
    )]
    Sharded,
    /// The archive is broken, or a member of it is not as it should be.
    #[error("archive member {member:?}: {reason}")]
    Member {
        /// The member.
        member: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Something is larger than the caller allows.
    #[error("{what} is {found}, over the limit of {limit}; raise the limit if you trust the file")]
    Limit {
        /// What is too large.
        what: String,
        /// How large it is.
        found: u64,
        /// How large it may be.
        limit: u64,
    },
    /// The configuration contradicts itself or is not that of a model.
    #[error("the configuration of {layer}: {reason}")]
    Config {
        /// The layer, by name, or the model.
        layer: String,
        /// What is wrong.
        reason: String,
    },
    /// The weights cannot be read.
    #[error("the weights at {path:?}: {reason}")]
    Weights {
        /// The group or dataset.
        path: String,
        /// What is wrong.
        reason: String,
    },
    /// The caller's buffer does not have the variable's size.
    #[error("variable {path:?} has {expected} bytes but {found} were given")]
    Size {
        /// The variable.
        path: String,
        /// Bytes it has.
        expected: usize,
        /// Bytes given.
        found: usize,
    },
}

impl Reason {
    pub(super) fn member(member: &str, reason: impl fmt::Display) -> Reason {
        Reason::Member { member: member.to_string(), reason: reason.to_string() }
    }

    pub(super) fn config(layer: &str, reason: impl fmt::Display) -> Reason {
        Reason::Config { layer: layer.to_string(), reason: reason.to_string() }
    }

    pub(super) fn weights(path: &str, reason: impl fmt::Display) -> Reason {
        Reason::Weights { path: path.to_string(), reason: reason.to_string() }
    }

    pub(super) fn limit(what: &str, found: u64, limit: u64) -> Reason {
        Reason::Limit { what: what.to_string(), found, limit }
    }

    /// This reason, for the file it belongs to.
    pub(super) fn of(self, file: &str) -> Error {
        Error { file: file.to_string(), reason: self }
    }
}
