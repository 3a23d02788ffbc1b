//! Numbers of stored tensors: from bytes to what they stand for, and back.

use std::sync::Arc;

use half::f16;

use crate::error::{Error, Result};
use crate::lite_model::{ElementType, LiteTensor, Quantization};

/// f32s as bytes.
pub(crate) fn bytes_of(values: &[f32]) -> Arc<[u8]> {
    values.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// The whole numbers of a stored tensor of indices, sizes or axes.
pub(crate) fn integers(tensor: &LiteTensor) -> Result<Vec<i64>> {
    let data = tensor.data.as_deref();
    let data = data.ok_or_else(|| Error::damaged(format!("tensor {}", tensor.name), "it must be stored"))?;
    match tensor.ty {
        ElementType::I32 => {
            Ok(data.as_chunks::<4>().0.iter().map(|&b| i32::from_le_bytes(b).into()).collect())
        }
        ElementType::I64 => Ok(data.as_chunks::<8>().0.iter().map(|&b| i64::from_le_bytes(b)).collect()),
        _ => Err(Error::damaged(format!("tensor {}", tensor.name), "whole numbers belong there")),
    }
}

/// For every element the place of its scale.
fn scale_places(shape: &[usize], quantization: &Quantization) -> impl Fn(usize) -> usize {
    let n = quantization.scales.len();
    let inner: usize = shape.iter().skip(quantization.axis + 1).product();
    move |i| if n == 1 { 0 } else { i / inner.max(1) % n }
}

/// What the elements of a stored tensor of numbers stand for; none where they are no numbers that are computed with.
pub(crate) fn reals(tensor: &LiteTensor) -> Option<Vec<f32>> {
    let data = tensor.data.as_deref()?;
    let with = |stored: Vec<i64>| -> Option<Vec<f32>> {
        let q = tensor.quantization.as_ref()?;
        let place = scale_places(&tensor.shape, q);
        let real = |(i, n): (usize, &i64)| (n - q.zero_points[place(i)]) as f32 * q.scales[place(i)];
        Some(stored.iter().enumerate().map(real).collect())
    };
    match tensor.ty {
        ElementType::F32 => Some(data.as_chunks::<4>().0.iter().map(|&b| f32::from_le_bytes(b)).collect()),
        ElementType::F16 => {
            Some(data.as_chunks::<2>().0.iter().map(|&b| f16::from_le_bytes(b).to_f32()).collect())
        }
        ElementType::I8 => with(data.iter().map(|&b| i64::from(b as i8)).collect()),
        ElementType::U8 => with(data.iter().map(|&b| i64::from(b)).collect()),
        ElementType::I32 => {
            with(data.as_chunks::<4>().0.iter().map(|&b| i64::from(i32::from_le_bytes(b))).collect())
        }
        _ => None,
    }
}

/// The nearest of the 256 numbers that a byte stands for, halves away from zero.
pub(crate) fn nearest(x: f32, scale: f32, zero_point: i64) -> i8 {
    let stored = (x / scale).round() + zero_point as f32;
    // A number that is none becomes the zero point, as the engine's casts have it.
    if stored.is_nan() { zero_point as i8 } else { stored.clamp(-128.0, 127.0) as i8 }
}

/// Numbers as the bytes that stand for them.
pub(crate) fn quantized(values: &[f32], shape: &[usize], quantization: &Quantization) -> Arc<[u8]> {
    let place = scale_places(shape, quantization);
    let one = |(i, &x): (usize, &f32)| {
        let at = place(i);
        nearest(x, quantization.scales[at], quantization.zero_points[at]) as u8
    };
    values.iter().enumerate().map(one).collect()
}
