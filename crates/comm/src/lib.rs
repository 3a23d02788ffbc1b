//! Ranks that train together: calls that exchange values between threads of a process or processes of several machines.
//!
//! A [`Communicator`] is one rank among others: [all-reduce, reduce-scatter, all-gather, broadcast, send and receive, barrier](Kind) on
//! buffers that the caller owns, started and waited for. What a call needs as scratch is known before it is made
//! ([`Communicator::scratch_bytes`]); nothing is copied but from where values are to where they are wanted.
//!
//! - [`local`]: threads of one process; what all others are held against.
//! - [`mpi`]: processes that `mpirun` or `srun` started. The library is loaded at run time: Open MPI, or MPICH and what shares its binary interface.
//! - [`tcp`]: processes that were told their rank and where to meet, as by `torchrun`.
//! - [`nccl`]: cards, over ranks that are connected by one of these.
//! - [`connect`]: whichever of these the environment speaks of.
//!
//! All three carry messages and nothing more; calls are made of messages in one place ([`Schedule`]), so that all give the same bits.
//! Machines that are not here are records ([`Machine`]), and what a call costs there is computed ([`Topology`]).
//! Every wait ends: a rank that has ended, hangs or makes another call is named by all ([`CommError`]).

mod active;
mod agree;
mod background;
mod call;
mod check;
mod collectives;
mod communicator;
mod cost;
mod element;
mod error;
mod imagined;
mod launch;
mod link;
pub mod local;
mod machine;
pub mod mpi;
pub mod nccl;
mod peers;
mod ranks;
mod schedule;
mod shard;
pub mod tcp;
mod transport;

pub use agree::agree;
pub use background::Background;
pub use call::{Call, Kind, Reduce};
pub use collectives::Collectives;
pub use communicator::{Buffers, Communicator, Ticket, Traffic};
pub use cost::{Topology, Way};
pub use element::Element;
pub use error::{CommError, Result};
pub use imagined::Imagined;
pub use launch::{Launch, connect, connect_as};
pub use link::{Link, measure};
pub use machine::Machine;
pub use nccl::OnCards;
pub use peers::Connected;
pub use ranks::{RANK_TIMEOUT, Ranks};
pub use schedule::{Message, Place, SCRATCH_BYTES, Schedule};
pub use shard::shard;
