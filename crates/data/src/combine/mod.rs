//! Turns several pipelines into one, or one into another of other samples: what stands before `shuffle`, `map` and `batch`.
//!
//! What is combined is read by number (`piped`), so that the result is shuffled without memory and resumed at once. Only
//! `flat_map` and `bucket_by_length` make streams: how many samples come before one is known only by passing them.

mod buckets;
mod flat_map;
mod joined;
mod piped;
mod window;

use std::sync::Arc;

use crate::dataset::Dataset;
use crate::error::{Error, Result};
use crate::sample::{FieldSpec, Sample};
use crate::sample_reader::Input;
use crate::step::At;

pub use flat_map::Emit;
use joined::{Chained, Interleaved, Zipped};
pub(crate) use piped::Nested;
use piped::Piped;
use window::Windows;

/// FNV-1a over the numbers that tell pipelines apart: the same on every machine.
fn fingerprint(parts: impl IntoIterator<Item = u64>) -> u64 {
    let bytes = parts.into_iter().flat_map(u64::to_le_bytes);
    bytes.fold(0xCBF2_9CE4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3))
}

impl Dataset {
    /// Samples of both: the first of one with the first of the other, and so on, as far as the shorter one goes. The fields of
    /// `other` come behind; a name that is there already gets a number (`x`, `x2`).
    ///
    /// ```
    /// use plimsoll_data::{Column, Dataset};
    ///
    /// let numbers = |name: &str, from: i64| Dataset::columns([Column::memory(name, vec![from, from + 1], [])?]);
    /// let pairs = numbers("x", 0)?.zip(numbers("y", 10)?)?;
    /// let batch = pairs.batch(2).batches()?.next().unwrap()?;
    /// assert_eq!(batch.field(1).unwrap().get::<i64>()?, [10, 11]);
    /// # Ok::<(), plimsoll_data::Error>(())
    /// ```
    ///
    /// # Errors
    /// One of them is a stream, has no end, leaves samples out or is batched.
    pub fn zip(self, other: Dataset) -> Result<Dataset> {
        let classes = self.class_names().or(other.class_names());
        let parts = [&self, &other].map(|data| Piped::new(data, "zip"));
        let parts = parts.into_iter().collect::<Result<Vec<_>>>()?;
        let mut data = self.combined(&[&other], Input::Indexed(Arc::new(Zipped::new(parts))));
        data.classes = classes;
        Ok(data)
    }

    /// The samples of this, then those of `other`, which look the same.
    ///
    /// ```
    /// use plimsoll_data::{Column, Dataset};
    ///
    /// let numbers = |from: i64| Dataset::columns([Column::memory("x", vec![from, from + 1], [])?]);
    /// let all = numbers(0)?.concatenate(numbers(10)?)?;
    /// let batch = all.batch(4).batches()?.next().unwrap()?;
    /// assert_eq!(batch.field(0).unwrap().get::<i64>()?, [0, 1, 10, 11]);
    /// # Ok::<(), plimsoll_data::Error>(())
    /// ```
    ///
    /// # Errors
    /// Samples differ in their fields or in the names of their classes; or one of them is a stream, has no end, leaves samples
    /// out or is batched.
    pub fn concatenate(self, other: Dataset) -> Result<Dataset> {
        let parts = self.alike(std::slice::from_ref(&other), "concatenate")?;
        Ok(self.combined(&[&other], Input::Indexed(Arc::new(Chained::new(parts)))))
    }

    /// `block` samples of this, then of each of the `others`, and again; those that have ended are left out from there on.
    ///
    /// ```
    /// use plimsoll_data::{Column, Dataset};
    ///
    /// let numbers = |from: i64, n: i64| Dataset::columns([Column::memory("x", (from..from + n).collect::<Vec<_>>(), [])?]);
    /// let turns = numbers(0, 3)?.interleave([numbers(10, 1)?], 1)?;
    /// let batch = turns.batch(4).batches()?.next().unwrap()?;
    /// assert_eq!(batch.field(0).unwrap().get::<i64>()?, [0, 10, 1, 2]);
    /// # Ok::<(), plimsoll_data::Error>(())
    /// ```
    ///
    /// # Errors
    /// As of [`Dataset::concatenate`], and where `block` is 0.
    pub fn interleave(self, others: impl Into<Vec<Dataset>>, block: u64) -> Result<Dataset> {
        if block == 0 {
            return Err(Error::Stage("interleave takes 1 sample of each at least, not 0".into()));
        }
        let others = others.into();
        let parts = self.alike(&others, "interleave")?;
        let others: Vec<&Dataset> = others.iter().collect();
        Ok(self.combined(&others, Input::Indexed(Arc::new(Interleaved::new(parts, block)))))
    }

