//! Plans that copy to the host what the link has time for, and recompute the rest.

use plimsoll_plan::{Link, Op, PlanError, Planner, Problem, Request, Tensor, TensorId, verify};

const BYTES: u64 = 4096;
const LAYERS: usize = 48;

/// ```text
/// forward   f0 f1 f2 …  each makes as many bytes in 1000 ns
/// backward  … b2 b1 b0  each wants what its forward op made
/// ```
///
/// A copy takes as long as three ops, so that the link has time for a third of what is made, or less.
fn there_and_back() -> Problem {
    let mut step = Problem::new();
    step.link = Some(Link::new(BYTES * 1_000_000_000 / 3000));
    let made: Vec<TensorId> =
        (0..LAYERS).map(|n| step.tensor(Tensor::transient(format!("x{n}"), BYTES))).collect();
    for n in 0..LAYERS {
        step.op(Op::new(format!("f{n}"), &made[n.saturating_sub(1)..n], &[made[n]], 1000));
    }
    let mut last = made[LAYERS - 1];
    for n in (0..LAYERS).rev() {
        let next = step.tensor(Tensor::transient(format!("g{n}"), BYTES));
        step.op(Op::new(format!("b{n}"), &[last, made[n]], &[next], 1000));
        last = next;
    }
    step
}

fn within(host_budget: u64) -> Request {
    Request { host_budget, ..Request::within(0) }
}

/// Bytes for so many of a hundred layers.
fn budget(percent: u64) -> u64 {
    LAYERS as u64 * percent / 100 * BYTES
}

#[test]
fn a_link_that_cannot_carry_all_that_does_not_fit_carries_a_part_and_the_rest_is_recomputed() {
    let step = there_and_back();
    let mut here = Planner::new(&step, &within(0)).unwrap();
    let mut both = Planner::new(&step, &within(1 << 24)).unwrap();
    for percent in [75, 60, 50, 40] {
        let here = here.plan(budget(percent)).unwrap().figures;
        let both = both.plan(budget(percent)).unwrap().figures;
        println!("{percent} %: {} ns without, {} ns with {both:?}", here.predicted_ns, both.predicted_ns);
        assert!(both.offloaded_tensors >= 8, "{percent} %: {both:?}");
        // Copies alone do where little is missing.
        assert!(percent > 50 || both.recomputed_ops > 0, "{percent} %: {both:?}");
        assert!(both.predicted_ns + 8000 <= here.predicted_ns, "{percent} %: {both:?} {here:?}");
    }
}

#[test]
fn more_bytes_never_plan_a_slower_step_with_copies_and_it_does_not_matter_what_was_asked_before() {
    let step = there_and_back();
    let mut planner = Planner::new(&step, &within(1 << 24)).unwrap();
    let mut without = Planner::new(&step, &within(0)).unwrap();
    let mut plans = Vec::new();
    for percent in (0..16).map(|k| 20 + k * 7 % 16 * 5) {
        match planner.plan(budget(percent)) {
            Ok(plan) => {
                verify(&step, &plan).unwrap();
                let here = without.plan(budget(percent)).map_or(u64::MAX, |plan| plan.figures.predicted_ns);
                assert!(plan.figures.predicted_ns <= here, "{percent} %");
                plans.push((percent, plan));
            }
            Err(PlanError::Infeasible(refusal)) => assert!(refusal.floor_bytes > budget(percent)),
            Err(other) => unreachable!("{other}"),
        }
    }
    plans.sort_by_key(|(percent, _)| *percent);
    assert!(plans.len() > 12, "{} plans", plans.len());
    for pair in plans.windows(2) {
        assert!(pair[1].1.figures.predicted_ns <= pair[0].1.figures.predicted_ns, "{} %", pair[1].0);
    }
    let (percent, plan) = &plans[plans.len() / 2];
    let again = Planner::new(&step, &within(1 << 24)).unwrap().plan(budget(*percent)).unwrap();
    assert_eq!(&again, plan);
}

#[test]
fn a_host_with_room_for_little_gets_no_more() {
    let step = there_and_back();
    let plan = Planner::new(&step, &within(3 * BYTES)).unwrap().plan(budget(50)).unwrap();
    assert!(plan.figures.host_bytes <= 3 * BYTES, "{:?}", plan.figures);
    let without = Planner::new(&step, &within(0)).unwrap().plan(budget(50)).unwrap();
    assert!(plan.figures.predicted_ns < without.figures.predicted_ns, "{:?}", plan.figures);
}
