//! Ops that make one number of many, and those that weigh along an axis.

use plimsoll_graph::{DType, Shape, SoftmaxOps, TensorOps};
use plimsoll_nn::blocks::{Laid, element, integer, reduce};
use plimsoll_run::{Result, Tensor};

use super::Table;
use crate::call::{Call, axis_of};
use crate::error::refuse;
use crate::value::Value;

pub(super) const TABLE: Table = &[
    ("ReduceSum", |c| over(c, |x, axes, keep| integer::arithmetic_one(x, |x| x.sum(axes, keep)))),
    ("ReduceMean", |c| {
        over(c, |x, axes, keep| match x.dtype().is_float() {
            true => x.mean(axes, keep),
            false => element::trunc(&x.cast(DType::F64)?.mean(axes, keep)?)?.cast(x.dtype()),
        })
    }),
    ("ReduceMax", |c| {
        over(c, |x, axes, keep| match x.dtype() {
            DType::Bool => nothing(x, axes, keep, 0.0).unwrap_or_else(|| reduce::any(x, axes, keep)),
            _ => nothing(x, axes, keep, f64::NEG_INFINITY).unwrap_or_else(|| x.max(axes, keep)),
        })
    }),
    ("ReduceMin", |c| {
        over(c, |x, axes, keep| match x.dtype() {
            DType::Bool => nothing(x, axes, keep, 1.0).unwrap_or_else(|| reduce::all_true(x, axes, keep)),
            _ => nothing(x, axes, keep, f64::INFINITY).unwrap_or_else(|| x.min(axes, keep)),
        })
    }),
    ("ReduceProd", |c| over(c, |x, axes, keep| integer::arithmetic_one(x, |x| x.prod(axes, keep)))),
    ("ReduceL1", |c| over(c, |x, axes, keep| x.abs()?.sum(axes, keep))),
    ("ReduceL2", |c| {
        over(c, |x, axes, keep| match x.dtype().is_float() {
            true => reduce::l2(x, axes, keep),
            false => reduce::l2(&x.cast(DType::F64)?, axes, keep)?.cast(x.dtype()),
        })
    }),
    ("ReduceSumSquare", |c| over(c, |x, axes, keep| x.square()?.sum(axes, keep))),
    ("ReduceLogSum", |c| over(c, |x, axes, keep| x.sum(axes, keep)?.log())),
    ("ReduceLogSumExp", |c| {
        over(c, |x, axes, keep| {
            nothing(x, axes, keep, f64::NEG_INFINITY).unwrap_or_else(|| reduce::log_sum_exp(x, axes, keep))
        })
    }),
    ("Softmax", |c| along(c, |x, axis| x.softmax(axis))),
    ("LogSoftmax", |c| along(c, |x, axis| x.log_softmax(axis))),
    ("LpNormalization", |c| {
        let x = c.x(0)?;
        let axis = axis_of(c.int("axis", -1)?, x.rank())?;
        let (lying, p) = (x.order()[axis], c.int("p", 2)?);
        let y = x.map(|x| {
            let size = match p {
                1 => x.abs()?.sum(&[lying], true)?,
                2 => reduce::l2(x, &[lying], true)?,
                _ => return Err(refuse(format!("takes the norm of power {p}"))),
            };
            // A row of zeros stays one.
            let zero = size.equal(&element::scalar(&size, 0.0)?)?;
            x.div(&zero.select(&element::scalar(&size, 1.0)?, &size)?)
        })?;
        Ok(vec![y.into()])
    }),
];

