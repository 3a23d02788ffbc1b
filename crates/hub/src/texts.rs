//! Turns the lines of a `.jsonl` file into tokens, and says which of them are to be learnt.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::chat::Message;
use crate::error::{Error, Result};
use crate::tokenizer::{Encoded, Tokenizer};

/// Bytes of a line at most: a longer one is no sample.
const LONGEST_LINE: u64 = 256 << 20;

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
    path: PathBuf,
    lines: BufReader<File>,
    line: u64,
    buffer: Vec<u8>,
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
        if path.extension().is_none_or(|end| end != "jsonl" && end != "json") {
            let why = "texts are read from .jsonl: an object a line, with text, with prompt and completion, or with messages";
            return Err(Error::file(path, why));
        }
        let file = File::open(path).map_err(Error::io(path))?;
        let lines = BufReader::with_capacity(1 << 16, file);
        Ok(Texts { tokenizer, path: path.into(), lines, line: 0, buffer: Vec::new(), eos, vocabulary })
    }

    /// The line that was read last, from 1.
    pub fn line(&self) -> u64 {
        self.line
    }

    /// The next sample; none at the end. Empty lines are passed over. After an error of a line the next one can be read.
    pub fn read(&mut self) -> Result<Option<Sample>> {
        loop {
            self.buffer.clear();
            let mut limited = (&mut self.lines).take(LONGEST_LINE + 1);
            let n = limited.read_until(b'\n', &mut self.buffer).map_err(Error::io(&self.path))?;
            if n == 0 {
                return Ok(None);
            }
            self.line += 1;
            if n as u64 > LONGEST_LINE {
                return Err(self.wrong(format!("it has more than {LONGEST_LINE} bytes")));
            }
            if !self.buffer.trim_ascii().is_empty() {
                return self.sample().map(Some);
            }
        }
    }

    fn wrong(&self, why: impl Into<String>) -> Error {
        Error::Line { path: self.path.clone(), line: self.line, why: why.into() }
    }

    fn sample(&self) -> Result<Sample> {
        let value: Value = serde_json::from_slice(&self.buffer)
            .map_err(|e| self.wrong(format!("it is no JSON object: {e}")))?;
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
        if let Some(token) = sample.tokens.iter().find(|token| **token as usize >= self.vocabulary) {
            return Err(
                self.wrong(format!("token {token} is outside the model's vocabulary of {}", self.vocabulary))
            );
        }
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
