//! Turns the fields of rows that are yet to be written into data to plan with.

use super::array::reading;
use super::{Scratch, Source, spec_and_len};
use crate::dataset::Dataset;
use crate::error::{Error, Result};
use crate::sample::{FieldSpec, SampleMut};

/// Rows of `.npy` files that nobody has written yet.
struct RowsToCome {
    spec: Vec<FieldSpec>,
    count: u64,
}

impl Source for RowsToCome {
    spec_and_len!(count);

    fn read(&self, _: u64, _: &mut Scratch, _: &mut SampleMut<'_>) -> Result<()> {
        Err(Error::Empty { origin: self.name(), why: "they are there to plan with".to_owned() })
    }

    fn name(&self) -> String {
        "rows that are yet to be written".to_owned()
    }

    fn scratch_bytes(&self) -> u64 {
        let row = |field: &FieldSpec| field.shape.iter().product::<usize>() * field.dtype.bytes();
        reading(self.spec.len(), self.spec.iter().map(row).max().unwrap_or(0))
    }
}

impl Dataset {
    /// So many rows of `.npy` files that are yet to be written, a file a field: to plan with before they are. A pipeline over them is counted as
    /// it will be over those of [`Dataset::npy`]; to read one is an error.
    ///
    /// ```
    /// use plimsoll_data::{Dataset, FieldSpec};
    /// use plimsoll_graph::DType;
    /// let spec = vec![FieldSpec::new("tokens", DType::I32, [512]), FieldSpec::new("labels", DType::I32, [512])];
    /// let data = Dataset::npy_to_come(spec, 1000).batch(8);
    /// assert!(data.declared_bytes()?.get() > 0 && data.batches()?.next().unwrap().is_err());
    /// # Ok::<(), plimsoll_data::Error>(())
    /// ```
    pub fn npy_to_come(spec: Vec<FieldSpec>, count: u64) -> Dataset {
        Dataset::source(RowsToCome { spec, count })
    }
}
