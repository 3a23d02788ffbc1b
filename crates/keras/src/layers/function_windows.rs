//! Functions of `keras.ops` over windows: pooling and convolution.

use plimsoll_graph::{ConvGeometry, ConvOps, Padding, PoolOps, TensorOps};

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
