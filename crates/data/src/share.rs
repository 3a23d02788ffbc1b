//! A rank's own samples of every batch, where several ranks train on one pipeline.
//!
//! The batches are those of a single rank, whatever the number of ranks: each is cut as evenly as whole samples allow, in the order of ranks. Where
//! it is known beforehand which samples a batch is made of, a rank reads its own and no others. Filters, streams, samples of varying
//! length and what is done to whole batches need all of a batch, and a rank keeps its own of that.

use std::ops::Range;

use plimsoll_graph::ops::Rank;

use crate::recipe::Recipe;

/// Which samples of a whole batch a batch has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchShare {
    /// The position in the whole batch of the first.
    pub first: usize,
    /// How many. Where there are fewer samples than ranks this may be none: then the batch has one sample all the same, which another
    /// rank counts.
    pub samples: usize,
    /// Samples of the whole batch.
    pub whole: usize,
}

impl BatchShare {
    /// All of a batch.
    pub(crate) fn all(samples: usize) -> BatchShare {
        BatchShare { first: 0, samples, whole: samples }
    }

    pub(crate) fn of(rank: Option<Rank>, whole: usize) -> BatchShare {
        let Some(rank) = rank else { return BatchShare::all(whole) };
        let own = rank.shard(whole);
        BatchShare { first: own.start, samples: own.len(), whole }
    }

    /// The rows of the whole batch that the batch has: one where none is its own.
    pub(crate) fn rows(&self) -> Range<usize> {
        match self.samples {
            0 => 0..self.whole.min(1),
            n => self.first..self.first + n,
        }
    }
}

impl Recipe {
    /// Whether only the rank's own samples of a batch are read.
    pub(crate) fn is_cut(&self) -> bool {
        let varies = self.spec.iter().any(|field| field.varying);
        self.share.is_some() && self.order.is_some() && !self.staged && self.batch_steps.is_empty() && !varies
    }

    /// The most rows of a batch that are read here.
    pub(crate) fn rows(&self) -> usize {
        match self.share.filter(|_| self.is_cut()) {
            Some(rank) => self.batch.div_ceil(rank.ranks).max(1),
            None => self.batch,
        }
    }

    /// The rows of a batch of so many samples that are read here.
    pub(crate) fn rows_of(&self, whole: usize) -> Range<usize> {
        if self.is_cut() { BatchShare::of(self.share, whole).rows() } else { 0..whole }
    }
}
