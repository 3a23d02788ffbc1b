//! Changes that even out how many pixels have which brightness: of a whole batch, or of parts of each image.

use plimsoll_graph::ops::{PutAlongAdd, ScatterAdd};
use plimsoll_graph::{CumulativeOps, DType, GatherOps, Site, TensorOps, Type};
use plimsoll_run::{Result as RunResult, Tensor};

use super::color::{Range, ranged};
use super::draw::{number, place_type};
use super::range;
use crate::error::{Result, refuse};
use crate::layer::Made;
use crate::layers::function::rounded;
use crate::layers::resize::pixels;
use crate::settings::Settings;

/// The steps of brightness of a part of an image.
const STEPS: usize = 256;
/// The most parts along a side that are taken from a file.
const MOST_PARTS: usize = 1024;

/// Equal numbers of pixels for each of `bins` steps of brightness, of each channel over the whole batch.
pub(super) fn equalized(x: &Tensor, values: Range, bins: usize) -> RunResult<Tensor> {
    let [height, width] = pixels(x)?;
    let (n, channels) = (x.shape()[0], x.shape()[3]);
    let own = ranged(x, values, (0.0, 255.0))?.cast(place_type(x))?;
    let steps = own.mul_scalar((bins - 1) as f64 / 255.0)?.floor()?.clamp(0.0, (bins - 1) as f64)?;
    // One row of steps a channel, one after the other.
    let first = own.iota_like(own.ty().with_shape([1, 1, 1, channels]), 3)?.mul_scalar(bins as f64)?;
    let all_pixels = n * height * width * channels;
    let place = |steps: &Tensor| steps.add(&first)?.cast(DType::I64)?.reshape([all_pixels]);
    let places = place(&steps)?;
    let ones = own.full_like(own.ty().with_shape([all_pixels]), 1.0)?;
    let counted = ScatterAdd { axis: 0, length: channels * bins };
    let counts = ones.emit_one(counted, &[&ones, &places], Site::here())?;
    let counts = counts.reshape([channels, bins])?;
    let sums = counts.cumsum(1)?;
    let all = sums.narrow(1, bins - 1, bins)?;
    let zero = number(&sums, 0.0)?;
    let is_begun = sums.greater(&zero)?;
    let least = is_begun.select(&sums, &all.broadcast(sums.shape().clone())?)?.min(&[1], true)?;
    let rest = all.sub(&least)?;
    let is_one = rest.equal(&zero)?;
    let rest = is_one.select(&number(&rest, 1.0)?.broadcast(rest.shape().clone())?, &rest)?;
    let table = sums.sub(&least)?.mul_scalar(255.0)?.div(&rest)?;
    let table = rounded(&table)?.clamp(0.0, 255.0)?;
    // In this order of operations a whole number may come out just below itself, and so it does in Keras.
    let steps = own.div(&number(&own, 255.0)?)?.mul_scalar((bins - 1) as f64)?;
    let places = place(&steps.clamp(0.0, (bins - 1) as f64)?.floor()?)?;
    let y = table.reshape([channels * bins])?.gather(&places, 0)?.reshape([n, height, width, channels])?;
    // A channel of one step stays as it is.
    let is_one = is_one.reshape([1, 1, 1, channels])?.broadcast(x.shape().clone())?;
    let y = is_one.select(&own, &y)?;
    ranged(&y, (0.0, 255.0), values)?.cast(x.dtype())
}

/// Each part of an image by how many of its own pixels have which brightness, as far as a limit, and what is between parts by those around.
pub(super) fn by_parts(s: &Settings<'_>) -> Result<Made> {
    s.channels_last()?;
    let values = range(s)?;
    let limit = s.number_or("clip_limit", 4.0)?;
    let grid = if s.is_null("tile_grid_size") { [8, 8] } else { s.extents::<2>("tile_grid_size", 8)? };
    if grid.iter().any(|n| *n > MOST_PARTS) {
        return Err(s.wrong("tile_grid_size", &format!("more than {MOST_PARTS} parts are not taken")));
    }
    Ok(Made::unary(move |cx, x| {
        let own = ranged(&x.cast(place_type(x))?, values, (0.0, 255.0))?;
        let y = in_parts(&own, grid, limit)?;
        ranged(&y, (0.0, 255.0), values)?.cast(cx.dtype())
    }))
}

/// Where the parts of an axis lie: how long each is, and for every pixel the two around it, with the second's share.
struct Parts {
    length: usize,
    around: Vec<([usize; 2], f32)>,
}

