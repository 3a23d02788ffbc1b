//! Input pipelines: files in, batches out, inside one byte budget.
//!
//! ```
//! use plimsoll_data::{AUTO, Column, Dataset};
//!
//! let x = Column::memory("x", (0..600).map(|i| i as f32).collect::<Vec<_>>(), [6])?;
//! let y = Column::memory("y", (0..100).collect::<Vec<i64>>(), [])?;
//! let train = Dataset::columns([x, y])?.shuffle(100, 42).batch(32).prefetch(AUTO);
//! for batch in train.batches()? {
//!     let batch = batch?;
//!     let (x, y) = (batch.field(0).unwrap(), batch.field(1).unwrap());
//!     assert_eq!(x.get::<f32>()?[0], 6.0 * y.get::<i64>()?[0] as f32);
//! }
//! # Ok::<(), plimsoll_data::Error>(())
//! ```
//!
//! Modules in the order in which data passes them: [`source`] → feed (order, window) → engine (steps, ring) → batch.
//!
//! **What is counted.** The budget ([`Dataset::memory`]) bounds what the source keeps, the windows of shuffles, the
//! stacks and scratch of threads, and all batches. A closure's own memory is not known here.
//!
//! **What is deterministic.** The batches, for the same source, stages and seeds: whatever the number of threads,
//! whatever the budget, resumed or not.

mod assemble;
mod augment;
mod auto;
mod batch;
mod batch_map;
mod batches;
mod cache;
mod classes;
mod columns;
mod combine;
mod counters;
mod dataset;
mod digest;
mod engine;
mod error;
mod fields;
mod held_back;
mod open;
mod order;
mod plan;
mod position;
mod recipe;
mod ring;
mod sample;
mod sample_reader;
mod scale;
mod share;
pub mod source;
mod step;
mod window;
mod worker;

pub use augment::{Augment, Change};
pub use batch::{Batch, Field};
pub use batch_map::BatchMut;
pub use batches::{Batches, Watch};
pub use columns::Columns;
pub use combine::Emit;
pub use counters::StageCount;
pub use dataset::Dataset;
pub use error::{Error, Result};
pub use fields::{FieldKind, Fields, Wanted};
pub use open::{Open, Split};
pub use plan::{AUTO, Amount};
pub use position::Position;
pub use recipe::OnError;
pub use sample::{FieldSpec, Number, Sample, SampleMut};
pub use scale::Scale;
pub use share::BatchShare;
pub use source::{Column, Draw, Images, Memory, Random, Shapes, Tokens};
pub use step::At;

/// Expects each text to be refused with words that name what is wrong.
#[cfg(test)]
fn refused<T: std::str::FromStr<Err: std::fmt::Display>>(cases: &[(&str, &str)]) {
    for (text, expected) in cases {
        let said = text.parse::<T>().err().map(|why| why.to_string()).unwrap_or_default();
        assert!(said.contains(expected), "{text}: {said}");
    }
}
