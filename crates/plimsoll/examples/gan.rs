//! A generative adversarial network: two networks with opposite losses, both updated by one planned step.
//!
//! The generator learns to draw numbers like those of a normal distribution around 3. Run with
//! `cargo run --release -p plimsoll --example gan`.

use plimsoll::nn::Param;
use plimsoll::prelude::*;
use plimsoll::step::{Kind, StateTensor, Step, StepOptions, StepResult};
use plimsoll::tensor::Result;

const BATCH: usize = 64;
const NOISE: usize = 4;

fn generator() -> impl Model {
    model(|net, noise| {
        let y = net.dense("hidden", &noise[0], 16, true)?.tanh()?;
        net.dense("out", &y, 1, true)
    })
}

fn discriminator() -> impl Model {
    model(|net, x| {
        let y = net.dense("hidden", &x[0], 16, true)?.leaky_relu(0.2)?;
        net.dense("out", &y, 1, true)
    })
}

// ANCHOR: descend
/// New values of some weights, one step down the slope of a loss.
fn descend(tape: &Tape, loss: &Tensor, weights: &[Tensor], rate: f64) -> Result<Vec<Tensor>> {
    let slopes = tape.gradient(loss, &weights.iter().collect::<Vec<_>>())?;
    weights.iter().zip(&slopes).map(|(w, slope)| w.sub(&slope.mul_scalar(rate)?)).collect()
}
// ANCHOR_END: descend

fn drawn(params: &[Param], seed: u64) -> Result<Vec<StateTensor>> {
    let draw = |param: &Param| {
        let tensor = param.init.draw(&param.name, &param.ty, seed)?;
        Ok(StateTensor { name: param.name.clone(), kind: Kind::Parameter, tensor })
    };
    params.iter().map(draw).collect()
}

fn main() -> plimsoll::Result<()> {
    Device::best()?.scope(|| {
        let (noise, real) = (Type::new(DType::F32, [BATCH, NOISE]), Type::new(DType::F32, [BATCH, 1]));
        // ANCHOR: step
        // Which parameters each network asks for; nothing is computed for that.
        let maker = Net::discover(std::slice::from_ref(&noise), &generator())?;
        let judge = Net::discover(std::slice::from_ref(&real), &discriminator())?;
        let n = maker.len();
        let state = [drawn(&maker, 1)?, drawn(&judge, 2)?].concat();

        // What the whole process may take; on a card, what it may take there.
        let limit: Bytes = "1GiB".parse()?;
        let options = StepOptions::default().limit(Some(limit));
        let params = (maker.clone(), judge);
        let mut step = Step::compile_with(options, state, &[noise.clone(), real.clone()], move |pass| {
            let ((maker, judge), state, inputs) = (&params, pass.state, pass.inputs);
            let (making, judging) = state.split_at(n);
            let make = |weights: &[Tensor]| {
                generator().forward(&mut Net::bound(maker, weights, true), &inputs[..1])?.one()
            };
            let score = |weights: &[Tensor], x: &Tensor| {
                discriminator().forward(&mut Net::bound(judge, weights, true), std::slice::from_ref(x))?.one()
            };
            let ones = inputs[1].full_like(inputs[1].ty().clone(), 1.0)?;
            let zeros = inputs[1].full_like(inputs[1].ty().clone(), 0.0)?;

            // The discriminator learns to say 1 of real numbers and 0 of made ones …
            let made = make(making)?;
            let tape = Tape::new();
            judging.iter().try_for_each(|w| tape.watch(w))?;
            let right = binary_cross_entropy(&score(judging, &inputs[1])?, &ones)?;
            let caught = right.add(&binary_cross_entropy(&score(judging, &made)?, &zeros)?)?;
            let judging = descend(&tape, &caught, judging, 0.05)?;

            // … and the generator to make numbers of which the new discriminator says 1.
            let tape = Tape::new();
            making.iter().try_for_each(|w| tape.watch(w))?;
            let fooled = binary_cross_entropy(&score(&judging, &make(making)?)?, &ones)?;
            let making = descend(&tape, &fooled, making, 0.05)?;
            Ok(StepResult {
                state: [making, judging].concat(),
                outputs: vec![caught, fooled],
                totals: vec![],
            })
        })?;
        // ANCHOR_END: step
        println!("{} planned of {limit}", step.info().planned);

        let draw = |seed: i64, ty: &Type, mean: f64, std: f64| {
            Tensor::from_slice(&[7, seed, 0], [3])?.random_normal(ty.clone(), 0, mean, std)
        };
        for i in 0..1500 {
            step.run(&[&draw(2 * i, &noise, 0.0, 1.0)?, &draw(2 * i + 1, &real, 3.0, 0.5)?])?;
        }

        let mut net = Net::bound(&maker, &step.state()[..n], false);
        let made = generator().forward(&mut net, &[draw(-1, &noise, 0.0, 1.0)?])?.one()?;
        let mean = made.mean(&[], false)?.item()?;
        println!("real numbers lie around 3.0; those that the generator makes lie around {mean:.2}");
        assert!((mean - 3.0).abs() < 1.0, "{mean}");
        Ok(())
    })
}
