//! Tensors made from nothing: constants, ranges, triangles.

use plimsoll_graph::{DType, TensorOps, Type};
use plimsoll_run::{Result, Tensor};

use super::elementwise::converted;
use super::{Table, Values, one};
use crate::call::Call;
use crate::error::refuse;

pub(super) const OPS: Table = &[
    ("aten.zeros.default", |c| filled(c, 0.0)),
    ("aten.ones.default", |c| filled(c, 1.0)),
    ("aten.empty.memory_format", |c| filled(c, 0.0)),
    ("aten.new_zeros.default", |c| filled(c, 0.0)),
    ("aten.new_ones.default", |c| filled(c, 1.0)),
    ("aten.new_empty.default", |c| filled(c, 0.0)),
    ("aten.full.default", |c| filled_with(c, "fill_value")),
    ("aten.new_full.default", |c| filled_with(c, "fill_value")),
    ("aten.zeros_like.default", |c| like(c, 0.0)),
    ("aten.ones_like.default", |c| like(c, 1.0)),
    ("aten.empty_like.default", |c| like(c, 0.0)),
    ("aten.full_like.default", |c| like_with(c, "fill_value")),
    ("aten.fill.Scalar", |c| like_with(c, "value")),
    ("aten.fill.Tensor", |c| {
        let (x, value, out) = (c.laid("self")?, c.tensor("value")?, c.out_dtype(0)?);
        one(converted(&value, out)?.broadcast(x.shape())?)
    }),
    ("aten.zero.default", |c| like(c, 0.0)),
    ("aten.scalar_tensor.default", |c| {
        let (value, out) = (c.float("s")?, c.out_dtype(0)?);
        let _ = c.value("dtype");
        one(c.full(out, [], value)?)
    }),
    ("aten.arange.default", |c| {
        let end = c.float("end")?;
        range(c, 0.0, end, 1.0)
    }),
    ("aten.arange.start", |c| {
        let (start, end) = (c.float("start")?, c.float("end")?);
        range(c, start, end, 1.0)
    }),
    ("aten.arange.start_step", |c| {
        let (start, end, step) = (c.float("start")?, c.float("end")?, c.float("step")?);
        range(c, start, end, step)
    }),
    ("aten.linspace.default", |c| {
        let (start, end, n, out) = (c.float("start")?, c.float("end")?, c.size("steps")?, c.out_dtype(0)?);
        let _ = c.value("dtype");
        let step = if n > 1 { (end - start) / (n - 1) as f64 } else { 0.0 };
        let places = c.beside().iota_like(Type::new(DType::F64, [n]), 0)?;
        one(converted(&places.mul_scalar(step)?.add_scalar(start)?, out)?)
    }),
    ("aten.eye.default", |c| {
        let n = c.size("n")?;
        eye(c, n, n)
    }),
    ("aten.eye.m", |c| {
        let (n, m) = (c.size("n")?, c.size("m")?);
        eye(c, n, m)
    }),
    ("aten.tril.default", |c| triangle(c, true)),
    ("aten.triu.default", |c| triangle(c, false)),
    ("aten.tril_indices.default", |c| indices(c, true)),
    ("aten.triu_indices.default", |c| indices(c, false)),
];

/// Of the size that is given, in the type that the program says.
/// As [`filled`], with the number of that name.
fn filled_with(c: &mut Call<'_, '_>, name: &str) -> Values {
    let value = c.float(name)?;
    filled(c, value)
}

/// As [`like`], with the number of that name.
fn like_with(c: &mut Call<'_, '_>, name: &str) -> Values {
    let value = c.float(name)?;
    like(c, value)
}

fn filled(c: &mut Call<'_, '_>, value: f64) -> Values {
    let (shape, out) = (c.sizes("size")?, c.out_dtype(0)?);
    let _ = (c.value("self"), c.value("dtype"));
    one(c.full(out, shape, value)?)
}

fn like(c: &mut Call<'_, '_>, value: f64) -> Values {
    let (x, out) = (c.laid("self")?, c.out_dtype(0)?);
    let _ = c.value("dtype");
    // In the order in which the other lies.
    one(x.map(|t| t.full_like(Type::new(out, t.shape().clone()), value))?)
}

fn range(c: &mut Call<'_, '_>, start: f64, end: f64, step: f64) -> Values {
    let out = c.out_dtype(0)?;
    let _ = c.value("dtype");
    if step == 0.0 {
        return Err(refuse("counts in steps of 0"));
    }
    let n = ((end - start) / step).ceil().max(0.0);
    if n.is_nan() || n >= f64::from(i32::MAX) {
        return Err(refuse(format!("counts from {start} to {end} by {step}")));
    }
    let wide = if out.is_float() { DType::F64 } else { DType::I64 };
    let places = c.beside().iota_like(Type::new(wide, [n as usize]), 0)?;
    let scaled = if step == 1.0 { places } else { places.mul_scalar(step)? };
    let moved = if start == 0.0 { scaled } else { scaled.add_scalar(start)? };
    one(converted(&moved, out)?)
}

/// 0, 1, 2 … along an axis of a matrix.
fn places(c: &Call<'_, '_>, rows: usize, columns: usize, axis: usize) -> Result<Tensor> {
    c.beside().iota_like(Type::new(DType::I64, [rows, columns]), axis)
}

fn eye(c: &mut Call<'_, '_>, rows: usize, columns: usize) -> Values {
    let out = c.out_dtype(0)?;
    let _ = c.value("dtype");
    let is_on = places(c, rows, columns, 0)?.equal(&places(c, rows, columns, 1)?)?;
    one(is_on.cast(out)?)
}

fn triangle(c: &mut Call<'_, '_>, is_lower: bool) -> Values {
    let (x, diagonal) = (c.tensor("self")?, c.int("diagonal")?);
    let Some([.., rows, columns]) = x.shape().last_chunk::<2>().map(|s| [s[0], s[1]]) else {
        return Err(refuse("takes a matrix"));
    };
    let edge = places(c, rows, columns, 0)?.add_scalar(diagonal as f64)?;
    let across = places(c, rows, columns, 1)?;
    let inside = if is_lower { across.less_equal(&edge)? } else { across.greater_equal(&edge)? };
    if x.dtype() == DType::Bool {
        return one(x.and(&inside)?);
    }
    one(inside.select(&x, &c.full(x.dtype(), [], 0.0)?)?)
}

fn indices(c: &mut Call<'_, '_>, is_lower: bool) -> Values {
    let (rows, columns, offset, out) = (c.size("row")?, c.size("col")?, c.int("offset")?, c.out_dtype(0)?);
    let _ = c.value("dtype");
    if rows.saturating_mul(columns) > 1 << 26 {
        return Err(refuse("lists the places of a very large triangle"));
    }
    let inside = |i: usize, j: usize| {
        let (i, j) = (i as i64, j as i64);
        if is_lower { j <= i + offset } else { j >= i + offset }
    };
    let all = (0..rows).flat_map(|i| (0..columns).map(move |j| (i, j))).filter(|&(i, j)| inside(i, j));
    let (first, second): (Vec<i64>, Vec<i64>) = all.map(|(i, j)| (i as i64, j as i64)).unzip();
    let n = first.len();
    one(Tensor::from_slice(&[first, second].concat(), [2, n])?.cast(out)?)
}
