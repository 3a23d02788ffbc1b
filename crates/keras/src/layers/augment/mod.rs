//! Layers that change images at random in training and pass them on otherwise, and those that even out what images are made of.
//!
//! Random numbers are our own: what is drawn has Keras's distribution, not its bits.

mod chain;
mod color;
mod draw;
mod histogram;
mod mix;
mod warp;

use plimsoll_graph::ops::ResizeMode;
use plimsoll_graph::{DType, GatherOps, ResizeOps, TensorOps};
use plimsoll_run::{Result as RunResult, Tensor};
use serde_json::Value;

use super::Table;
use super::resize::{cut, pixels};
use crate::error::{Result, refuse};
use crate::layer::{Cx, Made};
use crate::settings::Settings;

pub(crate) const TABLE: Table = &[
    ("RandomFlip", |s| in_training(s, mix::flip(s)?)),
    ("RandomBrightness", |s| in_training(s, color::brightness(s)?)),
    ("RandomContrast", |s| in_training(s, color::contrast(s)?)),
    ("RandomCrop", crop),
    ("RandomInvert", |s| in_training(s, color::invert(s)?)),
    ("RandomGrayscale", |s| in_training(s, color::grayscale(s)?)),
    ("RandomRotation", |s| in_training(s, warp::rotation(s)?)),
    ("RandomTranslation", |s| in_training(s, warp::translation(s)?)),
    ("RandomZoom", |s| in_training(s, warp::zoom(s)?)),
    ("RandomShear", |s| in_training(s, warp::shear(s)?)),
    ("RandomColorDegeneration", |s| in_training(s, color::degeneration(s)?)),
    ("RandomColorJitter", |s| whole_in_training(s, color::jitter(s)?)),
    ("RandomElasticTransform", |s| in_training(s, warp::elastic(s)?)),
    ("RandomErasing", |s| in_training(s, mix::erasing(s)?)),
    ("RandomGaussianBlur", |s| in_training(s, color::blur(s)?)),
    ("RandomHue", |s| in_training(s, color::hue(s)?)),
    ("RandomPerspective", |s| in_training(s, warp::perspective(s)?)),
    ("RandomPosterization", |s| in_training(s, color::posterization(s)?)),
    ("RandomSaturation", |s| in_training(s, color::saturation(s)?)),
    ("RandomSharpness", |s| in_training(s, color::sharpness(s)?)),
    ("Solarization", |s| in_training(s, color::solarization(s)?)),
    ("RandAugment", |s| whole_in_training(s, chain::rand_augment(s)?)),
    ("AugMix", |s| whole_in_training(s, chain::aug_mix(s)?)),
    ("MixUp", |s| in_training(s, mix::mix_up(s)?)),
    ("CutMix", |s| in_training(s, mix::cut_mix(s)?)),
    ("AutoContrast", |s| {
        s.channels_last()?;
        let values = range(s)?;
        Ok(Made::unary(move |cx, x| color::auto_contrast(&x.cast(cx.dtype())?, values)))
    }),
    ("ContrastLimitedAdaptiveHistogramEqualization", histogram::by_parts),
    ("Equalization", |s| {
        let (values, bins) = (range(s)?, if s.is_null("bins") { 256 } else { s.units("bins")? });
        if !(2..=65536).contains(&bins) {
            return Err(s.wrong("bins", "it should be from 2 to 65536"));
        }
        in_training(s, Change::fixed(move |x| histogram::equalized(x, values, bins)))
    }),
];

