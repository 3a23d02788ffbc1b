//! A batch: the samples that a pipeline delivers at once.

use std::sync::{Arc, OnceLock};

use plimsoll_graph::DType;
use smallvec::{SmallVec, smallvec};

use crate::engine::{Engine, State};
use crate::error::{Error, Result};
use crate::ring::{Free, Full};
use crate::sample::{Number, Sample};
use crate::share::BatchShare;

/// Samples in one block of memory for each field. Dropping it gives the memory back to the pipeline.
pub struct Batch {
    pub(crate) full: Option<Full>,
    /// The samples of a batch of random numbers, which nobody has written yet.
    pub(crate) random: Option<Unwritten>,
    pub(crate) engine: Arc<Engine>,
    pub(crate) samples: usize,
    /// The row of its first sample, and which samples of the whole batch it has.
    pub(crate) first_row: usize,
    pub(crate) share: BatchShare,
    /// The first extents of the fields, padded to the longest where they vary.
    pub(crate) extents: SmallVec<[usize; 4]>,
    pub(crate) epoch: u64,
    pub(crate) last: bool,
}

/// A batch of random numbers before it is written.
pub(crate) struct Unwritten {
    numbers: Vec<u64>,
    /// The batch, where somebody asked to read it.
    read: OnceLock<Option<Full>>,
}

impl Unwritten {
    pub(crate) fn new(numbers: Vec<u64>) -> Unwritten {
        Unwritten { numbers, read: OnceLock::new() }
    }
}

/// One field of a batch.
#[derive(Clone, Debug)]
pub struct Field<'a> {
    /// Its name.
    pub name: &'a str,
    /// The type of its elements.
    pub dtype: DType,
    /// Its extents, samples first.
    pub shape: SmallVec<[usize; 5]>,
    /// Its elements, row after row, beginning at a multiple of 64 bytes where it has all rows of the whole batch, and of the size of an element
    /// where ranks share that.
    pub bytes: &'a [u8],
}

impl<'a> Field<'a> {
    /// Its elements; an error where they are of another type.
    pub fn get<T: Number>(&self) -> Result<&'a [T]> {
        if T::DTYPE != self.dtype {
            let what = format!("field '{}' is of type {}, not {}", self.name, self.dtype, T::DTYPE);
            return Err(Error::Stage(what));
        }
        bytemuck::try_cast_slice(self.bytes).map_err(|error| Error::Stage(error.to_string()))
    }
}

impl Batch {
    /// How many samples it has.
    pub fn samples(&self) -> usize {
        self.samples
    }

    /// Which samples of the whole batch it has: all, unless ranks share it ([`Dataset::shared`](crate::Dataset::shared)).
    pub fn share(&self) -> BatchShare {
        self.share
    }

    /// The number of each sample in its source, whatever shuffles, filters and skipped errors did: what
    /// [`Dataset::sample_name`](crate::Dataset::sample_name) takes.
    pub fn numbers(&self) -> &[u64] {
        match (&self.full, &self.random) {
            (Some(full), _) => &full.numbers()[self.first_row..self.first_row + self.samples],
            (None, Some(random)) => &random.numbers,
            (None, None) => &[],
        }
    }

    /// How often the source was gone through before its first sample.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Whether an epoch ends in it: no batch follows in its pass, or the sample that follows is of another epoch than
    /// its first. So every pass has exactly one last batch, whatever the source; where a batch reaches over the end of
    /// an epoch ([`Dataset::repeat`](crate::Dataset::repeat) before `batch`), it is the last of the epoch it begins
    /// in. A shuffle after a repetition mixes epochs, and then only the end of a pass counts.
    pub fn is_last_of_epoch(&self) -> bool {
        self.last
    }

    /// How many fields it has.
    pub fn len(&self) -> usize {
        self.extents.len()
    }

    /// Whether it has no fields.
    pub fn is_empty(&self) -> bool {
        self.extents.is_empty()
    }

