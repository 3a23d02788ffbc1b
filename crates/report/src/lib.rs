//! Turns plan and run records into pages and traces for people: one HTML page, one Perfetto trace, one JSON document.
//!
//! What is not here: the engine. Records are plain JSON and CSV files as the `plimsoll` command writes them
//! (`docs/report.md`), so that a report can be made anywhere, long after the run; their types are those of `plimsoll-record`, which
//! the engine writes them with.
//!
//! ```
//! let record = plimsoll_report::parse_plan(r#"{"model": "cnn", "batch": 32, "planned_bytes": 1000}"#)?;
//! let page = plimsoll_report::page(&record)?;
//! assert!(page.contains("cnn") && page.starts_with("<!doctype html>"));
//! # Ok::<(), plimsoll_report::Error>(())
//! ```

mod error;

mod page;
mod profile_trace;
mod read;
mod trace;

pub use error::{Error, Result};
pub use page::page;
pub use profile_trace::write_profile_trace;
pub use read::{parse_plan, read};
pub use trace::trace;

pub use plimsoll_record as record;
