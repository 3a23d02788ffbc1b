//! A layer of your own, and a loss of your own: plain functions over a `Net` and over tensors.
//!
//! Run with `cargo run --release -p plimsoll --example custom_layer`.

// ANCHOR: imports
use plimsoll::nn::Init;
use plimsoll::prelude::*;
use plimsoll::tensor::Result;
// ANCHOR_END: imports

// ANCHOR: layer
/// A dense layer with a gate: `tanh(x · w) · sigmoid(x · g + b)`.
fn gated(net: &mut Net, name: &str, x: &Tensor, units: usize) -> Result<Tensor> {
    let inputs = x.shape()[1];
    net.scope(name, |net| {
        // Parameters are asked for by name; here they are `NAME/weight`, `NAME/gate` and `NAME/bias`.
        let weight = net.param("weight", [inputs, units], Init::fan_in(inputs))?;
        let gate = net.param("gate", [inputs, units], Init::fan_in(inputs))?;
        let bias = net.param("bias", [units], Init::Constant(1.0))?;
        let open = x.matmul(&gate)?.add(&bias)?.sigmoid()?;
        x.matmul(&weight)?.tanh()?.mul(&open)
    })
}
// ANCHOR_END: layer

// ANCHOR: loss
/// The mean of the squared error, where errors to the one side count three times.
fn lopsided(outputs: &Tensor, targets: &Tensor) -> Result<Tensor> {
    let error = outputs.reshape(targets.shape().clone())?.sub(targets)?;
    // A loss must be a mean over samples: then a batch that is run in pieces has the same gradient.
    error.maximum(&error.mul_scalar(-3.0)?)?.square()?.mean(&[], false)
}
// ANCHOR_END: loss

fn main() -> plimsoll::Result<()> {
    // y = sin(3 a) · b
    let x: Vec<f32> = (0..1024).map(|i| ((i * 7919) % 2003) as f32 / 1001.5 - 1.0).collect();
    let y: Vec<f32> = x.chunks(2).map(|p| (3.0 * p[0]).sin() * p[1]).collect();
    let data = Dataset::columns([Column::memory("x", x, [2])?, Column::memory("y", y, [])?])?
        .shuffle(512, 1)
        .batch(64);

    // ANCHOR: model
    let model = model(|net, x| {
        let y = gated(net, "first", &x[0], 32)?;
        let y = gated(net, "second", &y, 32)?;
        net.dense("out", &y, 1, true)
    });
    let mut trainer = Trainer::new(model, lopsided, Adam::new(1e-2));
    let history = trainer.fit(&data, Epochs(60))?;
    // ANCHOR_END: model

    let (first, last) = (history[0].loss, history[59].loss);
    println!("loss {first:.4} after one epoch, {last:.4} after 60");
    assert!(last < first / 4.0);
    let names: Vec<&str> = trainer.parameters().map(|(param, _)| param.name.as_str()).collect();
    println!("parameters: {}", names.join(", "));
    assert!(names.contains(&"second/gate"));
    Ok(())
}
