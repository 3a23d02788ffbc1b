//! Metrics without keeping outputs: each batch leaves a few sums, and the host turns their total into a number.
//!
//! Sums are over samples, so batches of different sizes weigh as they should.

use plimsoll_graph::ops::ScatterAdd;
use plimsoll_graph::{DType, GatherOps, LossOps, Site, TensorOps, Type};
use plimsoll_run::{Result, Tensor};

use crate::confusion::{Auc, found};
use crate::error::refuse;
use crate::loss::alike;

/// A number that says how good outputs are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Metric {
    /// The share of labels `[..]` that are the largest of the logits `[.., C]`. Labels may have a last axis of length 1, or be
    /// distributions `[.., C]`, of which the largest counts.
    Accuracy,
    /// The share of labels with fewer than k larger logits.
    TopK(usize),
    /// The share of targets (0 or 1) on the same side as the logits, of one shape but for a last axis of length 1.
    BinaryAccuracy,
    /// The share of targets (0 or 1) that say whether outputs are above a threshold: for probabilities, usually ½.
    BinaryAccuracyAt(f64),
    /// The share of true cases among those found: with a probability above the threshold, of all classes or of one.
    Precision {
        /// What a probability must be above.
        threshold: f64,
        /// The one class that counts, along the last axis.
        class: Option<usize>,
    },
    /// The share of found cases among the true ones.
    Recall {
        /// What a probability must be above.
        threshold: f64,
        /// The one class that counts, along the last axis.
        class: Option<usize>,
    },
    /// The area under a curve over thresholds of probabilities.
    Auc(Auc),
    /// The mean over classes of intersection over union, for labels `[..]` and logits `[.., C]`; classes that appear
    /// nowhere do not count.
    MeanIou,
    /// The mean cross-entropy of logits `[.., C]` with labels `[..]`.
    CrossEntropy,
    /// e to the mean cross-entropy.
    Perplexity,
    /// The mean of |x - t|.
    Mae,
    /// The mean of (x - t)².
    Mse,
    /// The root of the mean of (x - t)².
    Rmse,
    /// 1 - Σ (x - t)² / Σ (t - mean of t)².
    R2,
}

impl Metric {
    /// Its name: `accuracy`, `top5`.
    pub fn name(self) -> String {
        match self {
            Metric::Accuracy => "accuracy".into(),
            Metric::TopK(k) => format!("top{k}"),
            Metric::BinaryAccuracy | Metric::BinaryAccuracyAt(_) => "binary_accuracy".into(),
            Metric::Precision { .. } => "precision".into(),
            Metric::Recall { .. } => "recall".into(),
            Metric::Auc(_) => "auc".into(),
            Metric::MeanIou => "mean_iou".into(),
            Metric::CrossEntropy => "cross_entropy".into(),
            Metric::Perplexity => "perplexity".into(),
            Metric::Mae => "mae".into(),
            Metric::Mse => "mse".into(),
            Metric::Rmse => "rmse".into(),
            Metric::R2 => "r2".into(),
        }
    }

