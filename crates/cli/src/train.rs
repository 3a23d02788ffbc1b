//! `plimsoll train`: the built-in demo.

use std::time::Instant;

use plimsoll::Result;
use plimsoll::device::process;
use plimsoll::prelude::*;

use crate::digits::{self, Digits};
use crate::machine;

/// Arguments of `plimsoll train`.
#[derive(clap::Args)]
pub struct Args {
    /// Passes over the training data.
    #[arg(long, default_value_t = 10)]
    epochs: usize,
    /// Samples a step.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1500))]
    batch: u32,
    /// The learning rate of Adam.
    #[arg(long, default_value_t = 2e-3)]
    lr: f64,
    /// Threads; by default as many as this process may use.
    #[arg(long)]
    threads: Option<usize>,
    /// The line: the most that the process may take (`20MiB`, or plain bytes).
    #[arg(long)]
    memory: Option<Bytes>,
    /// Where all randomness starts.
    #[arg(long, default_value_t = 42)]
    seed: u64,
    /// One JSON line an epoch instead of text.
    #[arg(long)]
    json: bool,
}

const CLASSES: usize = 10;

fn model(net: &mut Net, x: &[Tensor]) -> Result<Tensor> {
    zoo::batch_norm_cnn(net, &x[0], &[16, 32], CLASSES)
}

/// Trains and prints loss, accuracy and memory.
pub fn run(args: &Args) -> Result<()> {
    let threads = args.threads.unwrap_or_else(process::allowed_cpus);
    machine::cpu(threads)?.scope(|| train(args))
}

fn train(args: &Args) -> Result<()> {
    let (train, test) = (digits::train(), digits::test());
    let batch = args.batch as usize;
    let images = Type::new(DType::F32, [batch, 8, 8, 1]);
    let labels = Type::new(DType::I64, [batch]);
    let mut recipe = Recipe::cross_entropy(Adam::new(args.lr), images, labels);
    recipe.memory = args.memory;
    let mut training = Training::new(model, recipe, args.seed)?;
    let params = training.params().to_vec();
    let predict = function(|arguments| {
        let (x, values) = (&arguments[..1], &arguments[1..]);
        let mut net = Net::bound(&params, values, false);
        Ok(vec![model(&mut net, x)?.argmax(-1)?])
    });
    let plan = *training.info();
    if !args.json {
        println!(
            "digits: {} to train, {} to test; {} parameters; state {}, activations and scratch {}",
            train.labels.len(),
            test.labels.len(),
            training.n_trained(),
            training.state_bytes(),
            training.arena_bytes()
        );
        let line = args.memory.map_or("none".into(), |line| line.to_string());
        println!(
            "line {line}; planned {:#} for the whole process, {} ops run twice; the least is {:#}",
            plan.planned, plan.recomputed_ops, plan.floor
        );
    }
    let mut order: Vec<usize> = (0..train.labels.len()).collect();
    for epoch in 1..=args.epochs {
        shuffle(&mut order, args.seed.wrapping_add(epoch as u64));
        let start = Instant::now();
        let (mut sum, mut steps) = (0.0, 0);
        for chosen in order.chunks_exact(batch) {
            let (x, y) = gather(&train, chosen)?;
            sum += training.step(&[&x], &y)?;
            steps += 1;
        }
        let seconds = start.elapsed().as_secs_f64();
        let (loss, speed) = (sum / f64::from(steps.max(1)), f64::from(steps) * batch as f64 / seconds);
        let accuracy = accuracy(&test, batch, |x| {
            let arguments: Vec<&Tensor> = std::iter::once(x).chain(training.values()).collect();
            Ok(predict.call(&arguments)?.remove(0))
        })?;
        let memory = Device::current()?.memory_info();
        let resident = process::peak_resident().unwrap_or(Bytes(0));
        if args.json {
            let line = serde_json::json!({
                "epoch": epoch, "loss": loss, "test_accuracy": accuracy, "samples_s": speed,
                "tensor_bytes": memory.current.get(), "tensor_peak_bytes": memory.peak.get(),
                "resident_peak_bytes": resident.get(), "planned_bytes": plan.planned.get(),
                "floor_bytes": plan.floor.get(), "recomputed_ops": plan.recomputed_ops,
            });
            println!("{line}");
        } else {
            println!(
                "epoch {epoch:3}  loss {loss:.4}  test accuracy {:5.1}%  {speed:6.0} samples/s  tensors {} (peak {})  process peak {}",
                100.0 * accuracy,
                memory.current,
                memory.peak,
                resident
            );
        }
    }
    Ok(())
}

/// The share of digits that are predicted right, a batch at a time: no more memory than a step has.
fn accuracy(data: &Digits, batch: usize, predict: impl Fn(&Tensor) -> Result<Tensor>) -> Result<f64> {
    let everything: Vec<usize> = (0..data.labels.len()).collect();
    let mut right = 0.0;
    for chosen in everything.chunks(batch) {
        let (x, y) = gather(data, chosen)?;
        right += predict(&x)?.equal(&y)?.cast(DType::F32)?.sum(&[], false)?.item()?;
    }
    Ok(right / everything.len() as f64)
}

fn gather(data: &Digits, chosen: &[usize]) -> Result<(Tensor, Tensor)> {
    let images: Vec<f32> =
        chosen.iter().flat_map(|&i| data.images[i * 64..(i + 1) * 64].iter().copied()).collect();
    let labels: Vec<i64> = chosen.iter().map(|&i| data.labels[i]).collect();
    Ok((Tensor::from_slice(&images, [chosen.len(), 8, 8, 1])?, Tensor::from_slice(&labels, [chosen.len()])?))
}

/// Fisher and Yates' shuffle, from a seed.
fn shuffle(order: &mut [usize], seed: u64) {
    let mut dice = plimsoll::graph::example::Dice::new(seed);
    for i in (1..order.len()).rev() {
        order.swap(i, dice.range(0, i + 1));
    }
}
