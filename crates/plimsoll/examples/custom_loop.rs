//! One training loop written three times: eagerly with a `Tape`, traced with `function`, and as a planned `Step` inside a memory
//! limit. All three end with the same bits.
//!
//! Run with `cargo run --release -p plimsoll --example custom_loop`.

use plimsoll::prelude::*;
use plimsoll::step::{Kind, StateTensor, Step, StepOptions, StepResult};
use plimsoll::tensor::Result;

// ANCHOR: step
/// One step of gradient descent on a network of two layers: new weights, and the loss at last.
fn step(weights: &[Tensor], x: &Tensor, y: &Tensor) -> Result<(Vec<Tensor>, Tensor)> {
    let tape = Tape::new();
    weights.iter().try_for_each(|w| tape.watch(w))?;
    let hidden = x.matmul(&weights[0])?.tanh()?;
    let loss = mse(&hidden.matmul(&weights[1])?, y)?;
    let slopes = tape.gradient(&loss, &weights.iter().collect::<Vec<_>>())?;
    let new = weights.iter().zip(&slopes).map(|(w, slope)| w.sub(&slope.mul_scalar(0.1)?));
    Ok((new.collect::<Result<_>>()?, loss))
}
// ANCHOR_END: step

fn main() -> plimsoll::Result<()> {
    Device::cpu()?.scope(|| {
        let points: Vec<f32> = (0..64).map(|i| i as f32 / 32.0 - 1.0).collect();
        let targets: Vec<f32> = points.iter().map(|x| x * x - 0.5).collect();
        // A second column of ones is the bias.
        let x: Vec<f32> = points.iter().flat_map(|&x| [x, 1.0]).collect();
        let (x, y) = (Tensor::from_slice(&x, [64, 2])?, Tensor::from_slice(&targets, [64, 1])?);
        let start = |rows: usize, columns: usize| {
            let values: Vec<f32> = (0..rows * columns).map(|i| ((i * 29) % 17) as f32 / 8.5 - 1.0).collect();
            Tensor::from_slice(&values, [rows, columns])
        };
        let start = || -> Result<Vec<Tensor>> { Ok(vec![start(2, 16)?, start(16, 1)?]) };

        // ANCHOR: eager
        let mut weights = start()?;
        let mut losses = Vec::new();
        for _ in 0..200 {
            let (new, loss) = step(&weights, &x, &y)?; // every op runs at once
            losses.push(loss.item()?);
            weights = new;
        }
        // ANCHOR_END: eager
        println!("eager: loss {:.4} at first, {:.4} in the end", losses[0], losses[199]);
        assert!(losses[199] < losses[0] / 2.0);

        // ANCHOR: traced
        let traced = function(|args| step(&args[..2], &args[2], &args[3]).map(|(new, _)| new));
        let mut by_function = start()?;
        for _ in 0..200 {
            // Traced the first time, then run as one compiled program.
            by_function = traced.call(&[&by_function[0], &by_function[1], &x, &y])?;
        }
        // ANCHOR_END: traced

        // ANCHOR: planned
        let parameter = |(i, tensor)| StateTensor { name: format!("w{i}"), kind: Kind::Parameter, tensor };
        let state = start()?.into_iter().enumerate().map(parameter).collect();
        let options = StepOptions::default().limit(Some(Bytes::mib(200)));
        let mut planned = Step::compile_with(options, state, &[x.ty().clone(), y.ty().clone()], |args| {
            let (state, loss) = step(args.state, &args.inputs[0], &args.inputs[1])?;
            Ok(StepResult { state, outputs: vec![loss], totals: vec![] })
        })?;
        for _ in 0..200 {
            planned.run(&[&x, &y])?; // inside the limit; nothing is allocated
        }
        // ANCHOR_END: planned

        for i in 0..2 {
            assert_eq!(weights[i].to_bytes()?, by_function[i].to_bytes()?);
            assert_eq!(weights[i].to_bytes()?, planned.state()[i].to_bytes()?);
        }
        println!("traced and planned: the same weights, bit for bit; {} planned", planned.info().planned);
        Ok(())
    })
}
