//! Metrics over batches against Keras's; `metrics/make.py` made the values.

use std::collections::BTreeMap;

use plimsoll_nn::{Auc, Curve, Measure, Metric, Summation, View};
use plimsoll_run::Tensor;

#[derive(serde::Deserialize)]
struct Array {
    shape: Vec<usize>,
    values: Vec<f64>,
}

impl Array {
    fn rows(&self, at: usize, n: usize) -> (Vec<usize>, &[f64]) {
        let row: usize = self.shape[1..].iter().product();
        let shape = [&[n], &self.shape[1..]].concat();
        (shape, &self.values[at * row..(at + n) * row])
    }
}

#[derive(serde::Deserialize)]
struct Set {
    outputs: Array,
    labels: Array,
}

#[derive(serde::Deserialize)]
struct Value {
    set: String,
    value: f64,
}

#[derive(serde::Deserialize)]
struct Golden {
    sets: BTreeMap<String, Set>,
    values: BTreeMap<String, Value>,
}

/// The measure over batches of 13 samples, where Keras had 7.
fn value(measure: &Measure, set: &Set) -> f64 {
    let samples = set.outputs.shape[0];
    let mut total: Vec<f64> = Vec::new();
    for at in (0..samples).step_by(13) {
        let n = 13.min(samples - at);
        let (shape, x) = set.outputs.rows(at, n);
        let x: Vec<f32> = x.iter().map(|x| *x as f32).collect();
        let x = Tensor::from_slice(&x, &shape[..]).unwrap();
        let (shape, t) = set.labels.rows(at, n);
        // Classes are whole numbers.
        let t = match set.outputs.shape.len() > set.labels.shape.len() && set.outputs.shape[1] > 1 {
            true => Tensor::from_slice(&t.iter().map(|t| *t as i64).collect::<Vec<i64>>(), &shape[..]),
            false => Tensor::from_slice(&t.iter().map(|t| *t as f32).collect::<Vec<f32>>(), &shape[..]),
        };
        let sums = measure.sums(&[x], &[t.unwrap()], &[]).unwrap().to_f64().unwrap();
        total.resize(sums.len(), 0.0);
        total.iter_mut().zip(sums).for_each(|(total, sum)| *total += sum);
    }
    measure.finish(&total)
}

#[test]
fn metrics_are_kerass() {
    let golden: Golden = serde_json::from_str(include_str!("metrics/metrics.json")).unwrap();
    let auc =
        |curve, summation, thresholds, by_label| Metric::Auc(Auc { thresholds, curve, summation, by_label });
    let precision = |threshold: f64, class| Metric::Precision { threshold, class };
    let recall = |threshold: f64, class| Metric::Recall { threshold, class };
    use Summation::{Interpolation, Majoring, Minoring};
    let default = Metric::Auc(Auc::default());
    let cases: Vec<(&str, Metric)> = vec![
        ("auc", default),
        ("auc_column", default),
        ("auc_logits", default),
        ("auc_pr", auc(Curve::Pr, Interpolation, 200, false)),
        ("auc_pr_minoring", auc(Curve::Pr, Minoring, 200, false)),
        ("auc_majoring", auc(Curve::Roc, Majoring, 20, false)),
        ("auc_minoring", auc(Curve::Roc, Minoring, 5, false)),
        ("auc_many", default),
        ("auc_by_label", auc(Curve::Roc, Interpolation, 50, true)),
        ("auc_pr_by_label", auc(Curve::Pr, Interpolation, 200, true)),
        ("auc_never", default),
        ("precision", precision(0.5, None)),
        ("precision_30", precision(0.3, None)),
        ("precision_hot", precision(0.2, None)),
        ("precision_class", precision(0.3, Some(2))),
        ("precision_never", precision(0.5, None)),
        ("recall", recall(0.5, None)),
        ("recall_many", recall(0.25, None)),
        ("recall_class", recall(0.5, Some(4))),
        ("recall_never", recall(0.5, None)),
        ("binary", Metric::BinaryAccuracyAt(0.5)),
        ("binary_30", Metric::BinaryAccuracyAt(0.3)),
        ("top2", Metric::TopK(2)),
        ("sparse_top3", Metric::TopK(3)),
        ("accuracy", Metric::Accuracy),
        ("sparse_accuracy", Metric::Accuracy),
        ("mean_iou", Metric::MeanIou),
        ("sparse_mean_iou", Metric::MeanIou),
        ("mse", Metric::Mse),
        ("mae", Metric::Mae),
        ("rmse", Metric::Rmse),
    ];
    assert_eq!(cases.len(), golden.values.len());
    for (name, metric) in cases {
        let expected = &golden.values[name];
        let view = if name == "auc_logits" { View::Sigmoid } else { View::Plain };
        let found = value(&Measure { view, ..metric.into() }, &golden.sets[&expected.set]);
        assert!(
            (found - expected.value).abs() < 2e-6,
            "{name}: {found} where it should be {}",
            expected.value
        );
    }
}

#[test]
fn what_cannot_be_counted_is_refused() {
    let golden: Golden = serde_json::from_str(include_str!("metrics/metrics.json")).unwrap();
    let set = &golden.sets["scores"];
    let (x, t) = (set.outputs.rows(0, 4).1, set.labels.rows(0, 4).1);
    let tensor =
        |x: &[f64]| Tensor::from_slice(&x.iter().map(|x| *x as f32).collect::<Vec<f32>>(), [4]).unwrap();
    let refused = |metric: Metric| metric.sums(&tensor(x), &tensor(t)).unwrap_err().to_string();
    assert!(refused(Metric::Precision { threshold: 0.5, class: Some(4) }).contains("class 4"));
    assert!(refused(Metric::Auc(Auc { by_label: true, ..Auc::default() })).contains("by label"));
    assert!(refused(Metric::Auc(Auc { thresholds: 1, ..Auc::default() })).contains("2 thresholds"));
    assert!(Metric::Auc(Auc::default()).finish(&[]).is_nan());
}
