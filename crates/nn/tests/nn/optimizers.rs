//! Twenty steps of every optimizer, and learning rates of every schedule, against PyTorch's (Lion's and Ftrl's against
//! Keras's).
//!
//! The values were made by `optimizers/make.py`; data and start are computed here as there.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::common::{labels, uniform};
use plimsoll_device::Bytes;
use plimsoll_graph::{DType, TensorOps, Type};
use plimsoll_nn::{
    Adafactor, Adagrad, Adam, Decay, Ftrl, Init, Lion, Net, Optimizer, Param, Plateau, Recipe, RmsProp,
    Schedule, Sgd, Training, UpdateAt, clip_by_global_norm, clip_by_value, model, mse,
};
use plimsoll_run::{Device, Result, Step, StepResult, Tape, Tensor};

const STEPS: usize = 20;

fn f32s(shape: &[usize]) -> Type {
    Type::new(DType::F32, shape)
}

fn params() -> Vec<Param> {
    let param = |name: &str, shape: &[usize]| Param {
        name: name.into(),
        ty: f32s(shape),
        init: Init::Constant(0.0),
        trained: true,
    };
    vec![param("weight", &[6, 4]), param("bias", &[4])]
}

/// Losses and last parameters of least squares, in one traced step.
fn train(
    optimizer: impl Optimizer + 'static,
    clip: impl Fn(Vec<Tensor>) -> Result<Vec<Tensor>> + Send + Sync + 'static,
) -> Result<Vec<Vec<f64>>> {
    let params = params();
    let mut state: Vec<Tensor> =
        params.iter().enumerate().map(|(i, p)| uniform(i as u64 + 1, &p.ty, 0.5)).collect();
    let mut slots = Vec::new();
    for param in &params {
        let first = state.len();
        for slot in optimizer.slots(param) {
            state.push(Tensor::full(slot.ty, slot.init)?);
        }
        slots.push(first..state.len());
    }
    state.push(Tensor::zeros(f32s(&[]))?);
    let rate = Tensor::from_slice(&[optimizer.rate() as f32], [])?;
    let (x, y) = (uniform(1000, &f32s(&[8, 6]), 1.7), uniform(1001, &f32s(&[8, 4]), 1.7));
    let mut step =
        Step::compile(state, &[x.ty().clone(), y.ty().clone(), f32s(&[])], move |state, inputs| {
            let tape = Tape::new();
            state[..2].iter().try_for_each(|p| tape.watch(p))?;
            let loss = mse(&inputs[0].matmul(&state[0])?.add(&state[1])?, &inputs[1])?;
            let grads = clip(tape.gradient(&loss, &[&state[0], &state[1]])?)?;
            let mut new = state.to_vec();
            let count = state[state.len() - 1].add_scalar(1.0)?;
            let (scalars, key) =
                (optimizer.prepare(&count, &inputs[2])?, Tensor::from_slice(&[0i64; 2], [2])?);
            for i in 0..2 {
                let (param, rate) = (&params[i], &inputs[2]);
                let at = UpdateAt { count: &count, rate, scalars: &scalars, param, first: 0, key: &key };
                let (value, updated) =
                    optimizer.update(&at, &state[i], &grads[i], &state[slots[i].clone()])?;
                new[i] = value;
                new[slots[i].clone()].clone_from_slice(&updated);
            }
            new[state.len() - 1] = count;
            Ok(StepResult { state: new, outputs: vec![loss], totals: vec![] })
        })?;
    let mut losses = Vec::new();
    for _ in 0..STEPS {
        losses.push(step.run(&[&x, &y, &rate])?[0].item()?);
    }
    Ok(vec![losses, step.state()[0].to_f64()?, step.state()[1].to_f64()?])
}

