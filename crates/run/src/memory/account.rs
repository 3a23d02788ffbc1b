//! What the process takes beside the arena of a step, as figures.

use plimsoll_device::Bytes;

/// The parts of the account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Account {
    /// The program's own pages.
    pub program: Bytes,
    /// Tensors that exist: state, and whatever else the caller holds.
    pub tensors: Bytes,
    /// A batch of inputs, and what the step gives back.
    pub staged: Bytes,
    /// What the caller will take for other things: an input pipeline, say.
    pub beside: Bytes,
}

impl Account {
    /// Nothing taken.
    pub const NOTHING: Account =
        Account { program: Bytes::ZERO, tensors: Bytes::ZERO, staged: Bytes::ZERO, beside: Bytes::ZERO };

    /// Everything but the arena.
    pub fn elsewhere(&self) -> Bytes {
        self.program + self.tensors + self.staged + self.beside
    }
}
