//! Runs what was planned: traced functions, and training steps over state that they update in place.

#[cfg(test)]
mod chain;
mod forms;
mod function;
mod ledger;
#[cfg(test)]
mod on_a_fake_card;
#[cfg(test)]
mod plans_and_steps;
mod profile;
mod profiling;
mod state;
mod step;
mod variant;
mod workspace;

pub use function::{Function, function};
pub use profiling::profile_room;
pub use state::StateTensor;
pub use step::{Mode, Step};
