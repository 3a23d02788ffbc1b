//! Keras's losses of one output, as means over samples.

use plimsoll_graph::{DType, LossOps, TensorOps, Type};
use plimsoll_nn::View;
use plimsoll_run::{Result as RunResult, Tensor};
use serde_json::Value;

use crate::error::{Result, refuse};
use crate::named::Named;
use crate::other_loss::OtherLoss;
use crate::settings::Settings;
use crate::traced_loss::TracedLoss;

const PLACE: &str = "the loss";

/// How far Keras holds probabilities from 0 and 1.
pub(crate) const EPSILON: f64 = 1e-7;

/// The loss of one output.
#[derive(Clone, Debug, PartialEq)]
pub enum OutputLoss {
    /// Cross-entropy with labels that are numbers of classes.
    SparseCategorical {
        /// Whether outputs are logits.
        from_logits: bool,
    },
    /// Cross-entropy with labels that are numbers of classes, one of which does not count.
    Ignoring {
        /// Whether outputs are logits.
        from_logits: bool,
        /// The label that does not count.
        class: i64,
    },
    /// Cross-entropy with distributions over the classes.
    Categorical {
        /// Whether outputs are logits.
        from_logits: bool,
        /// The share of every label that is spread over all classes.
        smoothing: f64,
    },
    /// Cross-entropy of every element by itself.
    Binary {
        /// Whether outputs are logits.
        from_logits: bool,
        /// The share of every label that is drawn to ½.
        smoothing: f64,
    },
    /// The mean of (x - t)².
    Mse,
    /// The mean of |x - t|.
    Mae,
    /// The mean of 100 |x - t| / |t|.
    Mape,
    /// The mean of (log(1 + x) - log(1 + t))².
    Msle,
    /// Quadratic up to δ, then linear.
    Huber(f64),
    /// The mean of log cosh(x - t).
    LogCosh,
    /// Σ t log(t / x).
    KlDivergence,
    /// The mean of x - t log x.
    Poisson,
    /// Minus the cosine of the angle between x and t.
    CosineSimilarity,
    /// One of those that are made of several ops: see [`OtherLoss`].
    Other(OtherLoss),
    /// One of the user's own, followed into operations: of live models.
    Traced(TracedLoss),
    /// A loss over another axis than the last, counted from the last where it is negative.
    Along(isize, Box<OutputLoss>),
    /// The sum over samples in place of the mean: a batch cannot be run in pieces then.
    Sum(Box<OutputLoss>),
    /// The mean by the sum of weights, where samples bring them, in place of their number.
    ByWeight(Box<OutputLoss>),
}

impl OutputLoss {
    pub(crate) fn read(value: &Value) -> Result<OutputLoss> {
        if TracedLoss::is_stored(value) {
            let loss = OutputLoss::Traced(TracedLoss::read(value)?);
            return Ok(match value.pointer("/config/reduction").and_then(Value::as_str) {
                Some("sum") => OutputLoss::Sum(Box::new(loss)),
                Some("mean_with_sample_weight") => OutputLoss::ByWeight(Box::new(loss)),
                _ => loss,
            });
        }
        let named = Named::read(value, PLACE)?;
        OutputLoss::of(&named.settings(PLACE), &named.folded())
    }

    /// A loss by its name, from its settings, every one of which is read or refused.
    pub(crate) fn of(s: &Settings<'_>, folded: &str) -> Result<OutputLoss> {
        // Without the setting, as functions and old files have it, Keras takes a mean. Null is no reduction at all.
        let (mut is_sum, mut by_weight) = (false, false);
        if s.has("reduction") {
            match s.get("reduction").as_str() {
                Some("sum_over_batch_size" | "auto" | "mean") => {}
                Some("mean_with_sample_weight") => by_weight = true,
                Some("sum") => is_sum = true,
                _ => {
                    let why = "a loss must be one number; compile the model with sum_over_batch_size or sum";
                    return Err(s.wrong("reduction", why));
                }
            }
        }
        let loss = OutputLoss::plain(s, folded)?;
        let loss = match s.get("axis") {
            Value::Null => loss,
            axis if axis.as_i64() == Some(-1) || loss.has_own_axes() => loss,
            axis => match (axis.as_i64().filter(|axis| axis.unsigned_abs() < 16), loss.takes_axis()) {
                (Some(axis), true) => OutputLoss::Along(axis as isize, Box::new(loss)),
                _ => return Err(s.wrong("axis", "only the last axis is taken")),
            },
        };
        // What is wrapped is read by its name; the type of a metric changes nothing.
        s.finish(&["name", "fn", "dtype"])?;
        Ok(match (is_sum, by_weight) {
            (true, _) => OutputLoss::Sum(Box::new(loss)),
            (_, true) => OutputLoss::ByWeight(Box::new(loss)),
            _ => loss,
        })
    }

