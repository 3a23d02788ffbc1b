//! Windows over a tensor, and pixels that change places with channels.

use plimsoll_graph::ops::{Pad, PadAxis};
use plimsoll_graph::{Site, TensorOps};
use plimsoll_nn::blocks::Laid;
use plimsoll_run::{Result, Tensor};

use super::cut::cut;
use super::pad::padded;
use super::{Table, Values, one};
use crate::call::Call;
use crate::error::refuse;

pub(super) const OPS: Table = &[
    ("aten.pixel_shuffle.default", |c| {
        let (x, r) = (c.laid("self")?, c.size("upscale_factor")?);
        let [n, channels, h, w] = images(&x)?;
        let wide = x.reshape([n, channels / (r * r).max(1), r, r, h, w])?.permute(&[0, 1, 4, 2, 5, 3]);
        one(wide.reshape([n, channels / (r * r).max(1), h * r, w * r])?)
    }),
    ("aten.pixel_unshuffle.default", |c| {
        let (x, r) = (c.laid("self")?, c.size("downscale_factor")?);
        let [n, channels, h, w] = images(&x)?;
        let r = r.max(1);
        let wide = x.reshape([n, channels, h / r, r, w / r, r])?.permute(&[0, 1, 3, 5, 2, 4]);
        one(wide.reshape([n, channels * r * r, h / r, w / r])?)
    }),
    ("aten.channel_shuffle.default", |c| {
        let (x, groups) = (c.laid("self")?, c.size("groups")?);
        let [n, channels, h, w] = images(&x)?;
        let wide = x.reshape([n, groups, channels / groups.max(1), h, w])?.permute(&[0, 2, 1, 3, 4]);
        one(wide.reshape([n, channels, h, w])?)
    }),
    ("aten.unfold.default", |c| {
        let x = c.tensor("self")?;
        let at = c.axis("dimension", x.shape().rank())?;
        let (size, step) = (c.size("size")?, c.size("step")?.max(1));
        let n = x.shape()[at];
        let windows = n
            .checked_sub(size)
            .filter(|_| size > 0)
            .map(|rest| rest / step + 1)
            .ok_or_else(|| refuse("unfolds more than there is"))?;
        // Element k of every window, as a new last axis.
        let parts = (0..size).map(|k| {
            let part = cut(&x, at, k, k + (windows - 1) * step + 1, step)?;
            let mut shape = part.shape().to_vec();
            shape.push(1);
            part.reshape(shape)
        });
        let parts = parts.collect::<Result<Vec<Tensor>>>()?;
        one(Tensor::concat(&parts.iter().collect::<Vec<_>>(), -1)?)
    }),
    ("aten.im2col.default", |c| im2col(c)),
    ("aten.col2im.default", |c| col2im(c)),
];

/// Windows over images: their size, and how they lie.
struct Windows {
    kernel: Vec<usize>,
    dilation: Vec<usize>,
    padding: Vec<usize>,
    stride: Vec<usize>,
}

impl Windows {
    fn of(c: &Call<'_, '_>) -> Result<Windows> {
        let sizes = |name: &str| c.sizes_of(name, 2);
        let own = Windows {
            kernel: sizes("kernel_size")?,
            dilation: sizes("dilation")?,
            padding: sizes("padding")?,
            stride: sizes("stride")?,
        };
        if [&own.kernel, &own.dilation, &own.stride].into_iter().flatten().any(|&n| n == 0) {
            return Err(refuse("has windows of no size, or that stand still"));
        }
        Ok(own)
    }

    /// How many there are along an axis of an image with its padding.
    fn along(&self, at: usize, length: usize) -> Result<usize> {
        let reach = (self.kernel[at] - 1).saturating_mul(self.dilation[at]).saturating_add(1);
        let rest = length.checked_sub(reach).ok_or_else(|| refuse("has windows larger than its images"))?;
        Ok(rest / self.stride[at] + 1)
    }

    fn elements(&self) -> usize {
        self.kernel[0] * self.kernel[1]
    }

    /// Each element of a window: its number, and where in an image that of the first window is.
    fn places(&self) -> impl Iterator<Item = (usize, [usize; 2])> + '_ {
        (0..self.elements()).map(|k| {
            let (row, column) = (k / self.kernel[1], k % self.kernel[1]);
            (k, [row * self.dilation[0], column * self.dilation[1]])
        })
    }
}

/// Windows of images as columns: `[N, C, H, W]` becomes `[N, C · kh · kw, windows]`.
fn im2col(c: &mut Call<'_, '_>) -> Values {
    let (x, windows) = (c.laid("self")?, Windows::of(c)?);
    let &[n, channels, ..] = &x.shape()[..] else { return Err(refuse("takes images [N, C, H, W]")) };
    let pad: Vec<i64> = [1, 1, 0, 0].iter().map(|&at| windows.padding[at] as i64).collect();
    let x = padded(&x, &pad, "constant", 0.0)?.plain()?;
    let (rows, columns) = (windows.along(0, x.shape()[2])?, windows.along(1, x.shape()[3])?);
    let part = |(_, first): (usize, [usize; 2])| {
        let range = |at: usize, count: usize| {
            (at + 2, first[at], first[at] + (count - 1) * windows.stride[at] + 1, windows.stride[at])
        };
        x.slice(&[range(0, rows), range(1, columns)])?.reshape([n, channels, 1, rows * columns])
    };
    let parts = windows.places().map(part).collect::<Result<Vec<Tensor>>>()?;
    let y = Tensor::concat(&parts.iter().collect::<Vec<_>>(), 2)?;
    one(y.reshape([n, channels * windows.elements(), rows * columns])?)
}

/// Columns back as images, summed where windows overlap.
fn col2im(c: &mut Call<'_, '_>) -> Values {
    let (x, out, windows) = (c.tensor("self")?, c.sizes_of("output_size", 2)?, Windows::of(c)?);
    let &[n, wide, _] = &x.shape()[..] else { return Err(refuse("takes columns [N, C, L]")) };
    let (channels, padding) = (wide / windows.elements(), &windows.padding);
    let whole = [out[0] + 2 * padding[0], out[1] + 2 * padding[1]];
    let (rows, columns) = (windows.along(0, whole[0])?, windows.along(1, whole[1])?);
    let x = x.reshape([n, channels, windows.elements(), rows, columns])?;
    let mut sum: Option<Tensor> = None;
    for (k, first) in windows.places() {
        let part = x.narrow(2, k, k + 1)?.reshape([n, channels, rows, columns])?;
        let spread = |at: usize, count: usize| {
            let (low, step) = (first[at], windows.stride[at]);
            PadAxis { low, high: whole[at] - (low + (count - 1) * step + 1), inner: step - 1 }
        };
        let none = PadAxis { low: 0, high: 0, inner: 0 };
        let axes = [none, none, spread(0, rows), spread(1, columns)];
        let op = Pad { axes: axes.into_iter().collect(), value: 0.0.into() };
        let part = part.emit_one(op, &[&part], Site::here())?;
        sum = Some(match sum {
            Some(sum) => sum.add(&part)?,
            None => part,
        });
    }
    let sum = sum.ok_or_else(|| refuse("has no windows"))?;
    one(sum.slice(&[(2, padding[0], padding[0] + out[0], 1), (3, padding[1], padding[1] + out[1], 1)])?)
}

/// The lengths of images `[N, C, H, W]`.
fn images(x: &Laid) -> Result<[usize; 4]> {
    x.shape()[..].try_into().map_err(|_| refuse("takes images [N, C, H, W]"))
}
