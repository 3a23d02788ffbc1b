//! Packs the one schedule that becomes a plan as low as is found, changing it where that costs nothing.
//!
//! A packing that does not reach the bytes that are live is most often one of few: another schedule that takes as long has another
//! packing, and one of some dozens reaches them at once. So many are packed in little time each. They differ in the
//! order of their acts, which is looked for among those that hold less where most is held (there is then more room for
//! everything else, and often less is live at all); in what writes over what it reads (an op that need not may leave its input
//! where it is and write elsewhere, which cuts a long buffer in two); in when things are made again, and in what is.

use crate::dense::Dense;
use crate::entry::Entry;
use crate::lifespan::{Act, lifespans, profile, separable};
use crate::place::{place, usual_work};
use crate::problem::Problem;
use crate::recompute::improve::wander;
use crate::recompute::repair::{Chance, Repair};
use crate::recompute::spread::spread_acts;
use crate::reorder::Reorder;
use std::sync::Arc;

/// How long packings of other schedules are searched in all, in the packer's seconds.
const WORK: f64 = 0.5;
/// How long that of one is, as a share of the usual.
const QUICK: f64 = 0.2;
/// At least so many schedules are packed, and at most; no more than there are acts, for a short step has few others.
const FEWEST: u64 = 4;
const MOST: u64 = 200;
/// So many orders that follow from each other are packed before another start.
const ORDERS: u64 = 10;
/// How many moves are tried between two orders, for each act, and at most.
const MOVES: usize = 2;
const MOST_MOVES: usize = 2000;
/// Where the usual packing takes longer than this, only the schedule itself is packed once more.
const LONG: f64 = 0.08;
/// How much more a move may hold, in acts that hold all there is room for: by start, in turn.
const HEATS: [f64; 3] = [0.05, 0.5, 0.0125];

impl Entry {
    /// This schedule, of which a packing of `height` is known, or another that takes at most `more_ns` longer and packs lower.
    pub fn tightened(&self, height: u64, problem: &Problem, host_budget: u64, more_ns: u64) -> Entry {
        let mut search = Tightening { problem, least: height };
        let usual = usual_work(self.packed.as_ref().map_or(0, |packed| packed.offsets.len()));
        let mut best = Entry::of(self.acts.clone(), self.dense.clone(), self.budget, self.ns, self.live);
        best.packed = self.packed.clone();
        // What copies take depends on all else that runs, so schedules with copies are left as they are.
        let copies = self.dense.carries() || self.acts.iter().any(|act| matches!(act, Act::Load(_)));
        // In a long step one packing takes as long as all the attempts on a short one.
        if search.lower(&mut best, usual) || copies || usual > LONG {
            return best;
        }
        let (dense, frozen) = spread_acts(&self.dense, &self.acts);
        let mut state = frozen.thaw(&dense);
        let least_ns = state.extra_ns;
        let attempts = ((WORK / (QUICK * usual)) as u64).clamp(FEWEST, MOST).min(self.acts.len() as u64);
        let mut chance = Chance(17);
        let mut is_other = false;
        for round in 0..attempts.div_ceil(ORDERS) {
            let done = round * ORDERS;
            // In the second half the more it may hold and the longer it may take the later it is.
            let late = (2 * done).saturating_sub(attempts);
            let budget = self.live + (search.least - 1).saturating_sub(self.live) * late / attempts;
            // Every other time it goes on from what packs lowest.
            let (acts, ns, live) = if is_other && round % 2 == 1 {
                (best.acts.clone(), best.ns, best.live)
            } else {
                if state.peak() as u64 > budget {
                    state = frozen.thaw(&dense);
                }
                if round > 0 && state.pairs > 0 {
                    let mut repair = Repair::new(&state, budget, host_budget, round);
                    let extra_ns = least_ns..=least_ns + more_ns * done / attempts;
                    wander(&mut state, &mut repair, 20_000, 4 << (round % 4), &extra_ns);
                }
                (state.acts(), dense.base_ns() + state.extra_ns, budget)
            };
            let room = live - dense.resident_bytes;
            let Some(mut order) = Reorder::new(problem, &dense, &acts) else { return best };
            for attempt in 0..ORDERS.min(attempts - done) {
                order.wander(
                    room,
                    (MOVES * acts.len()).min(MOST_MOVES),
                    HEATS[(round % 3) as usize],
                    &mut chance,
                );
                // What is set apart may take the room that the order has gained, or not.
                let room = if attempt % 2 == 0 { room } else { order.peak() };
                let mut next = search.varied(&order, &dense, room, attempt, &mut chance);
                (next.budget, next.ns) = (self.budget, ns);
                if next.live < search.least && search.lower(&mut next, QUICK * usual) {
                    return next;
                }
                if next.packed.is_some() {
                    (best, is_other) = (next, true);
                }
            }
        }
        best
    }
}

/// The search for a lower packing than the lowest so far.
struct Tightening<'a> {
    problem: &'a Problem,
    least: u64,
}

impl Tightening<'_> {
    /// Packs a schedule, and keeps the packing if it is the lowest; whether it is as low as what is live.
    fn lower(&mut self, entry: &mut Entry, work: f64) -> bool {
        if !entry.packed.as_ref().is_some_and(|packed| packed.is_lowest) {
            let spans = lifespans(&entry.dense, &entry.acts, self.problem.scratch_alignment);
            let again = place(&spans, entry.dense.resident_bytes, entry.live, work, false);
            if again.height < self.least {
                self.least = again.height;
                entry.packed = Some(again);
            }
        }
        self.least <= entry.live
    }

    /// The schedule of an order, in which some of the ops that need not write over what they read do not, within `room`.
    fn varied(&self, order: &Reorder, dense: &Dense, room: u64, attempt: u64, chance: &mut Chance) -> Entry {
        let acts = order.acts();
        let spans = lifespans(dense, &acts, self.problem.scratch_alignment);
        let mut apart = separable(dense, &acts, &spans, room);
        let of_four = [2, 0, 1, 3, 4][(attempt % 5) as usize];
        apart.retain(|_| chance.below(4) < of_four);
        let dense = Arc::new(dense.apart(&apart));
        let spans = lifespans(&dense, &acts, self.problem.scratch_alignment);
        let most = profile(&spans.buffers, acts.len()).into_iter().max().unwrap_or(0);
        let live = dense.resident_bytes + most;
        Entry::of(acts, dense, 0, 0, live)
    }
}
