//! Norms. Scale, shift and statistics are f32, or f64 in f64 layers, whatever the activations are.

use plimsoll_graph::{GradientOps, NormOps, TensorOps, Type};
use plimsoll_nn::Init;
use plimsoll_run::{Result as RunResult, Tensor};

use super::{Table, statistic, trained};
use crate::error::{Result, refuse};
use crate::layer::{Cx, Made, Masks, Weight, WeightKind};
use crate::settings::Settings;

pub(crate) const TABLE: Table = &[
    ("BatchNormalization", batch),
    ("LayerNormalization", layer),
    ("GroupNormalization", group),
    ("RMSNormalization", |s| {
        last_axis(s)?;
        let eps = s.number_or("epsilon", 1e-6)?;
        let init = s.init("gamma_initializer", 1, 1);
        Ok(Made::weighted(vec![trained(s, "scale", "gamma_regularizer")?], move |cx, x| {
            let gamma = cx.master(
                "scale",
                [width(x)?],
                if init == Init::glorot_uniform(1, 1) { Init::Constant(1.0) } else { init },
            )?;
            x.rms_norm(&gamma, eps)
        }))
    }),
    ("UnitNormalization", |s| {
        let axes = if s.is_null("axis") { vec![-1] } else { s.integers("axis")? };
        Ok(Made::plain(move |x| {
            let axes = places(&axes, x)?;
            let wide = x.cast(x.dtype().accumulator())?;
            // Keras holds the squared norm at 1e-12 or more.
            let norm = wide.square()?.sum(&axes, true)?.clamp(1e-12, f64::INFINITY)?.rsqrt()?;
            wide.mul(&norm)?.cast(x.dtype())
        })
        .masks(Masks::Pass))
    }),
];

fn width(x: &Tensor) -> RunResult<usize> {
    x.shape().last().copied().ok_or_else(|| refuse(format!("gives {} to a norm", x.ty())))
}

/// Axes, which may be counted from the last, as places in a shape, sorted.
fn places(axes: &[i64], x: &Tensor) -> RunResult<Vec<usize>> {
    let rank = x.shape().rank() as i64;
    let place = |&axis: &i64| {
        let axis = if axis < 0 { axis + rank } else { axis };
        let there = (0..rank).contains(&axis);
        there.then_some(axis as usize).ok_or_else(|| refuse(format!("norms {} along axis {axis}", x.ty())))
    };
    let mut places = axes.iter().map(place).collect::<RunResult<Vec<usize>>>()?;
    places.sort_unstable();
    places.dedup();
    Ok(places)
}

fn last_axis(s: &Settings<'_>) -> Result<()> {
    match s.get("axis") {
        value if value.is_null() || value.as_i64() == Some(-1) => Ok(()),
        value if value.as_array().is_some_and(|list| list.len() == 1 && list[0].as_i64() == Some(-1)) => {
            Ok(())
        }
        _ => Err(s.wrong("axis", "only the last axis, -1, is taken")),
    }
}

/// Scale and shift of a norm, where it has them.
struct Affine {
    scale: bool,
    center: bool,
}

impl Affine {
    fn read(s: &Settings<'_>) -> Result<(Affine, Vec<Weight>)> {
        let affine = Affine { scale: s.flag("scale", true)?, center: s.flag("center", true)? };
        let mut weights = Vec::new();
        if affine.scale {
            weights.push(trained(s, "gamma", "gamma_regularizer")?);
        }
        if affine.center {
            weights.push(trained(s, "beta", "beta_regularizer")?);
        }
        Ok((affine, weights))
    }

    /// γ and β; ones and zeros in place of those that are not there.
    fn get(&self, cx: &mut Cx<'_>, x: &Tensor, shape: &[usize]) -> RunResult<(Tensor, Tensor)> {
        let ty = Type::new(cx.master_dtype(), shape);
        let gamma = match self.scale {
            true => cx.master("gamma", shape, Init::Constant(1.0))?,
            false => x.full_like(ty.clone(), 1.0)?,
        };
        let beta = match self.center {
            true => cx.master("beta", shape, Init::Constant(0.0))?,
            false => x.full_like(ty, 0.0)?,
        };
        Ok((gamma, beta))
    }
}

