//! Turns texts into tokens and back, by a folder's `tokenizer.json`, and conversations into texts, by its template.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::chat::Template;
use crate::config::{read_json, read_small};
use crate::error::{Error, Result};

/// Bytes of a `tokenizer.json` at most; the largest published ones have 35 megabytes.
const LARGEST: u64 = 512 << 20;
/// Bytes of a `tokenizer_config.json` at most.
const LARGEST_CONFIG: u64 = 64 << 20;

/// A text as tokens, each with the bytes of the text that it stands for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Encoded {
    /// The tokens.
    pub tokens: Vec<u32>,
    /// The bytes of each; none of those that no text stands for.
    pub spans: Vec<(usize, usize)>,
}

/// A folder's tokenizer.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    path: PathBuf,
    /// Its template for conversations, where it has one.
    pub template: Option<Template>,
    /// The token that ends a text, where the tokenizer names one.
    pub eos: Option<u32>,
    /// The token that hides another, where the tokenizer names one.
    pub mask: Option<u32>,
}

impl Tokenizer {
    /// Reads a folder's `tokenizer.json`, `tokenizer_config.json` and `chat_template.jinja`, where they are.
    pub fn open(folder: &Path) -> Result<Tokenizer> {
        let path = folder.join("tokenizer.json");
        if !path.is_file() {
            let why = "it has no tokenizer.json; save the tokenizer with transformers' save_pretrained, which writes one";
            return Err(Error::file(folder, why));
        }
        let bytes = read_small(&path, LARGEST)?;
        let read = tokenizers::Tokenizer::from_bytes(bytes);
        let mut inner = read.map_err(|e| Error::file(&path, format!("it is no tokenizer: {e}")))?;
        // What a file says of lengths is for batches of others.
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|e| Error::file(&path, e.to_string()))?;
        let settings = folder.join("tokenizer_config.json");
        let settings = if settings.is_file() { read_json(&settings, LARGEST_CONFIG)? } else { Value::Null };
        let named = |name: &str| word(&settings[name]).and_then(|token| inner.token_to_id(&token));
        let (eos, mask) = (named("eos_token"), named("mask_token"));
        let template = Template::find(folder, &settings)?;
        Ok(Tokenizer { inner, path, template, eos, mask })
    }

    /// Tokens of a text; with those that the tokenizer puts around every text, where it does.
    pub fn encode(&self, text: &str, is_whole: bool) -> Result<Encoded> {
        let wrong =
            |e: tokenizers::Error| Error::file(&self.path, format!("a text cannot be tokenised: {e}"));
        let encoding = self.inner.encode(text, is_whole).map_err(wrong)?;
        Ok(Encoded { tokens: encoding.get_ids().to_vec(), spans: encoding.get_offsets().to_vec() })
    }

    /// Tokens of words, with those that the tokenizer puts around every text; and of each the number of its word.
    pub fn encode_words(&self, words: &[String]) -> Result<(Vec<u32>, Vec<Option<u32>>)> {
        let wrong = |e: tokenizers::Error| Error::file(&self.path, format!("words cannot be tokenised: {e}"));
        let encoding = self.inner.encode(words, true).map_err(wrong)?;
        Ok((encoding.get_ids().to_vec(), encoding.get_word_ids().to_vec()))
    }

    /// The text of tokens, without those that no text stands for.
    pub fn decode(&self, tokens: &[u32]) -> Result<String> {
        let wrong = |e: tokenizers::Error| Error::file(&self.path, format!("tokens are no text: {e}"));
        self.inner.decode(tokens, true).map_err(wrong)
    }

    /// Refuses a tokenizer that has tokens which a model of so many has not.
    pub fn fits(&self, vocabulary: usize) -> Result<()> {
        let most = self.inner.get_vocab(true).into_iter().max_by_key(|(_, id)| *id);
        match most {
            Some((token, id)) if id as usize >= vocabulary => {
                let why = format!(
                    "its token {token:?} is number {id}, outside the model's vocabulary of {vocabulary}"
                );
                Err(Error::file(&self.path, why))
            }
            _ => Ok(()),
        }
    }
}

/// A token of `tokenizer_config.json`: a string, or an object with its content.
pub(crate) fn word(value: &Value) -> Option<String> {
    value.as_str().or(value["content"].as_str()).map(String::from)
}
