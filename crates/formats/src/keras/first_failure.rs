//! Turns a stream into one that tells of its first failure and takes whatever comes after it without a word.

use std::io::{self, Seek, SeekFrom, Write};

/// A stream of which only the first failure is told: whoever heard of it knows that the rest is lost.
pub(super) struct FirstFailure<W> {
    out: W,
    has_failed: bool,
}

impl<W> FirstFailure<W> {
    pub(super) fn new(out: W) -> FirstFailure<W> {
        FirstFailure { out, has_failed: false }
    }

    fn told<T>(&mut self, done: io::Result<T>) -> io::Result<T> {
        // Whoever is interrupted tries again.
        self.has_failed |= done.as_ref().is_err_and(|why| why.kind() != io::ErrorKind::Interrupted);
        done
    }
}

impl<W: Write> Write for FirstFailure<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.has_failed {
            return Ok(bytes.len());
        }
        let done = self.out.write(bytes);
        self.told(done)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.has_failed {
            return Ok(());
        }
        let done = self.out.flush();
        self.told(done)
    }
}

impl<W: Seek> Seek for FirstFailure<W> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        if self.has_failed {
            return Ok(0);
        }
        let done = self.out.seek(to);
        self.told(done)
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
        assert!(out.seek(SeekFrom::Current(-9)).is_err());
        assert_eq!(out.write(b"ef").unwrap(), 2);
        assert!(out.flush().is_ok() && out.seek(SeekFrom::Current(-9)).is_ok());
        assert_eq!(&room, b"abc");
    }
}