fn compare(name: &str, ours: &[Vec<f64>]) {
    let golden: BTreeMap<String, Vec<Vec<f64>>> =
        serde_json::from_str(include_str!("optimizers/optimizers.json")).unwrap();
    for (ours, theirs) in ours.iter().zip(&golden[name]) {
        assert_eq!(ours.len(), theirs.len());
        for (i, (a, b)) in ours.iter().zip(theirs).enumerate() {
            assert!(
                (a - b).abs() <= 2e-5 * (1.0 + b.abs()),
                "{name} element {i}: {a} where it should be {b}"
            );
        }
    }
}

fn check(name: &str, optimizer: impl Optimizer + 'static) {
    compare(name, &train(optimizer, Ok).unwrap());
}

#[test]
fn gradient_descent_is_pytorchs() {
    check("sgd", Sgd::new(0.1));
    check("sgd_l2", Sgd { decay: Decay::l2(0.1), ..Sgd::new(0.1) });
    check("momentum", Sgd { decay: Decay::l2(0.01), ..Sgd::momentum(0.05, 0.9) });
    check("nesterov", Sgd::nesterov(0.05, 0.9));
}

#[test]
fn adam_is_pytorchs_with_either_decay() {
    check("adam", Adam::new(0.05));
    check("adam_l2", Adam { decay: Decay::l2(0.1), ..Adam::new(0.05) });
    check("adamw", Adam::w(0.05, 0.2));
    check("adamw_spared", Adam { decay: Decay::decoupled(0.2).matrices_only(), ..Adam::new(0.05) });
}

#[test]
fn rmsprop_and_adagrad_are_pytorchs() {
    check("rmsprop", RmsProp::new(0.01));
    let decay = Decay::l2(0.01);
    check(
        "rmsprop_all",
        RmsProp { alpha: 0.9, momentum: 0.5, is_centered: true, decay, ..RmsProp::new(0.01) },
    );
    check("adagrad", Adagrad { lr_decay: 0.05, start: 0.1, decay, ..Adagrad::new(0.2) });
}

#[test]
fn adafactor_is_pytorchs() {
    check("adafactor", Adafactor::new(0.05));
    check("adafactor_all", Adafactor { clip: 1.5, decay: Decay::decoupled(0.1), ..Adafactor::new(0.05) });
}

#[test]
fn lion_is_kerass() {
    check("lion", Lion { beta1: 0.9, beta2: 0.99, ..Lion::new(0.02) });
    check("lion_decay", Lion { decay: Decay::decoupled(0.3), ..Lion::new(0.02) });
}

#[test]
fn ftrl_is_kerass() {
    check("ftrl", Ftrl::new(0.3));
    let all =
        Ftrl { power: -0.7, start: 0.3, l1: 0.05, l2: 0.02, shrinkage: 0.01, beta: 0.2, ..Ftrl::new(0.3) };
    check("ftrl_all", all);
}

#[test]
fn clipped_gradients_are_pytorchs() {
    compare("clip_value", &train(Sgd::new(0.1), |grads| clip_by_value(&grads, 0.1)).unwrap());
    compare("clip_norm", &train(Sgd::new(0.1), |grads| Ok(clip_by_global_norm(&grads, 0.5)?.0)).unwrap());
}

#[test]
fn schedules_are_pytorchs() {
    let golden: BTreeMap<String, Vec<f64>> =
        serde_json::from_str(include_str!("optimizers/schedules.json")).unwrap();
    let mut cosine = Schedule::cosine(10);
    if let plimsoll_nn::ScheduleShape::Cosine { floor, .. } = &mut cosine.shape {
        *floor = 0.1;
    }
    for (name, schedule) in [
        ("step", Schedule::step(3, 0.5)),
        ("exponential", Schedule::exponential(0.9)),
        ("cosine", cosine),
        ("polynomial", Schedule::polynomial(10, 2.0)),
        ("one_cycle", Schedule::one_cycle(20)),
    ] {
        for (i, theirs) in golden[name].iter().enumerate() {
            let ours = schedule.rate(2.0, i as u64);
            assert!((ours - theirs).abs() < 1e-9, "{name} at {i}: {ours} where PyTorch has {theirs}");
        }
    }
    let mut plateau = Plateau::new(0.1, 2);
    let mut rate = 2.0;
    for (i, (theirs, observed)) in golden["plateau"].iter().zip(&golden["observed"]).enumerate() {
        assert!((rate - theirs).abs() < 1e-12, "plateau at {i}: {rate} where PyTorch has {theirs}");
        rate = 2.0 * plateau.observe(*observed);
    }
}

