//! Turns a file into its length and CRC-32C, and tells a torn or foreign file from the one that was written.

use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

/// What a file's manifest says of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileSum {
    /// Its name inside its folder.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// The CRC-32C (Castagnoli) of its content.
    pub crc32c: u32,
}

/// Why a file is not the one its manifest speaks of.
#[derive(Debug, thiserror::Error)]
pub enum ChecksumError {
    /// The file could not be read.
    #[error("file {name:?} cannot be read: {source}")]
    Io {
        /// The file.
        name: String,
        /// What the system said.
        source: io::Error,
    },
    /// The manifest's name points somewhere else.
    #[error("the manifest names {0:?}, which is not a plain file name")]
    Name(String),
    /// The file has another length.
    #[error("file {name:?} has {found} bytes where {expected} were written; it is torn or was replaced")]
    Length {
        /// The file.
        name: String,
        /// Bytes written.
        expected: u64,
        /// Bytes found.
        found: u64,
    },
    /// The file has the right length and other bytes.
    #[error("file {name:?} has CRC-32C {found:08x} where {expected:08x} was written; its bytes have changed")]
    Content {
        /// The file.
        name: String,
        /// Checksum written.
        expected: u32,
        /// Checksum found.
        found: u32,
    },
}

impl FileSum {
    /// Reads a file through once, in pieces of 64 KiB.
    pub fn of(folder: &Path, name: &str) -> Result<FileSum, ChecksumError> {
        // A manifest is a file like any other: its names must not lead out of the folder.
        if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\\', '\0']) {
            return Err(ChecksumError::Name(name.to_string()));
        }
        let io = |source| ChecksumError::Io { name: name.to_string(), source };
        let mut file = File::open(folder.join(name)).map_err(io)?;
        let mut sum = Checksummed::new(io::sink());
        let mut buffer = vec![0; 1 << 16];
        loop {
            match file.read(&mut buffer) {
                Ok(0) => return Ok(sum.sum(name)),
                Ok(n) => sum.write_all(&buffer[..n]).map_err(io)?,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(io(e)),
            }
        }
    }

    /// Compares the file of this name in `folder` with what was written.
    pub fn verify(&self, folder: &Path) -> Result<(), ChecksumError> {
        let found = FileSum::of(folder, &self.name)?;
        let name = self.name.clone();
        if found.bytes != self.bytes {
            return Err(ChecksumError::Length { name, expected: self.bytes, found: found.bytes });
        }
        if found.crc32c != self.crc32c {
            return Err(ChecksumError::Content { name, expected: self.crc32c, found: found.crc32c });
        }
        Ok(())
    }
}

/// A stream that counts and sums what passes through it, so that a file need not be read again to be summed.
///
/// ```
/// use plimsoll_formats::durable::Checksummed;
/// use std::io::Write;
/// let mut out = Checksummed::new(Vec::new());
/// out.write_all(b"123456789")?;
/// let sum = out.sum("digits");
/// assert_eq!((sum.bytes, sum.crc32c), (9, 0xe306_9283));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Checksummed<W> {
    out: W,
    bytes: u64,
    crc32c: u32,
}

impl<W: Write> Checksummed<W> {
    /// Sums what will be written to `out`.
    pub fn new(out: W) -> Self {
        Checksummed { out, bytes: 0, crc32c: 0 }
    }

    /// The sum of what was written so far, for the manifest entry of the file `name`.
    pub fn sum(&self, name: &str) -> FileSum {
        FileSum { name: name.to_string(), bytes: self.bytes, crc32c: self.crc32c }
    }

    /// The stream, without the sum.
    pub fn into_inner(self) -> W {
        self.out
    }
}

impl<W: Write> Write for Checksummed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = self.out.write(bytes)?;
        self.crc32c = crc32c::crc32c_append(self.crc32c, &bytes[..n]);
        self.bytes += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Scratch;
    use super::*;

    #[test]
    fn a_torn_a_changed_and_an_absent_file_are_told_apart() {
        let scratch = Scratch::new("checksum");
        let path = scratch.0.join("w.bin");
        let content: Vec<u8> = (0..100_000u32).map(|i| (i ^ (i >> 7)) as u8).collect();
        let mut out = Checksummed::new(File::create(&path).expect("a file"));
        out.write_all(&content).expect("writing");
        let sum = out.sum("w.bin");
        assert_eq!(FileSum::of(&scratch.0, "w.bin").expect("the sum"), sum);
        sum.verify(&scratch.0).expect("the file as written");

        std::fs::write(&path, &content[..99_999]).expect("a torn file");
        assert!(matches!(sum.verify(&scratch.0), Err(ChecksumError::Length { found: 99_999, .. })));
        let mut changed = content.clone();
        changed[70_000] ^= 1;
        std::fs::write(&path, &changed).expect("a changed file");
        assert!(matches!(sum.verify(&scratch.0), Err(ChecksumError::Content { .. })));
        std::fs::remove_file(&path).expect("removal");
        assert!(matches!(sum.verify(&scratch.0), Err(ChecksumError::Io { .. })));
        let outside = FileSum { name: "../w.bin".into(), ..sum };
        assert!(matches!(outside.verify(&scratch.0), Err(ChecksumError::Name(_))));
    }
}
