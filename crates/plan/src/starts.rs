//! Finds first schedules for a budget, for the search of a rung to improve.

use crate::dense::{Dense, padded_scratch};
use crate::exact::{Steps, fastest};
use crate::floor::Low;
use crate::ladder::{Ladder, allowed};
use crate::recompute::repair::{Repair, Score};
use crate::recompute::snapshots::Snapshots;
use crate::recompute::spread::{spread, spread_acts};
use crate::recompute::state::{Frozen, State};
use std::sync::Arc;

impl Ladder {
    /// The dense step for a budget: an op whose working set is over it takes the fastest algorithm that fits, or the one
    /// with the least scratch.
    pub fn lean(&self, budget: u64, least: bool) -> Arc<Dense> {
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
    pub fn start(&self, dense: &Dense, budget: u64, work: u64, than: Option<u64>) -> Option<Frozen> {
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
    pub fn start_rung(&mut self, budget: u64) -> Vec<(Frozen, Arc<Dense>)> {
        if self.snapshots.is_none() {
            let found = self.floor.as_mut().and_then(|floor| floor.snapshots.take());
            self.snapshots = found.or_else(|| Some(Snapshots::new(&self.plain, self.effort.legs)));
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
            if repair.run(&mut state, score, 64 * dense.base_ns(), self.effort.floor) {
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
        if let Some(acts) = fastest(&plain, budget, &mut Steps::of_a_rung()) {
            let (dense, frozen) = spread_acts(&plain, &acts);
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

    /// A first schedule that fits `budget` as it is and takes less than nine tenths of the time added by one of `ns`.
    pub fn faster_start(&self, budget: u64, ns: u64) -> Option<(Frozen, Arc<Dense>)> {
        let (floor, table) = (self.floor.as_ref()?, self.snapshots.as_ref()?);
        let enough = ns - ns.saturating_sub(self.plain.base_ns()) / 10;
        let low = floor.lows.iter().filter(|low| low.live <= budget).min_by_key(|low| low.ns);
        if let Some(low) = low.filter(|low| low.ns < enough) {
            return Some((low.frozen.clone(), low.dense.clone()));
        }
        let (extra_ns, legs, snapshots) = table.fastest(budget)?;
        if self.plain.base_ns() + extra_ns >= enough {
            return None;
        }
        let mut state = State::new(&self.plain);
        table.stretch.apply(&mut state, legs, snapshots);
        let (dense, frozen) = spread(&state);
        Some((frozen, Arc::new(dense)))
    }
}
