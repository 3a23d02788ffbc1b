//! Ops that make tensors or move their elements.

use plimsoll_graph::{DType, Shape, TensorOps, Type};
use plimsoll_nn::blocks::Laid;
use plimsoll_nn::blocks::pad::{PadMode, pad};
use plimsoll_nn::blocks::slice::{Range, slice, tile};
use plimsoll_run::{Result, Tensor};

use super::Table;
use crate::call::{Call, axis_of, shape_of};
use crate::constant::Constant;
use crate::error::refuse;
use crate::value::Value;

pub(super) const TABLE: Table = &[
    ("Constant", constant),
    ("ConstantOfShape", constant_of_shape),
    ("Shape", |c| {
        let shape = c.value(0)?.shape();
        let rank = shape.rank() as i64;
        let bound = |at: i64| if at < 0 { at.saturating_add(rank) } else { at }.clamp(0, rank) as usize;
        let (start, end) = (bound(c.int("start", 0)?), bound(c.int("end", rank)?));
        let part: Vec<i64> = shape[start..end.max(start)].iter().map(|&n| n as i64).collect();
        Ok(vec![Constant::ints(&part).into()])
    }),
    ("Size", |c| Ok(vec![Constant::int(c.value(0)?.shape().elements() as i64).into()])),
    ("Reshape", reshape),
    ("Flatten", |c| {
        let x = c.x(0)?;
        let axis = c.int("axis", 1)?;
        let rank = x.rank();
        let axis = if axis == rank as i64 { rank } else { axis_of(axis, rank)? };
        let (before, behind) = (x.shape()[..axis].iter().product(), x.shape()[axis..].iter().product());
        Ok(vec![x.reshape([before, behind])?.into()])
    }),
    ("Squeeze", |c| {
        let x = c.x(0)?;
        let axes = if c.opset < 13 { c.int_list("axes")? } else { c.maybe_ints(1)? };
        let axes = match axes {
            Some(axes) => c.axes(&axes, x.rank())?,
            None => (0..x.rank()).filter(|&axis| x.shape()[axis] == 1).collect(),
        };
        if let Some(&axis) = axes.iter().find(|&&axis| x.shape()[axis] != 1) {
            return Err(refuse(format!("takes away axis {axis} of {}", x.shape())));
        }
        Ok(vec![x.reshape(x.shape().reduced(&axes, false))?.into()])
    }),
    ("Unsqueeze", |c| {
        let x = c.x(0)?;
        let axes = if c.opset < 13 { c.int_list("axes")? } else { c.maybe_ints(1)? };
        let axes = axes.ok_or_else(|| refuse("names no axes"))?;
        let rank = x.rank() + axes.len();
        let mut axes = c.axes(&axes, rank)?;
        axes.sort_unstable();
        if axes.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(refuse("names an axis twice"));
        }
        let mut shape = x.shape().to_vec();
        axes.iter().for_each(|&axis| shape.insert(axis, 1));
        Ok(vec![x.reshape(shape)?.into()])
    }),
    ("Transpose", |c| {
        let x = c.x(0)?;
        let order = match c.lengths("perm")? {
            Some(order) => order,
            None => (0..x.rank()).rev().collect(),
        };
        let mut seen = order.clone();
        seen.sort_unstable();
        if !seen.iter().copied().eq(0..x.rank()) {
            return Err(refuse(format!("orders the axes of {} as {order:?}", x.shape())));
        }
        Ok(vec![x.permute(&order).into()])
    }),
    ("Expand", |c| {
        let x = c.plain(0)?;
        let wanted = shape_of(&c.ints(1)?)?;
        let shape = x.shape().broadcast(&wanted);
        let shape = shape.ok_or_else(|| refuse(format!("broadcasts {} to {wanted}", x.shape())))?;
        Ok(vec![x.broadcast(shape)?.into()])
    }),
    ("Tile", |c| {
        let repeats = shape_of(&c.ints(1)?)?;
        Ok(vec![tile(&c.plain(0)?, &repeats)?.into()])
    }),
    ("Concat", |c| {
        let parts = (0..c.n_inputs()).map(|i| c.x(i)).collect::<Result<Vec<Laid>>>()?;
        let Some(first) = parts.first() else { return Err(refuse("has no input")) };
        let axis = axis_of(c.int("axis", 0)?, first.rank())?;
        // All in the order in which the first lies.
        let order = first.order().to_vec();
        let mut back = vec![0; order.len()];
        order.iter().enumerate().for_each(|(i, &at)| back[at] = i);
        let parts = parts.iter().map(|x| x.in_order(&back)).collect::<Result<Vec<Tensor>>>();
        let parts = match parts {
            Ok(parts) if parts.iter().all(|x| x.shape().rank() == order.len()) => parts,
            _ => return Err(refuse("joins tensors of different numbers of axes")),
        };
        let y = Tensor::concat(&parts.iter().collect::<Vec<_>>(), order[axis] as isize)?;
        Ok(vec![Laid::ordered(y, &order).into()])
    }),
    ("Split", split),
    ("Slice", slice_op),
    ("Pad", pad_op),
    ("DepthToSpace", |c| {
        let is_crd = c.one_of("mode", &["DCR", "CRD"])? == "CRD";
        let (x, side) = (c.x(0)?, c.int("blocksize", 0)? as usize);
        let &[n, channels, h, w] = &x.shape()[..] else { return Err(refuse("takes images")) };
        if side == 0 || channels % side.saturating_mul(side) != 0 {
            return Err(refuse(format!("cuts {channels} channels in blocks of {side}")));
        }
        let rest = channels / (side * side);
        let y = match is_crd {
            true => x.reshape([n, rest, side, side, h, w])?.permute(&[0, 1, 4, 2, 5, 3]),
            false => x.reshape([n, side, side, rest, h, w])?.permute(&[0, 3, 4, 1, 5, 2]),
        };
        Ok(vec![y.reshape([n, rest, h * side, w * side])?.into()])
    }),
    ("SpaceToDepth", |c| {
        let is_crd = c.one_of("mode", &["DCR", "CRD"])? == "CRD";
        let (x, side) = (c.x(0)?, c.int("blocksize", 0)? as usize);
        let &[n, channels, h, w] = &x.shape()[..] else { return Err(refuse("takes images")) };
        if side == 0 || h % side != 0 || w % side != 0 {
            return Err(refuse(format!("cuts images of {h} x {w} in blocks of {side}")));
        }
        let cut = x.reshape([n, channels, h / side, side, w / side, side])?;
        let y = if is_crd { cut.permute(&[0, 1, 3, 5, 2, 4]) } else { cut.permute(&[0, 3, 5, 1, 2, 4]) };
        Ok(vec![y.reshape([n, channels * side * side, h / side, w / side])?.into()])
    }),
    ("Range", |c| {
        let (start, limit, delta) = (c.number(0)?, c.number(1)?, c.number(2)?);
        let dtype = c.value(0)?.dtype();
        let n = ((limit - start) / delta).ceil();
        if !n.is_finite() {
            return Err(refuse(format!("counts from {start} to {limit} by {delta}")));
        }
        let n = few(n.max(0.0))?;
        let counted: Vec<f64> = (0..n).map(|i| start + i as f64 * delta).collect();
        Ok(vec![Tensor::from_f64(&counted, Type::new(dtype, [n]))?.into()])
    }),
    ("EyeLike", |c| {
        let dtype = c.dtype("dtype")?.unwrap_or(c.value(0)?.dtype());
        let &[rows, columns] = &c.value(0)?.shape()[..] else { return Err(refuse("takes a matrix")) };
        let k = c.int("k", 0)?;
        few(rows as f64 * columns as f64)?;
        let eye = |i: usize| f64::from((i / columns.max(1)) as i64 + k == (i % columns.max(1)) as i64);
        let ones: Vec<f64> = (0..rows * columns).map(eye).collect();
        Ok(vec![Tensor::from_f64(&ones, Type::new(dtype, [rows, columns]))?.into()])
    }),
    ("CenterCropPad", |c| {
        let x = c.plain(0)?;
        let wanted = c.ints(1)?;
        let rank = x.shape().rank();
        let axes = match c.int_list("axes")? {
            Some(axes) => c.axes(&axes, rank)?,
            None => (0..rank).collect(),
        };
        if axes.len() != wanted.len() {
            return Err(refuse("names other axes than lengths"));
        }
        let mut padding = vec![(0, 0); rank];
        for (&axis, &n) in axes.iter().zip(&wanted) {
            let more = n - x.shape()[axis] as i64;
            // An odd element is cut off in front and added behind.
            padding[axis] =
                if more < 0 { (-(-more / 2), more + -more / 2) } else { (more / 2, more - more / 2) };
        }
        Ok(vec![pad(&x, &padding, PadMode::Constant(0.0))?.into()])
    }),
];

