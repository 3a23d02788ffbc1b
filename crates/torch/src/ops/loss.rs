//! Losses, with PyTorch's ways of taking their mean.

use plimsoll_graph::{DType, GatherOps, GradientOps, LossOps, SoftmaxOps, TensorOps, Type};
use plimsoll_nn::blocks::Laid;
use plimsoll_run::{Result, Tensor};

use super::elementwise::converted;
use super::reduce::lengths;
use super::{Table, Values, one};
use crate::call::Call;
use crate::error::refuse;

pub(super) const OPS: Table = &[
    ("aten.cross_entropy_loss.default", |c| cross_entropy(c)),
    ("aten.nll_loss_nd.default", |c| {
        let (x, labels) = (c.laid("self")?, c.tensor("target")?);
        let (weight, ignored) = (c.opt_tensor("weight")?, c.int("ignore_index")?);
        let x = classes_last(&x)?;
        let (labels, counted) = without_ignored(&labels, ignored)?;
        let mut shape = labels.shape().to_vec();
        shape.push(1);
        let places = labels.reshape(shape)?;
        let losses = x.take_along(&places, -1)?.reshape(labels.shape())?.neg()?;
        weighted_mean(c, &losses, &labels, &counted, weight.as_ref())
    }),
    ("aten.mse_loss.default", |c| pairwise(c, |x, t| x.sub(t)?.square())),
    ("aten.l1_loss.default", |c| pairwise(c, |x, t| x.sub(t)?.abs())),
    ("aten.smooth_l1_loss.default", |c| {
        let beta = c.float("beta")?;
        pairwise(c, |x, t| {
            let d = x.sub(t)?.abs()?;
            if beta == 0.0 {
                return Ok(d);
            }
            let near = d.clamp(0.0, beta)?;
            near.square()?.mul_scalar(0.5 / beta)?.add(&d.sub(&near)?)
        })
    }),
    ("aten.huber_loss.default", |c| {
        let delta = c.float("delta")?;
        pairwise(c, |x, t| {
            let d = x.sub(t)?.abs()?;
            let near = d.clamp(0.0, delta)?;
            near.square()?.mul_scalar(0.5)?.add(&d.sub(&near)?.mul_scalar(delta)?)
        })
    }),
    ("aten.binary_cross_entropy_with_logits.default", |c| {
        let (x, t) = (c.laid("self")?, c.laid("target")?);
        let (weight, positive) = (c.opt_laid("weight")?, c.opt_laid("pos_weight")?);
        let dtype = x.dtype();
        let mut all = vec![x, t];
        let at = |given: Option<Laid>, all: &mut Vec<Laid>| {
            given.map(|laid| {
                all.push(laid);
                all.len() - 1
            })
        };
        let (weight, positive) = (at(weight, &mut all), at(positive, &mut all));
        let losses = Laid::zip(&all.iter().collect::<Vec<_>>(), |v| {
            let (x, t) = (&v[0], v[1].cast(dtype)?);
            let losses = match positive {
                None => x.softplus()?.sub(&x.mul(&t)?)?,
                Some(i) => {
                    // -p t log σ(x) - (1 - t) log(1 - σ(x)), by log σ(x) = -softplus(-x)
                    let yes = t.mul(&v[i].cast(dtype)?)?.mul(&x.neg()?.softplus()?)?;
                    yes.add(&t.rsub_scalar(1.0)?.mul(&x.softplus()?)?)?
                }
            };
            match weight {
                None => Ok(losses),
                Some(i) => losses.mul(&v[i].cast(dtype)?),
            }
        })?;
        reduced(c, &losses)
    }),
    ("aten.binary_cross_entropy.default", |c| {
        let (x, t, weight) = (c.laid("self")?, c.laid("target")?, c.opt_laid("weight")?);
        let losses = Laid::zip(&[&x, &t], |v| crossed(&v[0], &v[1]))?;
        let losses = match weight {
            Some(weight) => Laid::zip(&[&losses, &weight], |v| v[0].mul(&v[1]))?,
            None => losses,
        };
        reduced(c, &losses)
    }),
    ("aten.kl_div.default", |c| {
        let (x, t, is_log) = (c.laid("self")?, c.laid("target")?, c.flag("log_target")?);
        let losses = Laid::zip(&[&x, &t], |v| {
            if is_log {
                return v[1].exp()?.mul(&v[1].sub(&v[0])?);
            }
            // 0 · log 0 is 0.
            let zero = v[1].full_like(Type::new(v[1].dtype(), []), 0.0)?;
            let one = v[1].full_like(Type::new(v[1].dtype(), []), 1.0)?;
            let is_some = v[1].greater(&zero)?;
            let entropy = v[1].mul(&is_some.select(&v[1], &one)?.log()?)?;
            entropy.sub(&v[1].mul(&v[0])?)
        })?;
        reduced(c, &losses)
    }),
    ("aten.soft_margin_loss.default", |c| pairwise(c, |x, t| x.mul(t)?.neg()?.softplus())),
    ("aten.triplet_margin_loss.default", |c| {
        let (a, p, n) = (c.tensor("anchor")?, c.tensor("positive")?, c.tensor("negative")?);
        let (margin, power, eps) = (c.float("margin")?, c.float("p")?, c.float("eps")?);
        let far = |x: &Tensor, y: &Tensor| {
            let apart = x.sub(y)?.add_scalar(eps)?;
            lengths(&apart, &[apart.shape().rank() - 1], false, power)
        };
        let mut farther = far(&a, &n)?;
        if c.flag("swap")? {
            farther = farther.minimum(&far(&p, &n)?)?;
        }
        let losses = far(&a, &p)?.sub(&farther)?.add_scalar(margin)?.relu()?;
        reduced(c, &losses.into())
    }),
    ("aten.cosine_embedding_loss.default", |c| {
        let (a, b, t) = (c.tensor("input1")?, c.tensor("input2")?, c.tensor("target")?);
        let margin = c.float("margin")?;
        let last = a.shape().rank() - 1;
        let dot = a.mul(&b)?.sum(&[last], false)?;
        // What PyTorch adds to squares here; `cosine_similarity` has another.
        let squares = |x: &Tensor| x.square()?.sum(&[last], false)?.add_scalar(1e-12);
        let cos = dot.div(&squares(&a)?.mul(&squares(&b)?)?.sqrt()?)?;
        let t = t.cast(cos.dtype())?;
        let scalar = |value: f64| cos.full_like(Type::new(cos.dtype(), []), value);
        let (near, far) = (cos.rsub_scalar(1.0)?, cos.add_scalar(-margin)?.relu()?);
        let losses =
            t.equal(&scalar(1.0)?)?.select(&near, &t.equal(&scalar(-1.0)?)?.select(&far, &scalar(0.0)?)?)?;
        reduced(c, &losses.into())
    }),
];

