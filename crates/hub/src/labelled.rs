//! Turns texts with labels, or texts of which words are hidden, into rows for an encoder: one text a row, filled up.
//!
//! A row has tokens, whether each is one, labels, and whether each label counts. Which words are hidden follows from the row's number
//! alone, so that a run that is resumed learns the same.

use std::collections::HashMap;
use std::path::Path;

use plimsoll_formats::Element;
use serde_json::Value;

use crate::config::{EncoderConfig, EncoderInput, Task};
use crate::error::{Error, Result};
use crate::lines::Lines;
use crate::row_files::{RowFiles, bytes_of};
use crate::rows::Packed;
use crate::tokenizer::{Encoded, Tokenizer};

/// The files of rows, in the order of a sample's fields.
pub const LABELLED_FIELDS: [&str; 4] = ["tokens", "seen", "labels", "weights"];

/// Of a hundred words so many are learnt; of those, most are hidden, some are replaced by others, the rest stay.
const LEARNT: u64 = 15;
const HIDDEN: u64 = 80;
const REPLACED: u64 = 10;

/// Rows of an encoder, being written.
pub struct LabelledRows<'a> {
    config: &'a EncoderConfig,
    tokenizer: &'a Tokenizer,
    length: usize,
    vocabulary: usize,
    pad: u32,
    seed: u64,
    labels: HashMap<&'a str, i32>,
    files: RowFiles,
    packed: Packed,
}

/// A text as a row: tokens, labels, and whether each label counts.
#[derive(Default)]
struct Row {
    tokens: Vec<u32>,
    labels: Vec<i32>,
    weights: Vec<f32>,
}

