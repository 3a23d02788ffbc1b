//! Packs the one schedule that becomes a plan as low as is found, changing it where that costs nothing.
//!
//! Where a packing is higher than the bytes that are live, another schedule that takes as long often packs lower: of some dozens one
//! mostly reaches what is live. So many are packed, each for a short time. They differ in four ways:
//!
//! - The order of their actions. Orders are preferred that hold less where most is held, which leaves more room for everything else.
//! - What writes over what it reads. An op that need not may write elsewhere, which cuts a long buffer in two.
//! - When a tensor is made again.
//! - Which tensors are made again.

use crate::anneal::ActionOrder;
use crate::indexed_problem::IndexedProblem;
use crate::lifespan::{Action, lifespans, profile, separable};
use crate::parallel;
use crate::place::{Places, place_below, usual_work};
use crate::problem::Problem;
use crate::recompute::improve::vary;
use crate::recompute::repair::Repair;
use crate::recompute::replay_stages::one_replay_a_stage_of;
use crate::recompute::state::{SavedReplays, State};
use crate::rng::Rng;
use crate::schedule::Schedule;
use std::ops::RangeInclusive;
use std::sync::Arc;

/// The work of all packings of other schedules together, in the packer's seconds: how long a plan may wait for a lower arena.
const WORK: f64 = 0.5;
/// The work of one of them, as a part of what a packing usually gets. Less packs more schedules and searches each less.
const QUICK: f64 = 0.2;
/// The fewest and the most schedules that are packed. A step of few actions has few other schedules, so there are no more than actions.
const FEWEST: u64 = 4;
const MOST: u64 = 200;
/// How many orders that follow from each other are packed before the search starts from another schedule.
const ORDERS: u64 = 10;
/// How many of these are packed beside each other.
const AT_ONCE: u64 = 2;
/// How many moves of an action are tried between two orders, for each action, and at most. More lead to orders that differ more.
const MOVES: usize = 2;
const MOST_MOVES: usize = 2000;
/// The work of changing what is made again, between two starts.
const VARY_WORK: u64 = 20_000;
/// Where a packing usually takes longer than this, in the packer's seconds, only the schedule itself is packed once more: in a long
/// step one packing takes as long as all the attempts on a short one.
const LONG: f64 = 0.08;
/// A packing that is this part above what is live in its schedule is low enough: what lies below is not worth the wait. The second is for a packing no higher than what was live at first.
const NEAR: [u64; 2] = [1024, 256];
/// A step of no more actions is searched to the end: that takes little.
const FEW: usize = 256;
/// What random numbers start from: in a step of few actions, and in others.
const SEEDS: [u64; 2] = [17, 8];
/// How much worse an order may get by a move, for each start in turn: higher ones leave poor orders, lower ones improve good ones.
const TEMPERATURES: [f64; 3] = [0.05, 0.5, 0.0125];

impl Schedule {
    /// This schedule, of which a packing of `height` is known, or another that takes at most `more_ns` longer and packs lower. With
    /// `to_the_end` it is searched for until no lower one is found, else until one is low enough.
    pub fn with_lower_packing(
        &self,
        height: u64,
        problem: &Problem,
        host_budget: u64,
        more_ns: u64,
        to_the_end: bool,
    ) -> Schedule {
        let mut search = Repacking { problem, least: height };
        let is_near = |height: u64, live: u64| {
            let part = NEAR[usize::from(height <= self.live)];
            !to_the_end && self.actions.len() > FEW && height <= live + live / part
        };
        let usual = usual_work(self.packed.as_ref().map_or(0, |packed| packed.offsets.len()));
        let mut best =
            Schedule::of(self.actions.clone(), self.indexed.clone(), self.budget, self.ns, self.live);
        best.packed = self.packed.clone();
        // What copies take depends on all else that runs, so schedules with copies are left as they are.
        let copies =
            self.indexed.carries() || self.actions.iter().any(|action| matches!(action, Action::Load(_)));
        if search.pack(&mut best, usual) || copies || usual > LONG || is_near(search.least, best.live) {
            return best;
        }
        let (indexed, saved) = one_replay_a_stage_of(&self.indexed, &self.actions);
        let mut variant = Variant { state: saved.restore(&indexed), saved: &saved, host_budget };
        let least_ns = variant.state.extra_ns;
        let attempts = ((WORK / (QUICK * usual)) as u64).clamp(FEWEST, MOST).min(self.actions.len() as u64);
        let mut rng = Rng(SEEDS[usize::from(self.actions.len() > FEW)]);
        let mut is_other = false;
        for round in 0..attempts.div_ceil(ORDERS) {
            let done = round * ORDERS;
            // In the second half schedules may hold more and take longer, the more so the later it is.
            let late = (2 * done).saturating_sub(attempts);
            let budget = self.live + (search.least - 1).saturating_sub(self.live) * late / attempts;
            // Every other round goes on from what packs lowest.
            let (actions, ns, live) = if is_other && round % 2 == 1 {
                (best.actions.clone(), best.ns, best.live)
            } else {
                variant.next(round, budget, &(least_ns..=least_ns + more_ns * done / attempts));
                (variant.state.actions(), indexed.base_ns() + variant.state.extra_ns, budget)
            };
            let room = live - indexed.resident_bytes;
            let Some(mut order) = ActionOrder::new(problem, &indexed, &actions) else { return best };
            let moves = (MOVES * actions.len()).min(MOST_MOVES);
            let of_round = ORDERS.min(attempts - done);
            for first in (0..of_round).step_by(AT_ONCE as usize) {
                let mut orders = Vec::new();
                for attempt in first..of_round.min(first + AT_ONCE) {
                    order.anneal_order(room, moves, TEMPERATURES[(round % 3) as usize], &mut rng);
                    // Ops that write elsewhere may take the room that the order has gained, or not.
                    let room = if attempt % 2 == 0 { room } else { order.peak() };
                    let mut next = search.varied(&order, &indexed, room, attempt, &mut rng);
                    (next.budget, next.ns) = (self.budget, ns);
                    orders.push(next);
                }
                for (mut next, places) in search.placed(orders, QUICK * usual) {
                    if next.live < search.least && search.take(&mut next, places) {
                        return next;
                    }
                    if next.packed.is_some() {
                        (best, is_other) = (next, true);
                    }
                    if is_near(search.least, best.live) {
                        return best;
                    }
                }
            }
        }
        best
    }
}

