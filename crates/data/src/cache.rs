//! Turns what a pipeline makes into a file, or a stream into memory, of which samples can be read in any order.
//!
//! The file: a heading (magic, fingerprint of the pipeline, number of samples), then all samples, each of the same
//! size. It gets its name only when it is complete, so that an interrupted run leaves nothing that looks like a cache.

use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll_device::Bytes;
use plimsoll_formats::FileError;

use crate::dataset::Dataset;
use crate::error::{Error, Result};
use crate::recipe::{Padded, Stage};
use crate::sample::{FieldSpec, Rows, Sample, SampleMut};
use crate::sample_reader::Input;
use crate::source::{Scratch, Source, StreamSource, read_at};
use crate::step::Step;

const MAGIC: &[u8; 8] = b"PLIMCCH1";
const HEADING: u64 = 24;
/// Samples are made in batches of about so many bytes.
const BATCH_BYTES: usize = 1 << 20;

/// Samples that were made before.
struct Cached {
    backing: Backing,
    rows: u64,
    packed: Vec<FieldSpec>,
    /// What a packed sample still goes through.
    unpack: Option<Arc<dyn StreamSource>>,
}

enum Backing {
    File(File, PathBuf),
    Memory(Vec<u8>),
}

/// Bytes of one sample: its fields at their longest, and four for each length that varies.
fn stride(spec: &[FieldSpec]) -> usize {
    spec.iter().map(|field| field.bytes() + if field.varying { 4 } else { 0 }).sum()
}

/// Appends a sample to `out`.
fn push(sample: &Sample<'_>, out: &mut Vec<u8>) {
    for (at, field) in sample.spec().iter().enumerate() {
        let bytes = sample.bytes(at);
        out.extend_from_slice(bytes);
        out.resize(out.len() + field.bytes() - bytes.len(), 0);
        if field.varying {
            out.extend_from_slice(&(sample.len(at) as u32).to_le_bytes());
        }
    }
}

impl Cached {
    fn write(&self, record: &[u8], scratch: &mut Scratch, out: &mut SampleMut<'_>) -> Result<()> {
        let mut rest = record;
        let mut lens = smallvec::SmallVec::<[u32; 4]>::new();
        let mut fields = smallvec::SmallVec::<[&[u8]; 4]>::new();
        for field in &self.packed {
            let (bytes, after) = rest.split_at(field.bytes());
            fields.push(bytes);
            rest = after;
            let mut len = field.first() as u32;
            if let (true, Some((stored, after))) = (field.varying, rest.split_first_chunk()) {
                (len, rest) = (u32::from_le_bytes(*stored).min(len), after);
            }
            lens.push(len);
        }
        let sample = Sample { spec: &self.packed, bytes: fields, lens: &lens };
        match &self.unpack {
            Some(source) => source.unpack_with(&sample, scratch, out),
            None => {
                out.copy_from(&sample);
                Ok(())
            }
        }
    }
}

impl Source for Cached {
    fn spec(&self) -> &[FieldSpec] {
        self.unpack.as_ref().map_or(&self.packed, |source| source.spec())
    }

    fn len(&self) -> u64 {
        self.rows
    }

    fn read(&self, index: u64, scratch: &mut Scratch, out: &mut SampleMut<'_>) -> Result<()> {
        let stride = stride(&self.packed);
        match &self.backing {
            Backing::Memory(bytes) => {
                let start = index as usize * stride;
                self.write(&bytes[start..start + stride], scratch, out)
                    .map_err(|error| error.in_stage("source", index))
            }
            Backing::File(file, path) => {
                scratch.bytes.resize(stride, 0);
                let at = HEADING + index * stride as u64;
                read_at(file, &mut scratch.bytes, at)
                    .map_err(|error| FileError::io(path, error).at(index))?;
                let record = std::mem::take(&mut scratch.bytes);
                let written = self.write(&record, scratch, out);
                scratch.bytes = record;
                written
            }
        }
    }

    fn name(&self) -> String {
        match &self.backing {
            Backing::Memory(_) => "the loaded data".to_owned(),
            Backing::File(_, path) => path.display().to_string(),
        }
    }

    fn held(&self) -> u64 {
        match &self.backing {
            Backing::Memory(bytes) => bytes.capacity() as u64,
            Backing::File(..) => 0,
        }
    }

    fn scratch_bytes(&self) -> u64 {
        match &self.backing {
            Backing::Memory(_) => 0,
            Backing::File(..) => stride(&self.packed) as u64,
        }
    }
}

impl Dataset {
    /// Writes what the stages so far make into a file, once, and goes on from the file, which is read by number. A file
    /// that is there already is used if it was made by the same stages and from the same files, unchanged since; what
    /// closures do cannot be compared, so delete it when they change.
    pub fn cache(self, path: impl AsRef<Path>) -> Result<Dataset> {
        let path = path.as_ref();
        if self.stages.iter().any(|stage| matches!(stage, Stage::Batch { .. })) {
            return Err(Error::Stage("a cache keeps samples; put it before batch".into()));
        }
        let is_augmented =
            |stage: &Stage| matches!(stage, Stage::Step(Step::Augment(..)) | Stage::EachBatch { .. });
        if self.stages.iter().any(is_augmented) {
            let what = "a cache would keep one epoch's changes of pictures for all; put cache before augment";
            return Err(Error::Stage(what.into()));
        }
        let sample =
            self.clone().with(Stage::Batch { size: 1, drop_remainder: false, padded: Padded::Longest });
        let recipe = sample.recipe()?;
        if recipe.order.as_ref().is_some_and(|order| order.len().is_none()) {
            return Err(Error::Stage(
                "a repetition without end cannot be cached; put cache before it".into(),
            ));
        }
        let (spec, fingerprint) = (recipe.spec.to_vec(), self.state_of_source(recipe.fingerprint));
        let cached = match open(path, &spec, fingerprint)? {
            Some(cached) => cached,
            None => {
                self.write_cache(path, &spec, fingerprint)?;
                let damaged = || FileError::damaged(path, "the cache changed while it was written");
                open(path, &spec, fingerprint)?.ok_or_else(damaged)?
            }
        };
        Ok(self.over(Input::Indexed(Arc::new(cached))))
    }

