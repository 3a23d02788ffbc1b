//! What the process takes beside the arena of a step, as the system will count it.
//!
//! A line is a contract about the whole process, so everything that is not planned must be known before the plan is:
//! the program's own pages, tensors that exist, batches that are still to come. The figure must be the same in every
//! run of the same program, or a run at exactly the reported least would be a matter of luck. So the program's pages
//! are declared, not measured: a round figure above what they come to. Only where the process already has more than
//! that (a large program around the engine) is it measured.

use plimsoll_device::{Bytes, process};

use crate::device::Device;

/// What the program is declared to take: code, stacks, tables, what planning leaves behind.
const PROGRAM: Bytes = Bytes::mib(13);
/// Pages that will be touched and are not yet: kernels' code, stacks, the books of the allocator.
const RESERVE: Bytes = Bytes::mib(4);
/// A measured figure is rounded up to this, so that two runs count alike as far as can be.
const GRAIN: u64 = 2 << 20;

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
    /// The account of a process of whose tensors `own` bytes are about to be given back.
    pub(crate) fn new(device: &Device, own: Bytes, staged: Bytes, beside: Bytes) -> Account {
        device.memory().release_unused();
        let tensors = device.memory_info().current;
        Account { program: program(tensors), tensors: tensors.saturating_sub(own), staged, beside }
    }

    /// Everything but the arena.
    pub fn elsewhere(&self) -> Bytes {
        self.program + self.tensors + self.staged + self.beside
    }

    /// Whether the process, as it stands now, is within its part.
    pub(crate) fn holds(&self, device: &Device) -> bool {
        device.memory().release_unused();
        program(device.memory_info().current) <= self.program
    }
}

fn program(tensors: Bytes) -> Bytes {
    let own = process::resident().unwrap_or(Bytes::ZERO).saturating_sub(tensors) + RESERVE;
    if own <= PROGRAM { PROGRAM } else { Bytes(own.get().next_multiple_of(GRAIN)) }
}
