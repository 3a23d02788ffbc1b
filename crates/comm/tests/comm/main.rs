//! Every call on every backend against a plain reference, and every fault as an error that names a rank.

mod calls;
mod faults;
mod meetings;
mod mpi;
mod reference;
mod sequences;
mod worlds;