/// What a reduction over no elements gives, where our op gives none.
fn nothing(x: &Tensor, axes: &[usize], keep: bool, value: f64) -> Option<Result<Tensor>> {
    let axes: Vec<usize> = if axes.is_empty() { (0..x.shape().rank()).collect() } else { axes.to_vec() };
    if x.ty().elements() != 0 || !axes.iter().any(|&axis| x.shape()[axis] == 0) {
        return None;
    }
    let value = match x.dtype().range() {
        _ if x.dtype().is_float() || x.dtype() == DType::Bool => value,
        Some((low, high)) => {
            if value < 0.0 {
                low as f64
            } else {
                high as f64
            }
        }
        None => return Some(Err(refuse("looks for the largest of no elements"))),
    };
    let shape = x.shape().reduced(&axes, keep);
    Some(x.full_like(x.ty().with_shape(shape), value))
}

/// A reduction over axes that are an attribute in older opsets and an input in newer ones.
fn over(c: &mut Call<'_>, f: impl Fn(&Tensor, &[usize], bool) -> Result<Tensor>) -> Result<Vec<Value>> {
    let x = c.x(0)?;
    let keep = c.flag("keepdims", true)?;
    let is_input = c.opset >= 18 || (c.opset >= 13 && c.node.op == "ReduceSum");
    let axes = if is_input { c.maybe_ints(1)? } else { c.int_list("axes")? };
    let no_axes_no_op = c.flag("noop_with_empty_axes", false)?;
    let axes = axes.unwrap_or_default();
    if axes.is_empty() && no_axes_no_op {
        // Element by element, where the op does more than add up.
        let rank = x.rank();
        let y = x.map(|x| {
            let shape: Shape = x.shape().iter().copied().chain([1]).collect();
            let y = f(&x.reshape(shape)?, &[rank], false)?;
            Ok(y)
        })?;
        return Ok(vec![y.into()]);
    }
    let mut axes: Vec<usize> =
        if axes.is_empty() { (0..x.rank()).collect() } else { c.axes(&axes, x.rank())? };
    axes.sort_unstable();
    if axes.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(refuse("names an axis twice"));
    }
    if x.rank() == 0 {
        let single = x.reshape([1])?;
        return Ok(vec![Laid::from(f(&single.plain()?, &[0], false)?).into()]);
    }
    if keep {
        let lying: Vec<usize> = axes.iter().map(|&axis| x.order()[axis]).collect();
        let order = x.order().to_vec();
        return Ok(vec![Laid::ordered(f(x.lying(), &lying, true)?, &order).into()]);
    }
    // Axes that stay are read in the order in which they lie, where that is their order; else as they are read.
    let stay: Vec<usize> = (0..x.rank()).filter(|axis| !axes.contains(axis)).collect();
    let lying: Vec<usize> = stay.iter().map(|&axis| x.order()[axis]).collect();
    if lying.is_sorted() {
        let gone: Vec<usize> = axes.iter().map(|&axis| x.order()[axis]).collect();
        return Ok(vec![f(x.lying(), &gone, false)?.into()]);
    }
    Ok(vec![f(&x.plain()?, &axes, false)?.into()])
}

/// Before opset 13 everything behind an axis is one row.
pub(super) fn coerced(x: &Tensor, axis: i64, opset: i64) -> Result<(Tensor, usize, Shape)> {
    let shape = x.shape().clone();
    let axis = axis_of(axis, shape.rank())?;
    if opset >= 13 {
        return Ok((x.clone(), axis, shape));
    }
    let (rows, row) = (shape[..axis].iter().product(), shape[axis..].iter().product());
    Ok((x.reshape([rows, row])?, 1, shape))
}

fn along(c: &mut Call<'_>, f: impl Fn(&Tensor, isize) -> Result<Tensor>) -> Result<Vec<Value>> {
    let axis = c.int("axis", if c.opset < 13 { 1 } else { -1 })?;
    let x = c.x(0)?;
    if c.opset >= 13 {
        let axis = axis_of(axis, x.rank())?;
        let lying = x.order()[axis] as isize;
        return Ok(vec![x.map(|x| f(x, lying))?.into()]);
    }
    let (x, axis, shape) = coerced(&x.plain()?, axis, c.opset)?;
    Ok(vec![f(&x, axis as isize)?.reshape(shape)?.into()])
}
