//! Changes of what pixels are: brightness, contrast, colors, sharpness, and how many steps a color has.

use plimsoll_graph::{DType, GatherOps, TensorOps};
use plimsoll_run::{Result as RunResult, Tensor};

use super::draw::{self, chance, even, number};
use super::{Change, Changing, factor, once, range, unit_factor};
use crate::error::{Result, refuse};
use crate::layers::resize::pixels;
use crate::settings::Settings;

/// What Keras adds where it would divide by 0.
const EPSILON: f64 = 1e-7;
/// The shares of red, green and blue in a gray.
const GRAY: [f64; 3] = [0.2989, 0.587, 0.114];

pub(super) type Range = (f64, f64);

pub(super) fn brightness(s: &Settings<'_>) -> Result<Change> {
    Ok(brightened(factor(s, "factor", (-1.0, 1.0))?, range(s)?))
}

pub(super) fn brightened((low, high): Range, (least, most): Range) -> Change {
    let size = most - least;
    Change::new(
        move |cx, x| Ok(vec![even(cx, x, (low * size, high * size))?]),
        move |x, drawn| x.add(&once(drawn)?.cast(x.dtype())?)?.clamp(least, most),
    )
}

pub(super) fn contrast(s: &Settings<'_>) -> Result<Change> {
    Ok(contrasted(unit_factor(s, "factor")?, range(s)?))
}

pub(super) fn contrasted((low, high): Range, (least, most): Range) -> Change {
    Change::new(
        move |cx, x| Ok(vec![even(cx, x, (1.0 - low, 1.0 + high))?]),
        move |x, drawn| {
            pixels(x)?;
            let mean = x.mean(&[1, 2], true)?;
            x.sub(&mean)?.mul(&once(drawn)?.cast(x.dtype())?)?.add(&mean)?.clamp(least, most)
        },
    )
}

/// The channels of images of three colors, each `[N, H, W, 1]`.
fn colors(x: &Tensor) -> RunResult<[Tensor; 3]> {
    match x.shape()[..] {
        [_, _, _, 3] => Ok([x.narrow(3, 0, 1)?, x.narrow(3, 1, 2)?, x.narrow(3, 2, 3)?]),
        _ => Err(refuse(format!("gives {} to a layer that takes images of three colors", x.ty()))),
    }
}

/// Images in gray, of one channel.
fn gray(x: &Tensor) -> RunResult<Tensor> {
    if x.shape().last() == Some(&1) {
        return Ok(x.clone());
    }
    let [r, g, b] = colors(x)?;
    r.mul_scalar(GRAY[0])?.add(&g.mul_scalar(GRAY[1])?)?.add(&b.mul_scalar(GRAY[2])?)
}

pub(super) fn grayscale(s: &Settings<'_>) -> Result<Change> {
    let likely = s.number_or("factor", 0.5)?;
    Ok(Change::new(
        move |cx, x| Ok(vec![chance(cx, x, (likely, likely))?]),
        |x, drawn| {
            let shape = x.shape().clone();
            once(drawn)?.broadcast(shape.clone())?.select(&gray(x)?.broadcast(shape)?, x)
        },
    ))
}

pub(super) fn invert(s: &Settings<'_>) -> Result<Change> {
    let likely = unit_factor(s, "factor")?;
    let (_, most) = range(s)?;
    Ok(Change::new(
        move |cx, x| Ok(vec![chance(cx, x, likely)?]),
        move |x, drawn| once(drawn)?.broadcast(x.shape().clone())?.select(&x.rsub_scalar(most)?, x),
    ))
}

pub(super) fn degeneration(s: &Settings<'_>) -> Result<Change> {
    Ok(degenerated(factor(s, "factor", (-1.0, 1.0))?, range(s)?))
}

pub(super) fn degenerated(between: Range, (least, most): Range) -> Change {
    Change::new(
        move |cx, x| Ok(vec![even(cx, x, between)?]),
        move |x, drawn| {
            let share = once(drawn)?.cast(x.dtype())?;
            x.add(&gray(x)?.sub(x)?.mul(&share)?)?.clamp(least, most)
        },
    )
}

