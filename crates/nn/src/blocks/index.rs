//! Picking and putting by index, as NumPy and ONNX have it: indices that count from the end, several axes at once, sums where several
//! meet.

use plimsoll_graph::ops::{IndexPut, ScatterAdd};
use plimsoll_graph::{CumulativeOps, DType, GatherOps, Shape, Site, TensorOps, Type};
use plimsoll_run::{Result, Tensor};

use super::element::scalar;
use crate::error::refuse;

/// What happens where a value is put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// It takes the place; of several the last.
    Set,
    /// It is added.
    Add,
}

/// Indices of which negative ones count from the end of an axis, all from 0 on.
#[track_caller]
pub fn from_start(indices: &Tensor, length: usize) -> Result<Tensor> {
    let indices = if indices.dtype().is_index() { indices.clone() } else { indices.cast(DType::I64)? };
    let below = indices.less(&scalar(&indices, 0.0)?)?;
    below.select(&indices.add_scalar(length as f64)?, &indices)
}

/// The slices of an axis that indices name, from the end where negative; their shape takes the axis's place.
#[track_caller]
pub fn gather(x: &Tensor, indices: &Tensor, axis: usize) -> Result<Tensor> {
    x.gather(&from_start(indices, length(x, axis)?)?, axis as isize)
}

/// The elements along an axis that indices of the same rank name, from the end where negative. Other axes of the indices may be
/// shorter than x's.
#[track_caller]
pub fn gather_elements(x: &Tensor, indices: &Tensor, axis: usize) -> Result<Tensor> {
    let n = length(x, axis)?;
    if indices.shape().rank() != x.shape().rank() {
        return Err(refuse(format!("picks elements of {} by indices {}", x.ty(), indices.ty())));
    }
    let parts: Vec<(usize, usize, usize, usize)> = (0..x.shape().rank())
        .filter(|&other| other != axis && indices.shape()[other] < x.shape()[other])
        .map(|other| (other, 0, indices.shape()[other], 1))
        .collect();
    let x = if parts.is_empty() { x.clone() } else { x.slice(&parts)? };
    x.take_along(&from_start(indices, n)?, axis as isize)
}

/// x `[b.., d₀, .., dₖ, ..]` at the places that the last axis of the indices `[b.., .., k]` names. `batch` axes are shared.
#[track_caller]
pub fn gather_nd(x: &Tensor, indices: &Tensor, batch: usize) -> Result<Tensor> {
    let flat = FlatIndex::new(x, indices, batch)?;
    let rows = x.reshape(flat.rows_shape(x))?;
    let y = rows.gather(&flat.places, 0)?;
    let shape: Shape = indices.shape()[..indices.shape().rank() - 1]
        .iter()
        .chain(&x.shape()[batch + flat.axes..])
        .copied()
        .collect();
    y.reshape(shape)
}

/// x with values at the places along an axis that indices of the values' shape name.
#[track_caller]
pub fn scatter_elements(
    x: &Tensor,
    indices: &Tensor,
    values: &Tensor,
    axis: usize,
    put: Put,
) -> Result<Tensor> {
    let n = length(x, axis)?;
    if indices.shape() != values.shape() || indices.shape().rank() != x.shape().rank() {
        let why = format!("puts {} into {} by indices {}", values.ty(), x.ty(), indices.ty());
        return Err(refuse(why));
    }
    if indices.ty().elements() == 0 {
        return Ok(x.clone());
    }
    let strides = x.shape().strides();
    let ty = Type::new(DType::I64, indices.shape().clone());
    let mut places = from_start(indices, n)?.cast(DType::I64)?.mul_scalar(strides[axis] as f64)?;
    for other in (0..x.shape().rank()).filter(|&other| other != axis) {
        if indices.shape()[other] > x.shape()[other] {
            return Err(refuse(format!("puts {} into the smaller {}", values.ty(), x.ty())));
        }
        let counted = indices.iota_like(ty.clone(), other)?.mul_scalar(strides[other] as f64)?;
        places = places.add(&counted)?;
    }
    let (all, some) = (x.ty().elements(), indices.ty().elements());
    let (flat, values, places) = (x.reshape([all])?, values.reshape([some])?, places.reshape([some])?);
    put_rows(&flat, &values, &places, put)?.reshape(x.shape().clone())
}

