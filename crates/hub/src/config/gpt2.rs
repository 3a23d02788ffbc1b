//! The config of GPT-2: learned positions, no gates, layer norms.

use super::shared::{activation, head_of, special_tokens, stored};
use super::{Activation, Biases, Caps, Config, Dropout, Family, Layer};
use crate::fields::Fields;

/// Reads what a config says of a GPT-2.
pub(super) fn read(fields: &mut Fields) -> Result<Config, String> {
    let (width, heads) = (fields.positive("n_embd")?, fields.positive("n_head")?);
    let head = head_of(width, heads)?;
    let n = fields.positive("n_layer")?;
    let scaled = fields.flag("scale_attn_weights")?.unwrap_or(true);
    let by_layer = fields.flag("scale_attn_by_inverse_layer_idx")?.unwrap_or(false);
    // It changes the order of roundings alone; products are added up in f32 here anyway.
    fields.ignore(&["reorder_and_upcast_attn"]);
    let layer = |i: usize| {
        let scale = if scaled { (head as f64).powf(-0.5) } else { 1.0 };
        Layer { window: None, rope: None, scale: if by_layer { scale / (i + 1) as f64 } else { scale } }
    };
    let inner = fields.size("n_inner")?.filter(|n| *n > 0).unwrap_or(4 * width);
    Ok(Config {
        family: Family::Gpt2,
        vocabulary: fields.positive("vocab_size")?,
        width,
        inner,
        layers: (0..n).map(layer).collect(),
        heads,
        kv_heads: heads,
        head,
        context: fields.positive("n_positions")?,
        eps: fields.number("layer_norm_epsilon")?.unwrap_or(1e-5),
        activation: activation(fields.text("activation_function")?, Activation::GeluTanh)?,
        biases: Biases { qkv: true, out: true, mlp: true },
        qk_norm: false,
        ropes: Vec::new(),
        caps: Caps::default(),
        is_tied: fields.flag("tie_word_embeddings")?.unwrap_or(true),
        dropout: Dropout {
            embedding: fields.number("embd_pdrop")?.unwrap_or(0.1),
            attention: fields.number("attn_pdrop")?.unwrap_or(0.1),
            residual: fields.number("resid_pdrop")?.unwrap_or(0.1),
        },
        stored: stored(fields)?,
        tokens: special_tokens(fields)?,
    })
}
