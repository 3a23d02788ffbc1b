//! Turns a `.jsonl` file into its objects, one a line, or a `.txt` file into its paragraphs, and says which line is wrong.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::error::{Error, Result};

/// Bytes of a line at most: a longer one is no sample.
const LONGEST_LINE: u64 = 256 << 20;

/// The objects of a file.
pub(crate) struct Lines {
    path: PathBuf,
    lines: BufReader<File>,
    /// The line that was read last, from 1; of a paragraph, its first.
    pub(crate) line: u64,
    /// Lines before the next.
    passed: u64,
    /// Whether it is plain text, whose samples are what stands between empty lines.
    is_plain: bool,
    buffer: Vec<u8>,
}

impl Lines {
    /// Opens a file whose lines should be objects with `wanted`.
    pub(crate) fn open(path: &Path, wanted: &str) -> Result<Lines> {
        let is_plain = path.extension().is_some_and(|end| end == "txt");
        if !is_plain && path.extension().is_none_or(|end| end != "jsonl" && end != "json") {
            return Err(Error::file(
                path,
                format!(
                    "texts are read from .jsonl, an object a line with {wanted}, or from .txt with an empty line between texts"
                ),
            ));
        }
        let file = File::open(path).map_err(Error::io(path))?;
        Ok(Lines {
            path: path.into(),
            lines: BufReader::with_capacity(1 << 16, file),
            line: 0,
            passed: 0,
            is_plain,
            buffer: Vec::new(),
        })
    }

    /// Adds the next line to the buffer; whether there is one.
    fn next(&mut self) -> Result<bool> {
        let left = (LONGEST_LINE + 1).saturating_sub(self.buffer.len() as u64);
        let mut limited = (&mut self.lines).take(left);
        let n = limited.read_until(b'\n', &mut self.buffer).map_err(Error::io(&self.path))?;
        self.passed += u64::from(n > 0);
        Ok(n > 0)
    }

    /// Refuses what is longer than any sample.
    fn check_length(&self) -> Result<()> {
        if self.buffer.len() as u64 <= LONGEST_LINE {
            return Ok(());
        }
        Err(self.wrong(format!("it has more than {LONGEST_LINE} bytes")))
    }

    /// The next paragraph, as an object with `text`.
    fn paragraph(&mut self) -> Result<Option<Value>> {
        self.buffer.clear();
        loop {
            let (before, first) = (self.buffer.len(), self.passed + 1);
            let is_more = self.next()?;
            let is_empty = self.buffer[before..].trim_ascii().is_empty();
            if before == 0 {
                self.line = first;
            }
            self.check_length()?;
            match (is_more, is_empty, before) {
                (false, _, 0) => return Ok(None),
                (true, true, 0) => self.buffer.clear(),
                (true, false, _) => {}
                _ => {
                    let text = std::str::from_utf8(&self.buffer[..before]);
                    let text = text.map_err(|e| self.wrong(format!("it is no UTF-8: {e}")))?;
                    return Ok(Some(json!({ "text": text.trim_end() })));
                }
            }
        }
    }

    /// The next object; none at the end. Empty lines are passed over. After an error of a line the next one can be read.
    pub(crate) fn read(&mut self) -> Result<Option<Value>> {
        if self.is_plain {
            return self.paragraph();
        }
        loop {
            self.buffer.clear();
            if !self.next()? {
                return Ok(None);
            }
            self.line = self.passed;
            self.check_length()?;
            if !self.buffer.trim_ascii().is_empty() {
                let value = serde_json::from_slice(&self.buffer);
                return value.map(Some).map_err(|e| self.wrong(format!("it is no JSON object: {e}")));
            }
        }
    }

    /// What is wrong with the line that was read last.
    pub(crate) fn wrong(&self, why: impl Into<String>) -> Error {
        Error::Line { path: self.path.clone(), line: self.line, why: why.into() }
    }

    /// Refuses a text with a token that the model does not have.
    pub(crate) fn check(&self, tokens: &[u32], vocabulary: usize) -> Result<()> {
        match tokens.iter().find(|token| **token as usize >= vocabulary) {
            Some(token) => {
                Err(self.wrong(format!("token {token} is outside the model's vocabulary of {vocabulary}")))
            }
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paragraphs_of_a_text_are_its_samples() {
        let folder = std::env::temp_dir().join(format!("plimsoll-paragraphs-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("book.txt");
        std::fs::write(&path, b"\n\nOnce there\nwas a card.\n \n\nIt was small.\n\n\xff\nlast").unwrap();
        let mut lines = Lines::open(&path, "text").unwrap();
        let mut next = || lines.read().map(|found| (found, lines.line));
        assert_eq!(next().unwrap(), (Some(json!({ "text": "Once there\nwas a card." })), 3));
        assert_eq!(next().unwrap(), (Some(json!({ "text": "It was small." })), 7));
        assert!(next().unwrap_err().to_string().contains("line 9"), "what is no text is named by its line");
        assert_eq!(next().unwrap().0, None);
        assert!(Lines::open(&folder.join("book.pdf"), "text").is_err_and(|e| e.to_string().contains(".txt")));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
