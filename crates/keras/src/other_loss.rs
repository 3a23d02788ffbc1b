//! Keras's losses that are made of several ops: hinges, focal and generalized cross-entropies, overlaps, circles, CTC.

use plimsoll_graph::{DType, GatherOps, SoftmaxOps, TensorOps, Type};
use plimsoll_run::{Result as RunResult, Tensor};
use serde_json::Value;

use crate::ctc;
use crate::error::{Result, refuse};
use crate::loss::{EPSILON, indices, probabilities, smoothed, targets};
use crate::settings::Settings;

/// The longest list of weights of classes.
const MOST_CLASSES: usize = 1 << 16;
/// Farther than any number of a loss, and finite, so that what is not there has no gradient that is not a number.
const FAR: f64 = 1e30;

/// A loss of several ops.
#[derive(Clone, Debug, PartialEq)]
pub enum OtherLoss {
    /// The mean of max(1 - t x, 0), for targets -1 and 1; where all are 0 or 1, those become -1 and 1.
    Hinge {
        /// Whether each is squared.
        squared: bool,
    },
    /// max(the largest (1 - t) x - Σ t x + 1, 0).
    CategoricalHinge,
    /// Binary cross-entropy that counts what is already right less.
    BinaryFocal {
        /// Whether outputs are logits.
        from_logits: bool,
        /// The share of every label that is drawn to ½.
        smoothing: f64,
        /// The weight of true cases; the others have the rest. None weighs all the same.
        balance: Option<f64>,
        /// How much less.
        gamma: f64,
    },
    /// Cross-entropy with distributions that counts what is already right less.
    CategoricalFocal {
        /// Whether outputs are logits.
        from_logits: bool,
        /// The share of every label that is spread over all classes.
        smoothing: f64,
        /// The weight of each class, or of all.
        alpha: Vec<f64>,
        /// How much less.
        gamma: f64,
    },
    /// (1 - pᵠ) / q for the probability p of the class that a label names.
    Generalized {
        /// Between a cross-entropy (0) and an absolute error (1).
        q: f64,
    },
    /// 1 - Σ t x / (Σ t x + α Σ (1 - x) t + β Σ x (1 - t)): of ½ and ½, the Dice loss.
    Overlap {
        /// The weight of what is true and not found; none for the Dice loss, whose formula is its own.
        weights: Option<(f64, f64)>,
        /// The axes that are summed over; none for all, the batch among them.
        axes: Option<Vec<i64>>,
    },
    /// Distances of embeddings within a class over those between classes.
    Circle {
        /// How steep.
        gamma: f64,
        /// How far apart.
        margin: f64,
        /// Whether an embedding is not compared with itself.
        remove_diagonal: bool,
    },
    /// How unlikely a sequence of logits spells the labels, with blanks (class 0) and repetitions between them.
    Ctc,
}

impl OtherLoss {
    /// The loss of this name; none where there is none such here.
    pub(crate) fn read(s: &Settings<'_>, folded: &str) -> Result<Option<OtherLoss>> {
        let logits = || s.flag("from_logits", false);
        let smoothing = || s.rate("label_smoothing");
        let axes = || match s.get("axis") {
            Value::Null => Ok(None),
            _ => s.integers("axis").map(Some),
        };
        Ok(Some(match folded {
            "hinge" => OtherLoss::Hinge { squared: false },
            "squaredhinge" => OtherLoss::Hinge { squared: true },
            "categoricalhinge" => OtherLoss::CategoricalHinge,
            "binaryfocalcrossentropy" => {
                let alpha = s.number_or("alpha", 0.25)?;
                OtherLoss::BinaryFocal {
                    from_logits: logits()?,
                    smoothing: smoothing()?,
                    balance: s.flag("apply_class_balancing", false)?.then_some(alpha),
                    gamma: s.at_least("gamma", 2.0, 0.0)?,
                }
            }
            "categoricalfocalcrossentropy" => OtherLoss::CategoricalFocal {
                from_logits: logits()?,
                smoothing: smoothing()?,
                alpha: if s.is_null("alpha") { vec![0.25] } else { s.numbers("alpha", MOST_CLASSES)? },
                gamma: s.at_least("gamma", 2.0, 0.0)?,
            },
            "categoricalgeneralizedcrossentropy" => {
                let q = s.number_or("q", 0.5)?;
                if q <= 0.0 || q >= 1.0 {
                    return Err(s.wrong("q", "it should be between 0 and 1"));
                }
                OtherLoss::Generalized { q }
            }
            "dice" => OtherLoss::Overlap { weights: None, axes: axes()? },
            "tversky" => OtherLoss::Overlap {
                weights: Some((s.number_or("alpha", 0.5)?, s.number_or("beta", 0.5)?)),
                axes: axes()?,
            },
            "circle" => OtherLoss::Circle {
                gamma: s.number_or("gamma", 80.0)?,
                margin: s.number_or("margin", 0.4)?,
                remove_diagonal: s.flag("remove_diagonal", true)?,
            },
            "ctc" => OtherLoss::Ctc,
            _ => return Ok(None),
        }))
    }

