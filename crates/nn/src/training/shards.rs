//! Turns parameters and gradients into what each rank has of them, and back, where ranks share the optimizer's state.
//!
//! Of every parameter a rank has as many elements as any other, the last ones filled up with zeros: so all ranks run the same step.

use plimsoll_graph::ops::Rank;
use plimsoll_graph::{ExchangeOps, Shape, TensorOps, Type};
use plimsoll_run::{Result, Tensor};

use crate::{Param, Pieces};

/// A bucket of short values is complete when each rank has so many bytes of it: below that an exchange takes as long as an empty one.
const BUCKET_SHARE: usize = 128 << 10;

/// The shard of a parameter: the same one, with fewer elements and as many axes, since optimizers tell matrices from vectors by them.
pub(super) fn of_param(param: &Param, rank: Rank) -> Param {
    Param { ty: of_type(&param.ty, rank), ..param.clone() }
}

/// The type of a rank's shard of such a value.
pub(super) fn of_type(whole: &Type, rank: Rank) -> Type {
    let mut shape = vec![1; whole.shape.rank().max(1)];
    shape[whole.shape.rank().max(1) - 1] = whole.elements().div_ceil(rank.ranks);
    whole.with_shape(Shape::from(&shape[..]))
}

/// Which bytes of a value are this rank's own, of its shard the first ones.
pub(super) fn own_bytes(whole: &Type, rank: Rank) -> std::ops::Range<usize> {
    let (len, own) = (whole.elements(), whole.elements().div_ceil(rank.ranks));
    let at = |rank: usize| (rank * own).min(len) * whole.dtype.bytes();
    at(rank.rank)..at(rank.rank + 1)
}

/// How the shards of all ranks lie in a value: one after the other.
pub(super) fn pieces_of(whole: &Type, ranks: usize) -> Pieces {
    let own = |rank: usize| own_bytes(whole, Rank::new(rank, ranks)).len();
    let stride = of_type(whole, Rank::new(0, ranks)).bytes();
    Pieces { units: 1, stride, own: (0..ranks).map(own).collect() }
}

/// Neighbours of one element type that are exchanged together, because each of them is short.
pub(super) fn buckets<'t>(
    types: impl Iterator<Item = &'t Type>,
    ranks: usize,
) -> Vec<std::ops::Range<usize>> {
    let most = BUCKET_SHARE * ranks;
    let mut found: Vec<(std::ops::Range<usize>, usize, plimsoll_graph::DType)> = Vec::new();
    for (i, ty) in types.enumerate() {
        match found.last_mut() {
            Some((bucket, bytes, dtype)) if *dtype == ty.dtype && *bytes + ty.bytes() <= most => {
                (bucket.end, *bytes) = (i + 1, *bytes + ty.bytes());
            }
            _ => found.push((i..i + 1, ty.bytes(), ty.dtype)),
        }
    }
    found.into_iter().map(|(bucket, ..)| bucket).collect()
}

/// A value one after the other, filled up with zeros so that all ranks have as much: a row a rank.
fn rows(value: &Tensor, rank: Rank) -> Result<Tensor> {
    let own = value.shape().elements().div_ceil(rank.ranks);
    let missing = own * rank.ranks - value.shape().elements();
    let flat = value.flatten(0)?;
    let flat = if missing == 0 { flat } else { flat.pad(&[(0, missing)], 0.0)? };
    flat.reshape([rank.ranks, own])
}

/// The pieces of so many elements of a value, each of its own type.
pub(super) fn pieces<'t>(
    flat: &Tensor,
    types: impl ExactSizeIterator<Item = &'t Type>,
) -> Result<Vec<Tensor>> {
    let types: Vec<&Type> = types.collect();
    if let [only] = types[..] {
        return Ok(vec![flat.reshape(only.shape.clone())?]);
    }
    let sizes: Vec<usize> = types.iter().map(|ty| ty.elements()).collect();
    let split = flat.split(0, &sizes)?;
    split.iter().zip(types).map(|(piece, ty)| piece.reshape(ty.shape.clone())).collect()
}

/// This rank's shard of a value that all ranks have.
pub(super) fn own(value: &Tensor, rank: Rank) -> Result<Tensor> {
    let shape = of_type(value.ty(), rank).shape;
    let width = value.dtype().bytes();
    let bytes = own_bytes(value.ty(), rank);
    let (start, stop) = (bytes.start / width, bytes.end / width);
    let missing = shape.elements() - (stop - start);
    if start == stop {
        return value.full_like(value.ty().with_shape(shape), 0.0);
    }
    let found = value.flatten(0)?.narrow(0, start, stop)?;
    let found = if missing == 0 { found } else { found.pad(&[(0, missing)], 0.0)? };
    found.reshape(shape)
}

