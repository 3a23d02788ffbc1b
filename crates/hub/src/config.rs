//! Turns `config.json` into the description of a decoder or an encoder, or into what it asks for that is not known here.
//!
//! `llama` reads the families that are like Llama, `gpt2` and `encoder` the others; `shared` is what all configs have.

mod encoder;
mod gpt2;
mod llama;
mod shared;

use std::path::Path;

use plimsoll_formats::Element;
use plimsoll_graph::TensorOps;
use plimsoll_run::Tensor;
use serde_json::Value;

pub use encoder::{EncoderConfig, EncoderFamily, EncoderInput, Task};
pub(crate) use shared::{LARGEST_CONFIG, read_json, read_small};

use crate::error::{Error, Result};
use crate::fields::Fields;
use crate::rope::Rope;

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

impl Activation {
    /// It, of a tensor.
    pub(crate) fn of(self, x: &Tensor) -> plimsoll_run::Result<Tensor> {
        match self {
            Activation::Silu => x.silu(),
            Activation::Gelu => x.gelu(),
            Activation::GeluTanh => x.gelu_tanh(),
            Activation::Relu => x.relu(),
        }
    }
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

/// Bounds c of numbers x that become c · tanh(x / c), where there are such.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Caps {
    /// Of scores of attention.
    pub attention: Option<f64>,
    /// Of logits.
    pub logits: Option<f64>,
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
    /// What is held within bounds.
    pub caps: Caps,
    /// How positions turn queries and keys, as [`Layer::rope`] names them.
    pub ropes: Vec<Rope>,
    /// Whether the output layer is the table of embeddings.
    pub is_tied: bool,
    /// Shares that are dropped in training.
    pub dropout: Dropout,
    /// The element type that its weights say they have.
    pub stored: Option<Element>,
    /// Tokens that are no words.
    pub tokens: SpecialTokens,
}

impl Config {
    /// Reads a folder's `config.json`.
    pub fn open(folder: &Path) -> Result<Config> {
        let path = folder.join("config.json");
        let value = read_json(&path, LARGEST_CONFIG)?;
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
        shared::refuse_unknown(&mut fields)?;
        let config = match family {
            Family::Gpt2 => gpt2::read(&mut fields)?,
            family => llama::read(&mut fields, family)?,
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
    let mut fields =
        Fields::new(read_json(&path, LARGEST_CONFIG)?, "").map_err(|why| Error::file(&path, why))?;
    fields.tokens("eos_token_id").map_err(|why| Error::file(&path, why))
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
            ("rope_scaling", json!({"type": "wavy", "factor": 2.0}), "\"wavy\""),
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
