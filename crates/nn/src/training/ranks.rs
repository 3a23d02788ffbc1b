//! What several ranks that share a batch make of what each found on its own samples.

use plimsoll_graph::ops::Rank;
use plimsoll_graph::{ExchangeOps, TensorOps};
use plimsoll_run::{Result, Tensor};

use super::Recipe;
use super::layout::Layout;

/// A rank's share of a batch, while a step is traced.
pub(super) struct Shared<'a> {
    rank: Rank,
    /// Which share of the samples is its own: 0 where it only keeps the others company.
    share: &'a Tensor,
    first: &'a Tensor,
}

impl<'a> Shared<'a> {
    /// The share of a training's rank; nothing where it has all samples.
    pub(super) fn of(recipe: &Recipe, layout: &Layout, state: &'a [Tensor]) -> Option<Shared<'a>> {
        let share = layout.share?;
        Some(Shared { rank: recipe.rank, share: &state[share.of_batch], first: &state[share.first] })
    }

    /// The position in the whole batch of what is at a position of this rank's.
    pub(super) fn first(&self, own: &Tensor) -> Result<Tensor> {
        own.add(self.first)
    }

    /// A mean over all samples of a mean over this rank's.
    pub(super) fn mean(&self, own: &Tensor) -> Result<Tensor> {
        own.mul(&self.share.cast(own.dtype())?)?.all_reduce(self.rank)
    }

    /// The gradients of the mean loss, the last first: so they are complete on the way back through the model, and are exchanged while it
    /// goes on.
    pub(super) fn gradients(&self, own: &[Tensor]) -> Result<Vec<Tensor>> {
        let mut all = own.iter().rev().map(|grad| self.mean(grad)).collect::<Result<Vec<Tensor>>>()?;
        all.reverse();
        Ok(all)
    }

    /// What a layer sets itself, statistics of the rank's samples say, becomes the mean over all. What is counted in whole numbers is the
    /// same on all ranks, since it does not depend on samples.
    pub(super) fn statistic(&self, own: Option<&Tensor>) -> Result<Option<Tensor>> {
        match own {
            Some(own) if own.dtype().is_float() => self.mean(own).map(Some),
            own => Ok(own.cloned()),
        }
    }

    /// A total over all samples of a total over this rank's: of one that has none, nothing.
    pub(super) fn total(&self, own: &Tensor) -> Result<Tensor> {
        let none = self.share.full_like(self.share.ty().clone(), 0.0)?;
        let zero = own.full_like(own.ty().clone(), 0.0)?;
        self.share.greater(&none)?.select(own, &zero)?.all_reduce_total(self.rank)
    }
}
