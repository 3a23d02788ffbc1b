//! Turns a `.jsonl` file into its objects, one a line, and says which line is wrong.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::error::{Error, Result};

/// Bytes of a line at most: a longer one is no sample.
const LONGEST_LINE: u64 = 256 << 20;

/// The objects of a file.
pub(crate) struct Lines {
    path: PathBuf,
    lines: BufReader<File>,
    /// The line that was read last, from 1.
    pub(crate) line: u64,
    buffer: Vec<u8>,
}

impl Lines {
    /// Opens a file whose lines should be objects with `wanted`.
    pub(crate) fn open(path: &Path, wanted: &str) -> Result<Lines> {
        if path.extension().is_none_or(|end| end != "jsonl" && end != "json") {
            return Err(Error::file(
                path,
                format!("texts are read from .jsonl: an object a line, with {wanted}"),
            ));
        }
        let file = File::open(path).map_err(Error::io(path))?;
        Ok(Lines {
            path: path.into(),
            lines: BufReader::with_capacity(1 << 16, file),
            line: 0,
            buffer: Vec::new(),
        })
    }

    /// The next object; none at the end. Empty lines are passed over. After an error of a line the next one can be read.
    pub(crate) fn read(&mut self) -> Result<Option<Value>> {
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
