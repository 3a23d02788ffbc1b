//! Ops that pick or put by index, or look for one.

use plimsoll_graph::{CumulativeOps, DType, GatherOps, ReorderOps, SortOps, TensorOps, Type};
use plimsoll_nn::blocks::index::{self, Put};
use plimsoll_nn::blocks::integer;
use plimsoll_run::{Result, Tensor};

use super::Table;
use crate::call::{Call, axis_of};
use crate::constant::Constant;
use crate::error::refuse;
use crate::value::Value;

pub(super) const TABLE: Table = &[
    ("Gather", |c| {
        let (x, at) = (c.plain(0)?, c.value(1)?);
        let axis = axis_of(c.int("axis", 0)?, x.shape().rank())?;
        // An index that is known is a slice: nothing is looked up when the model runs.
        if let (Some(place), false) = (at.known().and_then(Constant::to_i64), c.folds)
            && let &[place] = &place[..]
        {
            let n = x.shape()[axis] as i64;
            let place = if place < 0 { place + n } else { place };
            if !(0..n).contains(&place) {
                return Err(refuse(format!("picks place {place} of {n}")));
            }
            let part = x.narrow(axis, place as usize, place as usize + 1)?;
            let shape: Vec<usize> = [&x.shape()[..axis], &at.shape()[..], &x.shape()[axis + 1..]].concat();
            return Ok(vec![part.reshape(shape)?.into()]);
        }
        // An embedding has no places from the end, and its indices come with the data.
        let at = c.plain(1)?;
        Ok(vec![index::gather(&x, &at, axis)?.into()])
    }),
    ("GatherElements", |c| {
        let (x, at) = (c.plain(0)?, c.plain(1)?);
        let axis = axis_of(c.int("axis", 0)?, x.shape().rank())?;
        Ok(vec![index::gather_elements(&x, &at, axis)?.into()])
    }),
    ("GatherND", |c| {
        let (x, at) = (c.plain(0)?, c.plain(1)?);
        let batch = c.int("batch_dims", 0)?.max(0) as usize;
        Ok(vec![index::gather_nd(&x, &at, batch)?.into()])
    }),
    ("ScatterElements", scatter_elements),
    ("Scatter", scatter_elements),
    ("ScatterND", |c| {
        let (x, at, values) = (c.plain(0)?, c.plain(1)?, c.plain(2)?);
        let put = put(c)?;
        Ok(vec![index::scatter_nd(&x, &at, &values, put)?.into()])
    }),
    ("ArgMax", |c| arg_extreme(c, false)),
    ("ArgMin", |c| arg_extreme(c, true)),
    ("TopK", |c| {
        let x = c.plain(0)?;
        let axis = axis_of(c.int("axis", -1)?, x.shape().rank())?;
        let k = if c.opset < 10 { c.int("k", 0)? } else { c.ints(1)?.first().copied().unwrap_or(-1) };
        let k = usize::try_from(k).map_err(|_| refuse(format!("takes the first {k}")))?;
        let largest = c.flag("largest", true)?;
        // In order is one of the orders that are allowed where none is asked for.
        c.flag("sorted", true)?;
        let (values, places) = x.top_k(k, axis as isize, largest)?;
        Ok(vec![values.into(), places.into()])
    }),
    ("OneHot", |c| {
        let at = c.plain(0)?;
        let depth = c.number(1)?;
        if !(1.0..1e9).contains(&depth) {
            return Err(refuse(format!("makes an axis of length {depth}")));
        }
        let axis = axis_of(c.int("axis", -1)?, at.shape().rank() + 1)?;
        let values = c.plain(2)?;
        if *values.shape() != [2].into() {
            return Err(refuse(format!("chooses between the values {}", values.shape())));
        }
        let value = |i: usize| values.narrow(0, i, i + 1)?.reshape(&[][..]);
        let at = if at.dtype().is_index() { at } else { at.cast(DType::I64)? };
        Ok(vec![index::one_hot(&at, depth as usize, axis, &value(1)?, &value(0)?)?.into()])
    }),
    ("Hardmax", |c| {
        let x = c.plain(0)?;
        let axis = c.int("axis", if c.opset < 13 { 1 } else { -1 })?;
        let (x, axis, shape) = super::reduce::coerced(&x, axis, c.opset)?;
        let at = x.argmax(axis as isize)?;
        let scalar = |value: f64| x.full_like(Type::new(x.dtype(), []), value);
        let y = index::one_hot(&at, x.shape()[axis], axis, &scalar(1.0)?, &scalar(0.0)?)?;
        Ok(vec![y.reshape(shape)?.into()])
    }),
    ("Trilu", |c| {
        let x = c.plain(0)?;
        let k = c.maybe_ints(1)?.and_then(|k| k.first().copied()).unwrap_or(0);
        Ok(vec![index::triangle(&x, k, c.flag("upper", true)?)?.into()])
    }),
    ("CumSum", |c| {
        let (x, axis, exclusive, reverse) = running(c)?;
        Ok(vec![index::cumsum(&x, axis, exclusive, reverse)?.into()])
    }),
    ("CumProd", |c| {
        let (x, axis, exclusive, reverse) = running(c)?;
        let product = |x: &Tensor| x.cumprod_with(axis as isize, exclusive, reverse);
        Ok(vec![integer::arithmetic_one(&x, product)?.into()])
    }),
    ("NonZero", |c| {
        let constant = c.known(0)?;
        let (shape, strides) = (&constant.ty.shape, constant.ty.shape.strides());
        let places: Vec<usize> =
            constant.to_f64().iter().enumerate().filter(|(_, x)| **x != 0.0).map(|(i, _)| i).collect();
        let at = |axis: usize, i: usize| ((i / strides[axis]) % shape[axis].max(1)) as i64;
        let all: Vec<i64> = (0..shape.rank())
            .flat_map(|axis| places.iter().map(move |&i| (axis, i)))
            .map(|(a, i)| at(a, i))
            .collect();
        let ints = Constant::ints(&all);
        Ok(vec![Constant { ty: Type::new(DType::I64, [shape.rank(), places.len()]), ..ints }.into()])
    }),
    ("Compress", |c| {
        let x = c.plain(0)?;
        let wanted: Vec<i64> = c.ints(1)?;
        let places: Vec<i64> = (0..wanted.len()).filter(|&i| wanted[i] != 0).map(|i| i as i64).collect();
        let (x, axis) = match c.has("axis") {
            true => (x.clone(), axis_of(c.int("axis", 0)?, x.shape().rank())?),
            false => (x.flatten(0)?, 0),
        };
        if places.iter().any(|&place| place >= x.shape()[axis] as i64) {
            return Err(refuse("names places beyond the end"));
        }
        Ok(vec![x.gather(&Constant::ints(&places).tensor()?, axis as isize)?.into()])
    }),
    ("ReverseSequence", |c| {
        let x = c.plain(0)?;
        let lengths = c.ints(1)?;
        let (batch, time) = (c.int("batch_axis", 1)?, c.int("time_axis", 0)?);
        let (batch, time) = (axis_of(batch, x.shape().rank())?, axis_of(time, x.shape().rank())?);
        if batch == time || lengths.len() != x.shape()[batch] {
            return Err(refuse(format!("reverses {} sequences of {}", lengths.len(), x.shape())));
        }
        let mut parts = Vec::new();
        for (i, &length) in lengths.iter().enumerate() {
            let (own, n) = (x.narrow(batch, i, i + 1)?, x.shape()[time]);
            let length = usize::try_from(length).ok().filter(|&length| length <= n);
            let length = length.ok_or_else(|| refuse("reverses more than there is"))?;
            let first = own.narrow(time, 0, length)?.flip(&[time as isize])?;
            let rest = own.narrow(time, length, n)?;
            parts.push(Tensor::concat(&[&first, &rest], time as isize)?);
        }
        Ok(vec![Tensor::concat(&parts.iter().collect::<Vec<_>>(), batch as isize)?.into()])
    }),
];

