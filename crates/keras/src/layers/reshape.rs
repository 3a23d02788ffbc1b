//! Layers that move elements: shapes, order, borders, sizes.

use plimsoll_graph::ops::ResizeMode;
use plimsoll_graph::{ResizeOps, Shape, TensorOps, Type};
use plimsoll_run::{Result as RunResult, Tensor};

use super::{Table, by_axes};
use crate::error::{Result, refuse};
use crate::layer::{Made, Masks};
use crate::settings::Settings;

pub(crate) const BY_AXES: Table = by_axes!["ZeroPadding" => borders(true), "Cropping" => borders(false)];

pub(crate) const TABLE: Table = &[
    ("Flatten", |s| {
        s.channels_last()?;
        Ok(Made::plain(|x| if x.shape().rank() == 1 { x.reshape([x.shape()[0], 1]) } else { x.flatten(1) }))
    }),
    ("Reshape", |s| {
        let target = s.integers("target_shape")?;
        Ok(Made::plain(move |x| {
            let n = x.shape().first().copied().unwrap_or(1);
            let shape = resolved(&target, x.ty().elements() / n.max(1))
                .ok_or_else(|| refuse(format!("reshapes {} to samples of {target:?}", x.ty())))?;
            x.reshape(std::iter::once(n).chain(shape).collect::<Shape>())
        }))
    }),
    ("Permute", |s| {
        let order = s.integers("dims")?;
        Ok(Made::plain(move |x| {
            let order: Vec<usize> =
                std::iter::once(0).chain(order.iter().map(|&i| i.max(0) as usize)).collect();
            x.transpose(&order)
        }))
    }),
    ("RepeatVector", |s| {
        let n = s.units("n")?;
        Ok(Made::plain(move |x| match x.shape()[..] {
            [batch, width] => x.reshape([batch, 1, width])?.broadcast([batch, n, width]),
            _ => Err(refuse(format!("repeats {} as a vector", x.ty()))),
        }))
    }),
    ("UpSampling1D", |s| {
        let [size] = s.extents("size", 2)?;
        Ok(Made::plain(move |x| match x.shape()[..] {
            [n, steps, c] => {
                let longer = steps.saturating_mul(size);
                x.reshape([n, steps, 1, c])?.broadcast([n, steps, size, c])?.reshape([n, longer, c])
            }
            _ => Err(refuse(format!("upsamples {} as a sequence", x.ty()))),
        }))
    }),
    ("UpSampling2D", |s| {
        s.channels_last()?;
        let size: [usize; 2] = s.extents("size", 2)?;
        let mode = mode(s)?;
        Ok(Made::plain(move |x| {
            let [_, h, w, _] = x.shape()[..] else { return Err(refuse(format!("upsamples {}", x.ty()))) };
            x.resize2d([h.saturating_mul(size[0]), w.saturating_mul(size[1])], mode, false)
        }))
    }),
    ("UpSampling3D", |s| {
        s.channels_last()?;
        let size: [usize; 3] = s.extents("size", 2)?;
        Ok(Made::plain(move |x| {
            let [n, d, h, w, c] = x.shape()[..] else {
                return Err(refuse(format!("upsamples {} as volumes", x.ty())));
            };
            let [deep, high, wide] = size;
            let whole = [n, d.saturating_mul(deep), h.saturating_mul(high), w.saturating_mul(wide), c];
            // Eight axes at most: the depth first, then the others.
            let x = x.reshape([n, d, 1, h * w * c])?.broadcast([n, d, deep, h * w * c])?;
            let x =
                x.reshape([n * d * deep, h, 1, w, 1, c])?.broadcast([n * d * deep, h, high, w, wide, c])?;
            x.reshape(whole)
        }))
    }),
    ("Masking", |s| {
        let hidden = s.number_or("mask_value", 0.0)?;
        Ok(Made::unary(move |cx, x| {
            let value = x.full_like(Type::new(x.dtype(), []), hidden)?;
            let last = x.shape().rank().saturating_sub(1);
            let shown = x.not_equal(&value)?.cast(x.dtype())?.max(&[last], true)?;
            let zero = x.full_like(Type::new(x.dtype(), []), 0.0)?;
            let steps: Shape = x.shape()[..last].iter().copied().collect();
            cx.pass.mask = Some(shown.greater(&zero)?.reshape(steps)?);
            x.mul(&shown)
        })
        .masks(Masks::Read))
    }),
];

/// The shape of a sample of `elements` elements, with at most one length (-1) to be found.
pub(crate) fn resolved(target: &[i64], elements: usize) -> Option<Vec<usize>> {
    let known =
        target.iter().filter(|n| **n >= 0).try_fold(1usize, |product, n| product.checked_mul(*n as usize))?;
    let open = target.iter().filter(|n| **n < 0).count();
    let missing = if open == 0 { 1 } else { elements.checked_div(known)? };
    let fits = open <= 1 && known.checked_mul(missing)? == elements;
    fits.then(|| target.iter().map(|&n| if n < 0 { missing } else { n as usize }).collect())
}

pub(super) fn mode(s: &Settings<'_>) -> Result<ResizeMode> {
    match s.text_or("interpolation", if s.class == "Resizing" { "bilinear" } else { "nearest" })? {
        "nearest" => Ok(ResizeMode::Nearest),
        "bilinear" => Ok(ResizeMode::Bilinear),
        _ => Err(s.wrong("interpolation", "only nearest and bilinear are known")),
    }
}

fn borders<const AXES: usize>(s: &Settings<'_>, is_added: bool) -> Result<Made> {
    s.channels_last()?;
    let sides: [(usize, usize); AXES] = s.sides(if is_added { "padding" } else { "cropping" })?;
    Ok(Made::plain(move |x| {
        if x.shape().rank() != AXES + 2 {
            return Err(refuse(format!("changes the borders of {} along {AXES} axes", x.ty())));
        }
        if is_added {
            let all: Vec<(usize, usize)> = std::iter::once((0, 0)).chain(sides).chain([(0, 0)]).collect();
            return x.pad(&all, 0.0);
        }
        let mut ranges = Vec::new();
        for (i, &(low, high)) in sides.iter().enumerate() {
            let n = x.shape()[i + 1];
            let end = n.checked_sub(high).filter(|end| *end > low);
            let end = end.ok_or_else(|| refuse(format!("crops {low} and {high} of {n} elements")))?;
            ranges.push((i + 1, low, end, 1));
        }
        cropped(x, &ranges)
    }))
}

pub(super) fn cropped(x: &Tensor, ranges: &[(usize, usize, usize, usize)]) -> RunResult<Tensor> {
    x.slice(ranges)
}
