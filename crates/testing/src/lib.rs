//! What tests of several crates share, in one place. Nothing of the engine depends on it.
//!
//! - [`group`]: tests that need a card, a browser and the like, counted where they cannot run.
//! - [`allocators`]: what every allocator must do, on whatever device.
//! - [`Counting`]: an allocator that counts.
//! - [`child`]: a test that starts itself again, and commands that write JSON lines.
//! - [`damaged`]: files that have gone bad, in every way there is.
//! - [`Dice`]: numbers that are the same in every run.
//! - [`free_port`]: a port for a test to name.
//! - [`check_joint_cross_entropy`]: losses and gradients made at once, against both apart.
//! - [`launchers`]: what starts ranks of MPI.
//! - [`mod@reference`]: every op's kernel against the reference interpreter, for any backend.
//! - [`Scratch`]: a folder of a test's own.

mod allocations;
pub mod allocators;
pub mod child;
mod damage;
mod dice;
mod groups;
mod joint_cross_entropy;
mod mpi;
mod ports;
pub mod reference;
mod scratch;

pub use allocations::Counting;
pub use damage::damaged;
pub use dice::Dice;
pub use groups::{alone, group, needs};
pub use joint_cross_entropy::check_joint_cross_entropy;
pub use mpi::{Launcher, launchers};
pub use ports::free_port;
pub use scratch::Scratch;