/// Hue, saturation and value of images of three colors, each from 0 to 1 where the colors are.
fn to_hsv(x: &Tensor) -> RunResult<[Tensor; 3]> {
    let eps = if x.dtype() == DType::F64 { f64::EPSILON } else { f64::from(f32::EPSILON) };
    let is_small = x.abs()?.less(&number(x, eps)?)?;
    let x = is_small.select(&number(x, 0.0)?.broadcast(x.shape().clone())?, x)?;
    let [r, g, b] = colors(&x)?;
    let value = r.maximum(&g)?.maximum(&b)?;
    let spread = value.sub(&r.minimum(&g)?.minimum(&b)?)?;
    let shape = value.shape().clone();
    let (zero, one) =
        (number(&value, 0.0)?.broadcast(shape.clone())?, number(&value, 1.0)?.broadcast(shape)?);
    let (is_bright, is_spread) = (value.greater(&zero)?, spread.greater(&zero)?);
    let saturation = is_bright.select(&spread.div(&is_bright.select(&value, &one)?)?, &zero)?;
    let norm = is_spread.select(&spread, &one)?.mul_scalar(6.0)?.reciprocal()?;
    let part = |a: &Tensor, b: &Tensor, from: f64| norm.mul(&a.sub(b)?)?.add_scalar(from / 6.0);
    let hue = value.equal(&g)?.select(&part(&b, &r, 2.0)?, &part(&r, &g, 4.0)?)?;
    let hue = value.equal(&r)?.select(&part(&g, &b, 0.0)?, &hue)?;
    let turned = hue.less(&zero)?.select(&one, &zero)?;
    Ok([is_spread.select(&hue, &zero)?.add(&turned)?, saturation, value])
}

fn from_hsv(hue: &Tensor, saturation: &Tensor, value: &Tensor) -> RunResult<Tensor> {
    let sixth = hue.sub(&hue.floor()?)?.mul_scalar(6.0)?;
    let red = sixth.add_scalar(-3.0)?.abs()?.add_scalar(-1.0)?.clamp(0.0, 1.0)?;
    let green = sixth.add_scalar(-2.0)?.abs()?.rsub_scalar(2.0)?.clamp(0.0, 1.0)?;
    let blue = sixth.add_scalar(-4.0)?.abs()?.rsub_scalar(2.0)?.clamp(0.0, 1.0)?;
    let rest = saturation.rsub_scalar(1.0)?;
    let color = |share: &Tensor| value.mul(&rest.add(&saturation.mul(share)?)?);
    Tensor::concat(&[&color(&red)?, &color(&green)?, &color(&blue)?], 3)
}

/// From one range of values to another.
pub(super) fn ranged(x: &Tensor, from: Range, to: Range) -> RunResult<Tensor> {
    if from == to {
        return Ok(x.clone());
    }
    x.add_scalar(-from.0)?.mul_scalar((to.1 - to.0) / (from.1 - from.0))?.add_scalar(to.0)
}

pub(super) fn hue(s: &Settings<'_>) -> Result<Change> {
    Ok(hued(unit_factor(s, "factor")?, range(s)?))
}

pub(super) fn hued(between: Range, values: Range) -> Change {
    Change::new(
        move |cx, x| Ok(vec![even(cx, x, between)?.mul(&draw::sign(cx, x)?)?.mul_scalar(0.5)?]),
        move |x, drawn| {
            let [hue, saturation, value] = to_hsv(&ranged(x, values, (0.0, 1.0))?)?;
            let hue = hue.add(&once(drawn)?.cast(x.dtype())?)?;
            let is_over = hue.greater(&number(&hue, 1.0)?)?;
            let hue = is_over.select(&hue.add_scalar(-1.0)?, &hue)?;
            let is_under = hue.less(&number(&hue, 0.0)?)?;
            let hue = is_under.select(&hue.add_scalar(1.0)?, &hue)?;
            ranged(&from_hsv(&hue, &saturation, &value)?.clamp(0.0, 1.0)?, (0.0, 1.0), values)
        },
    )
}

pub(super) fn saturation(s: &Settings<'_>) -> Result<Change> {
    Ok(saturated(factor(s, "factor", (-1.0, 1.0))?, range(s)?))
}

pub(super) fn saturated(between: Range, (least, most): Range) -> Change {
    Change::new(
        move |cx, x| {
            let share = even(cx, x, between)?;
            Ok(vec![share.div(&share.rsub_scalar(1.0 + EPSILON)?)?])
        },
        move |x, drawn| {
            let [hue, saturation, value] = to_hsv(x)?;
            let saturation = saturation.mul(&once(drawn)?.cast(x.dtype())?)?.clamp(least, most)?;
            from_hsv(&hue, &saturation, &value)
        },
    )
}