fn batch(s: &Settings<'_>) -> Result<Made> {
    let axis = if s.is_null("axis") { vec![-1] } else { s.integers("axis")? };
    let [axis] = axis[..] else { return Err(s.wrong("axis", "one axis is taken")) };
    let (affine, mut weights) = Affine::read(s)?;
    weights.extend([statistic("moving_mean"), statistic("moving_variance")]);
    let renorm = Renorm::read(s)?;
    if renorm.is_some() {
        weights.extend([statistic("moving_stddev"), statistic("renorm_mean"), statistic("renorm_stddev")]);
    }
    let (momentum, eps) = (s.number_or("momentum", 0.99)?, s.number_or("epsilon", 1e-3)?);
    let own = Batch { affine, momentum, eps, renorm };
    Ok(Made::with(weights, move |cx, args| {
        let (x, mask) = (args.one()?, args.mask().cloned());
        cx.pass.mask = mask.clone();
        let rank = x.shape().rank();
        let place = places(&[axis], x)?[0];
        if place + 1 == rank {
            return Ok(vec![own.run(cx, x, mask.as_ref())?]);
        }
        if mask.is_some() {
            return Err(refuse(
                "leads a mask into a norm along another axis than the last, which is not supported",
            ));
        }
        let (order, back) = last_and_back(rank, place);
        let y = own.run(cx, &x.transpose(&order)?, None)?;
        Ok(vec![y.transpose(&back)?])
    })
    .masks(Masks::Read))
}

/// The order of axes that brings one to the end, and the order that undoes it.
fn last_and_back(rank: usize, place: usize) -> (Vec<usize>, Vec<usize>) {
    let order: Vec<usize> = (0..rank).filter(|&i| i != place).chain([place]).collect();
    let mut back = vec![0; rank];
    order.iter().enumerate().for_each(|(i, &axis)| back[axis] = i);
    (order, back)
}

/// Batch norm along the last axis.
struct Batch {
    affine: Affine,
    momentum: f64,
    eps: f64,
    renorm: Option<Renorm>,
}

impl Batch {
    /// A frozen layer uses its moving statistics in training too, as Keras has it.
    fn run(&self, cx: &mut Cx<'_>, x: &Tensor, mask: Option<&Tensor>) -> RunResult<Tensor> {
        let (shape, eps) = ([width(x)?], self.eps);
        let (gamma, beta) = self.affine.get(cx, x, &shape)?;
        let mean = cx.state("moving_mean", shape, Init::Constant(0.0))?;
        let var = cx.state("moving_variance", shape, Init::Constant(1.0))?;
        let slow = match &self.renorm {
            Some(_) => Some(Slow {
                moving_stddev: cx.state("moving_stddev", shape, Init::Constant(1.0))?,
                mean: cx.state("renorm_mean", shape, Init::Constant(0.0))?,
                stddev: cx.state("renorm_stddev", shape, Init::Constant(1.0))?,
            }),
            None => None,
        };
        if !(cx.is_training() && cx.pass.own_trainable) {
            return x.batch_norm_inference(&gamma, &beta, &mean, &var, eps);
        }
        if mask.is_some() && cx.net.is_synced() {
            return Err(refuse(
                "norms batches of sequences with a mask, which cannot take statistics over ranks; leave --sync-batch-norm out",
            ));
        }
        let net = &*cx.net;
        let normed = |x: &Tensor, gamma: &Tensor, beta: &Tensor| match mask {
            None => net.batch_norm_of(x, gamma, beta, eps),
            Some(mask) => masked_norm(x, mask, gamma, beta, eps),
        };
        if let (Some(renorm), Some(slow)) = (&self.renorm, slow) {
            let wide = x.cast(x.dtype().accumulator())?;
            let ty = gamma.ty().clone();
            let (y, batch_mean, batch_var) =
                normed(&wide, &x.full_like(ty.clone(), 1.0)?, &x.full_like(ty, 0.0)?)?;
            let (batch_mean, batch_var) = (batch_mean.stop_gradient()?, batch_var.stop_gradient()?);
            let stddev = batch_var.add_scalar(eps)?.sqrt()?;
            let (r, d) = renorm.correction(&batch_mean, &stddev, &slow, eps)?;
            let y = y.mul(&r.mul(&gamma)?)?.add(&d.mul(&gamma)?.add(&beta)?)?;
            cx.update("renorm_mean", follow(&slow.mean, &batch_mean, renorm.momentum)?)?;
            cx.update("renorm_stddev", follow(&slow.stddev, &stddev, renorm.momentum)?)?;
            cx.update("moving_mean", follow(&mean, &batch_mean, self.momentum)?)?;
            // The variance is what the deviation says, held at 0 or more.
            let moving = follow(&slow.moving_stddev, &stddev, self.momentum)?;
            cx.update("moving_variance", moving.square()?.add_scalar(-eps)?.relu()?)?;
            cx.update("moving_stddev", moving)?;
            return y.cast(x.dtype());
        }
        let (y, batch_mean, batch_var) = normed(x, &gamma, &beta)?;
        // Keras 3 keeps the biased variance, where others keep the unbiased one.
        cx.update("moving_mean", follow(&mean, &batch_mean, self.momentum)?)?;
        cx.update("moving_variance", follow(&var, &batch_var, self.momentum)?)?;
        Ok(y)
    }
}