    /// What the metric is a mean of, element by element: a hit, an error, a cross-entropy. None of those that are no such mean.
    #[track_caller]
    pub fn each(self, outputs: &Tensor, labels: &Tensor) -> Result<Option<Tensor>> {
        let number = |value: f64| outputs.full_like(Type::new(DType::F32, []), value);
        Ok(Some(match self {
            Metric::Accuracy => {
                let (labels, _) = classes(outputs, labels)?;
                outputs.argmax(-1)?.equal(&labels)?
            }
            Metric::TopK(k) => {
                let (labels, _) = classes(outputs, labels)?;
                let mut place = labels.shape().clone();
                place.push(1);
                let own = outputs.take_along(&labels.reshape(place)?, -1)?;
                let last = outputs.shape().rank() - 1;
                let larger = outputs.greater(&own)?.cast(DType::F32)?.sum(&[last], false)?;
                larger.less(&number(k as f64)?)?
            }
            Metric::BinaryAccuracy => {
                let (x, t) = alike(outputs, labels)?;
                let is_true = t.greater(&number(0.5)?)?.cast(DType::F32)?;
                x.greater(&number(0.0)?)?.cast(DType::F32)?.equal(&is_true)?
            }
            Metric::BinaryAccuracyAt(threshold) => {
                let (x, t) = alike(outputs, labels)?;
                x.greater(&number(threshold)?)?.cast(DType::F32)?.equal(&t)?
            }
            Metric::CrossEntropy | Metric::Perplexity => {
                match labels.dtype().is_float() && labels.shape() == outputs.shape() {
                    true => {
                        outputs.cast(DType::F32)?.dense_softmax_cross_entropy(&labels.cast(DType::F32)?)?
                    }
                    false => outputs.softmax_cross_entropy(&classes(outputs, labels)?.0)?,
                }
            }
            Metric::Mae => {
                let (x, t) = alike(outputs, labels)?;
                x.sub(&t)?.abs()?
            }
            Metric::Mse | Metric::Rmse => {
                let (x, t) = alike(outputs, labels)?;
                x.sub(&t)?.square()?
            }
            Metric::Precision { .. }
            | Metric::Recall { .. }
            | Metric::Auc(_)
            | Metric::MeanIou
            | Metric::R2 => {
                return Ok(None);
            }
        }))
    }

    /// The sums of a batch, f32 and small: a number, or one a class. Works eagerly and inside a traced step; add them
    /// up with a [`Tally`].
    #[track_caller]
    pub fn sums(self, outputs: &Tensor, labels: &Tensor) -> Result<Tensor> {
        // What is counted is f32 also of a model in f64.
        let outputs =
            &if outputs.dtype() == DType::F64 { outputs.cast(DType::F32)? } else { outputs.clone() };
        let count = |n: usize| outputs.full_like(Type::new(DType::F32, [1]), n as f64);
        let total = |x: &Tensor| x.cast(DType::F32)?.sum(&[], false)?.reshape([1]);
        let n = labels.ty().elements();
        if let Some(each) = self.each(outputs, labels)? {
            return Tensor::concat(&[&total(&each)?, &count(each.ty().elements())?], 0);
        }
        match self {
            Metric::Precision { threshold, class } | Metric::Recall { threshold, class } => {
                found(outputs, labels, threshold, class)
            }
            Metric::Auc(auc) => auc.sums(outputs, labels),
            Metric::MeanIou => {
                let (labels, classes) = classes(outputs, labels)?;
                let n = labels.ty().elements();
                let (found, labels) = (outputs.argmax(-1)?.reshape([n])?, labels.reshape([n])?);
                let ones = outputs.full_like(Type::new(DType::F32, [n]), 1.0)?;
                let by_class = |x: &Tensor, class: &Tensor| {
                    x.emit_one(ScatterAdd { axis: 0, length: classes }, &[x, class], Site::here())
                };
                let hits = found.equal(&labels)?.cast(DType::F32)?;
                let parts = [by_class(&hits, &labels)?, by_class(&ones, &labels)?, by_class(&ones, &found)?];
                Tensor::concat(&[&parts[0], &parts[1], &parts[2]], 0)
            }
            Metric::R2 => {
                let (x, t) = alike(outputs, labels)?;
                let squares = [total(&x.sub(&t)?.square()?)?, total(&t)?, total(&t.square()?)?];
                Tensor::concat(&[&squares[0], &squares[1], &squares[2], &count(n)?], 0)
            }
            _ => Err(refuse("counts what is no mean and has no sums")),
        }
    }

