//! Tensors that are made a second time at a place of their own, as parameters are that ranks gather on the way there and on the way back.

use crate::common::{Chance, random_step};
use plimsoll_plan::{Op, Planner, Problem, ProblemError, Request, Tensor, TensorId, plan, verify};

/// A random step whose ops read weights that are gathered before them, and on the way back once more: as one tensor that is made anew, or as two.
fn gathering(layers: usize, seed: u64, is_anew: bool) -> Problem {
    let mut step = random_step(layers, seed);
    let mut chance = Chance(seed ^ 77);
    let ops = std::mem::take(&mut step.ops);
    let mut whole: Vec<Option<TensorId>> = vec![None; step.tensors.len()];
    for mut op in ops {
        let is_back = op.name.starts_with("backward");
        for read in op.reads.iter_mut().filter(|_| is_back || op.name.starts_with("forward")) {
            let shard = *read;
            let name = &step.tensors[shard.index()].name;
            if !name.starts_with("weight") {
                continue;
            }
            let (name, bytes) = (format!("all of {name}"), 64 * (1 + chance.below(60)));
            let made = match whole[shard.index()] {
                Some(made) if is_anew => made,
                Some(first) => step.tensor(step.tensors[first.index()].clone()),
                None => step.tensor(Tensor::transient(name, bytes)),
            };
            let gather = Op::new("gather", &[shard], &[made], 5 + chance.below(50));
            let is_again = whole[shard.index()].replace(made).is_some();
            step.op(Op { replayable: false, anew: is_anew && is_again, ..gather });
            *read = made;
        }
        step.op(op);
    }
    step
}

#[test]
fn what_is_made_anew_is_planned_within_any_budget_and_above_every_bound() {
    for seed in 0..24 {
        let mut chance = Chance(seed);
        let step = gathering(2 + chance.below(12) as usize, seed, true);
        step.check().unwrap();
        let mut planner = Planner::new(&step, &Request::within(0)).unwrap();
        let unlimited = planner.plan(u64::MAX / 4).unwrap();
        assert_eq!(unlimited.figures.recomputed_ops, 0);
        let (floor, top) = (planner.floor_bytes(), unlimited.figures.arena_bytes);
        for budget in (0..4).map(|_| floor + chance.below(top - floor + 1)).chain([floor]) {
            let plan = planner.plan(budget).unwrap();
            verify(&step, &plan).unwrap();
            assert!(plan.figures.arena_bytes <= budget);
            assert!(plan.figures.lower_bound_ns <= plan.figures.predicted_ns, "seed {seed}");
            assert!(plan.figures.bound_bytes <= plan.figures.arena_bytes, "seed {seed}");
        }
        // No more is held without a budget than where each making is a tensor of its own.
        let apart = gathering(2 + Chance(seed).below(12) as usize, seed, false);
        let apart = plan(&apart, &Request::within(u64::MAX / 4)).unwrap();
        assert!(unlimited.figures.live_bytes <= apart.figures.live_bytes, "seed {seed}");
    }
}

/// Layers that make something wide of little and of a gathered weight as large as that, and little of it again. On the way back the weight is gathered before
/// the wide values are read.
fn layers(count: usize, is_anew: bool) -> Problem {
    let mut step = Problem::new();
    let mut narrow = step.tensor(Tensor::resident("x", 64));
    let mut made: Vec<[TensorId; 4]> = Vec::new();
    for i in 0..count {
        let shard = step.tensor(Tensor::resident(format!("shard{i}"), 64));
        let whole = step.tensor(Tensor::transient(format!("whole{i}"), 4096));
        let wide = step.tensor(Tensor::transient(format!("wide{i}"), 4096));
        let next = step.tensor(Tensor::transient(format!("x{i}"), 64));
        step.op(Op { replayable: false, ..Op::new("gather", &[shard], &[whole], 10) });
        step.op(Op::new("widen", &[narrow, whole], &[wide], 100));
        step.op(Op::new("narrow", &[wide], &[next], 10));
        made.push([shard, whole, wide, narrow]);
        narrow = next;
    }
    let mut gradient = narrow;
    for &[shard, first, wide, narrow] in made.iter().rev() {
        let whole = if is_anew { first } else { step.tensor(Tensor::transient("whole", 4096)) };
        let next = step.tensor(Tensor::transient("dx", 64));
        let gather = Op::new("gather", &[shard], &[whole], 10);
        step.op(Op { replayable: false, anew: is_anew, ..gather });
        step.op(Op::new("back", &[gradient, wide, whole, narrow], &[next], 200));
        gradient = next;
    }
    let end = step.tensor(Tensor::output("end", 64));
    step.op(Op::new("end", &[gradient], &[end], 1));
    step
}

#[test]
fn what_runs_again_reads_what_was_gathered_last() {
    let floor =
        |is_anew: bool| Planner::new(&layers(12, is_anew), &Request::within(0)).unwrap().floor_bytes();
    let (apart, anew) = (floor(false), floor(true));
    // Either the wide values or the first weights stay for the way back, unless the last weights serve.
    assert!(apart > 12 * 4096, "{apart}");
    assert!(anew < 4 * 4096, "{anew}");
    let step = layers(12, true);
    let plan = plan(&step, &Request::within(anew)).unwrap();
    verify(&step, &plan).unwrap();
    assert!(plan.figures.recomputed_ops >= 11, "{}", plan.figures.recomputed_ops);
}

#[test]
fn a_second_making_must_say_so_and_run_once() {
    let mut step = layers(2, true);
    let second = step.ops.iter().rposition(|op| op.name == "gather").unwrap();
    step.ops[second].anew = false;
    assert!(matches!(step.check(), Err(ProblemError::BadWrite { .. })));
    (step.ops[second].anew, step.ops[second].replayable) = (true, true);
    assert!(matches!(step.check(), Err(ProblemError::BadAnew { .. })));
}
