//! Activations, by name and as layers.

use plimsoll_graph::{CumulativeOps, GradientOps, SoftmaxOps, SortOps, TensorOps, Type};
use plimsoll_nn::{Activation as Nn, View};
use plimsoll_run::{Result as RunResult, Tensor};
use serde_json::Value;

use super::{Table, trained};
use crate::error::Result;
use crate::layer::{Made, Masks, Penalty};
use crate::named::Named;
use crate::settings::Settings;

pub(crate) const TABLE: Table = &[
    ("Activation", |s| {
        let activation = s.activation("activation")?;
        Ok(Made::unary(move |cx, x| cx.finish(&activation, x)).ends(&activation).masks(Masks::Pass))
    }),
    ("ActivityRegularization", |s| {
        let activity = Penalty { l1: s.number_or("l1", 0.0)?, l2: s.number_or("l2", 0.0)?, orthogonal: None };
        s.get("activity_regularizer");
        let mut made = Made::plain(|x| Ok(x.clone())).masks(Masks::Pass);
        made.activity = Some(activity);
        Ok(made)
    }),
    ("Identity", |_| Ok(Made::plain(|x| Ok(x.clone())).masks(Masks::Pass))),
    ("ReLU", |s| {
        let most = if s.is_null("max_value") { None } else { Some(s.number("max_value")?) };
        let slope = s.number_or("negative_slope", 0.0)?;
        let threshold = s.number_or("threshold", 0.0)?;
        Ok(Made::plain(move |x| relu(x, slope, most, threshold)).masks(Masks::Pass))
    }),
    ("LeakyReLU", |s| {
        let slope = leaky_slope(s)?;
        Ok(Made::plain(move |x| x.leaky_relu(slope)).masks(Masks::Pass))
    }),
    ("ELU", |s| {
        let alpha = s.number_or("alpha", 1.0)?;
        Ok(Made::plain(move |x| Nn::Elu(alpha).apply(x)).masks(Masks::Pass))
    }),
    ("Softmax", |s| {
        let axes = if s.is_null("axis") { vec![-1] } else { s.integers("axis")? };
        let activation = match axes[..] {
            [-1] => Activation::Softmax,
            [axis] => Activation::SoftmaxAt(axis as isize),
            _ => return several(s, axes),
        };
        Ok(Made::with(Vec::new(), move |cx, args| {
            let (x, mask) = (args.one()?, args.mask());
            let Some(shown) = mask else { return Ok(vec![cx.finish(&activation, x)?]) };
            // What is hidden is as far down as Keras puts it.
            let far = if x.dtype() == plimsoll_graph::DType::F16 { -6e4 } else { -1e9 };
            let hidden =
                shown.cast(plimsoll_graph::DType::F32)?.rsub_scalar(1.0)?.mul_scalar(far)?.cast(x.dtype())?;
            Ok(vec![activation.apply(&x.add(&hidden)?)?])
        })
        .masks(Masks::Read))
    }),
    ("PReLU", |s| {
        let shared = if s.is_null("shared_axes") { Vec::new() } else { s.integers("shared_axes")? };
        let init = s.init("alpha_initializer", 1, 1);
        let weights = vec![trained(s, "alpha", "alpha_regularizer")?];
        Ok(Made::weighted(weights, move |cx, x| {
            let axes = x.shape().iter().enumerate().skip(1);
            let shape: Vec<usize> =
                axes.map(|(i, &n)| if shared.contains(&(i as i64)) { 1 } else { n }).collect();
            let alpha = cx.param("alpha", &shape[..], init)?;
            x.relu()?.sub(&x.neg()?.relu()?.mul(&alpha)?)
        })
        .masks(Masks::Pass))
    }),
];

/// An activation as Keras means it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Activation {
    Linear,
    Softmax,
    SoftmaxAt(isize),
    LogSoftmax,
    Sigmoid,
    LogSigmoid,
    Exponential,
    HardTanh,
    TanhShrink,
    Celu,
    SoftShrink,
    HardShrink,
    SquarePlus,
    SparsePlus,
    SparseSigmoid,
    Glu,
    Sparsemax,
    Relu { slope: f64, most: Option<f64>, threshold: f64 },
    Of(Nn),
}

