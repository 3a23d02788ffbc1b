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
        let keeps_first = self.keeps_first && field > 0;
        let mut data = self.map_in_place(move |sample, at| {
            let whole = sample.spec().get(field).is_some_and(|field| field.dtype == DType::I64);
            if whole { named.check_labels(sample.get_mut::<i64>(field)?, at.index, most) } else { Ok(()) }
        });
        data.keeps_first = keeps_first;
        data
    }

    /// The same samples with the class numbers of field `field` as one-hot numbers: an axis more, of `classes` numbers of type f32, of
    /// which the one of the class is 1.
    ///
    /// ```
    /// use plimsoll_data::{Column, Dataset};
    ///
    /// let labels = Dataset::columns([Column::memory("y", vec![2i64, 0], [])?])?.one_hot(0, 3)?;
    /// let batch = labels.batch(2).batches()?.next().unwrap()?;
    /// assert_eq!(batch.field(0).unwrap().get::<f32>()?, [0.0, 0.0, 1.0, 1.0, 0.0, 0.0]);
    /// # Ok::<(), plimsoll_data::Error>(())
    /// ```
    ///
    /// # Errors
    /// The field is not of whole numbers (i64). A label that is no class is an error when its sample is read.
    pub fn one_hot(self, field: usize, classes: usize) -> Result<Dataset> {
        let mut spec = self.spec()?;
        let Some(label) = spec.get_mut(field).filter(|label| label.dtype == DType::I64 && !label.varying)
        else {
            return Err(Error::Stage(format!("field {field} is no array of class numbers (i64)")));
        };
        label.dtype = DType::F32;
        label.shape.push(classes);
        let (named, most) = (self.clone(), i64::try_from(classes).unwrap_or(i64::MAX));
        let keeps_first = self.keeps_first && field > 0;
        let mut data = self.map(spec, move |sample, out, at| {
            let labels = sample.get::<i64>(field)?;
            named.check_labels(labels, at.index, most)?;
            for other in (0..sample.spec().len()).filter(|&other| other != field) {
                out.copy_field(other, sample);
            }
            let hot = out.get_mut::<f32>(field)?;
            hot.fill(0.0);
            labels.iter().enumerate().for_each(|(at, &class)| hot[at * classes + class as usize] = 1.0);
            Ok(())
        });
        data.keeps_first = keeps_first;
        Ok(data)
    }

    fn check_labels(&self, labels: &[i64], sample: u64, classes: i64) -> Result<()> {
        let Some(&value) = labels.iter().find(|&&label| !(0..classes).contains(&label)) else {
            return Ok(());
        };
        let name = self.sample_name(sample).map_or(String::new(), |name| format!(" ({name})"));
        Err(Error::Label { origin: self.input.name(), sample, name, value, most: classes - 1 })
    }
}
