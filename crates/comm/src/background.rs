//! Calls that move along by themselves, beside what the caller computes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};

use plimsoll_graph::ops::Rank;

use crate::call::Call;
use crate::communicator::{Buffers, Communicator, Ticket, Traffic};
use crate::error::{CommError, Result};
use crate::ranks::{Ranks, Waiting};

/// What the thread that moves calls along may take as its stack.
pub const STACK_BYTES: usize = 256 << 10;

/// Ranks whose calls a thread of their own moves along: it sleeps while there are none.
///
/// ```
/// use std::time::Duration;
/// use plimsoll_comm::{Background, Collectives, Reduce, local};
/// std::thread::scope(|threads| {
///     for rank in local::ranks(2, Duration::from_secs(10)) {
///         threads.spawn(move || {
///             let rank = Background::new(rank).unwrap();
///             let mut values = [1i64];
///             rank.all_reduce(Reduce::Sum, &mut values).unwrap();
///             assert_eq!(values, [2]);
///         });
///     }
/// });
/// ```
pub struct Background {
    ranks: Arc<Ranks>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Background {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system gives none.
    pub fn new(ranks: Ranks) -> Result<Background> {
        let ranks = Arc::new(ranks);
        let is_over = Arc::new(AtomicBool::new(false));
        let thread = {
            let (ranks, is_over) = (Arc::clone(&ranks), Arc::clone(&is_over));
            let builder = Builder::new().name("ranks".into()).stack_size(STACK_BYTES);
            builder.spawn(move || move_along(&ranks, &is_over))
        };
        let thread = thread
            .map_err(|e| CommError::Start(format!("there is no thread for calls in the background: {e}")))?;
        Ok(Background { ranks, is_over, thread: Some(thread) })
    }

    /// How many calls are under way, without moving them along.
    pub fn under_way(&self) -> usize {
        self.ranks.under_way()
    }

    fn wake(&self) {
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }
}

fn move_along(ranks: &Ranks, is_over: &AtomicBool) {
    while !is_over.load(Ordering::Acquire) {
        // What fails is told to whoever waits.
        match ranks.progress() {
            Ok(true) => ranks.idle(),
            Ok(false) | Err(_) => std::thread::park(),
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        self.wake();
        if let Some(thread) = self.thread.take() {
            // It does not panic; if it did, there is nobody to tell.
            drop(thread.join());
        }
    }
}

impl Communicator for Background {
    fn rank(&self) -> usize {
        self.ranks.rank()
    }

    fn ranks(&self) -> usize {
        self.ranks.ranks()
    }

    fn backend(&self) -> &str {
        self.ranks.backend()
    }

    fn scratch_bytes(&self, call: &Call) -> usize {
        self.ranks.scratch_bytes(call)
    }

    fn scratch_within(&self, of: Rank, call: &Call) -> usize {
        self.ranks.scratch_within(of, call)
    }

    unsafe fn start(&self, call: &Call, buffers: Buffers) -> Result<Ticket> {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.start_within(self.ranks.all(), call, buffers) }
    }

    unsafe fn start_within(&self, of: Rank, call: &Call, buffers: Buffers) -> Result<Ticket> {
        // SAFETY: the caller's promise, passed on.
        let ticket = unsafe { self.ranks.start_within(of, call, buffers) };
        self.wake();
        ticket
    }

    fn test(&self, ticket: &Ticket) -> Result<bool> {
        self.ranks.test(ticket)
    }

    fn wait(&self, ticket: Ticket) -> Result<()> {
        self.ranks.wait_by(&ticket, Waiting::Watching)
    }

    fn progress(&self) -> Result<bool> {
        self.ranks.progress()
    }

    fn stop(&self, reason: &str) {
        self.ranks.stop(reason);
    }

    fn own_bytes(&self) -> u64 {
        self.ranks.own_bytes()
    }

    fn traffic(&self) -> Traffic {
        self.ranks.traffic()
    }
}
