//! What can go wrong while training.

use std::path::{Path, PathBuf};

use plimsoll_device::ParseBytesError;

/// An error of training.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The engine refused or failed.
    #[error(transparent)]
    Run(#[from] plimsoll_run::Error),
    /// The data could not be read.
    #[error(transparent)]
    Data(#[from] plimsoll_data::Error),
    /// A size was not understood.
    #[error(transparent)]
    Size(#[from] ParseBytesError),
    /// The model and the data do not go together.
    #[error("{0}")]
    Mismatch(String),
    /// A file could not be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// Which file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// A folder holds no checkpoint that can be used.
    #[error("{} is no checkpoint to go on from: {why}", path.display())]
    Checkpoint {
        /// Which folder.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Training stopped; the state before the failed step is saved.
    #[error("training stopped at step {step}: {cause}; everything up to there is in {}", checkpoint.display())]
    Stopped {
        /// Updates done.
        step: u64,
        /// What happened.
        cause: Box<Error>,
        /// Where to go on from.
        checkpoint: PathBuf,
    },
    /// Training stopped and its state could not be saved; an earlier one is on disk.
    #[error(
        "training stopped at step {step}: {cause}; its state could not be saved any more, the last checkpoint is {}",
        checkpoint.display()
    )]
    Lost {
        /// Updates done.
        step: u64,
        /// What happened.
        cause: Box<Error>,
        /// Where to go on from.
        checkpoint: PathBuf,
    },
    /// So many steps in a row were not finite that going on makes no sense.
    #[error(
        "the loss was not finite for {steps} steps in a row; lower the learning rate, clip gradients, or look at the data"
    )]
    NotFinite {
        /// How many.
        steps: u64,
    },
}

/// The result of training something.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn file(path: &Path) -> impl FnOnce(std::io::Error) -> Error + '_ {
        move |source| Error::File { path: path.into(), source }
    }
}
