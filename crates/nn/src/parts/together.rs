//! What ranks find together of values of which each has a part: rows of a table, cross-entropy over classes, the place of the largest, masks.

use plimsoll_graph::ops::{self, Rank};
use plimsoll_graph::{DType, ExchangeOps, GatherOps, GradientOps, RandomOps, Scalar, TensorOps, Type};
use plimsoll_run::{Result, Tensor};

use super::Cut;

/// Far below any logit, and still a number: what fills up a part counts for nothing.
const NOTHING: f64 = -1e30;

/// A part of a value, and of which.
pub(super) struct Part<'a> {
    pub(super) own: &'a Tensor,
    pub(super) whole: &'a Type,
    pub(super) cut: Cut,
    pub(super) rank: Rank,
}

impl Part<'_> {
    /// Places in this part of places in the whole, and which of them are here.
    fn places(&self, of_whole: &Tensor) -> Result<(Tensor, Tensor)> {
        let own = self.cut.places(self.whole, self.rank);
        let here = of_whole.add_scalar(-(own.start as f64))?;
        let bound = |at: f64| here.full_like(Type::new(here.dtype(), []), at);
        let inside = here.greater_equal(&bound(0.0)?)?.and(&here.less(&bound(own.len() as f64)?)?)?;
        Ok((here.clamp(0.0, own.len().max(1) as f64 - 1.0)?, inside))
    }

    /// The part with what fills it up far below everything else.
    fn bounded(&self, x: &Tensor) -> Result<Tensor> {
        let own = self.cut.places(self.whole, self.rank).len();
        let len = x.shape()[self.cut.axis];
        if own == len {
            return Ok(x.clone());
        }
        let mut shape = vec![1; x.shape().rank()];
        shape[self.cut.axis] = len;
        let place = x.iota_like(Type::new(DType::I64, &shape[..]), self.cut.axis)?;
        let is_own = place.less(&place.full_like(Type::new(DType::I64, []), own as f64)?)?;
        is_own.select(x, &x.full_like(Type::new(x.dtype(), []), NOTHING)?)
    }

    /// Rows of a table of which each rank has some.
    pub(super) fn rows(&self, indices: &Tensor) -> Result<Tensor> {
        let (here, inside) = self.places(indices)?;
        let rows = self.own.embedding(&here)?;
        let mut column = inside.shape().clone();
        column.push(1);
        let none = rows.full_like(Type::new(rows.dtype(), []), 0.0)?;
        inside.reshape(column)?.select(&rows, &none)?.all_reduce(self.rank)
    }

    /// Cross-entropy over classes of which each rank has some, a sample, and the log of the sum: as the op has it.
    pub(super) fn cross_entropy(&self, labels: &Tensor) -> Result<[Tensor; 2]> {
        let x = self.bounded(&self.own.cast(self.own.dtype().accumulator())?)?;
        let last = x.shape().rank() - 1;
        // Of the largest no gradient is needed: what it is comes to nothing.
        let most = x.stop_gradient()?.max(&[last], true)?.all_reduce_max(self.rank)?.stop_gradient()?;
        let sum = x.sub(&most)?.exp()?.sum(&[last], true)?;
        let mut column = labels.shape().clone();
        column.push(1);
        let (here, inside) = self.places(&labels.reshape(column)?)?;
        let none = x.full_like(Type::new(x.dtype(), []), 0.0)?;
        let label = inside.select(&x.take_along(&here, last as isize)?, &none)?;
        // Both in one exchange.
        let both = Tensor::concat(&[&sum, &label], last as isize)?.all_reduce(self.rank)?;
        let both = both.split(last as isize, &[1, 1])?;
        let lse = both[0].log()?.add(&most)?;
        let loss = lse.sub(&both[1])?;
        Ok([loss.reshape(labels.shape().clone())?, lse.reshape(labels.shape().clone())?])
    }

    /// The place of the largest along the axis that is cut, the first of equals.
    pub(super) fn largest(&self) -> Result<Tensor> {
        let x = self.bounded(self.own)?.stop_gradient()?;
        let (axis, all) = (self.cut.axis, self.whole.shape[self.cut.axis] as f64);
        let own = x.max(&[axis], false)?;
        let most = own.all_reduce_max(self.rank)?;
        let start = self.cut.places(self.whole, self.rank).start as f64;
        // The first place is the one that is farthest from the end.
        let left = x.argmax(axis as isize)?.rsub_scalar(all - start)?;
        let none = left.full_like(Type::new(left.dtype(), []), 0.0)?;
        let left = own.equal(&most)?.select(&left, &none)?;
        left.all_reduce_max(self.rank)?.rsub_scalar(all)
    }

    /// The part with the mask that the whole would have.
    pub(super) fn dropped(&self, op: &ops::Dropout, key: &Tensor) -> Result<Tensor> {
        let ones = self.own.full_like(self.whole.clone(), 1.0)?;
        let mask = self.cut.own(&ones.dropout(op.rate.0, key, op.stream)?, self.rank)?;
        self.own.mul(&mask)
    }
}

/// The logits of a linear layer, capped where they are.
pub(super) fn logits(x: &Tensor, weight: &Tensor, cap: Option<Scalar>) -> Result<Tensor> {
    let flat = if x.shape().rank() < 2 { x.reshape([1, x.shape().elements()])? } else { x.clone() };
    let y = flat.matmul_with(weight, None, false, true)?;
    let y = match cap {
        Some(Scalar(cap)) => y.mul_scalar(1.0 / cap)?.tanh()?.mul_scalar(cap)?,
        None => y,
    };
    if x.shape().rank() < 2 { y.flatten(0) } else { Ok(y) }
}
