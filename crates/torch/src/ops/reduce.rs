//! Sums, means, extremes, and what runs along an axis.

use plimsoll_graph::{CumulativeOps, DType, GatherOps, GradientOps, SoftmaxOps, SortOps, TensorOps, Type};
use plimsoll_run::{Result, Tensor};

use super::elementwise::{converted, length};
use super::{Table, Values, one};
use crate::call::Call;
use crate::error::refuse;
use plimsoll_nn::blocks::Laid;

pub(super) const OPS: Table = &[
    ("aten.sum.default", |c| reduced(c, false, |x, axes, keep| x.sum(axes, keep))),
    ("aten.sum.dim_IntList", |c| reduced(c, true, |x, axes, keep| x.sum(axes, keep))),
    ("aten.mean.default", |c| reduced(c, false, |x, axes, keep| x.mean(axes, keep))),
    ("aten.mean.dim", |c| reduced(c, true, |x, axes, keep| x.mean(axes, keep))),
    ("aten.prod.default", |c| reduced(c, false, |x, axes, keep| x.prod(axes, keep))),
    ("aten.prod.dim_int", |c| reduced(c, true, |x, axes, keep| x.prod(axes, keep))),
    ("aten.amax.default", |c| reduced(c, true, |x, axes, keep| x.max(axes, keep))),
    ("aten.amin.default", |c| reduced(c, true, |x, axes, keep| x.min(axes, keep))),
    ("aten.max.default", |c| reduced(c, false, |x, axes, keep| x.max(axes, keep))),
    ("aten.min.default", |c| reduced(c, false, |x, axes, keep| x.min(axes, keep))),
    ("aten.max.dim", |c| extreme(c, true)),
    ("aten.min.dim", |c| extreme(c, false)),
    ("aten.argmax.default", |c| place(c, true)),
    ("aten.argmin.default", |c| place(c, false)),
    ("aten.any.default", |c| any(c, false)),
    ("aten.any.dim", |c| any(c, true)),
    ("aten.any.dims", |c| any(c, true)),
    ("aten.all.default", |c| all(c, false)),
    ("aten.all.dim", |c| all(c, true)),
    ("aten.all.dims", |c| all(c, true)),
    ("aten.var.default", |c| by_unbiased(c, false, false)),
    ("aten.var.dim", |c| by_unbiased(c, true, false)),
    ("aten.var.correction", |c| by_correction(c, true, false)),
    ("aten.std.default", |c| by_unbiased(c, false, true)),
    ("aten.std.dim", |c| by_unbiased(c, true, true)),
    ("aten.std.correction", |c| by_correction(c, true, true)),
    ("aten.var_mean.correction", |c| {
        let correction = correction(c)?;
        let (x, keep) = (c.laid("self")?, c.flag("keepdim")?);
        let axes = c.axes("dim", x.rank())?;
        let var = over(&x, &axes, keep, |t, axes, keep| variance(t, axes, keep, correction))?;
        let mean = over(&x, &axes, keep, |t, axes, keep| t.mean(axes, keep))?;
        Ok(vec![var.into(), mean.into()])
    }),
    ("aten.linalg_vector_norm.default", |c| {
        let (p, out) = (c.float("ord")?, c.out_dtype(0)?);
        let _ = c.value("dtype");
        norm(c, "dim", p, out)
    }),
    ("aten.norm.ScalarOpt_dim", |c| {
        let (p, out) = (c.opt_number("p")?.map_or(2.0, |n| n.value), c.out_dtype(0)?);
        norm(c, "dim", p, out)
    }),
    ("aten.norm.Scalar", |c| {
        let (p, out) = (c.float("p")?, c.out_dtype(0)?);
        let x = c.laid("self")?;
        let axes: Vec<usize> = (0..x.rank()).collect();
        one(over(&x.map(|t| converted(t, out))?, &axes, false, |t, axes, keep| lengths(t, axes, keep, p))?)
    }),
    ("aten.logsumexp.default", |c| {
        let (x, keep, out) = (c.laid("self")?, c.flag("keepdim")?, c.out_dtype(0)?);
        let axes = c.axes("dim", x.rank())?;
        let x = x.map(|t| converted(t, out))?;
        one(over(&x, &axes, keep, |t, axes, keep| {
            let top = t.max(axes, true)?.stop_gradient()?;
            // What is none at all, or endless, has no distance to itself.
            let top = top.is_finite()?.select(&top, &top.full_like(Type::new(top.dtype(), []), 0.0)?)?;
            let y = t.sub(&top)?.exp()?.sum(axes, true)?.log()?.add(&top)?;
            if keep { Ok(y) } else { y.reshape(y.shape().reduced(axes, false)) }
        })?)
    }),
    ("aten.softmax.int", |c| along(c, |x, axis| x.softmax(axis))),
    ("aten._softmax.default", |c| {
        let _ = c.value("half_to_float");
        along(c, |x, axis| x.softmax(axis))
    }),
    ("aten.log_softmax.int", |c| along(c, |x, axis| x.log_softmax(axis))),
    ("aten._log_softmax.default", |c| {
        let _ = c.value("half_to_float");
        along(c, |x, axis| x.log_softmax(axis))
    }),
    ("aten.cumsum.default", |c| along(c, |x, axis| x.cumsum(axis))),
    ("aten.cumprod.default", |c| along(c, |x, axis| x.cumprod(axis))),
    ("aten.sort.default", |c| {
        let descending = c.flag("descending")?;
        sort(c, descending)
    }),
    ("aten.sort.stable", |c| {
        let descending = c.flag("descending")?;
        let _ = c.value("stable");
        sort(c, descending)
    }),
    ("aten.argsort.default", |c| {
        let (x, descending) = (c.tensor("self")?, c.flag("descending")?);
        let at = c.axis("dim", x.shape().rank())?;
        one(x.argsort(at as isize, descending)?)
    }),
    ("aten.topk.default", |c| {
        let (x, k, largest) = (c.tensor("self")?, c.size("k")?, c.flag("largest")?);
        let _ = c.value("sorted");
        let at = c.axis("dim", x.shape().rank())?;
        let (values, places) = x.top_k(k, at as isize, largest)?;
        Ok(vec![values.into(), places.into()])
    }),
    ("aten._is_all_true.default", |c| truths(c, false, false)),
];

