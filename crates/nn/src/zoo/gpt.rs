//! A decoder-only transformer with pre-norm blocks.

use plimsoll_graph::TensorOps;
use plimsoll_run::{Result, Tensor};

use crate::error::refuse;
use crate::{Init, MultiHead, Net, Start};

/// A transformer's sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gpt {
    /// Tokens there are.
    pub vocabulary: usize,
    /// Width of the residual stream.
    pub width: usize,
    /// Blocks.
    pub layers: usize,
    /// Heads of each attention.
    pub heads: usize,
}

/// Logits `[B, T, V]` for token indices `[B, T]`.
#[track_caller]
pub fn gpt(net: &mut Net, tokens: &Tensor, size: Gpt) -> Result<Tensor> {
    net.together(|net| {
        let Gpt { vocabulary, width, .. } = size;
        let length = tokens.shape().last().copied().unwrap_or(0);
        let position = net.scope("position", |net| net.param("table", [length, width], Init::Normal(1.0)))?;
        let x = net.embedding("token", tokens, vocabulary, width)?.add(&position)?;
        let x = blocks(net, x, size, None)?;
        net.dense("out", &x, vocabulary, false)
    })
}

/// GPT-2: as [`gpt()`], with normal starts, positions for `context` tokens and the output tied to the embedding.
#[track_caller]
pub fn gpt2(net: &mut Net, tokens: &Tensor, size: Gpt, context: usize) -> Result<Tensor> {
    net.together(|net| {
        let Gpt { vocabulary, width, layers, .. } = size;
        let length = tokens.shape().last().copied().unwrap_or(0);
        if length > context {
            return Err(refuse(format!("gives {length} tokens to a model of {context}")));
        }
        let start = Init::Normal(0.02);
        // Every block adds twice to the residual stream; so its last layers start smaller.
        let last = Start::Normal(0.02 / ((2 * layers.max(1)) as f64).sqrt());
        net.with_start(Start::Normal(0.02), |net| {
            let position = net.param("position", [context, width], start)?.narrow(0, 0, length)?;
            let x = net.embedding_from("token", tokens, vocabulary, width, start)?.add(&position)?;
            let x = blocks(net, x, size, Some(last))?;
            let table = net.scope("token", |net| net.param("table", [vocabulary, width], start))?;
            x.matmul_with(&table, None, false, true)
        })
    })
}

/// The blocks and the norm after them. `last` is how the last layer of each block starts, where not as all others.
fn blocks(net: &mut Net, mut x: Tensor, size: Gpt, last: Option<Start>) -> Result<Tensor> {
    let Gpt { width, layers, heads, .. } = size;
    for layer in 0..layers {
        x = net.scope(&format!("block{}", layer + 1), |net| {
            let y = net.layer_norm("norm1", &x)?;
            let x = x.add(&net.self_attention("attention", &y, MultiHead::new(heads).causal())?)?;
            let y = net.layer_norm("norm2", &x)?;
            let y = net.dense("up", &y, 4 * width, true)?.gelu_tanh()?;
            let down = |net: &mut Net| net.dense("down", &y, width, true);
            x.add(&match last {
                Some(start) => net.with_start(start, down)?,
                None => down(net)?,
            })
        })?;
    }
    net.layer_norm("norm", &x)
}