impl Parts {
    fn of(pixels: usize, parts: usize) -> Parts {
        let length = pixels.div_ceil(parts);
        let around = (0..length * parts).map(|at| {
            let place = (at as f32 - length as f32 / 2.0) / length as f32 + 1.0;
            let held = |place: f32| place.clamp(0.0, (parts + 1) as f32) as usize;
            ([held(place.floor()), held(place.floor() + 1.0)], place - place.floor())
        });
        Parts { length, around: around.collect() }
    }
}

/// An axis made longer by its own mirror image.
fn mirrored(x: &Tensor, axis: usize, length: usize) -> RunResult<Tensor> {
    let n = x.shape()[axis];
    if n == length {
        return Ok(x.clone());
    }
    let place = |i: usize| if i % (2 * n) < n { i % (2 * n) } else { 2 * n - 1 - i % (2 * n) };
    let places: Vec<i64> = (0..length).map(|i| place(i) as i64).collect();
    x.gather(&Tensor::from_slice(&places, [length])?, axis as isize)
}

fn in_parts(x: &Tensor, grid: [usize; 2], limit: f64) -> RunResult<Tensor> {
    let [height, width] = pixels(x)?;
    let (n, channels) = (x.shape()[0], x.shape()[3]);
    if height == 0 || width == 0 {
        return Err(refuse(format!("gives {} to a layer that takes images", x.ty())));
    }
    let (rows, columns) = (Parts::of(height, grid[0]), Parts::of(width, grid[1]));
    let (high, wide) = (rows.around.len(), columns.around.len());
    let padded = mirrored(&mirrored(x, 1, high)?, 2, wide)?;
    let steps = padded.clamp(0.0, 255.0)?.floor()?.cast(DType::I64)?;
    let inside = rows.length * columns.length;
    let parts = steps.reshape([n, grid[0], rows.length, grid[1], columns.length, channels])?;
    let parts = parts.transpose(&[0, 1, 3, 5, 2, 4])?.reshape([n * grid[0] * grid[1] * channels, inside])?;
    let ones = x.full_like(Type::new(x.dtype(), parts.shape().clone()), 1.0)?;
    let counted = PutAlongAdd { axis: 1, length: STEPS };
    let mut counts = ones.emit_one(counted, &[&ones, &parts], Site::here())?;
    if limit > 0.0 {
        let held = counts.clamp(0.0, limit * inside as f64 / STEPS as f64)?;
        let over = counts.sub(&held)?.sum(&[1], true)?.mul_scalar(1.0 / STEPS as f64)?;
        counts = held.add(&over)?;
    }
    let sums = counts.cumsum(1)?;
    let least = sums.min(&[1], true)?;
    let rest = least.rsub_scalar(inside as f64)?;
    let is_none = rest.equal(&number(&rest, 0.0)?)?;
    let rest = is_none.select(&number(&rest, 1.0)?.broadcast(rest.shape().clone())?, &rest)?;
    let table = sums.sub(&least)?.mul_scalar(255.0)?.div(&rest)?.clamp(0.0, 255.0)?;
    // The outermost parts once more around all.
    let mut table = table.reshape([n, grid[0], grid[1], channels * STEPS])?;
    for axis in [1, 2] {
        let last = table.shape()[axis];
        let (first, end) = (table.narrow(axis, 0, 1)?, table.narrow(axis, last - 1, last)?);
        table = Tensor::concat(&[&first, &table, &end], axis as isize)?;
    }
    let table = table.reshape([n, (grid[0] + 2) * (grid[1] + 2) * channels * STEPS])?;
    let steps = steps.reshape([n, high * wide * channels])?;
    let mut y: Option<Tensor> = None;
    for (down, across) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let share = |second: f32, which: usize| if which == 1 { second } else { 1.0 - second };
        let mut places = Vec::with_capacity(high * wide * channels);
        let mut shares = Vec::with_capacity(high * wide * channels);
        for (row, row_share) in &rows.around {
            for (column, column_share) in &columns.around {
                let part = row[down] * (grid[1] + 2) + column[across];
                for channel in 0..channels {
                    places.push(((part * channels + channel) * STEPS) as i64);
                    shares.push(share(*row_share, down) * share(*column_share, across));
                }
            }
        }
        let places = Tensor::from_slice(&places, [1, high * wide * channels])?;
        let shares = Tensor::from_slice(&shares, [1, high * wide * channels])?.cast(x.dtype())?;
        let part = table.take_along(&steps.add(&places)?, 1)?.mul(&shares)?;
        y = Some(match y {
            Some(y) => y.add(&part)?,
            None => part,
        });
    }
    let y = y.ok_or_else(|| refuse("evens out no parts"))?.reshape([n, high, wide, channels])?;
    y.narrow(1, 0, height)?.narrow(2, 0, width)
}
