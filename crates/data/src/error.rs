//! What can go wrong between a file and a batch.

use plimsoll_device::Bytes;
use plimsoll_formats::FileError;

/// Why a pipeline could not be built, or a batch not be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    // === Files ===
    /// A file or a record of it is damaged, missing or of another kind.
    #[error(transparent)]
    File(#[from] FileError),
    /// Nothing says what a path holds.
    #[error("{path} is no data set: {what}")]
    Unknown {
        /// The path as given.
        path: String,
        /// What was looked for.
        what: String,
    },

    /// A pass over the source makes no batch at all.
    #[error("{origin} gives no batch: {why}")]
    Empty {
        /// What the samples come from.
        origin: String,
        /// Why there is none.
        why: String,
    },

    /// A label is none of the classes.
    #[error("{origin}: the label of sample {sample}{name} is {value}; classes count from 0 to {most}")]
    Label {
        /// What the samples come from.
        origin: String,
        /// The number of the sample in its source.
        sample: u64,
        /// The sample's name in parentheses, where it has one.
        name: String,
        /// The label.
        value: i64,
        /// The largest that there can be.
        most: i64,
    },

    // === Budget ===
    /// The budget cannot hold the smallest pipeline of this kind.
    #[error(
        "a data pipeline of {budget} cannot hold this one: the least is {least:#}, of which one batch takes \
         {batch:#}, the shuffle window {window:#}, a thread with its scratch {worker:#}, and the source {source_held:#}"
    )]
    Budget {
        /// What was given.
        budget: Bytes,
        /// What would be enough.
        least: Bytes,
        /// Bytes of one batch.
        batch: Bytes,
        /// Bytes of the window in which a stream is shuffled.
        window: Bytes,
        /// Bytes of one thread: stack and scratch.
        worker: Bytes,
        /// Bytes that the source keeps in memory: indices, names, loaded arrays.
        source_held: Bytes,
    },
    /// The caller keeps every batch, so none can be filled.
    #[error("all {buffers} batches of the pipeline are held by the caller; drop one, or prefetch more")]
    AllHeld {
        /// How many there are.
        buffers: usize,
    },

    // === Stages ===
    /// Stages that do not go together.
    #[error("{0}")]
    Stage(String),
    /// A position of another pipeline.
    #[error("this position was saved by another pipeline: {0}")]
    Position(String),
    /// A step of the user's refused a sample.
    #[error("{stage} of sample {index}: {what}")]
    Step {
        /// The stage, as the counters name it.
        stage: String,
        /// The number of the sample in its source.
        index: u64,
        /// What it said.
        what: String,
    },
    /// A thread could not be started.
    #[error("no thread could be started for the data pipeline: {0}")]
    Thread(std::io::Error),
}

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// The refusal of a sample by a user's step: `.map` closures return it.
    pub fn refused(what: impl Into<String>) -> Error {
        Error::Step { stage: String::new(), index: 0, what: what.into() }
    }

    /// Whether it is about what a sample holds, so that [`OnError::Skip`](crate::OnError::Skip) would leave the sample out.
    ///
    /// ```
    /// assert!(plimsoll_data::Error::refused("too dark").is_of_a_sample());
    /// ```
    pub fn is_of_a_sample(&self) -> bool {
        use FileError::{Damaged, Unsupported};
        matches!(self, Error::File(Damaged { .. } | Unsupported { .. }) | Error::Step { .. })
    }

    /// The same error with the place where it happened, if it came from a user's step.
    pub(crate) fn in_stage(self, name: &str, at: u64) -> Error {
        match self {
            Error::Step { stage, what, .. } if stage.is_empty() => {
                Error::Step { stage: name.to_owned(), index: at, what }
            }
            other => other,
        }
    }
}