/// -t log p - (1 - t) log(1 - p), where logarithms are held at -100, with PyTorch's gradient: it divides by no less than 1e-12.
fn crossed(p: &Tensor, t: &Tensor) -> Result<Tensor> {
    let log = |p: &Tensor| p.log()?.clamp(-100.0, f64::INFINITY);
    let (yes, no) = (t.mul(&log(p)?)?, t.rsub_scalar(1.0)?.mul(&log(&p.rsub_scalar(1.0)?)?)?);
    yes.add(&no)?.neg()?.with_gradient(&[p, t], |at| {
        let (p, t, grad) = (at.input(1)?, at.input(2)?, at.grad(0)?);
        let least = at.full(&Type::new(p.dtype(), []), 1e-12)?;
        let spread = p.mul(&p.rsub_scalar(1.0)?)?.maximum(&least)?;
        let own = grad.mul(&p.sub(&t)?)?.div(&spread)?.sum_to(p.shape())?;
        let odds = if at.wants(2) {
            Some(grad.mul(&p.rsub_scalar(1.0)?.log()?.sub(&p.log()?)?)?.sum_to(t.shape())?)
        } else {
            None
        };
        Ok(vec![Some(own), odds])
    })
}

/// Logits `[N, C, ..]` with the classes last; `[C]` stays.
fn classes_last(x: &Laid) -> Result<Tensor> {
    if x.rank() < 2 { x.plain() } else { x.to_channels_last() }
}

/// The mean, the sum, or each loss by itself.
fn reduced(c: &Call<'_, '_>, losses: &Laid) -> Values {
    match c.int("reduction")? {
        0 => one(losses.clone()),
        1 => one(losses.lying().mean(&[], false)?),
        2 => one(losses.lying().sum(&[], false)?),
        other => Err(refuse(format!("reduces by {other}"))),
    }
}

fn pairwise(c: &mut Call<'_, '_>, f: impl FnOnce(&Tensor, &Tensor) -> Result<Tensor>) -> Values {
    let (x, t) = (c.laid("self")?, c.laid("target")?);
    let dtype = c.out_dtype(0)?;
    let losses = Laid::zip(&[&x, &t], |v| f(&converted(&v[0], dtype)?, &converted(&v[1], dtype)?))?;
    reduced(c, &losses)
}

/// Labels with class 0 in the place of those that do not count, and which count.
fn without_ignored(labels: &Tensor, ignored: i64) -> Result<(Tensor, Tensor)> {
    let scalar = |value: f64| labels.full_like(Type::new(labels.dtype(), []), value);
    let counted = labels.not_equal(&scalar(ignored as f64)?)?;
    Ok((counted.select(labels, &scalar(0.0)?)?, counted))
}

