//! Elements and slices by index.

use plimsoll_graph::ops::PutAlongAdd;
use plimsoll_graph::{CumulativeOps, DType, GatherOps, GradientOps, IndexPutOps, Site, TensorOps, Type};
use plimsoll_nn::blocks::Laid;
use plimsoll_run::{Result, Tensor};

use super::elementwise::converted;
use super::{Table, Values, one};
use crate::call::Call;
use crate::error::refuse;

pub(super) const OPS: Table = &[
    ("aten.embedding.default", |c| {
        let (w, places) = (c.tensor("weight")?, c.tensor("indices")?);
        let padding = c.int("padding_idx")?;
        if c.flag("sparse")? {
            return Err(refuse(SPARSE));
        }
        let y = w.gather(&places, 0)?;
        let y = if c.flag("scale_grad_by_freq")? { by_frequency(&w, &places, &y)? } else { y };
        if padding < 0 {
            return one(y);
        }
        // Of the row that stands for padding nothing is learned.
        let mut shape = places.shape().to_vec();
        shape.push(1);
        let is_padding = places.equal(&places.full_like(Type::new(places.dtype(), []), padding as f64)?)?;
        one(is_padding.reshape(shape)?.select(&y.stop_gradient()?, &y)?)
    }),
    ("aten.index_select.default", |c| {
        let (x, places, at) = x_and_places(c, "index")?;
        one(x.gather(&places, at as isize)?)
    }),
    ("aten.gather.default", |c| {
        let (x, places, at) = x_and_places(c, "index")?;
        let _ = c.value("sparse_grad");
        one(x_along(&x, &places, at)?.take_along(&places, at as isize)?)
    }),
    ("aten.take_along_dim.default", |c| {
        let (x, places, at) = x_and_places(c, "indices")?;
        one(x.take_along(&places, at as isize)?)
    }),
    ("aten.index.Tensor", |c| {
        let (x, places) = (c.laid("self")?, c.opt_laids("indices")?);
        let Indexed { x, places, axis, picked } = Indexed::new(&x, &places)?;
        let y = x.gather(&places, axis as isize)?;
        one(y.reshape(picked)?)
    }),
    ("aten.index_put.default", |c| index_put(c)),
    ("aten._unsafe_index.Tensor", |c| {
        let (x, places) = (c.laid("self")?, c.opt_laids("indices")?);
        let Indexed { x, places, axis, picked } = Indexed::new(&x, &places)?;
        one(x.gather(&places, axis as isize)?.reshape(picked)?)
    }),
    ("aten.index_add.default", |c| {
        let (x, places, from) = (c.tensor("self")?, c.tensor("index")?, c.tensor("source")?);
        let (at, alpha) = (c.axis("dim", x.shape().rank())?, c.float("alpha")?);
        let from = if alpha == 1.0 { from } else { from.mul_scalar(alpha)? };
        one(x.index_add(&places, &from.cast(x.dtype())?, at as isize)?)
    }),
    ("aten.index_copy.default", |c| {
        let (x, places, from) = (c.tensor("self")?, c.tensor("index")?, c.tensor("source")?);
        let at = c.axis("dim", x.shape().rank())?;
        one(x.index_put(&places, &from.cast(x.dtype())?, at as isize)?)
    }),
    ("aten.index_fill.int_Scalar", |c| {
        let (x, places, value) = (c.tensor("self")?, c.tensor("index")?, c.float("value")?);
        let at = c.axis("dim", x.shape().rank())?;
        let mut shape = x.shape().to_vec();
        shape.splice(at..=at, places.shape().iter().copied());
        let from = c.full(x.dtype(), shape, value)?;
        one(x.index_put(&places, &from, at as isize)?)
    }),
    ("aten.scatter_add.default", |c| {
        let (x, places, from) = (c.tensor("self")?, c.tensor("index")?, c.tensor("src")?);
        let at = c.axis("dim", x.shape().rank())?;
        one(added_along(&x, &places, &from, at)?)
    }),
    ("aten.scatter.src", |c| {
        let (x, places, from) = (c.tensor("self")?, c.tensor("index")?, c.tensor("src")?);
        let at = c.axis("dim", x.shape().rank())?;
        one(set_along(&x, &places, &from, at)?)
    }),
    ("aten.scatter.value", |c| {
        let (x, places, value) = (c.tensor("self")?, c.tensor("index")?, c.float("value")?);
        let at = c.axis("dim", x.shape().rank())?;
        let from = c.full(x.dtype(), places.shape(), value)?;
        one(set_along(&x, &places, &from, at)?)
    }),
    ("aten.scatter_reduce.two", |c| {
        let (x, places, from) = (c.tensor("self")?, c.tensor("index")?, c.tensor("src")?);
        let (at, how) = (c.axis("dim", x.shape().rank())?, c.text("reduce")?);
        let includes = c.flag("include_self")?;
        match (how.as_str(), includes) {
            ("sum", true) => one(added_along(&x, &places, &from, at)?),
            ("sum" | "mean", _) => one(averaged_along(&x, &places, &from, at, how == "mean", includes)?),
            ("amax", _) => one(largest_along(&x, &places, &from, at, includes)?),
            ("amin", _) => one(largest_along(&x.neg()?, &places, &from.neg()?, at, includes)?.neg()?),
            (how, _) => Err(refuse(format!("puts elements by their {how}, which is not known here"))),
        }
    }),
    ("aten.masked_scatter.default", |c| {
        let (x, mask, from) = (c.tensor("self")?, c.tensor("mask")?, c.tensor("source")?);
        let (n, count) = (x.shape().elements(), from.shape().elements());
        let mask = mask.broadcast(x.shape())?.reshape([n])?;
        // What is true takes the next element of the source.
        let next =
            mask.cast(DType::I64)?.cumsum(0)?.add_scalar(-1.0)?.clamp(0.0, count.max(1) as f64 - 1.0)?;
        let taken = from.cast(x.dtype())?.reshape([count])?.gather(&next, 0)?;
        one(mask.select(&taken, &x.reshape([n])?)?.reshape(x.shape())?)
    }),
    ("aten.one_hot.default", |c| {
        let (x, classes) = (c.tensor("self")?, c.int("num_classes")?);
        let depth =
            usize::try_from(classes).map_err(|_| refuse("does not say how many classes there are"))?;
        one(x.one_hot(depth, DType::I64)?)
    }),
    ("aten.histc.default", |c| {
        let (x, bins, low, high) = (c.laid("self")?, c.size("bins")?, c.float("min")?, c.float("max")?);
        if low >= high {
            return Err(refuse("counts between bounds that are to be found, which is not known here"));
        }
        let n = x.shape().elements();
        let x = x.reshape([n])?.plain()?;
        let scalar = |value: f64| x.full_like(Type::new(x.dtype(), []), value);
        let inside = x.greater_equal(&scalar(low)?)?.and(&x.less_equal(&scalar(high)?)?)?;
        // The upper bound is part of the last bin; what is outside goes to one that is cut off.
        let place = x
            .add_scalar(-low)?
            .mul_scalar(bins as f64 / (high - low))?
            .floor()?
            .clamp(0.0, bins as f64 - 1.0)?;
        let place = inside.select(&place, &scalar(bins as f64)?)?.cast(DType::I64)?;
        let ones = x.full_like(x.ty().clone(), 1.0)?;
        let zeros = x.full_like(Type::new(x.dtype(), [bins + 1]), 0.0)?;
        one(zeros.index_add(&place, &ones, 0)?.narrow(0, 0, bins)?)
    }),
];

