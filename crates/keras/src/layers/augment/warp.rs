//! Changes of where pixels are: turned, shifted, zoomed, sheared, seen from another side, and pulled about.
//!
//! Every pixel of the result is read at a place of the image, in pixels. What lies outside of the image is one of [`Fill`].

use plimsoll_graph::ops::ResizeMode;
use plimsoll_graph::{GridSampleOps, TensorOps, Type};
use plimsoll_run::{Result as RunResult, Tensor};

use super::draw::{self, even, place_type};
use super::{Change, factor, once, unchanged, unit_factor};
use crate::error::{Result, refuse};
use crate::layers::function::rounded;
use crate::layers::resize::pixels;
use crate::settings::Settings;

/// What lies outside of an image.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fill {
    /// The image mirrored at its edge: d c b a | a b c d | d c b a.
    Reflect,
    /// The image mirrored at its outermost pixel: d c b | a b c d | c b a.
    Mirror,
    /// The image again.
    Wrap,
    /// The nearest pixel of the image.
    Nearest,
    /// A number.
    Constant(f64),
}

/// How pixels are read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    fill: Fill,
    mode: ResizeMode,
}

impl Reading {
    /// As the settings have it.
    fn of(s: &Settings<'_>) -> Result<Reading> {
        let value = s.number_or("fill_value", 0.0)?;
        let fill = match s.text_or("fill_mode", "reflect")? {
            "reflect" => Fill::Reflect,
            "mirror" => Fill::Mirror,
            "wrap" => Fill::Wrap,
            "nearest" => Fill::Nearest,
            "constant" => Fill::Constant(value),
            _ => return Err(s.wrong("fill_mode", "constant, nearest, reflect, mirror and wrap are known")),
        };
        Ok(Reading { fill, mode: mode(s)? })
    }

    /// As other layers use it inside: mirrored at its edge.
    pub(super) fn reflecting(s: &Settings<'_>) -> Result<Reading> {
        Ok(Reading { fill: Fill::Reflect, mode: mode(s)? })
    }

    /// Images at places `[N, H', W', 1]`, in pixels from the left and from the top.
    fn at(&self, x: &Tensor, across: &Tensor, down: &Tensor) -> RunResult<Tensor> {
        let size = pixels(x)?;
        let mut x = x.clone();
        let mut grid = Vec::with_capacity(2);
        for (axis, place) in [(1, down), (2, across)] {
            let n = size[axis - 1];
            let place = if self.mode == ResizeMode::Nearest { rounded(place)? } else { place.clone() };
            let (place, length) = match self.fill {
                Fill::Nearest => (place, n),
                Fill::Reflect => (reflected(&place, n)?, n),
                Fill::Mirror => (mirrored(&place, n)?, n),
                Fill::Wrap => {
                    x = Tensor::concat(&[&x, &x.narrow(axis, 0, 1)?], axis as isize)?;
                    (remainder(&place, n as f64)?, n + 1)
                }
                Fill::Constant(value) => {
                    let mut sides = [(0, 0); 4];
                    sides[axis] = (1, 1);
                    x = x.pad(&sides, value)?;
                    (place.add_scalar(1.0)?, n + 2)
                }
            };
            // From -1 at the middle of the first pixel to 1 at that of the last.
            let scale = 2.0 / (length.max(2) - 1) as f64;
            grid.push(place.mul_scalar(scale)?.add_scalar(-1.0)?);
        }
        let grid = Tensor::concat(&[&grid[1], &grid[0]], 3)?;
        x.grid_sample(&grid, self.mode, true, true)
    }
}

fn mode(s: &Settings<'_>) -> Result<ResizeMode> {
    match s.text_or("interpolation", "bilinear")? {
        "bilinear" => Ok(ResizeMode::Bilinear),
        "nearest" => Ok(ResizeMode::Nearest),
        _ => Err(s.wrong("interpolation", "bilinear and nearest are known")),
    }
}

/// x mod n, not negative.
fn remainder(x: &Tensor, n: f64) -> RunResult<Tensor> {
    x.sub(&x.mul_scalar(1.0 / n)?.floor()?.mul_scalar(n)?)
}

/// A place mirrored at the edges of `n` pixels.
fn reflected(place: &Tensor, n: usize) -> RunResult<Tensor> {
    let n = n as f64;
    let along = remainder(&place.add_scalar(0.5)?, 2.0 * n)?;
    along.minimum(&along.rsub_scalar(2.0 * n)?)?.add_scalar(-0.5)
}

/// A place mirrored at the middles of the outermost of `n` pixels.
fn mirrored(place: &Tensor, n: usize) -> RunResult<Tensor> {
    let half = n.saturating_sub(1) as f64;
    if half == 0.0 {
        return place.mul_scalar(0.0);
    }
    remainder(&place.add_scalar(half)?, 2.0 * half)?.add_scalar(-half)?.abs()
}

/// The places of the pixels themselves: across and down, `[1, H, W, 1]`.
fn own_places(x: &Tensor) -> RunResult<(Tensor, Tensor)> {
    let [height, width] = pixels(x)?;
    let ty = Type::new(place_type(x), [1, height, width, 1]);
    Ok((x.iota_like(ty.clone(), 2)?, x.iota_like(ty, 1)?))
}

