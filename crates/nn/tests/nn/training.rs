//! Fifty training steps against PyTorch's, from the same weights on the same data: the losses agree to 1e-4.
//!
//! The losses were made by `training/make.py`; weights and data are computed here as there.

use std::collections::BTreeMap;

use plimsoll_device::Bytes;
use plimsoll_graph::{DType, Type};
use plimsoll_nn::{Adam, Init, Net, Recipe, Training, model, zoo};
use plimsoll_run::{Device, Result, Tensor};

use crate::common::{labels, uniform};

const BATCHES: u64 = 4;

fn losses(
    f: impl Fn(&mut Net, &[Tensor]) -> Result<Tensor> + Send + Sync + 'static,
    input: Type,
    target: Type,
    classes: u64,
    steps: u64,
) -> Vec<f64> {
    let model = model(f);
    let params = Net::discover(std::slice::from_ref(&input), &model).unwrap();
    let start = |(i, p): (usize, &plimsoll_nn::Param)| match p.init {
        Init::Constant(value) => Tensor::full(p.ty.clone(), value).unwrap(),
        Init::Uniform(bound) | Init::Normal(bound) => uniform(i as u64 + 1, &p.ty, bound),
        other => panic!("{other:?} has no counterpart in make.py"),
    };
    let values = params.iter().enumerate().map(start).collect();
    let recipe = Recipe::cross_entropy(Adam::new(1e-3), input.clone(), target.clone());
    let mut training = Training::with_values(model, recipe, params, values).unwrap();
    let mut losses = Vec::new();
    for step in 0..steps {
        let x = match input.dtype {
            DType::I64 => labels(1000 + step % BATCHES, &input, 50),
            _ => uniform(1000 + step % BATCHES, &input, 1.7),
        };
        let y = labels(2000 + step % BATCHES, &target, classes);
        losses.push(training.step(&[&x], &y).unwrap());
    }
    losses
}

fn case(name: &str, steps: u64) -> Vec<f64> {
    let f32s = |shape: &[usize]| Type::new(DType::F32, shape);
    let i64s = |shape: &[usize]| Type::new(DType::I64, shape);
    let gpt = zoo::Gpt { vocabulary: 50, width: 32, layers: 2, heads: 4 };
    match name {
        "mlp" => losses(|net, x| zoo::mlp(net, &x[0], &[32, 32, 5]), f32s(&[16, 20]), i64s(&[16]), 5, steps),
        "cnn" => losses(
            |net, x| zoo::batch_norm_cnn(net, &x[0], &[8, 16], 5),
            f32s(&[8, 8, 8, 3]),
            i64s(&[8]),
            5,
            steps,
        ),
        "gpt" => losses(move |net, x| zoo::gpt(net, &x[0], gpt), i64s(&[4, 16]), i64s(&[4, 16]), 50, steps),
        "lstm" => {
            losses(|net, x| zoo::lstm(net, &x[0], 50, 24, 2), i64s(&[4, 12]), i64s(&[4, 12]), 50, steps)
        }
        _ => losses(
            |net, x| zoo::unet(net, &x[0], 6, 3, 2),
            f32s(&[3, 16, 16, 3]),
            i64s(&[3, 16, 16]),
            2,
            steps,
        ),
    }
}

fn check(name: &str) {
    let golden: BTreeMap<String, Vec<f64>> =
        serde_json::from_str(include_str!("training/losses.json")).unwrap();
    let ours = case(name, golden[name].len() as u64);
    for (step, (ours, torch)) in ours.iter().zip(&golden[name]).enumerate() {
        let difference = (ours - torch).abs() / torch.abs();
        assert!(difference <= 1e-4, "{name} step {step}: {ours} where PyTorch has {torch}");
    }
}

#[test]
fn an_mlp_trains_as_in_pytorch() {
    check("mlp");
}

#[test]
fn a_cnn_with_batch_norm_trains_as_in_pytorch() {
    check("cnn");
}

#[test]
fn a_transformer_trains_as_in_pytorch() {
    check("gpt");
}

#[test]
fn an_lstm_trains_as_in_pytorch() {
    check("lstm");
}

#[test]
fn a_unet_trains_as_in_pytorch() {
    check("unet");
}

#[test]
fn losses_are_the_same_bits_on_one_two_and_three_threads() {
    for name in ["mlp", "cnn", "gpt", "lstm", "unet"] {
        let on = |threads: usize| {
            let device = Device::cpu_with(threads, Bytes::mib(256)).unwrap();
            device.scope(|| case(name, 5)).into_iter().map(f64::to_bits).collect::<Vec<u64>>()
        };
        let one = on(1);
        assert_eq!(one, on(2), "{name} on two threads");
        assert_eq!(one, on(3), "{name} on three threads");
    }
}
