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
    /// Ranks were started with different programs, plans, limits or data: which differs in what.
    #[error("{0}")]
    RanksDiffer(String),
    /// This rank cannot train, and says why for all: the memory limit cannot be kept and it needs most, or something else is wrong and it is the first to say so.
    #[error("rank {0} cannot train, and says why")]
    RefusedBy(usize),
    /// A number that was set is none, or none that makes sense.
    #[error("{what} is {value}; it must be a number {must}")]
    Setting {
        /// What was set.
        what: String,
        /// To what.
        value: f64,
        /// What it must be.
        must: &'static str,
    },
    /// The data has not one batch.
    #[error("{what} has no samples{why}; there is nothing to do with it")]
    NoSamples {
        /// Which data.
        what: &'static str,
        /// Why not, where that is known.
        why: String,
    },
    /// Not one step of an epoch changed anything.
    #[error(
        "no batch of epoch {epoch} could be used: all {skipped} were left out, because their loss was not finite; look at \
         the data, lower the learning rate, or clip gradients"
    )]
    NoUpdate {
        /// The epoch, from 1.
        epoch: u64,
        /// Batches that were left out.
        skipped: u64,
    },
    /// A file could not be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// Which file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// A checkpoint is not what was written: a file is torn, changed or gone.
    #[error("the checkpoint {} is damaged: {why}", path.display())]
    Damaged {
        /// Which one.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// There are checkpoints, and not one that can be used.
    #[error("there is no checkpoint to go on from in {}, all are damaged: {}", folder.display(), listed(found))]
    AllDamaged {
        /// Where they are.
        folder: PathBuf,
        /// Each with what is wrong with it, the newest first.
        found: Vec<(PathBuf, String)>,
    },
    /// A checkpoint is whole, but of another training. Nothing was changed.
    #[error(
        "{} cannot be gone on from: {why}; ask for what it was begun with, or begin a new training",
        path.display()
    )]
    Unlike {
        /// Which one.
        path: PathBuf,
        /// What was, and what is asked for.
        why: String,
    },
    /// An epoch was begun on other data than it is to be finished on.
    #[error("epoch {epoch} was begun on other data: {why}; finish it on that, or begin a new training")]
    OtherData {
        /// The epoch, from 1.
        epoch: u64,
        /// What was, and what is asked for.
        why: String,
    },
    /// A file holds no weights for this model. Nothing was changed.
    #[error("{} does not hold the weights of this model: {why}", path.display())]
    Weights {
        /// Which file.
        path: PathBuf,
        /// What does not fit.
        why: String,
    },
    /// A checkpoint or weights could not be written as safetensors.
    #[error("{} cannot be written: {why}", path.display())]
    Unwritten {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
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

    /// The same, with the name of a file where it was not known.
    pub(crate) fn at(self, path: &Path) -> Error {
        match self {
            Error::File { path: none, source } if none.as_os_str().is_empty() => {
                Error::File { path: path.into(), source }
            }
            other => other,
        }
    }
}

fn listed(found: &[(PathBuf, String)]) -> String {
    let one = |(path, why): &(PathBuf, String)| format!("{}: {why}", path.display());
    found.iter().map(one).collect::<Vec<String>>().join("; ")
}
