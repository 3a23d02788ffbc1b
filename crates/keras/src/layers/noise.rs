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
    ("AlphaDropout", |s| match s.rate("rate")? {
        0.0 => Ok(Made::plain(|x| Ok(x.clone())).masks(Masks::Pass)),
        _ => Err(s.unsupported("which is not supported with a rate other than 0")),
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
    let noise: Option<Vec<Option<usize>>> = match s.get("noise_shape") {
        Value::Null => None,
        Value::Array(list) if list.len() <= 8 => Some(
            list.iter()
                .map(|n| match n {
                    Value::Null => Ok(None),
                    n => n
                        .as_u64()
                        .filter(|n| *n <= 1 << 28)
                        .map(|n| Some(n as usize))
                        .ok_or_else(|| s.wrong("noise_shape", "it should be a list of lengths")),
                })
                .collect::<Result<_>>()?,
        ),
        _ => return Err(s.wrong("noise_shape", "it should be a list of lengths")),
    };
    Ok(Made::unary(move |cx, x| {
        let Some(noise) = &noise else { return drop(cx, x, rate, None) };
        if noise.len() != x.shape().rank() {
            return Err(refuse(format!("drops {} by a mask of {} axes", x.ty(), noise.len())));
        }
        let shape: Shape = x.shape().iter().zip(noise).map(|(&n, noise)| noise.unwrap_or(n)).collect();
        drop(cx, x, rate, Some(shape))
    })
    .masks(Masks::Pass))
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
