//! U-Net: down by pooling, up by transposed convolution, with skips between equal sizes.

use plimsoll_graph::{Padding, PoolOps, TensorOps};
use plimsoll_run::{Result, Tensor};

use crate::{Conv2d, Layers, Net};

/// A U-Net of widths base, 2 base, … over `depth` sizes; gives logits for each pixel.
pub fn unet(net: &mut Net, x: &Tensor, base: usize, depth: usize, classes: usize) -> Result<Tensor> {
    let width = |level: usize| base << level;
    let mut x = x.clone();
    let mut skips = Vec::new();
    for level in 0..depth {
        if level > 0 {
            x = x.max_pool2d([2, 2], [2, 2], Padding::Valid)?;
        }
        x = net.scope(&format!("down{level}"), |net| pair(net, &x, width(level)))?;
        skips.push(x.clone());
    }
    for level in (0..depth.saturating_sub(1)).rev() {
        x = net.scope(&format!("up{level}"), |net| {
            let up = net.conv_up2d("grow", &x, width(level), 2)?;
            pair(net, &Tensor::concat(&[&up, &skips[level]], -1)?, width(level))
        })?;
    }
    net.conv2d("out", &x, Conv2d { channels: classes, window: 1, stride: 1, pad: 0, bias: true })
}

fn pair(net: &mut Net, x: &Tensor, channels: usize) -> Result<Tensor> {
    let mut x = x.clone();
    for half in ["a", "b"] {
        let conv = Conv2d { channels, window: 3, stride: 1, pad: 1, bias: false };
        x = net.conv2d(&format!("conv{half}"), &x, conv)?;
        x = net.batch_norm(&format!("norm{half}"), &x)?.relu()?;
    }
    Ok(x)
}