    /// The metric, from sums over everything; not a number where there was nothing.
    pub fn finish(self, sums: &[f64]) -> f64 {
        let at = |i: usize| sums.get(i).copied().unwrap_or(f64::NAN);
        let mean = at(0) / at(1);
        match self {
            // Keras counts a share of nothing as 0.
            Metric::Precision { .. } if at(0) + at(1) == 0.0 => 0.0,
            Metric::Recall { .. } if at(0) + at(2) == 0.0 => 0.0,
            Metric::Precision { .. } => at(0) / (at(0) + at(1)),
            Metric::Recall { .. } => at(0) / (at(0) + at(2)),
            Metric::Auc(auc) => auc.finish(sums),
            Metric::Perplexity => mean.exp(),
            Metric::Rmse => mean.sqrt(),
            Metric::R2 => 1.0 - at(0) / (at(2) - at(1) * at(1) / at(3)),
            Metric::MeanIou => {
                let classes = sums.len() / 3;
                let union = |c: usize| at(classes + c) + at(2 * classes + c) - at(c);
                let seen: Vec<f64> =
                    (0..classes).filter(|&c| union(c) > 0.0).map(|c| at(c) / union(c)).collect();
                seen.iter().sum::<f64>() / seen.len() as f64
            }
            _ => mean,
        }
    }
}

/// Labels of logits `[.., C]` as i64 `[..]`, and C.
#[track_caller]
fn classes(outputs: &Tensor, labels: &Tensor) -> Result<(Tensor, usize)> {
    let given = labels.shape();
    match outputs.shape().split_last() {
        Some((&classes, rest)) if labels.dtype().is_index() && rest == &given[..] => {
            Ok((labels.cast(DType::I64)?, classes))
        }
        // Keras takes off a last axis of length 1.
        Some((&classes, rest))
            if labels.dtype().is_index() && given.split_last() == Some((&1, rest)) && classes > 1 =>
        {
            Ok((labels.cast(DType::I64)?.reshape(rest)?, classes))
        }
        Some((&classes, _)) if classes > 1 && outputs.shape() == given => Ok((labels.argmax(-1)?, classes)),
        _ => Err(refuse(format!(
            "compares logits of {} with labels of {}; logits have one axis more, and labels are integers",
            outputs.ty(),
            labels.ty()
        ))),
    }
}

/// The total of a metric's sums over batches.
///
/// ```
/// use plimsoll_nn::{Metric, Tally};
/// use plimsoll_run::Tensor;
/// let mut tally = Tally::new(Metric::Accuracy);
/// let logits = Tensor::from_slice(&[0.0f32, 1.0, 1.0, 0.0, 0.3, 0.2], [3, 2])?;
/// let labels = Tensor::from_slice(&[1i64, 1, 0], [3])?;
/// tally.add(&Metric::Accuracy.sums(&logits, &labels)?)?;
/// assert!((tally.value() - 2.0 / 3.0).abs() < 1e-12);
/// # Ok::<(), plimsoll_run::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Tally {
    metric: Metric,
    sums: Vec<f64>,
}

impl Tally {
    /// Nothing yet.
    pub fn new(metric: Metric) -> Tally {
        Tally { metric, sums: Vec::new() }
    }

    /// Adds a batch's [`Metric::sums`].
    #[track_caller]
    pub fn add(&mut self, sums: &Tensor) -> Result<()> {
        let sums = sums.to_f64()?;
        if self.sums.is_empty() {
            self.sums = vec![0.0; sums.len()];
        }
        if sums.len() != self.sums.len() {
            let (n, own) = (sums.len(), self.sums.len());
            return Err(refuse(format!("adds {n} sums of {} where there were {own}", self.metric.name())));
        }
        self.sums.iter_mut().zip(sums).for_each(|(total, x)| *total += x);
        Ok(())
    }

    /// The metric over everything added so far.
    pub fn value(&self) -> f64 {
        self.metric.finish(&self.sums)
    }

