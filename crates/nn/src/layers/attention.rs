//! Multi-head attention over sequences `[B, T, C]`.

use plimsoll_graph::{AttentionOps, TensorOps};
use plimsoll_run::{Result, Tensor};

use super::padding::hidden_keys;
use crate::error::refuse;
use crate::{LayerKind, Net};

/// The shape of an attention layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MultiHead {
    /// Heads that the channels are cut into.
    pub heads: usize,
    /// Whether a position sees only those up to itself.
    pub is_causal: bool,
    /// Whether the projections have biases.
    pub bias: bool,
}

impl MultiHead {
    /// Every position sees every other; with biases.
    pub fn new(heads: usize) -> MultiHead {
        MultiHead { heads, is_causal: false, bias: true }
    }

    /// A position sees only those up to itself.
    pub fn causal(mut self) -> MultiHead {
        self.is_causal = true;
        self
    }
}

impl Net {
    /// Self-attention. Parameters: those of the dense layers `qkv` (to 3 C) and `proj`.
    #[track_caller]
    pub fn self_attention(&mut self, name: &str, x: &Tensor, layer: MultiHead) -> Result<Tensor> {
        let (x, filled) = (self.compute_in(name, x)?, self.filled_of(x)?);
        let [b, t, d] = sequence(&x)?;
        let width = head_width(d, layer.heads)?;
        let y = self.layer(name, |net| {
            let hidden = filled.as_ref().map(|filled| hidden_keys(filled, x.dtype())).transpose()?;
            let qkv = net.dense("qkv", &x, 3 * d, layer.bias)?.reshape([b, t, 3, layer.heads, width])?;
            let parts = qkv.split(2, &[1, 1, 1])?;
            let head = |i: usize| parts[i].reshape([b, t, layer.heads, width]);
            let y = head(0)?.attention(&head(1)?, &head(2)?, hidden.as_ref(), layer.is_causal, None)?;
            net.dense("proj", &y.reshape([b, t, d])?, d, layer.bias)
        });
        self.note(name, LayerKind::SelfAttention(layer), &self.read(&x).iter().collect::<Vec<_>>(), y)
    }

    /// Attention from x to another sequence of the same batch: queries from x, keys and values from `context`.
    /// Parameters: those of the dense layers `query`, `key`, `value` and `proj`.
    #[track_caller]
    pub fn cross_attention(
        &mut self,
        name: &str,
        x: &Tensor,
        context: &Tensor,
        layer: MultiHead,
    ) -> Result<Tensor> {
        self.refuse_padding("attention to another sequence")?;
        let (x, context) = (self.compute_in(name, x)?, self.compute_in(name, context)?);
        let ([b, t, d], [_, s, _]) = (sequence(&x)?, sequence(&context)?);
        let width = head_width(d, layer.heads)?;
        let y = self.layer(name, |net| {
            let mut head = |name: &str, x: &Tensor, steps: usize| {
                net.dense(name, x, d, layer.bias)?.reshape([b, steps, layer.heads, width])
            };
            let (q, k, v) = (head("query", &x, t)?, head("key", &context, s)?, head("value", &context, s)?);
            let y = q.attention(&k, &v, None, layer.is_causal, None)?;
            net.dense("proj", &y.reshape([b, t, d])?, d, layer.bias)
        });
        self.note(name, LayerKind::CrossAttention(layer), &[&x, &context], y)
    }
}

#[track_caller]
fn sequence(x: &Tensor) -> Result<[usize; 3]> {
    match x.shape()[..] {
        [b, t, d] => Ok([b, t, d]),
        _ => Err(refuse(format!("gives {} to a layer that takes sequences [B, T, C]", x.ty()))),
    }
}

#[track_caller]
fn head_width(width: usize, heads: usize) -> Result<usize> {
    if heads == 0 || !width.is_multiple_of(heads) {
        return Err(refuse(format!("cuts {width} channels in {heads} heads")));
    }
    Ok(width / heads)
}
