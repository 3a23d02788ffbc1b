//! Counts of right and wrong answers to yes-or-no questions, and areas under curves that they make.
//!
//! Outputs are probabilities, targets 0 or not, of one shape but for a last axis of length 1. Everything is as Keras has it,
//! its buckets for areas included, so that numbers can be compared.

use plimsoll_graph::ops::ScatterAdd;
use plimsoll_graph::{DType, Site, TensorOps, Type};
use plimsoll_run::{Result, Tensor};

use crate::error::refuse;
use crate::loss::alike;

/// The area under a curve over thresholds from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Auc {
    /// How many thresholds, the first just below 0 and the last just above 1.
    pub thresholds: usize,
    /// Which curve.
    pub curve: Curve,
    /// How the area between two thresholds is taken.
    pub summation: Summation,
    /// Whether each label of `[N, L]` has a curve of its own; the mean of their areas counts.
    pub by_label: bool,
}

/// A curve over thresholds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Curve {
    /// The share of true cases found over that of false ones.
    Roc,
    /// Precision over recall.
    Pr,
}

/// How the area between two thresholds is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Summation {
    /// By the straight line between them; for precision, with true and false cases on straight lines.
    Interpolation,
    /// By the smaller height.
    Minoring,
    /// By the larger height.
    Majoring,
}

impl Default for Auc {
    /// The area under the ROC curve over 200 thresholds.
    fn default() -> Auc {
        Auc { thresholds: 200, curve: Curve::Roc, summation: Summation::Interpolation, by_label: false }
    }
}

impl Auc {
    /// True and then false cases by bucket: those above a threshold and not above the next one.
    #[track_caller]
    pub(crate) fn sums(self, outputs: &Tensor, labels: &Tensor) -> Result<Tensor> {
        if self.thresholds < 2 {
            return Err(refuse("counts an area over fewer than 2 thresholds"));
        }
        let (x, t) = alike(outputs, labels)?;
        let n = x.ty().elements();
        let t = truths(&t)?;
        // The largest whole number below, which is the bucket: a case on a threshold is not above it.
        let steps = (self.thresholds - 1) as f64;
        let upper = x.clamp(0.0, 1.0)?.mul_scalar(-steps)?.floor()?.neg()?;
        let mut bucket = upper.add_scalar(-1.0)?.relu()?;
        let mut length = self.thresholds;
        if self.by_label {
            let [_, labels] = x.shape()[..] else {
                return Err(refuse(format!("counts areas by label in outputs of {}", x.ty())));
            };
            let first = x.iota_like(Type::new(DType::F32, [labels]), 0)?;
            bucket = bucket.add(&first.mul_scalar(self.thresholds as f64)?)?;
            length *= labels;
        }
        let bucket = bucket.cast(DType::I64)?.reshape([n])?;
        let by_bucket = |cases: &Tensor| {
            let cases = cases.reshape([n])?;
            cases.emit_one(ScatterAdd { axis: 0, length }, &[&cases, &bucket], Site::here())
        };
        Tensor::concat(&[&by_bucket(&t)?, &by_bucket(&t.rsub_scalar(1.0)?)?], 0)
    }

    pub(crate) fn finish(self, sums: &[f64]) -> f64 {
        let n = self.thresholds;
        let labels = sums.len() / (2 * n);
        if labels == 0 {
            return f64::NAN;
        }
        let (yes, no) = sums.split_at(labels * n);
        let areas = yes.chunks(n).zip(no.chunks(n)).map(|(yes, no)| self.area(yes, no));
        areas.sum::<f64>() / labels as f64
    }

    fn area(self, yes: &[f64], no: &[f64]) -> f64 {
        // Cases above each threshold.
        let above = |buckets: &[f64]| {
            let mut sums = buckets.to_vec();
            (0..sums.len().saturating_sub(1)).rev().for_each(|i| sums[i] += sums[i + 1]);
            sums
        };
        let (all_yes, all_no) = (yes.iter().sum::<f64>(), no.iter().sum::<f64>());
        let (tp, fp) = (above(yes), above(no));
        let share = |a: f64, b: f64| if b == 0.0 { 0.0 } else { a / b };
        if (self.curve, self.summation) == (Curve::Pr, Summation::Interpolation) {
            // Davis and Goadrich 2006, section 4: between two thresholds, true cases grow linearly with all that are found.
            let between = |i: usize| {
                let (p, next) = (tp[i] + fp[i], tp[i + 1] + fp[i + 1]);
                let found = tp[i] - tp[i + 1];
                let slope = share(found, p - next);
                let start = tp[i + 1] - slope * next;
                let ratio = if p > 0.0 && next > 0.0 { p / next } else { 1.0 };
                share(slope * (found + start * ratio.ln()), all_yes)
            };
            return (0..tp.len() - 1).map(between).sum();
        }
        let point = |i: usize| match self.curve {
            Curve::Roc => (share(fp[i], all_no), share(tp[i], all_yes)),
            Curve::Pr => (share(tp[i], all_yes), share(tp[i], tp[i] + fp[i])),
        };
        let between = |i: usize| {
            let ((x, y), (next_x, next_y)) = (point(i), point(i + 1));
            let height = match self.summation {
                Summation::Interpolation => (y + next_y) / 2.0,
                Summation::Minoring => y.min(next_y),
                Summation::Majoring => y.max(next_y),
            };
            (x - next_x) * height
        };
        (0..tp.len() - 1).map(between).sum()
    }
}

/// 1 where a target is not 0.
fn truths(t: &Tensor) -> Result<Tensor> {
    let zero = t.full_like(Type::new(DType::F32, []), 0.0)?;
    t.not_equal(&zero)?.cast(DType::F32)
}

/// Cases that are true and found, found and not true, true and not found: those with more than `threshold`, of all classes or
/// of one.
#[track_caller]
pub(crate) fn found(
    outputs: &Tensor,
    labels: &Tensor,
    threshold: f64,
    class: Option<usize>,
) -> Result<Tensor> {
    let (mut x, mut t) = alike(outputs, labels)?;
    if let Some(class) = class {
        let last = x.shape().rank().saturating_sub(1);
        if x.shape().last().is_none_or(|&n| class >= n) {
            return Err(refuse(format!("counts class {class} in outputs of {}", x.ty())));
        }
        (x, t) = (x.narrow(last, class, class + 1)?, t.narrow(last, class, class + 1)?);
    }
    let least = x.full_like(Type::new(DType::F32, []), threshold)?;
    let (found, t) = (x.greater(&least)?.cast(DType::F32)?, truths(&t)?);
    let total = |x: &Tensor| x.sum(&[], false)?.reshape([1]);
    let both = found.mul(&t)?;
    Tensor::concat(&[&total(&both)?, &total(&found.sub(&both)?)?, &total(&t.sub(&both)?)?], 0)
}
