//! Training with parts of one's own: metrics with state, weighted samples and classes, closures as schedules, callbacks that change weights.

use plimsoll_data::{Column, Dataset};
use plimsoll_graph::{DType, LossOps, TensorOps, Type};
use plimsoll_nn::{
    Adam, Measure, OwnMetric, Schedule, Sequential, Sgd, class_weighted_cross_entropy, sample_weighted,
    softmax_cross_entropy,
};
use plimsoll_run::{Device, Tensor};
use plimsoll_train::{Callback, Epochs, LiveModel, Result, StepEvent, Trainer};

const SAMPLES: usize = 60;

fn columns() -> (Vec<f32>, Vec<i64>) {
    let x: Vec<f32> = (0..SAMPLES * 2).map(|i| ((i * 37) % 101) as f32 / 50.0).collect();
    let y = x.chunks(2).map(|pair| i64::from(pair[1] > pair[0])).collect();
    (x, y)
}

fn data() -> Dataset {
    let (x, y) = columns();
    let columns = [Column::memory("x", x, [2]).unwrap(), Column::memory("y", y, []).unwrap()];
    Dataset::columns(columns).unwrap()
}

fn model() -> Sequential {
    Sequential::new([2]).dense(8).relu().dense(2)
}

/// The mean and the largest of logits: sums, a count and sums of squares are its state.
struct Spread;

impl OwnMetric for Spread {
    fn sums(&self, output: &Tensor, _: &Tensor) -> plimsoll_run::Result<Tensor> {
        let y = output.cast(DType::F32)?;
        let n = y.full_like(Type::new(DType::F32, [1]), y.ty().elements() as f64)?;
        let (sum, squares) = (y.sum(&[], false)?.reshape([1])?, y.square()?.sum(&[], false)?.reshape([1])?);
        Tensor::concat(&[&sum, &squares, &n], 0)
    }

    fn finish(&self, sums: &[f64]) -> f64 {
        let mean = sums[0] / sums[2];
        (sums[1] / sums[2] - mean * mean).sqrt()
    }
}

#[test]
fn a_metric_of_ones_own_is_the_same_in_batches_of_any_size_and_in_pieces() {
    let device = Device::cpu_threads(1).unwrap();
    let spread = |batch: usize, micro: Option<usize>| {
        let mut trainer = Trainer::new(model(), softmax_cross_entropy, Sgd::new(0.0))
            .device(device.clone())
            .micro_batch(micro)
            .metrics([Measure::own("spread", Spread)])
            .validation(data().batch(batch));
        let history = trainer.fit(data().batch(batch), Epochs(1)).unwrap();
        (history[0].metric("spread").unwrap(), history[0].metric("val_spread").unwrap())
    };
    let (whole, validated) = spread(SAMPLES, None);
    assert!(whole > 0.0 && (whole - validated).abs() < 1e-6, "the rate is 0: {whole} and {validated}");
    for (batch, micro) in [(20, None), (7, None), (20, Some(5))] {
        let (found, _) = spread(batch, micro);
        assert!((found - whole).abs() < 1e-5, "{found} of {batch} in {micro:?}, and {whole}");
    }
}

#[test]
fn weights_of_samples_and_classes_weigh_alike_and_survive_a_split() {
    let device = Device::cpu_threads(1).unwrap();
    let (x, y) = columns();
    let per_class = [3.0, 0.5];
    let weights: Vec<f32> = y.iter().map(|&class| per_class[class as usize] as f32).collect();
    let weighted = Dataset::columns([
        Column::memory("x", x, [2]).unwrap(),
        Column::memory("y", y, []).unwrap(),
        Column::memory("w", weights, []).unwrap(),
    ])
    .unwrap()
    .batch(20);
    let losses = |trainer: Trainer, data: &Dataset, micro: Option<usize>| -> Vec<f64> {
        let mut trainer = trainer.device(device.clone()).micro_batch(micro);
        trainer.fit(data, Epochs(3)).unwrap().iter().map(|epoch| epoch.loss).collect()
    };
    let by_class =
        || Trainer::new(model(), class_weighted_cross_entropy(per_class.to_vec()), Adam::new(1e-2));
    let by_sample = || {
        let each = |logits: &Tensor, labels: &Tensor| logits.softmax_cross_entropy(labels);
        Trainer::new(model(), sample_weighted(each), Adam::new(1e-2)).labels(2)
    };
    let plain =
        losses(Trainer::new(model(), softmax_cross_entropy, Adam::new(1e-2)), &data().batch(20), None);
    let class = losses(by_class(), &data().batch(20), None);
    let sample = losses(by_sample(), &weighted, None);
    let split = losses(by_class(), &data().batch(20), Some(5));
    assert_ne!(plain, class);
    for (name, found) in [("sample", sample), ("split", split)] {
        let far = found.iter().zip(&class).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(far < 1e-5, "{name}: {found:?} and {class:?}");
    }
    let wrong = Trainer::new(model(), class_weighted_cross_entropy(vec![1.0; 3]), Adam::new(1e-2))
        .device(device.clone())
        .fit(data().batch(20), Epochs(1));
    assert!(wrong.is_err_and(|error| error.to_string().contains("2 classes by 3 weights")));
}

