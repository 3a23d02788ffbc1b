//! The records of plans and runs as types: who writes a file and who reads it use the same ones.
//!
//! The engine fills these types, `plimsoll report` draws them, `docs/report.md` describes the files. Every file says the version
//! of the schema it was written in, and a file of another version is refused by name ([`Schema`]). What is read from a file is
//! checked before anybody draws from it ([`Step::check`]).
//!
//! What is not here: the engine, and where files are. This crate depends on nothing else of Plimsoll.

mod error;
mod schema;

mod kind;

mod frontier;
mod instruction;
mod plan;
mod step;
mod tensor;

mod epoch;
mod event;
mod ledger;
mod profile;
mod profile_table;
mod ranks;
mod run;
mod steps;

mod document;

mod digest;
mod kept;

pub use digest::Digest;
pub use document::{PlanFile, Record};
pub use epoch::Epoch;
pub use error::{Error, Result};
pub use event::Event;
pub use frontier::{Frontier, Point};
pub use instruction::{Action, Instruction, Phase};
pub use kept::{KeptBytes, keep, kept};
pub use kind::Kind;
pub use ledger::{Ledger, LedgerRow};
pub use plan::{HostPlan, Plan, PlanParts};
pub use profile::{Profile, ProfileRow, ProfiledCopy, ProfiledMemory, ProfiledRun, ProfiledStep, Spent};
pub use profile_table::ProfileTable;
pub use ranks::{RankBytes, RankRow, Ranks, Refusal, Strategy};
pub use run::Run;
pub use schema::{Schema, parse};
pub use step::{Section, Step, StepBytes, profile};
pub use steps::Steps;
pub use tensor::{Interval, Resident};