impl<'a> LabelledRows<'a> {
    /// Rows of so many tokens, as files of a folder.
    ///
    /// # Errors
    /// The config is not one of texts, or words are to be hidden and the tokenizer has no token for that.
    pub fn create(
        folder: &Path,
        config: &'a EncoderConfig,
        tokenizer: &'a Tokenizer,
        length: usize,
        seed: u64,
    ) -> Result<LabelledRows<'a>> {
        let EncoderInput::Text { vocabulary, pad, .. } = config.input else {
            return Err(Error::Asked("an encoder of pictures reads no texts".into()));
        };
        if config.task == Task::MaskedWords && tokenizer.mask.is_none() {
            let why = "tokenizer_config.json names no mask_token, which hides words";
            return Err(Error::Asked(why.into()));
        }
        // Both ends of a text and something between them.
        if length < 3 {
            return Err(Error::Asked(format!("rows of {length} tokens have no room for a text")));
        }
        let labels = LABELLED_FIELDS[2];
        let wide = if config.task == Task::Sequence { 1 } else { length };
        let fields = vec![
            (LABELLED_FIELDS[0], Element::I32, length),
            (LABELLED_FIELDS[1], Element::I32, length),
            (labels, Element::I32, wide),
            (LABELLED_FIELDS[3], Element::F32, wide),
        ];
        let files = RowFiles::create(folder, fields)?;
        let names = config.labels.iter().enumerate().map(|(i, label)| (label.as_str(), i as i32)).collect();
        let packed = Packed::default();
        Ok(LabelledRows { config, tokenizer, length, vocabulary, pad, seed, labels: names, files, packed })
    }

    /// Reads all lines of a file. Lines that are wrong are passed over where `skips`, which is told of each.
    ///
    /// # Errors
    /// The file cannot be read; or a line is wrong.
    pub fn read(&mut self, path: &Path, mut skips: impl FnMut(&Error) -> bool) -> Result<()> {
        let wanted = match self.config.task {
            Task::MaskedWords => "text",
            Task::Sequence => "text and label",
            _ => "tokens and labels",
        };
        let mut lines = Lines::open(path, wanted)?;
        loop {
            let read = lines.read().and_then(|value| match value {
                Some(value) => self.add(&lines, &value).map(|()| true),
                None => Ok(false),
            });
            match read {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err(error @ Error::Line { .. }) if skips(&error) => self.packed.skipped += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// Writes how many rows there are.
    pub fn finish(self) -> Result<Packed> {
        self.files.finish(self.packed.rows)?;
        Ok(self.packed)
    }

    fn add(&mut self, lines: &Lines, value: &Value) -> Result<()> {
        let known: &[&str] = match self.config.task {
            Task::MaskedWords => &["text"],
            Task::Sequence => &["text", "label"],
            _ => &["tokens", "labels"],
        };
        let Some(map) = value.as_object() else { return Err(lines.wrong("it is no object")) };
        // A second text, say, would be read and not used.
        if let Some(other) = map.keys().find(|name| !known.contains(&name.as_str()) && *name != "id") {
            return Err(lines.wrong(format!("{other} is not known here; {} is read", known.join(", "))));
        }
        let rows = match self.config.task {
            Task::MaskedWords => self.hidden(lines, value)?,
            Task::Sequence => vec![self.sequence(lines, value)?],
            _ => vec![self.words(lines, value)?],
        };
        self.packed.samples += 1;
        for row in rows {
            self.write(row)?;
        }
        Ok(())
    }

    fn encoded(&self, lines: &Lines, value: &Value) -> Result<Encoded> {
        let Some(text) = value["text"].as_str() else { return Err(lines.wrong("text must be a string")) };
        let encoded = self.tokenizer.encode(text, true).map_err(|e| lines.wrong(e.to_string()))?;
        lines.check(&encoded.tokens, self.vocabulary)?;
        match encoded.spans.iter().any(|(from, to)| from < to) {
            true => Ok(encoded),
            false => Err(lines.wrong("there is nothing in it to learn")),
        }
    }

    fn label(&self, lines: &Lines, value: &Value) -> Result<i32> {
        let n = self.config.labels.len();
        let number = value.as_u64().filter(|i| (*i as usize) < n).map(|i| i as i32);
        let named = value.as_str().and_then(|name| self.labels.get(name).copied());
        number.or(named).ok_or_else(|| {
            let some: Vec<&str> = self.config.labels.iter().take(8).map(String::as_str).collect();
            lines.wrong(format!(
                "{value} is none of the {n} labels ({}); name others with --labels",
                some.join(", ")
            ))
        })
    }

    /// One label a text. A text that is too long loses what is before its last token, which ends it.
    fn sequence(&mut self, lines: &Lines, value: &Value) -> Result<Row> {
        let mut tokens = self.encoded(lines, value)?.tokens;
        let label = self.label(lines, &value["label"])?;
        if tokens.len() > self.length {
            tokens.drain(self.length - 1..tokens.len() - 1);
            self.packed.truncated += 1;
        }
        Ok(Row { tokens, labels: vec![label], weights: vec![1.0] })
    }

    /// One label a word, which its first token has.
    fn words(&mut self, lines: &Lines, value: &Value) -> Result<Row> {
        let (Some(words), Some(labels)) = (value["tokens"].as_array(), value["labels"].as_array()) else {
            return Err(lines.wrong("tokens and labels must be lists"));
        };
        if words.len() != labels.len() || words.is_empty() {
            return Err(lines.wrong(format!("it has {} tokens and {} labels", words.len(), labels.len())));
        }
        let words: Option<Vec<String>> = words.iter().map(|word| word.as_str().map(String::from)).collect();
        let words = words.ok_or_else(|| lines.wrong("tokens must be a list of strings"))?;
        let of_words = labels.iter().map(|label| self.label(lines, label)).collect::<Result<Vec<i32>>>()?;
        let (tokens, own) = self.tokenizer.encode_words(&words).map_err(|e| lines.wrong(e.to_string()))?;
        lines.check(&tokens, self.vocabulary)?;
        let (mut row, mut before) = (Row::default(), None);
        for (token, word) in tokens.into_iter().zip(own) {
            let is_first = word.is_some() && word != before;
            before = word;
            row.tokens.push(token);
            row.labels.push(word.filter(|_| is_first).map_or(0, |word| of_words[word as usize]));
            row.weights.push(f32::from(u8::from(is_first)));
        }
        if row.tokens.len() > self.length {
            self.packed.truncated += 1;
            row.tokens.truncate(self.length);
            row.labels.truncate(self.length);
            row.weights.truncate(self.length);
        }
        match row.weights.iter().any(|weight| *weight > 0.0) {
            true => Ok(row),
            false => Err(lines.wrong("there is nothing in it to learn")),
        }
    }

    /// A text as rows of which some words are hidden; a long one goes on in the next row, between the same ends.
    fn hidden(&mut self, lines: &Lines, value: &Value) -> Result<Vec<Row>> {
        let Encoded { tokens, spans } = self.encoded(lines, value)?;
        let is_end = |(from, to): &(usize, usize)| from == to;
        let before = spans.iter().take_while(|span| is_end(span)).count();
        let after = spans.iter().rev().take_while(|span| is_end(span)).count();
        let (start, own, end) =
            (&tokens[..before], &tokens[before..tokens.len() - after], &tokens[tokens.len() - after..]);
        let Some(room) = self.length.checked_sub(before + after).filter(|room| *room > 0) else {
            return Err(lines
                .wrong(format!("a row of {} tokens has no room between the ends of a text", self.length)));
        };
        let mut rows = Vec::new();
        for (i, part) in own.chunks(room).enumerate() {
            let number = self.packed.rows + i as u64;
            let mut row = Row::default();
            let mut put = |token: u32, label: u32, weight: f32| {
                row.tokens.push(token);
                row.labels.push(label as i32);
                row.weights.push(weight);
            };
            start.iter().for_each(|token| put(*token, 0, 0.0));
            // Something is learnt of every row.
            let sure = drawn(self.seed, number, u64::MAX) as usize % part.len();
            for (at, token) in part.iter().enumerate() {
                let draw = drawn(self.seed, number, at as u64);
                let is_learnt = at == sure || draw % 100 < LEARNT;
                let given = match (is_learnt, draw / 100 % 100) {
                    (false, _) => *token,
                    (true, n) if n < HIDDEN => self.tokenizer.mask.unwrap_or(*token),
                    (true, n) if n < HIDDEN + REPLACED => ((draw / 10_000) % self.vocabulary as u64) as u32,
                    _ => *token,
                };
                put(given, if is_learnt { *token } else { 0 }, f32::from(u8::from(is_learnt)));
            }
            end.iter().for_each(|token| put(*token, 0, 0.0));
            rows.push(row);
        }
        Ok(rows)
    }

    fn write(&mut self, mut row: Row) -> Result<()> {
        let n = row.tokens.len();
        self.packed.filled += n as u64;
        self.packed.learnt += row.weights.iter().filter(|weight| **weight > 0.0).count() as u64;
        self.packed.rows += 1;
        row.tokens.resize(self.length, self.pad);
        if row.labels.len() > 1 || self.config.task != Task::Sequence {
            row.labels.resize(self.length, 0);
            row.weights.resize(self.length, 0.0);
        }
        let seen: Vec<i32> = (0..self.length).map(|i| i32::from(i < n)).collect();
        let fields = [
            bytes_of(&row.tokens, u32::to_le_bytes),
            bytes_of(&seen, i32::to_le_bytes),
            bytes_of(&row.labels, i32::to_le_bytes),
            bytes_of(&row.weights, f32::to_le_bytes),
        ];
        self.files.write(fields.iter().map(Vec::as_slice))
    }
}

/// A number that follows from three, by SplitMix64.
fn drawn(seed: u64, row: u64, at: u64) -> u64 {
    let mut z = seed ^ row.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ at.wrapping_mul(0xd1b5_4a32_d192_ed03);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
