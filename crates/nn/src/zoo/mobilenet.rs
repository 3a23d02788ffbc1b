//! MobileNetV2: inverted residuals, narrow between blocks and wide inside. After Sandler and others (2018).

use plimsoll_graph::{PoolOps, TensorOps};
use plimsoll_run::{Result, Tensor};

use crate::{Activation, Conv2d, Net, Start};

/// Expansion, channels, blocks and first stride of each stage, for a stem of 32 channels.
const STAGES: [(usize, usize, usize, usize); 7] = [
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
];

/// MobileNetV2 whose stem has `width` channels (32 as published), the stages in proportion.
#[track_caller]
pub fn mobilenet(net: &mut Net, x: &Tensor, width: usize, classes: usize) -> Result<Tensor> {
    net.together(|net| {
        let scaled = |channels: usize| (channels * width).div_ceil(32).max(1);
        net.with_start(Start::He, |net| {
            let mut x = conv_norm(net, "stem", x, Conv2d::new(width, 3).stride(2).pad(1), true)?;
            for (stage, (expansion, channels, blocks, stride)) in STAGES.into_iter().enumerate() {
                for i in 0..blocks {
                    let stride = if i == 0 { stride } else { 1 };
                    x = net.scope(&format!("stage{}", stage + 1), |net| {
                        net.scope(&format!("block{}", i + 1), |net| {
                            block(net, &x, expansion, scaled(channels), stride)
                        })
                    })?;
                }
            }
            let x = conv_norm(net, "head", &x, Conv2d::new(scaled(1280).max(1280), 1), true)?;
            let x = net.dropout("dropout", &x.global_avg_pool2d()?, 0.2)?;
            net.dense("out", &x, classes, true)
        })
    })
}

fn block(net: &mut Net, x: &Tensor, expansion: usize, channels: usize, stride: usize) -> Result<Tensor> {
    let last = |x: &Tensor| x.shape().last().copied().unwrap_or(1);
    let mut y = x.clone();
    if expansion > 1 {
        y = conv_norm(net, "expand", &y, Conv2d::new(last(x) * expansion, 1), true)?;
    }
    let wide = last(&y);
    let each = Conv2d::new(wide, 3).stride(stride).pad(1).groups(wide);
    y = conv_norm(net, "depthwise", &y, each, true)?;
    y = conv_norm(net, "project", &y, Conv2d::new(channels, 1), false)?;
    if stride == 1 && last(x) == last(&y) { x.add(&y) } else { Ok(y) }
}

fn conv_norm(net: &mut Net, name: &str, x: &Tensor, conv: Conv2d, is_active: bool) -> Result<Tensor> {
    net.scope(name, |net| {
        let x = net.conv2d("conv", x, conv.no_bias())?;
        let x = net.batch_norm("norm", &x)?;
        if is_active { Activation::Relu6.apply(&x) } else { Ok(x) }
    })
}
