//! What ranks are connected by: messages from one to another, nothing more.

use std::time::Duration;

use thiserror::Error;

/// Tells messages of calls that are under way at the same time apart. Messages between two ranks with the same tag arrive in the
/// order in which they were sent.
pub type Tag = u16;

/// Tags are below this: MPI promises no more than 32767.
pub const TAGS: Tag = 32_767;

/// A message that is under way, as its transport knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TransferId(pub u64);

/// Why a message did not arrive.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Fault {
    /// The other rank has ended.
    #[error("the other rank has ended")]
    Gone,
    /// The other rank's message has another length.
    #[error("a message of {found} was met where {expected} bytes are expected")]
    Length {
        /// What this rank counts on.
        expected: usize,
        /// What the other does, as text.
        found: String,
    },
    /// The library or the system refused.
    #[error("{0}")]
    Failed(String),
}

/// Messages between ranks, without waiting. Calls are made by one thread at a time; the transport moves along only within them, and
/// reads and writes the caller's bytes where they lie.
pub trait PointToPoint: Send + Sync {
    /// This rank.
    fn rank(&self) -> usize;

    /// How many there are.
    fn ranks(&self) -> usize;

    /// What it is: `threads`, `tcp`, `Open MPI 4.1.4`.
    fn name(&self) -> &str;

    /// Begins to send bytes to another rank.
    ///
    /// # Safety
    /// The bytes are there, and nobody writes to them, until [`PointToPoint::is_done`] says yes or the transfer is cancelled.
    unsafe fn send(&self, to: usize, tag: Tag, bytes: *const u8, len: usize) -> Result<TransferId, Fault>;

    /// Begins to receive bytes from another rank.
    ///
    /// # Safety
    /// The bytes are there, and nobody reads or writes them, until [`PointToPoint::is_done`] says yes or the transfer is cancelled.
    unsafe fn receive(&self, from: usize, tag: Tag, bytes: *mut u8, len: usize) -> Result<TransferId, Fault>;

    /// Moves along and says whether a transfer is complete. One that is complete or failed is forgotten.
    fn is_done(&self, transfer: TransferId) -> Result<bool, Fault>;

    /// Gives a transfer up; its bytes are not touched any more.
    fn cancel(&self, transfer: TransferId);

    /// Sends a short notice, at most [`NOTICE_BYTES`], outside of all calls, as well as may be.
    fn tell(&self, to: usize, notice: &[u8]);

    /// Sees to it that notices are out, as far as others take them, within half a second.
    fn flush(&self);

    /// A notice that came.
    fn heard(&self) -> Option<Vec<u8>>;

    /// Waits until something may have moved; not longer than this.
    fn idle(&self, at_most: Duration);

    /// Bytes of this process that a library took for itself when it started.
    fn own_bytes(&self) -> u64 {
        0
    }

    /// Whether [`PointToPoint::leave`] waits for all ranks.
    fn ends_together(&self) -> bool {
        false
    }

    /// Says that nothing more will be asked. `failed`: others may be stuck, and must not be waited for.
    fn leave(&self, failed: bool);
}

/// The longest notice.
pub const NOTICE_BYTES: usize = 1000;
