//! Layers that bring pixels into range.

use plimsoll_graph::TensorOps;
use plimsoll_nn::Init;
use plimsoll_run::{Result as RunResult, Tensor};

use super::{Table, statistic};
use crate::error::{Result, refuse};
use crate::layer::{Made, Masks, Weight, WeightKind};
use crate::settings::Settings;

/// The least deviation that Keras divides by.
const LEAST_DEVIATION: f64 = 1e-7;
/// The longest list of numbers in a configuration.
const MOST_NUMBERS: usize = 1 << 16;

pub(crate) const TABLE: Table = &[
    ("Rescaling", |s| {
        let scale = rounded(s.numbers("scale", MOST_NUMBERS)?);
        let offset =
            if s.is_null("offset") { vec![0.0] } else { rounded(s.numbers("offset", MOST_NUMBERS)?) };
        Ok(Made::unary(move |cx, x| {
            let x = x.cast(cx.dtype())?;
            let y = match scale[..] {
                [scale] => x.mul_scalar(scale)?,
                _ => x.mul(&row(&scale, &x)?)?,
            };
            match offset[..] {
                [0.0] => Ok(y),
                [offset] => y.add_scalar(offset),
                _ => y.add(&row(&offset, &y)?),
            }
        })
        .masks(Masks::Pass))
    }),
    ("Normalization", normalization),
];

/// Numbers of a configuration as Keras has them in whatever type it computes: rounded to f32 first.
fn rounded(numbers: Vec<f64>) -> Vec<f64> {
    numbers.into_iter().map(|x| f64::from(x as f32)).collect()
}

/// Numbers from a configuration as a tensor along the last axis.
fn row(numbers: &[f64], like: &Tensor) -> RunResult<Tensor> {
    if like.shape().last() != Some(&numbers.len()) {
        return Err(refuse(format!(
            "gives {} to a layer with {} numbers a channel",
            like.ty(),
            numbers.len()
        )));
    }
    let wide = Tensor::from_slice(numbers, [numbers.len()])?.cast(like.dtype().accumulator())?;
    wide.cast(like.dtype())
}

fn normalization(s: &Settings<'_>) -> Result<Made> {
    let axes = if s.is_null("axis") { Vec::new() } else { s.integers("axis")? };
    let invert = s.flag("invert", false)?;
    let apply = move |x: &Tensor, mean: &Tensor, deviation: &Tensor| match invert {
        true => x.mul(deviation)?.add(mean),
        false => x.sub(mean)?.div(deviation),
    };
    if !s.is_null("mean") {
        let mean = rounded(s.numbers("mean", MOST_NUMBERS)?);
        let variance = rounded(s.numbers("variance", MOST_NUMBERS)?);
        if mean.len() != variance.len() {
            return Err(s.wrong("variance", "it should be as long as the mean"));
        }
        if axes.len() > 1 || (axes.len() == 1 && axes[0] < 1 && axes[0] != -1) {
            return Err(s.wrong("axis", "only the last axis is taken"));
        }
        return Ok(Made::unary(move |cx, x| {
            let x = x.cast(cx.dtype())?;
            if axes.first().is_some_and(|&axis| axis > 0 && axis as usize + 1 != x.shape().rank()) {
                return Err(refuse(format!("normalizes {} along another axis than the last", x.ty())));
            }
            let deviation: Vec<f64> = variance.iter().map(|v| v.sqrt().max(LEAST_DEVIATION)).collect();
            let wide = |numbers: &[f64]| match numbers {
                [one] => x.full_like(plimsoll_graph::Type::new(x.dtype(), []), *one),
                _ => row(numbers, &x),
            };
            apply(&x, &wide(&mean)?, &wide(&deviation)?)
        })
        .masks(Masks::Pass));
    }
    let count = Weight {
        holder: String::new(),
        name: "count".into(),
        kind: WeightKind::Idle,
        penalty: None,
        constraint: None,
        trainable: None,
    };
    let weights = vec![statistic("mean"), statistic("variance"), count];
    Ok(Made::weighted(weights, move |cx, x| {
        let x = x.cast(cx.dtype())?;
        let rank = x.shape().rank();
        let mut kept = Vec::new();
        for &axis in &axes {
            let place = if axis < 0 { axis + rank as i64 } else { axis };
            if !(0..rank as i64).contains(&place) {
                return Err(refuse(format!("normalizes {} along axis {axis}", x.ty())));
            }
            kept.push(place as usize);
        }
        kept.sort_unstable();
        let shape: Vec<usize> = kept.iter().map(|&i| x.shape()[i]).collect();
        let full: Vec<usize> = (0..rank).map(|i| if kept.contains(&i) { x.shape()[i] } else { 1 }).collect();
        let mean = cx.state("mean", &shape[..], Init::Constant(0.0))?.reshape(&full[..])?;
        let variance = cx.state("variance", &shape[..], Init::Constant(1.0))?.reshape(&full[..])?;
        let deviation = variance.sqrt()?.clamp(LEAST_DEVIATION, f64::INFINITY)?;
        let wide = x.cast(x.dtype().accumulator())?;
        apply(&wide, &mean, &deviation)?.cast(x.dtype())
    })
    .masks(Masks::Pass))
}
