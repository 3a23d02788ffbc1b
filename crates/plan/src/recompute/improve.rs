//! Makes a schedule that fits faster: frees a part of it, repairs it another way, keeps it if that was better.

use super::repair::{Repair, Score};
use super::state::{Remake, State};
use std::ops::RangeInclusive;

/// Improves `state`, which fits, until `work` is used up or nothing has helped for long.
pub(crate) fn improve(state: &mut State, repair: &mut Repair, work: u64) {
    change(state, repair, work, None);
}

/// Changes `state`, which fits, to another schedule whose extra time is one of `ns`, by so many `moves` at most.
pub(crate) fn vary(
    state: &mut State,
    repair: &mut Repair,
    work: u64,
    moves: usize,
    ns: &RangeInclusive<u64>,
) {
    change(state, repair, work, Some((moves, ns)));
}

fn change(state: &mut State, repair: &mut Repair, work: u64, vary: Option<(usize, &RangeInclusive<u64>)>) {
    let end = repair.work + state.work + work;
    let varies = vary.is_some();
    let mut left = vary.map_or(usize::MAX, |w| w.0);
    let mut pairs: Vec<(u32, Remake)> = state.all_remakes().collect();
    let mut in_vain = 0;
    while repair.work + state.work < end && in_vain < 200 + 20 * pairs.len() && !pairs.is_empty() && left > 0
    {
        in_vain += 1;
        state.keep_changes();
        let before_ns = state.extra_ns;
        let pick = pairs[repair.rng.below(pairs.len())];
        let kind = repair.rng.below(if varies { 8 } else { 4 });
        let fits = if kind >= 4 {
            earlier(state, repair, pick)
        } else {
            free(state, repair, &pairs, pick, kind);
            let score = Score {
                gap: [0.0, 0.5, 1.0][repair.rng.below(3)],
                noise: [0.0, 0.3, 1.0][repair.rng.below(3)],
            };
            repair.run(state, score, before_ns + before_ns / 10 + 1, work)
        };
        if fits && kind < 4 {
            give_back_near(state, repair);
        }
        // Equal times are taken too, so that the search does not stay among schedules of which none is better than its neighbours.
        let good = vary.map_or(state.extra_ns <= before_ns, |(_, ns)| ns.contains(&state.extra_ns));
        if fits && good {
            if state.extra_ns < before_ns {
                in_vain = 0;
            }
            left -= usize::from(moved(state));
            pairs = state.all_remakes().collect();
            repair.work += u64::from(state.indexed.ops) / 16;
        } else {
            state.undo_to(0);
        }
    }
    state.keep_changes();
}

/// Whether the changes since the last kept ones come to anything.
fn moved(state: &State) -> bool {
    let mut sums: Vec<(u32, Remake, i32)> = state
        .changes()
        .iter()
        .map(|&(stage, what, inserted)| (stage, what, if inserted { 1 } else { -1 }))
        .collect();
    sums.sort_unstable();
    sums.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1)).any(|same| same.iter().map(|s| s.2).sum::<i32>() != 0)
}

/// Removes some pairs that have to do with `pick`.
fn free(state: &mut State, repair: &mut Repair, pairs: &[(u32, Remake)], pick: (u32, Remake), kind: usize) {
    match kind {
        // The pair itself, and perhaps some of its stage.
        0 => state.remove(pick.0, pick.1),
        1 => {
            let list: Vec<Remake> = state.remakes(pick.0).to_vec();
            for what in list {
                if what == pick.1 || repair.rng.below(2) == 0 {
                    state.remove(pick.0, what);
                }
            }
        }
        // A window of stages.
        2 => {
            let width = 1 + repair.rng.below(state.indexed.ops as usize / 20 + 2) as u32;
            for &(stage, what) in pairs.iter().filter(|p| p.0.abs_diff(pick.0) <= width) {
                if repair.rng.below(4) > 0 {
                    state.remove(stage, what);
                }
            }
        }
        // All replays of ops near this one.
        _ => {
            let width = 1 + repair.rng.below(state.indexed.ops as usize / 40 + 2) as u32;
            for &(stage, what) in pairs.iter().filter(|p| p.1.abs_diff(pick.1) <= width) {
                if repair.rng.below(4) > 0 {
                    state.remove(stage, what);
                }
            }
        }
    }
}

/// Makes something again some stages earlier than now, which takes as long; false if that does not fit.
fn earlier(state: &mut State, repair: &mut Repair, (stage, what): (u32, Remake)) -> bool {
    let target = stage.saturating_sub(1 + repair.rng.below(8) as u32);
    state.remove(stage, what);
    if !state.can_insert(target, what) {
        return false;
    }
    state.insert(target, what);
    state.peak() <= repair.budget
}

/// Tries to do without what was inserted, dearest first.
fn give_back_near(state: &mut State, repair: &Repair) {
    let mut fresh: Vec<(u64, u32, Remake)> = Vec::new();
    for &(stage, what, inserted) in state.changes() {
        if inserted && state.has(stage, what) {
            fresh.push((state.ns(what), stage, what));
        }
    }
    fresh.sort_unstable_by(|a, b| b.cmp(a));
    fresh.dedup();
    for (_, stage, what) in fresh {
        repair.try_without(state, stage, what);
    }
}
