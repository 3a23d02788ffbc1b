//! Turns TFRecord files of `tf.train.Example`s into samples.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll_formats::example::{Feature, features};
use plimsoll_formats::tfrecord::Index;
use plimsoll_formats::{FileError, image};
use plimsoll_graph::DType;

use super::picture::{Images, Needs};
use super::{Scratch, Source};
use crate::error::{Error, Result};
use crate::sample::{FieldSpec, SampleMut};
use crate::scale::Scale;

/// Features with such names come last: they are what is learned.
const LABELS: [&str; 4] = ["label", "target", "class", "y"];

/// Images of so many pixels are read without having been looked at before.
const PIXELS_LEAST: usize = 2_000_000;
/// So many of the longest records are looked at.
const LOOKED_AT: usize = 64;

/// Records of several files; 8 bytes a record are kept.
#[derive(Clone)]
pub(crate) struct Records {
    files: Arc<[RecordFile]>,
    images: Option<Images>,
    needs: Needs,
    scale: Option<Scale>,
    spec: Vec<FieldSpec>,
}

struct RecordFile {
    file: File,
    path: PathBuf,
    index: Index,
    /// The number of its first record among all.
    first: u64,
}

/// What is wrong with files without records.
pub(super) const NONE: &str = "it has no records";

/// How files of records are named in an error about all of them: by the first.
pub(super) fn named(paths: &[PathBuf]) -> String {
    paths.first().map_or(String::new(), |path| path.display().to_string())
}

fn is_label(name: &str) -> bool {
    LABELS.iter().any(|label| name.to_lowercase().contains(label))
}

impl RecordFile {
    /// A file that cannot be followed to its end has one record more: the error.
    fn len(&self) -> u64 {
        self.index.len() as u64 + u64::from(self.index.damage.is_some())
    }
}

impl Records {
    /// Opens files. Fields are what the first record has, images decoded to `images` or to their own size.
    pub fn new(paths: &[PathBuf], images: Option<Images>, scale: Option<Scale>) -> Result<Records> {
        let (mut files, mut first) = (Vec::new(), 0);
        for path in paths {
            let index = Index::of_file(path)?;
            let file = File::open(path).map_err(|error| FileError::io(path, error))?;
            let file = RecordFile { file, path: path.clone(), index, first };
            first += file.len();
            files.push(file);
        }
        if first == 0 {
            return Err(Error::Unknown { path: named(paths), what: NONE.into() });
        }
        let images = images.map(Images::checked).transpose()?;
        let needs = Needs { counts_whole: true, ..Needs::default() };
        let mut records = Records { files: files.into(), images, needs, scale, spec: Vec::new() };
        let mut record = Vec::new();
        let path = records.load(0, &mut record)?.0.to_owned();
        records.describe(&record, &path)?;
        records.look()?;
        Ok(records)
    }

    /// Records that lie elsewhere: what the first one has, and how large the images of all are.
    pub fn elsewhere(
        first: &[u8],
        path: &Path,
        images: Option<Images>,
        scale: Option<Scale>,
    ) -> Result<Records> {
        let images = images.map(Images::checked).transpose()?;
        let needs = Needs { counts_whole: true, ..Needs::default() };
        let mut records = Records { files: Vec::new().into(), images, needs, scale, spec: Vec::new() };
        records.describe(first, path)?;
        Ok(records)
    }

    /// Takes the fields of the first record for those of all.
    fn describe(&mut self, record: &[u8], path: &Path) -> Result<()> {
        let records = self;
        for (name, feature) in features(record) {
            let (kind, count) = match feature {
                Feature::Floats(_) => (DType::F32, feature.floats().count()),
                Feature::Ints(_) => (DType::I64, feature.ints().count()),
                Feature::Bytes(_) => {
                    let bytes = feature.bytes().next().unwrap_or(&[]);
                    if image::is_image(bytes) {
                        let probe = image::Probe::read(&mut std::io::Cursor::new(bytes), path)?;
                        let images = *records.images.get_or_insert(Images::new(probe.height, probe.width));
                        records.spec.push(images.field(name, DType::F32));
                        continue;
                    }
                    (DType::U8, bytes.len())
                }
            };
            let shape = if count == 1 { vec![] } else { vec![count] };
            records.spec.push(FieldSpec::new(name, kind, shape));
        }
        if records.spec.is_empty() {
            return Err(FileError::damaged_at(path, 0, "the record is no tf.train.Example").into());
        }
        // Protocol buffers store a map in any order.
        records.spec.sort_by_key(|field| (is_label(&field.name), field.name.clone()));
        Ok(())
    }