    /// A fingerprint that changes with the files of the source (length, time of the last change) and with what is done to
    /// their numbers.
    fn state_of_source(&self, fingerprint: u64) -> u64 {
        let mut state = hash(fingerprint, self.notes().join("\n").as_bytes());
        for path in self.input.files() {
            let metadata = std::fs::metadata(&path).ok();
            let length = metadata.as_ref().map_or(0, std::fs::Metadata::len);
            let time = metadata.and_then(|metadata| metadata.modified().ok());
            let time = time.and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
            state = hash(state, path.as_os_str().as_encoded_bytes());
            state = hash(state, &length.to_le_bytes());
            state = hash(state, &time.map_or(0, |time| time.as_nanos()).to_le_bytes());
        }
        state
    }

    fn write_cache(&self, path: &Path, spec: &[FieldSpec], fingerprint: u64) -> Result<()> {
        let io = |error| FileError::io(path, error);
        let mut partial = path.as_os_str().to_owned();
        partial.push(".partial");
        let mut out = BufWriter::new(File::create(&partial).map_err(io)?);
        out.write_all(&[0; HEADING as usize]).map_err(io)?;
        let size = (BATCH_BYTES / stride(spec).max(1)).clamp(1, 1024);
        let batch = Stage::Batch { size, drop_remainder: false, padded: Padded::Longest };
        let (mut rows, mut record) = (0u64, Vec::new());
        for batch in self.clone().with(batch).batches()? {
            let batch = batch?;
            for row in 0..batch.samples() {
                record.clear();
                batch.with_sample(row, |sample| push(sample, &mut record));
                out.write_all(&record).map_err(io)?;
            }
            rows += batch.samples() as u64;
        }
        let mut file = out.into_inner().map_err(|error| io(error.into_error()))?;
        std::io::Seek::rewind(&mut file).map_err(io)?;
        let heading = [&MAGIC[..], &fingerprint.to_le_bytes(), &rows.to_le_bytes()].concat();
        file.write_all(&heading).map_err(io)?;
        file.sync_all().map_err(io)?;
        std::fs::rename(&partial, path).map_err(io)?;
        Ok(())
    }

    /// Reads a stream into memory, packed as it is stored, so that it is shuffled as a whole and resumed at once. What is
    /// read by number already stays as it is. The memory counts against [`Dataset::memory`].
    pub fn load(self) -> Result<Dataset> {
        let Input::Stream(source) = &self.input else { return Ok(self) };
        if !self.stages.is_empty() {
            return Err(Error::Stage("load reads the source; put it before all other stages".into()));
        }
        let packed = source.packed().to_vec();
        let (mut rows, mut bytes) = (0u64, Vec::new());
        let known = source.len().and_then(|len| usize::try_from(len).ok()?.checked_mul(stride(&packed)));
        let limit = self.memory_limit();
        let refused = || {
            let what = format!(
                "the source does not fit into {limit}; leave load out, cache it, or raise the memory"
            );
            Error::Stage(what)
        };
        if known.is_some_and(|known| Bytes::from(known) > limit) {
            return Err(refused());
        }
        bytes.reserve_exact(known.unwrap_or(0));
        let mut stream = source.open()?;
        let mut row = Rows::new(&packed, 1);
        while stream.next(&mut row.row_mut(&packed, 0))? {
            push(&row.row(&packed, 0), &mut bytes);
            rows += 1;
            if Bytes::from(bytes.len()) > limit {
                return Err(refused());
            }
        }
        bytes.shrink_to_fit();
        let unpack = (source.spec() != source.packed()).then(|| source.clone());
        let loaded = Cached { backing: Backing::Memory(bytes), rows, packed, unpack };
        Ok(self.over(Input::Indexed(Arc::new(loaded))))
    }
}

/// FNV-1a: the same on every machine.
fn hash(start: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(start, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3))
}

/// Opens a cache that was made by the pipeline with this fingerprint; nothing if there is none.
fn open(path: &Path, spec: &[FieldSpec], fingerprint: u64) -> Result<Option<Cached>> {
    let io = |error| FileError::io(path, error);
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(io(error).into()),
    };
    let size = file.metadata().map_err(io)?.len();
    let mut heading = [0; HEADING as usize];
    if size < HEADING || file.read_exact(&mut heading).is_err() || heading[..8] != MAGIC[..] {
        // Never written over: it may be somebody's data.
        return Err(FileError::damaged(path, "this is no cache; choose another name or delete it").into());
    }
    let number = |at: usize| heading[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    let rows = number(16);
    let need = rows.checked_mul(stride(spec) as u64).and_then(|bytes| bytes.checked_add(HEADING));
    if number(8) != fingerprint || need != Some(size) {
        return Ok(None);
    }
    let backing = Backing::File(file, path.to_owned());
    Ok(Some(Cached { backing, rows, packed: spec.to_vec(), unpack: None }))
}
