//! Losses: the number to make smaller, from a model's outputs and the labels.
//!
//! A loss must be a mean over samples: then a batch that is run in pieces, each weighted by its samples, has the
//! gradient of the whole. Every loss here is computed in f32, whatever the outputs are.

use std::sync::Arc;

use plimsoll_graph::{DType, GatherOps, LossOps, TensorOps, Type};
use plimsoll_run::{Result, Tensor};

use crate::error::refuse;

/// Turns a model's outputs and labels into a scalar, a mean over samples.
///
/// Functions and closures over `(&Tensor, &Tensor)` are losses of one output and one label; [`joint_loss`] makes one
/// over several of closures over slices.
pub trait Loss: Send + Sync {
    /// The loss of a batch.
    fn loss(&self, outputs: &[Tensor], labels: &[Tensor]) -> Result<Tensor>;

    /// The loss of a batch, and the parts of it that can be followed by themselves (see [`crate::Count::Part`]), each a mean
    /// over samples: those of single outputs, say. Most losses have none.
    fn parts(&self, outputs: &[Tensor], labels: &[Tensor]) -> Result<(Tensor, Vec<Tensor>)> {
        Ok((self.loss(outputs, labels)?, Vec::new()))
    }

    /// The same of a batch whose gradient will be asked for, where that is better made in another way.
    fn to_train(&self, outputs: &[Tensor], labels: &[Tensor]) -> Result<(Tensor, Vec<Tensor>)> {
        self.parts(outputs, labels)
    }

    /// Whether outputs are left out, so that parameters which lead to these alone have no gradient and stay as they are.
    /// Otherwise such a parameter is an error: something is not connected.
    fn leaves_out(&self) -> bool {
        false
    }
}

impl<F: Fn(&Tensor, &Tensor) -> Result<Tensor> + Send + Sync> Loss for F {
    fn loss(&self, outputs: &[Tensor], labels: &[Tensor]) -> Result<Tensor> {
        match (outputs, labels) {
            ([output], [label]) => self(output, label),
            _ => Err(refuse(format!(
                "gives {} outputs and {} labels to a loss of one each; join several with joint_loss",
                outputs.len(),
                labels.len()
            ))),
        }
    }
}

impl<L: Loss + ?Sized> Loss for Arc<L> {
    fn loss(&self, outputs: &[Tensor], labels: &[Tensor]) -> Result<Tensor> {
        (**self).loss(outputs, labels)
    }

    fn parts(&self, outputs: &[Tensor], labels: &[Tensor]) -> Result<(Tensor, Vec<Tensor>)> {
        (**self).parts(outputs, labels)
    }

    fn to_train(&self, outputs: &[Tensor], labels: &[Tensor]) -> Result<(Tensor, Vec<Tensor>)> {
        (**self).to_train(outputs, labels)
    }

    fn leaves_out(&self) -> bool {
        (**self).leaves_out()
    }
}

struct Joint<F>(F);

impl<F: Fn(&[Tensor], &[Tensor]) -> Result<Tensor> + Send + Sync> Loss for Joint<F> {
    fn loss(&self, outputs: &[Tensor], labels: &[Tensor]) -> Result<Tensor> {
        self.0(outputs, labels)
    }
}

/// A loss over all outputs and labels of a model.
///
/// ```
/// use plimsoll_graph::TensorOps;
/// use plimsoll_nn::{joint_loss, mse, softmax_cross_entropy};
/// let loss = joint_loss(|outputs, labels| {
///     softmax_cross_entropy(&outputs[0], &labels[0])?.add(&mse(&outputs[1], &labels[1])?)
/// });
/// # let _ = loss;
/// ```
pub fn joint_loss(f: impl Fn(&[Tensor], &[Tensor]) -> Result<Tensor> + Send + Sync) -> impl Loss {
    Joint(f)
}

/// The mean cross-entropy of logits `[.., C]` with integer labels `[..]`, or with distributions `[.., C]` over the
/// classes.
#[track_caller]
pub fn softmax_cross_entropy(logits: &Tensor, labels: &Tensor) -> Result<Tensor> {
    if labels.dtype().is_float() {
        let (logits, targets) = alike(logits, labels)?;
        return logits.dense_softmax_cross_entropy(&targets)?.mean(&[], false);
    }
    logits.softmax_cross_entropy(labels)?.mean(&[], false)
}

/// The mean cross-entropy of logits `[B, T, C]` with integer labels `[B, T]`, of which those that are `padding` do not count: the mean over
/// the places of a sequence that are filled, then the mean over sequences, so that a batch that is run in pieces has the gradient of the
/// whole. A mean over all filled places at once, as Keras has it, would not.
///
/// ```
/// use plimsoll_nn::{Loss, padded_cross_entropy, softmax_cross_entropy};
/// use plimsoll_run::Tensor;
/// let logits = Tensor::from_slice(&[2.0f32, 0.0, 0.0, 1.0], [1, 2, 2])?;
/// // The second place is padding.
/// let loss = padded_cross_entropy(-1).loss(&[logits], &[Tensor::from_slice(&[0i64, -1], [1, 2])?])?.item()?;
/// let first = Tensor::from_slice(&[2.0f32, 0.0], [1, 2])?;
/// let expected = softmax_cross_entropy(&first, &Tensor::from_slice(&[0i64], [1])?)?.item()?;
/// assert!((loss - expected).abs() < 1e-6);
/// # Ok::<(), plimsoll_run::Error>(())
/// ```
pub fn padded_cross_entropy(padding: i64) -> impl Loss {
    move |logits: &Tensor, labels: &Tensor| -> Result<Tensor> {
        if labels.dtype().is_float() || labels.shape().rank() != 2 {
            return Err(refuse(format!(
                "gives labels of {}; padding is found in integers [B, T]",
                labels.ty()
            )));
        }
        let of = |value: f64| labels.full_like(labels.ty().clone(), value);
        let filled = labels.not_equal(&of(padding as f64)?)?;
        // Padding need not be a class.
        let losses = logits.softmax_cross_entropy(&filled.select(labels, &of(0.0)?)?)?;
        let counts = filled.cast(losses.dtype())?;
        let one = losses.full_like(Type::new(losses.dtype(), [labels.shape()[0]]), 1.0)?;
        let each = losses.mul(&counts)?.sum(&[1], false)?.div(&counts.sum(&[1], false)?.maximum(&one)?)?;
        each.mean(&[], false)
    }
}

