//! Pooling, over what is kept channels last.

use plimsoll_nn::blocks::Laid;
use plimsoll_nn::blocks::pool::{Windows, adaptive_avg_pool, avg_pool};
use plimsoll_run::{Result, Tensor};

use super::pool_large::{adaptive_max_pool, max_pool};
use super::pool_places::max_with_places;
use super::{Table, Values, one};
use crate::call::Call;
use crate::error::refuse;

pub(super) const OPS: Table = &[
    ("aten.max_pool1d.default", |c| max(c, 1)),
    ("aten.max_pool2d.default", |c| max(c, 2)),
    ("aten.max_pool3d.default", |c| max(c, 3)),
    ("aten.max_pool2d_with_indices.default", |c| max(c, 2)),
    ("aten.max_pool3d_with_indices.default", |c| max(c, 3)),
    ("aten.avg_pool1d.default", |c| mean(c, 1)),
    ("aten.avg_pool2d.default", |c| mean(c, 2)),
    ("aten.avg_pool3d.default", |c| mean(c, 3)),
    ("aten.adaptive_avg_pool1d.default", |c| adaptive(c, 1, adaptive_avg_pool)),
    ("aten.adaptive_avg_pool2d.default", |c| adaptive(c, 2, adaptive_avg_pool)),
    ("aten._adaptive_avg_pool2d.default", |c| adaptive(c, 2, adaptive_avg_pool)),
    ("aten.adaptive_avg_pool3d.default", |c| adaptive(c, 3, adaptive_avg_pool)),
    ("aten._adaptive_avg_pool3d.default", |c| adaptive(c, 3, adaptive_avg_pool)),
    ("aten.adaptive_max_pool1d.default", |c| adaptive(c, 1, adaptive_max_pool)),
    ("aten.adaptive_max_pool2d.default", |c| adaptive(c, 2, adaptive_max_pool)),
    ("aten.adaptive_max_pool3d.default", |c| adaptive(c, 3, adaptive_max_pool)),
];

/// Over what lies channels last, with samples in front.
fn over(x: &Laid, axes: usize, f: impl FnOnce(&Tensor) -> Result<Tensor>) -> Values {
    let s = x.shape().to_vec();
    if s.len() == axes + 2 {
        return one(Laid::channels_last(f(&x.to_channels_last()?)?));
    }
    if s.len() != axes + 1 {
        return Err(refuse(format!("pools a tensor of shape {} over {axes} axes", x.shape())));
    }
    let shape: Vec<usize> = std::iter::once(1).chain(s).collect();
    let y = Laid::channels_last(f(&x.reshape(shape)?.to_channels_last()?)?);
    let shape = y.shape()[1..].to_vec();
    one(y.reshape(shape)?)
}

fn windows(c: &Call<'_, '_>, x: &Laid, axes: usize) -> Result<Windows> {
    let mut window = c.sizes_of("kernel_size", axes)?;
    let given = c.sizes("stride")?;
    let stride = if given.is_empty() { window.clone() } else { c.sizes_of("stride", axes)? };
    let (padding, ceil) = (c.sizes_of("padding", axes)?, c.flag("ceil_mode")?);
    if let (true, Some(first)) = (ceil, x.rank().checked_sub(axes)) {
        // In ceil mode a single window may be larger than all there is, and ends with it.
        for (i, window) in window.iter_mut().enumerate() {
            let whole = x.shape()[first + i] + 2 * padding[i];
            if *window > whole && *window < whole + stride[i] {
                *window = whole;
            }
        }
    }
    Ok(Windows { window, stride, pad: padding.into_iter().map(|p| (p, p)).collect(), ceil })
}

fn max(c: &mut Call<'_, '_>, axes: usize) -> Values {
    if c.wants(1) || c.sizes_of("dilation", axes)?.iter().any(|&d| d != 1) {
        return max_with_places(c, axes);
    }
    let x = c.laid("self")?;
    let windows = windows(c, &x, axes)?;
    over(&x, axes, |t| max_pool(t, &windows))
}

fn mean(c: &mut Call<'_, '_>, axes: usize) -> Values {
    let (x, counts) = (c.laid("self")?, c.flag("count_include_pad")?);
    let windows = windows(c, &x, axes)?;
    let divisor = if axes == 1 { None } else { c.opt_int("divisor_override")? };
    over(&x, axes, |t| avg_pool(t, &windows, counts, divisor.map(|n| n.max(1) as usize)))
}

fn adaptive(c: &mut Call<'_, '_>, axes: usize, f: fn(&Tensor, &[usize]) -> Result<Tensor>) -> Values {
    let (x, out) = (c.laid("self")?, c.sizes_of("output_size", axes)?);
    over(&x, axes, |t| f(t, &out))
}
