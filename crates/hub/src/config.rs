//! Turns `config.json` into the description of a decoder, or into what it asks for that is not known here.

use std::path::Path;

use plimsoll_formats::Element;
use serde_json::Value;

use crate::error::{Error, Result};
use crate::fields::Fields;
use crate::rope::{Around, Rope};

/// The most that a `config.json` may have: they have a few kilobytes.
const LARGEST: u64 = 4 << 20;

/// The families of decoders that are known, by their `model_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Llama 2 and 3.
    Llama,
    /// Mistral.
    Mistral,
    /// Qwen 2 and 2.5.
    Qwen2,
    /// Qwen 3.
    Qwen3,
    /// Gemma 2.
    Gemma2,
    /// Gemma 3, for text alone.
    Gemma3,
    /// Phi-3 and 3.5, for text alone.
    Phi3,
    /// GPT-2.
    Gpt2,
}

/// The gate or activation between the two layers of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// x · sigmoid(x).
    Silu,
    /// gelu.
    Gelu,
    /// gelu by its tanh approximation.
    GeluTanh,
    /// max(x, 0).
    Relu,
}

/// One block.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    /// How many keys a query sees at most, itself included; all before it where there is none.
    pub window: Option<usize>,
    /// Which of [`Config::ropes`] turns its queries and keys; none with learned positions.
    pub rope: Option<usize>,
    /// What products of queries and keys are multiplied by.
    pub scale: f64,
}

/// Shares that are dropped in training.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Dropout {
    /// Of what embeddings give.
    pub embedding: f64,
    /// Of the weights of attention.
    pub attention: f64,
    /// Of what a block adds.
    pub residual: f64,
}

/// Tokens that are no words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    /// The token before a text, where there is one.
    pub bos: Vec<u32>,
    /// Tokens that end a text.
    pub eos: Vec<u32>,
    /// The token that fills.
    pub pad: Vec<u32>,
}

/// Which layers of a block have biases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Biases {
    /// Whether queries, keys and values have them.
    pub qkv: bool,
    /// Whether the layer after attention has one.
    pub out: bool,
    /// Whether the layers behind that have them.
    pub mlp: bool,
}

/// A decoder, as `config.json` describes it.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// What it is one of.
    pub family: Family,
    /// Tokens there are.
    pub vocabulary: usize,
    /// Features of the residual stream.
    pub width: usize,
    /// Features between the two layers of a block.
    pub inner: usize,
    /// Its blocks.
    pub layers: Vec<Layer>,
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// Features of a head.
    pub head: usize,
    /// The most positions it has.
    pub context: usize,
    /// What norms add to a variance.
    pub eps: f64,
    /// The activation of its blocks.
    pub activation: Activation,
    /// Which of its layers have biases.
    pub biases: Biases,
    /// Whether queries and keys are normed, a head each.
    pub qk_norm: bool,
    /// How positions turn queries and keys, as [`Layer::rope`] names them.
    pub ropes: Vec<Rope>,
    /// c, where scores of attention are c · tanh(s / c).
    pub attention_cap: Option<f64>,
    /// c, where logits are c · tanh(x / c).
    pub logit_cap: Option<f64>,
    /// Whether the output layer is the table of embeddings.
    pub is_tied: bool,
    /// Shares that are dropped in training.
    pub dropout: Dropout,
    /// The element type that its weights say they have.
    pub stored: Option<Element>,
    /// Tokens that are no words.
    pub tokens: SpecialTokens,
}