/// A number of elements that are listed one by one.
fn few(n: f64) -> Result<usize> {
    if n <= f64::from(1 << 24) { Ok(n as usize) } else { Err(refuse(format!("makes {n} elements"))) }
}

fn constant(c: &mut Call<'_>) -> Result<Vec<Value>> {
    if let Some(value) = c.tensor("value")? {
        return Ok(vec![value.into()]);
    }
    let floats = |values: &[f64], shape: Shape| -> Constant {
        let bytes: Vec<u8> = values.iter().flat_map(|&x| (x as f32).to_ne_bytes()).collect();
        Constant { ty: Type::new(DType::F32, shape), bytes: bytes.into() }
    };
    let value = if c.has("value_int") {
        Constant::int(c.int("value_int", 0)?)
    } else if c.has("value_float") {
        floats(&[c.float("value_float", 0.0)?], Shape::scalar())
    } else if let Some(values) = c.int_list("value_ints")? {
        Constant::ints(&values)
    } else if let Some(values) = c.float_list("value_floats")? {
        floats(&values, [values.len()].into())
    } else {
        return Err(refuse("holds no value that is read here: text and sparse tensors are not"));
    };
    Ok(vec![value.into()])
}

fn constant_of_shape(c: &mut Call<'_>) -> Result<Vec<Value>> {
    let shape = shape_of(&c.ints(0)?)?;
    let (dtype, value) = match c.tensor("value")? {
        None => (DType::F32, 0.0),
        Some(value) => {
            let one = value.one().ok_or_else(|| refuse("fills with several values"))?;
            (value.ty.dtype, one)
        }
    };
    Ok(vec![Tensor::full(Type::new(dtype, shape), value)?.into()])
}

