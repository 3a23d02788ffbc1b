//! Turns labels into the number of classes, and refuses those that are none.

use plimsoll_device::Bytes;
use plimsoll_graph::DType;

use crate::dataset::Dataset;
use crate::error::{Error, Result};

/// More classes than this are taken for labels that are no classes.
const CLASSES_MOST: i64 = 1 << 20;

impl Dataset {
    /// One more than the largest label in field `field`, in one pass over everything, inside about a mebibyte beside what
    /// a batch takes. Nothing where the labels are no whole numbers.
    ///
    /// # Errors
    /// A label is negative, or so large that it can be no class: the error names the sample.
    pub fn count_classes(&self, field: usize) -> Result<Option<usize>> {
        if self.spec()?.get(field).is_none_or(|field| field.dtype != DType::I64) {
            return Ok(None);
        }
        let little = self.clone().batch(64).prefetch(1).workers(1);
        let little = match little.clone().memory(Bytes::mib(1)).declared_bytes() {
            Err(Error::Budget { least, .. }) => little.memory(least),
            _ => little.memory(Bytes::mib(1)),
        };
        let mut most = -1;
        for batch in little.batches()? {
            let batch = batch?;
            let Some(labels) = batch.field(field) else { continue };
            let (labels, samples) = (labels.get::<i64>()?, batch.samples().max(1));
            let each = (labels.len() / samples).max(1);
            for (labels, &sample) in labels.chunks(each).zip(batch.numbers()) {
                self.check_labels(labels, sample, CLASSES_MOST)?;
                most = labels.iter().copied().fold(most, i64::max);
            }
        }
        Ok(usize::try_from(most + 1).ok())
    }

    /// The same samples, each with its labels in field `field` compared with the number of classes: a label that is none of
    /// them is an error that names the sample.
    #[must_use]
    pub fn with_classes(self, field: usize, classes: usize) -> Dataset {
        let most = i64::try_from(classes).unwrap_or(i64::MAX);
        let named = self.clone();
        self.map_in_place(move |sample, at| {
            let whole = sample.spec().get(field).is_some_and(|field| field.dtype == DType::I64);
            if whole { named.check_labels(sample.get_mut::<i64>(field)?, at.index, most) } else { Ok(()) }
        })
    }

    fn check_labels(&self, labels: &[i64], sample: u64, classes: i64) -> Result<()> {
        let Some(&value) = labels.iter().find(|&&label| !(0..classes).contains(&label)) else {
            return Ok(());
        };
        let name = self.sample_name(sample).map_or(String::new(), |name| format!(" ({name})"));
        Err(Error::Label { origin: self.input.name(), sample, name, value, most: classes - 1 })
    }
}