    /// A loss over the last axis.
    fn plain(s: &Settings<'_>, folded: &str) -> Result<OutputLoss> {
        let logits = || s.flag("from_logits", false);
        let smoothing = || s.rate("label_smoothing");
        Ok(match folded {
            "sparsecategoricalcrossentropy" => match s.get("ignore_class") {
                Value::Null => OutputLoss::SparseCategorical { from_logits: logits()? },
                class => {
                    let class =
                        class.as_i64().ok_or_else(|| s.wrong("ignore_class", "it should be a class"))?;
                    OutputLoss::Ignoring { from_logits: logits()?, class }
                }
            },
            "categoricalcrossentropy" => {
                OutputLoss::Categorical { from_logits: logits()?, smoothing: smoothing()? }
            }
            "binarycrossentropy" | "bce" => {
                OutputLoss::Binary { from_logits: logits()?, smoothing: smoothing()? }
            }
            "mse" | "meansquarederror" => OutputLoss::Mse,
            "mae" | "meanabsoluteerror" => OutputLoss::Mae,
            "mape" | "meanabsolutepercentageerror" => OutputLoss::Mape,
            "msle" | "meansquaredlogarithmicerror" => OutputLoss::Msle,
            "huber" | "huberloss" => OutputLoss::Huber(s.number_or("delta", 1.0)?),
            "logcosh" => OutputLoss::LogCosh,
            "kldivergence" | "kld" | "kullbackleiblerdivergence" => OutputLoss::KlDivergence,
            "poisson" => OutputLoss::Poisson,
            "cosinesimilarity" => OutputLoss::CosineSimilarity,
            _ => match OtherLoss::read(s, folded)? {
                Some(other) => OutputLoss::Other(other),
                None => return Err(s.unsupported("which is not known here; name another loss")),
            },
        })
    }

    /// Whether labels are numbers of classes.
    pub(crate) fn takes_classes(&self) -> bool {
        match self {
            OutputLoss::SparseCategorical { .. } | OutputLoss::Ignoring { .. } => true,
            OutputLoss::Traced(own) => own.takes_classes,
            OutputLoss::Other(OtherLoss::Generalized { .. } | OtherLoss::Circle { .. } | OtherLoss::Ctc) => {
                true
            }
            OutputLoss::Along(_, inner) | OutputLoss::Sum(inner) | OutputLoss::ByWeight(inner) => {
                inner.takes_classes()
            }
            _ => false,
        }
    }

    /// Whether labels are a sequence of a length of its own.
    pub(crate) fn takes_spelled(&self) -> bool {
        match self {
            OutputLoss::Other(OtherLoss::Ctc) => true,
            OutputLoss::Sum(inner) | OutputLoss::ByWeight(inner) => inner.takes_spelled(),
            _ => false,
        }
    }

    /// Whether another axis than the last makes a difference that is followed here.
    fn takes_axis(&self) -> bool {
        match self {
            OutputLoss::SparseCategorical { .. }
            | OutputLoss::Ignoring { .. }
            | OutputLoss::CosineSimilarity => true,
            OutputLoss::Categorical { smoothing, .. } => *smoothing == 0.0,
            OutputLoss::Other(other) => other.takes_axis(),
            _ => false,
        }
    }

    /// Whether the axis is read with the loss, or is one that a mean over all elements does not see.
    fn has_own_axes(&self) -> bool {
        match self {
            OutputLoss::Binary { .. } => true,
            OutputLoss::Other(other) => other.has_own_axes(),
            _ => false,
        }
    }

    /// The last softmax or sigmoid that can be left to it: the one that makes probabilities as it takes them.
    pub(crate) fn takes_off(&self) -> Option<View> {
        match self {
            OutputLoss::SparseCategorical { from_logits: false }
            | OutputLoss::Categorical { from_logits: false, .. } => Some(View::Softmax),
            OutputLoss::Ignoring { from_logits: false, .. } => Some(View::Softmax),
            OutputLoss::Binary { from_logits: false, .. } => Some(View::Sigmoid),
            OutputLoss::Sum(inner) | OutputLoss::ByWeight(inner) => inner.takes_off(),
            _ => None,
        }
    }

