//! The configs of families that are like Llama: rotary positions, gates, RMS norms.

use serde_json::Value;

use super::shared::{activation, head_of, special_tokens, stored};
use super::{Activation, Biases, Caps, Config, Dropout, Family, Layer};
use crate::fields::Fields;
use crate::rope::{Around, Rope};

/// What a family has where its config says nothing, as transformers fills it in.
struct Usual {
    eps: f64,
    is_tied: bool,
    theta: f64,
    activation: Activation,
    kv_heads: Option<usize>,
    head: Option<usize>,
    context: usize,
}

impl Family {
    fn usual(self) -> Usual {
        let llama = Usual {
            eps: 1e-6,
            is_tied: false,
            theta: 10_000.0,
            activation: Activation::Silu,
            kv_heads: None,
            head: None,
            context: 2048,
        };
        let gemma = || Usual {
            is_tied: true,
            activation: Activation::GeluTanh,
            kv_heads: Some(4),
            head: Some(256),
            ..llama
        };
        match self {
            Family::Llama | Family::Gpt2 => llama,
            Family::Mistral => Usual { kv_heads: Some(8), context: 131_072, ..llama },
            Family::Qwen2 => Usual { kv_heads: Some(32), context: 32_768, ..llama },
            Family::Qwen3 => Usual { kv_heads: Some(32), head: Some(128), context: 32_768, ..llama },
            Family::Gemma2 => Usual { context: 8192, ..gemma() },
            Family::Gemma3 => Usual { context: 131_072, theta: 1_000_000.0, ..gemma() },
            Family::Phi3 => Usual { eps: 1e-5, context: 4096, ..llama },
        }
    }
}

/// Reads what a config says of a decoder that is like Llama.
pub(super) fn read(fields: &mut Fields, family: Family) -> Result<Config, String> {
    let usual = family.usual();
    let (width, heads) = (fields.positive("hidden_size")?, fields.positive("num_attention_heads")?);
    let n_layers = fields.positive("num_hidden_layers")?;
    let head = match fields.size("head_dim")?.or(usual.head) {
        Some(0) => return Err("head_dim is 0".into()),
        Some(head) => head,
        None => head_of(width, heads)?,
    };
    let kv_heads = match fields.size("num_key_value_heads")?.or(usual.kv_heads).unwrap_or(heads) {
        0 => return Err("num_key_value_heads is 0".into()),
        n => n,
    };
    let context = fields.size("max_position_embeddings")?.unwrap_or(usual.context);
    let is_gemma = matches!(family, Family::Gemma2 | Family::Gemma3);
    let act = if is_gemma {
        // The older name of Gemma's files stands beside the newer one and was never followed.
        let old = fields.text("hidden_act")?;
        fields.text("hidden_activation")?.or(old.filter(|name| name != "gelu"))
    } else {
        fields.text("hidden_act")?
    };
    let attention_bias = fields.flag("attention_bias")?.unwrap_or(false);
    let (ropes, rope_of) = ropes(fields, family, &usual, head, context)?;
    let windows = windows(fields, family, n_layers)?;
    let scale = match is_gemma {
        true => fields.number("query_pre_attn_scalar")?.unwrap_or(256.0).powf(-0.5),
        false => (head as f64).powf(-0.5),
    };
    if !scale.is_finite() {
        return Err("query_pre_attn_scalar must be above 0".into());
    }
    let layers = windows
        .into_iter()
        .map(|window| Layer { window, rope: Some(if window.is_some() { rope_of } else { 0 }), scale })
        .collect();
    let dropout = Dropout {
        attention: fields.number("attention_dropout")?.unwrap_or(0.0),
        embedding: fields.number("embd_pdrop")?.unwrap_or(0.0),
        residual: fields.number("resid_pdrop")?.unwrap_or(0.0),
    };
    let is_capped = family == Family::Gemma2;
    let [attention_cap, logit_cap] = match is_gemma {
        false => [None, None],
        true => {
            // Null says none, and absence says the usual.
            let mut of = |name: &str, usual: f64| match fields.is_null(name) {
                true => Ok::<_, String>(None),
                false => Ok(fields.number(name)?.or(is_capped.then_some(usual))),
            };
            [of("attn_logit_softcapping", 50.0)?, of("final_logit_softcapping", 30.0)?]
        }
    };
    // Gemma 3's own code reads it and does nothing with it.
    if family == Family::Gemma3 && attention_cap.is_some() {
        return Err("it asks for attn_logit_softcapping, which gemma3_text does not have".into());
    }
    if attention_cap.or(logit_cap).is_some_and(|cap| cap <= 0.0) {
        return Err("a soft cap must be above 0".into());
    }
    Ok(Config {
        family,
        vocabulary: fields.positive("vocab_size")?,
        width,
        inner: fields.positive("intermediate_size")?,
        layers,
        heads,
        kv_heads,
        head,
        context,
        eps: fields.number("rms_norm_eps")?.unwrap_or(usual.eps),
        activation: activation(act, usual.activation)?,
        biases: Biases {
            qkv: attention_bias || family == Family::Qwen2,
            out: attention_bias,
            mlp: family == Family::Llama && fields.flag("mlp_bias")?.unwrap_or(false),
        },
        qk_norm: matches!(family, Family::Qwen3 | Family::Gemma3),
        ropes,
        caps: Caps { attention: attention_cap, logits: logit_cap },
        is_tied: fields.flag("tie_word_embeddings")?.unwrap_or(usual.is_tied),
        dropout,
        stored: stored(fields)?,
        tokens: special_tokens(fields)?,
    })
}

