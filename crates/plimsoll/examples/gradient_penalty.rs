//! A critic with a gradient penalty (WGAN-GP): a loss that holds a gradient, so that its own gradient is one of second order.
//!
//! The critic learns how far a made distribution is from a real one. Run with
//! `cargo run --release -p plimsoll --example gradient_penalty`; `PLIMSOLL_DEVICE=cuda` runs it on a card.

use plimsoll::nn::Param;
use plimsoll::prelude::*;
use plimsoll::step::{Kind, StateTensor, Step, StepOptions, StepResult};
use plimsoll::tensor::Result;

const BATCH: usize = 128;

fn critic() -> impl Model {
    model(|net, x| {
        let y = net.dense("in", &x[0], 32, true)?.tanh()?;
        let y = net.dense("hidden", &y, 32, true)?.tanh()?;
        net.dense("out", &y, 1, true)
    })
}

fn score(params: &[Param], weights: &[Tensor], x: &Tensor) -> Result<Tensor> {
    critic().forward(&mut Net::bound(params, weights, true), std::slice::from_ref(x))?.one()
}

// ANCHOR: penalty
/// The mean of (|slope of the critic at x| - 1)², over points between real and made ones.
fn penalty(
    params: &[Param],
    weights: &[Tensor],
    real: &Tensor,
    made: &Tensor,
    mix: &Tensor,
) -> Result<Tensor> {
    let between = made.add(&real.sub(made)?.mul(mix)?)?;
    let tape = Tape::new();
    tape.watch(&between)?;
    let slope = tape.gradient(&score(params, weights, &between)?, &[&between])?.remove(0);
    slope.square()?.sum(&[1], false)?.add_scalar(1e-12)?.sqrt()?.add_scalar(-1.0)?.square()?.mean(&[], false)
}
// ANCHOR_END: penalty

fn main() -> plimsoll::Result<()> {
    Device::best()?.scope(|| {
        let point = Type::new(DType::F32, [BATCH, 2]);
        let mix = Type::new(DType::F32, [BATCH, 1]);
        let params = Net::discover(std::slice::from_ref(&point), &critic())?;
        let weights = params.iter().map(|param| param.init.draw(&param.name, &param.ty, 1));
        let weights = weights.collect::<Result<Vec<Tensor>>>()?;
        let held = |(param, tensor): (&Param, Tensor)| StateTensor {
            name: param.name.clone(),
            kind: Kind::Parameter,
            tensor,
        };
        let state: Vec<StateTensor> = params.iter().zip(weights).map(held).collect();

        let inside = params.clone();
        // What the whole process may take; on a card, what it may take there.
        let limit: Bytes = "1GiB".parse()?;
        let options = StepOptions { batched: true, ..StepOptions::default() }.limit(Some(limit));
        let inputs = [point.clone(), point.clone(), mix.clone()];
        let mut step = Step::compile_with(options, state, &inputs, move |pass| {
            let (weights, [real, made, mix]) = (pass.state, [0, 1, 2].map(|i| &pass.inputs[i]));
            let tape = Tape::new();
            weights.iter().try_for_each(|w| tape.watch(w))?;
            let far = score(&inside, weights, made)?.mean(&[], false)?;
            let distance = score(&inside, weights, real)?.mean(&[], false)?.sub(&far)?;
            let penalty = penalty(&inside, weights, real, made, mix)?;
            let loss = penalty.mul_scalar(10.0)?.sub(&distance)?;
            let slopes = tape.gradient(&loss, &weights.iter().collect::<Vec<_>>())?;
            let new = weights.iter().zip(&slopes).map(|(w, slope)| w.sub(&slope.mul_scalar(0.02)?));
            Ok(StepResult {
                state: new.collect::<Result<_>>()?,
                outputs: vec![distance, penalty],
                totals: vec![],
            })
        })?;
        let info = step.info();
        println!("{} planned of {limit}; the least is {}", info.planned, info.floor);

        // Real points lie around (2, 0), made ones around (0, 0): they are 2 apart.
        let key = |seed: i64| Tensor::from_slice(&[7, seed, 0], [3]);
        let right = Tensor::from_slice(&[2.0f32, 0.0], [1, 2])?;
        let (mut distance, mut penalty) = (0.0, 0.0);
        for i in 0..600 {
            let real = key(3 * i)?.random_normal(point.clone(), 0, 0.0, 0.1)?.add(&right)?;
            let made = key(3 * i + 1)?.random_normal(point.clone(), 0, 0.0, 0.1)?;
            let mix = key(3 * i + 2)?.random_uniform(mix.clone(), 0, 0.0, 1.0)?;
            let outputs = step.run(&[&real, &made, &mix])?;
            (distance, penalty) = (outputs[0].item()?, outputs[1].item()?);
        }
        println!("the critic puts them {distance:.2} apart (they are 2), with a penalty of {penalty:.3}");
        assert!((distance - 2.0).abs() < 0.4 && penalty < 0.1, "{distance} {penalty}");
        Ok(())
    })
}