type Drawing = Box<dyn Fn(&mut Cx<'_>, &Tensor) -> RunResult<Vec<Tensor>> + Send + Sync>;
type Applying = Box<dyn Fn(&Tensor, &[Tensor]) -> RunResult<Tensor> + Send + Sync>;
/// All that a layer does in training.
type Changing = Box<dyn Fn(&mut Cx<'_>, &Tensor) -> RunResult<Tensor> + Send + Sync>;

/// A change of images: what it draws, and what it does with that.
struct Change {
    draw: Drawing,
    apply: Applying,
}

impl Change {
    fn new(
        draw: impl Fn(&mut Cx<'_>, &Tensor) -> RunResult<Vec<Tensor>> + Send + Sync + 'static,
        apply: impl Fn(&Tensor, &[Tensor]) -> RunResult<Tensor> + Send + Sync + 'static,
    ) -> Change {
        Change { draw: Box::new(draw), apply: Box::new(apply) }
    }

    /// One that draws nothing.
    fn fixed(f: impl Fn(&Tensor) -> RunResult<Tensor> + Send + Sync + 'static) -> Change {
        Change::new(|_, _| Ok(Vec::new()), move |x, _| f(x))
    }

    fn run(&self, cx: &mut Cx<'_>, x: &Tensor) -> RunResult<Tensor> {
        let drawn = (self.draw)(cx, x)?;
        (self.apply)(x, &drawn)
    }
}

/// Leaves images as they are.
fn unchanged() -> Change {
    Change::fixed(|x| Ok(x.clone()))
}

/// The only tensor that was drawn.
fn once(drawn: &[Tensor]) -> RunResult<&Tensor> {
    drawn.first().ok_or_else(|| refuse("draws too few numbers"))
}

/// Two numbers, or one for both sides of 0, as far as the lower bound of what the layer takes.
fn factor(s: &Settings<'_>, key: &str, (least, _): (f64, f64)) -> Result<(f64, f64)> {
    if s.is_null(key) {
        return Ok((0.0f64.max(least), 0.0f64.max(least)));
    }
    match s.numbers(key, 2)?[..] {
        [one] => Ok(((-one.abs()).max(least), one.abs())),
        [a, b] => Ok((a.min(b), a.max(b))),
        _ => Err(s.wrong(key, "it should be a number, or two")),
    }
}

/// The same of numbers from 0 to 1.
fn unit_factor(s: &Settings<'_>, key: &str) -> Result<(f64, f64)> {
    factor(s, key, (0.0, 1.0))
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
fn in_training(s: &Settings<'_>, change: Change) -> Result<Made> {
    whole_in_training(s, Box::new(move |cx, x| change.run(cx, x)))
}

fn whole_in_training(s: &Settings<'_>, change: Changing) -> Result<Made> {
    s.channels_last()?;
    Ok(Made::unary(move |cx, x| {
        let x = x.cast(cx.dtype())?;
        if !cx.is_training() {
            return Ok(x);
        }
        pixels(&x)?;
        change(cx, &x)
    }))
}

/// A part of the images at a random place, the same for the whole batch; where they are not larger than that, from their middle.
fn crop(s: &Settings<'_>) -> Result<Made> {
    s.channels_last()?;
    let size = [s.units("height")?, s.units("width")?];
    Ok(Made::unary(move |cx, x| {
        let x = x.cast(cx.dtype())?;
        let old = pixels(&x)?;
        if old == size {
            return Ok(x);
        }
        if !cx.is_training() {
            return Err(refuse(format!(
                "gives images of {} x {} to a RandomCrop to {} x {} outside of training, where versions of Keras differ; give it \
                 images of that size, or put a CenterCrop in its place",
                old[0], old[1], size[0], size[1]
            )));
        }
        if old[0] > size[0] && old[1] > size[1] {
            return cropped(cx, &x, size);
        }
        let part = middle_from(&x, size)?;
        if pixels(&part)? == size { Ok(part) } else { part.resize2d(size, ResizeMode::Bilinear, false) }
    }))
}

fn cropped(cx: &mut Cx<'_>, x: &Tensor, size: [usize; 2]) -> RunResult<Tensor> {
    let old = pixels(x)?;
    let mut x = x.clone();
    for axis in 0..2 {
        let start = draw::whole_once(cx, &x, old[axis] - size[axis] + 1)?.reshape([1])?;
        let places = start.iota_like(start.ty().with_shape([size[axis]]), 0)?.add(&start)?;
        x = x.gather(&places.cast(DType::I64)?, axis as isize + 1)?;
    }
    Ok(x)
}

/// What is cut from the place where a part of the wanted proportions would begin, as long as it goes.
fn middle_from(x: &Tensor, size: [usize; 2]) -> RunResult<Tensor> {
    let old = pixels(x)?;
    let fitting = pixels(&cut(x, size)?)?;
    let mut x = x.clone();
    for axis in 0..2 {
        let start = (old[axis] - fitting[axis]) / 2;
        x = x.narrow(axis + 1, start, (start + size[axis]).min(old[axis]))?;
    }
    Ok(x)
}
