//! Floors and deep cuts of well-known shapes: how near the planner comes to what no plan can beat.

use plimsoll_plan::{Planner, Problem, Request};

/// The floor as a share of the bytes without a budget.
fn floor_share(step: &Problem) -> f64 {
    let mut planner = Planner::new(step, &Request::within(0)).unwrap();
    planner.floor_bytes() as f64 / planner.unlimited_bytes() as f64
}

#[test]
fn a_chain_and_a_recurrence_run_in_a_small_part_of_their_memory() {
    assert!(floor_share(&crate::shapes::chain(60)) < 0.12);
    assert!(floor_share(&crate::shapes::recurrence(30)) < 0.16);
    assert!(floor_share(&crate::shapes::transformer(8)) < 0.15);
}

#[test]
fn a_tree_is_run_depth_first() {
    assert!(floor_share(&crate::shapes::tree(16)) < 0.15);
}

#[test]
fn unrolled_training_is_run_in_a_sixth_of_its_memory() {
    assert!(floor_share(&crate::shapes::unrolled(8)) < 1.0 / 6.0);
}

#[test]
fn known_shapes_in_half_of_their_memory_are_near_the_bound() {
    let mut worst = (1.0, "");
    for (name, step) in crate::shapes::small() {
        let mut planner = Planner::new(&step, &Request::within(0)).unwrap();
        let budget = planner.unlimited_bytes() / 2;
        let f = planner.plan(budget).unwrap().figures;
        let over = f.predicted_ns as f64 / f.lower_bound_ns as f64;
        println!("{name}: {over:.3} of the bound");
        if over > worst.0 {
            worst = (over, name);
        }
    }
    assert!(worst.0 < 1.15, "{} is {:.3} of its bound", worst.1, worst.0);
}

#[test]
fn the_floor_stays_when_ops_are_timed_anew() {
    for (name, step) in crate::shapes::small() {
        let floor = Planner::new(&step, &Request::within(0)).unwrap().floor_bytes();
        let mut other = step.clone();
        for (n, op) in other.ops.iter_mut().enumerate() {
            op.ns = 1 + (n as u64 * 7919) % 1000;
        }
        assert_eq!(Planner::new(&other, &Request::within(0)).unwrap().floor_bytes(), floor, "{name}");
    }
}
