//! Holds a schedule that was found, with its offsets once someone has asked for them.

use crate::dense::Dense;
use crate::lifespan::{Act, lifespans};
use crate::overlap::{makespan, overlap};
use crate::place::{Places, place, usual_work};
use crate::problem::Problem;
use crate::recompute::improve::wander;
use crate::recompute::repair::Repair;
use crate::recompute::spread::spread_acts;
use crate::recompute::state::State;
use std::sync::Arc;

/// How long the packing of a plan is searched at first, for other schedules in all, and at last, in the packer's seconds.
const LONGER: f64 = 0.05;
const ATTEMPTS: f64 = 0.25;
const LONGEST: f64 = 0.1;
/// Where the usual packing takes longer than this, nothing else is tried.
const MOST: f64 = 0.025;

/// A schedule that was found.
pub(crate) struct Entry {
    /// The budget it was searched for.
    pub budget: u64,
    pub ns: u64,
    pub live: u64,
    pub dense: Arc<Dense>,
    pub acts: Vec<Act>,
    packed: Option<Places>,
    /// What [`Entry::tight`] found, if it was asked and there was something to find.
    tight: Option<Box<Entry>>,
    /// Whether it is what such a search found.
    is_tight: bool,
}

impl Entry {
    pub fn new(state: &mut State, dense: &Arc<Dense>, budget: u64) -> Entry {
        let (mut ns, mut live) = (dense.base_ns() + state.extra_ns, state.peak() as u64);
        let mut acts = state.acts();
        if acts.iter().any(|act| matches!(act, Act::Load(_))) {
            (acts, live) = overlap(dense, acts, budget.max(live));
            ns = makespan(dense, &acts);
        }
        Entry { budget, ns, live, dense: dense.clone(), acts, packed: None, tight: None, is_tight: false }
    }

    /// The offsets of its buffers. They do not depend on any request, so that every request sees the same.
    pub fn places(&mut self, scratch_alignment: u64) -> &Places {
        let (dense, acts, enough) = (&self.dense, &self.acts, self.budget.max(self.live));
        // Without a budget of its own the lowest packing is wanted.
        let enough = if enough == u64::MAX { self.live } else { enough };
        self.packed.get_or_insert_with(|| {
            let spans = lifespans(dense, acts, scratch_alignment);
            place(&spans, dense.resident_bytes, enough, usual_work(spans.buffers.len()))
        })
    }

    /// The same schedule, or another that takes as long and no more bytes, packed as low as is found.
    ///
    /// [`Entry::places`] stops at the budget, which is all that a search asks for; for the one schedule that becomes a plan
    /// it is worth looking on. A packing that does not reach the bytes that are live is most often one of few: it is
    /// searched a little longer, and then the schedule is changed where that costs nothing, which makes another packing.
    pub fn tight(&mut self, scratch_alignment: u64, host_budget: u64) -> &mut Entry {
        let height = self.arena(scratch_alignment);
        if self.tight.is_none() && height > self.live && !self.is_tight {
            self.tight = Some(Box::new(self.tightened(height, scratch_alignment, host_budget, 0)));
        }
        match self.tight {
            Some(ref mut tight) => tight,
            None => self,
        }
    }

    /// Like [`Entry::tight`], for a schedule of which only the bytes count: another may take a little longer.
    pub fn into_tight(mut self, scratch_alignment: u64, host_budget: u64) -> Entry {
        let height = self.arena(scratch_alignment);
        if height <= self.live {
            return self;
        }
        let tight = self.tightened(height, scratch_alignment, host_budget, self.ns / 8);
        Entry { budget: tight.live, is_tight: true, ..tight }
    }

    fn tightened(&self, height: u64, scratch_alignment: u64, host_budget: u64, more_ns: u64) -> Entry {
        let packed = |dense: &Arc<Dense>, acts: &[Act], live: u64, work: f64| {
            let spans = lifespans(dense, acts, scratch_alignment);
            place(&spans, dense.resident_bytes, live, work)
        };
        let (budget, ns, live, dense) = (self.budget, self.ns, self.live, self.dense.clone());
        let (acts, now) = (self.acts.clone(), self.packed.clone());
        let mut best = Entry { budget, ns, live, dense, acts, packed: now, tight: None, is_tight: false };
        let usual = usual_work(self.packed.as_ref().map_or(0, |packed| packed.offsets.len()));
        let mut least = height;
        let again = |entry: &mut Entry, least: &mut u64, work: f64| {
            if entry.packed.as_ref().is_some_and(|packed| packed.is_lowest) {
                return *least <= entry.live;
            }
            let again = packed(&entry.dense, &entry.acts, entry.live, work);
            if again.height < *least {
                *least = again.height;
                entry.packed = Some(again);
            }
            *least <= entry.live
        };
        // In a long step one packing takes as long as all the attempts on a short one.
        if again(&mut best, &mut least, (3.0 * usual).min(LONGER)) || usual > MOST {
            return best;
        }
        let (dense, frozen) = spread_acts(&self.dense, &self.acts);
        let dense = Arc::new(dense);
        let mut state = frozen.thaw(&dense);
        let extra_ns = state.extra_ns;
        // What copies take depends on all else that runs, so schedules with copies are left as they are.
        let copies = self.acts.iter().any(|act| matches!(act, Act::Load(_)));
        let attempts = if copies {
            0
        } else {
            ((ATTEMPTS / usual) as u64).min(u64::from(dense.ops.saturating_sub(100)) / 8)
        };
        for attempt in 0..attempts {
            // The later, the more it may hold and the longer it may take.
            let budget = self.live + (least - 1).saturating_sub(self.live) * attempt / attempts;
            if state.peak() as u64 > budget {
                state = frozen.thaw(&dense);
            }
            let mut repair = Repair::new(&state, budget, host_budget, attempt);
            let extra_ns = extra_ns..=extra_ns + more_ns * attempt / attempts;
            wander(&mut state, &mut repair, 20_000, 4 << (attempt % 4), &extra_ns);
            let mut next = Entry::new(&mut state, &dense, self.budget);
            if next.live < least && again(&mut next, &mut least, usual) {
                return next;
            }
            if next.packed.is_some() {
                best = next;
            }
        }
        again(&mut best, &mut least, (8.0 * usual).min(LONGEST));
        best
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