fn reshape(c: &mut Call<'_>) -> Result<Vec<Value>> {
    let x = c.x(0)?;
    let wanted = c.ints(1)?;
    let allows_zero = c.flag("allowzero", false)?;
    let mut shape: Vec<usize> = Vec::with_capacity(wanted.len());
    let mut open = None;
    for (i, &n) in wanted.iter().enumerate() {
        shape.push(match n {
            0 if !allows_zero => {
                let kept = x.shape().get(i);
                *kept.ok_or_else(|| refuse(format!("keeps axis {i} of {}", x.shape())))?
            }
            -1 if open.is_none() => {
                open = Some(i);
                1
            }
            n => usize::try_from(n).map_err(|_| refuse(format!("makes the shape {wanted:?}")))?,
        });
    }
    if let Some(open) = open {
        let others = shape.iter().try_fold(1usize, |all, &n| all.checked_mul(n)).unwrap_or(0);
        let all = x.shape().elements();
        if others == 0 || all % others != 0 {
            return Err(refuse(format!("makes {wanted:?} of {}", x.shape())));
        }
        shape[open] = all / others;
    }
    Ok(vec![x.reshape(shape)?.into()])
}

fn split(c: &mut Call<'_>) -> Result<Vec<Value>> {
    let x = c.x(0)?;
    let axis = axis_of(c.int("axis", 0)?, x.rank())?;
    let n = x.shape()[axis];
    let sizes = if c.opset < 13 { c.int_list("split")? } else { c.maybe_ints(1)? };
    let parts = c.int("num_outputs", c.n_outputs() as i64)?;
    let sizes: Vec<usize> = match sizes {
        Some(sizes) => shape_of(&sizes)?.to_vec(),
        None => {
            let count = usize::try_from(parts).ok().filter(|&parts| parts > 0 && parts <= n.max(1));
            let parts = count.ok_or_else(|| refuse(format!("cuts {n} elements in {parts} parts")))?;
            let size = n.div_ceil(parts);
            (0..parts).map(|i| size.min(n.saturating_sub(i * size))).collect()
        }
    };
    if sizes.iter().sum::<usize>() != n {
        return Err(refuse(format!("cuts {n} elements in parts of {sizes:?}")));
    }
    let order = x.order().to_vec();
    let pieces = x.lying().split(order[axis] as isize, &sizes)?;
    Ok(pieces.into_iter().map(|piece| Laid::ordered(piece, &order).into()).collect())
}

