//! The configs of encoders: BERT, RoBERTa and DistilBERT over texts, ViT over pictures, each with the head of one task.

use std::path::Path;

use plimsoll_formats::Element;
use serde_json::Value;

use super::Activation;
use super::shared::{LARGEST_CONFIG, activation, head_of, read_json, refuse_unknown, special_tokens, stored};
use crate::error::{Error, Result};
use crate::fields::Fields;

/// The families of encoders that are known, by their `model_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EncoderFamily {
    /// BERT.
    Bert,
    /// RoBERTa.
    Roberta,
    /// DistilBERT.
    DistilBert,
    /// ViT.
    Vit,
}

/// What an encoder's head says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// Words that were hidden.
    MaskedWords,
    /// One label a text.
    Sequence,
    /// One label a token.
    Tokens,
    /// One label a picture.
    Image,
}

/// What an encoder reads.
#[derive(Clone, Debug, PartialEq)]
pub enum EncoderInput {
    /// Tokens.
    Text {
        /// Tokens there are.
        vocabulary: usize,
        /// Rows of the table of positions.
        positions: usize,
        /// The row of the first token's position.
        first: usize,
        /// Kinds of tokens; none where the family has none.
        types: Option<usize>,
        /// The token that fills.
        pad: u32,
    },
    /// Pixels.
    Image {
        /// Height and width.
        size: [usize; 2],
        /// Height and width of a patch.
        patch: [usize; 2],
        /// Colours.
        channels: usize,
        /// What is taken off each colour, where a file says so.
        mean: Vec<f64>,
        /// What each colour is divided by then.
        std: Vec<f64>,
    },
}

/// An encoder, as `config.json` describes it.
#[derive(Clone, Debug, PartialEq)]
pub struct EncoderConfig {
    /// What it is one of.
    pub family: EncoderFamily,
    /// What its head says.
    pub task: Task,
    /// The task that its files have a head for, where they name one.
    pub stored_task: Option<Task>,
    /// What it reads.
    pub input: EncoderInput,
    /// Features of the residual stream.
    pub width: usize,
    /// Features between the two layers of a block.
    pub inner: usize,
    /// Blocks.
    pub layers: usize,
    /// Heads of attention.
    pub heads: usize,
    /// What norms add to a variance.
    pub eps: f64,
    /// The activation of its blocks.
    pub activation: Activation,
    /// Whether queries, keys and values have biases.
    pub has_qkv_bias: bool,
    /// The share of hidden features that is dropped in training.
    pub dropout: f64,
    /// The share of the weights of attention that is dropped in training.
    pub attention_dropout: f64,
    /// The share that is dropped before the head.
    pub head_dropout: f64,
    /// The labels, in the order of their numbers.
    pub labels: Vec<String>,
    /// Whether the labels are others than those of the files.
    pub has_new_labels: bool,
    /// The element type that its weights say they have.
    pub stored: Option<Element>,
}

/// Fields of encoders that change nothing of what is computed here.
const WITHOUT_EFFECT: &[&str] = &[
    "directionality",
    "encoder_stride",
    "pooler_act",
    "pooler_fc_size",
    "pooler_num_attention_heads",
    "pooler_num_fc_layers",
    "pooler_output_size",
    "pooler_size_per_head",
    "pooler_type",
    "qa_dropout",
    "tie_weights_",
    "num_labels",
    "_num_labels",
];

impl EncoderFamily {
    /// The family of a `model_type`.
    pub fn of(kind: &str) -> Option<EncoderFamily> {
        Some(match kind {
            "bert" => EncoderFamily::Bert,
            "roberta" => EncoderFamily::Roberta,
            "distilbert" => EncoderFamily::DistilBert,
            "vit" => EncoderFamily::Vit,
            _ => return None,
        })
    }

    /// What transformers' classes begin with.
    fn class(self) -> &'static str {
        match self {
            EncoderFamily::Bert => "Bert",
            EncoderFamily::Roberta => "Roberta",
            EncoderFamily::DistilBert => "DistilBert",
            EncoderFamily::Vit => "ViT",
        }
    }

    /// What stands before the names of a model's own tensors.
    pub(crate) fn root(self) -> &'static str {
        match self {
            EncoderFamily::Bert => "bert",
            EncoderFamily::Roberta => "roberta",
            EncoderFamily::DistilBert => "distilbert",
            EncoderFamily::Vit => "vit",
        }
    }

    fn tasks(self) -> &'static [Task] {
        match self {
            EncoderFamily::Vit => &[Task::Image],
            _ => &[Task::MaskedWords, Task::Sequence, Task::Tokens],
        }
    }
}