pub(super) fn sharpness(s: &Settings<'_>) -> Result<Change> {
    Ok(sharpened(unit_factor(s, "factor")?, range(s)?))
}

pub(super) fn sharpened(between: Range, (least, most): Range) -> Change {
    Change::new(
        move |cx, x| Ok(vec![even(cx, x, between)?]),
        move |x, drawn| {
            let [height, width] = pixels(x)?;
            let rest = once(drawn)?.mul_scalar(2.0)?.rsub_scalar(1.0)?.cast(x.dtype())?;
            // Every pixel around counts once and the middle five times, of thirteen.
            let wide = x.pad(&[(0, 0), (1, 1), (1, 1), (0, 0)], 0.0)?;
            let rows = wide.narrow(1, 0, height)?.add(&wide.narrow(1, 1, height + 1)?)?;
            let rows = rows.add(&wide.narrow(1, 2, height + 2)?)?;
            let sum = rows.narrow(2, 0, width)?.add(&rows.narrow(2, 1, width + 1)?)?;
            let sum = sum.add(&rows.narrow(2, 2, width + 2)?)?;
            let smooth = sum.add(&x.mul_scalar(4.0)?)?.mul_scalar(1.0 / 13.0)?;
            x.add(&smooth.sub(x)?.mul(&rest)?)?.clamp(least, most)
        },
    )
}

pub(super) fn posterization(s: &Settings<'_>) -> Result<Change> {
    let (low, high) = factor(s, "factor", (1.0, 8.0))?;
    if low.fract() != 0.0 || high.fract() != 0.0 || low < 1.0 || high > 8.0 {
        return Err(s.wrong("factor", "it should be whole numbers from 1 to 8"));
    }
    Ok(posterized((low, high), range(s)?))
}

/// With so many bits a color: below the second number, where they differ.
pub(super) fn posterized((low, high): Range, values: Range) -> Change {
    Change::new(
        move |cx, x| Ok(vec![even(cx, x, (low, high))?.floor()?]),
        move |x, drawn| {
            let steps: Vec<f32> = (0..=8).map(|bits| (256 >> bits) as f32).collect();
            let steps = Tensor::from_slice(&steps, [9])?.cast(x.dtype())?;
            let bits = once(drawn)?;
            let step = steps.gather(&bits.cast(DType::I64)?, 0)?;
            let whole = ranged(x, values, (0.0, 255.0))?.floor()?;
            ranged(&whole.div(&step)?.floor()?.mul(&step)?, (0.0, 255.0), values)
        },
    )
}

pub(super) fn solarization(s: &Settings<'_>) -> Result<Change> {
    let added = unit_factor(s, "addition_factor")?;
    let bound = unit_factor(s, "threshold_factor")?;
    Ok(solarized(added, bound, range(s)?))
}

pub(super) fn solarized(added: Range, bound: Range, values: Range) -> Change {
    // The upper end counts in steps of a color, the lower one as it is: so it is in Keras.
    let drawn = |(low, high): Range| (low, high * 255.0);
    Change::new(
        move |cx, x| Ok(vec![even(cx, x, drawn(added))?, even(cx, x, drawn(bound))?]),
        move |x, drawn| {
            let [added, bound] = drawn else { return Err(refuse("draws too few numbers")) };
            let y = ranged(x, values, (0.0, 255.0))?.add(&added.cast(x.dtype())?)?.clamp(0.0, 255.0)?;
            let is_dark = y.less(&bound.cast(x.dtype())?)?;
            ranged(&is_dark.select(&y, &y.rsub_scalar(255.0)?)?, (0.0, 255.0), values)
        },
    )
}