/// A moving average one step further.
fn follow(old: &Tensor, new: &Tensor, momentum: f64) -> RunResult<Tensor> {
    old.mul_scalar(momentum)?.add(&new.mul_scalar(1.0 - momentum)?)
}

/// Batch renorm: in training, what a batch's statistics are off the moving ones is put right, within bounds.
struct Renorm {
    momentum: f64,
    least_r: f64,
    most_r: f64,
    most_d: f64,
}

/// The statistics that only a renorm has.
struct Slow {
    moving_stddev: Tensor,
    mean: Tensor,
    stddev: Tensor,
}

impl Renorm {
    fn read(s: &Settings<'_>) -> Result<Option<Renorm>> {
        if !s.flag("renorm", false)? {
            return Ok(None);
        }
        let clipping = s.get("renorm_clipping");
        let bound = |key: &str, default: f64| match clipping.get(key) {
            None => Ok(default),
            Some(value) if value.is_null() => Ok(default),
            Some(value) => value.as_f64().ok_or_else(|| s.wrong("renorm_clipping", "its bounds are numbers")),
        };
        let known = ["rmax", "rmin", "dmax"];
        if clipping.as_object().is_some_and(|map| map.keys().any(|key| !known.contains(&key.as_str()))) {
            return Err(s.wrong("renorm_clipping", "rmax, rmin and dmax are known"));
        }
        let own = Renorm {
            momentum: s.number_or("renorm_momentum", 0.99)?,
            least_r: bound("rmin", f64::NEG_INFINITY)?,
            most_r: bound("rmax", f64::INFINITY)?,
            most_d: bound("dmax", f64::INFINITY)?,
        };
        if own.least_r > own.most_r || own.most_d < 0.0 {
            return Err(s.wrong("renorm_clipping", "rmin is at most rmax, and dmax is not negative"));
        }
        Ok(Some(own))
    }

    /// The factor and the shift that put a batch's statistics right.
    fn correction(
        &self,
        mean: &Tensor,
        stddev: &Tensor,
        slow: &Slow,
        eps: f64,
    ) -> RunResult<(Tensor, Tensor)> {
        let by = slow.stddev.clamp(eps.sqrt(), f64::INFINITY)?;
        let r = stddev.div(&by)?.clamp(self.least_r, self.most_r)?;
        let d = mean.sub(&slow.mean)?.div(&by)?.clamp(-self.most_d, self.most_d)?;
        Ok((r, d))
    }
}

