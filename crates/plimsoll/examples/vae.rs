//! A variational autoencoder: a model with several outputs, random numbers inside, and a loss over all of its outputs.
//!
//! Run with `cargo run --release -p plimsoll --example vae`.

use plimsoll::nn::joint_loss;
use plimsoll::prelude::*;

const SIDE: usize = 8;
const CODE: usize = 2;

fn main() -> plimsoll::Result<()> {
    // Images of one bright row each, at a place that a number from 0 to 1 says; an autoencoder's label is its input.
    let images: Vec<f32> = (0..256)
        .flat_map(|i| {
            let row = (i * 31 % 256) as f32 / 256.0 * (SIDE - 1) as f32;
            (0..SIDE * SIDE).map(move |at| {
                (1.0 - (at / SIDE) as f32 + row)
                    .clamp(0.0, 1.0)
                    .min((1.0 + (at / SIDE) as f32 - row).clamp(0.0, 1.0))
            })
        })
        .collect();
    let pixels = SIDE * SIDE;
    let x = Column::memory("image", images.clone(), [pixels])?;
    let data = Dataset::columns([x, Column::memory("target", images, [pixels])?])?.shuffle(256, 3).batch(32);

    // ANCHOR: model
    let model = model(|net, x| {
        let seen = net.dense("see", &x[0], 32, true)?.relu()?;
        let mean = net.dense("mean", &seen, CODE, true)?;
        let log_variance = net.dense("spread", &seen, CODE, true)?;
        // While training, a code is drawn around the mean; otherwise it is the mean.
        let code = if net.is_training() {
            let (key, stream) = net.draw("noise")?;
            let noise = key.random_normal(mean.ty().clone(), stream, 0.0, 1.0)?;
            mean.add(&log_variance.mul_scalar(0.5)?.exp()?.mul(&noise)?)?
        } else {
            mean.clone()
        };
        let drawn = net.dense("draw", &code, 32, true)?.relu()?;
        Ok([net.dense("image", &drawn, SIDE * SIDE, true)?, mean, log_variance])
    });
    // ANCHOR_END: model

    // ANCHOR: loss
    let loss = joint_loss(|outputs, labels| {
        let [image, mean, log_variance] = outputs else {
            return binary_cross_entropy(&outputs[0], &labels[0]);
        };
        // How far the codes are from a standard normal distribution: ½ (e^s + m² - 1 - s).
        let distance = log_variance.exp()?.add(&mean.square()?)?.add_scalar(-1.0)?.sub(log_variance)?;
        binary_cross_entropy(image, &labels[0])?.add(&distance.mean(&[], false)?.mul_scalar(0.5 * 0.02)?)
    });
    // What the whole process may take; on a card, what it may take there.
    let mut trainer = Trainer::new(model, loss, Adam::new(1e-2)).memory_limit("1GiB")?;
    let history = trainer.fit(&data, Epochs(40))?;
    // ANCHOR_END: loss

    let (first, last) = (history[0].loss, history[39].loss);
    println!("loss {first:.3} after one epoch, {last:.3} after 40");
    assert!(last < 0.8 * first);
    // The code of an image says where its bright row is: codes differ from image to image.
    let mut codes: Vec<f64> = Vec::new();
    trainer.predict(&data, |batch| {
        codes.extend(batch.outputs[1].to_f64()?);
        Ok(())
    })?;
    let spread = codes.iter().fold(0f64, |most, code| most.max(code.abs()));
    println!("{} codes, the largest {spread:.2}", codes.len() / CODE);
    assert!(codes.len() == 256 * CODE && spread > 0.5);
    Ok(())
}
