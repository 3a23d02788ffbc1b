//! Norms and dropout, in the form in which they train.

use plimsoll_graph::{DType, Shape, TensorOps, Type};
use plimsoll_nn::blocks::{Laid, norm, reduce};
use plimsoll_run::{Result, Tensor};

use super::Table;
use crate::call::{Call, axis_of};
use crate::error::refuse;
use crate::value::Value;

pub(super) const TABLE: Table = &[
    ("BatchNormalization", batch_norm),
    ("Dropout", dropout),
    ("LayerNormalization", layer_norm),
    ("RMSNormalization", rms_norm),
    ("InstanceNormalization", |c| {
        let eps = c.float("epsilon", 1e-5)?;
        let (x, scale, shift) = (c.x(0)?, c.master(1)?, c.master(2)?);
        let channels = x.shape().get(1).copied().unwrap_or(0);
        if channels == 0 {
            return Err(refuse(format!("norms {}, which has no channels", x.shape())));
        }
        let y = norm::group_norm(&x.to_channels_last()?, channels, Some(&scale), Some(&shift), eps)?;
        Ok(vec![Laid::channels_last(y).into()])
    }),
    ("GroupNormalization", |c| {
        let (eps, groups) = (c.float("epsilon", 1e-5)?, c.int("num_groups", 0)?);
        stash(c)?;
        let (x, scale, shift) = (c.x(0)?, c.master(1)?, c.master(2)?);
        let channels = x.shape().get(1).copied().unwrap_or(0);
        let groups = usize::try_from(groups).ok().filter(|&groups| groups > 0 && channels % groups == 0);
        let groups = groups.ok_or_else(|| refuse(format!("cuts {channels} channels in groups")))?;
        // Before opset 21 a group had one scale.
        let wide = |given: &Tensor| match given.shape()[..] == [groups] && groups != channels {
            true => given.reshape([groups, 1])?.broadcast([groups, channels / groups])?.reshape([channels]),
            false => Ok(given.clone()),
        };
        let (scale, shift) = (wide(&scale)?, wide(&shift)?);
        let y = norm::group_norm(&x.to_channels_last()?, groups, Some(&scale), Some(&shift), eps)?;
        Ok(vec![Laid::channels_last(y).into()])
    }),
    ("MeanVarianceNormalization", |c| {
        let x = c.x(0)?;
        let axes = c.int_list("axes")?.unwrap_or_else(|| vec![0, 2, 3]);
        let axes: Vec<usize> = c.axes(&axes, x.rank())?.into_iter().map(|axis| x.order()[axis]).collect();
        let y = x.map(|x| {
            let (mean, var) = reduce::moments(x, &axes)?;
            x.sub(&mean)?.div(&var.sqrt()?.add_scalar(1e-9)?)
        })?;
        Ok(vec![y.into()])
    }),
];

/// The type in which statistics are computed: f32 at least, which they are here.
fn stash(c: &Call<'_>) -> Result<()> {
    match c.dtype("stash_type")?.unwrap_or(DType::F32) {
        DType::F32 | DType::F64 => Ok(()),
        other => Err(refuse(format!("computes its statistics in {other}"))),
    }
}

/// With stored statistics: those of the batch while training, which they follow; else the stored ones. With computed statistics: what the
/// node says.
fn batch_norm(c: &mut Call<'_>) -> Result<Vec<Value>> {
    let (eps, momentum) = (c.float("epsilon", 1e-5)?, c.float("momentum", 0.9)?);
    if !c.flag("spatial", true)? {
        return Err(refuse("norms every place by itself (spatial = 0)"));
    }
    let says_training = c.flag("training_mode", false)?;
    let x = c.x(0)?;
    let channels = x.shape().get(1).copied().unwrap_or(1);
    let (scale, shift, mean, var) = (c.master(1)?, c.master(2)?, c.master(3)?, c.master(4)?);
    if [&scale, &shift, &mean, &var].iter().any(|t| t.shape()[..] != [channels]) {
        return Err(refuse(format!("norms {channels} channels by statistics of another number")));
    }
    let is_stored = matches!(c.value(3)?, Value::Weight(..)) && matches!(c.value(4)?, Value::Weight(..));
    let last = x.to_channels_last()?;
    let trains = if is_stored { c.net.is_training() } else { says_training };
    if !trains {
        let y = norm::batch_norm_inference(&last, Some(&scale), Some(&shift), &mean, &var, eps)?;
        let mut outputs = vec![Laid::channels_last(y).into()];
        // Nothing moves outside of training.
        if c.wants(1) || c.wants(2) {
            outputs.extend([Value::from(mean), Value::from(var)]);
        }
        return Ok(outputs);
    }
    let (y, batch_mean, batch_var) = norm::batch_norm(c.net, &last, Some(&scale), Some(&shift), eps)?;
    // ONNX counts the share of the old statistics.
    let share = 1.0 - momentum;
    let n = last.ty().elements() / channels.max(1);
    // What trains here is what PyTorch exported, which keeps the unbiased variance; a node by itself is ONNX's.
    let is_unbiased = is_stored && (n > 1 || c.net.is_synced());
    let batch_var = if is_unbiased { c.net.unbiased(&batch_var, &last)? } else { batch_var };
    let new_mean = norm::running(&mean, &batch_mean, share, None)?;
    let new_var = norm::running(&var, &batch_var, share, None)?;
    if is_stored {
        let (mean_name, var_name) = (c.node.inputs[3].clone(), c.node.inputs[4].clone());
        c.net.update(&mean_name, new_mean.clone())?;
        c.net.update(&var_name, new_var.clone())?;
    }
    Ok(vec![Laid::channels_last(y).into(), new_mean.into(), new_var.into()])
}

