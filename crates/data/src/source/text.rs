//! Turns a text into windows of tokens, each with the tokens that follow.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use plimsoll_formats::FileError;
use plimsoll_graph::DType;

use super::array::read_at;
use super::{Scratch, Source};
use crate::error::{Error, Result};
use crate::sample::{FieldSpec, SampleMut};

/// What a token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tokens {
    /// A byte; there are 256.
    Bytes,
    /// A character; there are as many as the text has, numbered in the order of Unicode.
    Characters,
}

/// Characters between two places that are kept, so that a window is found by reading few of them.
const PLACES: u64 = 1024;

/// Windows of a text, one after the other: `x` has the tokens of the window, `y` the tokens one later.
pub(crate) struct Text {
    file: File,
    path: PathBuf,
    window: usize,
    /// Tokens in all.
    tokens: u64,
    characters: Option<Characters>,
    spec: Vec<FieldSpec>,
}

struct Characters {
    /// All that occur, sorted.
    alphabet: Vec<char>,
    /// Where every so many-th character begins.
    places: Vec<u64>,
    bytes: u64,
}

impl Text {
    pub fn new(path: &Path, tokens: Tokens, window: usize) -> Result<Text> {
        let io = |error| FileError::io(path, error);
        let file = File::open(path).map_err(io)?;
        let bytes = file.metadata().map_err(io)?.len();
        let (tokens, characters) = match tokens {
            Tokens::Bytes => (bytes, None),
            Tokens::Characters => {
                let (count, characters) = scan(path, bytes)?;
                (count, Some(characters))
            }
        };
        if window == 0 || tokens <= window as u64 {
            let what = format!("its {tokens} tokens do not make a window of {window} and the token after it");
            return Err(Error::Unknown { path: path.display().to_string(), what });
        }
        let spec = ["x", "y"].map(|name| FieldSpec::new(name, DType::I64, [window])).to_vec();
        Ok(Text { file, path: path.to_owned(), window, tokens, characters, spec })
    }
}

/// Counts the characters of a text and notes where some of them begin.
fn scan(path: &Path, bytes: u64) -> Result<(u64, Characters)> {
    let io = |error| FileError::io(path, error);
    let mut reader = BufReader::with_capacity(64 << 10, File::open(path).map_err(io)?);
    let (mut alphabet, mut places, mut count, mut at) = (BTreeSet::new(), Vec::new(), 0u64, 0u64);
    let mut block = vec![0; 64 << 10];
    let mut kept = 0;
    loop {
        let read = reader.read(&mut block[kept..]).map_err(io)?;
        let end = kept + read;
        let (text, used) = match std::str::from_utf8(&block[..end]) {
            Ok(text) => (text, end),
            // A character may be cut by the end of the block, but not by the end of the file.
            Err(error) if error.error_len().is_none() && read > 0 => {
                let valid = error.valid_up_to();
                (std::str::from_utf8(&block[..valid]).unwrap_or(""), valid)
            }
            Err(error) => {
                let place = at + error.valid_up_to() as u64;
                return Err(
                    FileError::damaged(path, format!("byte {place} is not UTF-8; read it as bytes")).into()
                );
            }
        };
        for (offset, character) in text.char_indices() {
            if count.is_multiple_of(PLACES) {
                places.push(at + offset as u64);
            }
            count += 1;
            alphabet.insert(character);
        }
        block.copy_within(used..end, 0);
        (kept, at) = (end - used, at + used as u64);
        if read == 0 {
            return Ok((count, Characters { alphabet: alphabet.into_iter().collect(), places, bytes }));
        }
    }
}

impl Source for Text {
    fn spec(&self) -> &[FieldSpec] {
        &self.spec
    }

    fn len(&self) -> u64 {
        (self.tokens - 1) / self.window as u64
    }

    fn read(&self, index: u64, scratch: &mut Scratch, out: &mut SampleMut<'_>) -> Result<()> {
        let (window, first) = (self.window, index * self.window as u64);
        let failed = |error| Error::File(FileError::io(&self.path, error).at(index));
        let mut put = |at: usize, token: i64| -> Result<()> {
            if at < window {
                out.get_mut::<i64>(0)?[at] = token;
            }
            if at > 0 {
                out.get_mut::<i64>(1)?[at - 1] = token;
            }
            Ok(())
        };
        let Some(characters) = &self.characters else {
            scratch.bytes.resize(window + 1, 0);
            read_at(&self.file, &mut scratch.bytes, first).map_err(failed)?;
            return scratch.bytes.iter().enumerate().try_for_each(|(at, &byte)| put(at, byte.into()));
        };
        let place = (first / PLACES) as usize;
        let last = ((first + window as u64) / PLACES + 1) as usize;
        let (start, end) =
            (characters.places[place], characters.places.get(last).copied().unwrap_or(characters.bytes));
        scratch.bytes.resize((end - start) as usize, 0);
        read_at(&self.file, &mut scratch.bytes, start).map_err(failed)?;
        let changed = || {
            Error::File(FileError::damaged_at(&self.path, index, "the text has changed since it was opened"))
        };
        let text = std::str::from_utf8(&scratch.bytes).map_err(|_| changed())?;
        let mut found = 0;
        for (at, character) in text.chars().skip((first % PLACES) as usize).take(window + 1).enumerate() {
            let token = characters.alphabet.binary_search(&character).map_err(|_| changed())?;
            put(at, token as i64)?;
            found += 1;
        }
        if found == window + 1 { Ok(()) } else { Err(changed()) }
    }

    fn notes(&self) -> Vec<String> {
        match (self.tokens - 1) % self.window as u64 {
            0 => Vec::new(),
            rest => vec![format!(
                "the last {rest} tokens do not fill a window of {} and are left out",
                self.window
            )],
        }
    }

    fn files(&self) -> Vec<PathBuf> {
        vec![self.path.clone()]
    }

    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn held(&self) -> u64 {
        self.characters.as_ref().map_or(0, |c| (c.alphabet.len() * 4 + c.places.len() * 8) as u64)
    }

    fn scratch_bytes(&self) -> u64 {
        // A character has at most four bytes.
        4 * (self.window as u64 + 2 * PLACES)
    }
}
