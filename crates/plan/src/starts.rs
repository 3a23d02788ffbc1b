//! Finds first schedules for a budget, for the search of a level to improve.

use crate::budget_grid::BudgetGrid;
use crate::exhaustive::{Steps, fastest};
use crate::floor::LowPeakSchedule;
use crate::indexed_problem::IndexedProblem;
use crate::recompute::checkpoints::CheckpointSchedules;
use crate::recompute::repair::{Repair, Score};
use crate::recompute::replay_stages::{one_replay_a_stage, one_replay_a_stage_of};
use crate::recompute::state::{SavedReplays, State};
use std::sync::Arc;

impl BudgetGrid {
    /// The best first schedule for a budget by dropping tensors one by one, if it may cost less than `than`.
    pub fn start(
        &self,
        indexed: &IndexedProblem,
        budget: u64,
        work: u64,
        than: Option<u64>,
    ) -> Option<SavedReplays> {
        let fresh = State::new(indexed);
        let limit = than.unwrap_or(4 * indexed.base_ns());
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
        Some(best?.save())
    }

    /// The best first schedules for a level: by checkpoints, by dropping tensors one by one, and those found on the way to the
    /// floor.
    pub fn first_schedules(&mut self, budget: u64) -> Vec<(SavedReplays, Arc<IndexedProblem>)> {
        if self.checkpoints.is_none() {
            let found = self.floor.as_mut().and_then(|floor| floor.checkpoints.take());
            self.checkpoints =
                found.or_else(|| Some(CheckpointSchedules::new(&self.indexed, self.effort.segments)));
        }
        let (Some(floor), Some(table)) = (self.floor.as_ref(), self.checkpoints.as_ref()) else {
            return Vec::new();
        };
        let mut found: Vec<(u64, SavedReplays, Arc<IndexedProblem>)> = Vec::new();
        let mut consider = |indexed: Arc<IndexedProblem>, saved: &SavedReplays| {
            let mut state = saved.restore(&indexed);
            let mut repair = Repair::new(&state, budget, self.host_budget, 1);
            let score = Score { gap: 0.5, noise: 0.0 };
            if repair.run(&mut state, score, 64 * indexed.base_ns(), self.effort.floor) {
                repair.give_back(&mut state, 4 * self.effort.floor);
                let ns = indexed.base_ns() + state.extra_ns;
                let saved = state.save();
                found.push((ns, saved, indexed));
            }
            found.iter().map(|f| f.0 - f.2.base_ns()).min()
        };
        let mut than = None;
        for (segments, checkpoints) in table.cheapest(budget) {
            let mut state = State::new(&self.indexed);
            table.stretch.apply(&mut state, segments, checkpoints);
            let (indexed, saved) = one_replay_a_stage(&state);
            than = consider(Arc::new(indexed), &saved);
        }
        if let Some(actions) = fastest(&self.indexed, budget, &mut Steps::of_a_level()) {
            let (indexed, saved) = one_replay_a_stage_of(&self.indexed, &actions);
            than = consider(Arc::new(indexed), &saved);
        }
        let mut low_peaks: Vec<&LowPeakSchedule> =
            floor.low_peaks.iter().filter(|low| low.live <= budget).collect();
        low_peaks.sort_by_key(|low| low.ns);
        for low in low_peaks.into_iter().take(2) {
            than = consider(low.indexed.clone(), &low.saved);
        }
        if let Some(saved) = self.start(&self.indexed, budget, 2 * self.effort.floor, than) {
            let (indexed, saved) = one_replay_a_stage(&saved.restore(&self.indexed));
            consider(Arc::new(indexed), &saved);
        }
        found.sort_by_key(|f| f.0);
        found.truncate(self.effort.starts);
        found.into_iter().map(|(_, saved, indexed)| (saved, indexed)).collect()
    }

    /// A first schedule that fits `budget` as it is and takes less than nine tenths of the time added by one of `ns`.
    pub fn faster_start(&self, budget: u64, ns: u64) -> Option<(SavedReplays, Arc<IndexedProblem>)> {
        let (floor, table) = (self.floor.as_ref()?, self.checkpoints.as_ref()?);
        let enough = ns - ns.saturating_sub(self.indexed.base_ns()) / 10;
        let low = floor.low_peaks.iter().filter(|low| low.live <= budget).min_by_key(|low| low.ns);
        if let Some(low) = low.filter(|low| low.ns < enough) {
            return Some((low.saved.clone(), low.indexed.clone()));
        }
        let (extra_ns, segments, checkpoints) = table.fastest(budget)?;
        if self.indexed.base_ns() + extra_ns >= enough {
            return None;
        }
        let mut state = State::new(&self.indexed);
        table.stretch.apply(&mut state, segments, checkpoints);
        let (indexed, saved) = one_replay_a_stage(&state);
        Some((saved, Arc::new(indexed)))
    }
}
