//! Keras's CTC loss: the chance that a sequence of logits spells the labels, with blanks and repetitions between them.

use plimsoll_graph::{DType, GatherOps, SoftmaxOps, TensorOps, Type};
use plimsoll_run::{Result, Tensor};

use crate::error::refuse;

/// The logarithm of a chance that is none, and finite, so that its gradient is a number.
const NEVER: f64 = -1e30;

/// The loss of each sample, of logits `[N, T, C]` and labels `[N, L]`. Class 0 is the blank; labels of 0 are none.
pub(crate) fn each(x: &Tensor, labels: &Tensor) -> Result<Tensor> {
    let (&[n, time, _], &[rows, length]) = (&x.shape()[..], &labels.shape()[..]) else {
        return Err(refuse(format!(
            "compares logits of {} with labels of {} by CTC, which takes [N, T, C] and [N, L]",
            x.ty(),
            labels.ty()
        )));
    };
    if rows != n || time == 0 || length == 0 {
        return Err(refuse(format!("compares logits of {} with labels of {}", x.ty(), labels.ty())));
    }
    let labels = if labels.dtype().is_index() { labels.clone() } else { labels.cast(DType::I64)? };
    let places = 2 * length + 1;
    // A blank before each label, and one at the end.
    let blank = labels.full_like(labels.ty().clone(), 0.0)?;
    let pairs = Tensor::concat(&[&blank.reshape([n, length, 1])?, &labels.reshape([n, length, 1])?], 2)?;
    let spelled = Tensor::concat(&[&pairs.reshape([n, 2 * length])?, &blank.narrow(1, 0, 1)?], 1)?;
    let shares = x.log_softmax(-1)?;
    let spelled_in_time = spelled.reshape([n, 1, places])?.broadcast([n, time, places])?;
    let shares = shares.take_along(&spelled_in_time, 2)?;
    let at = |t: usize| shares.narrow(1, t, t + 1)?.reshape([n, places]);
    let never = |wide: usize| x.full_like(Type::new(x.dtype(), [n, wide]), NEVER);
    // A label may follow the one before it without a blank where they differ.
    let skips = {
        let before = spelled.narrow(1, 0, places - 2)?;
        let own = spelled.narrow(1, 2, places)?;
        let differs = own.not_equal(&before)?.cast(DType::F32)?.cast(x.dtype())?;
        let lost = differs.rsub_scalar(1.0)?.mul_scalar(NEVER)?;
        Tensor::concat(&[&never(2)?, &lost], 1)?
    };
    let later =
        |alpha: &Tensor, by: usize| Tensor::concat(&[&never(by)?, &alpha.narrow(1, 0, places - by)?], 1);
    let mut alpha = Tensor::concat(&[&at(0)?.narrow(1, 0, 2)?, &never(places - 2)?], 1)?;
    for t in 1..time {
        let (one, two) = (later(&alpha, 1)?, later(&alpha, 2)?.add(&skips)?.clamp(NEVER, f64::INFINITY)?);
        alpha = log_sum(&[&alpha, &one, &two])?.add(&at(t)?)?.clamp(NEVER, f64::INFINITY)?;
    }
    // It ends at the last label or the blank behind it; without labels, at the first blank.
    let is_label = labels.not_equal(&blank)?.cast(DType::F32)?;
    let count = is_label.sum(&[1], true)?.cast(DType::I64)?;
    let end = count.add(&count)?;
    let last = alpha.take_along(&end, 1)?;
    let none = count.full_like(count.ty().clone(), 0.0)?;
    let is_empty = count.equal(&none)?;
    let one = count.full_like(count.ty().clone(), 1.0)?;
    let before = alpha.take_along(&is_empty.select(&none, &end.sub(&one)?)?, 1)?;
    let before = is_empty.select(&never(1)?, &before)?;
    let loss = log_sum(&[&last, &before])?.neg()?.reshape([n])?;
    // Where no spelling is short enough, the loss is infinite.
    let most = loss.full_like(Type::new(loss.dtype(), []), -0.5 * NEVER)?;
    loss.greater(&most)?.select(&loss.full_like(loss.ty().clone(), f64::INFINITY)?, &loss)
}

/// log Σ exp, element by element.
fn log_sum(parts: &[&Tensor]) -> Result<Tensor> {
    let [first, rest @ ..] = parts else { return Err(refuse("adds no chances")) };
    let mut most = (*first).clone();
    for part in rest {
        most = most.maximum(part)?;
    }
    let mut sum = first.sub(&most)?.exp()?;
    for part in rest {
        sum = sum.add(&part.sub(&most)?.exp()?)?;
    }
    sum.log()?.add(&most)
}