/// What is said where an embedding wants gradients of its own kind.
pub(super) const SPARSE: &str =
    "has sparse gradients, which are not known here; leave out sparse=True: the gradient is the same";

/// Rows of a table whose gradients are divided by how often each row is read.
pub(super) fn by_frequency(table: &Tensor, places: &Tensor, rows: &Tensor) -> Result<Tensor> {
    let n = places.shape().elements();
    let flat = wrapped(&places.reshape([n])?, table.shape()[0])?;
    let ones = table.full_like(Type::new(table.dtype(), [n]), 1.0)?;
    let zeros = table.full_like(Type::new(table.dtype(), [table.shape()[0]]), 0.0)?;
    let often = zeros.index_add(&flat, &ones, 0)?.gather(&flat, 0)?;
    let mut shape = places.shape().to_vec();
    shape.push(1);
    let still = rows.stop_gradient()?;
    // A zero whose gradient is the scaled one: the rows themselves keep their bits.
    still.add(&rows.sub(&still)?.div(&often.reshape(shape)?)?)
}

/// What is indexed along an axis, by which places.
fn x_and_places(c: &mut Call<'_, '_>, name: &str) -> Result<(Tensor, Tensor, usize)> {
    let (x, places) = (c.tensor("self")?, c.tensor(name)?);
    let at = c.axis("dim", x.shape().rank())?;
    Ok((x, places, at))
}

