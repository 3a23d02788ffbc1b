//! Norms with or without a scale and a shift of their own, channels last.

use plimsoll_graph::{NormOps, Shape, TensorOps, Type};
use plimsoll_run::{Result, Tensor};

use crate::Net;

/// A scale or shift in the type in which norms keep theirs; where there is none, one that changes nothing.
fn wide(x: &Tensor, given: Option<&Tensor>, shape: &[usize], otherwise: f64) -> Result<Tensor> {
    let dtype = x.dtype().accumulator();
    match given {
        Some(given) => given.cast(dtype)?.reshape(Shape::from(shape)),
        None => x.full_like(Type::new(dtype, shape), otherwise),
    }
}

/// γ (x - mean) / √(var + ε) + β over the last `axes` axes.
#[track_caller]
pub fn layer_norm(
    x: &Tensor,
    axes: usize,
    gamma: Option<&Tensor>,
    beta: Option<&Tensor>,
    eps: f64,
) -> Result<Tensor> {
    let shape = &x.shape()[x.shape().rank().saturating_sub(axes)..].to_vec();
    x.layer_norm(&wide(x, gamma, shape, 1.0)?, &wide(x, beta, shape, 0.0)?, eps)
}

/// γ x / √(mean of x² + ε) over the last axis.
#[track_caller]
pub fn rms_norm(x: &Tensor, gamma: Option<&Tensor>, eps: f64) -> Result<Tensor> {
    let channels = x.shape().last().copied().unwrap_or(1);
    x.rms_norm(&wide(x, gamma, &[channels], 1.0)?, eps)
}

/// `[N, .., C]` normed over all places and groups of channels, each sample by itself; with as many groups as channels, an instance norm.
#[track_caller]
pub fn group_norm(
    x: &Tensor,
    groups: usize,
    gamma: Option<&Tensor>,
    beta: Option<&Tensor>,
    eps: f64,
) -> Result<Tensor> {
    let channels = x.shape().last().copied().unwrap_or(1);
    x.group_norm(&wide(x, gamma, &[channels], 1.0)?, &wide(x, beta, &[channels], 0.0)?, groups, eps)
}

/// `[.., C]` normed over the batch: y, and the batch's mean and (biased) variance.
#[track_caller]
pub fn batch_norm(
    net: &Net,
    x: &Tensor,
    gamma: Option<&Tensor>,
    beta: Option<&Tensor>,
    eps: f64,
) -> Result<(Tensor, Tensor, Tensor)> {
    let channels = x.shape().last().copied().unwrap_or(1);
    net.batch_norm_of(x, &wide(x, gamma, &[channels], 1.0)?, &wide(x, beta, &[channels], 0.0)?, eps)
}

/// `[.., C]` normed by statistics that are known.
#[track_caller]
pub fn batch_norm_inference(
    x: &Tensor,
    gamma: Option<&Tensor>,
    beta: Option<&Tensor>,
    mean: &Tensor,
    var: &Tensor,
    eps: f64,
) -> Result<Tensor> {
    let channels = x.shape().last().copied().unwrap_or(1);
    let (gamma, beta) = (wide(x, gamma, &[channels], 1.0)?, wide(x, beta, &[channels], 0.0)?);
    let (mean, var) = (mean.cast(gamma.dtype())?, var.cast(gamma.dtype())?);
    x.batch_norm_inference(&gamma, &beta, &mean, &var, eps)
}

/// What running statistics become after a batch: `(1 - momentum) · running + momentum · batch`, the variance unbiased, for `n` elements a
/// channel. Of one element there is no variance: the running one is not a number then, as in PyTorch.
#[track_caller]
pub fn running(old: &Tensor, batch: &Tensor, momentum: f64, unbiased: Option<usize>) -> Result<Tensor> {
    let batch = batch.cast(old.dtype())?;
    let batch = match unbiased {
        Some(n) => batch.mul_scalar(n as f64 / (n as f64 - 1.0))?,
        None => batch,
    };
    old.mul_scalar(1.0 - momentum)?.add(&batch.mul_scalar(momentum)?)
}