/// Fields that change nothing of what a model computes: where it came from, how it is run elsewhere, how it started.
const WITHOUT_EFFECT: &[&str] = &[
    "_name_or_path",
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_commit_hash",
    "attn_implementation",
    "auto_map",
    "bad_words_ids",
    "cache_implementation",
    "chunk_size_feed_forward",
    "cross_attention_hidden_size",
    "decoder_start_token_id",
    "diversity_penalty",
    "do_sample",
    "early_stopping",
    "embd_layer",
    "encoder_no_repeat_ngram_size",
    "exponential_decay_length_penalty",
    "finetuning_task",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "gradient_checkpointing",
    "id2label",
    "initializer_range",
    "keys_to_ignore_at_inference",
    "label2id",
    "length_penalty",
    "max_length",
    "min_length",
    "mlp_layer",
    "model_name",
    "n_ctx",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_scores",
    "prefix",
    "pretraining_tp",
    "problem_type",
    "remove_invalid_values",
    "repetition_penalty",
    "return_dict",
    "return_dict_in_generate",
    "sep_token_id",
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
    "suppress_tokens",
    "begin_suppress_tokens",
    "task_specific_params",
    "temperature",
    "tf_legacy_loss",
    "tokenizer_class",
    "top_k",
    "top_p",
    "torchscript",
    "transformers_version",
    "typical_p",
    "unsloth_fixed",
    "unsloth_version",
    "use_bfloat16",
    "use_cache",
    "pruned_heads",
    "is_decoder",
];

impl Config {
    /// Reads a folder's `config.json`.
    pub fn open(folder: &Path) -> Result<Config> {
        let path = folder.join("config.json");
        let value = read_json(&path, LARGEST)?;
        Config::read(value).map_err(|why| Error::file(&path, why))
    }

    /// Reads the object that a `config.json` holds.
    pub fn read(value: Value) -> Result<Config, String> {
        let mut fields = Fields::new(value, "")?;
        let kind = fields.text("model_type")?.ok_or("model_type is missing; it is no config of a model")?;
        let (family, class) = match kind.as_str() {
            "llama" => (Family::Llama, "LlamaForCausalLM"),
            "mistral" => (Family::Mistral, "MistralForCausalLM"),
            "qwen2" => (Family::Qwen2, "Qwen2ForCausalLM"),
            "qwen3" => (Family::Qwen3, "Qwen3ForCausalLM"),
            "gemma2" => (Family::Gemma2, "Gemma2ForCausalLM"),
            "gemma3_text" => (Family::Gemma3, "Gemma3ForCausalLM"),
            "phi3" => (Family::Phi3, "Phi3ForCausalLM"),
            "gpt2" => (Family::Gpt2, "GPT2LMHeadModel"),
            other => {
                return Err(format!(
                    "model_type {other:?} is not known here; llama, mistral, qwen2, qwen3, gemma2, gemma3_text, phi3 \
                     and gpt2 are"
                ));
            }
        };
        if let Some(classes) = fields.texts("architectures")?
            && !classes.iter().any(|own| own == class)
        {
            return Err(format!(
                "architectures is {}; of {kind} only {class} is known here",
                classes.join(", ")
            ));
        }
        if fields.has("quantization_config") {
            return Err("quantization_config: weights that are stored in fewer bits are not known here; take the folder \
                        of the model in bf16"
                .into());
        }
        for flag in [
            "is_encoder_decoder",
            "add_cross_attention",
            "tie_encoder_decoder",
            "use_bidirectional_attention",
        ] {
            fields.must_not(flag)?;
        }
        fields.ignore(WITHOUT_EFFECT);
        let config = match family {
            Family::Gpt2 => gpt2(&mut fields)?,
            family => llama_like(&mut fields, family)?,
        };
        fields.finish()?;
        config.check()?;
        Ok(config)
    }

    /// Whether a block has a gate beside its first layer.
    pub fn is_gated(&self) -> bool {
        self.family != Family::Gpt2
    }

    /// Whether norms scale by 1 + weight, embeddings are scaled by √width, and blocks norm what they add.
    pub fn is_gemma(&self) -> bool {
        matches!(self.family, Family::Gemma2 | Family::Gemma3)
    }

    fn check(&self) -> Result<(), String> {
        if !self.heads.is_multiple_of(self.kv_heads) {
            let (heads, kv) = (self.heads, self.kv_heads);
            return Err(format!("{heads} heads of queries cannot be shared out to {kv} of keys"));
        }
        let shares = self.dropout;
        for share in [shares.embedding, shares.attention, shares.residual] {
            if !(0.0..1.0).contains(&share) {
                return Err(format!("a share of {share} cannot be dropped"));
            }
        }
        if self.layers.iter().any(|layer| layer.window == Some(0)) {
            return Err("a sliding_window of 0 sees nothing".into());
        }
        let SpecialTokens { bos, eos, pad } = &self.tokens;
        let token = bos.iter().chain(eos).chain(pad).find(|t| **t as usize >= self.vocabulary);
        match token {
            // Some published files name a padding token of -1 or one behind the vocabulary; only those that are used matter.
            Some(token) if !pad.contains(token) => {
                Err(format!("token {token} is outside the vocabulary of {}", self.vocabulary))
            }
            _ => Ok(()),
        }
    }
}