/// The mean over labels that count, each by the weight of its class.
fn weighted_mean(
    c: &Call<'_, '_>,
    losses: &Tensor,
    labels: &Tensor,
    counted: &Tensor,
    weight: Option<&Tensor>,
) -> Values {
    let mut shares = counted.cast(losses.dtype())?;
    if let Some(weight) = weight {
        shares = shares.mul(&weight.cast(losses.dtype())?.gather(labels, 0)?)?;
    }
    // A loss that does not count must not be looked at: it may be infinite.
    let zero = losses.full_like(Type::new(losses.dtype(), []), 0.0)?;
    let losses = counted.select(losses, &zero)?;
    let losses = if weight.is_some() { losses.mul(&shares)? } else { losses };
    let out = c.out_dtype(0)?;
    match c.int("reduction")? {
        0 => one(losses.cast(out)?),
        1 => one(counted_mean(c, &losses, &shares)?.cast(out)?),
        2 => one(losses.sum(&[], false)?.cast(out)?),
        other => Err(refuse(format!("reduces by {other}"))),
    }
}

/// The sum of losses over the sum of what their labels count for. Where that is known of the whole batch it is a mean over samples, of which
/// parts add up.
fn counted_mean(c: &Call<'_, '_>, losses: &Tensor, shares: &Tensor) -> Result<Tensor> {
    let whole = || losses.sum(&[], false)?.div(&shares.sum(&[], false)?);
    let (Some(share), Some(&rows)) = (&c.share, losses.shape().first()) else { return whole() };
    let samples = share.shape().elements();
    let share = share.cast(losses.dtype())?;
    let share = if rows == samples {
        let mut shape = vec![1; losses.shape().rank()];
        shape[0] = samples;
        share.reshape(shape)?
    } else if losses.shape().rank() == 1 && rows.is_multiple_of(samples) {
        share.reshape([samples, 1])?.broadcast([samples, rows / samples])?.reshape([rows])?
    } else {
        return whole();
    };
    losses.mul(&share)?.mean(&[], false)
}

fn cross_entropy(c: &mut Call<'_, '_>) -> Values {
    let (x, target) = (c.laid("self")?, c.laid("target")?);
    let (weight, ignored) = (c.opt_tensor("weight")?, c.int("ignore_index")?);
    let smoothing = c.float("label_smoothing")?;
    let x = classes_last(&x)?;
    let classes = x.shape().last().copied().unwrap_or(1).max(1);
    let out = c.out_dtype(0)?;
    if target.dtype().is_float() {
        // Distributions over the classes.
        let t = classes_last(&target)?.cast(x.dtype())?;
        let t = match smoothing {
            0.0 => t,
            s => t.mul_scalar(1.0 - s)?.add_scalar(s / classes as f64)?,
        };
        let t = match &weight {
            Some(weight) => t.mul(&weight.cast(t.dtype())?)?,
            None => t,
        };
        let losses = x.dense_softmax_cross_entropy(&t)?;
        return match c.int("reduction")? {
            0 => one(losses.cast(out)?),
            1 => one(losses.mean(&[], false)?.cast(out)?),
            _ => one(losses.sum(&[], false)?.cast(out)?),
        };
    }
    let (labels, counted) = without_ignored(&target.plain()?, ignored)?;
    let labels = if labels.dtype().is_index() { labels } else { labels.cast(DType::I64)? };
    let losses = x.softmax_cross_entropy(&labels)?;
    if smoothing == 0.0 {
        return weighted_mean(c, &losses, &labels, &counted, weight.as_ref());
    }
    // (1 - s) · the loss of the label + s / C · that of every class, each class by its weight.
    let last = x.shape().rank() - 1;
    let logs = x.cast(losses.dtype())?.log_softmax(-1)?.neg()?;
    let spread = match &weight {
        Some(weight) => logs.mul(&weight.cast(logs.dtype())?)?.sum(&[last], false)?,
        None => logs.sum(&[last], false)?,
    };
    let zero = losses.full_like(Type::new(losses.dtype(), []), 0.0)?;
    let (losses, spread) = (counted.select(&losses, &zero)?, counted.select(&spread, &zero)?);
    let mut shares = counted.cast(losses.dtype())?;
    let mut losses = losses;
    if let Some(weight) = &weight {
        shares = shares.mul(&weight.cast(losses.dtype())?.gather(&labels, 0)?)?;
        losses = losses.mul(&shares)?;
    }
    let both = losses.mul_scalar(1.0 - smoothing)?.add(&spread.mul_scalar(smoothing / classes as f64)?)?;
    match c.int("reduction")? {
        0 => one(both.cast(out)?),
        1 => one(counted_mean(c, &both, &shares)?.cast(out)?),
        _ => one(both.sum(&[], false)?.cast(out)?),
    }
}