/// This rank's shards of the sums over ranks of values that are exchanged together. `scaled` is what a rank's values count.
pub(super) fn scattered(
    values: &[Tensor],
    rank: Rank,
    scaled: impl Fn(&Tensor) -> Result<Tensor>,
) -> Result<Vec<Tensor>> {
    let of_ranks = values.iter().map(|value| rows(value, rank)).collect::<Result<Vec<Tensor>>>()?;
    let all = match &of_ranks[..] {
        [only] => only.clone(),
        several => Tensor::concat(&several.iter().collect::<Vec<_>>(), 1)?,
    };
    let found = scaled(&all.flatten(0)?)?.reduce_scatter(rank)?;
    let types: Vec<Type> = values.iter().map(|value| of_type(value.ty(), rank)).collect();
    pieces(&found, types.iter())
}

/// A parameter of which every rank has its shard, gathered once more where a gradient reads it.
pub(crate) fn gathered_anew(shard: &Tensor, whole: &Type, rank: Rank) -> Result<Tensor> {
    let (own, len) = (shard.shape().elements(), whole.elements());
    let all = shard.flatten(0)?.all_gather_anew(rank, [own * rank.ranks])?;
    let all = if own * rank.ranks == len { all } else { all.narrow(0, 0, len)? };
    all.reshape(whole.shape.clone())
}

/// Values of which every rank has its shard, gathered together.
pub(super) fn gathered(shards: &[Tensor], wholes: &[&Type], rank: Rank) -> Result<Vec<Tensor>> {
    if let ([shard], [whole]) = (shards, wholes)
        && shard.shape().elements() * rank.ranks == whole.elements()
    {
        return Ok(vec![shard.flatten(0)?.all_gather(rank, whole.shape.clone())?]);
    }
    let flat = shards.iter().map(|shard| shard.flatten(0)).collect::<Result<Vec<Tensor>>>()?;
    let own = match &flat[..] {
        [only] => only.clone(),
        several => Tensor::concat(&several.iter().collect::<Vec<_>>(), 0)?,
    };
    let sizes: Vec<usize> = flat.iter().map(|shard| shard.shape().elements()).collect();
    let all = own.all_gather(rank, Shape::from([rank.ranks, sizes.iter().sum()]))?;
    let split = if sizes.len() == 1 { smallvec::smallvec![all] } else { all.split(1, &sizes)? };
    let cut = |(rows, whole): (&Tensor, &&Type)| {
        let (flat, len) = (rows.flatten(0)?, whole.elements());
        let flat = if flat.shape().elements() == len { flat } else { flat.narrow(0, 0, len)? };
        flat.reshape(whole.shape.clone())
    };
    split.iter().zip(wholes).map(cut).collect()
}

#[cfg(test)]
mod tests {
    use plimsoll_graph::DType;

    use super::*;

    #[test]
    fn shards_are_alike_keep_their_axes_and_cover_all() {
        for (shape, ranks) in [(vec![], 3), (vec![7], 3), (vec![2, 5], 4), (vec![1, 2], 8), (vec![64, 9], 1)]
        {
            let whole = Type::new(DType::F32, &shape[..]);
            let mut next = 0;
            for rank in 0..ranks {
                let rank = Rank::new(rank, ranks);
                assert_eq!(of_type(&whole, rank).shape.rank(), shape.len().max(1));
                let bytes = own_bytes(&whole, rank);
                assert_eq!(bytes.start, next.min(whole.bytes()));
                assert!(bytes.len() <= of_type(&whole, rank).bytes());
                next = bytes.end;
            }
            assert_eq!(next, whole.bytes());
        }
    }

    #[test]
    fn short_neighbours_of_one_type_share_a_bucket() {
        let ty = |dtype, n: usize| Type::new(dtype, [n]);
        let large = BUCKET_SHARE;
        let all = [
            ty(DType::F32, 8),
            ty(DType::F32, 9),
            ty(DType::F64, 8),
            ty(DType::F64, large),
            ty(DType::F64, 1),
        ];
        assert_eq!(buckets(all.iter(), 2), [0..2, 2..3, 3..4, 4..5]);
    }
}
