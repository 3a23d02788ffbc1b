//! What can be wrong with an exported program: always where, and what to do.

pub(crate) use plimsoll_nn::blocks::refuse;

/// Why an exported program cannot be read, used or trained.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file could not be read.
    #[error("{file}: {source}")]
    Io {
        /// The file.
        file: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The archive is damaged, or is none of an exported program.
    #[error("{file}: {why}")]
    Archive {
        /// The file.
        file: String,
        /// What is wrong.
        why: String,
    },
    /// The program says something that is not understood, or contradicts itself.
    #[error("{file}: {why}")]
    Program {
        /// The file.
        file: String,
        /// What is wrong.
        why: String,
    },
    /// The engine refused: an op that is not known, shapes that do not fit, memory that is not there.
    #[error(transparent)]
    Run(#[from] plimsoll_run::Error),
}

/// What this crate's functions return.
pub type Result<T, E = Error> = std::result::Result<T, E>;