    /// The same with outputs that are logits.
    pub(crate) fn on_logits(self) -> OutputLoss {
        match self {
            OutputLoss::SparseCategorical { .. } => OutputLoss::SparseCategorical { from_logits: true },
            OutputLoss::Categorical { smoothing, .. } => {
                OutputLoss::Categorical { from_logits: true, smoothing }
            }
            OutputLoss::Binary { smoothing, .. } => OutputLoss::Binary { from_logits: true, smoothing },
            OutputLoss::Ignoring { class, .. } => OutputLoss::Ignoring { from_logits: true, class },
            OutputLoss::Sum(inner) => OutputLoss::Sum(Box::new(inner.on_logits())),
            OutputLoss::ByWeight(inner) => OutputLoss::ByWeight(Box::new(inner.on_logits())),
            other => other,
        }
    }

    /// The loss of a batch, in f32, or f64 where outputs are: the mean over samples, or their sum.
    #[track_caller]
    pub fn mean(&self, outputs: &Tensor, labels: &Tensor) -> RunResult<Tensor> {
        let x = widened(outputs)?;
        // Of these there is an op, or one pass less.
        match self {
            OutputLoss::Mse => return x.mse(&targets(&x, labels)?),
            OutputLoss::Msle => return log_plus_one(&x)?.mse(&log_plus_one(&targets(&x, labels)?)?),
            OutputLoss::Huber(delta) => return plimsoll_nn::huber(*delta)(&x, &targets(&x, labels)?),
            _ => {}
        }
        self.reduced(&x, labels, None, None)
    }

    /// The mean over samples of each one's loss times its weight, as Keras has it: by the number of samples, not by the sum of weights.
    /// Weights are one for each sample, `[N]`.
    #[track_caller]
    pub fn weighted_mean(&self, outputs: &Tensor, labels: &Tensor, weights: &Tensor) -> RunResult<Tensor> {
        self.reduced(&widened(outputs)?, labels, Some(weights), None)
    }

    /// As [`OutputLoss::mean`], where a mask says which parts of the outputs count. Keras divides by the number of those in the batch.
    #[track_caller]
    pub(crate) fn masked_mean(
        &self,
        outputs: &Tensor,
        labels: &Tensor,
        weights: Option<&Tensor>,
        mask: &Tensor,
    ) -> RunResult<Tensor> {
        self.reduced(&widened(outputs)?, labels, weights, Some(mask))
    }

    /// The losses of elements or samples, weighted, masked and brought to one number.
    fn reduced(
        &self,
        x: &Tensor,
        labels: &Tensor,
        weights: Option<&Tensor>,
        mask: Option<&Tensor>,
    ) -> RunResult<Tensor> {
        let (inner, is_sum, by_weight) = match self {
            OutputLoss::Sum(inner) => (&**inner, true, false),
            OutputLoss::ByWeight(inner) => (&**inner, false, true),
            own => (own, false, false),
        };
        let (mut each, own_mask) = inner.each(x, labels)?;
        let is_masked = mask.is_some() || own_mask.is_some();
        // One number a row, as Keras has it where a weight or a mask goes with it, or where rows are added up.
        if (is_masked || is_sum) && each.shape().rank() == x.shape().rank() && each.shape().rank() > 1 {
            each = each.mean(&[each.shape().rank() - 1], false)?;
        }
        let scale = inner.scale();
        let shown = match (mask, own_mask) {
            (Some(mask), own) => {
                let mask = mask.cast(DType::F32)?.cast(each.dtype())?;
                if mask.shape() != each.shape() {
                    let (losses, mask) = (each.ty(), mask.ty());
                    return Err(refuse(format!(
                        "masks losses of {losses} by {mask}, which is not supported"
                    )));
                }
                Some(match own {
                    Some(own) => mask.mul(&own)?,
                    None => mask,
                })
            }
            (None, own) => own,
        };
        if let Some(weights) = weights {
            let rank = each.shape().rank();
            if rank > 1 && shown.is_none() && !is_sum {
                each = each.flatten(1)?.mean(&[1], false)?;
            }
            let rows: Vec<usize> =
                (0..each.shape().rank()).map(|i| if i == 0 { each.shape()[0] } else { 1 }).collect();
            if weights.shape()[..] != rows[..1.min(rows.len())] {
                let (losses, weights) = (each.ty(), weights.ty());
                return Err(refuse(format!("weighs losses of {losses} by weights of {weights}")));
            }
            let weights = weights.cast(each.dtype())?.reshape(&rows[..])?;
            if by_weight {
                let weights = match &shown {
                    Some(shown) => shown.mul(&weights)?,
                    None => weights,
                };
                let total = each.mul(&weights)?.sum(&[], false)?.div(&weights.sum(&[], false)?)?;
                return if scale == 1.0 { Ok(total) } else { total.mul_scalar(scale) };
            }
            each = each.mul(&weights)?;
        }
        let total = match (shown, is_sum) {
            (Some(shown), true) => each.mul(&shown)?.sum(&[], false)?,
            (None, true) => each.sum(&[], false)?,
            (Some(shown), false) => {
                // Where nothing is shown, the loss is 0.
                let count = shown.sum(&[], false)?.clamp(1.0, f64::INFINITY)?;
                each.mul(&shown)?.sum(&[], false)?.div(&count)?
            }
            (None, false) => each.mean(&[], false)?,
        };
        if scale == 1.0 { Ok(total) } else { total.mul_scalar(scale) }
    }

