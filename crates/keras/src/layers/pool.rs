//! Pooling: over windows, and over everything.

use plimsoll_graph::{DType, Padding, PoolOps, TensorOps, VolumeOps};
use plimsoll_run::{Result as RunResult, Tensor};

use super::{Table, by_axes, merge};
use crate::error::{Result, refuse};
use crate::layer::{Made, Masks};
use crate::settings::Settings;

pub(crate) const BY_AXES: Table = by_axes![
    "MaxPooling" => windows(true),
    "AveragePooling" => windows(false),
    "AdaptiveMaxPooling" => adaptive(true),
    "AdaptiveAveragePooling" => adaptive(false),
];

pub(crate) const TABLE: Table = &[
    ("GlobalMaxPooling1D", |s| whole(s, 3, true)),
    ("GlobalMaxPooling2D", |s| whole(s, 4, true)),
    ("GlobalMaxPooling3D", |s| whole(s, 5, true)),
    ("GlobalAveragePooling1D", average_of_steps),
    ("GlobalAveragePooling2D", |s| whole(s, 4, false)),
    ("GlobalAveragePooling3D", |s| whole(s, 5, false)),
];

fn windows<const AXES: usize>(s: &Settings<'_>, is_max: bool) -> Result<Made> {
    s.channels_last()?;
    let size: [usize; AXES] = s.extents("pool_size", 2)?;
    let stride: [usize; AXES] = if s.is_null("strides") { size } else { s.extents("strides", 1)? };
    let pad: Padding<AXES> = s.padding()?;
    // Means are over what lies inside, as TensorFlow has it.
    Ok(Made::plain(move |x| match (&size[..], &stride[..]) {
        (&[size], &[stride]) => {
            let pad = if pad == Padding::Same { Padding::Same } else { Padding::Valid };
            if is_max { x.max_pool1d(size, stride, pad) } else { x.avg_pool1d(size, stride, pad, false) }
        }
        (&[h, w], &[down, right]) => {
            let pad = if pad == Padding::Same { Padding::Same } else { Padding::Valid };
            let (size, stride) = ([h, w], [down, right]);
            if is_max { x.max_pool2d(size, stride, pad) } else { x.avg_pool2d(size, stride, pad, false) }
        }
        (&[d, h, w], &[deep, down, right]) => {
            let pad = if pad == Padding::Same { Padding::Same } else { Padding::Valid };
            let (size, stride) = ([d, h, w], [deep, down, right]);
            if is_max { x.max_pool3d(size, stride, pad) } else { x.avg_pool3d(size, stride, pad, false) }
        }
        _ => Err(refuse("pools over an unknown number of axes")),
    }))
}

/// Windows that are as large as they must be for a result of a given size, along one axis after the other.
fn adaptive<const AXES: usize>(s: &Settings<'_>, is_max: bool) -> Result<Made> {
    s.channels_last()?;
    let size: [usize; AXES] = s.extents("output_size", 1)?;
    Ok(Made::plain(move |x| {
        if x.shape().rank() != AXES + 2 {
            return Err(refuse(format!("gives {} to a pooling over {AXES} axes", x.ty())));
        }
        let mut x = x.clone();
        for (i, &out) in size.iter().enumerate() {
            let (axis, n) = (i + 1, x.shape()[i + 1]);
            let window = |k: usize| {
                let part = x.narrow(axis, k * n / out, ((k + 1) * n).div_ceil(out))?;
                if is_max { part.max(&[axis], true) } else { part.mean(&[axis], true) }
            };
            let parts = (0..out).map(window).collect::<RunResult<Vec<_>>>()?;
            x = merge::concat(&parts.iter().collect::<Vec<_>>(), axis as isize)?;
        }
        Ok(x)
    }))
}

fn whole(s: &Settings<'_>, rank: usize, is_max: bool) -> Result<Made> {
    s.channels_last()?;
    let keep = s.flag("keepdims", false)?;
    Ok(Made::plain(move |x| {
        if x.shape().rank() != rank {
            return Err(refuse(format!("gives {} to a pooling of {rank} axes", x.ty())));
        }
        let axes: Vec<usize> = (1..rank - 1).collect();
        if is_max { x.max(&axes, keep) } else { x.mean(&axes, keep) }
    }))
}

/// The mean over the steps of a sequence; with a mask over those that it shows.
fn average_of_steps(s: &Settings<'_>) -> Result<Made> {
    s.channels_last()?;
    let keep = s.flag("keepdims", false)?;
    Ok(Made::with(Vec::new(), move |_, args| {
        let x = args.one()?;
        if x.shape().rank() != 3 {
            return Err(refuse(format!("gives {} to a pooling of sequences [B, T, C]", x.ty())));
        }
        let Some(mask) = args.mask() else { return Ok(vec![x.mean(&[1], keep)?]) };
        let [n, steps, _] = x.shape()[..] else { return Err(refuse("pools no sequence")) };
        let shown: Tensor = mask.cast(DType::F32)?.cast(x.dtype())?.reshape([n, steps, 1])?;
        let sum = x.mul(&shown)?.sum(&[1], keep)?;
        Ok(vec![sum.div(&shown.sum(&[1], keep)?)?])
    })
    .masks(Masks::Read))
}