    /// Counts the images of a record in.
    pub fn see(&mut self, record: &[u8], path: &Path) {
        let Some(images) = self.images else { return };
        for bytes in features(record).filter_map(|(_, feature)| feature.bytes().next()) {
            if let (true, Ok(probe)) =
                (image::is_image(bytes), image::Probe::read(&mut std::io::Cursor::new(bytes), path))
            {
                self.needs.see(&probe, images);
            }
        }
    }

    /// Finds how large images are: those of the longest records are looked at. Larger ones are refused, with figures.
    fn look(&mut self) -> Result<()> {
        let Some(mut images) = self.images else { return Ok(()) };
        let lengths = |file: &RecordFile| {
            let first = file.first;
            let length = |(at, pair): (usize, &[u64])| (pair[1] - pair[0], first + at as u64);
            file.index.starts.windows(2).enumerate().map(length).collect::<Vec<_>>()
        };
        let mut longest: Vec<_> = self.files.iter().flat_map(lengths).collect();
        longest.sort_unstable();
        let mut bytes = Vec::new();
        for (_, index) in longest.into_iter().rev().take(LOOKED_AT) {
            // What is damaged is said when it is read.
            let Ok((path, _)) = self.load(index, &mut bytes) else { continue };
            let path = path.to_owned();
            self.see(&bytes, &path);
        }
        images.max_pixels = images.max_pixels.min(PIXELS_LEAST.max(self.needs.pixels as usize));
        self.images = Some(images);
        Ok(())
    }

    /// Reads record `index` of all; its file and its number there.
    fn load(&self, index: u64, bytes: &mut Vec<u8>) -> Result<(&Path, u64)> {
        let after = self.files.partition_point(|file| file.first <= index);
        let Some(file) = after.checked_sub(1).and_then(|at| self.files.get(at)) else {
            return Err(Error::Stage("there are no records".into()));
        };
        file.index.read(&file.file, &file.path, index - file.first, bytes)?;
        Ok((&file.path, index - file.first))
    }
}

impl Source for Records {
    fn spec(&self) -> &[FieldSpec] {
        &self.spec
    }

    fn len(&self) -> u64 {
        self.files.last().map_or(0, |file| file.first + file.len())
    }

    fn read(&self, index: u64, scratch: &mut Scratch, out: &mut SampleMut<'_>) -> Result<()> {
        let mut record = std::mem::take(&mut scratch.record);
        let result = self.load(index, &mut record).and_then(|(path, number)| {
            self.write(path, &record, scratch, out).map_err(|what| match what {
                Error::File(error) => error.at(number).into(),
                Error::Step { what, .. } => FileError::damaged_at(path, number, what).into(),
                other => other,
            })
        });
        scratch.record = record;
        result
    }

    fn notes(&self) -> Vec<String> {
        let pictures = self.spec.iter().filter(|field| self.images.is_some() && field.shape.len() == 3);
        let scale = self.scale.unwrap_or(Scale::Unit);
        pictures.map(|field| format!("'{}': pixels as {}, {scale}", field.name, field.dtype)).collect()
    }

    fn files(&self) -> Vec<PathBuf> {
        self.files.iter().map(|file| file.path.clone()).collect()
    }

    fn name(&self) -> String {
        self.files.first().map_or(String::new(), |file| file.path.display().to_string())
    }

    fn held(&self) -> u64 {
        self.files.iter().map(|file| file.index.starts.len() as u64 * 8 + 512).sum()
    }

