//! What can be wrong with a record.

use std::path::PathBuf;

/// An error of reading or writing a report.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file could not be read.
    #[error("{}: {source}", path.display())]
    File {
        /// Which file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// A file is larger than any record.
    #[error("{} has {bytes} bytes, more than the {most} that a record may have; it is no record of a run", path.display())]
    TooLarge {
        /// Which file.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// The most that is read.
        most: u64,
    },
    /// There is no record at a path.
    #[error(
        "{} is neither the folder of a run (with its plan.json) nor a plan; name a folder that plimsoll train wrote or a file that plimsoll plan --out did",
        path.display()
    )]
    NoRecord {
        /// Where.
        path: PathBuf,
    },
    /// The folder of a run has no record of its step.
    #[error(
        "{} has no step.json: the run ended before its step was recorded, or the file was moved away; put it back, or train again",
        folder.display()
    )]
    NoStep {
        /// The run's folder.
        folder: PathBuf,
    },
    /// What a file says is wrong, or of another version.
    #[error(transparent)]
    Record(#[from] plimsoll_record::Error),
}

/// The result of reading or writing a report.
pub type Result<T, E = Error> = std::result::Result<T, E>;
