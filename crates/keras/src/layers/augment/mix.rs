//! Changes that put something else in the place of a part of an image: other images of the batch, or noise.

use plimsoll_graph::{TensorOps, Type};
use plimsoll_run::{Result as RunResult, Tensor};
use serde_json::Value;

use super::draw::{self, chance, even, number, place_type};
use super::{Change, range, unit_factor};
use crate::error::{Result, refuse};
use crate::layers::resize::pixels;
use crate::settings::Settings;

/// Images mixed with others of the batch. Labels are not, as in Keras where such a layer stands in a model.
pub(super) fn mix_up(s: &Settings<'_>) -> Result<Change> {
    let alpha = s.number_or("alpha", 0.2)?;
    if alpha <= 0.0 {
        return Err(s.wrong("alpha", "it should be above 0"));
    }
    Ok(Change::new(
        move |cx, x| {
            let alpha = x.full_like(Type::new(place_type(x), [1, 1, 1, 1]), alpha)?;
            Ok(vec![draw::order(cx, x)?, draw::beta(cx, x, &alpha)?])
        },
        |x, drawn| {
            let [order, share] = drawn else { return Err(refuse("draws too few numbers")) };
            let share = share.cast(x.dtype())?;
            x.mul(&share)?.add(&draw::in_order(x, order)?.mul(&share.rsub_scalar(1.0)?)?)
        },
    ))
}

/// A box of each image from another of the batch.
pub(super) fn cut_mix(s: &Settings<'_>) -> Result<Change> {
    let factor = unit_factor(s, "factor")?;
    Ok(Change::new(
        move |cx, x| {
            let alpha = draw::even_once(cx, x, factor)?.add_scalar(1e-6)?;
            let side = draw::beta(cx, x, &alpha)?.rsub_scalar(1.0)?.sqrt()?;
            let unit = (0.0, 1.0);
            Ok(vec![draw::order(cx, x)?, even(cx, x, unit)?, even(cx, x, unit)?, side.clone(), side])
        },
        |x, drawn| {
            let [order, sides @ ..] = drawn else { return Err(refuse("draws too few numbers")) };
            inside(x, sides)?.select(&draw::in_order(x, order)?, x)
        },
    ))
}

/// Where a box lies that has shares of the width and the height, and begins at shares of what is left of them.
fn inside(x: &Tensor, sides: &[Tensor]) -> RunResult<Tensor> {
    let [across, down, wide, high] = sides else { return Err(refuse("draws too few numbers")) };
    let [height, width] = pixels(x)?;
    let ty = Type::new(place_type(x), [1, height, width, 1]);
    let mut is_inside: Option<Tensor> = None;
    for (axis, n, start, share) in [(2, width, across, wide), (1, height, down, high)] {
        let place = x.iota_like(ty.clone(), axis)?;
        let length = share.mul_scalar(n as f64)?;
        let begin = length.rsub_scalar(n as f64)?.mul(start)?;
        let is_in = place.greater_equal(&begin)?.and(&place.less(&begin.add(&length)?)?)?;
        is_inside = Some(match is_inside {
            Some(other) => other.and(&is_in)?,
            None => is_in,
        });
    }
    let is_inside = is_inside.ok_or_else(|| refuse("has no box"))?;
    is_inside.broadcast(x.shape().clone())
}

/// A box of each image filled with a number, three, or noise.
pub(super) fn erasing(s: &Settings<'_>) -> Result<Change> {
    let likely = unit_factor(s, "factor")?;
    let scale = match s.get("scale") {
        Value::Null => (0.02, 0.33),
        _ => unit_factor(s, "scale")?,
    };
    let (least, most) = range(s)?;
    let fill = if s.is_null("fill_value") { None } else { Some(s.numbers("fill_value", 3)?) };
    Ok(Change::new(
        move |cx, x| {
            let side = |cx: &mut _| even(cx, x, scale)?.sqrt();
            let (wide, high) = (side(cx)?, side(cx)?);
            let unit = (0.0, 1.0);
            let (across, down) = (even(cx, x, unit)?, even(cx, x, unit)?);
            let is_erased = chance(cx, x, likely)?;
            let filled = match &fill {
                None => draw::normal(cx, x, x.shape().clone())?.mul_scalar(most)?,
                Some(numbers) => {
                    let numbers: Vec<f32> = numbers.iter().map(|n| *n as f32).collect();
                    let row = Tensor::from_slice(&numbers, [1, 1, 1, numbers.len()])?;
                    row.cast(place_type(x))?.broadcast(x.shape().clone())?
                }
            };
            Ok(vec![is_erased, filled.clamp(least, most)?, across, down, wide, high])
        },
        |x, drawn| {
            let [is_erased, filled, sides @ ..] = drawn else { return Err(refuse("draws too few numbers")) };
            let is_filled = inside(x, sides)?.and(&is_erased.broadcast(x.shape().clone())?)?;
            is_filled.select(&filled.cast(x.dtype())?, x)
        },
    ))
}

/// Turned over, from side to side or upside down.
pub(super) fn flip(s: &Settings<'_>) -> Result<Change> {
    use plimsoll_graph::ReorderOps;
    let axes: &'static [isize] = match s.text_or("mode", "horizontal_and_vertical")? {
        "horizontal" => &[2],
        "vertical" => &[1],
        "horizontal_and_vertical" => &[2, 1],
        _ => return Err(s.wrong("mode", "horizontal, vertical and horizontal_and_vertical are known")),
    };
    Ok(Change::new(
        move |cx, x| axes.iter().map(|_| even(cx, x, (0.0, 1.0))).collect(),
        move |x, drawn| {
            pixels(x)?;
            let mut x = x.clone();
            for (coin, axis) in drawn.iter().zip(axes) {
                let turned = coin.less_equal(&number(coin, 0.5)?)?.broadcast(x.shape().clone())?;
                x = turned.select(&x.flip(&[*axis])?, &x)?;
            }
            Ok(x)
        },
    ))
}
