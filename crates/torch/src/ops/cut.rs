//! Parts of a tensor, and tensors with a part put into them.

use plimsoll_graph::{DType, IndexPutOps, TensorOps, Type};
use plimsoll_nn::blocks::Laid;
use plimsoll_run::{Result, Tensor};

use super::join::joined;
use super::{Table, Values, one};
use crate::call::{Call, axis};
use crate::error::refuse;

pub(super) const OPS: Table = &[
    ("aten.split.Tensor", |c| {
        let (x, size) = (c.laid("self")?, c.size("split_size")?);
        let at = c.axis("dim", x.rank())?;
        let n = x.shape()[at];
        if size == 0 {
            return Err(refuse("cuts into parts of no length"));
        }
        let sizes: Vec<usize> = (0..n.div_ceil(size).max(1)).map(|i| size.min(n - i * size)).collect();
        pieces(&x, at, &sizes)
    }),
    ("aten.split_with_sizes.default", |c| {
        let (x, sizes) = (c.laid("self")?, c.sizes("split_sizes")?);
        let at = c.axis("dim", x.rank())?;
        pieces(&x, at, &sizes)
    }),
    ("aten.chunk.default", |c| {
        let (x, chunks) = (c.laid("self")?, c.size("chunks")?);
        let at = c.axis("dim", x.rank())?;
        let n = x.shape()[at];
        let size = n.div_ceil(chunks.max(1)).max(1);
        let sizes: Vec<usize> = (0..n.div_ceil(size).max(1)).map(|i| size.min(n - i * size)).collect();
        pieces(&x, at, &sizes)
    }),
    ("aten.unbind.int", |c| {
        let x = c.laid("self")?;
        let at = c.axis("dim", x.rank())?;
        (0..x.shape()[at]).map(|i| Ok(selected(&x, at, i)?.into())).collect()
    }),
    ("aten.select.int", |c| {
        let x = c.laid("self")?;
        let (at, index) = (c.axis("dim", x.rank())?, c.int("index")?);
        let index = axis(index, x.shape()[at])?;
        one(selected(&x, at, index)?)
    }),
    ("aten.narrow.default", |c| {
        let x = c.laid("self")?;
        let (at, start, length) = (c.axis("dim", x.rank())?, c.size("start")?, c.size("length")?);
        one(sliced(&x, at, start, start + length, 1)?)
    }),
    ("aten.slice.Tensor", |c| {
        let x = c.laid("self")?;
        let at = c.axis("dim", x.rank())?;
        let (start, stop, step) = bounds(c, x.shape()[at])?;
        one(sliced(&x, at, start, stop, step)?)
    }),
    ("aten.slice_scatter.default", |c| {
        let (x, from) = (c.tensor("self")?, c.tensor("src")?);
        let at = c.axis("dim", x.shape().rank())?;
        let (start, stop, step) = bounds(c, x.shape()[at])?;
        one(put(&x, &from.cast(x.dtype())?, at, start, stop, step)?)
    }),
    ("aten.select_scatter.default", |c| {
        let (x, from) = (c.tensor("self")?, c.tensor("src")?);
        let at = c.axis("dim", x.shape().rank())?;
        let index = axis(c.int("index")?, x.shape()[at])?;
        let mut shape = x.shape().to_vec();
        shape[at] = 1;
        one(put(&x, &from.cast(x.dtype())?.reshape(shape)?, at, index, index + 1, 1)?)
    }),
    ("aten.diagonal.default", |c| {
        let x = c.laid("self")?;
        let (a, b, offset) = (c.axis("dim1", x.rank())?, c.axis("dim2", x.rank())?, c.int("offset")?);
        one(diagonal(&x, a, b, offset)?)
    }),
    ("aten.diff.default", |c| {
        let x = c.laid("self")?;
        let at = c.axis("dim", x.rank())?;
        let times = c.size("n")?;
        let more = [c.opt_laid("prepend")?, Some(x.clone()), c.opt_laid("append")?];
        let all: Vec<Laid> = more.into_iter().flatten().collect();
        let mut x = if all.len() == 1 { x } else { joined(&all, at, x.dtype())? };
        for _ in 0..times.min(x.shape()[at]) {
            let n = x.shape()[at];
            let (low, high) = (sliced(&x, at, 0, n.saturating_sub(1), 1)?, sliced(&x, at, 1.min(n), n, 1)?);
            x = Laid::zip(&[&high, &low], |t| {
                if t[0].dtype() == DType::Bool { t[0].not_equal(&t[1]) } else { t[0].sub(&t[1]) }
            })?;
        }
        one(x)
    }),
];

