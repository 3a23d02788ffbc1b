//! Holds a schedule that was found, with its offsets once someone has asked for them.

use crate::dense::Dense;
use crate::lifespan::{Act, lifespans};
use crate::overlap::{awaited, makespan, overlap};
use crate::place::{Places, place, usual_work};
use crate::problem::Problem;
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
    pub packed: Option<Places>,
    /// What [`Entry::tight`] found, if it was asked and there was something to find.
    tight: Option<Box<Entry>>,
    /// Whether it is what such a search found.
    is_tight: bool,
}

impl Entry {
    pub fn new(state: &mut State, dense: &Arc<Dense>, budget: u64) -> Entry {
        let (mut ns, mut live) = (dense.base_ns() + state.extra_ns, state.peak() as u64);
        let mut acts = awaited(dense, state.acts());
        if dense.carries() || acts.iter().any(|act| matches!(act, Act::Load(_))) {
            (acts, live) = overlap(dense, acts, budget.max(live));
            ns = makespan(dense, &acts);
        }
        Entry::of(acts, dense.clone(), budget, ns, live)
    }

    /// A schedule whose time and bytes are known.
    pub fn of(acts: Vec<Act>, dense: Arc<Dense>, budget: u64, ns: u64, live: u64) -> Entry {
        Entry { budget, ns, live, dense, acts, packed: None, tight: None, is_tight: false }
    }

    /// The offsets of its buffers. They do not depend on any request, so that every request sees the same.
    pub fn places(&mut self, scratch_alignment: u64) -> &Places {
        let (dense, acts, enough) = (&self.dense, &self.acts, self.budget.max(self.live));
        // Without a budget of its own the lowest packing is wanted.
        let enough = if enough == u64::MAX { self.live } else { enough };
        self.packed.get_or_insert_with(|| {
            let spans = lifespans(dense, acts, scratch_alignment);
            place(&spans, dense.resident_bytes, enough, usual_work(spans.buffers.len()), false)
        })
    }

    /// The same schedule, or another that takes as long and no more bytes, packed as low as is found.
    ///
    /// [`Entry::places`] stops at the budget, which is all that a search asks for; for the one schedule that becomes a plan
    /// it is worth looking on. A packing that does not reach the bytes that are live is most often one of few: it is
    /// searched a little longer, and then the schedule is changed where that costs nothing, which makes another packing.
    pub fn tight(&mut self, problem: &Problem, host_budget: u64) -> &mut Entry {
        let height = self.arena(problem.scratch_alignment);
        if self.tight.is_none() && height > self.live && !self.is_tight {
            self.tight = Some(Box::new(self.tightened(height, problem, host_budget, 0)));
        }
        match self.tight {
            Some(ref mut tight) => tight,
            None => self,
        }
    }

    /// Like [`Entry::tight`], for a schedule of which only the bytes count: another may take a little longer.
    pub fn into_tight(mut self, problem: &Problem, host_budget: u64) -> Entry {
        let height = self.arena(problem.scratch_alignment);
        if height <= self.live {
            return self;
        }
        let tight = self.tightened(height, problem, host_budget, self.ns / 8);
        Entry { budget: tight.live, is_tight: true, ..tight }
    }

    /// Takes the times of `problem`, which differ from those it was made with in nothing else.
    pub fn time(&mut self, problem: &Problem) {
        let mut dense = Dense::clone(&self.dense);
        dense.time(problem);
        self.ns = makespan(&dense, &self.acts);
        self.dense = Arc::new(dense);
        self.tight = None;
    }

    /// The bytes its buffers take once they have offsets.
    pub fn arena(&mut self, scratch_alignment: u64) -> u64 {
        self.places(scratch_alignment).height
    }
}