const BY_NAME: [(&str, Activation); 32] = [
    ("linear", Activation::Linear),
    ("relu", Activation::Of(Nn::Relu)),
    ("relu6", Activation::Of(Nn::Relu6)),
    ("leaky_relu", Activation::Of(Nn::LeakyRelu(0.2))),
    ("elu", Activation::Of(Nn::Elu(1.0))),
    ("selu", Activation::Of(Nn::Selu)),
    ("gelu", Activation::Of(Nn::Gelu)),
    ("silu", Activation::Of(Nn::Silu)),
    ("swish", Activation::Of(Nn::Silu)),
    ("mish", Activation::Of(Nn::Mish)),
    ("sigmoid", Activation::Sigmoid),
    ("log_sigmoid", Activation::LogSigmoid),
    ("hard_sigmoid", Activation::Of(Nn::HardSigmoid)),
    ("hard_silu", Activation::Of(Nn::HardSwish)),
    ("hard_swish", Activation::Of(Nn::HardSwish)),
    ("tanh", Activation::Of(Nn::Tanh)),
    ("hard_tanh", Activation::HardTanh),
    ("tanh_shrink", Activation::TanhShrink),
    ("softplus", Activation::Of(Nn::Softplus)),
    ("softsign", Activation::Of(Nn::Softsign)),
    ("softmax", Activation::Softmax),
    ("log_softmax", Activation::LogSoftmax),
    ("exponential", Activation::Exponential),
    ("celu", Activation::Celu),
    ("soft_shrink", Activation::SoftShrink),
    ("hard_shrink", Activation::HardShrink),
    ("squareplus", Activation::SquarePlus),
    ("sparse_plus", Activation::SparsePlus),
    ("sparse_sigmoid", Activation::SparseSigmoid),
    ("glu", Activation::Glu),
    ("sparsemax", Activation::Sparsemax),
    ("gelu_tanh", Activation::Of(Nn::GeluTanh)),
];

impl Activation {
    /// An activation named in a configuration; null is none.
    pub(crate) fn read(settings: &Settings<'_>, key: &str) -> Result<Activation> {
        let value = settings.get(key);
        if value.is_null() {
            return Ok(Activation::Linear);
        }
        let named = Named::read(value, &format!("{key} of {}", settings.place))?;
        if value.get("config").is_some_and(Value::is_object) {
            let own = named.settings(settings.place);
            let of_layer = match named.name {
                "LeakyReLU" => Some(Activation::Of(Nn::LeakyRelu(leaky_slope(&own)?))),
                "ELU" => Some(Activation::Of(Nn::Elu(own.number_or("alpha", 1.0)?))),
                "Softmax" if own.get("axis").as_i64().unwrap_or(-1) == -1 => Some(Activation::Softmax),
                "ReLU" => Some(Activation::Relu {
                    slope: own.number_or("negative_slope", 0.0)?,
                    most: if own.is_null("max_value") { None } else { Some(own.number("max_value")?) },
                    threshold: own.number_or("threshold", 0.0)?,
                }),
                "Activation" => Some(Activation::read(&own, "activation")?),
                _ => None,
            };
            let Some(found) = of_layer else {
                return Err(settings.wrong(
                    key,
                    "this layer as an activation is not supported; put the layer after this one",
                ));
            };
            own.finish_layer(&[])?;
            return Ok(found);
        }
        let name = named.name;
        let found = BY_NAME.iter().find(|(known, _)| *known == name);
        found.map(|(_, f)| *f).ok_or_else(|| settings.wrong(key, "this activation is not known here"))
    }

    /// Where a loss on probabilities can take what goes into it instead: what that must be seen through.
    pub(crate) fn probability(&self) -> Option<View> {
        match self {
            Activation::Softmax => Some(View::Softmax),
            Activation::Sigmoid => Some(View::Sigmoid),
            _ => None,
        }
    }

