//! Turns a problem and a budget into a verified plan.
//!
//! A [`Problem`] is a training step as the planner sees it: tensors with bytes and ops with times. [`plan()`] finds the
//! fastest [`Plan`] it can that keeps to a byte budget, or says in an [`Infeasible`] why there is none; [`verify()`]
//! checks any plan against its problem and shares no code with what made it.
//!
//! The modules stand in the order in which data passes them:
//!
//! ```text
//! trace ─► problem ─► order ─► recompute (under a grid of budgets) ─► lifespan ─► pack ─► plan ─► verify
//! ```
//!
//! What is not here: tensors' values, ops' meaning, devices.

pub mod check;
mod digest;
pub mod problem;
pub mod trace;

mod indexed_problem;
mod lifespan;
mod order;

mod anneal;
mod bounds;
mod budget_grid;
mod copy_price;
mod defer;
mod effort;
mod estimate;
mod exhaustive;
mod floor;
mod flow;
mod instant;
mod level;
mod look_ahead;
mod low_peak;
mod overlap;
mod parallel;
mod recompute;
mod repack;
mod rng;
mod schedule;
mod starts;
mod step_search;

pub mod csv;
pub mod pack;
mod place;
mod steps;

mod emit;
pub mod infeasible;
pub mod instances;
pub mod plan;
pub mod planner;
pub mod text;

pub mod verify;

pub use check::ProblemError;
pub use digest::PLANNER;
pub use infeasible::Infeasible;
pub use instances::{Content, Instance, instances, live_bytes};
pub use parallel::{Job, in_turn, is_on_all_cores, on_all_cores};
pub use plan::{Exactness, Figures, Placed, Plan, Request, Step};
pub use planner::{PlanError, Planner, plan};
pub use plimsoll_record::{Digest, Kind};
pub use problem::{Carry, Home, Link, Op, OpId, Problem, Tensor, TensorId, View};
pub use steps::steps_taken;
pub use verify::{Fault, verify};
