//! Scaled dot-product attention with masks of any kind, and with dropout: the engine's kernel where it does the same, else composed.

use plimsoll_graph::{AttentionOps, DType, RandomOps, SoftmaxOps, TensorOps, Type};
use plimsoll_run::{Result, Tensor};

use crate::error::refuse;

/// What is hidden from a query.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mask<'a> {
    /// Added to the scores; or, of truth values, true where a key is seen. `[B, H, Tq, Tk]`, any of the first three 1 or left out.
    pub given: Option<&'a Tensor>,
    /// Whether a gradient flows to it.
    pub is_learned: bool,
    /// Whether query i sees only the keys j ≤ i, counted from the first of both.
    pub causal: bool,
}

/// Dropout of the weights: the share that is dropped, and a key and a stream to draw with.
pub type Drop<'a> = Option<(f64, &'a Tensor, u32)>;

/// softmax(scale · q kᵀ + mask) v for q `[B, Tq, H, D]`, k `[B, Tk, Hkv, D]` and v `[B, Tk, Hkv, Dv]`, H a multiple of Hkv. The scale is 1/√D
/// where none is given.
#[track_caller]
pub fn attention(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    mask: Mask<'_>,
    scale: Option<f64>,
    dropout: Drop<'_>,
) -> Result<Tensor> {
    let (&[b, tq, heads, width], &[kb, tk, groups, _]) = (&q.shape()[..], &k.shape()[..]) else {
        return Err(refuse(format!("attends with queries {} and keys {}", q.shape(), k.shape())));
    };
    if kb != b || groups == 0 || heads % groups != 0 {
        return Err(refuse(format!("attends with queries {} and keys {}", q.shape(), k.shape())));
    }
    let scale = scale.unwrap_or(1.0 / (width.max(1) as f64).sqrt());
    let mut added = mask.given.map(|given| additive(given, q.dtype())).transpose()?;
    let mut causal = mask.causal;
    if causal && (tq != tk || added.is_some()) {
        let own = from_the_first(q, tq, tk)?;
        added = Some(match added {
            Some(given) => given.add(&own)?,
            None => own,
        });
        causal = false;
    }
    if dropout.is_none() && !mask.is_learned {
        let added = added.map(|mask| keys_whole(&mask, tk)).transpose()?;
        return q.attention(k, v, added.as_ref(), causal, Some(scale));
    }
    if causal {
        added = Some(from_the_first(q, tq, tk)?);
    }
    // Heads in front, keys and values once for every query's head.
    let front = |x: &Tensor| -> Result<Tensor> {
        let x = x.transpose(&[0, 2, 1, 3])?;
        let &[b, h, t, d] = &x.shape()[..] else { return Err(refuse("attends without heads")) };
        if h == heads {
            return Ok(x);
        }
        x.reshape([b, h, 1, t, d])?.broadcast([b, h, heads / h, t, d])?.reshape([b, heads, t, d])
    };
    let mut scores = front(q)?.matmul_with(&front(k)?, None, false, true)?.mul_scalar(scale)?;
    if let Some(mask) = added {
        scores = scores.add(&mask)?;
    }
    let mut weights = scores.softmax(-1)?;
    if let Some((rate, key, stream)) = dropout {
        weights = weights.dropout(rate, key, stream)?;
    }
    weights.matmul(&front(v)?)?.transpose(&[0, 2, 1, 3])
}

/// A mask to add: truth values become 0 where true and -∞ where not.
fn additive(mask: &Tensor, dtype: DType) -> Result<Tensor> {
    if mask.dtype() != DType::Bool {
        return mask.cast(dtype);
    }
    let scalar = |value: f64| mask.full_like(Type::new(dtype, []), value);
    mask.select(&scalar(0.0)?, &scalar(f64::NEG_INFINITY)?)
}

/// -∞ for every key behind a query, both counted from the first.
fn from_the_first(beside: &Tensor, tq: usize, tk: usize) -> Result<Tensor> {
    let at = |axis: usize| beside.iota_like(Type::new(DType::I32, [tq, tk]), axis);
    additive(&at(1)?.less_equal(&at(0)?)?, beside.dtype())
}

/// The kernel takes masks whose last axis is that of all keys.
fn keys_whole(mask: &Tensor, tk: usize) -> Result<Tensor> {
    match mask.shape().split_last() {
        Some((&1, rest)) if tk != 1 => {
            let shape: Vec<usize> = rest.iter().copied().chain([tk]).collect();
            mask.broadcast(shape)
        }
        _ => Ok(mask.clone()),
    }
}