pub(super) fn blur(s: &Settings<'_>) -> Result<Change> {
    let likely = unit_factor(s, "factor")?;
    let sizes = s.integers("kernel_size")?;
    let size = match sizes[..] {
        [n] => n,
        [a, b] if a == b => a,
        _ => return Err(s.wrong("kernel_size", "only windows that are as high as wide are known")),
    };
    if size < 1 || size % 2 == 0 || size > 255 {
        return Err(s.wrong("kernel_size", "it should be an odd number below 256"));
    }
    let sigma = unit_factor(s, "sigma")?;
    let (least, most) = range(s)?;
    Ok(Change::new(
        move |cx, x| {
            let mut width = || draw::even_once(cx, x, sigma)?.add_scalar(1e-6);
            let (across, down) = (width()?, width()?);
            Ok(vec![chance(cx, x, likely)?, across, down])
        },
        move |x, drawn| {
            let [is_blurred, across, down] = drawn else { return Err(refuse("draws too few numbers")) };
            let smooth = smoothed(x, size as usize / 2, [down, across], None)?;
            is_blurred.broadcast(x.shape().clone())?.select(&smooth, x)?.clamp(least, most)
        },
    ))
}

/// Images `[N, H, W, C]` smoothed by a bell of these widths, down and across, `half` pixels to each side, or only `reach` where that is
/// less. Around the images lie zeros.
pub(super) fn smoothed(
    x: &Tensor,
    half: usize,
    widths: [&Tensor; 2],
    reach: Option<&Tensor>,
) -> RunResult<Tensor> {
    let size = pixels(x)?;
    let mut x = x.clone();
    for (axis, width) in [(1, widths[0]), (2, widths[1])] {
        let mut shares = Vec::with_capacity(half + 1);
        let mut sum: Option<Tensor> = None;
        for away in 0..=half {
            let share = width.rdiv_scalar(away as f64)?.square()?.mul_scalar(-0.5)?.exp()?;
            let share = match reach {
                Some(reach) => {
                    let is_in = reach.greater_equal(&number(reach, away as f64)?)?;
                    is_in.select(&share, &share.mul_scalar(0.0)?)?
                }
                None => share,
            };
            let counted = share.mul_scalar(if away == 0 { 1.0 } else { 2.0 })?;
            sum = Some(match sum {
                Some(sum) => sum.add(&counted)?,
                None => counted,
            });
            shares.push(share);
        }
        let Some(sum) = sum else { return Err(refuse("smooths by nothing")) };
        let n = size[axis - 1];
        let mut sides = [(0, 0); 4];
        sides[axis] = (half, half);
        let wide = x.pad(&sides, 0.0)?;
        let mut smooth: Option<Tensor> = None;
        for at in 0..=2 * half {
            let share = shares[at.abs_diff(half)].div(&sum)?.cast(x.dtype())?;
            let part = wide.narrow(axis, at, at + n)?.mul(&share)?;
            smooth = Some(match smooth {
                Some(smooth) => smooth.add(&part)?,
                None => part,
            });
        }
        x = smooth.unwrap_or(x);
    }
    Ok(x)
}

/// The darkest and the brightest pixel of each channel to the ends of the range.
pub(super) fn auto_contrast(x: &Tensor, values: Range) -> RunResult<Tensor> {
    pixels(x)?;
    let own = ranged(x, values, (0.0, 255.0))?;
    let (low, high) = (own.min(&[1, 2], true)?, own.max(&[1, 2], true)?);
    let is_even = high.equal(&low)?;
    let spread = is_even.select(&number(&high, 1.0)?.broadcast(high.shape().clone())?, &high.sub(&low)?)?;
    let scale = spread.rdiv_scalar(255.0)?;
    let y = own.mul(&scale)?.sub(&low.mul(&scale)?)?.clamp(0.0, 255.0)?;
    // A channel of one color stays as it is.
    is_even.broadcast(x.shape().clone())?.select(x, &ranged(&y, (0.0, 255.0), values)?)
}

pub(super) fn jitter(s: &Settings<'_>) -> Result<Changing> {
    let values = range(s)?;
    let mut parts = Vec::new();
    if !s.is_null("brightness_factor") {
        parts.push(brightened(factor(s, "brightness_factor", (-1.0, 1.0))?, values));
    }
    if !s.is_null("contrast_factor") {
        parts.push(contrasted(unit_factor(s, "contrast_factor")?, values));
    }
    if !s.is_null("saturation_factor") {
        parts.push(saturated(factor(s, "saturation_factor", (-1.0, 1.0))?, values));
    }
    if !s.is_null("hue_factor") {
        parts.push(hued(unit_factor(s, "hue_factor")?, values));
    }
    Ok(Box::new(move |cx, x| parts.iter().try_fold(x.clone(), |x, part| part.run(cx, &x))))
}
