//! Samples that are numbers, for tests of what a pipeline makes of any.

use plimsoll_data::{Dataset, FieldSpec};
use plimsoll_graph::DType;

/// One whole number a sample.
pub fn number() -> [FieldSpec; 1] {
    [FieldSpec::new("x", DType::I64, [])]
}

/// Samples 0, 1, 2, …, read by number.
pub fn indexed(len: u64) -> Dataset {
    Dataset::from_fn(number(), len, |i, out| out.set(0, &[i as i64]))
}

/// The same as a stream.
pub fn streamed(len: u64) -> Dataset {
    Dataset::from_iter(number(), move || 0..len, |i, out| out.set(0, &[i as i64]))
}