/// A spread with or without bias.
fn by_unbiased(c: &mut Call<'_, '_>, has_axes: bool, is_root: bool) -> Values {
    let unbiased = c.flag("unbiased")?;
    spread(c, has_axes, f64::from(u8::from(unbiased)), is_root)
}

/// A spread with what is taken off the number of elements.
fn by_correction(c: &mut Call<'_, '_>, has_axes: bool, is_root: bool) -> Values {
    let correction = correction(c)?;
    spread(c, has_axes, correction, is_root)
}

/// What is taken off the number of elements.
fn correction(c: &mut Call<'_, '_>) -> Result<f64> {
    Ok(c.opt_number("correction")?.map_or(1.0, |n| n.value))
}

/// A reduction of what lies there, whatever its order.
fn over(
    x: &Laid,
    axes: &[usize],
    keep: bool,
    f: impl FnOnce(&Tensor, &[usize], bool) -> Result<Tensor>,
) -> Result<Laid> {
    if x.rank() == 0 {
        // A scalar is its own only element.
        let y = f(&x.lying().reshape([1])?, &[0], false)?;
        return Ok(y.into());
    }
    let mut lying: Vec<usize> = axes.iter().map(|&axis| x.order()[axis]).collect();
    lying.sort_unstable();
    let y = f(x.lying(), &lying, true)?;
    let y = Laid::ordered(y, x.order());
    if keep {
        return Ok(y);
    }
    let shape: Vec<usize> =
        y.shape().iter().enumerate().filter(|(i, _)| !axes.contains(i)).map(|(_, n)| *n).collect();
    y.reshape(shape)
}

fn reduced(
    c: &mut Call<'_, '_>,
    has_axes: bool,
    f: impl FnOnce(&Tensor, &[usize], bool) -> Result<Tensor>,
) -> Values {
    let (x, out) = (c.laid("self")?, c.out_dtype(0)?);
    let (axes, keep) = match has_axes {
        true => (c.axes("dim", x.rank())?, c.flag("keepdim")?),
        false => ((0..x.rank()).collect(), false),
    };
    let _ = c.value("dtype");
    let computed = if out.is_float() || out.is_index() { out } else { DType::I64 };
    let y = over(&x.map(|t| converted(t, computed))?, &axes, keep, f)?;
    one(y.map(|t| converted(t, out))?)
}

/// The extreme along an axis and its first place: the gradient goes to that place alone.
fn extreme(c: &mut Call<'_, '_>, is_max: bool) -> Values {
    let (x, keep) = (c.tensor("self")?, c.flag("keepdim")?);
    let at = c.axis("dim", x.shape().rank())?;
    let places = argument(&x, at, is_max)?;
    let mut shape = x.shape().to_vec();
    shape[at] = 1;
    let places = places.reshape(&shape[..])?;
    let values = x.take_along(&places, at as isize)?;
    if keep {
        return Ok(vec![values.into(), places.into()]);
    }
    shape.remove(at);
    Ok(vec![values.reshape(&shape[..])?.into(), places.reshape(&shape[..])?.into()])
}

fn argument(x: &Tensor, axis: usize, is_max: bool) -> Result<Tensor> {
    let x = if x.dtype() == DType::Bool { x.cast(DType::I32)? } else { x.clone() };
    let places = if is_max { x.argmax(axis as isize)? } else { x.neg()?.argmax(axis as isize)? };
    places.cast(DType::I64)
}

fn place(c: &mut Call<'_, '_>, is_max: bool) -> Values {
    let (x, keep) = (c.tensor("self")?, c.flag("keepdim")?);
    let rank = x.shape().rank();
    let Some(dim) = c.opt_int("dim")? else {
        let n = x.shape().elements();
        let y = argument(&x.reshape([n])?, 0, is_max)?;
        return one(if keep { y.reshape(vec![1; rank])? } else { y.reshape([])? });
    };
    let at = crate::call::axis(dim, rank)?;
    let y = argument(&x, at, is_max)?;
    let mut shape = x.shape().to_vec();
    shape[at] = 1;
    one(if keep { y.reshape(shape)? } else { y })
}