/// x with slices at the places that the last axis of the indices names.
#[track_caller]
pub fn scatter_nd(x: &Tensor, indices: &Tensor, values: &Tensor, put: Put) -> Result<Tensor> {
    let flat = FlatIndex::new(x, indices, 0)?;
    let rows_shape = flat.rows_shape(x);
    let rows = x.reshape(&rows_shape[..])?;
    let n = flat.places.ty().elements();
    let shape: Vec<usize> = [n].into_iter().chain(rows_shape[1..].iter().copied()).collect();
    if values.ty().elements() != shape.iter().product::<usize>() {
        return Err(refuse(format!("puts {} into {} by indices {}", values.ty(), x.ty(), indices.ty())));
    }
    let values = values.reshape(&shape[..])?;
    put_rows(&rows, &values, &flat.places, put)?.reshape(x.shape().clone())
}

fn put_rows(rows: &Tensor, values: &Tensor, places: &Tensor, put: Put) -> Result<Tensor> {
    let site = Site::here();
    if values.ty().elements() == 0 {
        return Ok(rows.clone());
    }
    match put {
        Put::Set => rows.emit_one(IndexPut { axis: 0 }, &[rows, values, places], site),
        Put::Add => {
            let op = ScatterAdd { axis: 0, length: rows.shape()[0] };
            rows.add(&rows.emit_one(op, &[values, places], site)?)
        }
    }
}

/// Several indices an element as one, over the first axes of a tensor joined.
struct FlatIndex {
    /// `[M]`, i64.
    places: Tensor,
    /// How many axes behind the batch are named.
    axes: usize,
    batch: usize,
}

impl FlatIndex {
    fn new(x: &Tensor, indices: &Tensor, batch: usize) -> Result<FlatIndex> {
        let wrong = || refuse(format!("picks from {} by indices {}", x.ty(), indices.ty()));
        let Some((&axes, outer)) = indices.shape().split_last() else { return Err(wrong()) };
        if batch + axes > x.shape().rank() || outer.len() < batch || x.shape()[..batch] != outer[..batch] {
            return Err(wrong());
        }
        let joined = &x.shape()[..batch + axes];
        let strides = Shape::from(joined).strides();
        let last = outer.len();
        let outer_ty = Type::new(DType::I64, outer);
        let mut places = indices.full_like(outer_ty.clone(), 0.0)?;
        for axis in 0..batch {
            let counted = indices.iota_like(outer_ty.clone(), axis)?;
            places = places.add(&counted.mul_scalar(strides[axis] as f64)?)?;
        }
        for k in 0..axes {
            let own = indices.narrow(last, k, k + 1)?.reshape(outer)?;
            let own = from_start(&own, x.shape()[batch + k])?.cast(DType::I64)?;
            places = places.add(&own.mul_scalar(strides[batch + k] as f64)?)?;
        }
        let n = outer.iter().product::<usize>();
        Ok(FlatIndex { places: places.reshape([n])?, axes, batch })
    }

    /// x with all axes that are named joined into one.
    fn rows_shape(&self, x: &Tensor) -> Vec<usize> {
        let joined = self.batch + self.axes;
        let rows = x.shape()[..joined].iter().product();
        [rows].into_iter().chain(x.shape()[joined..].iter().copied()).collect()
    }
}

/// The index of the largest or smallest along an axis, the first or the last of equals.
#[track_caller]
pub fn arg_extreme(x: &Tensor, axis: usize, is_least: bool, takes_last: bool) -> Result<Tensor> {
    use plimsoll_graph::ReorderOps;
    let n = length(x, axis)?;
    let x = match x.dtype() {
        dtype if dtype.is_float() || dtype.is_index() => x.clone(),
        _ => x.cast(DType::I64)?,
    };
    let x = if is_least { x.neg()? } else { x };
    if !takes_last {
        return x.argmax(axis as isize);
    }
    x.flip(&[axis as isize])?.argmax(axis as isize)?.rsub_scalar(n as f64 - 1.0)
}

/// `on` at the places that indices name on a new axis, `off` elsewhere; indices outside of the axis name none.
#[track_caller]
pub fn one_hot(indices: &Tensor, depth: usize, axis: usize, on: &Tensor, off: &Tensor) -> Result<Tensor> {
    let indices = if indices.dtype() == DType::I64 { indices.clone() } else { indices.cast(DType::I64)? };
    let indices = from_start(&indices, depth)?;
    let mut single: Vec<usize> = indices.shape().to_vec();
    if axis > single.len() {
        return Err(refuse(format!("makes axis {axis} of indices {}", indices.ty())));
    }
    single.insert(axis, 1);
    let mut whole = single.clone();
    whole[axis] = depth;
    let counted = indices.iota_like(Type::new(DType::I64, &whole[..]), axis)?;
    let hit = counted.equal(&indices.reshape(&single[..])?)?;
    hit.select(on, off)
}