/// A tensor cut, along all axes but one, to the lengths of the indices, as PyTorch's `gather` reads it.
fn x_along(x: &Tensor, places: &Tensor, at: usize) -> Result<Tensor> {
    if x.shape().rank() != places.shape().rank() {
        return Err(refuse(format!("picks from {} by indices of {}", x.shape(), places.shape())));
    }
    let cut = |axis: usize| (axis, 0, places.shape()[axis], 1);
    let ranges: Vec<_> = (0..x.shape().rank())
        .filter(|&axis| axis != at && places.shape()[axis] != x.shape()[axis])
        .map(cut)
        .collect();
    if ranges.is_empty() { Ok(x.clone()) } else { x.slice(&ranges) }
}

/// `x` with elements added at places along an axis.
fn added_along(x: &Tensor, places: &Tensor, from: &Tensor, at: usize) -> Result<Tensor> {
    let from = x_along(from, places, usize::MAX)?.cast(x.dtype())?;
    let op = PutAlongAdd { axis: at, length: x.shape()[at] };
    let sums = from.emit_one(op, &[&from, places], Site::here())?;
    let more: Vec<(usize, usize)> =
        (0..x.shape().rank()).map(|axis| (0, x.shape()[axis].saturating_sub(sums.shape()[axis]))).collect();
    let sums = if more.iter().all(|pad| *pad == (0, 0)) { sums } else { sums.pad(&more, 0.0)? };
    x.add(&sums)
}

/// `x` with the sums or means of elements at their places along an axis, `x`'s own among them or not.
fn averaged_along(
    x: &Tensor,
    places: &Tensor,
    from: &Tensor,
    at: usize,
    is_mean: bool,
    includes: bool,
) -> Result<Tensor> {
    let ones = from.full_like(from.ty().clone(), 1.0)?;
    let none = x.full_like(x.ty().clone(), 0.0)?;
    let own = x.full_like(x.ty().clone(), if includes { 1.0 } else { 0.0 })?;
    let counts = added_along(&own, places, &ones, at)?;
    let sums = added_along(if includes { x } else { &none }, places, from, at)?;
    let is_reached = counts.greater(&none)?;
    let one = x.full_like(Type::new(x.dtype(), []), 1.0)?;
    let result = if is_mean { sums.div(&counts.maximum(&one)?)? } else { sums };
    is_reached.select(&result, x)
}

/// `x` with the largest of the elements at each place along an axis, `x`'s own among them or not. Every place looks at all elements.
pub(super) fn largest_along(
    x: &Tensor,
    places: &Tensor,
    from: &Tensor,
    at: usize,
    includes: bool,
) -> Result<Tensor> {
    let from = x_along(from, places, usize::MAX)?.cast(x.dtype())?;
    let same_elsewhere = x.shape().rank() == places.shape().rank()
        && (0..x.shape().rank()).all(|i| i == at || x.shape()[i] == places.shape()[i]);
    if !same_elsewhere {
        return Err(refuse("puts the largest by indices of fewer than all rows, which is not known here"));
    }
    let mut wide = places.shape().to_vec();
    wide.insert(at, 1);
    let mut all = wide.clone();
    all[at] = x.shape()[at];
    let place = places.iota_like(Type::new(places.dtype(), &all[..]), at)?;
    let is_own = wrapped(places, x.shape()[at])?.reshape(&wide[..])?.equal(&place)?;
    let least = x.full_like(Type::new(x.dtype(), []), f64::NEG_INFINITY)?;
    let largest = is_own.select(&from.reshape(&wide[..])?, &least)?.max(&[at + 1], false)?;
    if includes {
        return largest.maximum(x);
    }
    largest.greater(&least)?.select(&largest, x)
}

/// `x` with elements in their places along an axis; of several for one place the last stays.
fn set_along(x: &Tensor, places: &Tensor, from: &Tensor, at: usize) -> Result<Tensor> {
    let from = x_along(from, places, usize::MAX)?.cast(x.dtype())?;
    let rank = x.shape().rank();
    let n = x.shape().elements();
    let strides = x.shape().strides();
    // The place of every element in all of `x`, counted through.
    let mut flat = wrapped(places, x.shape()[at])?.mul_scalar(strides[at] as f64)?;
    for axis in (0..rank).filter(|&axis| axis != at && places.shape()[axis] > 1) {
        let own = places.iota_like(places.ty().clone(), axis)?.mul_scalar(strides[axis] as f64)?;
        flat = flat.add(&own)?;
    }
    let count = places.shape().elements();
    let y = x.reshape([n])?.index_put(&flat.reshape([count])?, &from.reshape([count])?, 0)?;
    y.reshape(x.shape())
}

