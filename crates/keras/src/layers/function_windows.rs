//! Functions of `keras.ops` over windows: pooling and convolution.

use plimsoll_graph::{ConvGeometry, ConvOps, Padding, PoolOps, TensorOps};

use super::merge;
use super::operation::{of_one, promoted};
use crate::error::{Result, refuse};
use crate::layer::Made;
use crate::settings::Settings;

pub(super) fn pool(s: &Settings<'_>, is_max: bool) -> Result<Made> {
    s.channels_last()?;
    let size = s.integers("pool_size")?;
    let stride = if s.is_null("strides") { size.clone() } else { s.integers("strides")? };
    let is_same = s.padding::<1>()? == Padding::Same;
    Ok(of_one(move |x| {
        let at = |list: &[i64], i: usize| list.get(i).or(list.first()).map_or(1, |n| (*n).max(1) as usize);
        match x.shape().rank() {
            3 => {
                let pad = if is_same { Padding::Same } else { Padding::Valid };
                let (size, stride) = (at(&size, 0), at(&stride, 0));
                if is_max { x.max_pool1d(size, stride, pad) } else { x.avg_pool1d(size, stride, pad, false) }
            }
            4 => {
                let pad = if is_same { Padding::Same } else { Padding::Valid };
                let both = |list: &[i64]| [at(list, 0), at(list, 1)];
                let (size, stride) = (both(&size), both(&stride));
                if is_max { x.max_pool2d(size, stride, pad) } else { x.avg_pool2d(size, stride, pad, false) }
            }
            _ => Err(refuse(format!("pools {}, which is not supported", x.ty()))),
        }
    }))
}

/// Windows of pictures, each as one row of its pixels.
pub(super) fn patches(s: &Settings<'_>) -> Result<Made> {
    s.channels_last()?;
    let pair = |key: &str, otherwise: [usize; 2]| {
        if s.is_null(key) {
            return Ok(otherwise);
        }
        let sizes = s.integers(key)?;
        match sizes[..] {
            [n] if (1..=1 << 16).contains(&n) => Ok([n as usize; 2]),
            [h, w] if (1..=1 << 16).contains(&h) && (1..=1 << 16).contains(&w) => {
                Ok([h as usize, w as usize])
            }
            _ => Err(s.wrong(key, "one or two sizes are taken")),
        }
    };
    let size = pair("size", [0; 2])?;
    let (stride, dilation) = (pair("strides", size)?, pair("dilation_rate", [1; 2])?);
    let is_same = s.padding::<1>()? == Padding::Same;
    Ok(Made::with(Vec::new(), move |_, args| {
        let x = args.tensor(0, "images")?.ok_or_else(|| refuse("takes patches of nothing"))?;
        let [batch, height, width, channels] = x.shape()[..] else {
            return Err(refuse(format!("takes patches of {}, and pictures [B, H, W, C] are taken", x.ty())));
        };
        let (mut counts, mut sides) = ([0; 2], [(0, 0); 4]);
        for (i, n) in [height, width].into_iter().enumerate() {
            let reach = (size[i] - 1) * dilation[i] + 1;
            if is_same {
                counts[i] = n.div_ceil(stride[i]);
                let more = ((counts[i] - 1) * stride[i] + reach).saturating_sub(n);
                sides[i + 1] = (more / 2, more - more / 2);
            } else if n >= reach {
                counts[i] = (n - reach) / stride[i] + 1;
            } else {
                return Err(refuse(format!("takes patches of {size:?} from {}, which is smaller", x.ty())));
            }
        }
        let row = size[0] * size[1] * channels;
        let x = if sides == [(0, 0); 4] { x.clone() } else { x.pad(&sides, 0.0)? };
        if stride == size && dilation == [1; 2] {
            // Beside each other, they are the same numbers in another order.
            let [h, w] = counts;
            let whole = x.slice(&[(1, 0, h * size[0], 1), (2, 0, w * size[1], 1)])?;
            let parts = whole.reshape([batch, h, size[0], w, size[1], channels])?;
            return Ok(vec![parts.transpose(&[0, 1, 3, 2, 4, 5])?.reshape([batch, h, w, row])?]);
        }
        let mut parts = Vec::with_capacity(size[0] * size[1]);
        for (i, j) in (0..size[0]).flat_map(|i| (0..size[1]).map(move |j| (i, j))) {
            let range = |axis: usize, at: usize| {
                let from = at * dilation[axis];
                (axis + 1, from, from + (counts[axis] - 1) * stride[axis] + 1, stride[axis])
            };
            parts.push(x.slice(&[range(0, i), range(1, j)])?);
        }
        Ok(vec![merge::concat(&parts.iter().collect::<Vec<_>>(), 3)?])
    })
    .kwargs(&["images"]))
}

pub(super) fn conv(s: &Settings<'_>) -> Result<Made> {
    s.channels_last()?;
    let (stride, dilation) = (s.integers("strides")?, s.integers("dilation_rate")?);
    let is_same = s.padding::<1>()? == Padding::Same;
    Ok(Made::with(Vec::new(), move |_, args| {
        let all = promoted(&args.all())?;
        let [x, w] = &all[..] else { return Err(refuse("convolves not two tensors")) };
        let at = |list: &[i64], i: usize| list.get(i).or(list.first()).map_or(1, |n| (*n).max(1) as usize);
        let channels = x.shape().last().copied().unwrap_or(0);
        let own = w.shape().get(w.shape().rank().saturating_sub(2)).copied().unwrap_or(0).max(1);
        let y = match x.shape().rank() {
            3 => {
                let pad = if is_same { Padding::Same } else { Padding::Valid };
                let [stride, dilation] = [[at(&stride, 0)], [at(&dilation, 0)]];
                x.conv1d(w, None, ConvGeometry { stride, pad, dilation, groups: channels / own })?
            }
            4 => {
                let pad = if is_same { Padding::Same } else { Padding::Valid };
                let both = |list: &[i64]| [at(list, 0), at(list, 1)];
                let (stride, dilation) = (both(&stride), both(&dilation));
                x.conv2d(w, None, ConvGeometry { stride, pad, dilation, groups: channels / own })?
            }
            _ => return Err(refuse(format!("convolves {}, which is not supported", x.ty()))),
        };
        Ok(vec![y])
    })
    .kwargs(&["inputs", "kernel"]))
}
