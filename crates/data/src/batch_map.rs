//! What is done to a whole batch before it is handed out.

use std::sync::Arc;

use crate::dataset::Dataset;
use crate::error::{Error, Result};
use crate::recipe::Stage;
use crate::ring::Full;
use crate::sample::{FieldSpec, Number};

/// A batch whose samples are there and may still be changed.
pub struct BatchMut<'a> {
    pub(crate) full: &'a mut Full,
    pub(crate) samples: usize,
    pub(crate) extents: &'a [usize],
    pub(crate) epoch: u64,
}

impl BatchMut<'_> {
    /// How many samples it has.
    pub fn samples(&self) -> usize {
        self.samples
    }

    /// The number of each sample in its source.
    pub fn numbers(&self) -> &[u64] {
        &self.full.numbers()[..self.samples]
    }

    /// How often the source was gone through before its first sample.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// What the fields of a sample look like.
    pub fn spec(&self) -> &[FieldSpec] {
        self.full.spec()
    }

    /// The elements of a field, sample after sample, those of varying length filled up to the longest; an error where they are
    /// of another type.
    pub fn get_mut<T: Number>(&mut self, field: usize) -> Result<&mut [T]> {
        let spec = self.full.spec().get(field);
        let Some(spec) = spec.filter(|spec| spec.dtype == T::DTYPE) else {
            return Err(Error::refused(format!("the batch has no field {field} of type {}", T::DTYPE)));
        };
        let bytes = self.samples * self.extents[field] * spec.inner_bytes();
        bytemuck::try_cast_slice_mut(&mut self.full.bytes_mut(field)[..bytes])
            .map_err(|error| Error::refused(error.to_string()))
    }
}

pub(crate) type BatchFn = dyn Fn(&mut BatchMut<'_>) -> Result<()> + Send + Sync;

/// A change of whole batches.
#[derive(Clone)]
pub(crate) struct BatchStep {
    pub name: &'static str,
    /// What tells it from others of its name, for positions in a pipeline.
    pub said: String,
    pub f: Arc<BatchFn>,
}

impl BatchStep {
    pub fn new(
        name: &'static str,
        said: String,
        f: impl Fn(&mut BatchMut<'_>) -> Result<()> + Send + Sync + 'static,
    ) -> BatchStep {
        BatchStep { name, said, f: Arc::new(f) }
    }
}

impl Dataset {
    /// Changes whole batches where they are, in the thread that takes them, after [`Dataset::batch`]: what looks at several samples
    /// at once. Fields stay what they are.
    ///
    /// ```
    /// use plimsoll_data::{Column, Dataset};
    ///
    /// let x = Column::memory("x", vec![1.0f32, 2.0, 6.0], [])?;
    /// let centered = Dataset::columns([x])?.batch(3).map_batch(|batch| {
    ///     let x = batch.get_mut::<f32>(0)?;
    ///     let mean = x.iter().sum::<f32>() / x.len() as f32;
    ///     x.iter_mut().for_each(|x| *x -= mean);
    ///     Ok(())
    /// });
    /// assert_eq!(centered.batches()?.next().unwrap()?.field(0).unwrap().get::<f32>()?, [-2.0, -1.0, 3.0]);
    /// # Ok::<(), plimsoll_data::Error>(())
    /// ```
    #[must_use]
    pub fn map_batch<F>(self, f: F) -> Dataset
    where
        F: Fn(&mut BatchMut<'_>) -> Result<()> + Send + Sync + 'static,
    {
        self.with(Stage::EachBatch { step: BatchStep::new("map_batch", String::new(), f), is_mixup: false })
    }
}
