//! U-Net: down by pooling, up by transposed convolution, with skips between equal sizes.

use plimsoll_graph::{Padding, PoolOps, TensorOps};
use plimsoll_run::{Result, Tensor};

use crate::{Conv2d, Net};

/// A U-Net of widths base, 2 base, … over `depth` sizes; gives logits for each pixel.
#[track_caller]
pub fn unet(net: &mut Net, x: &Tensor, base: usize, depth: usize, classes: usize) -> Result<Tensor> {
    net.together(|net| {
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
                let up = net.conv_transpose2d("grow", &x, Conv2d::new(width(level), 2).stride(2))?;
                pair(net, &Tensor::concat(&[&up, &skips[level]], -1)?, width(level))
            })?;
        }
        net.conv2d("out", &x, Conv2d::new(classes, 1))
    })
}

fn pair(net: &mut Net, x: &Tensor, channels: usize) -> Result<Tensor> {
    let mut x = x.clone();
    for half in ["a", "b"] {
        x = net.conv2d(&format!("conv{half}"), &x, Conv2d::new(channels, 3).pad(1).no_bias())?;
        x = net.batch_norm(&format!("norm{half}"), &x)?.relu()?;
    }
    Ok(x)
}
