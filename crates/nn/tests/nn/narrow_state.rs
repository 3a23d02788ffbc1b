//! What tests of optimizers with narrow state share: steps, numbers, and a net that must bend.

use std::collections::HashMap;
use std::sync::Arc;

use plimsoll_device::Bytes;
use plimsoll_graph::{DType, TensorOps, Type};
use plimsoll_nn::{
    Adam, Init, Kept, Lion, Net, Optimizer, Param, Precision, Recipe, Sgd, Training, UpdateAt,
};
use plimsoll_run::{Device, Result, Step, StepResult, Tensor};

pub fn param(n: usize) -> Param {
    Param { name: "w".into(), ty: Type::new(DType::F32, [n]), init: Init::Constant(0.0), trained: true }
}

/// One step of an optimizer over a parameter, its gradient and a key, compiled; of a shard that begins at an element.
pub fn step_of(optimizer: Arc<dyn Optimizer>, param: &Param, start: &[f32], first: usize) -> Result<Step> {
    step_from(optimizer, param, Tensor::from_slice(start, &param.ty.shape)?, first)
}

/// As [`step_of`], from a parameter of any type.
pub fn step_from(optimizer: Arc<dyn Optimizer>, param: &Param, start: Tensor, first: usize) -> Result<Step> {
    let mut state = vec![start];
    for slot in optimizer.slots(param) {
        state.push(Tensor::full(slot.ty, slot.init)?);
    }
    state.push(Tensor::zeros(Type::new(DType::F32, []))?);
    let (param, rate) = (param.clone(), optimizer.rate() as f32);
    let inputs = [param.ty.clone(), Type::new(DType::I64, [2])];
    Step::compile(state, &inputs, move |state, inputs| {
        let n = state.len() - 1;
        let (count, rate) = (state[n].add_scalar(1.0)?, Tensor::from_slice(&[rate], [])?);
        let scalars = optimizer.prepare(&count, &rate)?;
        let at =
            UpdateAt { count: &count, rate: &rate, scalars: &scalars, param: &param, first, key: &inputs[1] };
        let (value, slots) = optimizer.update(&at, &state[0], &inputs[0], &state[1..n])?;
        let loss = value.cast(DType::F32)?.sum(&[], false)?;
        Ok(StepResult {
            state: [vec![value], slots, vec![count]].concat(),
            outputs: vec![loss],
            totals: vec![],
        })
    })
}