    /// Whether another axis than the last can be brought to the end.
    pub(crate) fn takes_axis(&self) -> bool {
        matches!(self, OtherLoss::CategoricalFocal { smoothing: 0.0, .. })
    }

    /// Whether the axis is read with the loss, or is one that a mean over all elements does not see.
    pub(crate) fn has_own_axes(&self) -> bool {
        matches!(self, OtherLoss::Overlap { .. } | OtherLoss::BinaryFocal { .. })
    }

    /// The losses of samples or of their elements, and what of them counts where not all do.
    pub(crate) fn each(&self, x: &Tensor, labels: &Tensor) -> RunResult<(Tensor, Option<Tensor>)> {
        let all = |each: Tensor| Ok((each, None));
        let last = x.shape().rank().saturating_sub(1);
        match self {
            OtherLoss::Hinge { squared } => {
                let beyond = signed(&targets(x, labels)?)?.mul(x)?.rsub_scalar(1.0)?.relu()?;
                all(if *squared { beyond.square()? } else { beyond })
            }
            OtherLoss::CategoricalHinge => {
                let t = targets(x, labels)?;
                let own = t.mul(x)?.sum(&[last], false)?;
                let other = t.rsub_scalar(1.0)?.mul(x)?.max(&[last], false)?;
                all(other.sub(&own)?.add_scalar(1.0)?.relu()?)
            }
            OtherLoss::BinaryFocal { from_logits, smoothing, balance, gamma } => {
                let t = smoothed(&targets(x, labels)?, *smoothing, 0.5)?;
                let p = if *from_logits { x.sigmoid()? } else { x.clone() };
                let held = probabilities(&p)?;
                let no = t.rsub_scalar(1.0)?;
                let yes_log = t.mul(&held.log()?)?;
                let entropy = yes_log.add(&no.mul(&held.rsub_scalar(1.0)?.log()?)?)?.neg()?;
                let right = t.mul(&p)?.add(&no.mul(&p.rsub_scalar(1.0)?)?)?;
                let each = power(&right.rsub_scalar(1.0)?, *gamma)?.mul(&entropy)?;
                all(match balance {
                    Some(alpha) => t.mul_scalar(*alpha)?.add(&no.mul_scalar(1.0 - alpha)?)?.mul(&each)?,
                    None => each,
                })
            }
            OtherLoss::CategoricalFocal { from_logits, smoothing, alpha, gamma } => {
                let classes = x.shape().last().copied().unwrap_or(1).max(1);
                let t = smoothed(&targets(x, labels)?, *smoothing, 1.0 / classes as f64)?;
                let p = if *from_logits { x.softmax(-1)? } else { x.clone() };
                let p = probabilities(&p.div(&p.sum(&[last], true)?)?)?;
                let weight = power(&p.rsub_scalar(1.0)?, *gamma)?;
                let weight = match alpha[..] {
                    [alpha] => weight.mul_scalar(alpha)?,
                    _ if alpha.len() == classes => {
                        weight.mul(&Tensor::from_slice(alpha, [classes])?.cast(x.dtype())?)?
                    }
                    _ => {
                        let n = alpha.len();
                        return Err(refuse(format!("weighs {classes} classes by {n} numbers")));
                    }
                };
                all(weight.mul(&t)?.mul(&p.log()?)?.sum(&[last], false)?.neg()?)
            }
            OtherLoss::Generalized { q } => {
                let labels = indices(x, labels)?;
                let classes = x.shape().last().copied().unwrap_or(0);
                let p = labels.one_hot(classes, x.dtype())?.mul(x)?.sum(&[last], false)?;
                all(power(&p, *q)?.rsub_scalar(1.0)?.mul_scalar(1.0 / q)?)
            }
            OtherLoss::Overlap { weights, axes } => {
                let t = targets(x, labels)?;
                let rank = x.shape().rank();
                let axes: Vec<usize> = match axes {
                    None => (0..rank).collect(),
                    Some(axes) => {
                        let place = |&axis: &i64| if axis < 0 { axis + rank as i64 } else { axis };
                        let mut axes: Vec<usize> = axes.iter().map(|a| place(a).max(0) as usize).collect();
                        axes.sort_unstable();
                        axes
                    }
                };
                let sum = |x: &Tensor| x.sum(&axes, false);
                let both = sum(&t.mul(x)?)?;
                let share = match weights {
                    None => both.mul_scalar(2.0)?.div(&sum(&t)?.add(&sum(x)?)?.add_scalar(EPSILON)?)?,
                    Some((alpha, beta)) => {
                        let missed = sum(&x.rsub_scalar(1.0)?.mul(&t)?)?.mul_scalar(*alpha)?;
                        let wrong = sum(&t.rsub_scalar(1.0)?.mul(x)?)?.mul_scalar(*beta)?;
                        both.div(&both.add(&missed)?.add(&wrong)?.add_scalar(EPSILON)?)?
                    }
                };
                all(share.rsub_scalar(1.0)?)
            }
            OtherLoss::Ctc => all(ctc::each(x, labels)?),
            OtherLoss::Circle { gamma, margin, remove_diagonal } => {
                circle(x, labels, *gamma, *margin, *remove_diagonal)
            }
        }
    }
}