    /// Begins anew.
    pub fn clear(&mut self) {
        self.sums.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Init;

    const CLASSES: usize = 5;

    fn logits(n: usize) -> Vec<f32> {
        let ty = Type::new(DType::F32, [n, CLASSES]);
        Init::Normal(1.0).draw("logits", &ty, 1).unwrap().to_vec().unwrap()
    }

    fn label(i: usize) -> i64 {
        // Class 4 is never a label.
        (i * 7 % 4) as i64
    }

    /// A metric over uneven batches of 17 samples.
    fn over_batches(metric: Metric) -> f64 {
        let (x, mut tally) = (logits(17), Tally::new(metric));
        for (start, end) in [(0, 8), (8, 16), (16, 17)] {
            let x = Tensor::from_slice(&x[start * CLASSES..end * CLASSES], [end - start, CLASSES]).unwrap();
            let y: Vec<i64> = (start..end).map(label).collect();
            tally.add(&metric.sums(&x, &Tensor::from_slice(&y, [y.len()]).unwrap()).unwrap()).unwrap();
        }
        tally.value()
    }

    fn rank(row: &[f32], label: i64) -> usize {
        row.iter().filter(|x| **x > row[label as usize]).count()
    }

    #[test]
    fn classes_are_counted_over_uneven_batches_as_over_all_samples() {
        let x = logits(17);
        let ranks: Vec<usize> = x.chunks(CLASSES).enumerate().map(|(i, row)| rank(row, label(i))).collect();
        let share = |k: usize| ranks.iter().filter(|&&r| r < k).count() as f64 / 17.0;
        assert_eq!(over_batches(Metric::Accuracy), share(1));
        assert_eq!(over_batches(Metric::TopK(1)), share(1));
        assert_eq!(over_batches(Metric::TopK(3)), share(3));
        let entropy = |(i, row): (usize, &[f32])| {
            let sum: f64 = row.iter().map(|x| f64::from(*x).exp()).sum();
            sum.ln() - f64::from(row[label(i) as usize])
        };
        let mean = x.chunks(CLASSES).enumerate().map(entropy).sum::<f64>() / 17.0;
        assert!((over_batches(Metric::CrossEntropy) - mean).abs() < 1e-6);
        assert!((over_batches(Metric::Perplexity) - mean.exp()).abs() < 1e-5);
    }

    #[test]
    fn mean_iou_is_that_of_the_whole_set_and_skips_absent_classes() {
        let found: Vec<usize> = logits(17)
            .chunks(CLASSES)
            .map(|row| (0..CLASSES).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap())
            .collect();
        let mut ious = Vec::new();
        for class in 0..CLASSES {
            let is = |i: usize| (found[i] == class, label(i) as usize == class);
            let both = (0..17).filter(|&i| is(i) == (true, true)).count();
            let either = (0..17).filter(|&i| is(i) != (false, false)).count();
            ious.extend((either > 0).then(|| both as f64 / either as f64));
        }
        let mean = ious.iter().sum::<f64>() / ious.len() as f64;
        assert!((over_batches(Metric::MeanIou) - mean).abs() < 1e-9);
        // Two classes of which one appears nowhere: the other's overlap is all there is.
        assert_eq!(Metric::MeanIou.finish(&[3.0, 0.0, 4.0, 0.0, 3.0, 0.0]), 0.75);
    }

    #[test]
    fn distances_are_means_over_elements() {
        let x = Tensor::from_slice(&[1.0f32, 2.0, 4.0, -1.0], [4]).unwrap();
        let t = Tensor::from_slice(&[1.0f32, 0.0, 1.0, 0.0], [4]).unwrap();
        let value = |metric: Metric| {
            let mut tally = Tally::new(metric);
            tally.add(&metric.sums(&x, &t).unwrap()).unwrap();
            tally.value()
        };
        assert!((value(Metric::Mae) - 6.0 / 4.0).abs() < 1e-9);
        assert!((value(Metric::Mse) - 14.0 / 4.0).abs() < 1e-9);
        assert!((value(Metric::Rmse) - 3.5f64.sqrt()).abs() < 1e-9);
        assert!((value(Metric::R2) - (1.0 - 14.0)).abs() < 1e-6);
        assert_eq!(value(Metric::BinaryAccuracy), 0.75);
    }

    /// What Keras 3 gives for the same numbers: it takes off or adds a last axis of length 1.
    #[test]
    fn a_last_axis_of_one_may_be_missing() {
        let x = Tensor::from_slice(&[2.0f32, -1.0, 0.5, -3.0], [4, 1]).unwrap();
        let t = Tensor::from_slice(&[1i64, 1, 0, 0], [4]).unwrap();
        let value = |metric: Metric, x: &Tensor, t: &Tensor| {
            let mut tally = Tally::new(metric);
            tally.add(&metric.sums(x, t).unwrap()).unwrap();
            tally.value()
        };
        let (row, column) = (x.reshape([4]).unwrap(), t.reshape([4, 1]).unwrap());
        for metric in [Metric::BinaryAccuracy, Metric::Mae, Metric::Mse, Metric::Rmse, Metric::R2] {
            let alike = value(metric, &x, &column);
            assert_eq!((value(metric, &x, &t), value(metric, &row, &column)), (alike, alike), "{metric:?}");
        }
        assert_eq!(value(Metric::BinaryAccuracy, &x, &t), 0.5);
        let loss = |x: &Tensor, t: &Tensor| crate::binary_cross_entropy(x, t).unwrap().item().unwrap();
        assert_eq!(loss(&x, &t), loss(&x, &column));
        // log(1 + e⁻²) + log(1 + e) + log(1 + e^½) + log(1 + e⁻³), by four.
        assert!((loss(&x, &t) - 0.615_714).abs() < 1e-5, "{}", loss(&x, &t));
        let three = Tensor::from_slice(&[0.0f32; 3], [3]).unwrap();
        assert!(Metric::BinaryAccuracy.sums(&x, &three).is_err());
    }

    #[test]
    fn classes_may_be_a_column_or_distributions() {
        let x = Tensor::from_slice(&[0.0f32, 1.0, 2.0, 3.0, 1.0, 2.0], [2, 3]).unwrap();
        let row = Tensor::from_slice(&[2i64, 1], [2]).unwrap();
        let column = row.reshape([2, 1]).unwrap();
        let hot = row.one_hot(3, DType::F32).unwrap();
        for metric in [Metric::Accuracy, Metric::TopK(2), Metric::CrossEntropy, Metric::MeanIou] {
            let sums = |labels: &Tensor| metric.sums(&x, labels).unwrap().to_f64().unwrap();
            assert_eq!(sums(&row), sums(&column), "{metric:?}");
            let far = sums(&row).iter().zip(sums(&hot)).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            assert!(far < 1e-6, "{metric:?}");
        }
        assert_eq!(Metric::Accuracy.sums(&x, &hot).unwrap().to_f64().unwrap(), [1.0, 2.0]);
    }

    #[test]
    fn labels_of_the_wrong_shape_or_kind_are_refused() {
        let x = Tensor::from_slice(&[0.0f32; 6], [2, 3]).unwrap();
        let floats = Tensor::from_slice(&[0.0f32; 2], [2]).unwrap();
        let three = Tensor::from_slice(&[0i64; 3], [3]).unwrap();
        for metric in [Metric::Accuracy, Metric::TopK(2), Metric::MeanIou] {
            assert!(metric.sums(&x, &floats).is_err(), "{metric:?}");
            assert!(metric.sums(&x, &three).is_err(), "{metric:?}");
        }
        let mut tally = Tally::new(Metric::Mae);
        assert!(tally.value().is_nan(), "nothing was added");
        tally.add(&floats).unwrap();
        assert!(tally.add(&three).is_err());
    }
}
