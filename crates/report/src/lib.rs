//! Turns plan and run records into pages and traces for people: one HTML page, one Perfetto trace, one JSON document.
//!
//! What is not here: the engine. Records are plain JSON and CSV files as the `plimsoll` command writes them
//! (`docs/report.md` is their schema), so that a report can be made anywhere, long after the run.
//!
//! ```
//! let record = plimsoll_report::Record::from_plan(r#"{"model": "cnn", "batch": 32, "planned_bytes": 1000}"#)?;
//! let page = plimsoll_report::page(&record)?;
//! assert!(page.contains("cnn") && page.starts_with("<!doctype html>"));
//! # Ok::<(), plimsoll_report::Error>(())
//! ```

mod error;
mod record;
mod step;

mod page;
mod read;
mod table;
mod trace;

pub use error::{Error, Result};
pub use page::page;
pub use record::{Epoch, Event, Frontier, LedgerRow, Plan, Point, Record, Run, Steps};
pub use step::{Instruction, Resident, Step, Stretch, Tensor};
pub use trace::trace;
