//! Where a pipeline stands, small enough to lie in every checkpoint.

use serde::{Deserialize, Serialize};

use crate::sample_reader::Cursor;

/// Where a pipeline stands between two batches: give it to [`Dataset::resume`](crate::Dataset::resume) of the same
/// pipeline, and the next batch is the one that would have come.
///
/// The state of shuffles is a function of seed, pass and position, so nothing else need be saved.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// Passes that are complete.
    pub pass: u64,
    /// Samples of this pass that have been used or dropped.
    pub sample: u64,
    /// Samples of this pass that the filters let through.
    pub kept: u64,
    /// Batches that have been delivered.
    pub batches: u64,
    /// Tells the pipeline that saved it from others.
    pub pipeline: u64,
}

impl Position {
    pub(crate) fn new(cursor: Cursor, pipeline: u64) -> Position {
        let Cursor { pass, position, kept, batches, .. } = cursor;
        Position { pass, sample: position, kept, batches, pipeline }
    }

    pub(crate) fn cursor(&self) -> Cursor {
        Cursor { pass: self.pass, position: self.sample, kept: self.kept, batches: self.batches, skipped: 0 }
    }
}
