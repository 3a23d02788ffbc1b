//! ResNet-18 for small images: a 3 × 3 stem without pooling.

use plimsoll_graph::{PoolOps, TensorOps};
use plimsoll_run::{Result, Tensor};

use crate::{Conv2d, Net};

/// Stem of 64 channels, four stages of two residual blocks (64, 128, 256, 512), global average, dense layer.
pub fn resnet18(net: &mut Net, x: &Tensor, classes: usize) -> Result<Tensor> {
    let mut x = conv_norm(net, "stem", x, 64, 3, 1)?.relu()?;
    for (i, (channels, stride)) in [(64, 1), (128, 2), (256, 2), (512, 2)].into_iter().enumerate() {
        x = net.scope(&format!("stage{}", i + 1), |net| {
            let x = net.scope("block1", |net| block(net, &x, channels, stride))?;
            net.scope("block2", |net| block(net, &x, channels, 1))
        })?;
    }
    net.dense("out", &x.global_avg_pool2d()?, classes, true)
}

fn block(net: &mut Net, x: &Tensor, channels: usize, stride: usize) -> Result<Tensor> {
    let y = conv_norm(net, "1", x, channels, 3, stride)?.relu()?;
    let y = conv_norm(net, "2", &y, channels, 3, 1)?;
    let same = stride == 1 && x.shape().last() == Some(&channels);
    let skip = if same { x.clone() } else { conv_norm(net, "skip", x, channels, 1, stride)? };
    y.add(&skip)?.relu()
}

fn conv_norm(
    net: &mut Net,
    name: &str,
    x: &Tensor,
    channels: usize,
    window: usize,
    stride: usize,
) -> Result<Tensor> {
    let conv = Conv2d::new(channels, window).stride(stride).pad(window / 2).no_bias();
    let x = net.conv2d(&format!("conv{name}"), x, conv)?;
    net.batch_norm(&format!("norm{name}"), &x)
}