fn put(c: &Call<'_>) -> Result<Put> {
    Ok(match c.one_of("reduction", &["none", "add"])? {
        "add" => Put::Add,
        _ => Put::Set,
    })
}

fn scatter_elements(c: &mut Call<'_>) -> Result<Vec<Value>> {
    let (x, at, values) = (c.plain(0)?, c.plain(1)?, c.plain(2)?);
    let axis = axis_of(c.int("axis", 0)?, x.shape().rank())?;
    let put = put(c)?;
    Ok(vec![index::scatter_elements(&x, &at, &values, axis, put)?.into()])
}

fn arg_extreme(c: &mut Call<'_>, is_least: bool) -> Result<Vec<Value>> {
    let x = c.plain(0)?;
    let axis = axis_of(c.int("axis", 0)?, x.shape().rank())?;
    let (keep, last) = (c.flag("keepdims", true)?, c.flag("select_last_index", false)?);
    let y = index::arg_extreme(&x, axis, is_least, last)?;
    let shape = x.shape().reduced(&[axis], keep);
    Ok(vec![y.reshape(shape)?.into()])
}

fn running(c: &mut Call<'_>) -> Result<(Tensor, usize, bool, bool)> {
    let x = c.plain(0)?;
    let axis = c.ints(1)?;
    let &[axis] = &axis[..] else { return Err(refuse("names more than one axis")) };
    let axis = axis_of(axis, x.shape().rank())?;
    Ok((x, axis, c.flag("exclusive", false)?, c.flag("reverse", false)?))
}