/// Drops while the model trains, whatever the file says of that; else gives what it was given.
fn dropout(c: &mut Call<'_>) -> Result<Vec<Value>> {
    let x = c.x(0)?;
    let rate = if c.opset < 12 { c.float("ratio", 0.5)? } else { c.maybe_number(1)?.unwrap_or(0.5) };
    c.maybe_number(2)?;
    // Masks are drawn by the engine's generator.
    c.int("seed", 0)?;
    if c.wants(1) {
        if c.net.is_training() && rate > 0.0 {
            return Err(refuse("gives its mask, which is not kept here while the model trains"));
        }
        let mask = x.lying().full_like(Type::new(DType::Bool, x.shape().clone()), 1.0)?;
        return Ok(vec![x.into(), mask.into()]);
    }
    if !c.net.is_training() || rate == 0.0 {
        return Ok(vec![x.into()]);
    }
    // Samples stand along the first axis, however the others lie.
    let (order, name) = (x.order().to_vec(), c.node.name.clone());
    let y = match order.first() {
        Some(0) => Laid::ordered(c.net.dropout(&name, x.lying(), rate)?, &order),
        _ => c.net.dropout(&name, &x.plain()?, rate)?.into(),
    };
    Ok(vec![y.into()])
}

/// What a norm over the last axes is given.
struct Normed {
    x: Tensor,
    /// The first of the axes.
    axis: usize,
    scale: Tensor,
    eps: f64,
}

impl Normed {
    fn read(c: &mut Call<'_>) -> Result<Normed> {
        let eps = c.float("epsilon", 1e-5)?;
        stash(c)?;
        let x = c.plain(0)?;
        let axis = axis_of(c.int("axis", -1)?, x.shape().rank())?;
        Ok(Normed { x, axis, scale: c.master(1)?, eps })
    }
}

fn layer_norm(c: &mut Call<'_>) -> Result<Vec<Value>> {
    let Normed { x, axis, scale, eps } = Normed::read(c)?;
    let shift = if c.given(2).is_some() { Some(c.master(2)?) } else { None };
    let normed: Shape = x.shape()[axis..].into();
    let fits = |t: &Tensor| t.ty().elements() == normed.elements();
    let axes = normed.rank();
    let y = if fits(&scale) && shift.as_ref().is_none_or(fits) {
        norm::layer_norm(&x, axes, Some(&scale), shift.as_ref(), eps)?
    } else {
        let y = norm::layer_norm(&x, axes, None, None, eps)?.mul(&scale.cast(x.dtype())?)?;
        match &shift {
            Some(shift) => y.add(&shift.cast(x.dtype())?)?,
            None => y,
        }
    };
    let mut outputs = vec![y.into()];
    if c.wants(1) || c.wants(2) {
        let axes: Vec<usize> = (axis..x.shape().rank()).collect();
        let (mean, var) = reduce::moments(&x.cast(x.dtype().accumulator())?, &axes)?;
        outputs.extend([Value::from(mean), Value::from(var.add_scalar(eps)?.rsqrt()?)]);
    }
    Ok(outputs)
}

fn rms_norm(c: &mut Call<'_>) -> Result<Vec<Value>> {
    let Normed { x, axis, scale, eps } = Normed::read(c)?;
    let shape = x.shape().clone();
    let (rows, row) = (shape[..axis].iter().product::<usize>(), shape[axis..].iter().product::<usize>());
    let flat = x.reshape([rows, row])?;
    let y = match scale.ty().elements() == row {
        true => norm::rms_norm(&flat, Some(&scale.reshape([row])?), eps)?.reshape(shape)?,
        false => norm::rms_norm(&flat, None, eps)?.reshape(shape)?.mul(&scale.cast(x.dtype())?)?,
    };
    Ok(vec![y.into()])
}
