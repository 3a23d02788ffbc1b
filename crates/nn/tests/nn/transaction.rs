//! A step happens wholly or not: whatever fails in it, weights, moments, statistics and counters are as they were.

use plimsoll_device::Bytes;
use plimsoll_graph::{DType, Type};
use plimsoll_nn::{Adam, Metric, Net, Recipe, Training, zoo};
use plimsoll_run::{Device, Error, Exactness, Result, Tensor};

const BATCH: usize = 6;

fn training(micro_batch: Option<usize>) -> Training {
    let (x, y) = (Type::new(DType::F32, [BATCH, 8, 8, 3]), Type::new(DType::I64, [BATCH]));
    let mut recipe = Recipe::cross_entropy(Adam::new(1e-3), x, y);
    recipe.metrics = vec![Metric::Accuracy.into()];
    recipe.request.exactness = Exactness::Approximate;
    recipe.request.micro_batch = micro_batch;
    fn model(net: &mut Net, x: &[Tensor]) -> Result<Tensor> {
        let y = zoo::batch_norm_cnn(net, &x[0], &[8], 5)?;
        net.dropout("drop", &y, 0.1)
    }
    Training::new(model, recipe, 3).unwrap()
}

fn batch(bad: Option<&str>) -> (Tensor, Tensor) {
    let mut x: Vec<f32> = (0..BATCH * 192).map(|i| ((i * 37) % 101) as f32 / 50.0 - 1.0).collect();
    let mut y: Vec<i64> = (0..BATCH as i64).map(|i| i % 5).collect();
    match bad {
        Some("nan") => x[BATCH * 192 - 1] = f32::NAN,
        Some("label") => y[BATCH - 1] = 5,
        _ => {}
    }
    (Tensor::from_slice(&x, [BATCH, 8, 8, 3]).unwrap(), Tensor::from_slice(&y, [BATCH]).unwrap())
}

fn bytes(training: &Training) -> Vec<(String, Vec<u8>)> {
    training.state().map(|(name, t)| (name.to_string(), t.to_bytes().unwrap())).collect()
}

#[test]
fn a_step_that_fails_changes_nothing() {
    Device::cpu_with(2, Bytes::mib(256)).unwrap().scope(|| {
        for micro_batch in [None, Some(2)] {
            let mut training = training(micro_batch);
            let (x, y) = batch(None);
            for _ in 0..3 {
                training.step(&[&x], &y).unwrap();
            }
            let before = bytes(&training);
            for bad in ["nan", "label"] {
                let (x, y) = batch(Some(bad));
                let error = training.step(&[&x], &y).unwrap_err();
                let expected = match bad {
                    "nan" => matches!(error, Error::NotFinite { .. }),
                    _ => matches!(error, Error::Fault { .. }),
                };
                assert!(expected, "{bad}: {error}");
                for (now, before) in bytes(&training).iter().zip(&before) {
                    assert_eq!(now, before, "{bad} in micro-batches of {micro_batch:?} changed {}", before.0);
                }
            }
            // It goes on as if nothing had happened.
            let (x, y) = batch(None);
            assert!(training.step(&[&x], &y).unwrap().is_finite());
            assert_ne!(bytes(&training), before);
        }
    });
}

#[test]
fn evaluation_and_prediction_share_the_line_and_change_nothing() {
    Device::cpu_with(2, Bytes::mib(256)).unwrap().scope(|| {
        let mut training = training(None);
        let (x, y) = batch(None);
        training.step(&[&x], &y).unwrap();
        let before = bytes(&training);
        let loss = training.evaluate(&[&x, &y]).unwrap().loss;
        assert_eq!(training.evaluate(&[&x, &y]).unwrap().loss, loss);
        let sums = training.evaluate(&[&x, &y]).unwrap().sums[0].to_f64().unwrap();
        assert_eq!(sums[1], BATCH as f64);
        let logits = training.predict(&[&x]).unwrap()[0].to_vec::<f32>().unwrap();
        let classes = logits.chunks(5).map(|row| (0..5).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap());
        let right = classes.zip(y.to_vec::<i64>().unwrap()).filter(|(a, b)| *a as i64 == *b).count();
        assert_eq!(sums[0], right as f64);
        assert_eq!(bytes(&training), before);
        // Another number of samples is planned for when it comes, and kept.
        let few = Tensor::from_slice(&[0.5f32; 2 * 192], [2, 8, 8, 3]).unwrap();
        assert_eq!(training.predict(&[&few]).unwrap()[0].to_vec::<f32>().unwrap().len(), 10);
        assert!(training.n_shapes() <= 6);
    });
}

#[test]
fn four_hundred_shapes_are_a_bounded_number_of_plans() {
    Device::cpu_with(2, Bytes::mib(64)).unwrap().scope(|| {
        let (x, y) = (Type::new(DType::I64, [2, 8]), Type::new(DType::I64, [2, 8]));
        let model = |net: &mut Net, x: &[Tensor]| zoo::lstm(net, &x[0], 20, 8, 1);
        let mut training = Training::new(model, Recipe::cross_entropy(Adam::new(1e-3), x, y), 1).unwrap();
        let mut peak = 0;
        for length in (1..=400).map(|i| 1 + i * 7 % 40) {
            let x = Tensor::zeros(Type::new(DType::I64, [2, length])).unwrap();
            training.step(&[&x], &x).unwrap();
            assert!(training.n_shapes() <= 6);
            peak = peak.max(Device::current().unwrap().memory_info().current.get());
        }
        assert!(peak < 1 << 20, "{peak} bytes");
    });
}