/// The tokens that end a text, as a folder's `generation_config.json` has them; none where there is no such file. What else it says is
/// how others choose tokens, which here whoever asks says.
pub fn end_tokens(folder: &Path) -> Result<Vec<u32>> {
    let path = folder.join("generation_config.json");
    if !path.is_file() {
        return Ok(Vec::new());
    }
    let mut fields = Fields::new(read_json(&path, LARGEST)?, "").map_err(|why| Error::file(&path, why))?;
    fields.tokens("eos_token_id").map_err(|why| Error::file(&path, why))
}

/// A JSON file of at most so many bytes.
pub(crate) fn read_json(path: &Path, most: u64) -> Result<Value> {
    let bytes = read_small(path, most)?;
    serde_json::from_slice(&bytes).map_err(|e| Error::file(path, format!("it is no JSON: {e}")))
}

/// A file of at most so many bytes.
pub(crate) fn read_small(path: &Path, most: u64) -> Result<Vec<u8>> {
    use std::io::Read;
    let file = std::fs::File::open(path).map_err(Error::io(path))?;
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes).map_err(Error::io(path))?;
    match bytes.len() as u64 > most {
        true => {
            Err(Error::file(path, format!("it has more than {most} bytes, more than such a file ever has")))
        }
        false => Ok(bytes),
    }
}

fn activation(name: Option<String>, usual: Activation) -> Result<Activation, String> {
    Ok(match name.as_deref() {
        None => usual,
        Some("silu" | "swish") => Activation::Silu,
        Some("gelu") => Activation::Gelu,
        Some("gelu_new" | "gelu_pytorch_tanh" | "gelu_fast") => Activation::GeluTanh,
        Some("relu") => Activation::Relu,
        Some(other) => {
            return Err(format!(
                "the activation {other:?} is not known here; silu, gelu, gelu_new, gelu_pytorch_tanh and relu are"
            ));
        }
    })
}

fn stored(fields: &mut Fields) -> Result<Option<Element>, String> {
    let (dtype, old) = (fields.text("dtype")?, fields.text("torch_dtype")?);
    Ok(match dtype.or(old).as_deref() {
        None | Some("auto") => None,
        Some("float32") => Some(Element::F32),
        Some("float16") => Some(Element::F16),
        Some("bfloat16") => Some(Element::BF16),
        Some(other) => {
            return Err(format!("dtype {other:?} is not known here; float32, float16 and bfloat16 are"));
        }
    })
}

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

fn llama_like(fields: &mut Fields, family: Family) -> Result<Config, String> {
    let usual = family.usual();
    let (width, heads) = (fields.positive("hidden_size")?, fields.positive("num_attention_heads")?);
    let n_layers = fields.positive("num_hidden_layers")?;
    let head = match fields.size("head_dim")?.or(usual.head) {
        Some(0) => return Err("head_dim is 0".into()),
        Some(head) => head,
        None if width.is_multiple_of(heads) => width / heads,
        None => return Err(format!("{width} features cannot be cut into {heads} heads")),
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
        attention_cap,
        logit_cap,
        is_tied: fields.flag("tie_word_embeddings")?.unwrap_or(usual.is_tied),
        dropout,
        stored: stored(fields)?,
        tokens: special_tokens(fields)?,
    })
}

