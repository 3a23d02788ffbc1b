//! Layers that bring images to a size: resizing, and cropping from the middle.

use plimsoll_graph::ops::ResizeMode;
use plimsoll_graph::{DType, EinsumOps, GatherOps, ResizeOps, TensorOps};
use plimsoll_run::{Result as RunResult, Tensor};

use super::Table;
use super::reshape::mode;
use crate::error::{Result, refuse};
use crate::layer::Made;
use crate::settings::Settings;

pub(crate) const TABLE: Table = &[("Resizing", resizing), ("CenterCrop", center_crop)];

fn resizing(s: &Settings<'_>) -> Result<Made> {
    s.channels_last()?;
    let size = [s.units("height")?, s.units("width")?];
    if s.text_or("interpolation", "bilinear")? == "bicubic" {
        return Err(s.wrong("interpolation", "Keras's backends differ in it; bilinear and nearest are taken"));
    }
    let mode = mode(s)?;
    // Of the nearest pixel it changes nothing.
    let is_smooth = s.flag("antialias", false)? && mode == ResizeMode::Bilinear;
    let resized = move |x: &Tensor, size: [usize; 2]| {
        if is_smooth { smoothed(x, size) } else { resized(x, size, mode) }
    };
    let (crops, pads) = (s.flag("crop_to_aspect_ratio", false)?, s.flag("pad_to_aspect_ratio", false)?);
    if pads && s.text_or("fill_mode", "constant")? != "constant" {
        return Err(s.wrong("fill_mode", "only constant is known"));
    }
    let fill = s.number_or("fill_value", 0.0)?;
    Ok(Made::unary(move |cx, x| {
        let x = x.cast(cx.dtype())?;
        match (crops, pads) {
            (true, _) => resized(&cut(&x, size)?, size),
            (_, true) => resized(&framed(&x, size, fill)?, size),
            _ => resized(&x, size),
        }
    }))
}

fn center_crop(s: &Settings<'_>) -> Result<Made> {
    s.channels_last()?;
    let size = [s.units("height")?, s.units("width")?];
    Ok(Made::unary(move |cx, x| {
        let x = x.cast(cx.dtype())?;
        let [height, width] = pixels(&x)?;
        if height >= size[0] && width >= size[1] {
            return middle(&x, size);
        }
        // Smaller images are made larger, without a change of their proportions.
        resized(&cut(&x, size)?, size, ResizeMode::Bilinear)
    }))
}

pub(super) fn pixels(x: &Tensor) -> RunResult<[usize; 2]> {
    match x.shape()[..] {
        [_, height, width, _] => Ok([height, width]),
        _ => Err(refuse(format!("gives {} to a layer that takes images [B, H, W, C]", x.ty()))),
    }
}

/// Images at another size; the nearest pixel is that whose middle is nearest.
fn resized(x: &Tensor, size: [usize; 2], mode: ResizeMode) -> RunResult<Tensor> {
    if mode == ResizeMode::Bilinear {
        return x.resize2d(size, mode, false);
    }
    let old = pixels(x)?;
    let mut x = x.clone();
    for axis in 0..2 {
        let scale = old[axis] as f64 / size[axis] as f64;
        let nearest = |i: usize| (((i as f64 + 0.5) * scale) as i64).min(old[axis] as i64 - 1);
        let places: Vec<i64> = (0..size[axis]).map(nearest).collect();
        let places = Tensor::from_slice(&places, [size[axis]])?.cast(DType::I64)?;
        x = x.gather(&places, axis as isize + 1)?;
    }
    Ok(x)
}

/// Images at another size by tents that are as wide as a new pixel where that is more than an old one: no old pixel is passed over.
fn smoothed(x: &Tensor, size: [usize; 2]) -> RunResult<Tensor> {
    let old = pixels(x)?;
    let mut x = x.clone();
    for axis in 0..2 {
        let (from, to) = (old[axis], size[axis]);
        let scale = from as f64 / to as f64;
        let width = scale.max(1.0);
        let mut shares = vec![0.0f32; to * from];
        for (row, i) in shares.chunks_exact_mut(from).zip(0..) {
            let middle = (f64::from(i) + 0.5) * scale - 0.5;
            let tent = |j: usize| (1.0 - (middle - j as f64).abs() / width).max(0.0);
            let sum: f64 = (0..from).map(tent).sum();
            for (j, share) in row.iter_mut().enumerate() {
                *share = (tent(j) / sum) as f32;
            }
        }
        let shares = Tensor::from_slice(&shares, [to, from])?.cast(x.dtype())?;
        let equation = if axis == 0 { "oi,nijc->nojc" } else { "oj,nijc->nioc" };
        x = Tensor::einsum(equation, &[&shares, &x])?;
    }
    Ok(x)
}

/// The middle of images.
fn middle(x: &Tensor, size: [usize; 2]) -> RunResult<Tensor> {
    let old = pixels(x)?;
    let start = |axis: usize| (old[axis] - size[axis]) / 2;
    x.narrow(1, start(0), start(0) + size[0])?.narrow(2, start(1), start(1) + size[1])
}

/// The lengths that images of the wanted proportions have: so high for this width, so wide for this height.
fn fitting([height, width]: [usize; 2], [high, wide]: [usize; 2]) -> [usize; 2] {
    [(width * high) / wide, (height * wide) / high]
}

/// The largest part from the middle with the wanted proportions.
pub(super) fn cut(x: &Tensor, size: [usize; 2]) -> RunResult<Tensor> {
    let old = pixels(x)?;
    let [high, wide] = fitting(old, size);
    middle(x, [old[0].min(high).max(1), old[1].min(wide).max(1)])
}

/// Images in a frame that has the wanted proportions, or nearly.
fn framed(x: &Tensor, size: [usize; 2], fill: f64) -> RunResult<Tensor> {
    let old = pixels(x)?;
    let [high, wide] = fitting(old, size);
    let (more_high, more_wide) = (old[0].max(high) - old[0], old[1].max(wide) - old[1]);
    // As much on both sides, though one more would be wanted: so it is in Keras.
    let sides = |more: usize| (more / 2, more / 2);
    x.pad(&[(0, 0), sides(more_high), sides(more_wide), (0, 0)], fill)
}