/// Batch norm whose statistics are of what a mask shows, as Keras weighs them.
fn masked_norm(
    x: &Tensor,
    mask: &Tensor,
    gamma: &Tensor,
    beta: &Tensor,
    eps: f64,
) -> RunResult<(Tensor, Tensor, Tensor)> {
    let rank = x.shape().rank();
    if mask.shape()[..] != x.shape()[..rank - 1] {
        return Err(refuse(format!("norms {} with a mask of {}", x.ty(), mask.ty())));
    }
    let wide = x.cast(x.dtype().accumulator())?;
    let shape: Vec<usize> = x.shape()[..rank - 1].iter().copied().chain([1]).collect();
    let shown = mask.cast(plimsoll_graph::DType::F32)?.cast(wide.dtype())?.reshape(&shape[..])?;
    let axes: Vec<usize> = (0..rank - 1).collect();
    // Keras adds its ε to the number of what is shown.
    let count = shown.sum(&[], false)?.add_scalar(1e-7)?;
    let mean = wide.mul(&shown)?.sum(&axes, false)?.div(&count)?;
    let off = wide.sub(&mean)?;
    let var = off.square()?.mul(&shown)?.sum(&axes, false)?.div(&count)?;
    let y = off.mul(&var.add_scalar(eps)?.rsqrt()?)?.mul(gamma)?.add(beta)?;
    Ok((y.cast(x.dtype())?, mean, var))
}

fn layer(s: &Settings<'_>) -> Result<Made> {
    let axes = if s.is_null("axis") { vec![-1] } else { s.integers("axis")? };
    let (mut affine, mut weights) = Affine::read(s)?;
    let eps = s.number_or("epsilon", 1e-3)?;
    let is_rms = s.flag("rms_scaling", false)?;
    if is_rms {
        // Whatever else is said, it has a scale; a shift, which nobody reads, is stored by older versions alone.
        affine = Affine { scale: true, center: false };
        weights = vec![trained(s, "gamma", "gamma_regularizer")?, trained(s, "beta", "beta_regularizer")?];
        weights[1].kind = WeightKind::Optional;
    }
    Ok(Made::weighted(weights, move |cx, x| {
        let axes = places(&axes, x)?;
        let rank = x.shape().rank();
        let shape: Vec<usize> = axes.iter().map(|&axis| x.shape()[axis]).collect();
        let (gamma, beta) = affine.get(cx, x, &shape)?;
        if is_rms && cx.is_bound("beta") {
            cx.master("beta", &shape[..], Init::Constant(0.0))?;
        }
        if axes.iter().rev().enumerate().all(|(i, &axis)| axis + i + 1 == rank) && !is_rms {
            return x.layer_norm(&gamma, &beta, eps);
        }
        let wide = x.cast(x.dtype().accumulator())?;
        let full: Vec<usize> = (0..rank).map(|i| if axes.contains(&i) { x.shape()[i] } else { 1 }).collect();
        let (gamma, beta) = (gamma.reshape(&full[..])?, beta.reshape(&full[..])?);
        let centred = wide.sub(&wide.mean(&axes, true)?)?;
        let inverse = centred.square()?.mean(&axes, true)?.add_scalar(eps)?.rsqrt()?;
        // What Keras calls rms scaling divides by the deviation without taking off the mean, and has no shift.
        let y = match is_rms {
            true => wide.mul(&inverse)?.mul(&gamma)?,
            false => centred.mul(&inverse)?.mul(&gamma)?.add(&beta)?,
        };
        y.cast(x.dtype())
    })
    .masks(Masks::Pass))
}

fn group(s: &Settings<'_>) -> Result<Made> {
    let axis = if s.is_null("axis") { vec![-1] } else { s.integers("axis")? };
    let [axis] = axis[..] else { return Err(s.wrong("axis", "one axis is taken")) };
    let groups = s.integers("groups")?;
    let [groups] = groups[..] else { return Err(s.wrong("groups", "one number is taken")) };
    let (affine, weights) = Affine::read(s)?;
    let eps = s.number_or("epsilon", 1e-3)?;
    Ok(Made::weighted(weights, move |cx, x| {
        let (rank, place) = (x.shape().rank(), places(&[axis], x)?[0]);
        let (order, back) = last_and_back(rank, place);
        let is_last = place + 1 == rank;
        let x = &if is_last { x.clone() } else { x.transpose(&order)? };
        let channels = width(x)?;
        // -1 is one group a channel.
        let groups = if groups == -1 { channels } else { groups.max(0) as usize };
        if groups == 0 || !channels.is_multiple_of(groups) {
            return Err(refuse(format!("cuts {channels} channels in {groups} groups")));
        }
        let (gamma, beta) = affine.get(cx, x, &[channels])?;
        let y = x.group_norm(&gamma, &beta, groups, eps)?;
        if is_last { Ok(y) } else { y.transpose(&back) }
    })
    .masks(Masks::Pass))
}
