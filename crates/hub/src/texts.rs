//! Turns the lines of a `.jsonl` file into tokens, and says which of them are to be learnt.

use std::path::Path;

use serde_json::Value;

use crate::chat::Message;
use crate::error::{Error, Result};
use crate::lines::Lines;
use crate::tokenizer::{Encoded, Tokenizer};

/// A text as tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// Whether each is to be learnt.
    pub counts: Vec<bool>,
    /// Whether it may be cut anywhere: a plain text, and no answer to something.
    pub is_text: bool,
}

/// The samples of a `.jsonl` file, one a line: an object with `text`, with `prompt` and `completion`, or with `messages`.
pub struct Texts<'a> {
    tokenizer: &'a Tokenizer,
    lines: Lines,
    /// The token behind a text that is complete.
    eos: Option<u32>,
    vocabulary: usize,
}

impl<'a> Texts<'a> {
    /// Opens a file.
    pub fn open(
        path: &Path,
        tokenizer: &'a Tokenizer,
        eos: Option<u32>,
        vocabulary: usize,
    ) -> Result<Texts<'a>> {
        let lines = Lines::open(path, "text, with prompt and completion, or with messages")?;
        Ok(Texts { tokenizer, lines, eos, vocabulary })
    }

    /// The line that was read last, from 1.
    pub fn line(&self) -> u64 {
        self.lines.line
    }

    /// The next sample; none at the end. Empty lines are passed over. After an error of a line the next one can be read.
    pub fn read(&mut self) -> Result<Option<Sample>> {
        match self.lines.read()? {
            Some(value) => self.sample(&value).map(Some),
            None => Ok(None),
        }
    }

    fn wrong(&self, why: impl Into<String>) -> Error {
        self.lines.wrong(why)
    }

    fn sample(&self, value: &Value) -> Result<Sample> {
        let text = |name: &str| match &value[name] {
            Value::Null => Ok(None),
            Value::String(text) => Ok(Some(text.clone())),
            _ => Err(self.wrong(format!("{name} must be a string"))),
        };
        let (plain, prompt, completion) = (text("text")?, text("prompt")?, text("completion")?);
        let kinds = [plain.is_some(), prompt.is_some() || completion.is_some(), !value["messages"].is_null()];
        if kinds.iter().filter(|is| **is).count() > 1 {
            return Err(
                self.wrong("it has more than one of text, prompt and messages; which is meant is not known")
            );
        }
        let sample = match (plain, prompt, completion) {
            (Some(text), ..) => self.plain(&text)?,
            (_, Some(prompt), Some(completion)) => self.answered(&prompt, &completion)?,
            (_, Some(_), None) => return Err(self.wrong("it has a prompt and no completion")),
            (_, None, Some(_)) => return Err(self.wrong("it has a completion and no prompt")),
            _ if kinds[2] => self.conversation(&value["messages"])?,
            _ => return Err(self.wrong("it has none of text, prompt and completion, and messages")),
        };
        self.lines.check(&sample.tokens, self.vocabulary)?;
        match sample.counts.iter().skip(1).any(|counts| *counts) {
            true => Ok(sample),
            false => Err(self.wrong("there is nothing in it to learn")),
        }
    }

    fn encoded(&self, text: &str, is_whole: bool) -> Result<Encoded> {
        self.tokenizer.encode(text, is_whole).map_err(|e| self.wrong(e.to_string()))
    }

    /// The token that ends a text behind it, unless the tokenizer has put one there.
    fn ended(&self, mut tokens: Vec<u32>, mut counts: Vec<bool>, is_text: bool) -> Sample {
        if let Some(eos) = self.eos
            && tokens.last() != Some(&eos)
        {
            tokens.push(eos);
            counts.push(true);
        }
        Sample { tokens, counts, is_text }
    }

    fn plain(&self, text: &str) -> Result<Sample> {
        let encoded = self.encoded(text, true)?;
        let counts = vec![true; encoded.tokens.len()];
        Ok(self.ended(encoded.tokens, counts, true))
    }

    fn answered(&self, prompt: &str, completion: &str) -> Result<Sample> {
        let encoded = self.encoded(&format!("{prompt}{completion}"), true)?;
        // A token across the border holds letters that are to be learnt.
        let counts = encoded.spans.iter().map(|(_, end)| *end > prompt.len()).collect();
        Ok(self.ended(encoded.tokens, counts, false))
    }

    fn conversation(&self, messages: &Value) -> Result<Sample> {
        let messages: Vec<Message> = serde_json::from_value(messages.clone()).map_err(|e| {
            self.wrong(format!("messages must be a list of objects with role and content: {e}"))
        })?;
        let Some(template) = &self.tokenizer.template else {
            return Err(
                self.wrong("it has messages, and the folder has no chat_template to make a text of them")
            );
        };
        let rendered = template.render_whole(&messages).map_err(|e| self.wrong(e.to_string()))?;
        // The template has put what stands around a text there itself.
        let encoded = self.encoded(&rendered.text, false)?;
        let is_own =
            |(from, to): &(usize, usize)| rendered.own.iter().any(|(a, b)| from >= a && to <= b && from < to);
        let counts = encoded.spans.iter().map(is_own).collect();
        Ok(Sample { tokens: encoded.tokens, counts, is_text: false })
    }
}
