//! Turns a stream into one that tells of its first failure and takes whatever comes after it without a word.

use std::io::{self, Seek, SeekFrom, Write};

/// A stream of which only the first failure is told: whoever heard of it knows that the rest is lost. Places are counted on, since whoever writes may hold
/// them against each other.
pub(super) struct FirstFailure<W> {
    out: W,
    at: u64,
    end: u64,
    has_failed: bool,
}

impl<W> FirstFailure<W> {
    /// Around a stream that is at its beginning.
    pub(super) fn new(out: W) -> FirstFailure<W> {
        FirstFailure { out, at: 0, end: 0, has_failed: false }
    }

    fn told<T>(&mut self, done: io::Result<T>) -> io::Result<T> {
        // Whoever is interrupted tries again.
        self.has_failed |= done.as_ref().is_err_and(|why| why.kind() != io::ErrorKind::Interrupted);
        done
    }
}

impl<W: Write> Write for FirstFailure<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let done = if self.has_failed { Ok(bytes.len()) } else { self.out.write(bytes) };
        // A stream without room for a byte more has failed, too.
        self.has_failed |= matches!(done, Ok(0)) && !bytes.is_empty();
        let count = self.told(done)?;
        self.at += count as u64;
        self.end = self.end.max(self.at);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        let done = if self.has_failed { Ok(()) } else { self.out.flush() };
        self.told(done)
    }
}

impl<W: Seek> Seek for FirstFailure<W> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let done = match to {
            _ if !self.has_failed => self.out.seek(to),
            SeekFrom::Start(at) => Ok(at),
            SeekFrom::Current(by) => Ok(self.at.saturating_add_signed(by)),
            SeekFrom::End(by) => Ok(self.end.saturating_add_signed(by)),
        };
        self.at = self.told(done)?;
        Ok(self.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_failure_is_told() {
        let mut room = [0; 3];
        let mut out = FirstFailure::new(io::Cursor::new(&mut room[..]));
        assert_eq!(out.write(b"ab").unwrap(), 2);
        assert_eq!(out.write_all(b"cd").unwrap_err().kind(), io::ErrorKind::WriteZero);
        assert_eq!((out.write(b"ef").unwrap(), out.stream_position().unwrap()), (2, 5));
        assert_eq!((out.seek(SeekFrom::Start(1)).unwrap(), out.seek(SeekFrom::End(-1)).unwrap()), (1, 4));
        assert!(out.flush().is_ok());
        assert_eq!(&room, b"abc");
    }
}
