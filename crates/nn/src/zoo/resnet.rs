//! Residual networks: ResNet-18 for small images (a 3 × 3 stem without pooling), ResNet-50 as published.

use plimsoll_graph::{Padding, PoolOps, TensorOps};
use plimsoll_run::{Result, Tensor};

use crate::{Conv2d, Net, Start};

/// Stem of `width` channels, four stages of two residual blocks (width, 2 width, …), global average, dense layer.
#[track_caller]
pub fn resnet18(net: &mut Net, x: &Tensor, width: usize, classes: usize) -> Result<Tensor> {
    net.together(|net| {
        let mut x = conv_norm(net, "stem", x, width, 3, 1)?.relu()?;
        for stage in 0..4 {
            let (channels, stride) = (width << stage, if stage == 0 { 1 } else { 2 });
            x = net.scope(&format!("stage{}", stage + 1), |net| {
                let x = net.scope("block1", |net| block(net, &x, channels, stride))?;
                net.scope("block2", |net| block(net, &x, channels, 1))
            })?;
        }
        net.dense("out", &x.global_avg_pool2d()?, classes, true)
    })
}

/// A 7 × 7 stem of `width` channels with pooling, four stages of 3, 4, 6 and 3 bottlenecks, global average, dense
/// layer.
#[track_caller]
pub fn resnet50(net: &mut Net, x: &Tensor, width: usize, classes: usize) -> Result<Tensor> {
    net.together(|net| {
        net.with_start(Start::He, |net| {
            let x = conv_norm(net, "stem", x, width, 7, 2)?.relu()?;
            let mut x = x.max_pool2d([3, 3], [2, 2], Padding::all(1))?;
            for (stage, blocks) in [3, 4, 6, 3].into_iter().enumerate() {
                x = net.scope(&format!("stage{}", stage + 1), |net| {
                    (0..blocks).try_fold(x.clone(), |x, i| {
                        let stride = if stage > 0 && i == 0 { 2 } else { 1 };
                        net.scope(&format!("block{}", i + 1), |net| {
                            bottleneck(net, &x, width << stage, stride)
                        })
                    })
                })?;
            }
            net.dense("out", &x.global_avg_pool2d()?, classes, true)
        })
    })
}

fn block(net: &mut Net, x: &Tensor, channels: usize, stride: usize) -> Result<Tensor> {
    let y = conv_norm(net, "1", x, channels, 3, stride)?.relu()?;
    let y = conv_norm(net, "2", &y, channels, 3, 1)?;
    join(net, x, &y, channels, stride)
}

/// The stride is in the 3 × 3 convolution.
fn bottleneck(net: &mut Net, x: &Tensor, channels: usize, stride: usize) -> Result<Tensor> {
    let y = conv_norm(net, "1", x, channels, 1, 1)?.relu()?;
    let y = conv_norm(net, "2", &y, channels, 3, stride)?.relu()?;
    let y = conv_norm(net, "3", &y, 4 * channels, 1, 1)?;
    join(net, x, &y, 4 * channels, stride)
}

/// The branch added to its skip, which is projected where sizes differ.
fn join(net: &mut Net, x: &Tensor, y: &Tensor, channels: usize, stride: usize) -> Result<Tensor> {
    let same = stride == 1 && x.shape().last() == y.shape().last();
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