/// A schedule whose replays are changed from round to round.
struct Variant<'a> {
    state: State<'a>,
    saved: &'a SavedReplays,
    host_budget: u64,
}

impl Variant<'_> {
    /// Changes what is made again and when, within `budget` and with an extra time of one of `ns`. Round 0 leaves all as it is.
    fn next(&mut self, round: u64, budget: u64, ns: &RangeInclusive<u64>) {
        if self.state.peak() as u64 > budget {
            self.state = self.saved.restore(self.state.indexed);
        }
        if round > 0 && self.state.pairs > 0 {
            let mut repair = Repair::new(&self.state, budget, self.host_budget, round);
            vary(&mut self.state, &mut repair, VARY_WORK, 4 << (round % 4), ns);
        }
    }
}

/// The search for a lower packing than the lowest so far.
struct Repacking<'a> {
    problem: &'a Problem,
    least: u64,
}

impl Repacking<'_> {
    /// Packs a schedule, and keeps the packing if it is the lowest; whether it is as low as what is live.
    fn pack(&mut self, schedule: &mut Schedule, work: f64) -> bool {
        // One that was packed as low as what is live, or as low as was found on the way there, would be packed the same way again.
        let aimed_as_low = schedule.budget <= schedule.live || schedule.budget == u64::MAX;
        let known = |packed: &Places| packed.is_lowest || aimed_as_low;
        match schedule.packed.as_ref().is_some_and(known) {
            true => self.least <= schedule.live,
            false => {
                let places = self.place(schedule, work);
                self.take(schedule, places)
            }
        }
    }

    /// A packing that is lower than the lowest so far, if one is found.
    fn place(&self, schedule: &Schedule, work: f64) -> Option<Places> {
        let spans = lifespans(&schedule.indexed, &schedule.actions, self.problem.scratch_alignment);
        // A short step is packed so soon that there is nothing to leave early, and what fails leads to other orders.
        let below = if schedule.actions.len() > FEW { self.least } else { u64::MAX };
        place_below(&spans, schedule.indexed.resident_bytes, schedule.live, work, below)
    }

    /// Schedules with their packings, found beside each other; none for those that can be no lower than what is known.
    fn placed(&self, schedules: Vec<Schedule>, work: f64) -> Vec<(Schedule, Option<Places>)> {
        let packing = |next: Schedule| {
            move || {
                let places = (next.live < self.least).then(|| self.place(&next, work)).flatten();
                (next, places)
            }
        };
        parallel::each(schedules.into_iter().map(packing).collect())
    }

    /// Keeps a packing of a schedule if it is the lowest; whether the lowest is as low as what is live.
    fn take(&mut self, schedule: &mut Schedule, places: Option<Places>) -> bool {
        if let Some(places) = places.filter(|places| places.height < self.least) {
            self.least = places.height;
            schedule.packed = Some(places);
        }
        self.least <= schedule.live
    }

    /// The schedule of an order in which some of the ops that write over what they read, and need not, write elsewhere within `room`.
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
        let mut elsewhere = separable(indexed, &actions, &spans, room);
        let of_four = [2, 0, 1, 3, 4][(attempt % 5) as usize];
        elsewhere.retain(|_| rng.below(4) < of_four);
        let indexed = Arc::new(indexed.without_in_place(&elsewhere));
        let spans = lifespans(&indexed, &actions, self.problem.scratch_alignment);
        let most = profile(&spans.buffers, actions.len()).into_iter().max().unwrap_or(0);
        let live = indexed.resident_bytes + most;
        Schedule::of(actions, indexed, 0, 0, live)
    }
}
