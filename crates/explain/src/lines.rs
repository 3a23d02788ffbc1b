//! Turns any stream of bytes into lines of a bounded length.
//!
//! A log may be a gigabyte, one line of it may be too, and its bytes need not be text. A line longer than the limit is cut,
//! the rest of it skipped; what is no UTF-8 becomes the replacement character. A carriage return ends a line as well, since
//! progress bars write over themselves.

use std::io::{BufRead, Result};

/// The most of a line that is kept. XLA writes whole instructions into one line; nothing that matters is longer.
pub(crate) const LONGEST: usize = 1 << 16;

/// Lines of a stream.
pub(crate) struct Lines<R> {
    source: R,
    line: Vec<u8>,
    /// How many lines were read.
    pub count: u64,
}

impl<R: BufRead> Lines<R> {
    pub fn new(source: R) -> Lines<R> {
        Lines { source, line: Vec::new(), count: 0 }
    }

    /// Calls a function with each line until the end.
    pub fn each(&mut self, mut on_line: impl FnMut(u64, &str)) -> Result<()> {
        loop {
            self.line.clear();
            let more = self.read()?;
            if more || !self.line.is_empty() {
                self.count += 1;
                on_line(self.count, &String::from_utf8_lossy(&self.line));
            }
            if !more {
                return Ok(());
            }
        }
    }

    /// Reads up to the end of a line; false at the end of the stream.
    fn read(&mut self) -> Result<bool> {
        loop {
            let buffer = match self.source.fill_buf() {
                Ok(buffer) => buffer,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            if buffer.is_empty() {
                return Ok(false);
            }
            let end = buffer.iter().position(|&b| b == b'\n' || b == b'\r');
            let part = buffer.get(..end.unwrap_or(buffer.len())).unwrap_or(buffer);
            let room = LONGEST.saturating_sub(self.line.len()).min(part.len());
            self.line.extend_from_slice(part.get(..room).unwrap_or(&[]));
            let used = part.len() + usize::from(end.is_some());
            self.source.consume(used);
            if end.is_some() {
                return Ok(true);
            }
        }
    }
}

/// Notes the number of a line that was understood; whether it was.
pub(crate) fn noted(known: Option<()>, number: u64, last_line: &mut u64) -> bool {
    if known.is_some() {
        *last_line = number;
    }
    known.is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(bytes: &[u8]) -> Vec<String> {
        let mut found = Vec::new();
        Lines::new(std::io::BufReader::with_capacity(7, bytes))
            .each(|_, line| found.push(line.to_string()))
            .unwrap();
        found
    }

    #[test]
    fn a_line_ends_at_a_newline_a_return_or_the_end() {
        assert_eq!(lines(b"one\ntwo\rthree"), ["one", "two", "three"]);
        assert_eq!(lines(b""), Vec::<String>::new());
        assert_eq!(lines(b"\n\nx\n"), ["", "", "x"]);
    }

    #[test]
    fn a_long_line_is_cut_and_the_next_one_is_whole() {
        let mut bytes = vec![b'a'; 3 * LONGEST];
        bytes.extend(b"\nnext");
        let found = lines(&bytes);
        assert_eq!((found[0].len(), found[1].as_str()), (LONGEST, "next"));
    }

    #[test]
    fn bytes_that_are_no_text_do_not_hide_the_text_around_them() {
        assert_eq!(lines(b"a\xff\xfeb"), ["a\u{fffd}\u{fffd}b"]);
    }
}
