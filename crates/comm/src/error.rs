//! What can go wrong between ranks, in sentences that name the rank.

use std::time::Duration;

use thiserror::Error;

/// Why an exchange, or the start of one, failed. After any but [`CommError::Invalid`] a communicator is of no more use, and every
/// call says so again.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CommError {
    // === This rank's own mistakes ===
    /// The call makes no sense; nothing was sent.
    #[error("{call}: {why}")]
    Invalid {
        /// The call.
        call: String,
        /// What is wrong with it.
        why: String,
    },

    // === Ranks that do not agree ===
    /// Two ranks are not in the same call.
    #[error(
        "ranks do not make the same calls: rank {rank} is in {own}, rank {peer} in {other}; check that all ranks run the same program \
         on the same plan"
    )]
    Mismatch {
        /// The rank that saw it.
        rank: usize,
        /// What it was in.
        own: String,
        /// The other rank.
        peer: usize,
        /// What that one was in.
        other: String,
    },
    /// Ranks were started with different programs, plans, limits or data.
    #[error("ranks were not started alike: {0}")]
    Disagree(String),

    // === Ranks that fail ===
    /// A rank does not answer.
    #[error(
        "rank {peer} has not answered rank {rank} for {} s, in {doing}; {heard}; it hangs, is stopped or is not in the same call (the \
         wait is bounded by the rank timeout)",
        .after.as_secs_f64()
    )]
    Silent {
        /// The rank that waited.
        rank: usize,
        /// The one that does not answer.
        peer: usize,
        /// How long it was waited for.
        after: Duration,
        /// What is waited in.
        doing: String,
        /// What the other one last said it does.
        heard: String,
    },
    /// A rank has ended.
    #[error("rank {peer} has ended while rank {rank} waits for it, in {doing}")]
    Gone {
        /// The rank that waits.
        rank: usize,
        /// The one that has ended.
        peer: usize,
        /// What is waited in.
        doing: String,
    },
    /// Another rank stopped, and said why.
    #[error("rank {by} stopped: {reason}")]
    Stopped {
        /// That rank.
        by: usize,
        /// What it said.
        reason: String,
    },

    // === What ranks are connected by ===
    /// The library or the system refused.
    #[error("rank {rank}, in {doing}: {why}")]
    Transport {
        /// The rank that it happened on.
        rank: usize,
        /// What it was in.
        doing: String,
        /// What was said.
        why: String,
    },
    /// Ranks could not be connected.
    #[error("{0}")]
    Start(String),
}

impl CommError {
    /// The rank that has ended or does not answer, where that is what failed.
    pub fn lost_rank(&self) -> Option<usize> {
        match self {
            CommError::Silent { peer, .. } | CommError::Gone { peer, .. } => Some(*peer),
            _ => None,
        }
    }
}

/// A result of this crate.
pub type Result<T, E = CommError> = std::result::Result<T, E>;
