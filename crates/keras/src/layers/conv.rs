//! Convolutions of images and sequences, channels last.

use plimsoll_graph::{ConvGeometry, ConvOps, Padding, TensorOps};
use plimsoll_nn::Init;
use plimsoll_run::{Result as RunResult, Tensor};

use super::lora::{self, Lora};
use super::{Activation, Table, kernel_and_bias, trained};
use crate::error::{Result, refuse};
use crate::layer::{Cx, Made, Weight};
use crate::settings::Settings;

pub(crate) const TABLE: Table = &[
    ("Conv1D", |s| conv::<1>(s)),
    ("Conv2D", |s| conv::<2>(s)),
    ("Conv1DTranspose", |s| transpose::<1>(s)),
    ("Conv2DTranspose", |s| transpose::<2>(s)),
    ("DepthwiseConv1D", |s| depthwise::<1>(s)),
    ("DepthwiseConv2D", |s| depthwise::<2>(s)),
    ("SeparableConv1D", |s| separable::<1>(s)),
    ("SeparableConv2D", |s| separable::<2>(s)),
];

/// What all of them share. One axis is treated as the width of images of height 1.
struct Sliding {
    window: [usize; 2],
    stride: [usize; 2],
    dilation: [usize; 2],
    pad: Padding,
    axes: usize,
    bias: bool,
    activation: Activation,
    bias_init: Init,
}

impl Sliding {
    fn read<const AXES: usize>(s: &Settings<'_>) -> Result<Sliding> {
        s.channels_last()?;
        let wide = |extents: [usize; AXES]| match extents[..] {
            [width] => [1, width],
            _ => [extents[0], extents[AXES - 1]],
        };
        let window = wide(s.extents::<AXES>("kernel_size", 1)?);
        let dilation = wide(s.extents::<AXES>("dilation_rate", 1)?);
        let is_causal = AXES == 1 && s.text_or("padding", "valid")? == "causal";
        let pad = if is_causal {
            // Everything before: an output sees no later input.
            Padding::Explicit([(0, 0), ((window[1] - 1).saturating_mul(dilation[1]), 0)])
        } else {
            s.padding::<2>()?
        };
        if s.is_null("kernel_size") {
            return Err(s.wrong("kernel_size", "a convolution needs one"));
        }
        // Old files say of every convolution that it has one.
        if !s.class.starts_with("Conv") && s.units_or("groups", 1)? != 1 {
            return Err(s.wrong("groups", "only one is taken here"));
        }
        Ok(Sliding {
            window,
            stride: wide(s.extents::<AXES>("strides", 1)?),
            dilation,
            pad,
            axes: AXES,
            bias: s.flag("use_bias", true)?,
            activation: s.activation("activation")?,
            bias_init: s.init("bias_initializer", 1, 1),
        })
    }

    fn area(&self) -> usize {
        self.window[0] * self.window[1]
    }

    fn geometry(&self, groups: usize) -> ConvGeometry {
        ConvGeometry { stride: self.stride, pad: self.pad, dilation: self.dilation, groups }
    }

    /// The shape of a filter in the file: one axis for sequences, two for images.
    fn filter(&self, channels: [usize; 2]) -> Vec<usize> {
        self.window[2 - self.axes..].iter().copied().chain(channels).collect()
    }

    /// A filter as an image's.
    fn widened(&self, w: &Tensor) -> RunResult<Tensor> {
        let rank = w.shape().rank();
        let [kh, kw] = self.window;
        w.reshape([kh, kw, w.shape()[rank - 2], w.shape()[rank - 1]])
    }

    /// The input as images, and its channels.
    fn images(&self, x: &Tensor) -> RunResult<(Tensor, usize)> {
        match x.shape()[..] {
            [_, _, _, c] if self.axes == 2 => Ok((x.clone(), c)),
            [n, length, c] if self.axes == 1 => Ok((x.reshape([n, 1, length, c])?, c)),
            _ => Err(refuse(format!("gives {} to a convolution over {} axes", x.ty(), self.axes))),
        }
    }