    #[track_caller]
    pub(crate) fn apply(&self, x: &Tensor) -> RunResult<Tensor> {
        let constant = |value: f64| x.full_like(Type::new(x.dtype(), []), value);
        match self {
            Activation::Linear => Ok(x.clone()),
            Activation::Of(Nn::Relu6) => relu(x, 0.0, Some(6.0), 0.0),
            Activation::Of(f) => f.apply(x),
            Activation::Softmax => x.softmax(-1),
            Activation::SoftmaxAt(axis) => x.softmax(*axis),
            Activation::LogSoftmax => x.log_softmax(-1),
            Activation::Sigmoid => x.sigmoid(),
            Activation::LogSigmoid => x.neg()?.softplus()?.neg(),
            Activation::Exponential => x.exp(),
            Activation::HardTanh => x.clamp(-1.0, 1.0),
            Activation::TanhShrink => x.sub(&x.tanh()?),
            Activation::Celu => Nn::Elu(1.0).apply(x),
            Activation::SoftShrink => x.sub(&x.clamp(-0.5, 0.5)?),
            Activation::HardShrink => {
                x.abs()?.greater(&constant(0.5)?)?.select(x, &constant(0.0)?.broadcast(x.shape().clone())?)
            }
            Activation::SquarePlus => x.add(&x.square()?.add_scalar(4.0)?.sqrt()?)?.mul_scalar(0.5),
            Activation::SparsePlus => {
                // 0 up to -1, then (x + 1)² / 4 up to 1, then x.
                let near = x.clamp(-1.0, 1.0)?;
                near.add_scalar(1.0)?.square()?.mul_scalar(0.25)?.add(&x.add_scalar(-1.0)?.relu()?)
            }
            Activation::SparseSigmoid => x.clamp(-1.0, 1.0)?.add_scalar(1.0)?.mul_scalar(0.5),
            Activation::Sparsemax => sparsemax(x),
            Activation::Relu { slope, most, threshold } => relu(x, *slope, *most, *threshold),
            Activation::Glu => {
                let last = x.shape().last().copied().unwrap_or(0);
                let parts = x.split(-1, &[last / 2, last - last / 2])?;
                parts[0].mul(&parts[1].sigmoid()?)
            }
        }
    }
}

/// Keras 2 called the slope alpha.
fn leaky_slope(s: &Settings<'_>) -> Result<f64> {
    if s.is_null("alpha") { s.number_or("negative_slope", 0.3) } else { s.number("alpha") }
}

/// A softmax over several axes at once.
fn several(s: &Settings<'_>, axes: Vec<i64>) -> Result<Made> {
    if axes.is_empty() {
        return Err(s.wrong("axis", "an axis should be named"));
    }
    Ok(Made::plain(move |x| {
        let rank = x.shape().rank() as i64;
        let mut places: Vec<usize> =
            axes.iter().map(|&i| if i < 0 { i + rank } else { i }.max(0) as usize).collect();
        places.sort_unstable();
        let most = x.max(&places, true)?.stop_gradient()?;
        let shares = x.sub(&most)?.exp()?;
        shares.div(&shares.sum(&places, true)?)
    })
    .masks(Masks::Refuse))
}

/// The nearest point to x where all elements are shares and add up to 1: max(x - τ, 0), with τ from the largest elements.
fn sparsemax(x: &Tensor) -> RunResult<Tensor> {
    let last = x.shape().rank().saturating_sub(1);
    let n = x.shape().last().copied().unwrap_or(0);
    let sorted = x.sort(-1, true)?;
    let sums = sorted.cumsum(-1)?;
    let rank = x.iota_like(Type::new(x.dtype(), [n]), 0)?.add_scalar(1.0)?;
    // As many as stay above what they would be lowered by.
    let stays = sorted.mul(&rank)?.greater(&sums.add_scalar(-1.0)?)?.cast(x.dtype())?.stop_gradient()?;
    let count = stays.sum(&[last], true)?;
    // All of these sums, as Keras has it; the paper takes the last one alone.
    let tau = sums.mul(&stays)?.sum(&[last], true)?.add_scalar(-1.0)?.div(&count)?;
    x.sub(&tau)?.relu()
}

/// Keras's relu with all its settings: x from the threshold on, at most `most`; below it slope · (x - threshold).
pub(crate) fn relu(x: &Tensor, slope: f64, most: Option<f64>, threshold: f64) -> RunResult<Tensor> {
    if threshold == 0.0 && slope == 0.0 {
        // Two ops and not one clamp: at zero itself, where dead channels stand, a relu has the slope 0 and a clamp 1.
        return match most {
            Some(most) => x.relu()?.clamp(f64::NEG_INFINITY, most),
            None => x.relu(),
        };
    }
    let constant = |value: f64| x.full_like(Type::new(x.dtype(), []), value);
    let above = if threshold == 0.0 {
        x.relu()?
    } else {
        x.greater(&constant(threshold)?)?.select(x, &constant(0.0)?.broadcast(x.shape().clone())?)?
    };
    let above = match most {
        Some(most) => above.clamp(0.0, most)?,
        None => above,
    };
    if slope == 0.0 {
        return Ok(above);
    }
    above.sub(&x.rsub_scalar(threshold)?.relu()?.mul_scalar(slope)?)
}