/// Tokens that are no words; for padding, -1 is written for none.
fn special_tokens(fields: &mut Fields) -> Result<SpecialTokens, String> {
    let (bos, eos) = (fields.tokens("bos_token_id")?, fields.tokens("eos_token_id")?);
    if fields.peek("pad_token_id").and_then(Value::as_i64) == Some(-1) {
        fields.ignore(&["pad_token_id"]);
    }
    Ok(SpecialTokens { bos, eos, pad: fields.tokens("pad_token_id")? })
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

fn gpt2(fields: &mut Fields) -> Result<Config, String> {
    let (width, heads) = (fields.positive("n_embd")?, fields.positive("n_head")?);
    if !width.is_multiple_of(heads) {
        return Err(format!("{width} features cannot be cut into {heads} heads"));
    }
    let head = width / heads;
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
        attention_cap: None,
        logit_cap: None,
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn llama() -> Value {
        json!({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 96,
            "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2, "vocab_size": 100,
            "rms_norm_eps": 1e-5, "torch_dtype": "bfloat16", "eos_token_id": [2, 3], "rope_theta": 10000.0})
    }

    fn with(name: &str, value: Value) -> Value {
        let mut all = llama();
        all[name] = value;
        all
    }

    #[test]
    fn what_a_config_says_is_what_is_read() {
        let config = Config::read(llama()).unwrap();
        assert_eq!((config.head, config.kv_heads, config.layers.len()), (16, 2, 2));
        assert_eq!((config.stored, config.tokens.eos), (Some(Element::BF16), vec![2, 3]));
        assert!(!config.is_tied && !config.biases.qkv && config.layers[0].window.is_none());
    }

    #[test]
    fn what_a_config_asks_for_and_is_not_known_is_refused_by_its_name() {
        let refusal = |name: &str, value: Value| Config::read(with(name, value)).unwrap_err();
        for (name, value, word) in [
            ("model_type", json!("mamba"), "\"mamba\""),
            ("architectures", json!(["LlamaForSequenceClassification"]), "LlamaForSequenceClassification"),
            ("mixture_of_depths", json!(true), "mixture_of_depths = true"),
            ("hidden_act", json!("xielu"), "\"xielu\""),
            ("quantization_config", json!({"bits": 4}), "quantization_config"),
            ("sliding_window", json!(4096), "sliding_window"),
            ("rope_scaling", json!({"type": "dynamic", "factor": 2.0}), "dynamic"),
            ("dtype", json!("float8_e4m3fn"), "float8"),
            ("num_attention_heads", json!(3), "3 heads"),
            ("num_hidden_layers", json!(0), "num_hidden_layers"),
            ("hidden_size", json!("64"), "hidden_size"),
            ("eos_token_id", json!(100), "token 100"),
            ("is_encoder_decoder", json!(true), "is_encoder_decoder"),
        ] {
            let why = refusal(name, value);
            assert!(why.contains(word), "{name}: {why}");
        }
        assert!(Config::read(with("use_cache", json!(false))).is_ok());
        assert!(Config::read(json!([1])).is_err());
    }

    #[test]
    fn windows_are_those_of_the_family() {
        let windows = |value: Value| -> Vec<Option<usize>> {
            Config::read(value).unwrap().layers.iter().map(|layer| layer.window).collect()
        };
        let of = |kind: &str, class: &str, more: Value| {
            let mut all = with("model_type", json!(kind));
            all["architectures"] = json!([class]);
            all["num_hidden_layers"] = json!(4);
            for (name, value) in more.as_object().unwrap() {
                all[name] = value.clone();
            }
            windows(all)
        };
        let all = of("mistral", "MistralForCausalLM", json!({"sliding_window": 8}));
        assert_eq!(all, [Some(8); 4]);
        assert_eq!(of("mistral", "MistralForCausalLM", json!({"sliding_window": null})), [None; 4]);
        let gemma = json!({"sliding_window": 8, "head_dim": 16});
        assert_eq!(of("gemma2", "Gemma2ForCausalLM", gemma.clone()), [Some(8), None, Some(8), None]);
        assert_eq!(of("gemma3_text", "Gemma3ForCausalLM", gemma), [Some(8); 4]);
        let qwen = json!({"sliding_window": 8, "use_sliding_window": true, "max_window_layers": 3});
        assert_eq!(of("qwen2", "Qwen2ForCausalLM", qwen), [None, None, None, Some(8)]);
        let off = json!({"sliding_window": 8, "use_sliding_window": false, "max_window_layers": 3});
        assert_eq!(of("qwen2", "Qwen2ForCausalLM", off), [None; 4]);
    }
}