/// Indices of which those below 0 count from the end.
fn wrapped(places: &Tensor, n: usize) -> Result<Tensor> {
    let places = if places.dtype().is_index() { places.clone() } else { places.cast(DType::I64)? };
    let zero = places.full_like(Type::new(places.dtype(), []), 0.0)?;
    places.less(&zero)?.select(&places.add_scalar(n as f64)?, &places)
}

/// Several indices as one: axes that are indexed joined into one axis, and one index into it.
struct Indexed {
    x: Tensor,
    places: Tensor,
    axis: usize,
    /// The shape of what is picked.
    picked: Vec<usize>,
}

impl Indexed {
    fn new(x: &Laid, given: &[Option<Laid>]) -> Result<Indexed> {
        let axes: Vec<usize> = (0..given.len()).filter(|&i| given[i].is_some()).collect();
        let (Some(&first), Some(&last)) = (axes.first(), axes.last()) else {
            return Err(refuse("indexes nothing"));
        };
        if given.len() > x.rank() {
            return Err(refuse("indexes more axes than there are"));
        }
        let tensors = given.iter().flatten().map(Laid::plain).collect::<Result<Vec<Tensor>>>()?;
        if tensors.iter().any(|t| matches!(t.dtype(), DType::Bool | DType::U8)) {
            return Err(refuse(
                "picks the elements where a mask is true, and how many those are no plan can know; use torch.where",
            ));
        }
        // Axes that are not beside each other come first in the result.
        let are_adjacent = last - first + 1 == axes.len();
        let (x, axis) = match are_adjacent {
            true => (x.clone(), first),
            false => {
                let rest = (0..x.rank()).filter(|i| !axes.contains(i));
                (x.permute(&axes.iter().copied().chain(rest).collect::<Vec<_>>()), 0)
            }
        };
        let lengths: Vec<usize> = x.shape()[axis..axis + axes.len()].to_vec();
        let mut flat: Option<Tensor> = None;
        for (tensor, &n) in tensors.iter().zip(&lengths) {
            let own = wrapped(tensor, n)?.cast(DType::I64)?;
            flat = Some(match flat {
                Some(before) => before.mul_scalar(n as f64)?.add(&own)?,
                None => own,
            });
        }
        let places = flat.ok_or_else(|| refuse("indexes nothing"))?;
        let s = x.shape().to_vec();
        let joined: Vec<usize> = s[..axis]
            .iter()
            .copied()
            .chain([lengths.iter().product()])
            .chain(s[axis + axes.len()..].iter().copied())
            .collect();
        let shape: Vec<usize> = s[..axis]
            .iter()
            .copied()
            .chain(places.shape().iter().copied())
            .chain(s[axis + axes.len()..].iter().copied())
            .collect();
        let x = x.reshape(joined)?.plain()?;
        Ok(Indexed { x, places, axis, picked: shape })
    }
}

fn index_put(c: &mut Call<'_, '_>) -> Values {
    let (x, given, values) = (c.laid("self")?, c.opt_laids("indices")?, c.laid("values")?);
    let accumulates = c.flag("accumulate")?;
    // A mask in the place of indices: where it is true, one value.
    if let [Some(mask)] = &given[..]
        && mask.dtype() == DType::Bool
        && values.shape().elements() == 1
        && !accumulates
    {
        let shape: Vec<usize> =
            mask.shape().iter().copied().chain(std::iter::repeat_n(1, x.rank() - mask.rank())).collect();
        let (mask, value) = (mask.reshape(shape)?, values.reshape([])?);
        let value = value.map(|t| converted(t, x.dtype()))?;
        return one(Laid::zip(&[&mask, &value, &x], |t| t[0].select(&t[1], &t[2]))?);
    }
    let axes: Vec<usize> = (0..given.len()).filter(|&i| given[i].is_some()).collect();
    let are_adjacent = axes.windows(2).all(|pair| pair[1] == pair[0] + 1);
    if !are_adjacent {
        return Err(refuse(
            "puts values by indices of axes that are not beside each other, which is not known here",
        ));
    }
    let shape = x.shape().clone();
    let Indexed { x, places, axis, .. } = Indexed::new(&x, &given)?;
    let mut wanted = x.shape().to_vec();
    wanted.splice(axis..=axis, places.shape().iter().copied());
    let values = converted(&values.plain()?, x.dtype())?.broadcast(wanted)?;
    let y = match accumulates {
        true => x.index_add(&places, &values, axis as isize)?,
        false => x.index_put(&places, &values, axis as isize)?,
    };
    one(y.reshape(shape)?)
}