/// How positions turn queries and keys: of layers that see everything, and the number of that for layers with a window.
fn ropes(
    fields: &mut Fields,
    family: Family,
    usual: &Usual,
    head: usize,
    context: usize,
) -> Result<(Vec<Rope>, usize), String> {
    let around = Around {
        theta: fields.number("rope_theta")?.unwrap_or(usual.theta),
        partial: fields.number("partial_rotary_factor")?.unwrap_or(1.0),
        head,
        context,
        original: fields.size("original_max_position_embeddings")?,
    };
    let (newer, older) = (fields.value("rope_parameters"), fields.value("rope_scaling"));
    let name = if newer.is_some() { "rope_parameters" } else { "rope_scaling" };
    if family != Family::Gemma3 {
        return Ok((vec![Rope::read(newer.or(older).unwrap_or(Value::Null), name, &around)?], 0));
    }
    // Gemma 3 has two: of layers that see everything, and of layers with a window.
    let local =
        Around { theta: fields.number("rope_local_base_freq")?.unwrap_or(10_000.0), partial: 1.0, ..around };
    let (mut full, mut sliding) = (older.unwrap_or(Value::Null), Value::Null);
    if let Some(both) = newer {
        let mut both = Fields::new(both, "rope_parameters.")?;
        if both.has("full_attention") || both.has("sliding_attention") {
            full = both.value("full_attention").unwrap_or(Value::Null);
            sliding = both.value("sliding_attention").unwrap_or(Value::Null);
            both.finish()?;
        } else {
            return Err(
                "rope_parameters of gemma3_text must name full_attention and sliding_attention".into()
            );
        }
    }
    Ok((vec![Rope::read(full, name, &around)?, Rope::read(sliding, name, &local)?], 1))
}

/// The window of each layer.
fn windows(fields: &mut Fields, family: Family, n: usize) -> Result<Vec<Option<usize>>, String> {
    let listed = fields.texts("layer_types")?;
    let given = fields.has("sliding_window") || fields.is_null("sliding_window");
    let mut window = fields.size("sliding_window")?;
    let mut from = 0;
    let mut every = 0;
    match family {
        Family::Llama | Family::Gpt2 if window.is_some() => {
            return Err("it asks for sliding_window, which llama does not have".into());
        }
        Family::Mistral if !given => window = Some(4096),
        Family::Qwen2 | Family::Qwen3 => {
            from = fields.size("max_window_layers")?.unwrap_or(28);
            if !fields.flag("use_sliding_window")?.unwrap_or(false) {
                window = None;
            }
        }
        Family::Gemma2 | Family::Gemma3 => {
            every = if family == Family::Gemma2 {
                2
            } else {
                fields.size("sliding_window_pattern")?.unwrap_or(6)
            };
            fields.ignore(&["_sliding_window_pattern"]);
            window = window.or((!given).then_some(4096));
        }
        _ => {}
    }
    let slides = |i: usize| match every {
        0 => i >= from,
        every => !(i + 1).is_multiple_of(every),
    };
    let Some(listed) = listed else {
        return Ok((0..n).map(|i| window.filter(|_| slides(i))).collect());
    };
    if listed.len() != n {
        return Err(format!("layer_types names {} layers of {n}", listed.len()));
    }
    let of = |kind: &String| match (kind.as_str(), window) {
        ("full_attention", _) => Ok(None),
        ("sliding_attention", Some(window)) => Ok(Some(window)),
        ("sliding_attention", None) => {
            Err("layer_types names sliding_attention, and there is no sliding_window".into())
        }
        (other, _) => Err(format!("layer_types names {other:?}, which is not known here")),
    };
    listed.iter().map(of).collect()
}
