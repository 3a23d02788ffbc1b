//! Turns a batch norm over one rank's samples into one over the samples of all ranks that share a batch.

use plimsoll_graph::ops::Rank;
use plimsoll_graph::{DType, ExchangeOps, NormOps, TensorOps, Type};
use plimsoll_run::{Result, Tensor};
use rustc_hash::FxHashMap;

use crate::Net;

/// The ranks that statistics are taken with.
pub(crate) struct Synced {
    rank: Rank,
    /// Which share of the batch is this rank's.
    share: Tensor,
    /// How many there are on all ranks together, by how many there are here.
    counts: FxHashMap<usize, Tensor>,
}

impl Net {
    /// The same net with statistics of batches over all ranks, of whose samples such a share is this one's.
    pub(crate) fn synced(mut self, rank: Rank, share: &Tensor) -> Net {
        self.synced = Some(Synced { rank, share: share.clone(), counts: FxHashMap::default() });
        self
    }

    /// Whether statistics of a batch are taken over all ranks that share it ([`Recipe::sync_batch_norm`](crate::Recipe::sync_batch_norm)).
    pub fn is_synced(&self) -> bool {
        self.synced.is_some()
    }

    /// y = γ (x - mean) / √(var + ε) + β over all axes but the last, the mean and the biased variance: of the samples at hand, or of all
    /// ranks' where they take statistics together. Layers of other systems that norm batches call it.
    #[track_caller]
    pub fn batch_norm_of(
        &self,
        x: &Tensor,
        gamma: &Tensor,
        beta: &Tensor,
        eps: f64,
    ) -> Result<(Tensor, Tensor, Tensor)> {
        let Some(synced) = &self.synced else { return x.batch_norm(gamma, beta, eps) };
        let wide = x.cast(gamma.dtype())?;
        let axes: Vec<usize> = (0..x.shape().rank().saturating_sub(1)).collect();
        let share = synced.share.cast(gamma.dtype())?;
        let over_all = |own: &Tensor| own.mean(&axes, false)?.mul(&share)?.all_reduce(synced.rank);
        let mean = over_all(&wide)?;
        // About the mean of all, since a difference of squares would lose what it is about.
        let centred = wide.sub(&mean)?;
        let var = over_all(&centred.square()?)?;
        let scale = var.add_scalar(eps)?.rsqrt()?.mul(gamma)?;
        let y = centred.mul(&scale)?.add(beta)?.cast(x.dtype())?;
        Ok((y, mean, var))
    }

    /// The unbiased variance of a biased one over all axes of x but the last: n / (n - 1) of it, n being all ranks' where they take statistics
    /// together.
    #[track_caller]
    pub fn unbiased(&mut self, var: &Tensor, x: &Tensor) -> Result<Tensor> {
        let channels = x.shape().last().copied().unwrap_or(1);
        let (n, rows) = (x.ty().elements() / channels.max(1), x.shape().first().copied().unwrap_or(1));
        let Some(synced) = &mut self.synced else {
            let n = n as f64;
            return var.mul_scalar(n / (n - 1.0).max(1.0));
        };
        let all = match synced.counts.get(&n) {
            Some(known) => known.clone(),
            None => {
                let none = var.full_like(Type::new(DType::F64, []), 0.0)?;
                // Counted, and not written down: how many there are is no part of the step, which is the same for every number of samples.
                let own = var.full_like(Type::new(DType::F64, [rows]), 1.0)?.sum(&[], false)?;
                let own = own.mul_scalar(n as f64 / rows.max(1) as f64)?;
                // A rank without samples has one to keep the others company, which does not count.
                let all = synced.share.greater(&none)?.select(&own, &none)?.all_reduce(synced.rank)?;
                synced.counts.insert(n, all.clone());
                all
            }
        };
        let less = all.add_scalar(-1.0)?;
        let one = less.full_like(less.ty().clone(), 1.0)?;
        var.mul(&all.div(&less.maximum(&one)?)?.cast(var.dtype())?)
    }
}
