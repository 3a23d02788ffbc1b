//! More bytes never plan a slower step, and no plan takes more than it was given.

use crate::common::random_step;
use plimsoll_plan::{PlanError, Planner, Problem, Request};

/// Plans `step` for fifty budgets from its floor to what it takes without one.
fn check(name: &str, step: &Problem) {
    let mut planner = Planner::new(step, &Request::within(0)).unwrap();
    let (floor, top) = (planner.floor_bytes(), planner.unlimited_bytes());
    // In no order, so that what was searched for one budget cannot help the next by chance.
    let mut plans: Vec<(u64, u64)> = Vec::new();
    for k in (0..50u64).map(|k| k * 17 % 50) {
        let budget = floor + (top - floor) * k / 49;
        let plan = planner.plan(budget).unwrap();
        assert!(plan.figures.arena_bytes <= budget, "{name}: {budget} bytes were given, more are used");
        assert!(plan.figures.lower_bound_ns <= plan.figures.predicted_ns);
        plans.push((budget, plan.figures.predicted_ns));
    }
    plans.sort_unstable();
    for pair in plans.windows(2) {
        assert!(pair[1].1 <= pair[0].1, "{name}: {} bytes are slower than {}", pair[1].0, pair[0].0);
    }
    assert_eq!(plans[49].1, step.unlimited_ns(), "{name}: nothing is replayed where everything fits");
    match planner.plan(floor - 1) {
        Err(PlanError::Infeasible(refusal)) => assert_eq!(refusal.floor_bytes, floor),
        other => unreachable!("{name}: a byte below the floor was planned: {other:?}"),
    }
}

#[test]
fn more_bytes_never_plan_a_slower_step_of_a_known_shape() {
    for (name, step) in crate::shapes::small() {
        check(name, &step);
    }
}

#[test]
fn more_bytes_never_plan_a_slower_random_step() {
    for seed in 500..508 {
        check(&format!("random step {seed}"), &random_step(10, seed));
    }
}

/// A quarter of the longer ones: they take long, and a test runs on one thread.
fn check_a_quarter(quarter: u64) {
    for seed in 100 + 3 * quarter..103 + 3 * quarter {
        check(&format!("random step {seed}"), &random_step(14, seed));
    }
}

#[test]
fn more_bytes_never_plan_a_slower_random_step_of_many_layers() {
    check_a_quarter(0);
}

#[test]
fn more_bytes_never_plan_a_slower_random_step_of_many_layers_the_second_quarter() {
    check_a_quarter(1);
}

#[test]
fn more_bytes_never_plan_a_slower_random_step_of_many_layers_the_third_quarter() {
    check_a_quarter(2);
}

#[test]
fn more_bytes_never_plan_a_slower_random_step_of_many_layers_the_last_quarter() {
    check_a_quarter(3);
}