    /// The result as the layer's: sequences again, with its activation.
    fn result(&self, cx: &mut Cx<'_>, y: &Tensor) -> RunResult<Tensor> {
        let y = match (self.axes, &y.shape()[..]) {
            (1, &[n, _, length, c]) => y.reshape([n, length, c])?,
            _ => y.clone(),
        };
        cx.finish(&self.activation, &y)
    }
}

fn conv<const AXES: usize>(s: &Settings<'_>) -> Result<Made> {
    let sliding = Sliding::read::<AXES>(s)?;
    let activation = sliding.activation;
    let (filters, groups) = (s.units("filters")?, s.units_or("groups", 1)?);
    let init = s.init("kernel_initializer", sliding.area() * 16, sliding.area() * filters);
    let mut weights = kernel_and_bias(s, sliding.bias)?;
    let lora = Lora::read(s, &mut weights)?;
    Ok(Made::weighted(weights, move |cx, x| {
        let (x, channels) = sliding.images(x)?;
        if !channels.is_multiple_of(groups) || !filters.is_multiple_of(groups) {
            return Err(refuse(format!("cuts {channels} channels and {filters} filters in {groups} groups")));
        }
        let shape = sliding.filter([channels / groups, filters]);
        let w = lora::master(lora, cx, "kernel", &shape[..], init)?.cast(cx.dtype())?;
        let b = cx.optional(sliding.bias, "bias", [filters], sliding.bias_init)?;
        let y = x.conv2d(&sliding.widened(&w)?, b.as_ref(), sliding.geometry(groups))?;
        sliding.result(cx, &y)
    })
    .ends(&activation))
}

fn transpose<const AXES: usize>(s: &Settings<'_>) -> Result<Made> {
    let sliding = Sliding::read::<AXES>(s)?;
    let activation = sliding.activation;
    if s.units_or("groups", 1)? != 1 {
        return Err(s.wrong("groups", "only one is taken here"));
    }
    let filters = s.units("filters")?;
    let added = if s.is_null("output_padding") { None } else { Some(s.amounts::<AXES>("output_padding")?) };
    // Of one axis, the other is the height of an image of one line.
    let added = added.map(|added| [if AXES == 1 { 0 } else { added[0] }, added[AXES - 1]]);
    let (geometry, extra) = turned_round(s, sliding.window, sliding.geometry(1), added)?;
    let init = s.init("kernel_initializer", sliding.area() * filters, sliding.area() * 16);
    Ok(Made::weighted(kernel_and_bias(s, sliding.bias)?, move |cx, x| {
        let (x, channels) = sliding.images(x)?;
        let w = cx.param("kernel", &sliding.filter([filters, channels])[..], init)?;
        let b = cx.optional(sliding.bias, "bias", [filters], sliding.bias_init)?;
        let y = x.conv_transpose2d(&sliding.widened(&w)?, b.as_ref(), geometry, extra)?;
        sliding.result(cx, &y)
    })
    .ends(&activation))
}

/// How a transposed convolution lies over what it makes, and what is added behind it along each axis.
pub(super) fn turned_round<const AXES: usize>(
    s: &Settings<'_>,
    window: [usize; AXES],
    mut geometry: ConvGeometry<AXES>,
    added: Option<[usize; AXES]>,
) -> Result<(ConvGeometry<AXES>, [usize; AXES])> {
    let is_same = geometry.pad == Padding::Same;
    let (mut pads, mut extra) = ([(0, 0); AXES], [0; AXES]);
    for axis in 0..AXES {
        let reach = (window[axis] - 1) * geometry.dilation[axis] + 1;
        let Transposed { cut, more } =
            transposed(reach, geometry.stride[axis], is_same, added.map(|a| a[axis]))
                .ok_or_else(|| s.wrong("output_padding", "it does not go with the stride and the window"))?;
        (pads[axis], extra[axis]) = (cut, more);
    }
    match (is_same, added) {
        (true, None) => Ok((geometry, [0; AXES])),
        _ => {
            geometry.pad = Padding::Explicit(pads);
            Ok((geometry, extra))
        }
    }
}

