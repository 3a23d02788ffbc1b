//! Losses in which some samples count more than others: by class, or by a weight that comes with each sample.
//!
//! Weights multiply the loss of a sample, and the mean is over samples as ever, as in Keras: a batch that is run in pieces has the gradient of
//! the whole. A mean over weights would not.

use plimsoll_graph::{GatherOps, LossOps, TensorOps};
use plimsoll_run::{Result, Tensor};

use crate::error::refuse;
use crate::{Loss, joint_loss};

/// The cross-entropy of logits `[.., C]` with integer labels `[..]`, each multiplied by the weight of its label's class, then the mean over
/// samples. One weight a class.
///
/// ```
/// use plimsoll_nn::{Loss, class_weighted_cross_entropy, softmax_cross_entropy};
/// use plimsoll_run::Tensor;
/// let logits = Tensor::from_slice(&[2.0f32, 0.0, 0.0, 1.0], [2, 2])?;
/// let labels = Tensor::from_slice(&[0i64, 0], [2])?;
/// // Class 0 is rare: it counts three times.
/// let rare = class_weighted_cross_entropy(vec![3.0, 1.0]);
/// let weighted = rare.loss(&[logits.clone()], &[labels.clone()])?.item()?;
/// assert!((weighted - 3.0 * softmax_cross_entropy(&logits, &labels)?.item()?).abs() < 1e-6);
/// # Ok::<(), plimsoll_run::Error>(())
/// ```
pub fn class_weighted_cross_entropy(weights: Vec<f64>) -> impl Loss {
    let table: Vec<f32> = weights.iter().map(|&weight| weight as f32).collect();
    move |logits: &Tensor, labels: &Tensor| -> Result<Tensor> {
        let classes = logits.shape().last().copied().unwrap_or(0);
        if classes != table.len() || table.iter().any(|weight| !weight.is_finite() || *weight < 0.0) {
            return Err(refuse(format!(
                "weighs {classes} classes by {} weights; give one of at least 0 for each class",
                table.len()
            )));
        }
        if labels.dtype().is_float() {
            return Err(refuse("weighs classes of labels that are no classes; give integer labels"));
        }
        let losses = logits.softmax_cross_entropy(labels)?;
        let weights = Tensor::from_slice(&table, [table.len()])?.gather(labels, 0)?;
        losses.mul(&weights.cast(losses.dtype())?)?.mean(&[], false)
    }
}

/// A loss whose samples bring their weights: labels are the targets and, as a second field `[N]`, a weight for each sample. `each` gives the
/// loss of every sample, `[N, ..]`; what is behind the first axis is averaged. Train with `Trainer::labels(2)`.
///
/// ```
/// use plimsoll_graph::{LossOps, TensorOps};
/// use plimsoll_nn::{Loss, sample_weighted};
/// use plimsoll_run::Tensor;
/// let loss = sample_weighted(|logits, labels| logits.softmax_cross_entropy(labels));
/// let logits = Tensor::from_slice(&[2.0f32, 0.0, 0.0, 1.0], [2, 2])?;
/// let labels = Tensor::from_slice(&[0i64, 1], [2])?;
/// // Only the first sample counts.
/// let weights = Tensor::from_slice(&[1.0f32, 0.0], [2])?;
/// let first = logits.softmax_cross_entropy(&labels)?.to_vec::<f32>()?[0];
/// assert_eq!(loss.loss(&[logits], &[labels, weights])?.item()?, f64::from(first / 2.0));
/// # Ok::<(), plimsoll_run::Error>(())
/// ```
pub fn sample_weighted(each: impl Fn(&Tensor, &Tensor) -> Result<Tensor> + Send + Sync) -> impl Loss {
    joint_loss(move |outputs: &[Tensor], labels: &[Tensor]| {
        let ([output], [target, weights]) = (outputs, labels) else {
            return Err(refuse(format!(
                "weighs samples of {} outputs and {} fields of labels; give one output, its targets and a weight for each sample",
                outputs.len(),
                labels.len()
            )));
        };
        let mut losses = each(output, target)?;
        if losses.shape().rank() > 1 {
            losses = losses.flatten(1)?.mean(&[1], false)?;
        }
        if losses.shape() != weights.shape() {
            return Err(refuse(format!("weighs losses of {} by weights of {}", losses.ty(), weights.ty())));
        }
        losses.mul(&weights.cast(losses.dtype())?)?.mean(&[], false)
    })
}
