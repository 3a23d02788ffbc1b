//! Pairs of 3 × 3 convolutions with pooling between them.

use plimsoll_graph::{Padding, PoolOps, TensorOps};
use plimsoll_run::{Result, Tensor};

use crate::{Conv2d, Net};

/// For each width two convolutions with bias and relu, then 2 × 2 max pooling; a dense layer at the end.
#[track_caller]
pub fn cnn(net: &mut Net, x: &Tensor, widths: &[usize], classes: usize) -> Result<Tensor> {
    net.together(|net| blocks(net, x, widths, classes, false))
}

/// The same with batch norm between convolution and relu.
#[track_caller]
pub fn batch_norm_cnn(net: &mut Net, x: &Tensor, widths: &[usize], classes: usize) -> Result<Tensor> {
    net.together(|net| blocks(net, x, widths, classes, true))
}

fn blocks(net: &mut Net, x: &Tensor, widths: &[usize], classes: usize, norm: bool) -> Result<Tensor> {
    let mut x = x.clone();
    for (i, &channels) in widths.iter().enumerate() {
        for half in ["a", "b"] {
            let conv = Conv2d { bias: !norm, ..Conv2d::new(channels, 3).pad(1) };
            x = net.conv2d(&format!("conv{}{half}", i + 1), &x, conv)?;
            if norm {
                x = net.batch_norm(&format!("norm{}{half}", i + 1), &x)?;
            }
            x = x.relu()?;
        }
        x = x.max_pool2d([2, 2], [2, 2], Padding::Valid)?;
    }
    net.dense("out", &x.flatten(1)?, classes, true)
}
