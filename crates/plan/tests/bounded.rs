//! Planning ends: within a number of steps and of bytes that depend on how many ops there are and on nothing else.
//!
//! Branches of one size are the worst case of a search: whatever is let go of one of them may as well be let go of any other.

mod common;
mod shapes;

use common::{Chance, random_step};
use plimsoll_plan::{Op, PlanError, Planner, Problem, Request, Tensor, TensorId, steps_taken, verify};
use plimsoll_testing::Counting;
use shapes::{node, training};

#[global_allocator]
static COUNTING: Counting = Counting;

/// What a run declares for planning a step of so many ops (`plimsoll-run`, `account.rs`).
fn declared(ops: usize) -> i64 {
    (1 << 20) + (12 << 10) * ops as i64
}

/// Steps for one planner that is asked for its floor and for a few budgets. Packing takes the most of them: half a second of its
/// work for each of the plans that are packed as low as can be.
fn most_steps(ops: usize) -> u64 {
    500_000_000 + 4_000_000 * ops as u64
}

/// Plans `step` for its floor, for less, for all it wants and for what lies between, and holds that to both bounds.
fn check(name: &str, step: &Problem) {
    step.check().unwrap();
    let (steps, held) = (steps_taken(), Counting::forget_most());
    let mut planner = Planner::new(step, &Request::within(0)).unwrap();
    let (floor, top) = (planner.floor_bytes(), planner.unlimited_bytes());
    for budget in [floor, floor.midpoint(top), top] {
        let plan = planner.plan(budget).unwrap();
        verify(step, &plan).unwrap();
        assert!(plan.figures.arena_bytes <= budget, "{name}");
    }
    let ops = step.ops.len();
    let (steps, held) = (steps_taken() - steps, Counting::held().1 - held);
    println!("{name}: {ops} ops, {steps} steps of {}, {held} bytes of {}", most_steps(ops), declared(ops));
    assert!(steps <= most_steps(ops), "{name}: {steps} steps");
    assert!(held <= declared(ops), "{name}: {held} bytes where {} are declared", declared(ops));
    match planner.plan(floor - 1) {
        Err(PlanError::Infeasible(refusal)) => assert_eq!(refusal.floor_bytes, floor, "{name}"),
        other => unreachable!("{name}: a byte below the floor was planned: {other:?}"),
    }
}

/// Few ops that each make many tensors of one size, of which later ops want some: what a recurrent layer leaves when it is
/// only used.
fn many_results(chance: &mut Chance) -> Problem {
    let mut step = Problem::new();
    let mut made: Vec<TensorId> = Vec::new();
    let ops = 6 + chance.below(17) as usize;
    let results = 54 / ops as u64;
    for n in 0..ops {
        let reads: Vec<TensorId> =
            (0..3).filter_map(|_| made.get(chance.below(made.len() as u64) as usize).copied()).collect();
        let mut reads = reads;
        reads.sort_unstable();
        reads.dedup();
        let fresh: Vec<TensorId> = (0..1 + chance.below(2 * results - 1))
            .take(64 - made.len().min(64))
            .map(|k| step.tensor(Tensor::transient(format!("x{n}.{k}"), 4096)))
            .collect();
        step.op(Op::new(format!("f{n}"), &reads, &fresh, 10 + chance.below(3)));
        made.extend(fresh);
    }
    let last = step.tensor(Tensor::output("last", 64));
    made.retain(|_| chance.one_in(3));
    step.op(Op::new("last", &made, &[last], 10));
    step
}

/// One op with many results of one size, of which all are wanted at the end and some by an op that wants much room for itself.
/// Whatever that room is taken from may be any of them.
fn fan(width: usize, wide: usize, room: u64) -> Problem {
    let mut step = Problem::new();
    let mut made: Vec<TensorId> =
        (0..width).map(|n| step.tensor(Tensor::transient(format!("x{n}"), 4096))).collect();
    step.op(Op::new("split", &[], &made, 10));
    for n in 0..wide {
        let work = step.tensor(Tensor::transient(format!("y{n}"), room));
        let sum = step.tensor(Tensor::transient(format!("z{n}"), 64));
        step.op(Op::new(format!("wide{n}"), &[made[n]], &[work, sum], 10));
        made.push(sum);
    }
    let end = step.tensor(Tensor::output("end", 64));
    step.op(Op::new("end", &made, &[end], 10));
    step
}

#[test]
fn few_ops_with_many_results_of_one_size_end_within_steps_and_bytes() {
    check("a fan of 20", &fan(20, 20, 4 * 4096));
    check("a fan of 50", &fan(50, 5, 25 * 4096));
    check("a fan of 58", &fan(58, 1, 20 * 4096));
    for seed in 0..24 {
        let step = many_results(&mut Chance(seed));
        if step.tensors.len() > 2 {
            check(&format!("many results {seed}"), &step);
        }
    }
}

#[test]
fn wide_fans_ladders_and_recurrences_of_one_size_end_within_steps_and_bytes() {
    for seed in 0..6u64 {
        let mut chance = Chance(900 + seed);
        let width = 3 + chance.below(30) as usize;
        let mut nodes = vec![node(&[], 4096, 100)];
        nodes.extend((0..width).map(|_| node(&[0], 4096, 100)));
        nodes.push(node(&(1..=width).collect::<Vec<_>>(), 4096, 100));
        check(&format!("fan out and in, {width} wide"), &training(&nodes));
        let rungs = 4 + chance.below(12) as usize;
        let mut nodes = vec![node(&[], 4096, 100), node(&[], 4096, 100)];
        for n in 0..rungs {
            let (a, b) = (2 * n, 2 * n + 1);
            nodes.extend([node(&[a, b], 4096, 100), node(&[a, b], 4096, 100)]);
        }
        check(&format!("ladder of {rungs}"), &training(&nodes));
        let (gates, length) = (2 + chance.below(3) as usize, 4 + chance.below(10) as usize);
        let mut nodes = vec![node(&[], 4096, 100)];
        let mut hidden = 0;
        for _ in 0..length {
            let first = nodes.len();
            nodes.extend((0..gates).map(|_| node(&[hidden], 4096, 100)));
            let reads: Vec<usize> = std::iter::once(hidden).chain(first..first + gates).collect();
            hidden = nodes.len();
            nodes.push(node(&reads, 4096, 100));
        }
        check(&format!("recurrence of {length}, {gates} gates"), &training(&nodes));
    }
}

#[test]
fn known_shapes_and_random_steps_end_within_steps_and_bytes() {
    for (name, step) in shapes::small() {
        check(name, &step);
    }
    for seed in 600..606 {
        check(&format!("random step {seed}"), &random_step(4 + 3 * (seed as usize - 600), seed));
    }
    check("a longer recurrence", &shapes::recurrence(16));
    check("a longer chain", &shapes::chain(120));
    check("rounds of fans", &shapes::fan_out(3, 12));
    check("a wide tree", &shapes::tree(32));
}
