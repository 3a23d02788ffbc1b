//! Images, sequences and volumes at other sizes, and at the places of a grid.

use plimsoll_graph::ops::ResizeMode;
use plimsoll_graph::{GridSampleOps, TensorOps};
use plimsoll_nn::blocks::Laid;
use plimsoll_nn::blocks::resize::{Corners, Interpolation, resize};
use plimsoll_run::Result;

use super::{Table, Values, one};
use crate::call::Call;
use crate::error::refuse;

/// PyTorch's parameter of cubics.
const CUBIC: f64 = -0.75;
/// The same where it smooths.
const SMOOTH: f64 = -0.5;

pub(super) const OPS: Table = &[
    ("aten.upsample_nearest1d.vec", |c| vec(c, Interpolation::Nearest)),
    ("aten.upsample_nearest2d.vec", |c| vec(c, Interpolation::Nearest)),
    ("aten.upsample_nearest3d.vec", |c| vec(c, Interpolation::Nearest)),
    ("aten._upsample_nearest_exact1d.vec", |c| vec(c, Interpolation::NearestExact)),
    ("aten._upsample_nearest_exact2d.vec", |c| vec(c, Interpolation::NearestExact)),
    ("aten.upsample_linear1d.vec", |c| vec(c, Interpolation::Linear)),
    ("aten.upsample_bilinear2d.vec", |c| vec(c, Interpolation::Linear)),
    ("aten.upsample_trilinear3d.vec", |c| vec(c, Interpolation::Linear)),
    ("aten.upsample_bicubic2d.vec", |c| vec(c, Interpolation::Cubic(CUBIC))),
    ("aten._upsample_bilinear2d_aa.vec", |c| vec(c, Interpolation::SmoothLinear)),
    ("aten._upsample_bicubic2d_aa.vec", |c| vec(c, Interpolation::SmoothCubic(SMOOTH))),
    ("aten._upsample_bilinear2d_aa.default", |c| {
        plain(c, Interpolation::SmoothLinear, &["scales_h", "scales_w"])
    }),
    ("aten._upsample_bicubic2d_aa.default", |c| {
        plain(c, Interpolation::SmoothCubic(SMOOTH), &["scales_h", "scales_w"])
    }),
    ("aten.upsample_nearest1d.default", |c| plain(c, Interpolation::Nearest, &["scales"])),
    ("aten.upsample_nearest2d.default", |c| plain(c, Interpolation::Nearest, &["scales_h", "scales_w"])),
    ("aten.upsample_nearest3d.default", |c| {
        plain(c, Interpolation::Nearest, &["scales_d", "scales_h", "scales_w"])
    }),
    ("aten.upsample_linear1d.default", |c| plain(c, Interpolation::Linear, &["scales"])),
    ("aten.upsample_bilinear2d.default", |c| plain(c, Interpolation::Linear, &["scales_h", "scales_w"])),
    ("aten.upsample_trilinear3d.default", |c| {
        plain(c, Interpolation::Linear, &["scales_d", "scales_h", "scales_w"])
    }),
    ("aten.upsample_bicubic2d.default", |c| plain(c, Interpolation::Cubic(CUBIC), &["scales_h", "scales_w"])),
    ("aten.grid_sampler.default", |c| grid_sample(c)),
    ("aten.grid_sampler_2d.default", |c| grid_sample(c)),
    ("aten.affine_grid_generator.default", |c| {
        let (theta, size, align) = (c.tensor("theta")?, c.sizes("size")?, c.flag("align_corners")?);
        let &[n, _, h, w] = &size[..] else { return Err(refuse("makes a grid of other than images")) };
        // Places from -1 to 1, in the middle of pixels unless corners are aligned.
        let line = |length: usize| -> Result<plimsoll_run::Tensor> {
            let at = |i: usize| match (align, length) {
                (_, 0) => 0.0,
                (true, 1) => 0.0,
                (true, n) => -1.0 + 2.0 * i as f64 / (n - 1) as f64,
                (false, n) => (2 * i + 1) as f64 / n as f64 - 1.0,
            };
            let values: Vec<f64> = (0..length).map(at).collect();
            plimsoll_run::Tensor::from_slice(&values, [length])?.cast(theta.dtype())
        };
        let across = line(w)?.reshape([1, w, 1])?.broadcast([h, w, 1])?;
        let down = line(h)?.reshape([h, 1, 1])?.broadcast([h, w, 1])?;
        let ones = theta.full_like(plimsoll_graph::Type::new(theta.dtype(), [h, w, 1]), 1.0)?;
        let base = plimsoll_run::Tensor::concat(&[&across, &down, &ones], 2)?.reshape([1, h * w, 3])?;
        let base = base.broadcast([n, h * w, 3])?;
        one(base.matmul_with(&theta, None, false, true)?.reshape([n, h, w, 2])?)
    }),
];

fn sized(c: &mut Call<'_, '_>, how: Interpolation, out: Vec<usize>, scale: Option<Vec<f64>>) -> Values {
    let name = if c.value("input").is_ok() { "input" } else { "self" };
    let x = c.laid(name)?;
    let is_nearest = matches!(how, Interpolation::Nearest | Interpolation::NearestExact);
    let aligned = !is_nearest && c.flag("align_corners")?;
    let corners = if aligned { Corners::Aligned } else { Corners::Edges };
    let y = resize(&x.to_channels_last()?, &out, scale.as_deref(), how, corners)?;
    one(Laid::channels_last(y))
}

fn vec(c: &mut Call<'_, '_>, how: Interpolation) -> Values {
    let (out, scale) = (c.opt_ints("output_size")?, c.opt_floats("scale_factors")?);
    let x = c.laid("input")?;
    match (out, scale) {
        (Some(out), scale) => {
            let out = out.iter().map(|&n| n.max(0) as usize).collect();
            sized(c, how, out, scale)
        }
        (None, Some(scale)) => {
            let out =
                x.shape()[2..].iter().zip(&scale).map(|(&n, s)| (n as f64 * s).floor() as usize).collect();
            sized(c, how, out, Some(scale))
        }
        (None, None) => Err(refuse("does not say to which size")),
    }
}

fn plain(c: &mut Call<'_, '_>, how: Interpolation, scales: &[&str]) -> Values {
    let out = c.sizes("output_size")?;
    let given = scales.iter().map(|name| Ok(c.opt_number(name)?.map(|n| n.value)));
    let scale = given.collect::<Result<Vec<Option<f64>>>>()?.into_iter().collect::<Option<Vec<f64>>>();
    sized(c, how, out, scale)
}

fn grid_sample(c: &mut Call<'_, '_>) -> Values {
    let (x, grid) = (c.laid("input")?, c.tensor("grid")?);
    let (mode, padding, align) =
        (c.int("interpolation_mode")?, c.int("padding_mode")?, c.flag("align_corners")?);
    let mode = match mode {
        0 => ResizeMode::Bilinear,
        1 => ResizeMode::Nearest,
        _ => return Err(refuse("samples by cubics, which is not known here")),
    };
    if !matches!(padding, 0 | 1) || x.rank() != 4 {
        return Err(refuse("samples volumes, or mirrors what is outside, which is not known here"));
    }
    one(Laid::channels_last(x.to_channels_last()?.grid_sample(&grid, mode, padding == 1, align)?))
}