/// The diagonal of two axes, as a new last one.
pub(super) fn diagonal(x: &Laid, a: usize, b: usize, offset: i64) -> Result<Tensor> {
    if a == b {
        return Err(refuse("takes the diagonal of an axis with itself"));
    }
    let rest = (0..x.rank()).filter(|&at| at != a && at != b);
    let x = x.permute(&rest.chain([a, b]).collect::<Vec<_>>());
    let s = x.shape().to_vec();
    let (outer, [n, m]) = (&s[..s.len() - 2], [s[s.len() - 2], s[s.len() - 1]]);
    let (low, right) = ((-offset).max(0) as usize, offset.max(0) as usize);
    let count = n.saturating_sub(low).min(m.saturating_sub(right));
    if count == 0 {
        return Err(refuse(format!("takes the diagonal {offset} of {n} by {m}, which has no elements")));
    }
    let flat: Vec<usize> = outer.iter().copied().chain([n * m]).collect();
    let first = low * m + right;
    let x = x.reshape(flat)?.plain()?;
    cut(&x, outer.len(), first, first + (count - 1) * (m + 1) + 1, m + 1)
}

/// Parts of these lengths along an axis, each in the order in which the whole lies.
fn pieces(x: &Laid, at: usize, sizes: &[usize]) -> Values {
    let lying = x.order()[at] as isize;
    let parts = x.lying().split(lying, sizes)?;
    Ok(parts.into_iter().map(|part| Laid::ordered(part, x.order()).into()).collect())
}

/// One place along an axis, which goes.
pub(super) fn selected(x: &Laid, at: usize, index: usize) -> Result<Laid> {
    let mut shape = x.shape().to_vec();
    shape.remove(at);
    sliced(x, at, index, index + 1, 1)?.reshape(shape)
}

/// A range of an axis, as it lies.
pub(super) fn cut(x: &Tensor, at: usize, start: usize, stop: usize, step: usize) -> Result<Tensor> {
    x.slice(&[(at, start, stop, step)])
}

/// A range of an axis, in the order in which the whole lies.
pub(super) fn sliced(x: &Laid, at: usize, start: usize, stop: usize, step: usize) -> Result<Laid> {
    if start == 0 && step == 1 && stop == x.shape()[at] {
        return Ok(x.clone());
    }
    Ok(Laid::ordered(cut(x.lying(), x.order()[at], start, stop, step)?, x.order()))
}

/// A slice's bounds within an axis, as Python reads them.
fn bounds(c: &Call<'_, '_>, n: usize) -> Result<(usize, usize, usize)> {
    let within = |given: i64| {
        let from_start = if given < 0 { given.saturating_add(n as i64) } else { given };
        from_start.clamp(0, n as i64) as usize
    };
    let start = c.opt_int("start")?.map_or(0, within);
    let stop = c.opt_int("end")?.map_or(n, within).max(start);
    Ok((start, stop, c.size("step")?.max(1)))
}

/// `x` with others in the place of a range.
fn put(x: &Tensor, from: &Tensor, at: usize, start: usize, stop: usize, step: usize) -> Result<Tensor> {
    let n = x.shape()[at];
    let count = (stop - start).div_ceil(step);
    let mut shape = x.shape().to_vec();
    shape[at] = count;
    let from = from.broadcast(&shape[..])?;
    if step == 1 {
        let mut parts = Vec::new();
        if start > 0 {
            parts.push(cut(x, at, 0, start, 1)?);
        }
        parts.push(from);
        if stop < n {
            parts.push(cut(x, at, stop, n, 1)?);
        }
        return Tensor::concat(&parts.iter().collect::<Vec<_>>(), at as isize);
    }
    let places =
        x.iota_like(Type::new(DType::I64, [count]), 0)?.mul_scalar(step as f64)?.add_scalar(start as f64)?;
    x.index_put(&places, &from, at as isize)
}