/// Whether one is true, of all or along axes.
fn any(c: &mut Call<'_, '_>, has_axes: bool) -> Values {
    truths(c, has_axes, true)
}

/// Whether all are true, of all or along axes.
fn all(c: &mut Call<'_, '_>, has_axes: bool) -> Values {
    truths(c, has_axes, false)
}

fn truths(c: &mut Call<'_, '_>, has_axes: bool, any: bool) -> Values {
    let x = c.laid("self")?;
    let (axes, keep) = match has_axes {
        true => (c.axes("dim", x.rank())?, c.flag("keepdim")?),
        false => ((0..x.rank()).collect(), false),
    };
    let x = x.map(|t| converted(t, DType::Bool)?.cast(DType::I32))?;
    let y = over(&x, &axes, keep, |t, axes, keep| if any { t.max(axes, keep) } else { t.min(axes, keep) })?;
    one(y.map(|t| converted(t, DType::Bool))?)
}

fn variance(t: &Tensor, axes: &[usize], keep: bool, correction: f64) -> Result<Tensor> {
    let n: usize = axes.iter().map(|&axis| t.shape()[axis]).product();
    let centred = t.sub(&t.mean(axes, true)?)?;
    centred.square()?.sum(axes, keep)?.mul_scalar(1.0 / (n as f64 - correction).max(0.0))
}

fn spread(c: &mut Call<'_, '_>, has_axes: bool, correction: f64, is_root: bool) -> Values {
    let x = c.laid("self")?;
    let (axes, keep) = match has_axes {
        true => (c.axes("dim", x.rank())?, c.flag("keepdim")?),
        false => ((0..x.rank()).collect(), false),
    };
    let y = over(&x, &axes, keep, |t, axes, keep| variance(t, axes, keep, correction))?;
    one(if is_root { y.map(length)? } else { y })
}

fn norm(c: &mut Call<'_, '_>, name: &str, p: f64, out: DType) -> Values {
    let (x, keep) = (c.laid("self")?, c.flag("keepdim")?);
    let axes = c.axes(name, x.rank())?;
    one(over(&x.map(|t| converted(t, out))?, &axes, keep, |t, axes, keep| lengths(t, axes, keep, p))?)
}

/// (Σ |x|ᵖ)^(1/p). At 0 the gradient is 0, as PyTorch has it.
pub(super) fn lengths(t: &Tensor, axes: &[usize], keep: bool, p: f64) -> Result<Tensor> {
    match p {
        f64::INFINITY => t.abs()?.max(axes, keep),
        f64::NEG_INFINITY => t.abs()?.min(axes, keep),
        0.0 => {
            let zero = t.full_like(Type::new(t.dtype(), []), 0.0)?;
            t.not_equal(&zero)?.cast(t.dtype())?.sum(axes, keep)
        }
        1.0 => t.abs()?.sum(axes, keep),
        2.0 => length(&t.square()?.sum(axes, keep)?),
        p if p.is_finite() => {
            let zero = t.full_like(Type::new(t.dtype(), []), 0.0)?;
            // Below 1 the power of 0 has no finite gradient, and no root of 0 has one.
            let (is_zero, one) = (t.equal(&zero)?, zero.add_scalar(1.0)?);
            let powers = is_zero.select(&one, &t.abs()?)?.pow_scalar(p)?;
            let nothing = zero.add_scalar(if p > 0.0 { 0.0 } else { f64::INFINITY })?;
            let sum = is_zero.select(&nothing, &powers)?.sum(axes, keep)?;
            let is_zero = sum.equal(&zero)?.or(&sum.is_finite()?.not()?)?;
            let root = is_zero.select(&one, &sum)?.pow_scalar(1.0 / p)?;
            is_zero.select(&sum.stop_gradient()?.pow_scalar(1.0 / p)?, &root)
        }
        p => Err(refuse(format!("takes a norm of order {p}"))),
    }
}

/// Along one axis of what lies there.
fn along(c: &mut Call<'_, '_>, f: impl FnOnce(&Tensor, isize) -> Result<Tensor>) -> Values {
    let (x, out) = (c.laid("self")?, c.out_dtype(0)?);
    let at = c.axis("dim", x.rank())?;
    let _ = c.value("dtype");
    if x.rank() == 0 {
        return one(f(&converted(x.lying(), out)?.reshape([1])?, 0)?.reshape([])?);
    }
    let own = x.order()[at] as isize;
    one(x.map(|t| f(&converted(t, out)?, own))?)
}

fn sort(c: &mut Call<'_, '_>, descending: bool) -> Values {
    let x = c.tensor("self")?;
    let at = c.axis("dim", x.shape().rank())? as isize;
    let places = x.argsort(at, descending)?;
    Ok(vec![x.take_along(&places, at)?.into(), places.into()])
}
