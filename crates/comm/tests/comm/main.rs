//! Every call on every backend against a plain reference, and every fault as an error that names a rank.

mod calls;
mod cards;
mod copies;
mod faults;
mod meetings;
mod mpi;
mod reference;
mod sequences;
mod worlds;

/// Counts, for the test that nothing is copied.
#[global_allocator]
static COUNTING: plimsoll_testing::Counting = plimsoll_testing::Counting;
