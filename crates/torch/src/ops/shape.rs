//! Views, cuts and joins: the same elements under other shapes and in other orders.

use plimsoll_graph::{ReorderOps, TensorOps};
use plimsoll_nn::blocks::Laid;
use plimsoll_run::{Result, Tensor};

use super::{Table, one, several};
use crate::call::{Call, axis};
use crate::error::refuse;
use crate::value::Value;

type Values = Result<Vec<Value>>;

pub(super) const OPS: Table = &[
    ("aten.view.default", |c| view(c, "size")),
    ("aten._unsafe_view.default", |c| view(c, "size")),
    ("aten.reshape.default", |c| view(c, "shape")),
    ("aten._reshape_copy.default", |c| view(c, "size")),
    ("aten.flatten.using_ints", |c| {
        let x = c.laid("self")?;
        let (first, last) = (c.axis("start_dim", x.rank())?, c.axis("end_dim", x.rank())?);
        if x.rank() == 0 {
            return one(x.reshape([1])?);
        }
        if first > last {
            return Err(refuse(format!("joins axes from {first} to {last}")));
        }
        let s = x.shape();
        let shape = s[..first]
            .iter()
            .copied()
            .chain([s[first..=last].iter().product()])
            .chain(s[last + 1..].iter().copied());
        one(x.reshape(shape.collect::<Vec<usize>>())?)
    }),
    ("aten.unflatten.int", |c| {
        let x = c.laid("self")?;
        let (at, sizes) = (c.axis("dim", x.rank())?, c.ints("sizes")?);
        let sizes = resolved(&sizes, x.shape()[at])?;
        let s = x.shape();
        let shape = s[..at].iter().copied().chain(sizes).chain(s[at + 1..].iter().copied());
        one(x.reshape(shape.collect::<Vec<usize>>())?)
    }),
    ("aten.unsqueeze.default", |c| {
        let x = c.laid("self")?;
        let at = axis(c.int("dim")?, x.rank() + 1)?;
        let mut shape = x.shape().to_vec();
        shape.insert(at, 1);
        one(x.reshape(shape)?)
    }),
    ("aten.squeeze.default", |c| {
        let x = c.laid("self")?;
        one(without(&x, &(0..x.rank()).collect::<Vec<_>>())?)
    }),
    ("aten.squeeze.dim", |c| {
        let x = c.laid("self")?;
        let at = c.axis("dim", x.rank())?;
        one(without(&x, &[at])?)
    }),
    ("aten.squeeze.dims", |c| {
        let x = c.laid("self")?;
        let all = c.ints("dim")?.iter().map(|&n| axis(n, x.rank())).collect::<Result<Vec<_>>>()?;
        one(without(&x, &all)?)
    }),
    ("aten.permute.default", |c| {
        let x = c.laid("self")?;
        let order = c.ints("dims")?.iter().map(|&n| axis(n, x.rank())).collect::<Result<Vec<_>>>()?;
        let mut seen = order.clone();
        seen.sort_unstable();
        if !seen.iter().copied().eq(0..x.rank()) {
            return Err(refuse(format!("orders {} axes as {order:?}", x.rank())));
        }
        one(x.permute(&order))
    }),
    ("aten.transpose.int", |c| {
        let x = c.laid("self")?;
        let (a, b) = (c.axis("dim0", x.rank())?, c.axis("dim1", x.rank())?);
        let mut order: Vec<usize> = (0..x.rank()).collect();
        if !order.is_empty() {
            order.swap(a, b);
        }
        one(x.permute(&order))
    }),
    ("aten.t.default", |c| {
        let x = c.laid("self")?;
        let order: Vec<usize> = (0..x.rank()).rev().collect();
        one(x.permute(&order))
    }),
    ("aten.movedim.intlist", |c| {
        let x = c.laid("self")?;
        let axes = |given: Vec<i64>| given.iter().map(|&n| axis(n, x.rank())).collect::<Result<Vec<usize>>>();
        let (from, to) = (axes(c.ints("source")?)?, axes(c.ints("destination")?)?);
        let mut order = vec![usize::MAX; x.rank()];
        for (&from, &to) in from.iter().zip(&to) {
            order[to] = from;
        }
        let mut rest = (0..x.rank()).filter(|axis| !from.contains(axis));
        for place in order.iter_mut().filter(|place| **place == usize::MAX) {
            *place = rest.next().ok_or_else(|| refuse("moves an axis twice"))?;
        }
        one(x.permute(&order))
    }),
    ("aten.expand.default", |c| {
        let (x, given) = (c.laid("self")?, c.ints("size")?);
        let more = given.len().checked_sub(x.rank()).ok_or_else(|| refuse("expands to fewer axes"))?;
        let length = |(i, &n): (usize, &i64)| match n {
            -1 if i >= more => Ok(x.shape()[i - more]),
            n => usize::try_from(n).map_err(|_| refuse(format!("expands an axis to {n}"))),
        };
        let shape = given.iter().enumerate().map(length).collect::<Result<Vec<usize>>>()?;
        one(expanded(&x, &shape)?)
    }),
    ("aten.expand_as.default", |c| {
        let shape = c.laid("other")?.shape().to_vec();
        one(expanded(&c.laid("self")?, &shape)?)
    }),
    ("aten.broadcast_to.default", |c| {
        let shape = c.sizes("size")?;
        one(expanded(&c.laid("self")?, &shape)?)
    }),
    ("aten.broadcast_tensors.default", |c| {
        let all = c.laids("tensors")?;
        let mut shape = plimsoll_graph::Shape::scalar();
        for x in &all {
            shape = shape.broadcast(x.shape()).ok_or_else(|| refuse("broadcasts shapes that do not fit"))?;
        }
        all.iter().map(|x| Ok(expanded(x, &shape[..])?.into())).collect()
    }),
    ("aten.repeat.default", |c| {
        let (x, times) = (c.laid("self")?, c.sizes("repeats")?);
        repeat(&x, &times)
    }),
    ("aten.tile.default", |c| {
        let (x, mut times) = (c.laid("self")?, c.sizes("dims")?);
        while times.len() < x.rank() {
            times.insert(0, 1);
        }
        repeat(&x, &times)
    }),
    ("aten.repeat_interleave.self_int", |c| {
        let (x, times) = (c.laid("self")?, c.size("repeats")?);
        let _ = c.value("output_size");
        let (x, at) = match c.opt_int("dim")? {
            Some(dim) => {
                let at = axis(dim, x.rank())?;
                (x, at)
            }
            None => {
                let n = x.shape().elements();
                (x.reshape([n])?, 0)
            }
        };
        let x = x.plain()?;
        let s = x.shape().to_vec();
        let split: Vec<usize> =
            s[..=at].iter().copied().chain([1]).chain(s[at + 1..].iter().copied()).collect();
        let mut wide = split.clone();
        wide[at + 1] = times;
        let mut shape = s;
        shape[at] *= times;
        one(x.reshape(split)?.broadcast(wide)?.reshape(shape)?)
    }),
    ("aten.cat.default", |c| {
        let all = c.laids("tensors")?;
        // An empty vector joins with anything.
        let all: Vec<Laid> = all.into_iter().filter(|x| x.shape()[..] != [0]).collect();
        let rank = all.first().map_or(1, Laid::rank);
        let at = c.axis("dim", rank)?;
        let out = c.out_dtype(0)?;
        one(joined(&all, at, out)?)
    }),
    ("aten.stack.default", |c| {
        let all = c.laids("tensors")?;
        let rank = all.first().map_or(0, Laid::rank);
        let (at, out) = (axis(c.int("dim")?, rank + 1)?, c.out_dtype(0)?);
        let wide = |x: &Laid| {
            let mut shape = x.shape().to_vec();
            shape.insert(at, 1);
            x.reshape(shape)
        };
        let all = all.iter().map(wide).collect::<Result<Vec<Laid>>>()?;
        one(joined(&all, at, out)?)
    }),
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
    ("aten.flip.default", |c| {
        let (x, axes) = (c.tensor("self")?, c.ints("dims")?);
        let axes: Vec<isize> = axes.iter().map(|&n| n as isize).collect();
        one(x.flip(&axes)?)
    }),
    ("aten.roll.default", |c| {
        let (x, shifts, axes) = (c.laid("self")?, c.ints("shifts")?, c.ints("dims")?);
        if axes.is_empty() {
            let (shape, n) = (x.shape().clone(), x.shape().elements());
            let rolled = x.reshape([n])?.plain()?.roll(shifts.first().copied().unwrap_or(0) as isize, 0)?;
            return one(rolled.reshape(shape)?);
        }
        // Along the axes as they lie.
        let mut tensor = x.lying().clone();
        for (&shift, &n) in shifts.iter().zip(&axes) {
            let own = x.order()[axis(n, x.rank())?];
            tensor = tensor.roll(shift as isize, own as isize)?;
        }
        one(Laid::ordered(tensor, x.order()))
    }),
    ("aten.pad.default", |c| {
        let (x, pad, mode) = (c.laid("self")?, c.ints("pad")?, c.text("mode")?);
        let value = c.opt_number("value")?.map_or(0.0, |n| n.value);
        one(padded(&x, &pad, &mode, value)?)
    }),
    ("aten.constant_pad_nd.default", |c| {
        let (x, pad, value) = (c.laid("self")?, c.ints("pad")?, c.float("value")?);
        one(padded(&x, &pad, "constant", value)?)
    }),
    ("aten.reflection_pad1d.default", |c| pad_by(c, "reflect")),
    ("aten.reflection_pad2d.default", |c| pad_by(c, "reflect")),
    ("aten.replication_pad1d.default", |c| pad_by(c, "replicate")),
    ("aten.replication_pad2d.default", |c| pad_by(c, "replicate")),
    ("aten.replication_pad3d.default", |c| pad_by(c, "replicate")),
    ("aten.pixel_shuffle.default", |c| {
        let (x, r) = (c.laid("self")?, c.size("upscale_factor")?);
        let s = x.shape().to_vec();
        let &[n, channels, h, w] = &s[..] else { return Err(refuse("takes images [N, C, H, W]")) };
        let wide = x.reshape([n, channels / (r * r).max(1), r, r, h, w])?.permute(&[0, 1, 4, 2, 5, 3]);
        one(wide.reshape([n, channels / (r * r).max(1), h * r, w * r])?)
    }),
    ("aten.pixel_unshuffle.default", |c| {
        let (x, r) = (c.laid("self")?, c.size("downscale_factor")?);
        let s = x.shape().to_vec();
        let &[n, channels, h, w] = &s[..] else { return Err(refuse("takes images [N, C, H, W]")) };
        let r = r.max(1);
        let wide = x.reshape([n, channels, h / r, r, w / r, r])?.permute(&[0, 1, 3, 5, 2, 4]);
        one(wide.reshape([n, channels * r * r, h / r, w / r])?)
    }),
    ("aten.channel_shuffle.default", |c| {
        let (x, groups) = (c.laid("self")?, c.size("groups")?);
        let s = x.shape().to_vec();
        let &[n, channels, h, w] = &s[..] else { return Err(refuse("takes images [N, C, H, W]")) };
        let wide = x.reshape([n, groups, channels / groups.max(1), h, w])?.permute(&[0, 2, 1, 3, 4]);
        one(wide.reshape([n, channels, h, w])?)
    }),
    ("aten.diff.default", |c| {
        let x = c.laid("self")?;
        let at = c.axis("dim", x.rank())?;
        if c.int("n")? != 1 {
            return Err(refuse("takes differences of differences, which is not known here"));
        }
        let more = [c.opt_laid("prepend")?, Some(x.clone()), c.opt_laid("append")?];
        let all: Vec<Laid> = more.into_iter().flatten().collect();
        let x = if all.len() == 1 { x } else { joined(&all, at, x.dtype())? };
        let n = x.shape()[at];
        let (low, high) = (sliced(&x, at, 0, n.saturating_sub(1), 1)?, sliced(&x, at, 1.min(n), n, 1)?);
        one(Laid::zip(&[&high, &low], |t| {
            if t[0].dtype() == plimsoll_graph::DType::Bool { t[0].not_equal(&t[1]) } else { t[0].sub(&t[1]) }
        })?)
    }),
    ("aten.unfold.default", |c| {
        let x = c.tensor("self")?;
        let at = c.axis("dimension", x.shape().rank())?;
        let (size, step) = (c.size("size")?, c.size("step")?.max(1));
        let n = x.shape()[at];
        let windows = n
            .checked_sub(size)
            .map(|rest| rest / step + 1)
            .ok_or_else(|| refuse("unfolds more than there is"))?;
        // Element k of every window, as a new last axis.
        let parts = (0..size).map(|k| {
            let part = cut(&x, at, k, k + (windows - 1) * step + 1, step)?;
            let mut shape = part.shape().to_vec();
            shape.push(1);
            part.reshape(shape)
        });
        let parts = parts.collect::<Result<Vec<Tensor>>>()?;
        one(Tensor::concat(&parts.iter().collect::<Vec<_>>(), -1)?)
    }),
    ("aten.im2col.default", |c| im2col(c)),
    ("aten.col2im.default", |c| col2im(c)),
    ("aten.meshgrid.default", |c| meshgrid(c, false)),
    ("aten.meshgrid.indexing", |c| {
        let is_xy = c.text("indexing")? == "xy";
        meshgrid(c, is_xy)
    }),
];

