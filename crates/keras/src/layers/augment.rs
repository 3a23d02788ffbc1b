//! Layers that change images at random in training and pass them on otherwise.
//!
//! Random numbers are our own: what is drawn has Keras's distribution, not its bits. Of layers whose change is not built here,
//! training is refused by name.

use plimsoll_graph::{DType, RandomOps, ReorderOps, ResizeOps, TensorOps, Type};
use plimsoll_run::{Result as RunResult, Tensor};
use serde_json::Value;

use super::Table;
use super::resize::{cut, pixels};
use crate::error::{Result, refuse};
use crate::layer::{Cx, Made};
use crate::settings::Settings;

pub(crate) const TABLE: Table = &[
    ("RandomFlip", flip),
    ("RandomBrightness", brightness),
    ("RandomContrast", contrast),
    ("RandomCrop", crop),
    ("RandomInvert", |s| later(s, "RandomInvert")),
    ("RandomGrayscale", |s| later(s, "RandomGrayscale")),
    ("RandomRotation", |s| later(s, "RandomRotation")),
    ("RandomTranslation", |s| later(s, "RandomTranslation")),
    ("RandomZoom", |s| later(s, "RandomZoom")),
    ("RandomShear", |s| later(s, "RandomShear")),
    ("RandomColorDegeneration", |s| later(s, "RandomColorDegeneration")),
    ("RandomColorJitter", |s| later(s, "RandomColorJitter")),
    ("RandomElasticTransform", |s| later(s, "RandomElasticTransform")),
    ("RandomErasing", |s| later(s, "RandomErasing")),
    ("RandomGaussianBlur", |s| later(s, "RandomGaussianBlur")),
    ("RandomHue", |s| later(s, "RandomHue")),
    ("RandomPerspective", |s| later(s, "RandomPerspective")),
    ("RandomPosterization", |s| later(s, "RandomPosterization")),
    ("RandomSaturation", |s| later(s, "RandomSaturation")),
    ("RandomSharpness", |s| later(s, "RandomSharpness")),
    ("RandAugment", |s| later(s, "RandAugment")),
    ("AugMix", |s| later(s, "AugMix")),
    ("MixUp", |s| later(s, "MixUp")),
    ("CutMix", |s| later(s, "CutMix")),
];

/// What such layers may say of how they change images.
const SETTINGS: [&str; 22] = [
    "all_ops",
    "alpha",
    "brightness_factor",
    "chain_depth",
    "contrast_factor",
    "data_format",
    "factor",
    "fill_mode",
    "fill_value",
    "height_factor",
    "hue_factor",
    "interpolation",
    "kernel_size",
    "num_chains",
    "num_ops",
    "saturation_factor",
    "scale",
    "sigma",
    "value_range",
    "width_factor",
    "x_factor",
    "y_factor",
];

/// A layer that only passes images on.
fn later(s: &Settings<'_>, class: &'static str) -> Result<Made> {
    for key in SETTINGS {
        s.get(key);
    }
    Ok(Made::unary(move |cx, x| {
        if cx.is_training() {
            let why = format!(
                "trains through a {class}, whose change of images is not built here; augment before the model"
            );
            return Err(refuse(why));
        }
        x.cast(cx.dtype())
    }))
}

/// One number a sample, even between two.
fn drawn(cx: &mut Cx<'_>, x: &Tensor, low: f64, high: f64) -> RunResult<Tensor> {
    let n = x.shape().first().copied().unwrap_or(1);
    let shape: Vec<usize> = std::iter::once(n).chain(std::iter::repeat_n(1, x.shape().rank() - 1)).collect();
    let (key, stream) = cx.net.draw("augment")?;
    key.random_uniform(Type::new(DType::F32, &shape[..]), stream, low, high)?.cast(x.dtype())
}

/// Two numbers, or one for both sides of 0.
fn sides(s: &Settings<'_>, key: &str) -> Result<(f64, f64)> {
    match s.numbers(key, 2)?[..] {
        [one] => Ok((-one, one)),
        [low, high] if low <= high => Ok((low, high)),
        _ => Err(s.wrong(key, "it should be a number, or two in order")),
    }
}

/// The least and largest value of a pixel.
fn range(s: &Settings<'_>) -> Result<(f64, f64)> {
    match s.get("value_range") {
        Value::Null => Ok((0.0, 255.0)),
        _ => match s.numbers("value_range", 2)?[..] {
            [low, high] if low < high => Ok((low, high)),
            _ => Err(s.wrong("value_range", "it should be two numbers in order")),
        },
    }
}

/// A layer that changes images while a model is trained, and else passes them on.
fn in_training(
    s: &Settings<'_>,
    change: impl Fn(&mut Cx<'_>, &Tensor) -> RunResult<Tensor> + Send + Sync + 'static,
) -> Result<Made> {
    s.channels_last()?;
    Ok(Made::unary(move |cx, x| {
        let x = x.cast(cx.dtype())?;
        if cx.is_training() { change(cx, &x) } else { Ok(x) }
    }))
}

fn flip(s: &Settings<'_>) -> Result<Made> {
    let (across, down) = match s.text_or("mode", "horizontal_and_vertical")? {
        "horizontal" => (true, false),
        "vertical" => (false, true),
        "horizontal_and_vertical" => (true, true),
        _ => return Err(s.wrong("mode", "horizontal, vertical and horizontal_and_vertical are known")),
    };
    in_training(s, move |cx, x| {
        let mut x = x.clone();
        pixels(&x)?;
        for (wanted, axis) in [(across, 2), (down, 1)] {
            if wanted {
                let coin = drawn(cx, &x, 0.0, 1.0)?;
                let half = coin.full_like(Type::new(coin.dtype(), []), 0.5)?;
                let turned = coin.less_equal(&half)?.broadcast(x.shape().clone())?;
                x = turned.select(&x.flip(&[axis])?, &x)?;
            }
        }
        Ok(x)
    })
}

fn brightness(s: &Settings<'_>) -> Result<Made> {
    let ((low, high), (least, most)) = (sides(s, "factor")?, range(s)?);
    in_training(s, move |cx, x| {
        let size = most - least;
        x.add(&drawn(cx, x, low * size, high * size)?)?.clamp(least, most)
    })
}

fn contrast(s: &Settings<'_>) -> Result<Made> {
    let ((low, high), (least, most)) = (sides(s, "factor")?, range(s)?);
    in_training(s, move |cx, x| {
        pixels(x)?;
        let factor = drawn(cx, x, 1.0 + low.min(0.0), 1.0 + high)?;
        let mean = x.mean(&[1, 2], true)?;
        x.sub(&mean)?.mul(&factor)?.add(&mean)?.clamp(least, most)
    })
}

fn crop(s: &Settings<'_>) -> Result<Made> {
    s.channels_last()?;
    let size = [s.units("height")?, s.units("width")?];
    Ok(Made::unary(move |cx, x| {
        let x = x.cast(cx.dtype())?;
        let old = pixels(&x)?;
        if cx.is_training() {
            if old == size {
                return Ok(x);
            }
            return Err(refuse(
                "trains through a RandomCrop to another size, which is not built here; crop before the model",
            ));
        }
        if old == size {
            Ok(x)
        } else {
            cut(&x, size)?.resize2d(size, plimsoll_graph::ops::ResizeMode::Bilinear, false)
        }
    }))
}
