//! Turns what a pipeline reads into a number, by a few of its samples: whether several processes read the same data.

use crate::dataset::Dataset;
use crate::error::Result;
use crate::sample::Rows;
use crate::sample_reader::{Input, caught};
use crate::source::Scratch;

/// So many samples are read, from the first to the last.
const READ: u64 = 8;

impl Dataset {
    /// A number that tells the samples of its source from others: of a source that is read by number, what a few of them are; of files that are
    /// read from front to back, how long those are. Where they lie makes no difference.
    ///
    /// ```
    /// use plimsoll_data::{Column, Dataset};
    /// let of = |last: f32| {
    ///     let x: Vec<f32> = (0..99).map(|i| i as f32).chain([last]).collect();
    ///     Dataset::columns([Column::memory("x", x, [])?])?.batch(4).content_digest()
    /// };
    /// assert_eq!(of(99.0)?, of(99.0)?);
    /// assert_ne!(of(99.0)?, of(98.0)?);
    /// # Ok::<(), plimsoll_data::Error>(())
    /// ```
    ///
    /// # Errors
    /// The pipeline makes no sense. A sample that cannot be read is a difference like others.
    pub fn content_digest(&self) -> Result<u64> {
        let input = self.recipe()?.input;
        // FNV-1a: the same on every machine.
        let mut sum = 0xCBF2_9CE4_8422_2325u64;
        let mut add = |bytes: &[u8]| {
            bytes.iter().for_each(|&byte| sum = (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3));
        };
        match &input {
            Input::Indexed(source) => {
                let (spec, n) = (source.spec().to_vec(), source.len());
                let mut row = Rows::new(&spec, 1);
                let mut scratch = Scratch::default();
                for k in 0..READ.min(n) {
                    let index = k * (n - 1) / READ.min(n).saturating_sub(1).max(1);
                    let read = caught(|| source.read(index, &mut scratch, &mut row.row_mut(&spec, 0)));
                    add(&[u8::from(read.is_ok())]);
                    if read.is_ok() {
                        let sample = row.row(&spec, 0);
                        (0..spec.len()).for_each(|field| add(sample.bytes(field)));
                    }
                }
            }
            Input::Stream(source) => {
                for file in source.files() {
                    add(&std::fs::metadata(&file).map_or(0, |metadata| metadata.len()).to_le_bytes());
                }
            }
        }
        Ok(sum)
    }
}