    fn scratch_bytes(&self) -> u64 {
        let longest = self.files.iter().map(|file| file.index.longest as u64).max().unwrap_or(0);
        self.scratch_for(longest)
    }

    fn stored(&self) -> Option<Arc<dyn Source>> {
        Some(Arc::new(self.as_stored()))
    }
}

impl Records {
    /// The same records with pixels as they are stored.
    pub fn as_stored(&self) -> Records {
        let mut records = self.clone();
        for field in
            records.spec.iter_mut().filter(|field| field.dtype == DType::F32 && field.shape.len() == 3)
        {
            field.dtype = DType::U8;
        }
        records
    }

    /// Bytes of scratch for records of at most this length.
    pub fn scratch_for(&self, longest: u64) -> u64 {
        let images = |images: Images| {
            let least = (12 * PIXELS_LEAST + images.height * images.width * images.channels) as u64;
            self.needs.scratch_bytes(images).max(least)
        };
        2 * longest + self.images.map_or(0, images)
    }

    /// Writes the sample that a record is.
    pub fn write(
        &self,
        path: &Path,
        record: &[u8],
        scratch: &mut Scratch,
        out: &mut SampleMut<'_>,
    ) -> Result<()> {
        let mut found = 0;
        for (name, feature) in features(record) {
            let Some(at) = self.spec.iter().position(|field| field.name == name) else { continue };
            let field = &self.spec[at];
            let wrong = |have: usize| {
                let what = format!(
                    "feature '{name}' has {have} elements where the first record has {:?}",
                    field.shape
                );
                Error::refused(what)
            };
            found += 1;
            match feature {
                Feature::Floats(_) if field.dtype == DType::F32 => {
                    let (slots, mut count) = (out.get_mut::<f32>(at)?, 0);
                    let divisor = match self.scale {
                        Some(scale) if !is_label(name) => scale.divisor(),
                        _ => 1.0,
                    };
                    for (slot, value) in slots.iter_mut().zip(feature.floats()) {
                        (*slot, count) = (value / divisor, count + 1);
                    }
                    if count != slots.len() || feature.floats().nth(count).is_some() {
                        return Err(wrong(feature.floats().count()));
                    }
                    if slots.iter().any(|x| x.is_nan()) {
                        return Err(Error::refused(format!("feature '{name}' is NaN, not a number")));
                    }
                }
                Feature::Ints(_) if field.dtype == DType::I64 => {
                    let (slots, mut count) = (out.get_mut::<i64>(at)?, 0);
                    for (slot, value) in slots.iter_mut().zip(feature.ints()) {
                        (*slot, count) = (value, count + 1);
                    }
                    if count != slots.len() || feature.ints().nth(count).is_some() {
                        return Err(wrong(feature.ints().count()));
                    }
                }
                Feature::Bytes(_) => {
                    let bytes = feature.bytes().next().unwrap_or(&[]);
                    if feature.bytes().nth(1).is_some() {
                        let what = format!("feature '{name}' holds several strings; one is read");
                        return Err(Error::refused(what));
                    }
                    match self.images {
                        Some(images) if field.shape.len() == 3 => {
                            scratch.bytes.clear();
                            scratch.bytes.extend_from_slice(bytes);
                            let scale = self.scale.unwrap_or(Scale::Unit);
                            let divisor = if field.dtype == DType::U8 { 1.0 } else { scale.divisor() };
                            images.write(path, scratch, true, (field.dtype, divisor), out.bytes_mut(at))?;
                        }
                        _ if bytes.len() == field.bytes() => out.bytes_mut(at).copy_from_slice(bytes),
                        _ => return Err(wrong(bytes.len())),
                    }
                }
                _ => {
                    return Err(Error::refused(format!(
                        "feature '{name}' is of another kind than in the first record"
                    )));
                }
            }
        }
        if found != self.spec.len() {
            return Err(Error::refused(format!(
                "it has {found} of the {} features of the first record",
                self.spec.len()
            )));
        }
        Ok(())
    }
}