    /// What the losses of single elements are multiplied by in the end.
    fn scale(&self) -> f64 {
        match self {
            OutputLoss::Mape => 100.0,
            OutputLoss::CosineSimilarity => -1.0,
            OutputLoss::Along(_, inner) => inner.scale(),
            _ => 1.0,
        }
    }

    /// The losses of samples or of their elements, and what of them counts where not all do (1 or 0). `x` is in f32 or f64.
    fn each(&self, x: &Tensor, labels: &Tensor) -> RunResult<(Tensor, Option<Tensor>)> {
        match self {
            OutputLoss::Ignoring { from_logits, class } => {
                let logits = if *from_logits { x.clone() } else { log_shares(x)? };
                let labels = indices(&logits, labels)?;
                let ignored = labels.full_like(Type::new(labels.dtype(), []), *class as f64)?;
                let shown = labels.not_equal(&ignored)?;
                let none = labels.full_like(labels.ty().clone(), 0.0)?;
                let each = logits.softmax_cross_entropy(&shown.select(&labels, &none)?)?;
                let shown = shown.cast(DType::F32)?.cast(each.dtype())?;
                Ok((each.mul(&shown)?, Some(shown)))
            }
            OutputLoss::Along(axis, inner) => {
                let x = last(x, *axis)?;
                let is_sparse = labels.shape().rank() < x.shape().rank();
                inner.each(&x, &if is_sparse { labels.clone() } else { last(labels, *axis)? })
            }
            OutputLoss::Other(other) => other.each(x, labels),
            OutputLoss::Traced(own) => Ok((own.each(x, labels)?, None)),
            _ => Ok((self.all(x, labels)?, None)),
        }
    }

    /// The losses whose mean is taken: one for each sample, or for each element of it. `x` is in f32 or f64.
    pub(crate) fn all(&self, x: &Tensor, labels: &Tensor) -> RunResult<Tensor> {
        if let OutputLoss::SparseCategorical { from_logits } = self {
            let logits = if *from_logits { x.clone() } else { log_shares(x)? };
            let labels = indices(&logits, labels)?;
            return logits.softmax_cross_entropy(&labels);
        }
        let t = targets(x, labels)?;
        let last = x.shape().rank().saturating_sub(1);
        match *self {
            OutputLoss::SparseCategorical { .. }
            | OutputLoss::Ignoring { .. }
            | OutputLoss::Other(_)
            | OutputLoss::Traced(_)
            | OutputLoss::Along(..)
            | OutputLoss::Sum(_)
            | OutputLoss::ByWeight(_) => Err(refuse("computes one loss as another")),
            OutputLoss::Categorical { from_logits, smoothing } => {
                let classes = x.shape().last().copied().unwrap_or(1).max(1) as f64;
                let t = smoothed(&t, smoothing, 1.0 / classes)?;
                if from_logits {
                    return x.dense_softmax_cross_entropy(&t);
                }
                let p = probabilities(&x.div(&x.sum(&[last], true)?)?)?;
                t.mul(&p.log()?)?.sum(&[last], false)?.neg()
            }
            OutputLoss::Binary { from_logits, smoothing } => {
                let t = smoothed(&t, smoothing, 0.5)?;
                if from_logits {
                    return x.sigmoid_cross_entropy(&t);
                }
                let p = probabilities(x)?;
                let yes = t.mul(&p.log()?)?;
                let no = t.rsub_scalar(1.0)?.mul(&p.rsub_scalar(1.0)?.log()?)?;
                yes.add(&no)?.neg()
            }
            OutputLoss::Mse => x.sub(&t)?.square(),
            OutputLoss::Mae => x.sub(&t)?.abs(),
            OutputLoss::Mape => {
                let size = t.abs()?.clamp(EPSILON, f64::INFINITY)?;
                x.sub(&t)?.abs()?.div(&size)
            }
            OutputLoss::Msle => log_plus_one(x)?.sub(&log_plus_one(&t)?)?.square(),
            OutputLoss::Huber(delta) => {
                // Quadratic as far as δ, and the rest times δ.
                let size = x.sub(&t)?.abs()?;
                let near = size.clamp(0.0, delta)?;
                near.square()?.mul_scalar(0.5)?.add(&size.sub(&near)?.mul_scalar(delta)?)
            }
            OutputLoss::LogCosh => {
                let d = x.sub(&t)?;
                d.add(&d.mul_scalar(-2.0)?.softplus()?)?.add_scalar(-std::f64::consts::LN_2)
            }
            OutputLoss::KlDivergence => {
                let (t, x) = (t.clamp(EPSILON, 1.0)?, x.clamp(EPSILON, 1.0)?);
                t.mul(&t.div(&x)?.log()?)?.sum(&[last], false)
            }
            OutputLoss::Poisson => x.sub(&t.mul(&x.add_scalar(EPSILON)?.log()?)?),
            OutputLoss::CosineSimilarity => {
                let unit = |x: &Tensor| {
                    x.mul(&x.square()?.sum(&[last], true)?.clamp(1e-12, f64::INFINITY)?.rsqrt()?)
                };
                unit(x)?.mul(&unit(&t)?)?.sum(&[last], false)
            }
        }
    }
}

