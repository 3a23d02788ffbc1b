//! Runs `.tflite` models, and plan files of them, in one arena whose size is known before.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let file = std::fs::read("model.tflite")?;
//! let model = plimsoll_lite::Model::load(&file)?;
//! let mut arena = vec![0; model.arena_bytes()];
//! model.set_input(0, &[0.0; 784], &mut arena)?;
//! model.run(&mut arena)?;
//! let mut scores = [0.0; 10];
//! model.get_output(0, &arena, &mut scores)?;
//! # Ok(())
//! # }
//! ```
//!
//! A file is untrusted: offsets, shapes, lengths, versions and the order of operators are checked when it is loaded, and what cannot be run
//! is refused there, by operator and index. Loading takes memory for tables ([`Model::table_bytes`]); running takes none but the arena.
//! The crate needs `alloc` and, without the feature `std`, nothing else.
//!
//! What is not here: threads, state between runs, control flow, shapes that are known only when a model runs.
#![cfg_attr(not(feature = "std"), no_std)]

extern crate alloc;

mod bytes;
#[cfg(feature = "capi")]
mod capi;
mod error;
mod flat;
mod load;
mod math;
mod model;
mod ops;
mod plan;
mod plan_file;
mod quant;
mod quick;
mod schema;
mod tensor;

pub use error::{Error, Result};
pub use load::Options;
pub use model::{Model, OperatorInfo, TensorInfo};
pub use plan_file::plan_file;
pub use schema::Type;

/// The header of the functions for C (`capi`), for programs that write it beside their models.
pub const C_HEADER: &str = include_str!("../include/plimsoll_lite.h");

/// The names of all operators that can be run, as the schema has them.
pub fn operator_names() -> impl Iterator<Item = &'static str> {
    schema::OPS.iter().map(|info| info.name)
}
