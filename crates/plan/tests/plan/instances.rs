//! What a plan holds, read off its steps, must agree with the figures that the plan promises.

use crate::carried::with_carried_state;
use crate::common::random_step;
use plimsoll_plan::{
    Content, Instance, Link, Op, Plan, Planner, Problem, Request, Tensor, instances, live_bytes, plan, verify,
};

/// Where residents end and the first of everything else may begin.
fn resident_end(problem: &Problem, plan: &Plan) -> u64 {
    let end = |p: &plimsoll_plan::Placed| p.offset + problem.tensors[p.tensor.index()].padded_bytes();
    let widest = problem.tensors.iter().map(|t| t.alignment).max().unwrap_or(1);
    let end = plan.residents.iter().map(end).max().unwrap_or(0);
    end.next_multiple_of(widest.max(problem.scratch_alignment))
}

fn overlap(a: &Instance, b: &Instance) -> bool {
    a.from < b.until && b.from < a.until && a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes
}

fn agrees(problem: &Problem, plan: &Plan, what: &str) {
    verify(problem, plan).unwrap();
    let held = instances(problem, plan);
    let most = live_bytes(&held, plan.steps.len()).into_iter().max().unwrap_or(0);
    assert_eq!(resident_end(problem, plan) + most, plan.figures.live_bytes, "{what}: the most that is live");
    for (n, instance) in held.iter().enumerate() {
        let end = instance.offset + instance.bytes;
        assert!(instance.from < plan.steps.len() && end <= plan.figures.arena_bytes, "{what}: {instance:?}");
        let other = held[..n].iter().find(|other| overlap(other, instance));
        assert_eq!(other, None, "{what}: shares bytes with {instance:?}");
    }
    let again = held.iter().any(|instance| instance.again);
    let expected = plan.figures.recomputed_ops > 0 || plan.figures.offloaded_tensors > 0;
    assert_eq!(again, expected, "{what}: whether anything is there again");
}

#[test]
fn what_is_held_adds_up_to_the_live_bytes_of_the_plan() {
    for seed in 0..20 {
        let step = random_step(10, seed);
        let mut planner = Planner::new(&step, &Request::within(0)).unwrap();
        let (floor, most) = (planner.floor_bytes(), planner.unlimited_bytes());
        for budget in [floor, floor + (most - floor) / 2, most] {
            agrees(&step, &planner.plan(budget).unwrap(), &format!("seed {seed} in {budget}"));
        }
    }
}

#[test]
fn copies_hold_both_ends_until_they_are_awaited() {
    for seed in 400..408 {
        let mut step = with_carried_state(random_step(8, seed), 200);
        step.link = Some(Link::new(20_000_000_000));
        let request = Request { host_budget: 20_000, ..Request::within(0) };
        let mut planner = Planner::new(&step, &request).unwrap();
        let (floor, most) = (planner.floor_bytes(), planner.unlimited_bytes());
        for budget in [floor, floor + (most - floor) / 3, most] {
            agrees(&step, &planner.plan(budget).unwrap(), &format!("seed {seed} in {budget}"));
        }
    }
}

#[test]
fn an_output_that_takes_its_inputs_place_holds_the_bytes_from_then_on() {
    let mut step = Problem::new();
    let made = step.tensor(Tensor::transient("made", 1024));
    let changed = step.tensor(Tensor::transient("changed", 1024));
    let sum = step.tensor(Tensor::output("sum", 64));
    step.op(Op::new("make", &[], &[made], 10));
    let mut change = Op::new("change", &[made], &[changed], 10);
    change.in_place = vec![(made, changed)];
    change.scratch = 100;
    step.op(change);
    step.op(Op::new("sum", &[changed], &[sum], 10));
    let plan = plan(&step, &Request::within(1024 + 128)).unwrap();
    let held = instances(&step, &plan);
    let spans: Vec<_> = held.iter().map(|i| (i.content, i.from, i.until, i.bytes)).collect();
    let scratch = Content::Scratch(plimsoll_plan::OpId(1));
    let expected = [
        (Content::Tensor(made), 0, 1, 1024),
        (Content::Tensor(changed), 1, 3, 1024),
        (scratch, 1, 2, 128),
        (Content::Tensor(sum), 2, 3, 64),
    ];
    assert_eq!(spans, expected);
    assert_eq!(live_bytes(&held, 3), [1024, 1152, 1088]);
}