/// The same places for every sample.
fn for_all(place: &Tensor, x: &Tensor) -> RunResult<Tensor> {
    let [height, width] = pixels(x)?;
    place.broadcast([x.shape()[0], height, width, 1])
}

/// Reads images at (a₀ x + a₁ y + a₂, b₀ x + b₁ y + b₂).
fn affine(x: &Tensor, reading: Reading, [a, b]: [[&Tensor; 3]; 2]) -> RunResult<Tensor> {
    let (across, down) = own_places(x)?;
    let moved =
        |[by_x, by_y, shift]: [&Tensor; 3]| for_all(&across.mul(by_x)?.add(&down.mul(by_y)?)?.add(shift)?, x);
    reading.at(x, &moved(a)?, &moved(b)?)
}

pub(super) fn rotation(s: &Settings<'_>) -> Result<Change> {
    Ok(rotated(factor(s, "factor", (-1.0, 1.0))?, Reading::of(s)?))
}

/// Turned by a share of a whole turn.
pub(super) fn rotated((low, high): (f64, f64), reading: Reading) -> Change {
    let turn = std::f64::consts::TAU;
    Change::new(
        move |cx, x| Ok(vec![even(cx, x, (low * turn, high * turn))?]),
        move |x, drawn| {
            let angle = once(drawn)?;
            let [height, width] = pixels(x)?;
            let (cx, cy) = ((width as f64 - 1.0) / 2.0, (height as f64 - 1.0) / 2.0);
            let (sin, cos) = (angle.sin()?, angle.cos()?);
            let shift_x = cos.mul_scalar(-cx)?.add(&sin.mul_scalar(cy)?)?.add_scalar(cx)?;
            let shift_y = sin.mul_scalar(-cx)?.sub(&cos.mul_scalar(cy)?)?.add_scalar(cy)?;
            affine(x, reading, [[&cos, &sin.neg()?, &shift_x], [&sin, &cos, &shift_y]])
        },
    )
}

/// Shares along both axes, between -1 and 1.
fn factors(s: &Settings<'_>, [one, other]: [&str; 2]) -> Result<[(f64, f64); 2]> {
    Ok([factor(s, one, (-1.0, 1.0))?, factor(s, other, (-1.0, 1.0))?])
}

pub(super) fn translation(s: &Settings<'_>) -> Result<Change> {
    let [high, wide] = factors(s, ["height_factor", "width_factor"])?;
    Ok(translated(high, wide, Reading::of(s)?))
}

/// Shifted by shares of the height and the width.
pub(super) fn translated(high: (f64, f64), wide: (f64, f64), reading: Reading) -> Change {
    Change::new(
        move |cx, x| Ok(vec![even(cx, x, high)?, even(cx, x, wide)?]),
        move |x, drawn| {
            let [down, across] = two(drawn)?;
            let [height, width] = pixels(x)?;
            let (own_x, own_y) = own_places(x)?;
            let place =
                |own: &Tensor, shift: &Tensor, n: usize| for_all(&own.sub(&shift.mul_scalar(n as f64)?)?, x);
            reading.at(x, &place(&own_x, across, width)?, &place(&own_y, down, height)?)
        },
    )
}

pub(super) fn zoom(s: &Settings<'_>) -> Result<Change> {
    let high = factor(s, "height_factor", (-1.0, 1.0))?;
    let wide = if s.is_null("width_factor") { None } else { Some(factor(s, "width_factor", (-1.0, 1.0))?) };
    let reading = Reading::of(s)?;
    let around = |(low, high): (f64, f64)| (1.0 + low, 1.0 + high);
    Ok(Change::new(
        move |cx, x| {
            let down = even(cx, x, around(high))?;
            let across = match wide {
                Some(wide) => even(cx, x, around(wide))?,
                None => down.clone(),
            };
            Ok(vec![down, across])
        },
        move |x, drawn| {
            let [down, across] = two(drawn)?;
            let [height, width] = pixels(x)?;
            let (own_x, own_y) = own_places(x)?;
            let place = |own: &Tensor, zoom: &Tensor, n: usize| {
                let middle = (n as f64 - 1.0) / 2.0;
                for_all(&own.add_scalar(-middle)?.mul(zoom)?.add_scalar(middle)?, x)
            };
            reading.at(x, &place(&own_x, across, width)?, &place(&own_y, down, height)?)
        },
    ))
}

pub(super) fn shear(s: &Settings<'_>) -> Result<Change> {
    let [across, down] = factors(s, ["x_factor", "y_factor"])?;
    Ok(sheared(across, down, Reading::of(s)?))
}