/// What is cut off a transposed convolution along an axis, before and after, and what is added after it.
struct Transposed {
    cut: (usize, usize),
    more: usize,
}

/// As Keras has it: `reach` is the window with its gaps, `added` what the layer says is to be added. None where that cannot be.
fn transposed(reach: usize, stride: usize, is_same: bool, added: Option<usize>) -> Option<Transposed> {
    let (left, right) = match (is_same, added) {
        // Where a stride is wider than its window, the last window's gap is part of the result.
        (false, added) => (reach - 1, reach - 1 + added.unwrap_or(stride.saturating_sub(reach))),
        (true, added) => {
            let all = match added {
                None => stride + reach - 2,
                Some(added) => (reach + reach % 2 + added).checked_sub(2)?,
            };
            let left = (all / 2 + all % 2).min(reach - 1);
            (left, all - left)
        }
    };
    Some(Transposed {
        cut: (reach - 1 - left, (reach - 1).saturating_sub(right)),
        more: right.saturating_sub(reach - 1),
    })
}

fn depthwise<const AXES: usize>(s: &Settings<'_>) -> Result<Made> {
    let sliding = Sliding::read::<AXES>(s)?;
    let activation = sliding.activation;
    let multiplier = s.units_or("depth_multiplier", 1)?;
    // Keras 3 calls the weight a kernel; its initializer and regularizer are still named after depth.
    let mut weights = vec![trained(s, "kernel", "depthwise_regularizer")?];
    if sliding.bias {
        weights.push(trained(s, "bias", "bias_regularizer")?);
    }
    let init = s.init("depthwise_initializer", sliding.area(), sliding.area() * multiplier);
    Ok(Made::weighted(weights, move |cx, x| {
        let (x, channels) = sliding.images(x)?;
        let w = cx.param("kernel", &sliding.filter([channels, multiplier])[..], init)?;
        let b = cx.optional(sliding.bias, "bias", [channels * multiplier], sliding.bias_init)?;
        let [kh, kw] = sliding.window;
        let w = w.reshape([kh, kw, 1, channels * multiplier])?;
        let y = x.depthwise_conv2d(&w, b.as_ref(), sliding.geometry(1))?;
        sliding.result(cx, &y)
    })
    .ends(&activation))
}

fn separable<const AXES: usize>(s: &Settings<'_>) -> Result<Made> {
    let sliding = Sliding::read::<AXES>(s)?;
    let activation = sliding.activation;
    let (filters, multiplier) = (s.units("filters")?, s.units_or("depth_multiplier", 1)?);
    let mut weights: Vec<Weight> = vec![
        trained(s, "depthwise_kernel", "depthwise_regularizer")?,
        trained(s, "pointwise_kernel", "pointwise_regularizer")?,
    ];
    if sliding.bias {
        weights.push(trained(s, "bias", "bias_regularizer")?);
    }
    let init = s.init("depthwise_initializer", sliding.area(), sliding.area() * multiplier);
    let point_init = s.init("pointwise_initializer", 16, filters);
    Ok(Made::weighted(weights, move |cx, x| {
        let (x, channels) = sliding.images(x)?;
        let [kh, kw] = sliding.window;
        let inner = channels * multiplier;
        let w = cx.param("depthwise_kernel", &sliding.filter([channels, multiplier])[..], init)?;
        let point: Vec<usize> = std::iter::repeat_n(1, sliding.axes).chain([inner, filters]).collect();
        let p = cx.param("pointwise_kernel", &point[..], point_init)?;
        let b = cx.optional(sliding.bias, "bias", [filters], sliding.bias_init)?;
        let y = x.depthwise_conv2d(&w.reshape([kh, kw, 1, inner])?, None, sliding.geometry(1))?;
        let y = y.conv2d(&p.reshape([1, 1, inner, filters])?, b.as_ref(), ConvGeometry::default())?;
        sliding.result(cx, &y)
    })
    .ends(&activation))
}
