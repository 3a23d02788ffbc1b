//! The largest element of each window with its place, and of windows that leave elements out: picked out of all elements of a window.

use plimsoll_graph::{GatherOps, TensorOps};
use plimsoll_nn::blocks::Laid;
use plimsoll_run::{Result, Tensor};

use super::Values;
use super::pad::padded;
use crate::call::Call;
use crate::error::refuse;

/// How windows lie along one axis.
struct Axis {
    length: usize,
    window: usize,
    stride: usize,
    pad: usize,
    dilation: usize,
    windows: usize,
}

impl Axis {
    /// The axis of an op; a last window that reaches over the end counts in ceil mode, if it begins before it.
    fn new(length: usize, given: [usize; 4], ceil: bool) -> Result<Axis> {
        let [window, stride, pad, dilation] = given;
        if window == 0 || stride == 0 || dilation == 0 || pad > window / 2 {
            return Err(refuse(
                "has windows of no size, or that stand still, or more padding than half a window",
            ));
        }
        let reach = (window - 1).saturating_mul(dilation).saturating_add(1);
        let rest = (length + 2 * pad).checked_sub(reach);
        let rest = rest.ok_or_else(|| refuse("has windows larger than what it pools"))?;
        let mut windows = if ceil { rest.div_ceil(stride) } else { rest / stride } + 1;
        if (windows - 1) * stride >= length + pad {
            windows -= 1;
        }
        Ok(Axis { length, window, stride, pad, dilation, windows })
    }

    /// Elements behind the last one, so that every window lies inside.
    fn behind(&self) -> usize {
        let end = (self.windows - 1) * self.stride + (self.window - 1) * self.dilation + 1;
        end.saturating_sub(self.length + self.pad)
    }
}

/// The largest elements and, where they are read, their places among all elements of a channel.
pub(super) fn max_with_places(c: &mut Call<'_, '_>, axes: usize) -> Values {
    let x = c.laid("self")?;
    let (sizes, given) = (|name: &str| c.sizes_of(name, axes), c.sizes("stride")?);
    let (window, pad, dilation) = (sizes("kernel_size")?, sizes("padding")?, sizes("dilation")?);
    let stride = if given.is_empty() { window.clone() } else { sizes("stride")? };
    let (ceil, wants_places) = (c.flag("ceil_mode")?, c.wants(1));
    let first = x.rank().checked_sub(axes).filter(|first| (1..=2).contains(first));
    let first =
        first.ok_or_else(|| refuse(format!("pools a tensor of shape {} over {axes} axes", x.shape())))?;
    if !x.dtype().is_float() {
        return Err(refuse(format!(
            "pools {} elements with their places, which is not known here",
            x.dtype()
        )));
    }
    let axis = |i: usize| Axis::new(x.shape()[first + i], [window[i], stride[i], pad[i], dilation[i]], ceil);
    let all = (0..axes).map(axis).collect::<Result<Vec<Axis>>>()?;
    let pads: Vec<i64> = all.iter().rev().flat_map(|axis| [axis.pad as i64, axis.behind() as i64]).collect();
    let wide = padded(&x, &pads, "constant", f64::NEG_INFINITY)?.plain()?;

    let elements: usize = all.iter().map(|axis| axis.window).product();
    let (mut parts, mut offsets) = (Vec::with_capacity(elements), Vec::with_capacity(elements));
    for element in 0..elements {
        let (mut rest, mut ranges, mut offset, mut step) = (element, Vec::new(), 0, 1);
        for (i, axis) in all.iter().enumerate().rev() {
            let at = rest % axis.window * axis.dilation;
            rest /= axis.window;
            ranges.push((first + i, at, at + (axis.windows - 1) * axis.stride + 1, axis.stride));
            offset += (at * step) as i64;
            step *= axis.length;
        }
        let part = wide.slice(&ranges)?;
        let mut shape = part.shape().to_vec();
        shape.push(1);
        parts.push(part.reshape(shape)?);
        offsets.push(offset);
    }
    let parts = Tensor::concat(&parts.iter().collect::<Vec<_>>(), -1)?;
    let which = parts.argmax(-1)?;
    let mut shape = which.shape().to_vec();
    let out = shape.clone();
    shape.push(1);
    let y = parts.take_along(&which.reshape(shape)?, -1)?.reshape(out)?;
    let mut results = vec![Laid::from(y).into()];
    if wants_places {
        results.push(places(&all, first, &which, &offsets)?.into());
    }
    Ok(results)
}

/// Where the chosen element of each window is: where the window begins, and so much further.
fn places(all: &[Axis], first: usize, which: &Tensor, offsets: &[i64]) -> Result<Tensor> {
    let mut places = Tensor::from_slice(offsets, [offsets.len()])?.gather(which, 0)?;
    let mut step = 1;
    for (i, axis) in all.iter().enumerate().rev() {
        let begin = |o: usize| (o * axis.stride) as i64 - axis.pad as i64;
        let begins: Vec<i64> = (0..axis.windows).map(|o| begin(o) * step).collect();
        let mut shape = vec![1; which.shape().rank()];
        shape[first + i] = axis.windows;
        places = places.add(&Tensor::from_slice(&begins, shape)?)?;
        step *= axis.length as i64;
    }
    Ok(places)
}
