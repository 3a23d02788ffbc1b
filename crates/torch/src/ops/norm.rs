//! Norms. Running statistics are results of their own, which the program says to keep.

use plimsoll_graph::{DType, GradientOps, TensorOps};
use plimsoll_nn::blocks::Laid;
use plimsoll_nn::blocks::norm::{
    batch_norm, batch_norm_inference, group_norm, layer_norm, rms_norm, running,
};
use plimsoll_run::{Result, Tensor};

use super::elementwise::converted;
use super::{Table, Values, one};
use crate::call::Call;
use crate::error::refuse;
use crate::value::Value;

pub(super) const OPS: Table = &[
    ("aten.layer_norm.default", |c| {
        let x = c.tensor("input")?;
        let _ = c.value("cudnn_enable");
        layer(c, &x)
    }),
    ("aten.native_layer_norm.default", |c| {
        let x = c.tensor("input")?;
        layer(c, &x)
    }),
    ("aten.rms_norm.default", |c| {
        let (x, axes, gamma) =
            (c.tensor("input")?, c.ints("normalized_shape")?.len(), c.opt_tensor("weight")?);
        let eps = c.opt_number("eps")?.map(|n| n.value);
        let eps = eps.unwrap_or(match x.dtype() {
            DType::F64 => f64::EPSILON,
            DType::F16 => 2f64.powi(-10),
            DType::BF16 => 2f64.powi(-7),
            _ => f64::from(f32::EPSILON),
        });
        let shape = x.shape().clone();
        let Some(kept) = shape.rank().checked_sub(axes).filter(|_| axes > 0) else {
            return Err(refuse(format!("norms {axes} axes of a tensor of shape {shape}")));
        };
        // Several axes are normed as one.
        let width: usize = shape[kept..].iter().product();
        let rows = x.reshape([&shape[..kept], &[width]].concat())?;
        let gamma = gamma.map(|gamma| gamma.reshape([width])).transpose()?;
        one(rms_norm(&rows, gamma.as_ref(), eps)?.reshape(shape)?)
    }),
    ("aten.group_norm.default", |c| {
        let (x, groups) = (c.laid("input")?, c.size("num_groups")?);
        let _ = c.value("cudnn_enabled");
        groups_of(c, &x, groups)
    }),
    ("aten.native_group_norm.default", |c| {
        let (x, groups) = (c.laid("input")?, c.size("group")?);
        let _ = (c.value("N"), c.value("C"), c.value("HxW"));
        groups_of(c, &x, groups)
    }),
    ("aten.instance_norm.default", |c| {
        let x = c.laid("input")?;
        let _ = (c.value("cudnn_enabled"), c.value("momentum"));
        if !c.flag("use_input_stats")?
            || c.opt_laid("running_mean")?.is_some()
            || c.opt_laid("running_var")?.is_some()
        {
            return Err(refuse("norms each image by running statistics, which is not known here"));
        }
        let groups = x.shape().get(1).copied().unwrap_or(1);
        groups_of(c, &x, groups)
    }),
    ("aten._native_batch_norm_legit_functional.default", |c| batch(c, true)),
    ("aten._native_batch_norm_legit.no_stats", |c| without_statistics(c)),
    ("aten._native_batch_norm_legit_no_training.default", |c| batch(c, false)),
    ("aten.batch_norm.default", |c| {
        let _ = c.value("cudnn_enabled");
        if c.opt_laid("running_mean")?.is_none() {
            return without_statistics(c);
        }
        if c.flag("training")? {
            return Err(refuse(
                "writes over running statistics; make the program functional with run_decompositions({})",
            ));
        }
        batch(c, false)
    }),
    ("aten._weight_norm.default", |c| {
        let (v, g) = (c.tensor("v")?, c.tensor("g")?);
        // -1 is no axis here: the norm is over all elements then.
        let at = if c.int("dim")? == -1 { None } else { Some(c.axis("dim", v.shape().rank())?) };
        let axes: Vec<usize> = (0..v.shape().rank()).filter(|&axis| Some(axis) != at).collect();
        one(v.mul(&g.div(&v.square()?.sum(&axes, true)?.sqrt()?)?)?)
    }),
];

fn layer(c: &mut Call<'_, '_>, x: &Tensor) -> Values {
    let (axes, eps) = (c.ints("normalized_shape")?.len(), c.float("eps")?);
    let (gamma, beta) = (c.opt_tensor("weight")?, c.opt_tensor("bias")?);
    one(layer_norm(x, axes, gamma.as_ref(), beta.as_ref(), eps)?)
}

/// Over what lies channels last.
fn groups_of(c: &mut Call<'_, '_>, x: &Laid, groups: usize) -> Values {
    let (gamma, beta, eps) = (c.opt_tensor("weight")?, c.opt_tensor("bias")?, c.float("eps")?);
    let y = group_norm(&x.to_channels_last()?, groups, gamma.as_ref(), beta.as_ref(), eps)?;
    one(Laid::channels_last(y))
}

fn without_statistics(c: &mut Call<'_, '_>) -> Values {
    let (x, gamma, beta) = (c.laid("input")?, c.opt_tensor("weight")?, c.opt_tensor("bias")?);
    let _ = (c.value("momentum"), c.flag("training")?, c.value("running_var"));
    let (y, ..) = batch_norm(c.net, &x.to_channels_last()?, gamma.as_ref(), beta.as_ref(), c.float("eps")?)?;
    one(Laid::channels_last(y))
}

/// y, two statistics that only PyTorch's own gradient reads, and what the running ones become. In an evaluation the running ones are used,
/// whatever the program was exported for.
fn batch(c: &mut Call<'_, '_>, gives_statistics: bool) -> Values {
    let (x, gamma, beta) = (c.laid("input")?, c.opt_tensor("weight")?, c.opt_tensor("bias")?);
    let (mean, var) = (c.tensor("running_mean")?, c.tensor("running_var")?);
    let (momentum, eps) = (c.float("momentum")?, c.float("eps")?);
    let is_training = gives_statistics && c.flag("training")? && c.net.is_training();
    if !gives_statistics && c.op == "aten.batch_norm.default" {
        c.flag("training")?;
    }
    let lying = x.to_channels_last()?;
    if !is_training {
        let y = batch_norm_inference(&lying, gamma.as_ref(), beta.as_ref(), &mean, &var, eps)?;
        let mut results: Vec<Value> = vec![Laid::channels_last(y).into()];
        if gives_statistics {
            results.extend([Value::None, Value::None, mean.into(), var.into()]);
        }
        return Ok(results);
    }
    let (y, batch_mean, batch_var) = batch_norm(c.net, &lying, gamma.as_ref(), beta.as_ref(), eps)?;
    let n = lying.shape().elements() / lying.shape().last().copied().unwrap_or(1).max(1);
    let kept = |old: &Tensor, new: &Tensor, unbiased| -> Result<Tensor> {
        converted(&running(old, &new.stop_gradient()?, momentum, unbiased)?, old.dtype())
    };
    let (mean, var) = match c.net.is_synced() {
        true => (kept(&mean, &batch_mean, None)?, kept(&var, &c.net.unbiased(&batch_var, &lying)?, None)?),
        false => (kept(&mean, &batch_mean, None)?, kept(&var, &batch_var, Some(n))?),
    };
    Ok(vec![Laid::channels_last(y).into(), Value::None, Value::None, mean.into(), var.into()])
}
