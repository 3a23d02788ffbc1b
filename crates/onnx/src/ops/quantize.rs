//! Whole numbers for fractions and back, by a scale and a zero point.

use plimsoll_graph::{DType, TensorOps};
use plimsoll_nn::blocks::element;
use plimsoll_run::{Result, Tensor};

use super::Table;
use crate::call::{Call, axis_of};
use crate::error::refuse;
use crate::value::Value;

pub(super) const TABLE: Table = &[
    ("QuantizeLinear", |c| {
        let x = c.plain(0)?;
        let zero = c.maybe_plain(2)?;
        let to = match (&zero, c.dtype("output_dtype")?) {
            (Some(zero), _) => zero.dtype(),
            (None, Some(dtype)) => dtype,
            (None, None) => DType::U8,
        };
        c.flag("saturate", true)?;
        c.dtype("precision")?;
        let Some((low, high)) = to.range() else {
            return Err(refuse(format!("makes {to} elements of fractions")));
        };
        let (scale, zero) =
            (per_channel(c, &c.plain(1)?, &x)?, zero.map(|z| per_channel(c, &z, &x)).transpose()?);
        let mut y = element::round(&x.cast(DType::F32)?.div(&scale.cast(DType::F32)?)?)?;
        if let Some(zero) = zero {
            y = y.add(&zero.cast(DType::F32)?)?;
        }
        Ok(vec![y.clamp(low as f64, high as f64)?.cast(to)?.into()])
    }),
    ("DequantizeLinear", |c| {
        let x = c.plain(0)?;
        let to = c.dtype("output_dtype")?;
        let scale = per_channel(c, &c.plain(1)?, &x)?;
        let zero = c.maybe_plain(2)?.map(|zero| per_channel(c, &zero, &x)).transpose()?;
        let mut y = x.cast(DType::F32)?;
        if let Some(zero) = zero {
            y = y.sub(&zero.cast(DType::F32)?)?;
        }
        let y = y.mul(&scale.cast(DType::F32)?)?;
        Ok(vec![y.cast(to.unwrap_or(scale.dtype()))?.into()])
    }),
    ("DynamicQuantizeLinear", |c| {
        let x = c.plain(0)?;
        let zero = element::scalar(&x, 0.0)?;
        let (low, high) = (x.min(&[], false)?.minimum(&zero)?, x.max(&[], false)?.maximum(&zero)?);
        let scale = high.sub(&low)?.mul_scalar(1.0 / 255.0)?;
        let point = element::round(&low.neg()?.div(&scale)?.clamp(0.0, 255.0)?)?;
        let y = element::round(&x.div(&scale)?)?.add(&point)?.clamp(0.0, 255.0)?.cast(DType::U8)?;
        Ok(vec![Value::from(y), scale.into(), point.cast(DType::U8)?.into()])
    }),
];

/// A number for everything, or one an element of an axis.
fn per_channel(c: &Call<'_>, given: &Tensor, x: &Tensor) -> Result<Tensor> {
    let axis = c.int("axis", 1)?;
    if c.int("block_size", 0)? != 0 {
        return Err(refuse("scales blocks of an axis"));
    }
    match given.shape()[..] {
        [] | [1] => given.reshape(&[][..]),
        [n] => {
            let axis = axis_of(axis, x.shape().rank())?;
            if x.shape()[axis] != n {
                return Err(refuse(format!("scales {} by {n} numbers", x.shape())));
            }
            let mut shape = vec![1; x.shape().rank()];
            shape[axis] = n;
            given.reshape(shape)
        }
        _ => Err(refuse(format!("scales by {}", given.shape()))),
    }
}
