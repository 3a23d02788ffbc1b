//! Turns a file, or a stored member inside an archive, into bytes that can be read at any place.

use hdf5_pure::{FormatError, Source};
use std::io::{self, Read, Seek, SeekFrom};
use std::sync::{Arc, Mutex, PoisonError};

/// What a Keras file is read from.
pub(super) trait ReadSeek: Read + Seek + Send {}
impl<T: Read + Seek + Send> ReadSeek for T {}

/// A range of a file, shared between us and the HDF5 parser.
#[derive(Clone)]
pub(super) struct Bytes {
    file: Arc<Mutex<Box<dyn ReadSeek>>>,
    start: u64,
    len: u64,
}

impl Bytes {
    pub(super) fn new(mut file: Box<dyn ReadSeek>) -> io::Result<Bytes> {
        let len = file.seek(SeekFrom::End(0))?;
        Ok(Bytes { file: Arc::new(Mutex::new(file)), start: 0, len })
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// The bytes from `start` on, `len` of them.
    pub(super) fn range(&self, start: u64, len: u64) -> io::Result<Bytes> {
        if start.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(Bytes { file: self.file.clone(), start: self.start + start, len })
    }

    pub(super) fn read_exact_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        if offset.checked_add(buffer.len() as u64).is_none_or(|end| end > self.len) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        // A reader that panicked left at worst another position, which is set anew here.
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.seek(SeekFrom::Start(self.start + offset))?;
        file.read_exact(buffer)
    }
}

impl Source for Bytes {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<(), FormatError> {
        self.read_exact_at(offset, buffer).map_err(|e| FormatError::Source(e.to_string()))
    }
}

/// A cursor over [`Bytes`], for parsers that want a stream.
pub(super) struct Cursor {
    bytes: Bytes,
    at: u64,
}

impl Cursor {
    pub(super) fn new(bytes: Bytes) -> Cursor {
        Cursor { bytes, at: 0 }
    }
}

impl Read for Cursor {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.bytes.len.saturating_sub(self.at);
        let n = (buffer.len() as u64).min(left) as usize;
        self.bytes.read_exact_at(self.at.min(self.bytes.len), &mut buffer[..n])?;
        self.at += n as u64;
        Ok(n)
    }
}

impl Seek for Cursor {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.bytes.len.checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        self.at = at.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}