/// Lengths of which one may be -1, for so many elements.
pub(super) fn resolved(given: &[i64], elements: usize) -> Result<Vec<usize>> {
    let known: i64 = given.iter().filter(|&&n| n != -1).product();
    let length = |&n: &i64| match n {
        -1 if known > 0 => Ok(elements / known as usize),
        -1 => Ok(0),
        n => usize::try_from(n).map_err(|_| refuse(format!("asks for a length of {n}"))),
    };
    given.iter().map(length).collect()
}

fn view(c: &mut Call<'_, '_>, name: &str) -> Values {
    let (x, given) = (c.laid("self")?, c.ints(name)?);
    let shape = resolved(&given, x.shape().elements())?;
    one(x.reshape(shape)?)
}

/// Without axes of length 1 among those named.
fn without(x: &Laid, axes: &[usize]) -> Result<Laid> {
    let shape: Vec<usize> = x
        .shape()
        .iter()
        .enumerate()
        .filter(|(i, n)| **n != 1 || !axes.contains(i))
        .map(|(_, n)| *n)
        .collect();
    x.reshape(shape)
}

/// Repeated along axes of length 1, and along new ones in front.
pub(super) fn expanded(x: &Laid, shape: &[usize]) -> Result<Laid> {
    if x.shape()[..] == *shape {
        return Ok(x.clone());
    }
    let plain = x.plain()?;
    if plain.shape().rank() > shape.len() {
        return Err(refuse(format!("expands {} to {shape:?}", plain.shape())));
    }
    Ok(plain.broadcast(shape)?.into())
}

