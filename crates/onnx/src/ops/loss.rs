//! Losses that are nodes of a graph.

use plimsoll_graph::{DType, GatherOps, SoftmaxOps, TensorOps};
use plimsoll_nn::blocks::element;
use plimsoll_run::{Result, Tensor};

use super::Table;
use crate::call::Call;
use crate::error::refuse;

pub(super) const TABLE: Table = &[
    ("NegativeLogLikelihoodLoss", |c| {
        let x = c.plain(0)?;
        Ok(vec![likelihood(c, &x)?.into()])
    }),
    ("SoftmaxCrossEntropyLoss", |c| {
        let logs = c.plain(0)?.log_softmax(1)?;
        Ok(vec![likelihood(c, &logs)?.into(), logs.into()])
    }),
];

/// The mean, the sum, or all of the negative logarithms `[N, C, ..]` of the classes that labels `[N, ..]` name.
fn likelihood(c: &mut Call<'_>, logs: &Tensor) -> Result<Tensor> {
    let labels = c.plain(1)?;
    let labels = if labels.dtype().is_index() { labels } else { labels.cast(DType::I64)? };
    let weights = c.maybe_plain(2)?;
    let reduction = c.one_of("reduction", &["mean", "sum", "none"])?;
    let ignored = if c.has("ignore_index") { Some(c.int("ignore_index", 0)?) } else { None };
    let shape = labels.shape().clone();
    let mut single = shape.to_vec();
    if single.is_empty() {
        return Err(refuse("has no labels"));
    }
    single.insert(1, 1);
    let (places, counted) = match ignored {
        None => (labels.clone(), None),
        Some(ignored) => {
            let is_ignored = labels.equal(&element::scalar(&labels, ignored as f64)?)?;
            (is_ignored.select(&element::scalar(&labels, 0.0)?, &labels)?, Some(is_ignored.not()?))
        }
    };
    let own = logs.take_along(&places.reshape(single)?, 1)?.reshape(shape)?.neg()?;
    let mut share = match &weights {
        Some(weights) => Some(weights.gather(&places, 0)?),
        None => None,
    };
    if let Some(counted) = counted {
        let counted = counted.cast(own.dtype())?;
        share = Some(match share {
            Some(share) => share.mul(&counted)?,
            None => counted,
        });
    }
    let weighed = match &share {
        Some(share) => own.mul(share)?,
        None => own,
    };
    match (reduction, share) {
        ("none", _) => Ok(weighed),
        ("sum", _) => weighed.sum(&[], false),
        (_, None) => weighed.mean(&[], false),
        (_, Some(share)) => weighed.sum(&[], false)?.div(&share.sum(&[], false)?),
    }
}