impl Task {
    /// What transformers' classes end with.
    pub(crate) fn class(self) -> &'static str {
        match self {
            Task::MaskedWords => "ForMaskedLM",
            Task::Sequence => "ForSequenceClassification",
            Task::Tokens => "ForTokenClassification",
            Task::Image => "ForImageClassification",
        }
    }
}

impl EncoderConfig {
    /// Whether a folder's config is that of an encoder.
    pub fn is_in(folder: &Path) -> bool {
        let value = read_json(&folder.join("config.json"), LARGEST_CONFIG).unwrap_or(Value::Null);
        value["model_type"].as_str().and_then(EncoderFamily::of).is_some()
    }

    /// Reads a folder's `config.json`, for the task and the labels that are named, or else its own.
    pub fn open(folder: &Path, task: Option<Task>, labels: Option<Vec<String>>) -> Result<EncoderConfig> {
        let path = folder.join("config.json");
        let value = read_json(&path, LARGEST_CONFIG)?;
        let mut config = EncoderConfig::read(value, task, labels).map_err(|why| Error::file(&path, why))?;
        config.read_colours(folder)?;
        Ok(config)
    }

    /// Reads the object that a `config.json` holds.
    pub fn read(
        value: Value,
        task: Option<Task>,
        labels: Option<Vec<String>>,
    ) -> Result<EncoderConfig, String> {
        let mut fields = Fields::new(value, "")?;
        let kind = fields.text("model_type")?.ok_or("model_type is missing; it is no config of a model")?;
        let family =
            EncoderFamily::of(&kind).ok_or_else(|| format!("{kind} is no encoder that is known here"))?;
        let stored_task = stored_task(&mut fields, family)?;
        let Some(task) = task.or(stored_task) else {
            return Err("it names no task in architectures; name one with --task".into());
        };
        if !family.tasks().contains(&task) {
            return Err(format!("{kind} has no {}{}", family.class(), task.class()));
        }
        let own = own_labels(&mut fields)?;
        let has_new_labels = labels.as_ref().is_some_and(|labels| *labels != own);
        let labels = labels.unwrap_or(own);
        if labels.len() < 2 && task != Task::MaskedWords {
            return Err(format!(
                "{} labels: one number a sample (regression) is not known here",
                labels.len()
            ));
        }
        match fields.text("problem_type")?.as_deref() {
            None | Some("single_label_classification") => {}
            Some(other) => return Err(format!("problem_type {other:?} is not known here")),
        }
        refuse_unknown(&mut fields)?;
        fields.ignore(WITHOUT_EFFECT);
        if !fields.flag("tie_word_embeddings")?.unwrap_or(true) && task == Task::MaskedWords {
            return Err("tie_word_embeddings = false is not known here for masked words".into());
        }
        let mut config = match family {
            EncoderFamily::DistilBert => distilbert(&mut fields)?,
            EncoderFamily::Vit => vit(&mut fields)?,
            _ => bert(&mut fields, family)?,
        };
        fields.finish()?;
        head_of(config.width, config.heads)?;
        for share in [config.dropout, config.attention_dropout, config.head_dropout] {
            if !(0.0..1.0).contains(&share) {
                return Err(format!("a share of {share} cannot be dropped"));
            }
        }
        (config.task, config.stored_task) = (task, stored_task);
        (config.labels, config.has_new_labels) = (labels, has_new_labels);
        Ok(config)
    }

    /// The most tokens of a text, or patches of a picture and one more.
    pub fn context(&self) -> usize {
        match &self.input {
            EncoderInput::Text { positions, first, .. } => positions - first,
            EncoderInput::Image { size, patch, .. } => (size[0] / patch[0]) * (size[1] / patch[1]) + 1,
        }
    }

    /// Classes that the head chooses from.
    pub fn classes(&self) -> usize {
        match (&self.input, self.task) {
            (EncoderInput::Text { vocabulary, .. }, Task::MaskedWords) => *vocabulary,
            _ => self.labels.len(),
        }
    }

    /// The class of transformers.
    pub fn class(&self) -> String {
        format!("{}{}", self.family.class(), self.task.class())
    }

    /// What `preprocessor_config.json` takes off the colours of pictures from 0 to 1, and divides them by.
    fn read_colours(&mut self, folder: &Path) -> Result<()> {
        let path = folder.join("preprocessor_config.json");
        let EncoderInput::Image { channels, mean, std, .. } = &mut self.input else { return Ok(()) };
        if !path.is_file() {
            return Ok(());
        }
        let value = read_json(&path, LARGEST_CONFIG)?;
        if value["do_normalize"].as_bool() == Some(false) {
            return Ok(());
        }
        for (name, to) in [("image_mean", mean), ("image_std", std)] {
            let numbers: Option<Vec<f64>> =
                value[name].as_array().and_then(|list| list.iter().map(Value::as_f64).collect());
            match numbers {
                Some(numbers) if numbers.len() == *channels && numbers.iter().all(|x| x.is_finite()) => {
                    *to = numbers
                }
                _ => {
                    let why = format!("{name} must be a list of {channels} numbers");
                    return Err(Error::file(&path, why));
                }
            }
        }
        Ok(())
    }
}

