//! Mixed precision: what it saves, and that it still trains.

use crate::common::{labels, uniform};
use plimsoll_device::Bytes;
use plimsoll_graph::{DType, PoolOps, TensorOps, Type};
use plimsoll_nn::{Adam, Conv2d, Net, Precision, Recipe, Training, model, zoo};
use plimsoll_run::{Device, Result, Tensor};

const ALL: [Precision; 3] = [Precision::F32, Precision::MixedBf16, Precision::MixedF16];

/// Eight times convolution, batch norm and relu: batch norm's own inputs are most of what a step keeps.
fn tower(net: &mut Net, x: &[Tensor]) -> Result<Tensor> {
    let mut x = x[0].clone();
    for i in 0..8 {
        x = net.conv2d(&format!("conv{i}"), &x, Conv2d::new(16, 3).pad(1).no_bias())?;
        x = net.batch_norm(&format!("norm{i}"), &x)?.relu()?;
    }
    net.dense("out", &x.global_avg_pool2d()?, 10, true)
}

fn compile(precision: Precision, batch: usize) -> Training {
    let (x, y) = (Type::new(DType::F32, [batch, 32, 32, 3]), Type::new(DType::I64, [batch]));
    let mut recipe = Recipe::cross_entropy(Adam::new(1e-3), x, y);
    recipe.request.precision = precision;
    Training::new(tower, recipe, 1).unwrap()
}

#[test]
fn sixteen_bit_activations_take_half_the_arena_batch_norm_included() {
    Device::cpu_with(1, Bytes::gib(1)).unwrap().scope(|| {
        let arena = |precision| compile(precision, 32).arena_bytes().get() as f64;
        let whole = arena(Precision::F32);
        for precision in [Precision::MixedBf16, Precision::MixedF16] {
            let ratio = arena(precision) / whole;
            println!("{precision:?}: {ratio:.3} of {whole} bytes");
            assert!((0.45..0.56).contains(&ratio), "{precision:?}: {ratio}");
        }
    });
}

#[test]
fn parameters_statistics_and_optimizer_state_stay_f32() {
    Device::cpu_with(1, Bytes::mib(256)).unwrap().scope(|| {
        let whole = compile(Precision::F32, 2);
        let mixed = compile(Precision::MixedBf16, 2);
        assert_eq!(whole.state_bytes(), mixed.state_bytes());
        assert!(mixed.values().iter().all(|v| v.dtype() == DType::F32));
    });
}

#[test]
fn every_precision_learns_the_same_batch() {
    Device::cpu_with(2, Bytes::mib(512)).unwrap().scope(|| {
        let (x, y) = (Type::new(DType::F32, [8, 32, 32, 3]), Type::new(DType::I64, [8]));
        let (x, y) = (uniform(1, &x, 1.0), labels(2, &y, 10));
        let mut last = Vec::new();
        for precision in ALL {
            let mut training = compile(precision, 8);
            let first = training.step(&[&x], &y).unwrap();
            for _ in 0..30 {
                training.step(&[&x], &y).unwrap();
            }
            let loss = training.step(&[&x], &y).unwrap();
            assert!(loss < 0.75 * first, "{precision:?}: from {first} to {loss}");
            last.push(loss);
        }
        assert!(last.iter().all(|l| (l - last[0]).abs() < 0.1 * last[0]), "{last:?}");
    });
}

#[test]
fn small_versions_of_every_model_train_in_every_precision() {
    Device::cpu_with(2, Bytes::gib(1)).unwrap().scope(|| {
        for entry in zoo::ALL {
            let entry = entry.sized(|size| {
                let smaller = |n: &mut usize, most: usize| *n = (*n).min(most);
                smaller(&mut size.width, 8);
                smaller(&mut size.depth, 3);
                smaller(&mut size.heads, 4);
                smaller(&mut size.image, 32);
                smaller(&mut size.sequence, 12);
                smaller(&mut size.classes, 10);
            });
            for precision in ALL {
                let mut recipe = Recipe::cross_entropy(Adam::new(1e-3), entry.input(4), entry.labels(4));
                recipe.request.precision = precision;
                let mut training = Training::new(entry, recipe, 1).unwrap();
                let x = match entry.input(4) {
                    ty if ty.dtype == DType::I64 => labels(1, &ty, 10),
                    ty => uniform(1, &ty, 1.0),
                };
                let y = labels(2, &entry.labels(4), entry.classes() as u64);
                let first = training.step(&[&x], &y).unwrap();
                // Steps whose scaled gradients leave f16's range are left out until the scale is small enough.
                let mut left_out = 0;
                let mut taken = 0;
                while taken < 4 {
                    let skipped = training.run(&[&x, &y]).unwrap().skipped;
                    if skipped {
                        left_out += 1
                    } else {
                        taken += 1
                    }
                    assert!(
                        left_out <= 20 && (left_out == 0 || precision == Precision::MixedF16),
                        "{}",
                        entry.name
                    );
                }
                let last = training.step(&[&x], &y).unwrap();
                assert!(last.is_finite() && last < first, "{} {precision:?}: {first} to {last}", entry.name);
            }
        }
    });
}

#[test]
fn a_scope_can_compute_in_another_precision_than_its_model() {
    let seen = std::sync::Mutex::new(Vec::new());
    let mixed = model(|net, x| {
        net.with_precision(Precision::MixedBf16, |net| {
            let y = net.dense("half", &x[0], 4, true)?;
            let z = net.with_precision(Precision::F32, |net| net.dense("whole", &y, 4, true))?;
            let last = net.dense("again", &z, 4, true)?;
            seen.lock().unwrap().extend([y.dtype(), z.dtype(), last.dtype()]);
            Ok(last)
        })
    });
    let params = Net::discover(&[Type::new(DType::F32, [2, 4])], &mixed).unwrap();
    assert_eq!(*seen.lock().unwrap(), [DType::BF16, DType::F32, DType::BF16]);
    assert!(params.iter().all(|p| p.ty.dtype == DType::F32));
}
