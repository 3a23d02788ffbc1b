//! Elements by their rank: medians and others of a number, and places in what is sorted.

use plimsoll_graph::{DType, GatherOps, SortOps, TensorOps};
use plimsoll_run::{Result, Tensor};

use super::{Table, one};
use crate::call::Call;
use crate::error::refuse;
use crate::value::Value;

pub(super) const OPS: Table = &[
    ("aten.median.dim", |c| {
        let x = c.tensor("self")?;
        let at = c.axis("dim", x.shape().rank())?;
        let middle = x.shape().get(at).map_or(0, |n| n.saturating_sub(1) / 2);
        nth(c, &x, at, middle)
    }),
    ("aten.median.default", |c| {
        let x = c.laid("self")?;
        let n = x.shape().elements();
        let (values, _) = ranked(&x.reshape([n])?.plain()?, 0, n.saturating_sub(1) / 2)?;
        one(values.reshape([])?)
    }),
    ("aten.kthvalue.default", |c| {
        let (x, k) = (c.tensor("self")?, c.size("k")?);
        let at = c.axis("dim", x.shape().rank())?;
        let k = k.checked_sub(1).ok_or_else(|| refuse("counts ranks from 0; PyTorch does from 1"))?;
        nth(c, &x, at, k)
    }),
    ("aten.searchsorted.Tensor", |c| {
        let (line, x) = (c.tensor("sorted_sequence")?, c.tensor("self")?);
        let is_right = c.opt_text("side")?.map_or(c.flag("right")?, |side| side == "right");
        if c.opt_tensor("sorter")?.is_some() {
            return Err(refuse("is told an order to sort by, which is not known here"));
        }
        places(c, &x, &line, is_right)
    }),
    ("aten.bucketize.Tensor", |c| {
        let (x, line, is_right) = (c.tensor("self")?, c.tensor("boundaries")?, c.flag("right")?);
        places(c, &x, &line, is_right)
    }),
];

/// The element of a rank along an axis, and its place; the gradient goes to that place alone.
fn ranked(x: &Tensor, at: usize, rank: usize) -> Result<(Tensor, Tensor)> {
    let places = x.argsort(at as isize, false)?.slice(&[(at, rank, rank + 1, 1)])?;
    Ok((x.take_along(&places, at as isize)?, places.cast(DType::I64)?))
}

fn nth(c: &Call<'_, '_>, x: &Tensor, at: usize, rank: usize) -> Result<Vec<Value>> {
    let (values, places) = ranked(x, at, rank)?;
    if c.flag("keepdim")? {
        return Ok(vec![values.into(), places.into()]);
    }
    let mut shape = x.shape().to_vec();
    shape.remove(at);
    Ok(vec![values.reshape(&shape[..])?.into(), places.reshape(&shape[..])?.into()])
}

/// How many elements of a sorted line are below each number, or below and equal to it.
fn places(c: &Call<'_, '_>, x: &Tensor, line: &Tensor, counts_equal: bool) -> Result<Vec<Value>> {
    let _ = c.value("out_int32");
    if line.shape().rank() != 1 {
        return Err(refuse("looks in more than one sorted line, which is not known here"));
    }
    let mut wide = x.shape().to_vec();
    wide.push(1);
    let (x, line) = (x.reshape(&wide[..])?, line.cast(x.dtype())?);
    let is_below = if counts_equal { line.less_equal(&x)? } else { line.less(&x)? };
    let count = is_below.cast(DType::I64)?.sum(&[wide.len() - 1], false)?;
    one(count.cast(c.out_dtype(0)?)?)
}