/// The task that `architectures` names; none of a model without a head.
fn stored_task(fields: &mut Fields, family: EncoderFamily) -> Result<Option<Task>, String> {
    let Some(classes) = fields.texts("architectures")? else { return Ok(None) };
    let class = family.class();
    for own in &classes {
        let Some(end) = own.strip_prefix(class) else { continue };
        // What was trained with a second task beside masked words has a head for those.
        let end = if end == "ForPreTraining" { "ForMaskedLM" } else { end };
        if end == "Model" {
            return Ok(None);
        }
        if let Some(task) = family.tasks().iter().find(|task| task.class() == end) {
            return Ok(Some(*task));
        }
    }
    let known: Vec<String> = family.tasks().iter().map(|task| format!("{class}{}", task.class())).collect();
    Err(format!("architectures is {}; {} are known here", classes.join(", "), known.join(", ")))
}

/// The labels that a config names, in the order of their numbers; two without names where it says nothing.
fn own_labels(fields: &mut Fields) -> Result<Vec<String>, String> {
    let Some(Value::Object(map)) = fields.value("id2label") else {
        return Ok(vec!["LABEL_0".into(), "LABEL_1".into()]);
    };
    let mut labels = vec![None; map.len()];
    for (number, label) in &map {
        let at = number.parse::<usize>().ok().and_then(|at| labels.get_mut(at));
        match (at, label.as_str()) {
            (Some(at), Some(label)) => *at = Some(label.to_string()),
            _ => return Err(format!("id2label: {number:?} is no number of one of its {} labels", map.len())),
        }
    }
    Ok(labels.into_iter().flatten().collect())
}

/// The parts that all families have under one name each, with those of the rest that say nothing yet.
fn with_names(
    fields: &mut Fields,
    family: EncoderFamily,
    input: EncoderInput,
    [width, inner, layers, heads, act]: [&str; 5],
    [dropout, attention]: [(&str, f64); 2],
) -> Result<EncoderConfig, String> {
    let share = |fields: &mut Fields, (name, usual): (&str, f64)| {
        Ok::<_, String>(fields.number(name)?.unwrap_or(usual))
    };
    let dropout = share(fields, dropout)?;
    Ok(EncoderConfig {
        family,
        task: Task::MaskedWords,
        stored_task: None,
        input,
        width: fields.positive(width)?,
        inner: fields.positive(inner)?,
        layers: fields.positive(layers)?,
        heads: fields.positive(heads)?,
        eps: fields.number("layer_norm_eps")?.unwrap_or(1e-12),
        activation: activation(fields.text(act)?, Activation::Gelu)?,
        has_qkv_bias: true,
        dropout,
        attention_dropout: share(fields, attention)?,
        head_dropout: dropout,
        labels: Vec::new(),
        has_new_labels: false,
        stored: stored(fields)?,
    })
}

fn text(fields: &mut Fields, family: EncoderFamily) -> Result<EncoderInput, String> {
    let usual = u32::from(family == EncoderFamily::Roberta);
    let pad = special_tokens(fields)?.pad.first().copied().unwrap_or(usual);
    let (vocabulary, positions) =
        (fields.positive("vocab_size")?, fields.positive("max_position_embeddings")?);
    // RoBERTa counts positions from behind the number of its filling token.
    let first = if family == EncoderFamily::Roberta { pad as usize + 1 } else { 0 };
    if first >= positions || pad as usize >= vocabulary {
        return Err(format!("pad_token_id {pad} leaves no positions of {positions} or is no token"));
    }
    let types = match family {
        EncoderFamily::DistilBert => None,
        _ => Some(fields.size("type_vocab_size")?.unwrap_or(2).max(1)),
    };
    Ok(EncoderInput::Text { vocabulary, positions, first, types, pad })
}

