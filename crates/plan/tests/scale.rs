//! A step of 50,000 ops is planned in seconds.

mod common;

use common::random_step;
use plimsoll_plan::{Planner, Request};

#[test]
fn fifty_thousand_ops_are_planned_in_half_their_memory() {
    let step = random_step(15_000, 1);
    assert!(step.ops.len() >= 45_000);
    let mut planner = Planner::new(&step, &Request::within(0)).unwrap();
    let budget = planner.unlimited_bytes() / 2;
    let start = std::time::Instant::now();
    let plan = planner.plan(budget).unwrap();
    println!("{} ops, {:.1} s, {:?}", step.ops.len(), start.elapsed().as_secs_f64(), plan.figures);
    assert!(plan.figures.arena_bytes <= budget);
    assert!(plan.figures.predicted_ns < 2 * step.unlimited_ns());
}