/// x below a diagonal or above it, zeros elsewhere: of its last two axes. Diagonal 0 is the main one, those above it count up.
#[track_caller]
pub fn triangle(x: &Tensor, diagonal: i64, is_upper: bool) -> Result<Tensor> {
    let rank = x.shape().rank();
    if rank < 2 {
        return Err(refuse(format!("takes a triangle of {}", x.ty())));
    }
    let ty = Type::new(DType::I64, &x.shape()[rank - 2..]);
    let (row, column) = (x.iota_like(ty.clone(), 0)?, x.iota_like(ty, 1)?);
    let edge = row.add_scalar(diagonal as f64)?;
    let kept = if is_upper { column.greater_equal(&edge)? } else { column.less_equal(&edge)? };
    kept.select(x, &scalar(x, 0.0)?)
}

/// Running sums of any element type.
#[track_caller]
pub fn cumsum(x: &Tensor, axis: usize, exclusive: bool, reverse: bool) -> Result<Tensor> {
    super::integer::arithmetic_one(x, |x| x.cumsum_with(axis as isize, exclusive, reverse))
}

#[track_caller]
fn length(x: &Tensor, axis: usize) -> Result<usize> {
    let none = || refuse(format!("names axis {axis} of {}", x.ty()));
    x.shape().get(axis).copied().ok_or_else(none)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(shape: &[usize]) -> Tensor {
        let all: Vec<i64> = (0..shape.iter().product::<usize>() as i64).collect();
        Tensor::from_slice(&all, shape).unwrap()
    }

    fn ints(x: &Tensor) -> Vec<i64> {
        x.to_vec::<i64>().unwrap()
    }

    #[test]
    fn indices_count_from_the_end_where_they_are_negative() {
        let x = numbers(&[3, 2]);
        let places = Tensor::from_slice(&[-1i64, 0], [2]).unwrap();
        assert_eq!(ints(&gather(&x, &places, 0).unwrap()), [4, 5, 0, 1]);
        let places = Tensor::from_slice(&[-1i64, 0], [1, 2]).unwrap();
        assert_eq!(ints(&gather_elements(&x, &places, 0).unwrap()), [4, 1]);
        assert!(gather(&x, &places, 2).is_err());
    }

    #[test]
    fn several_axes_are_picked_from_and_put_to_at_once() {
        let x = numbers(&[2, 3, 2]);
        let places = Tensor::from_slice(&[1i64, 2, 0, -1], [2, 2]).unwrap();
        assert_eq!(ints(&gather_nd(&x, &places, 0).unwrap()), [10, 11, 4, 5]);
        let batched = Tensor::from_slice(&[2i64, 0], [2, 1]).unwrap();
        assert_eq!(ints(&gather_nd(&x, &batched, 1).unwrap()), [4, 5, 6, 7]);
        let values = Tensor::from_slice(&[-1i64, -2, -3, -4], [2, 2]).unwrap();
        let y = scatter_nd(&x, &places, &values, Put::Set).unwrap();
        assert_eq!(ints(&y), [0, 1, 2, 3, -3, -4, 6, 7, 8, 9, -1, -2]);
    }

    #[test]
    fn what_meets_is_added_or_the_last_stays() {
        let x = numbers(&[2, 3]);
        let places = Tensor::from_slice(&[1i64, 1], [1, 2]).unwrap();
        let values = Tensor::from_slice(&[10i64, 20], [1, 2]).unwrap();
        let put = |put| ints(&scatter_elements(&x, &places, &values, 1, put).unwrap());
        assert_eq!(put(Put::Set), [0, 20, 2, 3, 4, 5]);
        assert_eq!(put(Put::Add), [0, 31, 2, 3, 4, 5]);
    }

    #[test]
    fn of_equals_the_first_or_the_last_is_named() {
        let x = Tensor::from_slice(&[1.0f32, 3.0, 3.0, 1.0], [4]).unwrap();
        let at = |least, last| ints(&arg_extreme(&x, 0, least, last).unwrap());
        assert_eq!(
            [at(false, false), at(false, true), at(true, false), at(true, true)].concat(),
            [1, 2, 0, 3]
        );
    }
}
