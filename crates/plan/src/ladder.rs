//! Plans a step for a fixed row of budgets, so that more bytes never plan a slower step.
//!
//! A search that starts anew for every budget is not monotone: it may be luckier with less. So the searches are
//! done at rungs that depend only on the step, and a request takes the fastest schedule of all rungs at or below
//! its budget; a larger budget chooses from more. Rungs that cannot be faster than what is at hand, by the lower
//! bound, are not searched, which changes nothing in the outcome.
//!
//! A rung is searched from nothing at its own budget, then its schedule climbs to just below the next rung in
//! small treads, at each of which the schedule of the last is improved with the bytes gained.

use crate::bounds::Bounds;
use crate::dense::{Dense, padded_scratch};
use crate::lifespan::{Act, lifespans};
use crate::place::{Places, place};
use crate::plan::Exactness;
use crate::problem::{OpId, Problem};
use crate::recompute::improve::improve;
use crate::recompute::repair::{Outcome, Repair, Score};
use crate::recompute::snapshots::Snapshots;
use crate::recompute::spread::spread;
use crate::recompute::state::{Frozen, State};
use std::sync::Arc;
use std::time::Instant;

/// How much higher each tread of a rung is than the one below; after the last comes the next rung.
const TREAD: f64 = 1.0026;

/// How hard to search.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    /// Work for each rung.
    pub rung: u64,
    /// Work for each tread.
    pub tread: u64,
    /// Work for each attempt to find the floor.
    pub floor: u64,
    /// How many treads a rung has.
    treads: u32,
    /// Every so many treads are searched: fewer in long steps, whose tensors are small beside the budget.
    stride: usize,
    /// With how many prices first schedules are looked for.
    scores: usize,
    /// The floor is looked for until this share of it is left open.
    open: u64,
    /// The most legs that schedules by snapshots are tried with.
    legs: usize,
    /// From how many first schedules a rung is searched.
    starts: usize,
    /// How many of the lowest schedules are packed.
    packed: usize,
    /// After so many failures to press the floor lower it is left where it is.
    fails: usize,
}

