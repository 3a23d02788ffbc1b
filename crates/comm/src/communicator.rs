//! What an engine asks of its ranks: calls that are started, moved along and waited for.

use std::fmt;

use plimsoll_graph::ops::Rank;

use crate::call::Call;
use crate::error::{CommError, Result};

/// A call that was started. It is waited for, or tested until it is complete.
#[derive(Debug, PartialEq, Eq, Hash)]
#[must_use = "a call is complete when it was waited for"]
pub struct Ticket(pub(crate) u64);

/// Where the values of a call lie. All of it is the caller's, before and after.
///
/// | call | input | output |
/// | --- | --- | --- |
/// | all-reduce | all values | all results |
/// | reduce-scatter | all values | this rank's shard of results |
/// | all-gather | this rank's shard | all shards |
/// | broadcast | unused | the root's values; read on the root |
/// | send | the values | unused |
/// | receive | unused | the values |
/// | barrier | unused | unused |
///
/// Input and output may be the same place (for a shard: its place among all values), or lie apart.
#[derive(Clone, Copy, Debug)]
pub struct Buffers {
    /// What this rank gives.
    pub input: *const u8,
    /// What this rank gets.
    pub output: *mut u8,
    /// Bytes for the call to work in, aligned to 8.
    pub scratch: *mut u8,
    /// How many there are; at least [`Communicator::scratch_bytes`].
    pub scratch_bytes: usize,
}

impl Buffers {
    /// Values that are input and output, and scratch.
    pub fn in_place(values: *mut u8, scratch: &mut [u64]) -> Buffers {
        Buffers {
            input: values,
            output: values,
            scratch: scratch.as_mut_ptr().cast(),
            scratch_bytes: size_of_val(scratch),
        }
    }
}

/// What this rank has sent and received since it was connected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes handed to the transport, headers included.
    pub sent: u64,
    /// Bytes that came, headers included.
    pub received: u64,
    /// Messages that were sent.
    pub messages: u64,
}

impl fmt::Display for Traffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes sent in {} messages, {} received", self.sent, self.messages, self.received)
    }
}

/// A rank among others.
///
/// All ranks make the same collective calls in the same order; what differs is an error that names both calls. Several calls may be
/// under way at once. Calls move along while any of them is tested or waited for, and by [`Communicator::progress`]; every wait ends
/// within the rank timeout after the last thing that moved.
///
/// Results have the same bits in every run and on every backend of this crate whose ranks exchange messages: values are added in the order of ranks.
pub trait Communicator: Send + Sync {
    /// This rank, from 0 on.
    fn rank(&self) -> usize;

    /// How many ranks there are.
    fn ranks(&self) -> usize;

    /// What they are connected by: `threads`, `tcp`, or the name and version of a library.
    fn backend(&self) -> &str;

    /// Whether values lie in memory of the host; otherwise in that of a card, and buffers are its pointers.
    fn is_on_host(&self) -> bool {
        true
    }

    /// What a call needs as scratch.
    fn scratch_bytes(&self, call: &Call) -> usize;

    /// Starts a call and returns at once.
    ///
    /// # Safety
    /// The buffers are as long as the call says. Until the ticket is tested complete, waited for, or this communicator is dropped, they stay
    /// where they are, nobody writes to the input, and nobody reads or writes output and scratch. After an error of a wait they are the
    /// caller's again.
    ///
    /// # Errors
    /// The call makes no sense, or the ranks have failed before.
    unsafe fn start(&self, call: &Call, buffers: Buffers) -> Result<Ticket>;

    /// As [`Communicator::scratch_bytes`], of a call that a group of ranks makes.
    fn scratch_within(&self, of: Rank, call: &Call) -> usize {
        debug_assert!(of.ranks <= self.ranks());
        self.scratch_bytes(call)
    }

    /// As [`Communicator::start`], of a call that a group of ranks makes: this one as `of`, and the others of its group.
    ///
    /// # Safety
    /// As of [`Communicator::start`].
    ///
    /// # Errors
    /// As of [`Communicator::start`], and where this backend knows all ranks alone.
    unsafe fn start_within(&self, of: Rank, call: &Call, buffers: Buffers) -> Result<Ticket> {
        if of.ranks != self.ranks() {
            let why = format!(
                "{} has no groups of ranks; ranks that exchange messages have (threads, MPI, TCP)",
                self.backend()
            );
            return Err(CommError::Invalid { call: call.to_string(), why });
        }
        // SAFETY: the caller's promise.
        unsafe { self.start(call, buffers) }
    }

    /// Moves along and says whether a call is complete.
    ///
    /// # Errors
    /// A rank has ended, stopped, or made another call.
    fn test(&self, ticket: &Ticket) -> Result<bool>;

    /// Waits until a call is complete.
    ///
    /// # Errors
    /// A rank does not answer, has ended, stopped, or made another call.
    fn wait(&self, ticket: Ticket) -> Result<()>;

    /// Moves all calls along that are under way, without waiting; whether any is left.
    ///
    /// # Errors
    /// As [`Communicator::test`].
    fn progress(&self) -> Result<bool>;

    /// Tells all ranks that this one stops, so that none waits for it: their calls fail with the reason.
    fn stop(&self, reason: &str);

    /// Bytes that a library took for itself when ranks were connected, as measured: of this process, or of its card. What this crate takes beside it is a
    /// few KiB for each other rank and each call under way.
    fn own_bytes(&self) -> u64;

    /// What was sent and received.
    fn traffic(&self) -> Traffic;
}
