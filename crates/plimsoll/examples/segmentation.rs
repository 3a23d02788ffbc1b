//! Segmentation: a small U-Net that says of every pixel what it belongs to. Skips are plain variables.
//!
//! Run with `cargo run --release -p plimsoll --example segmentation`.

use plimsoll::data::Shapes;
use plimsoll::nn::Conv2d;
use plimsoll::prelude::*;
use plimsoll::tensor::{Padding, ResizeMode, Result};

// ANCHOR: model
fn block(net: &mut Net, name: &str, x: &Tensor, channels: usize) -> Result<Tensor> {
    let y = net.conv2d(name, x, Conv2d::new(channels, 3).same())?;
    net.group_norm(&format!("{name}-norm"), &y, 4)?.relu()
}

fn unet(net: &mut Net, x: &[Tensor]) -> Result<Tensor> {
    let wide = block(net, "down0", &x[0], 8)?;
    let deep = block(net, "down1", &wide.max_pool2d([2, 2], [2, 2], Padding::Valid)?, 16)?;
    let up = deep.upsample2d(2, ResizeMode::Nearest)?;
    let joined = Tensor::concat(&[&up, &wide], -1)?; // the skip
    let y = block(net, "up0", &joined, 8)?;
    net.conv2d("classes", &y, Conv2d::new(Shapes::CLASSES, 1))
}
// ANCHOR_END: model

fn main() -> plimsoll::Result<()> {
    // Circles, rectangles and triangles on noise, made as they are asked for.
    let shapes = Shapes { count: 96, height: 24, width: 24, channels: 1, most: 2, seed: 1 };
    let (train, test) = Dataset::shapes(shapes).hold_back(0.25)?;
    let mut trainer = Trainer::new(unet, softmax_cross_entropy, Adam::new(1e-2))
        .metrics([Metric::Accuracy])
        .validation(test.batch(8));
    let history = trainer.fit(train.shuffle(96, 1).batch(8), Epochs(5))?;

    let held_back = |i: usize, name: &str| history[i].metric(name).unwrap_or(f64::NAN);
    let (first, last) = (held_back(0, "val_loss"), held_back(4, "val_loss"));
    let right = held_back(4, "val_accuracy");
    println!("loss on held-back images {first:.3} after one epoch, {last:.3} after 5");
    println!("{:.0} % of their pixels are right", 100.0 * right);
    assert!(last < first && right > 0.7);
    Ok(())
}
