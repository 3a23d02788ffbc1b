//! Packs the one schedule that becomes a plan as low as is found, changing it where that costs nothing.
//!
//! A packing that does not reach the bytes that are live is most often one of few: another schedule that takes as long has another
//! packing, and one of some dozens reaches them at once. So many are packed in little time each. They differ in the
//! order of their actions, which is looked for among those that hold less where most is held (there is then more room for
//! everything else, and often less is live at all); in what writes over what it reads (an op that need not may leave its input
//! where it is and write elsewhere, which cuts a long buffer in two); in when things are made again, and in what is.

use crate::anneal::ActionOrder;
use crate::indexed_problem::IndexedProblem;
use crate::lifespan::{Action, lifespans, profile, separable};
use crate::place::{place, usual_work};
use crate::problem::Problem;
use crate::recompute::improve::vary;
use crate::recompute::repair::{Repair, Rng};
use crate::recompute::replay_stages::one_replay_a_stage_of;
use crate::schedule::Schedule;
use std::sync::Arc;

/// How long packings of other schedules are searched in all, in the packer's seconds.
const WORK: f64 = 0.5;
/// How long that of one is, as a share of the usual.
const QUICK: f64 = 0.2;
/// At least so many schedules are packed, and at most; no more than there are actions, for a short step has few others.
const FEWEST: u64 = 4;
const MOST: u64 = 200;
/// So many orders that follow from each other are packed before another start.
const ORDERS: u64 = 10;
/// How many moves are tried between two orders, for each action, and at most.
const MOVES: usize = 2;
const MOST_MOVES: usize = 2000;
/// Where the usual packing takes longer than this, only the schedule itself is packed once more.
const LONG: f64 = 0.08;
/// How much more a move may hold, in actions that hold all there is room for: by start, in turn.
const TEMPERATURES: [f64; 3] = [0.05, 0.5, 0.0125];

impl Schedule {
    /// This schedule, of which a packing of `height` is known, or another that takes at most `more_ns` longer and packs lower.
    pub fn with_lower_packing(
        &self,
        height: u64,
        problem: &Problem,
        host_budget: u64,
        more_ns: u64,
    ) -> Schedule {
        let mut search = Repacking { problem, least: height };
        let usual = usual_work(self.packed.as_ref().map_or(0, |packed| packed.offsets.len()));
        let mut best =
            Schedule::of(self.actions.clone(), self.indexed.clone(), self.budget, self.ns, self.live);
        best.packed = self.packed.clone();
        // What copies take depends on all else that runs, so schedules with copies are left as they are.
        let copies =
            self.indexed.carries() || self.actions.iter().any(|action| matches!(action, Action::Load(_)));
        // In a long step one packing takes as long as all the attempts on a short one.
        if search.lower(&mut best, usual) || copies || usual > LONG {
            return best;
        }
        let (indexed, saved) = one_replay_a_stage_of(&self.indexed, &self.actions);
        let mut state = saved.restore(&indexed);
        let least_ns = state.extra_ns;
        let attempts = ((WORK / (QUICK * usual)) as u64).clamp(FEWEST, MOST).min(self.actions.len() as u64);
        let mut rng = Rng(17);
        let mut is_other = false;
        for round in 0..attempts.div_ceil(ORDERS) {
            let done = round * ORDERS;
            // In the second half the more it may hold and the longer it may take the later it is.
            let late = (2 * done).saturating_sub(attempts);
            let budget = self.live + (search.least - 1).saturating_sub(self.live) * late / attempts;
            // Every other time it goes on from what packs lowest.
            let (actions, ns, live) = if is_other && round % 2 == 1 {
                (best.actions.clone(), best.ns, best.live)
            } else {
                if state.peak() as u64 > budget {
                    state = saved.restore(&indexed);
                }
                if round > 0 && state.pairs > 0 {
                    let mut repair = Repair::new(&state, budget, host_budget, round);
                    let extra_ns = least_ns..=least_ns + more_ns * done / attempts;
                    vary(&mut state, &mut repair, 20_000, 4 << (round % 4), &extra_ns);
                }
                (state.actions(), indexed.base_ns() + state.extra_ns, budget)
            };
            let room = live - indexed.resident_bytes;
            let Some(mut order) = ActionOrder::new(problem, &indexed, &actions) else { return best };
            for attempt in 0..ORDERS.min(attempts - done) {
                order.anneal_order(
                    room,
                    (MOVES * actions.len()).min(MOST_MOVES),
                    TEMPERATURES[(round % 3) as usize],
                    &mut rng,
                );
                // What is set apart may take the room that the order has gained, or not.
                let room = if attempt % 2 == 0 { room } else { order.peak() };
                let mut next = search.varied(&order, &indexed, room, attempt, &mut rng);
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
struct Repacking<'a> {
    problem: &'a Problem,
    least: u64,
}

impl Repacking<'_> {
    /// Packs a schedule, and keeps the packing if it is the lowest; whether it is as low as what is live.
    fn lower(&mut self, schedule: &mut Schedule, work: f64) -> bool {
        if !schedule.packed.as_ref().is_some_and(|packed| packed.is_lowest) {
            let spans = lifespans(&schedule.indexed, &schedule.actions, self.problem.scratch_alignment);
            let again = place(&spans, schedule.indexed.resident_bytes, schedule.live, work, false);
            if again.height < self.least {
                self.least = again.height;
                schedule.packed = Some(again);
            }
        }
        self.least <= schedule.live
    }

    /// The schedule of an order, in which some of the ops that need not write over what they read do not, within `room`.
    fn varied(
        &self,
        order: &ActionOrder,
        indexed: &IndexedProblem,
        room: u64,
        attempt: u64,
        rng: &mut Rng,
    ) -> Schedule {
        let actions = order.actions();
        let spans = lifespans(indexed, &actions, self.problem.scratch_alignment);
        let mut apart = separable(indexed, &actions, &spans, room);
        let of_four = [2, 0, 1, 3, 4][(attempt % 5) as usize];
        apart.retain(|_| rng.below(4) < of_four);
        let indexed = Arc::new(indexed.apart(&apart));
        let spans = lifespans(&indexed, &actions, self.problem.scratch_alignment);
        let most = profile(&spans.buffers, actions.len()).into_iter().max().unwrap_or(0);
        let live = indexed.resident_bytes + most;
        Schedule::of(actions, indexed, 0, 0, live)
    }
}
