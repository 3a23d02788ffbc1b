//! Gives every replay of a schedule a stage of its own, so that what a long chain holds can be dropped inside it.
//!
//! A stage makes each thing again at most once, and what it makes for itself alone stays until it is used. A long chain of replays in
//! one stage therefore has a peak that no drop can lower. Over several *replay stages*, in which no op has its first run, the same
//! chain is an ordinary stretch of the step: anything in it may be dropped and made again in turn, to any depth.

use super::state::{Remake, SavedReplays, State};
use crate::indexed_problem::{IndexedProblem, Lists};
use crate::lifespan::Action;
use crate::problem::OpId;

/// The same schedule with one replay a replay stage; replay stages that had become empty are left out.
pub(crate) fn one_replay_a_stage(state: &State) -> (IndexedProblem, SavedReplays) {
    let old = state.indexed;
    // Where each old stage goes; the end goes to the end.
    let mut place = Vec::with_capacity(old.ops as usize + 1);
    let mut stages: Vec<Stage> = Vec::with_capacity(old.ops as usize + state.pairs);
    for stage in 0..old.ops {
        let list = state.remakes(stage);
        let loads_from = list.partition_point(|&what| what < old.ops);
        stages.extend(list[loads_from..].iter().chain(&list[..loads_from]).map(|&what| (None, Some(what))));
        // An op may be replayed up to the replay stages before the op that limits it, and a replay stage limits nothing.
        place.push(stages.len() as u32);
        if !old.is_replay_stage(stage) {
            stages.push((Some(stage), None));
        }
    }
    renumbered(old, &stages, place)
}

/// The schedule of a plain sequence, with one replay a replay stage.
pub(crate) fn one_replay_a_stage_of(
    old: &IndexedProblem,
    actions: &[Action],
) -> (IndexedProblem, SavedReplays) {
    let mut place: Vec<u32> = Vec::with_capacity(old.ops as usize + 1);
    let mut stages: Vec<Stage> = Vec::with_capacity(actions.len());
    for action in actions {
        match *action {
            Action::Run(op) if op as usize >= place.len() => {
                // Replay stages of the old numbering limit nothing and make nothing, so they may go anywhere.
                place.resize(op as usize + 1, stages.len() as u32);
                stages.push((Some(op), None));
            }
            Action::Run(op) => stages.push((None, Some(op))),
            Action::Load(t) => stages.push((None, Some(old.ops + t))),
            Action::Store(_) | Action::Stored(_) | Action::Loaded(_) => {}
        }
    }
    place.resize(old.ops as usize, stages.len() as u32);
    renumbered(old, &stages, place)
}

/// What one stage does: an op's first run, or something made again.
type Stage = (Option<u32>, Option<Remake>);

/// The arrays of `old` for a new row of stages; `place` says where each old stage goes.
fn renumbered(old: &IndexedProblem, stages: &[Stage], mut place: Vec<u32>) -> (IndexedProblem, SavedReplays) {
    let ops = stages.len() as u32;
    place.push(ops);
    let at = |position: u32| place[position as usize];
    let lists =
        |all: &Lists| Lists::new(stages.iter().map(|s| s.0.map_or_else(Vec::new, |op| all.of(op).to_vec())));
    let per_op = |all: &[u64]| stages.iter().map(|s| s.0.map_or(0, |op| all[op as usize])).collect();
    let indexed = IndexedProblem {
        ops,
        op_id: stages.iter().map(|s| s.0.map_or(OpId(u32::MAX), |op| old.op_id[op as usize])).collect(),
        producer: old.producer.iter().map(|&p| at(p)).collect(),
        anew: Lists::new((0..old.tensors()).map(|t| old.anew.of(t).iter().map(|&made| at(made)).collect())),
        ins: lists(&old.ins),
        outs: lists(&old.outs),
        pairs: lists(&old.pairs),
        ns: per_op(&old.ns),
        carried: stages.iter().map(|s| s.0.and_then(|op| old.carried[op as usize])).collect(),
        scratch: per_op(&old.scratch),
        replay_until: stages.iter().map(|s| s.0.map_or(0, |op| at(old.replay_until[op as usize]))).collect(),
        is_carried: old.is_carried.clone(),
        tensor_id: old.tensor_id.clone(),
        size: old.size.clone(),
        alignment: old.alignment.clone(),
        keep: old.keep.clone(),
        resident_bytes: old.resident_bytes,
        copy_ns: old.copy_ns.clone(),
        copy_price: old.copy_price,
    };
    let renamed = |what: Remake| match what.checked_sub(old.ops) {
        None => at(what),
        Some(t) => ops + t,
    };
    let again = stages.iter().map(|s| s.1.map(renamed).into_iter().collect()).collect();
    (indexed, SavedReplays::new(again))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::{Op, Problem, Tensor, TensorId};

    /// A chain and its way back, so that the last ops want what the first made.
    fn there_and_back(length: usize) -> Problem {
        let mut step = Problem::new();
        let mut made: Vec<TensorId> = Vec::new();
        for n in 0..length {
            let next = step.tensor(Tensor::transient(format!("x{n}"), 64));
            step.op(Op::new(format!("f{n}"), &made[n.saturating_sub(1)..n], &[next], 10));
            made.push(next);
        }
        for n in (0..length).rev() {
            let mut op = Op::new(format!("b{n}"), &[made[n]], &[], 10);
            op.replayable = false;
            step.op(op);
        }
        step
    }

    fn ops(state: &State) -> Vec<OpId> {
        let run = |action: &Action| match action {
            Action::Run(op) => Some(state.indexed.op_id[*op as usize]),
            _ => None,
        };
        state.actions().iter().filter_map(run).collect()
    }

    #[test]
    fn a_schedule_that_is_spread_runs_the_same_ops_in_no_more_memory() {
        let step = there_and_back(6);
        let order: Vec<OpId> = (0..12).map(OpId).collect();
        let indexed = IndexedProblem::new(&step, &order);
        let mut state = State::new(&indexed);
        // The way back from 3 begins with a replay of 0 to 3, of which only the last is wanted there.
        (0..4).for_each(|op| state.insert(8, op));
        let (wide, saved) = one_replay_a_stage(&state);
        let mut after = saved.restore(&wide);
        assert_eq!(wide.ops, 16);
        assert_eq!(ops(&state), ops(&after));
        assert_eq!(state.extra_ns, after.extra_ns);
        assert!(after.peak() <= state.peak());
        // From the plain sequence comes the same.
        let (wide_too, again) = one_replay_a_stage_of(&indexed, &state.actions());
        assert_eq!((wide_too.ops, ops(&again.restore(&wide_too))), (wide.ops, ops(&state)));
        // A second time changes nothing, and a replay stage that has become empty goes.
        assert_eq!(one_replay_a_stage(&after).0.ops, 16);
        let empty =
            (0..wide.ops).find(|&stage| wide.is_replay_stage(stage) && !after.remakes(stage).is_empty());
        let empty = empty.unwrap_or_default();
        after.remove(empty, after.remakes(empty)[0]);
        assert_eq!(one_replay_a_stage(&after).0.ops, 15);
    }
}
