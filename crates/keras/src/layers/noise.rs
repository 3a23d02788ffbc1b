//! Layers that draw random numbers in training, and do nothing otherwise.

use plimsoll_graph::{RandomOps, Shape, TensorOps};
use plimsoll_run::{Result as RunResult, Tensor};
use serde_json::Value;

use super::Table;
use crate::error::{Result, refuse};
use crate::layer::{Cx, Made, Masks};
use crate::settings::Settings;

pub(crate) const TABLE: Table = &[
    ("Dropout", dropout),
    ("SpatialDropout1D", |s| spatial(s, 3)),
    ("SpatialDropout2D", |s| spatial(s, 4)),
    ("SpatialDropout3D", |s| spatial(s, 5)),
    ("AlphaDropout", |s| {
        let rate = s.rate("rate")?;
        let noise = shape_of_noise(s)?;
        Ok(Made::unary(move |cx, x| {
            if !cx.is_training() || rate == 0.0 {
                return Ok(x.clone());
            }
            // What is dropped becomes α', and all is brought back to the mean and deviation that a selu keeps.
            const LOW: f64 = -1.673_263_242_354_377_2 * 1.050_700_987_355_480_5;
            let a = ((1.0 - rate) * (1.0 + rate * LOW * LOW)).powf(-0.5);
            let shape = noise_shape(x, noise.as_deref())?.unwrap_or_else(|| x.shape().clone());
            let (key, stream) = cx.net.draw("dropout")?;
            let ones = x.full_like(x.ty().with_shape(shape), 1.0 - rate)?;
            let kept = ones.dropout(rate, &key, stream)?;
            let dropped = kept.rsub_scalar(1.0)?.mul_scalar(LOW)?;
            x.mul(&kept)?.add(&dropped)?.mul_scalar(a)?.add_scalar(-a * LOW * rate)
        })
        .masks(Masks::Pass))
    }),
    ("StochasticDepth", |s| {
        let rate = s.rate("drop_path_rate")?;
        Ok(Made::unary(move |cx, x| {
            let shape = samples_alone(x);
            drop(cx, x, rate, Some(shape))
        }))
    }),
    ("GaussianNoise", |s| {
        let std = s.number_or("stddev", 0.0)?;
        Ok(Made::unary(move |cx, x| {
            if !cx.is_training() || std == 0.0 {
                return Ok(x.clone());
            }
            let (key, stream) = cx.net.draw("noise")?;
            x.add(&key.random_normal(x.ty().clone(), stream, 0.0, std)?)
        })
        .masks(Masks::Pass))
    }),
    ("GaussianDropout", |s| {
        let rate = s.rate("rate")?;
        Ok(Made::unary(move |cx, x| {
            if !cx.is_training() || rate == 0.0 {
                return Ok(x.clone());
            }
            let (key, stream) = cx.net.draw("noise")?;
            let std = (rate / (1.0 - rate)).sqrt();
            x.mul(&key.random_normal(x.ty().clone(), stream, 1.0, std)?)
        })
        .masks(Masks::Pass))
    }),
];

/// 1 along every axis but the first.
fn samples_alone(x: &Tensor) -> Shape {
    x.shape().iter().enumerate().map(|(i, &n)| if i == 0 { n } else { 1 }).collect()
}

fn dropout(s: &Settings<'_>) -> Result<Made> {
    let rate = s.rate("rate")?;
    let noise = shape_of_noise(s)?;
    Ok(Made::unary(move |cx, x| {
        let shape = noise_shape(x, noise.as_deref())?;
        drop(cx, x, rate, shape)
    })
    .masks(Masks::Pass))
}

/// The shape of a mask as the settings have it; a length that is not named is the tensor's.
fn shape_of_noise(s: &Settings<'_>) -> Result<Option<Vec<Option<usize>>>> {
    let wrong = || s.wrong("noise_shape", "it should be a list of lengths");
    let length = |n: &Value| match n {
        Value::Null => Ok(None),
        n => n.as_u64().filter(|n| *n <= 1 << 28).map(|n| Some(n as usize)).ok_or_else(wrong),
    };
    match s.get("noise_shape") {
        Value::Null => Ok(None),
        Value::Array(list) if list.len() <= 8 => list.iter().map(length).collect::<Result<_>>().map(Some),
        _ => Err(wrong()),
    }
}

fn noise_shape(x: &Tensor, noise: Option<&[Option<usize>]>) -> RunResult<Option<Shape>> {
    let Some(noise) = noise else { return Ok(None) };
    if noise.len() != x.shape().rank() {
        return Err(refuse(format!("drops {} by a mask of {} axes", x.ty(), noise.len())));
    }
    Ok(Some(x.shape().iter().zip(noise).map(|(&n, noise)| noise.unwrap_or(n)).collect()))
}

fn spatial(s: &Settings<'_>, rank: usize) -> Result<Made> {
    s.channels_last()?;
    let rate = s.rate("rate")?;
    Ok(Made::unary(move |cx, x| {
        if x.shape().rank() != rank {
            return Err(refuse(format!("gives {} to a dropout of {rank} axes", x.ty())));
        }
        let shape: Shape =
            x.shape().iter().enumerate().map(|(i, &n)| if i == 0 || i + 1 == rank { n } else { 1 }).collect();
        drop(cx, x, rate, Some(shape))
    })
    .masks(Masks::Pass))
}

/// Dropout, by a mask of another shape where one is given.
pub(crate) fn drop(cx: &mut Cx<'_>, x: &Tensor, rate: f64, mask: Option<Shape>) -> RunResult<Tensor> {
    if !cx.is_training() || rate == 0.0 {
        return Ok(x.clone());
    }
    let (key, stream) = cx.net.draw("dropout")?;
    match mask {
        None => x.dropout(rate, &key, stream),
        Some(mask) => {
            let ones = x.full_like(x.ty().with_shape(mask), 1.0)?;
            x.mul(&ones.dropout(rate, &key, stream)?)
        }
    }
}
