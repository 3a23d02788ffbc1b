//! A training step of your own, planned and run inside a memory limit.
//!
//! [`Step::compile_with`] traces a function over state and inputs once; running it allocates nothing. For a model with one loss and one
//! optimizer use [`Trainer`](crate::train::Trainer) instead.

#[doc(inline)]
pub use plimsoll_run::record::{Profile as StepProfile, ProfileRow, ProfileTable, ProfiledStep, Spent};
#[doc(inline)]
pub use plimsoll_run::{
    Kind, Mode, StateSpec, StateTensor, Step, StepArgs, StepOptions, StepResult, profile_room,
};