/// Outputs in f32, or f64 where they are.
fn widened(outputs: &Tensor) -> RunResult<Tensor> {
    outputs.cast(if outputs.dtype() == DType::F64 { DType::F64 } else { DType::F32 })
}

/// The logarithms of shares, held away from 0 and 1.
fn log_shares(x: &Tensor) -> RunResult<Tensor> {
    probabilities(x)?.log()
}

/// A tensor with one of its axes brought to the end.
fn last(x: &Tensor, axis: isize) -> RunResult<Tensor> {
    let rank = x.shape().rank();
    let place = if axis < 0 { axis + rank as isize } else { axis };
    if place < 1 || place >= rank as isize {
        return Err(refuse(format!("takes a loss of {} along axis {axis}", x.ty())));
    }
    let order: Vec<usize> = (0..rank).filter(|&i| i != place as usize).chain([place as usize]).collect();
    x.transpose(&order)
}

fn log_plus_one(x: &Tensor) -> RunResult<Tensor> {
    x.clamp(EPSILON, f64::INFINITY)?.add_scalar(1.0)?.log()
}

pub(crate) fn probabilities(x: &Tensor) -> RunResult<Tensor> {
    x.clamp(EPSILON, 1.0 - EPSILON)
}

pub(crate) fn smoothed(t: &Tensor, smoothing: f64, towards: f64) -> RunResult<Tensor> {
    match smoothing {
        0.0 => Ok(t.clone()),
        s => t.mul_scalar(1.0 - s)?.add_scalar(s * towards),
    }
}

/// Labels of the outputs' type and shape; an axis of length 1 at the end may be missing, or be too many.
pub(crate) fn targets(x: &Tensor, labels: &Tensor) -> RunResult<Tensor> {
    let t = labels.cast(x.dtype())?;
    let (a, b) = (x.shape(), labels.shape());
    let one_more = |long: &[usize], short: &[usize]| {
        long.len() == short.len() + 1 && long.last() == Some(&1) && long[..short.len()] == short[..]
    };
    if a == b {
        Ok(t)
    } else if one_more(a, b) || one_more(b, a) {
        t.reshape(a.clone())
    } else {
        Err(refuse(format!("compares outputs of {} with labels of {}", x.ty(), labels.ty())))
    }
}

/// Labels as numbers of classes, one for each row of logits.
pub(crate) fn indices(logits: &Tensor, labels: &Tensor) -> RunResult<Tensor> {
    let rows = &logits.shape()[..logits.shape().rank().saturating_sub(1)];
    let labels = if labels.dtype().is_index() { labels.clone() } else { labels.cast(DType::I64)? };
    if labels.shape()[..] == *rows {
        return Ok(labels);
    }
    if labels.shape().last() == Some(&1) && labels.shape()[..labels.shape().rank() - 1] == *rows {
        return labels.reshape(rows);
    }
    Err(refuse(format!("compares logits of {} with labels of {}", logits.ty(), labels.ty())))
}