/// [`softmax_cross_entropy`] where a share of every label is spread evenly over all classes.
pub fn smooth_cross_entropy(
    smoothing: f64,
) -> impl Fn(&Tensor, &Tensor) -> Result<Tensor> + Send + Sync + Clone {
    move |logits: &Tensor, labels: &Tensor| {
        if !(0.0..=1.0).contains(&smoothing) {
            return Err(refuse(format!("smooths labels by {smoothing}, which is not in 0 ≤ s ≤ 1")));
        }
        let classes = logits.shape().last().copied().unwrap_or(1).max(1);
        if labels.dtype().is_float() {
            let targets = labels.mul_scalar(1.0 - smoothing)?.add_scalar(smoothing / classes as f64)?;
            return softmax_cross_entropy(logits, &targets);
        }
        let targets = labels.one_hot(classes, logits.dtype().accumulator())?;
        let targets = targets.mul_scalar(1.0 - smoothing)?.add_scalar(smoothing / classes as f64)?;
        softmax_cross_entropy(logits, &targets)
    }
}

/// The mean of -t log σ(x) - (1 - t) log(1 - σ(x)) over all elements, for targets of the logits' shape; a last
/// axis of length 1 may be missing.
#[track_caller]
pub fn binary_cross_entropy(logits: &Tensor, targets: &Tensor) -> Result<Tensor> {
    let (x, t) = alike(logits, targets)?;
    x.sigmoid_cross_entropy(&t)?.mean(&[], false)
}

/// The mean of (x - t)² over all elements.
#[track_caller]
pub fn mse(outputs: &Tensor, targets: &Tensor) -> Result<Tensor> {
    let (x, t) = alike(outputs, targets)?;
    x.mse(&t)
}

/// The mean of |x - t| over all elements.
#[track_caller]
pub fn mae(outputs: &Tensor, targets: &Tensor) -> Result<Tensor> {
    let (x, t) = alike(outputs, targets)?;
    x.sub(&t)?.abs()?.mean(&[], false)
}

/// The mean over all elements of ½ d² where d = |x - t| is at most δ, else δ (d - ½ δ).
pub fn huber(delta: f64) -> impl Fn(&Tensor, &Tensor) -> Result<Tensor> + Send + Sync + Clone {
    move |outputs: &Tensor, targets: &Tensor| {
        let (x, t) = alike(outputs, targets)?;
        let distance = x.sub(&t)?.abs()?;
        // With q = min(d, δ) both cases are ½ q² + δ (d - q).
        let limit = distance.full_like(Type::new(distance.dtype(), []), delta)?;
        let near = distance.minimum(&limit)?;
        let far = distance.sub(&near)?.mul_scalar(delta)?;
        near.square()?.mul_scalar(0.5)?.add(&far)?.mean(&[], false)
    }
}

/// 1 - Dice's overlap of σ(logits) and targets `[N, ..]`, each sample by itself, then the mean:
/// 1 - (2 Σ p t + 1) / (Σ p + Σ t + 1).
///
/// Over a whole batch the overlap would not be a mean over samples, and a batch run in pieces would have another
/// gradient.
#[track_caller]
pub fn dice(logits: &Tensor, targets: &Tensor) -> Result<Tensor> {
    let (x, t) = alike(logits, targets)?;
    let (p, t) = (x.sigmoid()?.flatten(1)?, t.flatten(1)?);
    let both = p.mul(&t)?.sum(&[1], false)?.mul_scalar(2.0)?.add_scalar(1.0)?;
    let all = p.sum(&[1], false)?.add(&t.sum(&[1], false)?)?.add_scalar(1.0)?;
    both.div(&all)?.rsub_scalar(1.0)?.mean(&[], false)
}

/// Outputs and targets of the outputs' shape, as f32, or f64 where outputs are. A last axis of length 1 may be missing in one of them, as Keras has it:
/// outputs `[N, 1]` go with targets `[N]`. Other broadcasting is refused: it hides labels of the wrong shape.
#[track_caller]
pub(crate) fn alike(outputs: &Tensor, targets: &Tensor) -> Result<(Tensor, Tensor)> {
    let (x, t) = (outputs.shape(), targets.shape());
    let one_more = |long: &[usize], short: &[usize]| {
        long.len() == short.len() + 1 && long.last() == Some(&1) && long[..short.len()] == *short
    };
    if x != t && !one_more(x, t) && !one_more(t, x) {
        let (x, t) = (outputs.ty(), targets.ty());
        return Err(refuse(format!("compares outputs of {x} with targets of {t}; reshape one of them")));
    }
    let wide = if outputs.dtype() == DType::F64 { DType::F64 } else { DType::F32 };
    let targets = targets.cast(wide)?;
    let targets = if x == t { targets } else { targets.reshape(x.clone())? };
    Ok((outputs.cast(wide)?, targets))
}
