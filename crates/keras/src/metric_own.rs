//! Keras's metrics that are no mean and no metric of the engine: each as a few sums of a batch, and a number made of their total.

use plimsoll_graph::ops::ScatterAdd;
use plimsoll_graph::{DType, GatherOps, Site, SortOps, TensorOps, Type};
use plimsoll_nn::{Auc, Metric, OwnMetric};
use plimsoll_run::{Result as RunResult, Tensor};

use crate::error::refuse;
use crate::loss::{EPSILON, targets};

/// What Keras counts.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Counted {
    /// The weighted harmonic mean of precision and recall, by class.
    FBeta { average: Average, beta: f64, threshold: Option<f64> },
    /// Cases of a kind, or a share of them.
    Cases { share: Share, threshold: Option<f64>, class: Option<usize>, top: Option<usize> },
    /// The best of one share where another is at least so much, over thresholds from 0 to 1.
    Best { of: Share, where_: Share, least: f64, thresholds: usize, class: Option<usize> },
    /// An area under a curve with thresholds of one's own, or with weights for labels.
    Area { auc: Auc, thresholds: Vec<f64>, weights: Vec<f64> },
    /// The mean over some classes of intersection over union.
    Iou { classes: usize, wanted: Vec<usize>, ignored: Option<i64>, sparse: [bool; 2] },
    /// The same for yes or no.
    BinaryIou { wanted: Vec<usize>, threshold: f64 },
    /// 1 - Σ (x - t)² / Σ (t - mean of t)² by column.
    R2 { by_variance: bool, column: Option<usize>, regressors: usize },
    /// The share of outputs that are their labels.
    Same,
}

/// How classes count together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Average {
    Micro,
    Macro,
    Weighted,
    /// One alone.
    Class(usize),
}

/// A number of cases, or a share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Share {
    TruePositives,
    FalsePositives,
    TrueNegatives,
    FalseNegatives,
    Precision,
    Recall,
    Specificity,
}

impl Share {
    /// From the numbers of cases that are true and found, wrongly found, true and missed, rightly left out.
    fn of(self, tp: f64, fp: f64, missed: f64, tn: f64) -> f64 {
        let share = |a: f64, b: f64| if b == 0.0 { 0.0 } else { a / b };
        match self {
            Share::TruePositives => tp,
            Share::FalsePositives => fp,
            Share::FalseNegatives => missed,
            Share::TrueNegatives => tn,
            Share::Precision => share(tp, tp + fp),
            Share::Recall => share(tp, tp + missed),
            Share::Specificity => share(tn, tn + fp),
        }
    }
}

/// One class along the last axis, where only that counts.
fn of_class(x: &Tensor, class: Option<usize>) -> RunResult<Tensor> {
    let Some(class) = class else { return Ok(x.clone()) };
    x.narrow(x.shape().rank().saturating_sub(1), class, class + 1)
}

fn truth(x: &Tensor) -> RunResult<Tensor> {
    x.cast(DType::F32)
}

fn scalar(x: &Tensor, value: f64) -> RunResult<Tensor> {
    x.full_like(Type::new(x.dtype(), []), value)
}

fn total(x: &Tensor) -> RunResult<Tensor> {
    x.sum(&[], false)?.reshape([1])
}

fn joined(parts: &[Tensor]) -> RunResult<Tensor> {
    Tensor::concat(&parts.iter().collect::<Vec<_>>(), 0)
}

/// True and false cases that are found and not, one number each.
fn cases(found: &Tensor, t: &Tensor) -> RunResult<Tensor> {
    let both = found.mul(t)?;
    let (wrong, missed) = (found.sub(&both)?, t.sub(&both)?);
    let none = found.add(t)?.sub(&both)?.rsub_scalar(1.0)?;
    joined(&[total(&both)?, total(&wrong)?, total(&missed)?, total(&none)?])
}

/// Numbers of classes `[..]`, and what of them counts: hits, labels and findings by class.
fn overlaps(t: &Tensor, x: &Tensor, classes: usize, ignored: Option<i64>) -> RunResult<Tensor> {
    let n = t.ty().elements();
    let (t, x) = (t.cast(DType::I64)?.reshape([n])?, x.cast(DType::I64)?.reshape([n])?);
    let inside = |x: &Tensor| -> RunResult<Tensor> {
        x.greater_equal(&scalar(x, 0.0)?)?.and(&x.less(&scalar(x, classes as f64)?)?)
    };
    let mut counts = inside(&t)?.and(&inside(&x)?)?;
    if let Some(class) = ignored {
        counts = counts.and(&t.not_equal(&scalar(&t, class as f64)?)?)?;
    }
    let zeros = t.full_like(t.ty().clone(), 0.0)?;
    let (t, x) = (counts.select(&t, &zeros)?, counts.select(&x, &zeros)?);
    let counts = truth(&counts)?;
    let by_class = |x: &Tensor, class: &Tensor| {
        x.emit_one(ScatterAdd { axis: 0, length: classes }, &[x, class], Site::here())
    };
    let hits = truth(&t.equal(&x)?)?.mul(&counts)?;
    joined(&[by_class(&hits, &t)?, by_class(&counts, &t)?, by_class(&counts, &x)?])
}