const BERT_NAMES: [&str; 5] =
    ["hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "hidden_act"];

fn bert(fields: &mut Fields, family: EncoderFamily) -> Result<EncoderConfig, String> {
    if let Some(kind) = fields.text("position_embedding_type")?.filter(|kind| kind != "absolute") {
        return Err(format!("position_embedding_type {kind:?} is not known here"));
    }
    let input = text(fields, family)?;
    let shares = [("hidden_dropout_prob", 0.1), ("attention_probs_dropout_prob", 0.1)];
    let config = with_names(fields, family, input, BERT_NAMES, shares)?;
    let head_dropout = fields.number("classifier_dropout")?.unwrap_or(config.dropout);
    Ok(EncoderConfig { head_dropout, ..config })
}

fn distilbert(fields: &mut Fields) -> Result<EncoderConfig, String> {
    fields.must_not("sinusoidal_pos_embds")?;
    let input = text(fields, EncoderFamily::DistilBert)?;
    let names = ["dim", "hidden_dim", "n_layers", "n_heads", "activation"];
    let shares = [("dropout", 0.1), ("attention_dropout", 0.1)];
    let config = with_names(fields, EncoderFamily::DistilBert, input, names, shares)?;
    let head_dropout = fields.number("seq_classif_dropout")?.unwrap_or(0.2);
    Ok(EncoderConfig { head_dropout, ..config })
}

fn vit(fields: &mut Fields) -> Result<EncoderConfig, String> {
    let mut sides = |name: &str, usual: usize| match fields.value(name) {
        None => Ok([usual; 2]),
        Some(value) => {
            let one = |value: &Value| value.as_u64().filter(|n| (1..1 << 20).contains(n)).map(|n| n as usize);
            let both = match &value {
                Value::Array(list) => list.iter().map(one).collect::<Option<Vec<_>>>(),
                value => one(value).map(|side| vec![side; 2]),
            };
            both.and_then(|both| <[usize; 2]>::try_from(both).ok())
                .ok_or_else(|| format!("{name} must be one or two whole numbers, not {value}"))
        }
    };
    let (size, patch) = (sides("image_size", 224)?, sides("patch_size", 16)?);
    if size.iter().zip(patch).any(|(size, patch)| !size.is_multiple_of(patch)) {
        return Err(format!("pictures of {size:?} cannot be cut into patches of {patch:?}"));
    }
    let channels = fields.size("num_channels")?.unwrap_or(3).max(1);
    let input = EncoderInput::Image { size, patch, channels, mean: Vec::new(), std: Vec::new() };
    let has_qkv_bias = fields.flag("qkv_bias")?.unwrap_or(true);
    let shares = [("hidden_dropout_prob", 0.0), ("attention_probs_dropout_prob", 0.0)];
    let config = with_names(fields, EncoderFamily::Vit, input, BERT_NAMES, shares)?;
    Ok(EncoderConfig { has_qkv_bias, head_dropout: 0.0, ..config })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn bert() -> Value {
        json!({"model_type": "bert", "architectures": ["BertForMaskedLM"], "hidden_size": 16, "intermediate_size": 24,
            "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 60, "max_position_embeddings": 40,
            "layer_norm_eps": 1e-12, "hidden_act": "gelu", "type_vocab_size": 2, "pad_token_id": 0})
    }

    #[test]
    fn a_task_is_the_files_own_or_the_one_that_is_named() {
        let own = EncoderConfig::read(bert(), None, None).unwrap();
        assert_eq!((own.task, own.classes(), own.context()), (Task::MaskedWords, 60, 40));
        let labels = Some(vec!["a".into(), "b".into(), "c".into()]);
        let other = EncoderConfig::read(bert(), Some(Task::Sequence), labels).unwrap();
        assert_eq!((other.class(), other.classes()), ("BertForSequenceClassification".into(), 3));
        assert!(other.has_new_labels && other.stored_task == Some(Task::MaskedWords));
        assert!(EncoderConfig::read(bert(), Some(Task::Image), None).unwrap_err().contains("BertForImage"));
    }

    #[test]
    fn what_a_config_asks_for_and_is_not_known_is_refused_by_its_name() {
        for (name, value, word) in [
            ("architectures", json!(["BertForQuestionAnswering"]), "BertForQuestionAnswering"),
            ("architectures", json!(["BertModel"]), "--task"),
            ("position_embedding_type", json!("relative_key"), "relative_key"),
            ("is_encoder_decoder", json!(true), "is_encoder_decoder"),
            ("rope_theta", json!(1.0), "rope_theta"),
            ("num_attention_heads", json!(3), "3 heads"),
            ("hidden_dropout_prob", json!(1.5), "1.5"),
            ("problem_type", json!("regression"), "regression"),
            ("tie_word_embeddings", json!(false), "tie_word_embeddings"),
        ] {
            let mut all = bert();
            all[name] = value;
            let why = EncoderConfig::read(all, None, None).unwrap_err();
            assert!(why.contains(word), "{name}: {why}");
        }
    }
}