fn slice_op(c: &mut Call<'_>) -> Result<Vec<Value>> {
    let x = c.x(0)?;
    let (starts, ends, axes, steps) = if c.opset < 10 {
        let list = |name: &str| c.int_list(name);
        (list("starts")?.unwrap_or_default(), list("ends")?.unwrap_or_default(), list("axes")?, None)
    } else {
        (c.ints(1)?, c.ints(2)?, c.maybe_ints(3)?, c.maybe_ints(4)?)
    };
    let axes = match axes {
        Some(axes) => c.axes(&axes, x.rank())?,
        None => (0..starts.len()).collect(),
    };
    let steps = steps.unwrap_or_else(|| vec![1; starts.len()]);
    if ends.len() != starts.len() || axes.len() != starts.len() || steps.len() != starts.len() {
        return Err(refuse("gives starts, ends, axes and steps of different lengths"));
    }
    let order = x.order().to_vec();
    let mut ranges = Vec::new();
    for (i, &axis) in axes.iter().enumerate() {
        let lying = *order.get(axis).ok_or_else(|| refuse(format!("slices axis {axis} of {}", x.shape())))?;
        ranges.push(Range { axis: lying, start: starts[i], stop: ends[i], step: steps[i] });
    }
    Ok(vec![Laid::ordered(slice(x.lying(), &ranges)?, &order).into()])
}

fn pad_op(c: &mut Call<'_>) -> Result<Vec<Value>> {
    let x = c.x(0)?;
    let mode = c.one_of("mode", &["constant", "reflect", "edge", "wrap"])?;
    let (pads, value, axes) = if c.opset < 11 {
        (c.int_list("pads")?.unwrap_or_default(), c.float("value", 0.0)?, None)
    } else {
        let value = match c.given(2).and_then(Value::known) {
            Some(_) if mode == "constant" => c.number(2)?,
            _ => 0.0,
        };
        (c.ints(1)?, value, c.maybe_ints(3)?)
    };
    let axes = match axes {
        Some(axes) => c.axes(&axes, x.rank())?,
        None => (0..x.rank()).collect(),
    };
    if pads.len() != 2 * axes.len() {
        return Err(refuse(format!("pads {} axes by {pads:?}", axes.len())));
    }
    let order = x.order().to_vec();
    let mut padding = vec![(0, 0); x.rank()];
    for (i, &axis) in axes.iter().enumerate() {
        padding[order[axis]] = (pads[i], pads[i + axes.len()]);
    }
    let mode = match mode {
        "reflect" => PadMode::Reflect,
        "edge" => PadMode::Edge,
        "wrap" => PadMode::Wrap,
        _ => PadMode::Constant(value),
    };
    let lying = x.lying();
    // Truth values are padded as bytes.
    let y = match lying.dtype() {
        DType::Bool => pad(&lying.cast(DType::U8)?, &padding, mode)?.cast(DType::Bool)?,
        _ => pad(lying, &padding, mode)?,
    };
    // A value that is computed takes the place of what was added.
    let computed = if c.opset < 11 { None } else { c.given(2).filter(|value| value.known().is_none()) };
    let y = match computed {
        Some(_) if mode == PadMode::Constant(0.0) => {
            let own = lying.full_like(Type::new(DType::U8, lying.shape().clone()), 1.0)?;
            let own = pad(&own, &padding, PadMode::Constant(0.0))?.cast(DType::Bool)?;
            own.select(&y, &c.plain(2)?.reshape(&[][..])?)?
        }
        _ => y,
    };
    Ok(vec![Laid::ordered(y, &order).into()])
}
