//! What can be wrong with a folder, with what is in it, or with what is asked of it.

use std::path::{Path, PathBuf};

/// The result of reading, building or using a model of a folder.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can be wrong with a folder, with what is in it, or with what is asked of it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file could not be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file is not what it should be.
    #[error("{}: {why}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// A line of a file is not what it should be.
    #[error("{}, line {line}: {why}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Its line, from 1.
        line: u64,
        /// What is wrong with it.
        why: String,
    },
    /// A file of tensors is damaged.
    #[error("{}: {source}", path.display())]
    Tensors {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: plimsoll_formats::safetensors::Error,
    },
    /// What is asked for cannot be done.
    #[error("{0}")]
    Asked(String),
    /// The engine refused.
    #[error(transparent)]
    Run(#[from] plimsoll_run::Error),
}

/// An error of the system by itself; whoever knows the file says it with `Error::at`.
impl From<std::io::Error> for Error {
    fn from(source: std::io::Error) -> Error {
        Error::Io { path: PathBuf::new(), source }
    }
}

impl Error {
    /// With the file, where it is not known yet.
    pub(crate) fn at(self, path: &Path) -> Error {
        match self {
            Error::Io { path: none, source } if none.as_os_str().is_empty() => {
                Error::Io { path: path.into(), source }
            }
            other => other,
        }
    }

    pub(crate) fn file(path: &Path, why: impl Into<String>) -> Error {
        Error::File { path: path.into(), why: why.into() }
    }

    pub(crate) fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Error {
        let path = path.to_path_buf();
        move |source| Error::Io { path, source }
    }

    pub(crate) fn tensors(path: &Path) -> impl FnOnce(plimsoll_formats::safetensors::Error) -> Error {
        use plimsoll_formats::safetensors::Error as Inner;
        let path = path.to_path_buf();
        // The file is named once.
        move |source| match source {
            Inner::File { source, .. } => Error::Tensors { path, source: *source },
            source => Error::Tensors { path, source },
        }
    }
}
