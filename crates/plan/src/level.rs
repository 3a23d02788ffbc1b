//! Turns the budget of a level into schedules: from first schedules of its own (see `starts`), each improved at sublevels.
//!
//! How much the link carries beside ops is known only when a schedule is there, so a level of a step with copies is searched several
//! times, with more and more of them. What has to go beyond what the link carries is recomputed.

use crate::copy_price::CopyPrice;
use crate::indexed_problem::IndexedProblem;
use crate::low_peak::LowPeakSchedule;
use crate::parallel;
use crate::recompute::checkpoints::CheckpointSchedules;
use crate::recompute::improve::improve;
use crate::recompute::repair::Repair;
use crate::recompute::state::SavedReplays;
use crate::schedule::Schedule;
use crate::starts::{faster_start, first_schedules};
use crate::step_search::StepSearch;
use std::cmp::Reverse;
use std::sync::Arc;

/// How many times the budget of one sublevel the next one has. Smaller steps lose fewer of the bytes between two sublevels, and take
/// more searches.
pub(crate) const SUBLEVEL: f64 = 1.0026;

/// How many times the budget of its search a schedule may take, where copies are waited for: with more room, they start earlier and end
/// later, and so run beside more ops.
const OVERLAP_ROOM: [f64; 3] = [1.01, 1.03, 1.1];

/// Prices of copies: for how many sixteenths of the time that it has the link is thought busy, and what the guess at how much less a copy
/// beside ops counts is multiplied by. How much the link really carries depends on where in a step bytes are made: large tensors behind
/// each other wait. The last is for small steps, which have time for it: it finds what needs hardly any recomputation.
const PRICES: [(u64, u64); 4] = [(6, 1), (11, 1), (16, 1), (16, 2)];

/// The same where state lives on the host: its copies leave less of the link to guess about.
const BESIDE_STATE: [(u64, u64); 2] = [(6, 1), (16, 1)];

/// Searches a level.
pub(crate) fn search_level(
    step: &StepSearch,
    low_peaks: &[LowPeakSchedule],
    table: &CheckpointSchedules,
    budget: u64,
) -> Vec<Schedule> {
    if step.host_budget == 0 {
        return search_starts(step, low_peaks, table, budget);
    }
    let mut schedules = Vec::new();
    let prices = &PRICES[..step.effort.prices.min(PRICES.len())];
    let prices = if step.indexed.carries() { &BESIDE_STATE[..] } else { prices };
    for &(busy, cheaper) in prices {
        let price = CopyPrice {
            divisor: step.indexed.copy_price.divisor * cheaper,
            beside_ns: step.beside_ns / 16 * busy,
        };
        let step = step.at_price(price);
        let low_peaks: Vec<LowPeakSchedule> = low_peaks.iter().map(|low| low.at_price(price)).collect();
        schedules.append(&mut search_starts(&step, &low_peaks, table, budget));
        if step.is_late() {
            break;
        }
    }
    // The fastest last, which is packed first: mostly no other one need be.
    schedules.sort_by_key(|schedule| Reverse(schedule.ns));
    schedules
}

/// Searches a level at one price of copies.
fn search_starts(
    step: &StepSearch,
    low_peaks: &[LowPeakSchedule],
    table: &CheckpointSchedules,
    budget: u64,
) -> Vec<Schedule> {
    let starts = first_schedules(step, low_peaks, table, budget).into_iter();
    let search = |start| move || search_sublevels(step, low_peaks, table, budget, start);
    parallel::each(starts.map(search).collect()).into_iter().flatten().collect()
}

/// Improves a schedule at a level and at each of its sublevels. A first schedule that fits by then and is faster takes over.
fn search_sublevels(
    step: &StepSearch,
    low_peaks: &[LowPeakSchedule],
    table: &CheckpointSchedules,
    level_budget: u64,
    start: (SavedReplays, Arc<IndexedProblem>),
) -> Vec<Schedule> {
    let mut schedules = Vec::new();
    let (mut saved, mut indexed) = start;
    let mut sublevel = 0;
    loop {
        let mut state = saved.restore(&indexed);
        let mut repair = Repair::new(&state, level_budget, step.host_budget, 7);
        let mut work = step.effort.level;
        let mut last_ns = u64::MAX;
        let faster = loop {
            let budget = (level_budget as f64 * SUBLEVEL.powi(sublevel as i32)) as u64;
            let ns = indexed.base_ns() + state.extra_ns;
            let faster =
                if last_ns < u64::MAX { faster_start(step, low_peaks, table, budget, ns) } else { None };
            if faster.is_some() || sublevel >= step.effort.sublevels {
                break faster;
            }
            repair.budget = budget as i64;
            if !step.is_late() {
                if last_ns < u64::MAX {
                    repair.give_back(&mut state, work);
                }
                improve(&mut state, &mut repair, work);
            }
            if state.extra_ns < last_ns {
                let schedule = Schedule::new(&mut state, &indexed, budget);
                let waits = indexed.carries() || schedule.waits_ns() > 0;
                let rooms: &[f64] = if waits { &OVERLAP_ROOM } else { &[] };
                schedules.push(schedule);
                let more = rooms.iter().map(|room| (budget as f64 * room) as u64);
                schedules.extend(more.map(|more| Schedule::new(&mut state, &indexed, more)));
            }
            if step.is_late() {
                return schedules;
            }
            last_ns = state.extra_ns;
            work = step.effort.sublevel;
            sublevel += if sublevel == 0 { 1 } else { step.effort.stride as u32 };
        };
        match faster {
            Some(faster) => (saved, indexed) = faster,
            None => return schedules,
        }
    }
}