/// Numbers of very different sizes.
pub fn numbers(n: usize, seed: u64) -> Vec<f32> {
    let draw = |i: usize| {
        let z = (i as u64 + seed).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let z = (z ^ (z >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let size = 10f32.powi(-(((z >> 20) % 6) as i32));
        ((z >> 40) as f32 / 8_388_608.0 - 1.0) * size
    };
    (0..n).map(draw).collect()
}

pub fn optimizers() -> Vec<(&'static str, Arc<dyn Optimizer>)> {
    vec![
        ("adam", Arc::new(Adam::new(1e-2))),
        ("adamw", Arc::new(Adam::w(1e-2, 0.1))),
        ("momentum", Arc::new(Sgd::momentum(1e-2, 0.9))),
        ("nesterov", Arc::new(Sgd { decay: plimsoll_nn::Decay::l2(0.01), ..Sgd::nesterov(1e-2, 0.9) })),
        ("lion", Arc::new(Lion::new(1e-3))),
    ]
}

const BATCH: usize = 32;
const INPUTS: usize = 40;
const CLASSES: usize = 8;

pub fn model(net: &mut Net, x: &[Tensor]) -> Result<Tensor> {
    let x = net.dense("in", &x[0], 160, true)?.tanh()?;
    let x = net.dense("mid", &x, 64, true)?.tanh()?;
    net.dense("out", &x, CLASSES, true)
}

pub fn recipe(optimizer: Arc<dyn Optimizer>) -> Recipe {
    let (x, y) = (Type::new(DType::F32, [BATCH, INPUTS]), Type::new(DType::I64, [BATCH]));
    Recipe::cross_entropy(optimizer, x, y)
}

/// Classes of points that a net must bend to tell apart.
pub fn batch(round: usize) -> Result<(Tensor, Tensor)> {
    let x = numbers(BATCH * INPUTS, (round % 16 * 100_000) as u64);
    let class = |x: &[f32]| {
        ((x[0] * x[1] > 0.0) as i64) + 2 * ((x[2] + x[3] > 0.0) as i64) + 4 * ((x[4] > x[5]) as i64)
    };
    let y: Vec<i64> = x.chunks(INPUTS).map(class).collect();
    Ok((Tensor::from_slice(&x, [BATCH, INPUTS])?, Tensor::from_slice(&y, [BATCH])?))
}

/// The mean of the losses of the last epochs, and the training.
pub fn train(recipe: Recipe, steps: usize) -> Result<(f64, Training)> {
    let mut training = Training::new(model, recipe, 5)?;
    let mut last = Vec::new();
    for round in 0..steps {
        let (x, y) = batch(round)?;
        let loss = training.step(&[&x], &y)?;
        if round + 64 >= steps {
            last.push(loss);
        }
    }
    Ok((last.iter().sum::<f64>() / last.len() as f64, training))
}

pub fn state_bytes(training: &Training) -> usize {
    training.state().skip(training.params().len()).map(|(_, tensor)| tensor.ty().bytes()).sum()
}

/// All state of a training, by name.
pub fn bits(training: &Training) -> HashMap<String, Vec<u8>> {
    training.state().map(|(name, t)| (name.to_string(), t.to_bytes().unwrap())).collect()
}

#[test]
fn a_step_that_is_skipped_for_its_loss_scale_leaves_the_state_as_it_was() {
    let cpu = Device::cpu_with(1, Bytes::mib(256)).unwrap();
    for kept in Kept::NARROW {
        cpu.scope(|| {
            let mut recipe = recipe(Adam::new(1e-3).with_state(kept).unwrap());
            recipe.request.precision = Precision::MixedF16;
            let mut training = Training::new(model, recipe, 5).unwrap();
            let (x, y) = batch(0).unwrap();
            training.step(&[&x], &y).unwrap();
            let of_weight = |training: &Training| {
                let mut all: Vec<_> = bits(training).into_iter().collect();
                all.retain(|(name, _)| name.starts_with("in/weight"));
                all.sort();
                all
            };
            let begun = of_weight(&training);
            // More than f16 holds, so that gradients are not finite, while the loss is.
            let far = Tensor::full(x.ty().clone(), 1e6).unwrap();
            assert!(training.run(&[&far, &y]).unwrap().skipped);
            assert!(begun == of_weight(&training), "{kept:?}: a step that was skipped changed the state");
            training.step(&[&x], &y).unwrap();
            assert!(begun != of_weight(&training), "{kept:?}: nothing was trained");
        });
    }
}

/// Trains with each optimizer as it is and with its state kept otherwise: so near are the losses, and that much is the state.
#[track_caller]
pub fn learns_as_in_f32(
    within: f64,
    kept: impl Fn(&dyn Optimizer) -> Arc<dyn Optimizer>,
    is_small: impl Fn(usize, usize) -> bool,
) {
    let cpu = Device::cpu_with(2, Bytes::mib(256)).unwrap();
    cpu.scope(|| {
        for (name, plain) in optimizers() {
            let narrow = kept(&*plain);
            let (first, _) = train(recipe(plain.clone()), 64).unwrap();
            let (wanted, whole) = train(recipe(plain), 640).unwrap();
            let (found, small) = train(recipe(narrow), 640).unwrap();
            assert!(wanted < 0.8 * first, "{name} learns nothing: {first} to {wanted}");
            assert!((found - wanted).abs() <= within * wanted, "{name}: {found} where f32 comes to {wanted}");
            let (small, whole) = (state_bytes(&small), state_bytes(&whole));
            assert!(is_small(small, whole), "{name}: {small} of {whole} bytes");
        }
    });
}
