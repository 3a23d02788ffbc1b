//! What several ranks that share a batch make of what each found on its own samples.

use plimsoll_graph::ops::Rank;
use plimsoll_graph::{ExchangeOps, TensorOps, Type};
use plimsoll_run::{Result, Tensor};

use super::layout::Layout;
use super::{Recipe, shards};

/// A rank's share of a batch, while a step is traced.
pub(super) struct Shared<'a> {
    /// Among those whose values count, each by its share: all ranks, or those with the same stage.
    rank: Rank,
    /// Among those that have other samples.
    of_batch: Rank,
    /// Among those that have other parts of the weights, or other shards of the state.
    apart: Rank,
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
        let of_batch = recipe.parallel.samples_of(recipe.rank);
        Some(Shared {
            rank: if recipe.is_staged() { of_batch } else { recipe.rank },
            of_batch,
            apart: if recipe.is_parted() { recipe.of_model() } else { recipe.rank },
            share: &state[share.of_batch],
            first: &state[share.first],
            is_weighed: recipe.weighs_loss(),
        })
    }

    /// The position in the whole batch of what is at a position of this rank's.
    pub(super) fn first(&self, own: &Tensor) -> Result<Tensor> {
        own.add(self.first)
    }

    /// Whether others have other samples.
    pub(super) fn is_batch_shared(&self) -> bool {
        self.of_batch.ranks > 1
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

    /// The gradients of the mean loss, the last first: so they are complete on the way back through the model, and are exchanged while it
    /// goes on.
    pub(super) fn gradients(&self, own: &[Tensor]) -> Result<Vec<Tensor>> {
        self.gradients_over(self.rank, own)
    }

    /// The same of weights that this rank has a part of, and so has one in each group.
    pub(super) fn gradients_of_parts(&self, own: &[Tensor]) -> Result<Vec<Tensor>> {
        self.gradients_over(self.of_batch, own)
    }

    fn gradients_over(&self, of: Rank, own: &[Tensor]) -> Result<Vec<Tensor>> {
        let gradient = |own: &Tensor| if self.is_weighed { own.all_reduce(of) } else { self.mean(own) };
        self.in_buckets(own, |bucket| {
            let [_, _, ..] = bucket else { return bucket.iter().map(gradient).collect() };
            let flat = bucket.iter().map(|grad| grad.flatten(0)).collect::<Result<Vec<Tensor>>>()?;
            let mean = gradient(&Tensor::concat(&flat.iter().collect::<Vec<_>>(), 0)?)?;
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

    /// The sum over ranks of what was made of shards or parts.
    pub(super) fn sum(&self, own: &Tensor) -> Result<Tensor> {
        own.all_reduce(self.apart)
    }

    /// Whether something holds on all ranks.
    pub(super) fn all(&self, own: &Tensor) -> Result<Tensor> {
        let said = self.sum(&own.cast(plimsoll_graph::DType::F32)?)?;
        said.equal(&said.full_like(said.ty().clone(), self.apart.ranks as f64)?)
    }

    /// What a layer sets itself, statistics of the rank's samples say, becomes the mean over all. What is counted in whole numbers is the
    /// same on all ranks, since it does not depend on samples. Of one of which this rank has a part, others are with those of its place.
    pub(super) fn statistic(&self, own: Option<&Tensor>, is_part: bool) -> Result<Option<Tensor>> {
        match own {
            Some(own) if own.dtype().is_float() && is_part => {
                let counted = self.counted(own)?.mul_scalar(self.apart.ranks as f64)?;
                counted.all_reduce(self.of_batch).map(Some)
            }
            Some(own) if own.dtype().is_float() => self.mean(own).map(Some),
            own => Ok(own.cloned()),
        }
    }

    /// A total over all samples of a total over this rank's: of one that has none, nothing.
    pub(super) fn total(&self, own: &Tensor) -> Result<Tensor> {
        let none = self.share.full_like(self.share.ty().clone(), 0.0)?;
        let zero = own.full_like(own.ty().clone(), 0.0)?;
        self.share.greater(&none)?.select(own, &zero)?.all_reduce_total(self.of_batch)
    }
}
