//! Keeps the copies between device and host that were started and not awaited yet.

use crate::problem::TensorId;

/// A copy under way, with the bytes it needs on both sides, and when it is done.
pub(super) struct Copy {
    pub tensor: TensorId,
    /// Whether to the host.
    pub out: bool,
    pub device: (u64, u64),
    pub host: (u64, u64),
    pub done_ns: u64,
}

/// All copies under way. Each way copies by an engine of its own, one copy at a time.
#[derive(Default)]
pub(super) struct Copies {
    under_way: Vec<Copy>,
    /// When the engines that copy in and out are free.
    engine_ns: [u64; 2],
}

impl Copies {
    /// Whether a tensor is being copied that way.
    pub fn has(&self, tensor: TensorId, out: bool) -> bool {
        self.under_way.iter().any(|copy| (copy.tensor, copy.out) == (tensor, out))
    }

    /// Starts a copy at `now` that takes `ns` once its engine is free.
    pub fn start(&mut self, copy: Copy, now: u64, ns: u64) {
        let engine = &mut self.engine_ns[usize::from(copy.out)];
        *engine = (*engine).max(now).saturating_add(ns);
        self.under_way.push(Copy { done_ns: *engine, ..copy });
    }

    /// Takes the copy of a tensor that way, which is done.
    pub fn take(&mut self, tensor: TensorId, out: bool) -> Option<Copy> {
        let at = self.under_way.iter().position(|copy| (copy.tensor, copy.out) == (tensor, out))?;
        Some(self.under_way.swap_remove(at))
    }

    /// Whether a copy still needs a byte of `range` on a side.
    pub fn need(&self, range: (u64, u64), side: impl Fn(&Copy) -> (u64, u64)) -> bool {
        self.under_way.iter().any(|copy| super::overlap(side(copy), range))
    }

    /// Any copy that is still under way.
    pub fn first(&self) -> Option<&Copy> {
        self.under_way.first()
    }
}
