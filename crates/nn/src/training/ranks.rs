//! What several ranks that share a batch make of what each found on its own samples.

use plimsoll_graph::ops::Rank;
use plimsoll_graph::{ExchangeOps, TensorOps, Type};
use plimsoll_run::{Result, Tensor};

use super::layout::Layout;
use super::{Recipe, shards};

/// A rank's share of a batch, while a step is traced.
pub(super) struct Shared<'a> {
    rank: Rank,
    /// Which share of the samples is its own: 0 where it only keeps the others company.
    share: &'a Tensor,
    first: &'a Tensor,
    /// Whether gradients are of a loss that counts by its share already.
    is_weighed: bool,
}

impl<'a> Shared<'a> {
    /// The share of a training's rank; nothing where it has all samples.
    pub(super) fn of(recipe: &Recipe, layout: &Layout, state: &'a [Tensor]) -> Option<Shared<'a>> {
        let share = layout.share?;
        Some(Shared {
            rank: recipe.rank,
            share: &state[share.of_batch],
            first: &state[share.first],
            is_weighed: recipe.weighs_loss(),
        })
    }

    /// The position in the whole batch of what is at a position of this rank's.
    pub(super) fn first(&self, own: &Tensor) -> Result<Tensor> {
        own.add(self.first)
    }

    /// Which share of the samples is this rank's.
    pub(super) fn share(&self) -> &'a Tensor {
        self.share
    }

    /// What this rank's values count among all ranks'.
    pub(super) fn counted(&self, own: &Tensor) -> Result<Tensor> {
        own.mul(&self.share.cast(own.dtype())?)
    }

    /// A mean over all samples of a mean over this rank's.
    pub(super) fn mean(&self, own: &Tensor) -> Result<Tensor> {
        self.counted(own)?.all_reduce(self.rank)
    }

    /// The gradient of the mean loss of all samples, of this rank's.
    fn gradient(&self, own: &Tensor) -> Result<Tensor> {
        if self.is_weighed { own.all_reduce(self.rank) } else { self.mean(own) }
    }

    /// The gradients of the mean loss, the last first: so they are complete on the way back through the model, and are exchanged while it
    /// goes on.
    pub(super) fn gradients(&self, own: &[Tensor]) -> Result<Vec<Tensor>> {
        self.in_buckets(own, |bucket| {
            let [_, _, ..] = bucket else { return bucket.iter().map(|grad| self.gradient(grad)).collect() };
            let flat = bucket.iter().map(|grad| grad.flatten(0)).collect::<Result<Vec<Tensor>>>()?;
            let mean = self.gradient(&Tensor::concat(&flat.iter().collect::<Vec<_>>(), 0)?)?;
            shards::pieces(&mean, bucket.iter().map(Tensor::ty))
        })
    }

    /// As [`Shared::gradients`], this rank's shards of them alone.
    pub(super) fn shards_of_gradients(&self, own: &[Tensor]) -> Result<Vec<Tensor>> {
        let counted = |all: &Tensor| if self.is_weighed { Ok(all.clone()) } else { self.counted(all) };
        self.in_buckets(own, |bucket| shards::scattered(bucket, self.rank, counted))
    }

    /// What is made of values, bucket by bucket, the last first.
    fn in_buckets(
        &self,
        own: &[Tensor],
        exchange: impl Fn(&[Tensor]) -> Result<Vec<Tensor>>,
    ) -> Result<Vec<Tensor>> {
        let buckets = shards::buckets(own.iter().map(Tensor::ty), self.rank.ranks);
        let mut all = Vec::with_capacity(buckets.len());
        for bucket in buckets.into_iter().rev() {
            all.push(exchange(&own[bucket])?);
        }
        Ok(all.into_iter().rev().flatten().collect())
    }

    /// This rank's shard of a value that all have.
    pub(super) fn shard(&self, value: &Tensor) -> Result<Tensor> {
        shards::own(value, self.rank)
    }

    /// Values of which all ranks have shards.
    pub(super) fn gathered(&self, own: &[Tensor], wholes: &[&Type]) -> Result<Vec<Tensor>> {
        let mut all = Vec::with_capacity(own.len());
        for bucket in shards::buckets(wholes.iter().copied(), self.rank.ranks) {
            all.extend(shards::gathered(&own[bucket.clone()], &wholes[bucket], self.rank)?);
        }
        Ok(all)
    }

    /// The sum over all ranks of what was made of shards.
    pub(super) fn sum(&self, own: &Tensor) -> Result<Tensor> {
        own.all_reduce(self.rank)
    }

    /// Whether something holds on all ranks.
    pub(super) fn all(&self, own: &Tensor) -> Result<Tensor> {
        let said = self.sum(&own.cast(plimsoll_graph::DType::F32)?)?;
        said.equal(&said.full_like(said.ty().clone(), self.rank.ranks as f64)?)
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
