//! A step of 50,000 ops is planned in a bounded number of steps of the search, which are seconds.

mod common;
#[path = "common/layers.rs"]
mod layers;

use common::random_step;
use layers::layered_step;
use plimsoll_plan::{Planner, Request, steps_taken};

#[test]
fn fifty_thousand_ops_are_planned_in_half_their_memory() {
    let step = random_step(15_000, 1);
    assert!(step.ops.len() >= 45_000);
    let mut planner = Planner::new(&step, &Request::within(0)).unwrap();
    let budget = planner.unlimited_bytes() / 2;
    let (start, before) = (std::time::Instant::now(), steps_taken());
    let plan = planner.plan(budget).unwrap();
    let (seconds, steps) = (start.elapsed().as_secs_f64(), steps_taken() - before);
    println!("{} ops, {steps} steps, {seconds:.1} s, {:?}", step.ops.len(), plan.figures);
    // Steps of the search do not depend on the machine: 1.29 thousand million when this was written, which an optimised build
    // does in seconds. Twice as many would be another planner.
    assert!(steps < 2_500_000_000, "{steps} steps of the search, {seconds:.1} s");
    assert!(plan.figures.arena_bytes <= budget);
    assert!(plan.figures.predicted_ns < 2 * step.unlimited_ns());
}

/// The time of a plan in half the memory, as a share of the time without a budget.
fn in_half(layers: usize) -> f64 {
    let step = layered_step(layers);
    let mut planner = Planner::new(&step, &Request::within(0)).unwrap();
    let budget = planner.unlimited_bytes() / 2;
    let plan = planner.plan(budget).unwrap();
    assert_eq!(plan.figures.arena_bytes, plan.figures.live_bytes);
    plan.figures.predicted_ns as f64 / step.unlimited_ns() as f64
}

#[test]
fn a_thousand_equal_layers_are_planned_as_well_as_a_few() {
    let (few, many) = (in_half(12), in_half(1000));
    assert!(many < few + 0.01, "{many} of the time against {few}");
}