/// Sheared to either side.
pub(super) fn sheared(across: (f64, f64), down: (f64, f64), reading: Reading) -> Change {
    Change::new(
        move |cx, x| {
            let side = draw::sign(cx, x)?;
            Ok(vec![even(cx, x, across)?.mul(&side)?, even(cx, x, down)?.mul(&side)?])
        },
        move |x, drawn| {
            let [across, down] = two(drawn)?;
            let (zero, one) = (draw::number(across, 0.0)?, draw::number(across, 1.0)?);
            affine(x, reading, [[&one, across, &zero], [down, &one, &zero]])
        },
    )
}

/// Seen from another side: each corner but the first is moved by a share of its place.
pub(super) fn perspective(s: &Settings<'_>) -> Result<Change> {
    let likely = unit_factor(s, "factor")?;
    let scale = s.number_or("scale", 1.0)?;
    let reading = Reading { fill: Fill::Constant(s.number_or("fill_value", 0.0)?), mode: mode(s)? };
    Ok(Change::new(
        move |cx, x| {
            let mut drawn = vec![draw::chance(cx, x, likely)?];
            // Of the upper right corner the shift across, of the lower left that down, of the lower right both: others change nothing.
            for _ in 0..4 {
                drawn.push(even(cx, x, (-0.5 * scale, 0.5 * scale))?);
            }
            Ok(drawn)
        },
        move |x, drawn| {
            let [is_seen, shifts @ ..] = drawn else { return Err(refuse("draws too few numbers")) };
            let (across, down) = seen(x, shifts)?;
            is_seen.broadcast(x.shape().clone())?.select(&reading.at(x, &across, &down)?, x)
        },
    ))
}

/// The places that a view from another side reads: x = a₀ x' / d and y = a₄ y' / d with d = a₆ x' + a₇ y' + 1, by which the
/// moved corners come from the corners.
fn seen(x: &Tensor, shifts: &[Tensor]) -> RunResult<(Tensor, Tensor)> {
    let [upper_right, lower_left, right, low] = shifts else { return Err(refuse("draws too few numbers")) };
    let [height, width] = pixels(x)?;
    let (wide, high) = (width as f64 - 1.0, height as f64 - 1.0);
    let moved = |shift: &Tensor, by: f64| shift.add_scalar(1.0)?.mul_scalar(by);
    let (p, q) = (moved(upper_right, wide)?, moved(lower_left, high)?);
    let (r, t) = (moved(right, wide)?, moved(low, high)?);
    let a7 = r.div(&p)?.add_scalar(-1.0)?.div(&t)?;
    let a6 = t.div(&q)?.add_scalar(-1.0)?.div(&r)?;
    let a0 = p.reciprocal()?.add(&a6)?.mul_scalar(wide)?;
    let a4 = q.reciprocal()?.add(&a7)?.mul_scalar(high)?;
    let (own_x, own_y) = own_places(x)?;
    let d = own_x.mul(&a6)?.add(&own_y.mul(&a7)?)?.add_scalar(1.0)?;
    Ok((for_all(&own_x.mul(&a0)?.div(&d)?, x)?, for_all(&own_y.mul(&a4)?.div(&d)?, x)?))
}

/// Pulled about by noise that is smoothed.
pub(super) fn elastic(s: &Settings<'_>) -> Result<Change> {
    let likely = unit_factor(s, "factor")?;
    let scale = unit_factor(s, "scale")?;
    let reading = Reading::of(s)?;
    let (least, most) = super::range(s)?;
    if scale.1 == 0.0 || likely.1 == 0.0 {
        return Ok(unchanged());
    }
    Ok(Change::new(
        move |cx, x| {
            let [height, width] = pixels(x)?;
            let shape = [x.shape()[0], height, width, 1];
            let is_pulled = draw::chance(cx, x, likely)?;
            let strength = draw::even_once(cx, x, scale)?;
            Ok(vec![is_pulled, strength, draw::normal(cx, x, shape)?, draw::normal(cx, x, shape)?])
        },
        move |x, drawn| {
            let [is_pulled, strength, across, down] = drawn else {
                return Err(refuse("draws too few numbers"));
            };
            let [height, width] = pixels(x)?;
            let shorter = 0.05 * height.min(width) as f64;
            let (alpha, sigma) =
                (strength.mul_scalar(0.1 * height.max(width) as f64)?, strength.mul_scalar(shorter)?);
            // The window is as long as the largest strength wants; weaker ones use its middle.
            let half = (3.0 * shorter * scale.1).floor() as usize;
            let reach = sigma.mul_scalar(3.0)?.floor()?;
            let (own_x, own_y) = own_places(x)?;
            let pulled = |own: &Tensor, noise: &Tensor| {
                let noise = noise.mul(&sigma)?;
                let smooth = super::color::smoothed(&noise, half, [&sigma, &sigma], Some(&reach))?;
                own.add(&smooth.mul(&alpha)?)
            };
            let moved = reading.at(x, &pulled(&own_x, across)?, &pulled(&own_y, down)?)?;
            is_pulled.broadcast(x.shape().clone())?.select(&moved, x)?.clamp(least, most)
        },
    ))
}

fn two(drawn: &[Tensor]) -> RunResult<[&Tensor; 2]> {
    match drawn {
        [a, b] => Ok([a, b]),
        _ => Err(refuse("draws too few numbers")),
    }
}
