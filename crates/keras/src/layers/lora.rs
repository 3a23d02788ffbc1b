//! Weights that stay as they are while the product of two small matrices, which is trained, is added to them.

use plimsoll_graph::{Shape, TensorOps};
use plimsoll_nn::Init;
use plimsoll_run::{Result as RunResult, Tensor};

use super::trained;
use crate::error::{Result, refuse};
use crate::layer::{Cx, Weight, WeightKind};
use crate::settings::Settings;

/// What is added to a weight W of `[…, n]`: scale · A B, with A `[…, rank]` and B `[rank, n]`.
#[derive(Clone, Copy)]
pub(super) struct Lora {
    rank: usize,
    scale: f64,
}

impl Lora {
    /// What the settings say of the first of a layer's weights, which is frozen then; its matrices come behind the others.
    pub(super) fn read(s: &Settings<'_>, weights: &mut Vec<Weight>) -> Result<Option<Lora>> {
        if s.is_null("lora_rank") {
            return Ok(None);
        }
        let rank = s.units("lora_rank")?;
        let scale = s.number_or("lora_alpha", rank as f64)? / rank as f64;
        let Some(first) = weights.first_mut() else { return Ok(None) };
        if first.constraint.is_some() {
            return Err(s.wrong("lora_rank", "Keras has it only for weights without a constraint"));
        }
        first.trainable = Some(false);
        let name = first.name.clone();
        for matrix in ["a", "b"] {
            let mut weight = trained(s, &format!("lora_{name}_{matrix}"), &format!("{name}_regularizer"))?;
            weight.kind = WeightKind::Optional;
            weights.push(weight);
        }
        Ok(Some(Lora { rank, scale }))
    }
}

/// A weight in the type in which it is kept, with what is added to it.
#[track_caller]
pub(super) fn master(
    lora: Option<Lora>,
    cx: &mut Cx<'_>,
    name: &str,
    shape: impl Into<Shape>,
    init: Init,
) -> RunResult<Tensor> {
    let shape = shape.into();
    let Some(Lora { rank, scale }) = lora else { return cx.master(name, shape, init) };
    let (a, b) = (format!("lora_{name}_a"), format!("lora_{name}_b"));
    if !cx.is_bound(&a) || !cx.is_bound(&b) {
        return Err(refuse(format!(
            "has a lora_rank of {rank} without the matrices of it: Keras adds them to the {name} when it writes a file, and starts both \
             from zeros when it reads one, from where they never move; save the model without lora_rank, or train it live"
        )));
    }
    let is_trained = std::mem::replace(&mut cx.pass.trainable, false);
    let frozen = cx.master(name, shape.clone(), init);
    cx.pass.trainable = is_trained;
    let (frozen, last) = (frozen?, shape.last().copied().unwrap_or(1));
    let rows = frozen.ty().elements() / last.max(1);
    let mut long: Vec<usize> = shape.to_vec();
    long.pop();
    long.push(rank);
    let a = cx.master(&a, &long[..], Init::he_uniform(rows))?.reshape([rows, rank])?;
    let b = cx.master(&b, [rank, last], Init::Constant(0.0))?;
    frozen.add(&a.matmul(&b)?.mul_scalar(scale)?.reshape(shape)?)
}
