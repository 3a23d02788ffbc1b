//! What the process takes beside the arena of a step, as figures.

use plimsoll_device::Bytes;

/// The parts of the account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FixedMemory {
    /// The program's own pages.
    pub program: Bytes,
    /// Tensors that exist: state, and whatever else the caller holds.
    pub tensors: Bytes,
    /// A batch of inputs, and what the step gives back.
    pub inputs: Bytes,
    /// What the caller will take for other things: an input pipeline, say.
    pub reserved: Bytes,
    /// What the connection to other ranks takes: libraries, buffers, threads.
    pub ranks: Bytes,
}

impl FixedMemory {
    /// Nothing taken.
    pub const NOTHING: FixedMemory = FixedMemory {
        program: Bytes::ZERO,
        tensors: Bytes::ZERO,
        inputs: Bytes::ZERO,
        reserved: Bytes::ZERO,
        ranks: Bytes::ZERO,
    };

    /// What a device with memory of its own holds for no tensor: the context, libraries, and what connects ranks there.
    pub(crate) fn for_no_tensor(&self) -> Bytes {
        self.program + self.ranks
    }

    /// Everything but the arena.
    pub fn total(&self) -> Bytes {
        self.program + self.tensors + self.inputs + self.reserved + self.ranks
    }
}
