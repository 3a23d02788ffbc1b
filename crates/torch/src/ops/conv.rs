//! Convolutions. Programs have channels first; images are kept channels last, and so are filters.

use plimsoll_nn::blocks::Laid;
use plimsoll_nn::blocks::conv::{Sliding, conv, conv_transpose};
use plimsoll_run::Result;

use super::{Table, Values, one};
use crate::call::Call;
use crate::error::refuse;

pub(super) const OPS: Table = &[
    ("aten.conv1d.default", |c| plain(c, 1, false)),
    ("aten.conv2d.default", |c| plain(c, 2, false)),
    ("aten.conv3d.default", |c| plain(c, 3, false)),
    ("aten.conv1d.padding", |c| plain(c, 1, true)),
    ("aten.conv2d.padding", |c| plain(c, 2, true)),
    ("aten.conv3d.padding", |c| plain(c, 3, true)),
    ("aten.conv_transpose1d.default", |c| transposed(c, 1)),
    ("aten.conv_transpose2d.input", |c| transposed(c, 2)),
    ("aten.conv_transpose3d.input", |c| transposed(c, 3)),
    ("aten.convolution.default", |c| {
        let axes = c.laid("input")?.rank().saturating_sub(2);
        if c.flag("transposed")? {
            return transposed(c, axes);
        }
        // Said, and of no meaning where nothing is transposed.
        let _ = c.value("output_padding");
        plain(c, axes, false)
    }),
];

/// Filters are read as `[.., inputs / groups, outputs]`: then they are stored so.
pub(super) fn read_order(op: &str, argument: &str, rank: usize) -> Option<Vec<usize>> {
    let is_conv = op.starts_with("aten.conv") && argument == "weight" && rank >= 3;
    is_conv.then(|| [rank - 1, rank - 2].into_iter().chain(0..rank - 2).collect())
}

/// Images with samples in front; a single one may come without.
fn images(c: &Call<'_, '_>, axes: usize) -> Result<(Laid, bool)> {
    let x = c.laid("input")?;
    if x.rank() == axes + 2 {
        return Ok((x, false));
    }
    if x.rank() == axes + 1 {
        let shape: Vec<usize> = std::iter::once(1).chain(x.shape().iter().copied()).collect();
        return Ok((x.reshape(shape)?, true));
    }
    Err(refuse(format!("convolves a tensor of shape {} over {axes} axes", x.shape())))
}

fn unbatched(y: Laid, is_single: bool) -> Values {
    if is_single {
        let shape = y.shape()[1..].to_vec();
        return one(y.reshape(shape)?);
    }
    one(y)
}

/// The filter `[outputs, inputs / groups, ..]` as `[.., inputs / groups, outputs]`.
fn filter(c: &Call<'_, '_>, axes: usize) -> Result<plimsoll_run::Tensor> {
    let w = c.laid("weight")?;
    if w.rank() != axes + 2 {
        return Err(refuse(format!("convolves with a filter of shape {} over {axes} axes", w.shape())));
    }
    let order: Vec<usize> = (2..axes + 2).chain([1, 0]).collect();
    w.in_order(&order)
}

fn plain(c: &mut Call<'_, '_>, axes: usize, is_named: bool) -> Values {
    let ((x, is_single), w, bias) = (images(c, axes)?, filter(c, axes)?, c.opt_tensor("bias")?);
    let (stride, dilation) = (c.sizes_of("stride", axes)?, c.sizes_of("dilation", axes)?);
    let pad: Vec<(usize, usize)> = match is_named {
        false => c.sizes_of("padding", axes)?.into_iter().map(|p| (p, p)).collect(),
        true => match c.text("padding")?.as_str() {
            "valid" => vec![(0, 0); axes],
            // An odd element goes to the end.
            "same" => (0..axes)
                .map(|i| dilation[i] * (w_length(&w, i) - 1))
                .map(|all| (all / 2, all - all / 2))
                .collect(),
            other => return Err(refuse(format!("pads by {other}"))),
        },
    };
    let sliding = Sliding { stride, pad, dilation, groups: c.size("groups")? };
    let y = conv(&x.to_channels_last()?, &w, bias.as_ref(), &sliding)?;
    unbatched(Laid::channels_last(y), is_single)
}

fn w_length(w: &plimsoll_run::Tensor, axis: usize) -> usize {
    use plimsoll_graph::TensorOps;
    w.shape()[axis].max(1)
}

fn transposed(c: &mut Call<'_, '_>, axes: usize) -> Values {
    let ((x, is_single), w, bias) = (images(c, axes)?, filter(c, axes)?, c.opt_tensor("bias")?);
    let sliding = Sliding {
        stride: c.sizes_of("stride", axes)?,
        pad: c.sizes_of("padding", axes)?.into_iter().map(|p| (p, p)).collect(),
        dilation: c.sizes_of("dilation", axes)?,
        groups: c.size("groups")?,
    };
    let more = c.sizes_of("output_padding", axes)?;
    let y = conv_transpose(&x.to_channels_last()?, &w, bias.as_ref(), &sliding, &more)?;
    unbatched(Laid::channels_last(y), is_single)
}
