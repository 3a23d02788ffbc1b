//! Views: the same elements under other shapes and in other orders.

use plimsoll_graph::{ReorderOps, TensorOps};
use plimsoll_nn::blocks::Laid;
use plimsoll_run::Result;

use super::{Table, Values, one};
use crate::call::{Call, axis};
use crate::error::refuse;

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