/// The mean over the wanted classes that appear at all.
fn mean_overlap(sums: &[f64], wanted: &[usize]) -> f64 {
    let classes = sums.len() / 3;
    let at = |i: usize| sums.get(i).copied().unwrap_or(f64::NAN);
    let union = |c: usize| at(classes + c) + at(2 * classes + c) - at(c);
    let seen: Vec<usize> = wanted.iter().copied().filter(|&c| union(c) > 1e-9).collect();
    seen.iter().map(|&c| at(c) / (union(c) + EPSILON)).sum::<f64>() / (seen.len() as f64 + EPSILON)
}

impl OwnMetric for Counted {
    fn sums(&self, output: &Tensor, label: &Tensor) -> RunResult<Tensor> {
        let x = output.cast(DType::F32)?;
        let last = x.shape().rank().saturating_sub(1);
        match self {
            Counted::FBeta { average, threshold, .. } => {
                let t = targets(&x, label)?;
                if x.shape().rank() != 2 {
                    return Err(refuse(format!("counts an F score of {}, which should be [N, C]", x.ty())));
                }
                let found = match threshold {
                    Some(threshold) => truth(&x.greater(&scalar(&x, *threshold)?)?)?,
                    None => {
                        let most = x.max(&[last], true)?;
                        let there = x.abs()?.greater(&scalar(&x, 1e-9)?)?;
                        truth(&x.greater_equal(&most)?.and(&there)?)?
                    }
                };
                let sum = |x: &Tensor| match average {
                    Average::Micro => total(x),
                    _ => x.sum(&[0], false),
                };
                let both = found.mul(&t)?;
                joined(&[
                    sum(&both)?,
                    sum(&found.mul(&t.rsub_scalar(1.0)?)?)?,
                    sum(&found.rsub_scalar(1.0)?.mul(&t)?)?,
                    sum(&t)?,
                ])
            }
            Counted::Cases { threshold, class, top, .. } => {
                let t = targets(&x, label)?;
                let t = truth(&t.not_equal(&scalar(&t, 0.0)?)?)?;
                let mut found = match threshold {
                    Some(threshold) => truth(&x.greater(&scalar(&x, *threshold)?)?)?,
                    None => x.full_like(x.ty().clone(), 1.0)?,
                };
                if let Some(k) = top {
                    let classes = x.shape().last().copied().unwrap_or(0);
                    let (_, places) = x.top_k(*k, -1, true)?;
                    found = found.mul(&places.one_hot(classes, DType::F32)?.sum(&[last], false)?)?;
                }
                cases(&of_class(&found, *class)?, &of_class(&t, *class)?)
            }
            Counted::Best { thresholds, class, .. } => {
                let t = targets(&x, label)?;
                let auc = Auc { thresholds: *thresholds, ..Auc::default() };
                Metric::Auc(auc).sums(&of_class(&x, *class)?, &of_class(&t, *class)?)
            }
            Counted::Area { auc, thresholds, .. } if thresholds.is_empty() => {
                Metric::Auc(*auc).sums(&x, label)
            }
            Counted::Area { thresholds, .. } => {
                let n = x.ty().elements();
                let t = targets(&x, label)?;
                let t = truth(&t.not_equal(&scalar(&t, 0.0)?)?)?.reshape([1, n])?;
                let limits = Tensor::from_slice(thresholds, [thresholds.len(), 1])?.cast(DType::F32)?;
                let found = truth(&x.reshape([1, n])?.greater(&limits)?)?;
                let yes = found.mul(&t)?.sum(&[1], false)?;
                let no = found.mul(&t.rsub_scalar(1.0)?)?.sum(&[1], false)?;
                joined(&[yes, no])
            }
            Counted::Iou { classes, ignored, sparse: [sparse_true, sparse_pred], .. } => {
                let found = if *sparse_pred { x.clone() } else { x.argmax(-1)? };
                let t = if *sparse_true { label.clone() } else { label.cast(DType::F32)?.argmax(-1)? };
                if t.ty().elements() != found.ty().elements() {
                    return Err(refuse(format!(
                        "compares classes of {} with labels of {}",
                        x.ty(),
                        label.ty()
                    )));
                }
                overlaps(&t, &found, *classes, *ignored)
            }
            Counted::BinaryIou { threshold, .. } => {
                let found = truth(&x.greater_equal(&scalar(&x, *threshold)?)?)?;
                overlaps(&targets(&x, label)?, &found, 2, None)
            }
            Counted::R2 { .. } => {
                let t = targets(&x, label)?;
                if x.shape().rank() != 2 {
                    return Err(refuse(format!("counts R² of {}, which should be [N, C]", x.ty())));
                }
                let sum = |x: &Tensor| x.sum(&[0], false);
                let ones = t.full_like(t.ty().clone(), 1.0)?;
                joined(&[sum(&x.sub(&t)?.square()?)?, sum(&t)?, sum(&t.square()?)?, sum(&ones)?])
            }
            Counted::Same => {
                let t = targets(&x, label)?;
                let ones = t.full_like(t.ty().clone(), 1.0)?;
                joined(&[total(&truth(&x.equal(&t)?)?)?, total(&ones)?])
            }
        }
    }

