//! A recurrent language model.

use plimsoll_run::{Result, Tensor};

use crate::{Net, Recurrent};

/// Logits `[B, T, V]` for token indices `[B, T]`: an embedding, stacked recurrent layers, a dense layer.
#[track_caller]
pub fn lstm(
    net: &mut Net,
    tokens: &Tensor,
    vocabulary: usize,
    width: usize,
    layers: usize,
) -> Result<Tensor> {
    net.together(|net| {
        let mut x = net.embedding("token", tokens, vocabulary, width)?;
        for layer in 0..layers {
            x = net.lstm(&format!("lstm{}", layer + 1), &x, Recurrent::all(width))?;
        }
        net.dense("out", &x, vocabulary, true)
    })
}
