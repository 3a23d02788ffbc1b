//! Turns a stream of bytes into the operands of a pickle's instructions: numbers, lengths, lines.

use std::io::{BufRead, ErrorKind};

use crate::value::Full;

/// Why a pickle was not read.
#[derive(Debug)]
pub(crate) enum Problem {
    Io(std::io::Error),
    Code { at: u64, op: &'static str, what: String },
    Damaged { at: u64, why: String },
    Full,
}

impl From<Full> for Problem {
    fn from(_: Full) -> Problem {
        Problem::Full
    }
}

/// The longest line of a text instruction that is no string.
const LINE: usize = 1 << 16;

/// A pickle's bytes, and how many of them were read.
pub(crate) struct Tape<R> {
    pub source: R,
    pub at: u64,
}

impl<R: BufRead> Tape<R> {
    pub fn damaged(&self, why: &str) -> Problem {
        Problem::Damaged { at: self.at, why: why.to_string() }
    }

    pub fn byte(&mut self) -> Result<u8, Problem> {
        Ok(self.fixed::<1>()?[0])
    }

    pub fn fixed<const N: usize>(&mut self) -> Result<[u8; N], Problem> {
        let mut bytes = [0; N];
        match self.source.read_exact(&mut bytes) {
            Ok(()) => {
                self.at += N as u64;
                Ok(bytes)
            }
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Err(self.damaged("it breaks off")),
            Err(error) => Err(Problem::Io(error)),
        }
    }

    pub fn length4(&mut self) -> Result<u64, Problem> {
        Ok(u64::from(u32::from_le_bytes(self.fixed::<4>()?)))
    }

    pub fn skip(&mut self, count: u64) -> Result<(), Problem> {
        self.each_part(count, |_| ())
    }

    /// Hands over so many bytes as they come; memory grows with what is there, not with what a length claims.
    pub fn each_part(&mut self, mut count: u64, mut take: impl FnMut(&[u8])) -> Result<(), Problem> {
        while count > 0 {
            let buffer = match self.source.fill_buf() {
                Ok([]) => return Err(self.damaged("it breaks off")),
                Ok(buffer) => buffer,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(Problem::Io(error)),
            };
            let length = usize::try_from(count).unwrap_or(usize::MAX).min(buffer.len());
            take(buffer.get(..length).unwrap_or(buffer));
            self.source.consume(length);
            self.at += length as u64;
            count -= length as u64;
        }
        Ok(())
    }

    /// A line of a text instruction. Protocol 0 writes the first 256 characters as one byte each.
    pub fn line(&mut self) -> Result<String, Problem> {
        let mut bytes = Vec::new();
        loop {
            match self.byte()? {
                b'\n' => return Ok(bytes.iter().map(|byte| char::from(*byte)).collect()),
                _ if bytes.len() >= LINE => return Err(self.damaged("a line of more than 64 KiB")),
                byte => bytes.push(byte),
            }
        }
    }

    pub fn line_number(&mut self) -> Result<u64, Problem> {
        let line = self.line()?;
        line.trim().parse().map_err(|_| self.damaged("a number that is none"))
    }
}

/// A text of protocol 0: in quotes or not, with Python's escapes. What is no known escape stays as it is.
pub(crate) fn unquote(line: &str) -> String {
    let quoted = ['\'', '"'].iter().find_map(|quote| line.strip_prefix(*quote)?.strip_suffix(*quote));
    let mut text = String::new();
    let mut rest = quoted.unwrap_or(line);
    while let Some(at) = rest.find('\\') {
        text.push_str(rest.get(..at).unwrap_or(""));
        let escape = rest.get(at + 1..).unwrap_or("");
        let (digits, simple) = match escape.bytes().next() {
            Some(b'x') => (2, None),
            Some(b'u') => (4, None),
            Some(b'U') => (8, None),
            Some(b'n') => (0, Some('\n')),
            Some(b't') => (0, Some('\t')),
            Some(b'r') => (0, Some('\r')),
            Some(quote @ (b'\\' | b'\'' | b'"')) => (0, Some(char::from(quote))),
            _ => (0, None),
        };
        let code = escape
            .get(1..1 + digits)
            .and_then(|hex| u32::from_str_radix(hex, 16).ok())
            .and_then(char::from_u32);
        match simple.or(code.filter(|_| digits > 0)) {
            Some(character) => {
                text.push(character);
                rest = escape.get(1 + digits..).unwrap_or("");
            }
            None => {
                text.push('\\');
                rest = escape;
            }
        }
    }
    text + rest
}