fn repeat(x: &Laid, times: &[usize]) -> Values {
    let more =
        times.len().checked_sub(x.rank()).ok_or_else(|| refuse("repeats fewer axes than there are"))?;
    let s: Vec<usize> = std::iter::repeat_n(1, more).chain(x.shape().iter().copied()).collect();
    let split: Vec<usize> = s.iter().flat_map(|&n| [1, n]).collect();
    let wide: Vec<usize> = s.iter().zip(times).flat_map(|(&n, &t)| [t, n]).collect();
    let shape: Vec<usize> = s.iter().zip(times).map(|(n, t)| n * t).collect();
    one(x.plain()?.reshape(split)?.broadcast(wide)?.reshape(shape)?)
}

/// Joined along an axis, in the order in which the first lies.
fn joined(all: &[Laid], at: usize, out: plimsoll_graph::DType) -> Result<Laid> {
    let Some(first) = all.iter().max_by_key(|x| x.shape().elements()) else {
        return Err(refuse("joins nothing"));
    };
    let order = first.order().to_vec();
    let mut back = vec![0; order.len()];
    order.iter().enumerate().for_each(|(i, &axis)| back[axis] = i);
    let same = |x: &Laid| -> Result<Tensor> {
        if x.rank() != order.len() {
            return Err(refuse("joins tensors of other ranks"));
        }
        super::elementwise::converted(&x.in_order(&back)?, out)
    };
    let tensors = all.iter().map(same).collect::<Result<Vec<Tensor>>>()?;
    let lying = order[at] as isize;
    Ok(Laid::ordered(Tensor::concat(&tensors.iter().collect::<Vec<_>>(), lying)?, &order))
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

fn cut(x: &Tensor, at: usize, start: usize, stop: usize, step: usize) -> Result<Tensor> {
    x.slice(&[(at, start, stop, step)])
}

/// A range of an axis.
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
    use plimsoll_graph::{DType, IndexPutOps, Type};
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

fn pad_by(c: &mut Call<'_, '_>, mode: &str) -> Values {
    let (x, pad) = (c.laid("self")?, c.ints("padding")?);
    one(padded(&x, &pad, mode, 0.0)?)
}

/// Padded as PyTorch writes it: pairs from the last axis on. Negative numbers cut.
pub(super) fn padded(x: &Laid, pad: &[i64], mode: &str, value: f64) -> Result<Laid> {
    let rank = x.rank();
    if !pad.len().is_multiple_of(2) || pad.len() / 2 > rank {
        return Err(refuse(format!("pads {rank} axes by {pad:?}")));
    }
    let mut y = x.clone();
    for (i, pair) in pad.chunks_exact(2).enumerate() {
        let at = rank - 1 - i;
        let (low, high) = (pair[0], pair[1]);
        let n = y.shape()[at] as i64;
        if low < 0 || high < 0 {
            let (start, stop) = ((-low).max(0), n - (-high).max(0));
            if start > stop {
                return Err(refuse(format!("cuts more than there is: {pad:?}")));
            }
            y = sliced(&y, at, start as usize, stop as usize, 1)?;
        }
    }
    let amount = |at: usize| -> (usize, usize) {
        let i = rank - 1 - at;
        match pad.get(2 * i..2 * i + 2) {
            Some(pair) => (pair[0].max(0) as usize, pair[1].max(0) as usize),
            None => (0, 0),
        }
    };
    if (0..rank).all(|at| amount(at) == (0, 0)) {
        return Ok(y);
    }
    if mode == "constant" {
        let mut padding = vec![(0, 0); rank];
        (0..rank).for_each(|at| padding[y.order()[at]] = amount(at));
        return Ok(Laid::ordered(y.lying().pad(&padding, value)?, y.order()));
    }
    let mut tensor = y.lying().clone();
    for at in 0..rank {
        let ((low, high), own) = (amount(at), y.order()[at]);
        if (low, high) != (0, 0) {
            tensor = mirrored(&tensor, own, low, high, mode)?;
        }
    }
    Ok(Laid::ordered(tensor, y.order()))
}

/// Padded along one axis by its own elements.
fn mirrored(x: &Tensor, at: usize, low: usize, high: usize, mode: &str) -> Result<Tensor> {
    let n = x.shape()[at];
    let fits = match mode {
        "reflect" => low < n && high < n,
        "replicate" => n > 0,
        "circular" => low <= n && high <= n,
        _ => return Err(refuse(format!("pads by {mode}, which is not known here"))),
    };
    if !fits {
        return Err(refuse(format!("pads an axis of {n} by {low} and {high} of its own elements")));
    }
    let repeated = |from: usize, count: usize| -> Result<Tensor> {
        let mut shape = x.shape().to_vec();
        shape[at] = count;
        cut(x, at, from, from + 1, 1)?.broadcast(shape)
    };
    let (before, after) = match mode {
        "reflect" => {
            let flipped = |from: usize, to: usize| cut(x, at, from, to, 1)?.flip(&[at as isize]);
            (flipped(1, low + 1)?, flipped(n - 1 - high, n - 1)?)
        }
        "replicate" => (repeated(0, low)?, repeated(n - 1, high)?),
        _ => (cut(x, at, n - low, n, 1)?, cut(x, at, 0, high, 1)?),
    };
    let parts: Vec<&Tensor> = [(low, &before), (n, x), (high, &after)]
        .into_iter()
        .filter(|(n, _)| *n > 0)
        .map(|(_, t)| t)
        .collect();
    Tensor::concat(&parts, at as isize)
}

/// Windows of images as columns: `[N, C, H, W]` becomes `[N, C · kh · kw, windows]`.
fn im2col(c: &mut Call<'_, '_>) -> Values {
    let x = c.laid("self")?;
    let [kernel, dilation, padding, stride] =
        ["kernel_size", "dilation", "padding", "stride"].map(|name| c.sizes_of(name, 2));
    let (kernel, dilation, padding, stride) = (kernel?, dilation?, padding?, stride?);
    let &[n, channels, ..] = &x.shape()[..] else { return Err(refuse("takes images [N, C, H, W]")) };
    let pad: Vec<i64> = [padding[1], padding[1], padding[0], padding[0]].iter().map(|&p| p as i64).collect();
    let x = padded(&x, &pad, "constant", 0.0)?;
    let windows = |at: usize| {
        let reach = (kernel[at] - 1) * dilation[at] + 1;
        x.shape()[at + 2].checked_sub(reach).map(|rest| rest / stride[at] + 1)
    };
    let (Some(rows), Some(columns)) = (windows(0), windows(1)) else {
        return Err(refuse("has windows larger than its images"));
    };
    let x = x.plain()?;
    let mut parts = Vec::new();
    for i in 0..kernel[0] {
        for j in 0..kernel[1] {
            let (top, left) = (i * dilation[0], j * dilation[1]);
            let part = x.slice(&[
                (2, top, top + (rows - 1) * stride[0] + 1, stride[0]),
                (3, left, left + (columns - 1) * stride[1] + 1, stride[1]),
            ])?;
            parts.push(part.reshape([n, channels, 1, rows * columns])?);
        }
    }
    let y = Tensor::concat(&parts.iter().collect::<Vec<_>>(), 2)?;
    one(y.reshape([n, channels * kernel[0] * kernel[1], rows * columns])?)
}

/// Columns back as images, summed where windows overlap.
fn col2im(c: &mut Call<'_, '_>) -> Values {
    let (x, out) = (c.tensor("self")?, c.sizes_of("output_size", 2)?);
    let [kernel, dilation, padding, stride] =
        ["kernel_size", "dilation", "padding", "stride"].map(|name| c.sizes_of(name, 2));
    let (kernel, dilation, padding, stride) = (kernel?, dilation?, padding?, stride?);
    let &[n, wide, _] = &x.shape()[..] else { return Err(refuse("takes columns [N, C, L]")) };
    let channels = wide / (kernel[0] * kernel[1]).max(1);
    let whole = [out[0] + 2 * padding[0], out[1] + 2 * padding[1]];
    let windows = |at: usize| {
        let reach = (kernel[at] - 1) * dilation[at] + 1;
        whole[at].checked_sub(reach).map(|rest| rest / stride[at] + 1)
    };
    let (Some(rows), Some(columns)) = (windows(0), windows(1)) else {
        return Err(refuse("has windows larger than its images"));
    };
    let x = x.reshape([n, channels, kernel[0] * kernel[1], rows, columns])?;
    let mut sum: Option<Tensor> = None;
    for i in 0..kernel[0] {
        for j in 0..kernel[1] {
            let k = i * kernel[1] + j;
            let part = x.narrow(2, k, k + 1)?.reshape([n, channels, rows, columns])?;
            let spread = |at: usize, first: usize, count: usize| {
                let used = first + (count - 1) * stride[at] + 1;
                plimsoll_graph::ops::PadAxis { low: first, high: whole[at] - used, inner: stride[at] - 1 }
            };
            let none = plimsoll_graph::ops::PadAxis { low: 0, high: 0, inner: 0 };
            let axes = [none, none, spread(0, i * dilation[0], rows), spread(1, j * dilation[1], columns)];
            let op = plimsoll_graph::ops::Pad { axes: axes.into_iter().collect(), value: 0.0.into() };
            let part = part.emit_one(op, &[&part], plimsoll_graph::Site::here())?;
            sum = Some(match sum {
                Some(sum) => sum.add(&part)?,
                None => part,
            });
        }
    }
    let sum = sum.ok_or_else(|| refuse("has no windows"))?;
    one(sum.slice(&[(2, padding[0], padding[0] + out[0], 1), (3, padding[1], padding[1] + out[1], 1)])?)
}

fn meshgrid(c: &mut Call<'_, '_>, is_xy: bool) -> Values {
    let mut all = c.laids("tensors")?;
    if is_xy && all.len() >= 2 {
        all.swap(0, 1);
    }
    let lengths: Vec<usize> = all.iter().map(|x| x.shape().elements()).collect();
    let grid = |(i, x): (usize, &Laid)| -> Result<Tensor> {
        let mut shape = vec![1; lengths.len()];
        shape[i] = lengths[i];
        x.plain()?.reshape(shape)?.broadcast(&lengths[..])
    };
    let mut grids = all.iter().enumerate().map(grid).collect::<Result<Vec<Tensor>>>()?;
    if is_xy && grids.len() >= 2 {
        let mut order: Vec<usize> = (0..lengths.len()).collect();
        order.swap(0, 1);
        grids = grids.iter().map(|grid| grid.transpose(&order)).collect::<Result<_>>()?;
        grids.swap(0, 1);
    }
    several(grids)
}