    /// A field by its number.
    pub fn field(&self, index: usize) -> Option<Field<'_>> {
        let full = self.written()?;
        let spec = full.spec().get(index)?;
        let (dtype, shape) = self.field_type(index)?;
        let row = self.extents[index] * spec.inner_bytes();
        let rows = self.first_row * row..(self.first_row + self.samples) * row;
        Some(Field { name: &spec.name, dtype, shape, bytes: &full.bytes(index)[rows] })
    }

    /// The type of a field's elements, and its extents, samples first.
    pub fn field_type(&self, index: usize) -> Option<(DType, SmallVec<[usize; 5]>)> {
        let spec = self.engine.recipe.spec.get(index)?;
        let mut shape = smallvec![self.samples];
        if !spec.shape.is_empty() {
            shape.push(self.extents[index]);
            shape.extend_from_slice(&spec.shape[1..]);
        }
        Some((spec.dtype, shape))
    }

    /// Whether it is of random numbers that nobody has written yet: [`Batch::write_field`] writes them to where they are
    /// wanted, where reading a field takes memory that the pipeline did not declare.
    pub fn is_random(&self) -> bool {
        self.random.is_some()
    }

    /// Writes a field of a batch of random numbers to `out`, which has as many bytes.
    pub fn write_field(&self, index: usize, out: &mut [u8]) {
        let (Some(random), Some(unwritten)) = (self.engine.recipe.random(), &self.random) else { return };
        let rows = out.len() / unwritten.numbers.len().max(1);
        for (row, &number) in out.chunks_exact_mut(rows.max(1)).zip(&unwritten.numbers) {
            random.write(number, index, row);
        }
    }

    /// The block that fields are read from.
    fn written(&self) -> Option<&Full> {
        let Some(unwritten) = &self.random else { return self.full.as_ref() };
        let write = || {
            let random = self.engine.recipe.random()?;
            let mut opener = Free::new(&self.engine.recipe.spec, self.samples).open();
            let mut chunk = opener.chunk(self.samples);
            for (row, &number) in unwritten.numbers.iter().enumerate() {
                let mut out = chunk.row(row);
                (0..self.len()).for_each(|field| random.write(number, field, out.bytes_mut(field)));
            }
            drop(chunk);
            opener.full().ok()
        };
        unwritten.read.get_or_init(write).as_ref()
    }

    /// All fields.
    pub fn fields(&self) -> impl Iterator<Item = Field<'_>> {
        (0..self.len()).filter_map(|index| self.field(index))
    }

    /// Shows one sample as it was before it was padded.
    pub(crate) fn with_sample(&self, row: usize, see: impl FnOnce(&Sample<'_>)) {
        let Some(full) = self.written() else { return };
        let (spec, lens, row) = (full.spec(), full.lens(), self.first_row + row);
        let lens = &lens[row * spec.len()..(row + 1) * spec.len()];
        let bytes = spec.iter().enumerate().map(|(index, field)| {
            let padded = self.extents[index] * field.inner_bytes();
            &full.bytes(index)[row * padded..(row + 1) * padded]
        });
        see(&Sample { spec, bytes: bytes.collect(), lens });
    }

    /// The lengths of a field in the samples, before they were padded.
    pub fn lengths(&self, field: usize) -> impl Iterator<Item = usize> {
        let (lens, fields) = (self.written().map_or(&[][..], Full::lens), self.len());
        (self.first_row..self.first_row + self.samples)
            .filter_map(move |row| lens.get(row * fields + field).map(|&len| len as usize))
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        let Some(full) = self.full.take() else { return };
        let mut state = self.engine.state();
        give_back(&mut state, full);
        drop(state);
        self.engine.work.notify_all();
    }
}

pub(crate) fn give_back(state: &mut State, full: Full) {
    if state.buffers > state.buffers_target {
        state.buffers -= 1;
    } else {
        state.free.push(full.free());
    }
}