/// Sets a bias to zero after every step, and slows down after the third.
struct Held;

impl Callback for Held {
    fn on_step_model(&mut self, step: &StepEvent, model: &mut LiveModel<'_>) -> Result<()> {
        let name = model
            .parameters()
            .find(|(param, _)| param.name.ends_with("bias"))
            .map(|(param, _)| param.name.clone());
        let name = name.unwrap_or_default();
        let zeros = vec![0.0; model.values(&name)?.len()];
        model.set_values(&name, &zeros)?;
        if step.step == 3 {
            model.set_rate_factor(0.5);
        }
        Ok(())
    }
}

#[test]
fn a_callback_changes_weights_and_rate_and_a_schedule_is_any_closure() {
    let schedule = Schedule::from_fn(|step| if step < 4 { 1.0 } else { 0.1 });
    let mut trainer = Trainer::new(model(), softmax_cross_entropy, Sgd::new(0.8))
        .device(Device::cpu_threads(1).unwrap())
        .schedule(schedule)
        .callback(Held);
    let history = trainer.fit(data().batch(10), Epochs(1)).unwrap();
    assert!((history[0].rate - 0.8 * 0.1 * 0.5).abs() < 1e-12, "{}", history[0].rate);
    let held = trainer
        .parameters()
        .find(|(param, _)| param.name.ends_with("bias"))
        .unwrap()
        .1
        .to_vec::<f32>()
        .unwrap();
    assert!(held.iter().all(|bias| *bias == 0.0), "{held:?}");
    // A closure that gives no rate is an error of the step that meets it.
    let mut broken = Trainer::new(model(), softmax_cross_entropy, Sgd::new(0.8))
        .device(Device::cpu_threads(1).unwrap())
        .schedule(Schedule::from_fn(|_| f64::NAN));
    let why = broken.fit(data().batch(10), Epochs(1)).unwrap_err().to_string();
    assert!(why.contains("the learning rate after step 0"), "{why}");
    /// Sets what there is not.
    struct Wrong;
    impl Callback for Wrong {
        fn on_step_model(&mut self, _: &StepEvent, model: &mut LiveModel<'_>) -> Result<()> {
            model.set_values("nosuch", &[1.0])
        }
    }
    let mut wrong = Trainer::new(model(), softmax_cross_entropy, Sgd::new(0.8))
        .device(Device::cpu_threads(1).unwrap())
        .callback(Wrong);
    let why = wrong.fit(data().batch(10), Epochs(1)).unwrap_err().to_string();
    assert!(why.contains("there is no parameter nosuch"), "{why}");
}

#[test]
fn a_callback_sees_the_metrics_of_the_epoch_so_far_after_every_step() {
    #[derive(Clone, Default)]
    struct Seen(std::sync::Arc<std::sync::Mutex<Vec<(String, f64)>>>);
    impl Callback for Seen {
        fn on_step_model(&mut self, _: &StepEvent, model: &mut LiveModel<'_>) -> Result<()> {
            let now = model.metrics().map(|(name, value)| (name.to_string(), value));
            *self.0.lock().unwrap() = now.collect();
            Ok(())
        }
    }
    let seen = Seen::default();
    let mut trainer = Trainer::new(model(), softmax_cross_entropy, Sgd::new(0.1))
        .device(Device::cpu_threads(1).unwrap())
        .metrics([plimsoll_nn::Metric::Accuracy])
        .callback(seen.clone());
    let history = trainer.fit(data().batch(10), Epochs(1)).unwrap();
    let last = seen.0.lock().unwrap().clone();
    assert_eq!(last, history[0].metrics);
    assert_eq!(last[0].0, "accuracy");
}
