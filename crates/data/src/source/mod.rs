//! Where samples come from.
//!
//! A [`Source`] reads any of its samples by number: it is shuffled without memory and resumed at once. A
//! [`StreamSource`] can only be read from front to back (what is compressed, what an iterator makes): it is shuffled in
//! a window and resumed by reading up to the place.

mod array;
#[cfg(feature = "parquet")]
mod columnar;
mod first_pass;
mod folder;
mod function;
mod listing;
mod masks;
mod packed;
mod packed_records;
mod picture;
mod random;
mod records;
mod shapes;
mod shards;
mod subset;
mod table;
mod text;
mod to_come;

use crate::error::Result;
use crate::sample::{FieldSpec, Sample, SampleMut};
use plimsoll_formats::image::Resizer;
use std::path::PathBuf;
use std::sync::Arc;

pub use array::{Column, Memory};
pub use picture::Images;
pub use random::{Draw, Random};
pub use shapes::Shapes;
pub use text::Tokens;

pub(crate) use array::{Arrays, ReadAs, read_at};
#[cfg(feature = "parquet")]
pub(crate) use columnar::Columnar;
pub(crate) use folder::{Folder, Form};
pub(crate) use function::{Function, Iterators};
pub(crate) use listing::{folders, has_classes, has_images};
pub(crate) use masks::{Masks, has_masks};
pub(crate) use packed::{Packed, PackedColumn};
pub(crate) use packed_records::PackedRecords;
pub(crate) use records::Records;
pub(crate) use shapes::ShapesSource;
pub(crate) use shards::Shards;
pub(crate) use subset::Subset;
pub(crate) use table::Table;
pub(crate) use text::Text;

/// What a sample looks like and how many there are, of a [`Source`] that has both as fields.
macro_rules! spec_and_len {
    ($len:ident) => {
        fn spec(&self) -> &[FieldSpec] {
            &self.spec
        }

        fn len(&self) -> u64 {
            self.$len
        }
    };
}
pub(crate) use spec_and_len;

/// Samples that can be read in any order, by many threads.
pub trait Source: Send + Sync {
    /// What a sample looks like.
    fn spec(&self) -> &[FieldSpec];

    /// How many there are.
    fn len(&self) -> u64;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Writes sample `index` into `out`. Temporary bytes belong into `scratch`, which a thread keeps.
    fn read(&self, index: u64, scratch: &mut Scratch, out: &mut SampleMut<'_>) -> Result<()>;

    /// What a user should know of the way from the file to the sample: conversions, what is left out.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// The names of the classes that labels number, if they have any.
    fn class_names(&self) -> Option<Vec<String>> {
        None
    }

    /// The class of sample `index`, where it is known without reading the sample.
    fn class(&self, index: u64) -> Option<i64> {
        let _ = index;
        None
    }

    /// The name of sample `index`, of a file say, if samples have any.
    fn sample_name(&self, index: u64) -> Option<String> {
        let _ = index;
        None
    }

    /// The files it reads, so that a cache knows when they have changed.
    fn files(&self) -> Vec<PathBuf> {
        Vec::new()
    }

    /// What messages call it: the file or folder it reads.
    fn name(&self) -> String {
        "the source".to_owned()
    }

    /// Bytes that the source itself keeps in memory.
    fn held(&self) -> u64 {
        0
    }

    /// Bytes of scratch that a thread needs at most.
    fn scratch_bytes(&self) -> u64 {
        0
    }

    /// The same source with the types that are stored, before any conversion it declares.
    fn stored(&self) -> Option<Arc<dyn Source>> {
        None
    }

    /// Tells it from others of the same length and fields, for positions in a pipeline; 0 where that is not needed.
    fn fingerprint(&self) -> u64 {
        0
    }

    /// The number that a white pixel of the first field is (1, or 255), where that field is pictures and it is known.
    fn white(&self) -> Option<f32> {
        None
    }

    /// Itself, where its samples are random numbers: then whoever takes a batch writes it, and no batch is kept.
    fn random(&self) -> Option<&Random> {
        None
    }
}

/// Samples that come one after the other.
pub trait StreamSource: Send + Sync {
    /// What a sample looks like while it waits in a shuffle's window: as small as it is stored.
    fn packed(&self) -> &[FieldSpec];

    /// What a sample looks like at the end.
    fn spec(&self) -> &[FieldSpec] {
        self.packed()
    }

    /// Turns a packed sample into a final one; called by many threads, only where the two differ.
    fn unpack(&self, packed: &Sample<'_>, out: &mut SampleMut<'_>) -> Result<()> {
        out.copy_from(packed);
        Ok(())
    }

    /// As [`StreamSource::unpack`], with temporary memory that a thread keeps: what it takes is said by
    /// [`StreamSource::scratch_bytes`].
    fn unpack_with(&self, packed: &Sample<'_>, scratch: &mut Scratch, out: &mut SampleMut<'_>) -> Result<()> {
        let _ = scratch;
        self.unpack(packed, out)
    }

    /// Bytes of scratch that a thread needs at most to unpack.
    fn scratch_bytes(&self) -> u64 {
        0
    }

    /// Tells it from others of the same length and fields, for positions in a pipeline; 0 where that is not needed.
    fn fingerprint(&self) -> u64 {
        0
    }

    /// How many there are, if that is known.
    fn len(&self) -> Option<u64> {
        None
    }

    /// Whether it is known that there are none.
    fn is_empty(&self) -> bool {
        self.len() == Some(0)
    }

    /// Starts at the first sample.
    fn open(&self) -> Result<Box<dyn Stream>>;

    /// Starts at the first sample, in an epoch: so often it was gone through before.
    fn open_in(&self, epoch: u64) -> Result<Box<dyn Stream>> {
        let _ = epoch;
        self.open()
    }

    /// What a user should know of the way from the file to the sample: conversions, what is left out.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// The files it reads, so that a cache knows when they have changed.
    fn files(&self) -> Vec<PathBuf> {
        Vec::new()
    }

    /// What messages call it: the file or folder it reads.
    fn name(&self) -> String {
        "the source".to_owned()
    }

    /// Bytes that the source and its stream keep in memory.
    fn held(&self) -> u64 {
        0
    }

    /// The same source with the types that are stored.
    fn stored(&self) -> Option<Arc<dyn StreamSource>> {
        None
    }
}

/// A pass over a [`StreamSource`].
pub trait Stream: Send {
    /// Writes the next sample, or answers `false` at the end.
    fn next(&mut self, out: &mut SampleMut<'_>) -> Result<bool>;
}

/// Temporary memory that a thread keeps from sample to sample.
#[derive(Default)]
pub struct Scratch {
    /// Bytes as read from a file.
    pub bytes: Vec<u8>,
    /// A record that has other bytes inside.
    pub record: Vec<u8>,
    /// Bytes after decoding.
    pub decoded: Vec<u8>,
    /// The room in which images are resized.
    pub(crate) resizer: Resizer,
    /// The epoch of the sample that is read.
    pub(crate) epoch: u64,
    /// What is kept for pipelines inside this one.
    pub(crate) nested: Vec<crate::combine::Nested>,
    /// What was read ahead of each file, for samples that are read in turn.
    pub(crate) blocks: Vec<Block>,
}

/// Some bytes of a file.
#[derive(Default)]
pub(crate) struct Block {
    pub start: u64,
    pub bytes: Vec<u8>,
    /// Where the last read ended: one that begins there is taken for the next of a row of reads.
    pub last_end: u64,
}