impl Effort {
    /// `level` 1 plans steps of up to 5,000 ops in about a second.
    pub fn new(ops: u32, level: u32) -> Effort {
        let most = if ops <= 5_000 { 900_000 } else { 1_200_000 };
        let rung = (1200 * u64::from(ops)).clamp(20_000, most) * u64::from(level.max(1));
        let floor = (200 * u64::from(ops)).clamp(20_000, 500_000);
        let long = ops > 20_000;
        let (treads, stride, scores, open) = match ops {
            0..=5_000 => (32, 1, 3, 32),
            5_001..=20_000 => (48, 1, 3, 32),
            _ => (126, 20, 1, 4),
        };
        let fails = if long { 0 } else { (20_000 / ops.max(1) as usize).clamp(6, 24) };
        let starts = (1_500 / ops.max(1) as usize).clamp(1, 3);
        let packed = (12_000 / ops.max(1) as usize).clamp(1, 12);
        let legs = if long { 8 } else { 128.min(ops as usize / 8) };
        let rung = if long { rung / 3 } else { rung };
        Effort {
            rung,
            tread: rung / 40 * stride.min(8) as u64,
            floor,
            treads,
            stride,
            scores,
            open,
            legs,
            starts,
            packed,
            fails,
        }
    }
}

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
    fn new(state: &mut State, dense: &Arc<Dense>, budget: u64) -> Entry {
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

/// A step in one order, and the schedules found for it so far.
pub(crate) struct Ladder {
    pub problem: Arc<Problem>,
    exactness: Exactness,
    host_budget: u64,
    effort: Effort,
    /// With the first algorithm of every op.
    plain: Arc<Dense>,
    pub bounds: Bounds,
    /// The least time of all ops.
    pub least_ns: u64,
    pub unlimited_live: u64,
    /// By rung: `None` if not searched yet, empty if nothing was found.
    rungs: Vec<Option<Vec<Entry>>>,
    floor: Option<Floor>,
    /// What schedules by snapshots take and cost; `None` until it is wanted.
    snapshots: Option<Snapshots>,
    /// When to stop improving, if ever. Rungs searched after it are only started.
    pub deadline: Option<Instant>,
}

/// The schedule that takes least.
struct Floor {
    entry: Entry,
    /// Schedules found on the way to it, the highest first.
    lows: Vec<Low>,
}

/// A schedule that takes little.
struct Low {
    live: u64,
    ns: u64,
    frozen: Frozen,
    dense: Arc<Dense>,
}

impl Low {
    fn new(frozen: Frozen, dense: Arc<Dense>) -> Low {
        let mut state = frozen.thaw(&dense);
        Low { live: state.peak() as u64, ns: dense.base_ns() + state.extra_ns, frozen, dense }
    }
}

impl Ladder {
    pub fn new(
        problem: Arc<Problem>,
        order: &[OpId],
        exactness: Exactness,
        host_budget: u64,
        effort: Effort,
    ) -> Ladder {
        let plain = Arc::new(Dense::new(&problem, order));
        // The bound must hold whatever algorithms are chosen.
        let mut least = Dense::clone(&plain);
        for (position, op) in order.iter().enumerate() {
            let ways = allowed(&problem, *op, exactness);
            least.ns[position] =
                ways.iter().map(|&w| problem.ops[op.index()].algorithms[w as usize].ns).min().unwrap_or(0);
            least.scratch[position] =
                ways.iter().map(|&w| padded_scratch(&problem, *op, w)).min().unwrap_or(0);
        }
        if host_budget == 0 {
            least.copy_ns = None;
        }
        let mut ladder = Ladder {
            problem,
            exactness,
            host_budget,
            effort,
            bounds: Bounds::new(&least),
            least_ns: least.base_ns(),
            unlimited_live: 0,
            plain,
            rungs: Vec::new(),
            floor: None,
            snapshots: None,
            deadline: None,
        };
        let top = Entry::new(&mut State::new(&ladder.plain), &ladder.plain, u64::MAX);
        ladder.unlimited_live = top.live;
        ladder.rungs.push(Some(vec![top]));
        ladder
    }

    /// The budget of a rung; rung 0 is the step without replays, the last one is the floor.
    fn rung_budget(&self, rung: usize) -> u64 {
        let lowest = self.floor.as_ref().map_or(0, |floor| floor.entry.live);
        ((self.unlimited_live as f64 * TREAD.powf(-f64::from(self.effort.treads) * rung as f64)) as u64)
            .max(lowest)
    }

    /// The bytes of the step without replays, packed.
    pub fn unlimited_bytes(&mut self) -> u64 {
        let alignment = self.problem.scratch_alignment;
        self.rungs[0].as_mut().and_then(|r| r.first_mut()).map_or(0, |e| e.arena(alignment))
    }

    /// The least time that any plan of this ladder can have within `budget`.
    pub fn bound_ns(&self, budget: u64) -> Option<u64> {
        self.bounds.extra_ns(budget).map(|extra| self.least_ns + extra)
    }

    /// The fastest schedule that fits `budget` and is faster than `faster_than`.
    pub fn fastest(&mut self, budget: u64, faster_than: u64) -> Option<&mut Entry> {
        let alignment = self.problem.scratch_alignment;
        let mut best: Option<(usize, usize)> = None;
        let mut best_ns = faster_than;
        if self.floor_bytes() > budget {
            return None;
        }
        let mut rung = 0;
        let lowest = self.floor.as_ref().map_or(u64::MAX, |floor| floor.entry.live);
        while rung == 0 || self.rung_budget(rung - 1) > lowest {
            // Schedules of this rung have less than the rung above.
            let ceiling = if rung == 0 { u64::MAX } else { self.rung_budget(rung - 1) };
            let hopeless = self.bound_ns(ceiling.min(budget)).is_none_or(|bound| bound >= best_ns);
            if rung > 0 && hopeless {
                break;
            }
            if rung == 0 || self.rung_budget(rung) <= budget {
                self.search(rung);
                let entries = self.rungs[rung].as_mut().map_or(&mut [][..], |r| &mut r[..]);
                for (k, entry) in entries.iter_mut().enumerate().rev() {
                    let known = rung == 0 || entry.budget <= budget;
                    if known && entry.ns < best_ns && entry.live <= budget && entry.arena(alignment) <= budget
                    {
                        best = Some((rung, k));
                        best_ns = entry.ns;
                    }
                }
            }
            rung += 1;
        }
        match best {
            Some((rung, k)) => self.rungs[rung].as_mut().map(|r| &mut r[k]),
            None => self.floor.as_mut().map(|floor| &mut floor.entry).filter(|entry| entry.ns < faster_than),
        }
    }

    /// The schedule that takes least.
    pub fn floor_entry(&mut self) -> Option<&mut Entry> {
        self.floor_bytes();
        self.floor.as_mut().map(|floor| &mut floor.entry)
    }

    /// The least budget for which a schedule is found.
    pub fn floor_bytes(&mut self) -> u64 {
        if self.floor.is_none() {
            self.floor = Some(self.find_floor());
        }
        let alignment = self.problem.scratch_alignment;
        let top = self.unlimited_bytes();
        self.floor.as_mut().map_or(top, |floor| floor.entry.arena(alignment)).min(top)
    }

    /// Looks for the schedule that takes least: by snapshots and by dropping tensors one by one, then by pressing the best of
    /// those lower. Every op counts as one unit of time here, so that the floor of a step does not change when its ops are
    /// timed anew.
    fn find_floor(&mut self) -> Floor {
        let bound = self.bounds.floor().0;
        let mut bare = Dense::clone(&self.lean(bound, true));
        bare.ns.iter_mut().for_each(|ns| *ns = 1);
        let bare = Arc::new(bare);
        let fresh = State::new(&bare).freeze();
        let mut found = vec![Low::new(fresh, bare.clone())];
        let table = Snapshots::new(&bare, self.effort.legs);
        if let Some((legs, snapshots)) = table.lowest() {
            let mut state = State::new(&bare);
            table.stretch.apply(&mut state, legs, snapshots);
            let (dense, frozen) = spread(&state);
            found.push(Low::new(frozen, Arc::new(dense)));
        }
        let mut live = found.iter().map(|f| f.live).min().unwrap_or(0);
        let (mut low, mut at) = (bound, bound);
        while low < live && live - low > live / self.effort.open {
            let tried = self.start(&bare, at, self.effort.floor, None).map(|f| Low::new(f, bare.clone()));
            match tried {
                Some(lower) if lower.live < live => {
                    live = lower.live;
                    found.push(lower);
                }
                // Nothing, or nothing lower (a step whose transients weigh nothing has nothing to give): the interval
                // closes from below, so that the search ends.
                _ => low = at + 1,
            }
            at = (low as f64 * live as f64).sqrt() as u64;
            at = at.clamp(low, live.max(low));
        }
        found.sort_by_key(|f| f.live);
        found.truncate(2);
        let mut lows = Vec::new();
        for start in found {
            // What is far behind is not pressed, but is a schedule all the same.
            if start.live <= live + live / 4 { self.press(start, bound, &mut lows) } else { lows.push(start) }
        }
        self.timed(lows)
    }

    /// The lowest of `lows` once packed, and all of them as starts for rungs, with the times of their ops.
    fn timed(&self, mut lows: Vec<Low>) -> Floor {
        for low in &mut lows {
            let mut dense = Dense::clone(&low.dense);
            dense.time(&self.problem);
            *low = Low::new(low.frozen.clone(), Arc::new(dense));
        }
        lows.sort_by_key(|low| std::cmp::Reverse(low.live));
        let least = lows.last().map_or(0, |low| low.live);
        // Holding less does not always pack lower, so several are packed.
        let mut entry: Option<Entry> = None;
        for low in lows.iter().rev().filter(|low| low.live <= least + least / 16).take(self.effort.packed) {
            let mut next = Entry::new(&mut low.frozen.thaw(&low.dense), &low.dense, low.live);
            let alignment = self.problem.scratch_alignment;
            let best = entry.as_mut().map_or(u64::MAX, |entry| entry.arena(alignment));
            if low.live < best && next.arena(alignment) < best {
                entry = Some(next);
            }
        }
        let fresh = || Entry::new(&mut State::new(&self.plain), &self.plain, self.unlimited_live);
        Floor { entry: entry.unwrap_or_else(fresh), lows }
    }

    /// Presses a schedule lower, step by step, and keeps what it was on the way. Where it is stuck it is spread.
    fn press(&self, start: Low, bound: u64, lows: &mut Vec<Low>) {
        let Low { mut dense, mut frozen, .. } = start;
        let (mut fails, mut step) = (0, 64);
        let mut kept = u64::MAX;
        let mut left = 48 * self.effort.floor;
        loop {
            let mut state = frozen.thaw(&dense);
            state.work = 0;
            let mut live = state.peak() as u64;
            let mut repair = Repair::new(&state, live, self.host_budget, 3);
            let mut stuck = false;
            let over = |state: &State, repair: &Repair| state.work + repair.work > left || self.is_late();
            while fails < self.effort.fails && live > bound && !stuck && !over(&state, &repair) {
                improve(&mut state, &mut repair, self.effort.floor / 8);
                if live < kept - kept / 24 {
                    lows.push(Low::new(state.clone().freeze(), dense.clone()));
                    kept = live;
                }
                repair.budget = (live - live / step - 1).max(bound) as i64;
                let (gap, noise) = ([0.0, 0.5, 1.0][fails % 3], [0.3, 1.0][fails / 3 % 2]);
                match repair.try_run(&mut state, Score { gap, noise }, 8 * dense.base_ns(), self.effort.floor)
                {
                    Outcome::Fits => {
                        repair.give_back(&mut state, 4 * self.effort.floor);
                        live = state.peak() as u64;
                    }
                    outcome => {
                        state.undo_to(0);
                        fails += 1;
                        step = (2 * step).min(1 << 12);
                        stuck = outcome == Outcome::Stuck;
                    }
                }
                state.keep_changes();
                repair.budget = live as i64;
            }
            left = left.saturating_sub(state.work + repair.work);
            let (next, schedule) = spread(&state);
            if !stuck || fails >= self.effort.fails || left == 0 || next.ops == dense.ops {
                lows.push(Low::new(state.freeze(), dense));
                return;
            }
            (dense, frozen) = (Arc::new(next), schedule);
        }
    }

    fn is_late(&self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    /// The dense step for a budget: an op whose working set is over it takes the fastest algorithm that fits, or the one
    /// with the least scratch.
    fn lean(&self, budget: u64, least: bool) -> Arc<Dense> {
        let mut dense: Option<Dense> = None;
        for (position, &op) in self.plain.op_id.iter().enumerate() {
            let need = self.bounds.must(position) - self.bounds.scratch(position);
            if need + self.plain.scratch[position] <= budget {
                continue;
            }
            let ways = allowed(&self.problem, op, self.exactness);
            let fits = |w: &&u32| need + padded_scratch(&self.problem, op, **w) <= budget;
            let time = |w: &&u32| match least {
                false => self.problem.ops[op.index()].algorithms[**w as usize].ns,
                true => padded_scratch(&self.problem, op, **w),
            };
            if let Some(&way) = ways.iter().filter(fits).min_by_key(time) {
                let dense = dense.get_or_insert_with(|| Dense::clone(&self.plain));
                dense.choose(&self.problem, position as u32, way);
            }
        }
        dense.map_or_else(|| self.plain.clone(), Arc::new)
    }

    /// The best first schedule for a budget by dropping tensors one by one, if it may cost less than `than`.
    fn start(&self, dense: &Dense, budget: u64, work: u64, than: Option<u64>) -> Option<Frozen> {
        let fresh = State::new(dense);
        let limit = than.unwrap_or(4 * dense.base_ns());
        let mut best: Option<State> = None;
        for gap in [0.5, 0.0, 1.0].into_iter().take(self.effort.scores) {
            let mut state = fresh.clone();
            let mut repair = Repair::new(&state, budget, self.host_budget, 1);
            // Some of what is added can be given back.
            let limit = best.as_ref().map_or(limit, |b| b.extra_ns.min(limit));
            if repair.run(&mut state, Score { gap, noise: 0.0 }, 2 * limit, work) {
                repair.give_back(&mut state, 4 * work);
                if best.as_ref().is_none_or(|b| state.extra_ns < b.extra_ns) {
                    best = Some(state);
                }
            }
        }
        Some(best?.freeze())
    }

    /// The best first schedules for a rung: by snapshots, by dropping tensors one by one, and those found on the way to the
    /// floor.
    fn start_rung(&mut self, budget: u64) -> Vec<(Frozen, Arc<Dense>)> {
        if self.snapshots.is_none() {
            self.snapshots = Some(Snapshots::new(&self.plain, self.effort.legs));
        }
        let (Some(floor), Some(table)) = (self.floor.as_ref(), self.snapshots.as_ref()) else {
            return Vec::new();
        };
        let plain = self.lean(budget, false);
        let mut found: Vec<(u64, Frozen, Arc<Dense>)> = Vec::new();
        let mut consider = |dense: Arc<Dense>, frozen: &Frozen| {
            let mut state = frozen.thaw(&dense);
            let mut repair = Repair::new(&state, budget, self.host_budget, 1);
            let score = Score { gap: 0.5, noise: 0.0 };
            if repair.run(&mut state, score, 8 * dense.base_ns(), self.effort.floor) {
                repair.give_back(&mut state, 4 * self.effort.floor);
                let ns = dense.base_ns() + state.extra_ns;
                let frozen = state.freeze();
                found.push((ns, frozen, dense));
            }
            found.iter().map(|f| f.0 - f.2.base_ns()).min()
        };
        let mut than = None;
        for (legs, snapshots) in table.cheapest(budget) {
            let mut state = State::new(&plain);
            table.stretch.apply(&mut state, legs, snapshots);
            let (dense, frozen) = spread(&state);
            than = consider(Arc::new(dense), &frozen);
        }
        let mut lows: Vec<&Low> = floor.lows.iter().filter(|low| low.live <= budget).collect();
        lows.sort_by_key(|low| low.ns);
        for low in lows.into_iter().take(2) {
            than = consider(low.dense.clone(), &low.frozen);
        }
        if let Some(frozen) = self.start(&plain, budget, 2 * self.effort.floor, than) {
            let (dense, frozen) = spread(&frozen.thaw(&plain));
            consider(Arc::new(dense), &frozen);
        }
        found.sort_by_key(|f| f.0);
        found.truncate(self.effort.starts);
        found.into_iter().map(|(_, frozen, dense)| (frozen, dense)).collect()
    }

    /// Searches a rung, if that has not been done.
    fn search(&mut self, rung: usize) {
        if self.rungs.len() <= rung {
            self.rungs.resize_with(rung + 1, || None);
        }
        if self.rungs[rung].is_some() {
            return;
        }
        let budget = self.rung_budget(rung);
        let mut entries = Vec::new();
        for (frozen, dense) in self.start_rung(budget) {
            let mut state = frozen.thaw(&dense);
            let mut repair = Repair::new(&state, budget, self.host_budget, 7);
            if !self.is_late() {
                improve(&mut state, &mut repair, self.effort.rung);
            }
            entries.push(Entry::new(&mut state, &dense, budget));
            let treads = (1..self.effort.treads).step_by(self.effort.stride);
            for tread in treads.take_while(|_| !self.is_late()) {
                let budget = (budget as f64 * TREAD.powi(tread as i32)) as u64;
                repair.budget = budget as i64;
                let before = state.extra_ns;
                repair.give_back(&mut state, self.effort.tread);
                improve(&mut state, &mut repair, self.effort.tread);
                if state.extra_ns < before {
                    entries.push(Entry::new(&mut state, &dense, budget));
                }
            }
        }
        self.rungs[rung] = Some(entries);
    }
}

/// The algorithms of an op that the exactness allows.
fn allowed(problem: &Problem, op: OpId, exactness: Exactness) -> Vec<u32> {
    let ways = &problem.ops[op.index()].algorithms;
    let ok = |w: &u32| *w == 0 || exactness > Exactness::Bitwise || ways[*w as usize].same_bits;
    (0..ways.len() as u32).filter(ok).collect()
}
