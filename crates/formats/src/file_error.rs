//! What can be wrong with a file, in one sentence that names it.

use std::io;
use std::path::{Path, PathBuf};

/// What is wrong with a file.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The system could not read or write it.
    #[error("{}: {source}", .file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Its content is not what the format promises.
    #[error("{}{}: {what}", .file.display(), Record(*.record))]
    Damaged {
        /// The file.
        file: PathBuf,
        /// The number of the record in it, from 0, where the damage has a place.
        record: Option<u64>,
        /// What is wrong there.
        what: String,
    },
    /// The content is sound but of a kind that is not read here.
    #[error("{}{}: {what}", .file.display(), Record(*.record))]
    Unsupported {
        /// The file.
        file: PathBuf,
        /// The number of the record in it, from 0, where there is one.
        record: Option<u64>,
        /// What it is, and what to do about it.
        what: String,
    },
}

/// A result whose error names a file.
pub type Result<T, E = FileError> = std::result::Result<T, E>;

/// Writes `, record 17`, or nothing.
struct Record(Option<u64>);

impl std::fmt::Display for Record {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.map_or(Ok(()), |record| write!(f, ", record {record}"))
    }
}

impl FileError {
    /// The content of `file` is not what the format promises.
    pub fn damaged(file: &Path, what: impl Into<String>) -> FileError {
        FileError::Damaged { file: file.into(), record: None, what: what.into() }
    }

    /// Record `record` of `file` is not what the format promises.
    pub fn damaged_at(file: &Path, record: u64, what: impl Into<String>) -> FileError {
        FileError::Damaged { file: file.into(), record: Some(record), what: what.into() }
    }

    /// The content of `file` is of a kind that is not read here.
    pub fn unsupported(file: &Path, what: impl Into<String>) -> FileError {
        FileError::Unsupported { file: file.into(), record: None, what: what.into() }
    }

    /// Tells a file that ends too early from one that the system cannot read.
    pub fn io(file: &Path, source: io::Error) -> FileError {
        match source.kind() {
            // A reader that knows which part ends has said so.
            io::ErrorKind::UnexpectedEof if source.get_ref().is_some() => {
                FileError::damaged(file, source.to_string())
            }
            io::ErrorKind::UnexpectedEof => FileError::damaged(file, "the file ends too early"),
            // Decompressors report damage this way.
            io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput => {
                FileError::damaged(file, source.to_string())
            }
            _ => FileError::Io { file: file.into(), source },
        }
    }

    /// The same error, at a record.
    #[must_use]
    pub fn at(self, at: u64) -> FileError {
        match self {
            FileError::Damaged { file, what, .. } => FileError::Damaged { file, record: Some(at), what },
            FileError::Unsupported { file, what, .. } => {
                FileError::Unsupported { file, record: Some(at), what }
            }
            io @ FileError::Io { .. } => io,
        }
    }

    /// The file that is meant.
    pub fn file(&self) -> &Path {
        match self {
            FileError::Io { file, .. }
            | FileError::Damaged { file, .. }
            | FileError::Unsupported { file, .. } => file,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_names_the_file_and_the_record() {
        let error = FileError::damaged(Path::new("a/b.idx"), "the magic number is wrong");
        assert_eq!(error.to_string(), "a/b.idx: the magic number is wrong");
        assert_eq!(error.at(17).to_string(), "a/b.idx, record 17: the magic number is wrong");
        let early = FileError::io(Path::new("x"), io::ErrorKind::UnexpectedEof.into());
        assert_eq!(early.to_string(), "x: the file ends too early");
    }
}