/// xᵞ for x ≥ 0; the usual square as one.
fn power(x: &Tensor, gamma: f64) -> RunResult<Tensor> {
    if gamma == 2.0 { x.square() } else { x.pow_scalar(gamma) }
}

/// Targets as -1 and 1 where all of a batch are 0 or 1; else as they are.
fn signed(t: &Tensor) -> RunResult<Tensor> {
    let constant = |value: f64| t.full_like(Type::new(t.dtype(), []), value);
    let is_binary =
        t.equal(&constant(0.0)?)?.or(&t.equal(&constant(1.0)?)?)?.cast(DType::F32)?.cast(t.dtype())?;
    let all = is_binary.min(&[], false)?;
    // t + all (t - 1)
    t.add(&t.add_scalar(-1.0)?.mul(&all)?)
}

/// Every embedding of a batch against every other.
fn circle(
    x: &Tensor,
    labels: &Tensor,
    gamma: f64,
    margin: f64,
    remove_diagonal: bool,
) -> RunResult<(Tensor, Option<Tensor>)> {
    let &[n, _] = &x.shape()[..] else {
        return Err(refuse(format!("compares embeddings of {}, which should be [N, C]", x.ty())));
    };
    let labels = labels.cast(DType::F32)?.cast(x.dtype())?.reshape([n])?;
    let same = labels.reshape([n, 1])?.equal(&labels.reshape([1, n])?)?.cast(DType::F32)?.cast(x.dtype())?;
    let other = same.rsub_scalar(1.0)?;
    let same = if remove_diagonal {
        let row = x.iota_like(Type::new(DType::F32, [n, n]), 0)?;
        let column = x.iota_like(Type::new(DType::F32, [n, n]), 1)?;
        same.mul(&row.not_equal(&column)?.cast(DType::F32)?.cast(x.dtype())?)?
    } else {
        same
    };
    let far = x.matmul_with(x, None, false, true)?.rsub_scalar(1.0)?.relu()?;
    let near_weights = far.add_scalar(margin)?.mul(&same)?.relu()?;
    let far_weights = far.rsub_scalar(1.0 + margin)?.mul(&other)?.relu()?;
    let near = near_weights.mul(&far.rsub_scalar(margin)?)?.mul_scalar(-gamma)?;
    let apart = far_weights.mul(&far.rsub_scalar(1.0 - margin)?)?.mul_scalar(gamma)?;
    // Of those that are not there, nothing is left.
    let over = |value: &Tensor, there: &Tensor| -> RunResult<Tensor> {
        let value = value.mul(there)?.sub(&there.rsub_scalar(1.0)?.mul_scalar(FAR)?)?;
        let most = value.max(&[1], true)?;
        value.sub(&most)?.exp()?.sum(&[1], false)?.log()?.add(&most.reshape([n])?)
    };
    let each = over(&near, &same)?.add(&over(&apart, &other)?)?.softplus()?;
    let shown = each.greater(&each.full_like(Type::new(each.dtype(), []), 0.0)?)?;
    let shown = shown.cast(DType::F32)?.cast(x.dtype())?;
    Ok((each, Some(shown)))
}
