//! Plans as text: what a small step looks like without and with a tight budget.

use plimsoll_plan::text::write_plan;
use plimsoll_plan::{Op, PlanError, Problem, Request, Tensor, TensorId, plan};

/// Three layers forward and backward, every activation 1024 bytes.
fn step() -> Problem {
    let mut step = Problem::new();
    let weight = step.tensor(Tensor::resident("w", 256));
    let a = step.tensor(Tensor::transient("a", 1024));
    let b = step.tensor(Tensor::transient("b", 1024));
    let c = step.tensor(Tensor::transient("c", 1024));
    step.op(Op::new("fa", &[weight], &[a], 10));
    step.op(Op::new("fb", &[a, weight], &[b], 20));
    step.op(Op::new("fc", &[b, weight], &[c], 30));
    let mut gradient: Option<TensorId> = None;
    for (name, value) in [("c", c), ("b", b), ("a", a)] {
        let g = step.tensor(Tensor::transient(format!("g{name}"), 1024));
        let reads: Vec<TensorId> = [value].into_iter().chain(gradient).collect();
        step.op(Op::new(format!("b{name}"), &reads, &[g], 40));
        gradient = Some(g);
    }
    let loss = step.tensor(Tensor::output("norm", 4));
    step.op(Op::new("norm", &[gradient.unwrap_or(a)], &[loss], 5));
    step
}

fn check(budget: u64, expected: &str) {
    let step = step();
    let plan = plan(&step, &Request::within(budget)).unwrap();
    assert_eq!(write_plan(&step, &plan), expected);
}

#[test]
fn without_pressure_every_op_runs_once() {
    check(1 << 20, UNLIMITED);
}

#[test]
fn under_pressure_the_cheapest_activation_is_made_again() {
    check(256 + 3 * 1024, TIGHT);
}

#[test]
fn a_refusal_names_the_floor_who_holds_it_and_ways_out() {
    let Err(PlanError::Infeasible(refusal)) = plan(&step(), &Request::within(2048)) else {
        unreachable!("2048 bytes cannot do")
    };
    assert_eq!(refusal.to_string(), REFUSAL);
}

#[test]
fn with_a_link_copies_are_started_and_awaited() {
    let mut step = step();
    step.link = Some(plimsoll_plan::Link::new(1024 * 1_000_000_000 / 40));
    // Nothing is cheaper to make again than to copy.
    step.ops.iter_mut().take(3).for_each(|op| op.replayable = false);
    let request = Request { host_budget: 4096, ..Request::within(256 + 3 * 1024) };
    let plan = plan(&step, &request).unwrap();
    assert_eq!(write_plan(&step, &plan), OFFLOADED);
}

/// The copy out runs beside two ops, until its bytes are wanted; for the copy back there is no room before its use.
const OFFLOADED: &str = include_str!("golden/offloaded.txt");

const UNLIMITED: &str = include_str!("golden/unlimited.txt");

const TIGHT: &str = include_str!("golden/tight.txt");

const REFUSAL: &str = "budget 2 KiB cannot hold this step: floor is 3.25 KiB at op3 (bc); held there: \
    activations 3 KiB, parameters 256 B; largest: b 1 KiB, c 1 KiB, gc 1 KiB, w 256 B; raising the budget to 3328 \
    would fit";