    /// Windows of `size` samples that follow each other, each window `shift` samples behind the one before: every field gets an axis
    /// more in front. What does not fill a window at the end is left out. Samples of several windows are read anew for each.
    ///
    /// ```
    /// use plimsoll_data::{Column, Dataset};
    ///
    /// let series = Dataset::columns([Column::memory("x", (0..5).collect::<Vec<i64>>(), [])?])?;
    /// let batch = series.window(3, 2)?.batch(2).batches()?.next().unwrap()?;
    /// assert_eq!(batch.field(0).unwrap().get::<i64>()?, [0, 1, 2, 2, 3, 4]);
    /// # Ok::<(), plimsoll_data::Error>(())
    /// ```
    ///
    /// # Errors
    /// `size` or `shift` is 0, a field varies in length; or the data is a stream, has no end, leaves samples out or is batched.
    pub fn window(self, size: usize, shift: usize) -> Result<Dataset> {
        let windows = Windows::new(Piped::new(&self, "window")?, size, shift)?;
        let mut data = self.combined(&[], Input::Indexed(Arc::new(windows)));
        data.keeps_first = false;
        Ok(data)
    }

    /// As many samples as `f` makes of each, at most `most`, with fields as `spec` says. The result is a stream: shuffled in a
    /// window, and resumed by passing what comes before.
    ///
    /// ```
    /// use plimsoll_data::{Column, Dataset, FieldSpec};
    /// use plimsoll_graph::DType;
    ///
    /// let counts = Dataset::columns([Column::memory("n", vec![2i64, 0, 1], [])?])?;
    /// let each = counts.flat_map([FieldSpec::new("x", DType::I64, [])], 2, |sample, emit, _| {
    ///     let n = sample.get::<i64>(0)?[0];
    ///     (0..n).try_for_each(|_| emit.push(|out| out.set(0, &[n])))
    /// })?;
    /// let batch = each.batch(3).batches()?.next().unwrap()?;
    /// assert_eq!(batch.field(0).unwrap().get::<i64>()?, [2, 2, 1]);
    /// # Ok::<(), plimsoll_data::Error>(())
    /// ```
    ///
    /// # Errors
    /// `most` is 0; or the data is a stream, has no end, leaves samples out or is batched.
    pub fn flat_map<F>(self, spec: impl Into<Vec<FieldSpec>>, most: usize, f: F) -> Result<Dataset>
    where
        F: Fn(&Sample<'_>, &mut Emit<'_>, &At) -> Result<()> + Send + Sync + 'static,
    {
        let piped = Piped::new(&self, "flat_map")?;
        let source = flat_map::FlatMapped::new(piped, spec.into(), most, Arc::new(f))?;
        let mut data = self.combined(&[], Input::Stream(Arc::new(source)));
        data.keeps_first = false;
        Ok(data)
    }

    /// Batches of `batch` samples of about the same length in field `field`: a sample goes into the first bucket whose bound is not below
    /// its length, the longest into one behind the last bound, and a bucket that is full is a batch. It is filled up with zeros to the
    /// bound, so that all batches of a bucket have one shape, and a step is planned once for each bucket. What is left in buckets at the end of a pass shares batches. Put `shuffle` before it.
    ///
    /// Lengths are looked at once, in a pass over everything; 4 bytes are kept for each sample. Samples are read by many threads; a
    /// run is resumed by counting lengths, without reading samples.
    ///
    /// # Errors
    /// The field does not vary in length, bounds do not rise, `batch` is 0; or the data is a stream, has no end, leaves samples
    /// out or is batched.
    pub fn bucket_by_length(self, field: usize, bounds: &[usize], batch: usize) -> Result<Dataset> {
        let piped = Piped::new(&self, "bucket_by_length")?;
        let source = buckets::Buckets::new(piped, field, bounds, batch)?;
        Ok(self.combined(&[], Input::Stream(Arc::new(source))).padded_batch_to(batch, bounds))
    }

    /// This and others, whose samples look the same.
    fn alike(&self, others: &[Dataset], what: &str) -> Result<Vec<Piped>> {
        let (spec, classes) = (self.spec()?, self.class_names());
        for other in others {
            let theirs = other.spec()?;
            if theirs != spec {
                let of = |spec: &[FieldSpec]| {
                    let field =
                        |field: &FieldSpec| format!("{} {} {:?}", field.name, field.dtype, field.shape);
                    spec.iter().map(field).collect::<Vec<_>>().join(", ")
                };
                let (ours, theirs) = (of(&spec), of(&theirs));
                return Err(Error::Stage(format!(
                    "{what}: samples differ: {ours}, and {theirs}; map one of them"
                )));
            }
            if other.class_names() != classes {
                let what =
                    format!("{what}: classes have other names, so that their numbers mean something else");
                return Err(Error::Stage(what));
            }
        }
        std::iter::once(self).chain(others).map(|data| Piped::new(data, what)).collect()
    }

    /// The same settings over what was combined of this and others.
    fn combined(self, others: &[&Dataset], input: Input) -> Dataset {
        let mut data = self.over(input);
        for note in others.iter().flat_map(|other| other.notes()) {
            if !data.notes.contains(&note) {
                data.notes.push(note);
            }
        }
        data.keeps_first = true;
        data
    }
}
