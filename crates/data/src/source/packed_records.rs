//! Turns gzipped TFRecord files of `tf.train.Example`s into samples, from front to back.
//!
//! Records wait as they are stored; threads decode them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll_formats::tfrecord::GzipReader;
use plimsoll_graph::DType;

use super::records::{NONE, named};
use super::{Images, Records, Scratch, Source, Stream, StreamSource};
use crate::error::{Error, Result};
use crate::sample::{FieldSpec, Sample, SampleMut};
use crate::scale::Scale;

/// Records of gzipped files, one file behind the other.
#[derive(Clone)]
pub(crate) struct PackedRecords {
    paths: Arc<[PathBuf]>,
    records: Records,
    len: u64,
    longest: u64,
    /// A record with its length, and the number of its file.
    packed: Vec<FieldSpec>,
}

impl PackedRecords {
    /// Reads all files once: how many records there are, how long the longest is, how large images are.
    pub fn new(paths: &[PathBuf], images: Option<Images>, scale: Option<Scale>) -> Result<PackedRecords> {
        let (mut records, mut len, mut longest) = (None, 0, 0);
        let mut bytes = Vec::new();
        for path in paths {
            let mut reader = GzipReader::open(path)?;
            while reader.next(&mut bytes)? {
                let known = match &mut records {
                    Some(known) => known,
                    none => none.insert(Records::elsewhere(&bytes, path, images, scale)?),
                };
                known.see(&bytes, path);
                (len, longest) = (len + 1, longest.max(bytes.len() as u64));
            }
        }
        let Some(records) = records else {
            return Err(Error::Unknown { path: named(paths), what: NONE.into() });
        };
        let record = FieldSpec::varying("record", DType::U8, [longest.max(1) as usize]);
        let packed = vec![record, FieldSpec::new("file", DType::I64, [])];
        Ok(PackedRecords { paths: paths.into(), records, len, longest, packed })
    }
}

impl StreamSource for PackedRecords {
    fn packed(&self) -> &[FieldSpec] {
        &self.packed
    }

    fn spec(&self) -> &[FieldSpec] {
        Source::spec(&self.records)
    }

    fn unpack_with(&self, packed: &Sample<'_>, scratch: &mut Scratch, out: &mut SampleMut<'_>) -> Result<()> {
        // A cache packs fields without gaps, so that the number may begin at any byte.
        let file =
            packed.bytes(1).first_chunk().and_then(|&file| usize::try_from(i64::from_ne_bytes(file)).ok());
        let path = file.and_then(|file| self.paths.get(file)).map_or(Path::new(""), PathBuf::as_path);
        // Which sample it is, is known to the caller.
        self.records.write(path, packed.bytes(0), scratch, out).map_err(|error| match error {
            Error::File(error) => Error::refused(error.to_string()),
            Error::Step { what, .. } => Error::refused(format!("{}: {what}", path.display())),
            other => other,
        })
    }

    fn scratch_bytes(&self) -> u64 {
        self.records.scratch_for(self.longest)
    }

    fn len(&self) -> Option<u64> {
        Some(self.len)
    }

    fn open(&self) -> Result<Box<dyn Stream>> {
        let bytes = Vec::with_capacity(self.longest as usize + 4);
        Ok(Box::new(PackedRecordStream { paths: self.paths.clone(), next: 0, reader: None, bytes }))
    }

    fn notes(&self) -> Vec<String> {
        Source::notes(&self.records)
    }

    fn files(&self) -> Vec<PathBuf> {
        self.paths.to_vec()
    }

    fn name(&self) -> String {
        self.paths.first().map_or(String::new(), |path| path.display().to_string())
    }

    fn held(&self) -> u64 {
        // The decompressor's window and tables, the buffer of its file, and a record.
        (192 << 10) + self.longest + 4
    }

    fn stored(&self) -> Option<Arc<dyn StreamSource>> {
        let mut stored = self.clone();
        stored.records = self.records.as_stored();
        Some(Arc::new(stored))
    }
}

struct PackedRecordStream {
    paths: Arc<[PathBuf]>,
    /// The next file to open.
    next: usize,
    reader: Option<GzipReader>,
    bytes: Vec<u8>,
}

impl Stream for PackedRecordStream {
    fn next(&mut self, out: &mut SampleMut<'_>) -> Result<bool> {
        loop {
            let reader = match &mut self.reader {
                Some(reader) => reader,
                none => {
                    let Some(path) = self.paths.get(self.next) else { return Ok(false) };
                    self.next += 1;
                    none.insert(GzipReader::open(path)?)
                }
            };
            if reader.next(&mut self.bytes)? {
                break;
            }
            self.reader = None;
        }
        out.set(0, &self.bytes)?;
        out.set(1, &[self.next as i64 - 1])?;
        Ok(true)
    }
}
