//! What configs of all families have: fields without effect, activations, types, tokens that are no words.

use std::path::Path;

use plimsoll_formats::Element;
use serde_json::Value;

use super::{Activation, SpecialTokens};
use crate::error::{Error, Result};
use crate::fields::Fields;

/// The most that a `config.json` may have: they have a few kilobytes.
pub(crate) const LARGEST_CONFIG: u64 = 4 << 20;

/// Fields that change nothing of what a model computes: where it came from, how it is run elsewhere, how it started.
pub(super) const WITHOUT_EFFECT: &[&str] = &[
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

/// Refuses what no family here has, and lets go of what changes nothing.
pub(super) fn refuse_unknown(fields: &mut Fields) -> Result<(), String> {
    if fields.has("quantization_config") {
        return Err(
            "quantization_config: weights that are stored in fewer bits are not known here; take the folder \
                    of the model in bf16"
                .into(),
        );
    }
    for flag in
        ["is_encoder_decoder", "add_cross_attention", "tie_encoder_decoder", "use_bidirectional_attention"]
    {
        fields.must_not(flag)?;
    }
    fields.ignore(WITHOUT_EFFECT);
    Ok(())
}

/// Features of a head, where `heads` of them make up the width.
pub(super) fn head_of(width: usize, heads: usize) -> Result<usize, String> {
    match width.is_multiple_of(heads) {
        true => Ok(width / heads),
        false => Err(format!("{width} features cannot be cut into {heads} heads")),
    }
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

pub(super) fn activation(name: Option<String>, usual: Activation) -> Result<Activation, String> {
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

pub(super) fn stored(fields: &mut Fields) -> Result<Option<Element>, String> {
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

/// Tokens that are no words; for padding, -1 is written for none.
pub(super) fn special_tokens(fields: &mut Fields) -> Result<SpecialTokens, String> {
    let (bos, eos) = (fields.tokens("bos_token_id")?, fields.tokens("eos_token_id")?);
    if fields.peek("pad_token_id").and_then(Value::as_i64) == Some(-1) {
        fields.ignore(&["pad_token_id"]);
    }
    Ok(SpecialTokens { bos, eos, pad: fields.tokens("pad_token_id")? })
}
