//! What can be wrong with a Keras model: always the place in it and the reason.

use plimsoll_formats::keras;
use plimsoll_nn::blocks::Unwritable;
pub(crate) use plimsoll_nn::blocks::refuse;

/// What the bridge's functions return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a Keras model cannot be used, trained or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file is damaged, or could not be read or written.
    #[error(transparent)]
    File(#[from] keras::Error),
    /// The file holds weights but no model.
    #[error("{file} holds weights without a model; open the model's own file and load these onto it")]
    NoModel {
        /// The file.
        file: String,
    },
    /// A layer, loss or optimizer that has no counterpart here.
    #[error("{place} is a {class}, {why}")]
    Unsupported {
        /// The place in the model: the names of models and layers.
        place: String,
        /// Its Python class.
        class: String,
        /// What stands against it.
        why: String,
    },
    /// A setting that is not what its class takes.
    #[error("{place}: {why}")]
    Config {
        /// The place in the model.
        place: String,
        /// What is wrong.
        why: String,
    },
    /// The variables in the file are not those of the model.
    #[error("{place}: {why}")]
    Variables {
        /// The layer, or the variable's path in the file.
        place: String,
        /// What does not fit.
        why: String,
    },
    /// A model of ours has a part that Keras has no layer for.
    #[error("{} has no counterpart in Keras: {}", .0.place, .0.why)]
    Export(Unwritable),
    /// The engine refused: shapes that do not fit, memory that is not there.
    #[error(transparent)]
    Run(#[from] plimsoll_run::Error),
}

impl Error {
    pub(crate) fn config(place: impl Into<String>, why: impl Into<String>) -> Error {
        Error::Config { place: place.into(), why: why.into() }
    }

    pub(crate) fn variables(place: impl Into<String>, why: impl Into<String>) -> Error {
        Error::Variables { place: place.into(), why: why.into() }
    }

    pub(crate) fn unsupported(
        place: impl Into<String>,
        class: impl Into<String>,
        why: impl Into<String>,
    ) -> Error {
        Error::Unsupported { place: place.into(), class: class.into(), why: why.into() }
    }

    pub(crate) fn export(place: impl Into<String>, why: impl Into<String>) -> Error {
        Error::Export(Unwritable::new(place, why))
    }
}