/// Bytes that an update of one large parameter takes beside parameter, slots and gradient.
fn arena_of_an_update(optimizer: Arc<dyn Optimizer>) -> u64 {
    let ty = f32s(&[512, 512]);
    let param = Param { name: "w".into(), ty: ty.clone(), init: Init::Constant(0.0), trained: true };
    let mut state = vec![Tensor::full(ty.clone(), 1.0).unwrap()];
    for slot in optimizer.slots(&param) {
        state.push(Tensor::full(slot.ty, slot.init).unwrap());
    }
    let step = Step::compile(state, &[ty, f32s(&[]), f32s(&[])], move |state, inputs| {
        let (grad, count, rate) = (&inputs[0], &inputs[1], &inputs[2]);
        let (scalars, key) = (optimizer.prepare(count, rate)?, Tensor::from_slice(&[0i64; 2], [2])?);
        let at = UpdateAt { count, rate, scalars: &scalars, param: &param, first: 0, key: &key };
        let (value, slots) = optimizer.update(&at, &state[0], grad, &state[1..])?;
        Ok(StepResult {
            state: std::iter::once(value).chain(slots).collect(),
            outputs: vec![],
            totals: vec![],
        })
    });
    step.unwrap().arena_bytes().get()
}

#[test]
fn an_update_is_one_pass_over_memory_in_place() {
    let decay = Decay::decoupled(0.1);
    let l2 = Decay::l2(0.1);
    let optimizers: Vec<Arc<dyn Optimizer>> = vec![
        Arc::new(Sgd { decay: l2, ..Sgd::new(0.1) }),
        Arc::new(Sgd { decay: l2, ..Sgd::nesterov(0.1, 0.9) }),
        Arc::new(Adam::new(0.1)),
        Arc::new(Adam { decay: l2, ..Adam::new(0.1) }),
        Arc::new(Adam { decay, ..Adam::new(0.1) }),
        Arc::new(RmsProp { momentum: 0.9, is_centered: true, decay: l2, ..RmsProp::new(0.1) }),
        Arc::new(Adagrad { decay: l2, ..Adagrad::new(0.1) }),
        Arc::new(Lion { decay, ..Lion::new(0.1) }),
    ];
    for optimizer in optimizers {
        let bytes = arena_of_an_update(optimizer.clone());
        // A parameter is a mebibyte; a few scalars are all that may be written aside.
        assert!(bytes < 4096, "{optimizer:?} takes {bytes} bytes");
    }
}

#[test]
fn a_training_follows_the_rate_it_is_given() {
    Device::cpu_with(1, Bytes::mib(64)).unwrap().scope(|| {
        let recipe = Recipe::new(mse, Sgd::new(0.1), f32s(&[8, 6]), f32s(&[8, 4]));
        let dense = model(|net: &mut Net, x: &[Tensor]| net.dense("d", &x[0], 4, true));
        let mut training = Training::new(dense, recipe, 1).unwrap();
        let (x, y) = (uniform(1000, &f32s(&[8, 6]), 1.7), uniform(1001, &f32s(&[8, 4]), 1.7));
        let first = training.step(&[&x], &y).unwrap();
        training.set_rate(0.0).unwrap();
        let second = training.step(&[&x], &y).unwrap();
        assert!(second < first);
        assert_eq!(training.step(&[&x], &y).unwrap(), second, "nothing moves at rate 0");
        let wrong = labels(1, &Type::new(DType::I64, [8, 4]), 3);
        assert!(training.step(&[&x], &wrong).is_err());
    });
}
