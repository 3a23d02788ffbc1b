//! Convolutions of volumes `[B, D, H, W, C]`, channels last.

use plimsoll_graph::{ConvGeometry, TensorOps, VolumeOps};
use plimsoll_nn::Init;

use super::conv::turned_round;
use super::lora::{self, Lora};
use super::{Activation, Table, kernel_and_bias};
use crate::error::{Result, refuse};
use crate::layer::Made;
use crate::settings::Settings;

pub(crate) const TABLE: Table = &[("Conv3D", conv), ("Conv3DTranspose", transpose)];

/// What both share.
struct Volume {
    window: [usize; 3],
    geometry: ConvGeometry<3>,
    bias: bool,
    activation: Activation,
    bias_init: Init,
}

fn read(s: &Settings<'_>) -> Result<Volume> {
    s.channels_last()?;
    if s.is_null("kernel_size") {
        return Err(s.wrong("kernel_size", "a convolution needs one"));
    }
    Ok(Volume {
        window: s.extents("kernel_size", 1)?,
        geometry: ConvGeometry {
            stride: s.extents("strides", 1)?,
            pad: s.padding()?,
            dilation: s.extents("dilation_rate", 1)?,
            groups: s.units_or("groups", 1)?,
        },
        bias: s.flag("use_bias", true)?,
        activation: s.activation("activation")?,
        bias_init: s.init("bias_initializer", 1, 1),
    })
}

fn conv(s: &Settings<'_>) -> Result<Made> {
    let own = read(s)?;
    let (filters, activation) = (s.units("filters")?, own.activation);
    let area: usize = own.window.iter().product();
    let init = s.init("kernel_initializer", area * 16, area * filters);
    let mut weights = kernel_and_bias(s, own.bias)?;
    let lora = Lora::read(s, &mut weights)?;
    Ok(Made::weighted(weights, move |cx, x| {
        let channels = x.shape().last().copied().unwrap_or(0);
        let groups = own.geometry.groups;
        if !channels.is_multiple_of(groups) || !filters.is_multiple_of(groups) {
            return Err(refuse(format!("cuts {channels} channels and {filters} filters in {groups} groups")));
        }
        let [d, h, w] = own.window;
        let kernel = lora::master(lora, cx, "kernel", [d, h, w, channels / groups, filters], init)?
            .cast(cx.dtype())?;
        let bias = cx.optional(own.bias, "bias", [filters], own.bias_init)?;
        let y = x.conv3d(&kernel, bias.as_ref(), own.geometry)?;
        cx.finish(&own.activation, &y)
    })
    .ends(&activation))
}

fn transpose(s: &Settings<'_>) -> Result<Made> {
    let own = read(s)?;
    if own.geometry.groups != 1 {
        return Err(s.wrong("groups", "only one is taken here"));
    }
    let (filters, activation) = (s.units("filters")?, own.activation);
    let area: usize = own.window.iter().product();
    let init = s.init("kernel_initializer", area * filters, area * 16);
    let added = if s.is_null("output_padding") { None } else { Some(s.amounts::<3>("output_padding")?) };
    let (geometry, extra) = turned_round(s, own.window, own.geometry, added)?;
    Ok(Made::weighted(kernel_and_bias(s, own.bias)?, move |cx, x| {
        let channels = x.shape().last().copied().unwrap_or(0);
        let [d, h, w] = own.window;
        let kernel = cx.param("kernel", [d, h, w, filters, channels], init)?;
        let bias = cx.optional(own.bias, "bias", [filters], own.bias_init)?;
        let y = x.conv_transpose3d(&kernel, bias.as_ref(), geometry, extra)?;
        cx.finish(&own.activation, &y)
    })
    .ends(&activation))
}