    fn finish(&self, sums: &[f64]) -> f64 {
        let at = |i: usize| sums.get(i).copied().unwrap_or(f64::NAN);
        match self {
            Counted::FBeta { average, beta, .. } => {
                let n = sums.len() / 4;
                let score = |c: usize| {
                    let precision = at(c) / (at(c) + at(n + c) + EPSILON);
                    let recall = at(c) / (at(c) + at(2 * n + c) + EPSILON);
                    let square = beta * beta;
                    precision * recall / (square * precision + recall + EPSILON) * (1.0 + square)
                };
                let all: f64 = (0..n).map(|c| at(3 * n + c)).sum::<f64>() + EPSILON;
                match average {
                    Average::Class(c) => score(*c),
                    Average::Weighted => (0..n).map(|c| score(c) * at(3 * n + c) / all).sum(),
                    _ => (0..n).map(score).sum::<f64>() / n as f64,
                }
            }
            Counted::Cases { share, .. } => share.of(at(0), at(1), at(2), at(3)),
            Counted::Best { of, where_, least, .. } => {
                let (yes, no) = sums.split_at(sums.len() / 2);
                let (all_yes, all_no) = (yes.iter().sum::<f64>(), no.iter().sum::<f64>());
                let (mut tp, mut fp, mut best) = (0.0, 0.0, 0.0f64);
                for (own_yes, own_no) in yes.iter().zip(no).rev() {
                    (tp, fp) = (tp + own_yes, fp + own_no);
                    let share = |share: &Share| share.of(tp, fp, all_yes - tp, all_no - fp);
                    if share(where_) >= *least {
                        best = best.max(share(of));
                    }
                }
                best
            }
            Counted::Area { auc, thresholds, weights } if thresholds.is_empty() => {
                let n = auc.thresholds;
                let labels = sums.len() / (2 * n).max(1);
                let (yes, no) = sums.split_at(labels * n);
                let one = Metric::Auc(Auc { by_label: false, ..*auc });
                let areas = yes.chunks(n).zip(no.chunks(n)).map(|(yes, no)| one.finish(&[yes, no].concat()));
                let weighed: f64 = areas.zip(weights).map(|(area, weight)| area * weight).sum();
                match weights.iter().sum::<f64>() {
                    0.0 => 0.0,
                    sum => weighed / sum,
                }
            }
            Counted::Area { auc, thresholds, .. } => {
                // Those above a threshold and not above the next.
                let n = thresholds.len();
                let bucket = |i: usize| at(i) - if (i + 1).is_multiple_of(n) { 0.0 } else { at(i + 1) };
                Metric::Auc(Auc { thresholds: n, ..*auc })
                    .finish(&(0..sums.len()).map(bucket).collect::<Vec<_>>())
            }
            Counted::Iou { wanted, .. } | Counted::BinaryIou { wanted, .. } => mean_overlap(sums, wanted),
            Counted::R2 { by_variance, column, regressors } => {
                let n = sums.len() / 4;
                let spread = |c: usize| at(2 * n + c) - at(n + c) * at(n + c) / at(3 * n + c);
                let score = |c: usize| match 1.0 - at(c) / spread(c) {
                    score if score.is_infinite() => 0.0,
                    score => score,
                };
                let score = match by_variance {
                    _ if column.is_some() => column.map_or(f64::NAN, score),
                    true => {
                        let all: f64 = (0..n).map(spread).sum();
                        (0..n).map(|c| spread(c) * score(c)).sum::<f64>() / all
                    }
                    false => (0..n).map(score).sum::<f64>() / n as f64,
                };
                let samples: f64 = (0..n).map(|c| at(3 * n + c)).sum();
                let free = samples - *regressors as f64 - 1.0;
                if *regressors == 0 || free <= 0.0 {
                    score
                } else {
                    1.0 - (1.0 - score) * (samples - 1.0) / free
                }
            }
            Counted::Same => at(0) / at(1),
        }
    }
}
