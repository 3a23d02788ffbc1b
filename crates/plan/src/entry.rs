//! Holds a schedule that was found, with its offsets once someone has asked for them.

use crate::dense::Dense;
use crate::lifespan::{Act, lifespans};
use crate::place::{Places, place};
use crate::recompute::state::State;
use std::sync::Arc;

/// A schedule that was found.
pub(crate) struct Entry {
    /// The budget it was searched for.
    pub budget: u64,
    pub ns: u64,
    pub live: u64,
    pub dense: Arc<Dense>,
    pub acts: Vec<Act>,
    packed: Option<Places>,
}

impl Entry {
    pub fn new(state: &mut State, dense: &Arc<Dense>, budget: u64) -> Entry {
        let ns = dense.base_ns() + state.extra_ns;
        let live = state.peak() as u64;
        Entry { budget, ns, live, dense: dense.clone(), acts: state.acts(), packed: None }
    }

    /// The offsets of its buffers. They do not depend on any request, so that every request sees the same.
    pub fn places(&mut self, scratch_alignment: u64) -> &Places {
        let (dense, acts, enough) = (&self.dense, &self.acts, self.budget.max(self.live));
        // Without a budget of its own the lowest packing is wanted.
        let enough = if enough == u64::MAX { self.live } else { enough };
        self.packed.get_or_insert_with(|| {
            let spans = lifespans(dense, acts, scratch_alignment);
            place(&spans, dense.resident_bytes, enough)
        })
    }

    /// The bytes its buffers take once they have offsets.
    pub fn arena(&mut self, scratch_alignment: u64) -> u64 {
        self.places(scratch_alignment).height
    }
}
