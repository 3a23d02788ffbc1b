//! Random steps and random budgets: what the planner promises must hold for all of them.

use crate::carried::with_carried_state;
use crate::common::{Chance, random_step};
use plimsoll_plan::{Link, Op, PlanError, Planner, Problem, Request, Step, Tensor, TensorId, plan, verify};

/// A random step with a planner and its floor.
fn planned(layers: usize, seed: u64) -> (Problem, Planner, u64) {
    let step = random_step(layers, seed);
    let mut planner = Planner::new(&step, &Request::within(0)).unwrap();
    let floor = planner.floor_bytes();
    (step, planner, floor)
}

#[test]
fn random_steps_under_random_budgets_verify_and_stay_within() {
    let mut planned = 0;
    for seed in 0..60 {
        let mut chance = Chance(seed);
        let step = random_step(2 + chance.below(14) as usize, seed);
        step.check().unwrap();
        let mut planner = Planner::new(&step, &Request::within(0)).unwrap();
        let unlimited = planner.plan(u64::MAX / 4).unwrap();
        assert_eq!(unlimited.figures.predicted_ns, step.unlimited_ns());
        assert_eq!(unlimited.figures.recomputed_ops, 0);
        let top = unlimited.figures.arena_bytes;
        for _ in 0..4 {
            let budget = planner.floor_bytes() + chance.below(top - planner.floor_bytes() + 1);
            let plan = planner.plan(budget).unwrap();
            verify(&step, &plan).unwrap();
            assert!(plan.figures.arena_bytes <= budget);
            assert!(plan.figures.live_bytes <= plan.figures.arena_bytes);
            assert!(plan.figures.lower_bound_ns <= plan.figures.predicted_ns);
            assert!(plan.figures.bound_bytes <= plan.figures.arena_bytes);
            planned += 1;
        }
    }
    assert_eq!(planned, 240);
}

#[test]
fn a_planner_that_has_planned_before_plans_the_same() {
    let (step, mut planner, floor) = planned(12, 7);
    for extra in [5000, 0, 2000, 9000] {
        let fresh = plan(&step, &Request::within(floor + extra)).unwrap();
        assert_eq!(fresh, planner.plan(floor + extra).unwrap());
    }
}

#[test]
fn the_floor_runs_and_one_byte_less_is_refused() {
    for seed in 200..220 {
        let (_, mut planner, floor) = planned(8, seed);
        assert_eq!(planner.plan(floor).unwrap().figures.floor_bytes, floor);
        match planner.plan(floor - 1) {
            Err(PlanError::Infeasible(refusal)) => {
                assert_eq!(refusal.floor_bytes, floor);
                assert!(refusal.bound_bytes <= floor);
                let held: u64 = refusal.held.iter().map(|h| h.1).sum::<u64>() + refusal.scratch_bytes;
                assert!(held > 0 && held <= floor);
                assert!(refusal.to_string().contains(&floor.to_string()));
            }
            other => unreachable!("a byte below the floor was planned: {other:?}"),
        }
    }
}

#[test]
fn offloading_to_the_host_verifies_and_stays_within_both_budgets() {
    let mut offloaded = 0;
    for seed in 400..412 {
        let mut step = random_step(10, seed);
        step.link = Some(Link::new(100_000_000_000));
        let request = Request { host_budget: 20_000, ..Request::within(0) };
        let mut planner = Planner::new(&step, &request).unwrap();
        let floor = planner.floor_bytes();
        let plan = planner.plan(floor).unwrap();
        verify(&step, &plan).unwrap();
        assert!(plan.figures.host_bytes <= 20_000);
        offloaded += plan.figures.offloaded_tensors;
    }
    assert!(offloaded > 0);
}

#[test]
fn host_memory_never_makes_a_plan_slower_or_the_floor_higher() {
    for seed in 400..404 {
        let mut step = random_step(10, seed);
        step.link = Some(Link::new(5_000_000_000));
        let mut without = Planner::new(&step, &Request::within(0)).unwrap();
        let mut with = Planner::new(&step, &Request { host_budget: 20_000, ..Request::within(0) }).unwrap();
        let (floor, most) = (without.floor_bytes(), without.unlimited_bytes());
        assert!(with.floor_bytes() <= floor, "seed {seed}");
        for budget in [floor, floor + (most - floor) / 3, most] {
            let (without, with) = (without.plan(budget).unwrap(), with.plan(budget).unwrap());
            assert!(with.figures.predicted_ns <= without.figures.predicted_ns, "seed {seed} in {budget}");
            assert!(with.figures.floor_bytes <= floor, "seed {seed} in {budget}");
        }
    }
}

#[test]
fn state_on_the_host_takes_less_of_the_device_and_runs_beside_ops_where_there_is_room() {
    let (mut beside, mut waited) = (0, 0);
    for seed in 700..712 {
        let here = random_step(8, seed);
        let mut step = with_carried_state(here.clone(), 200);
        let link = seed % 2 == 0;
        if link {
            step.link = Some(Link::new(20_000_000_000));
        }
        let request = Request { host_budget: if link { 10_000 } else { 0 }, ..Request::within(0) };
        let mut planner = Planner::new(&step, &request).unwrap();
        let unlimited = planner.plan(u64::MAX / 4).unwrap();
        let carried = step.ops.iter().filter(|op| op.carry.is_some()).count() as u64;
        let least = here.unlimited_ns();
        let ns = unlimited.figures.predicted_ns;
        assert!(carried > 0 && ns >= least && ns <= least + carried * 200, "seed {seed}: {ns} of {least}");
        let (floor, most) = (planner.floor_bytes(), unlimited.figures.arena_bytes);
        let mut last = u64::MAX;
        for k in 0..8 {
            let budget = floor + (most - floor) * k / 7;
            let plan = planner.plan(budget).unwrap();
            verify(&step, &plan).unwrap();
            assert!(plan.figures.arena_bytes <= budget);
            assert!(plan.figures.predicted_ns <= last, "seed {seed}: {budget} bytes are slower than fewer");
            last = plan.figures.predicted_ns;
        }
        beside += least + carried * 200 - ns;
        waited += ns - least;
    }
    assert!(beside > 4 * waited, "{beside} ns beside ops, {waited} ns waited for");
}

/// ```text
/// forward   f0 f1 f2 …  each makes 4096 bytes in 1000 ns
/// backward  … b2 b1 b0  each wants what its forward op made
/// ```
///
/// A copy takes as long as three ops, so that it is dear where it is waited for; beside the ops between, it costs nothing.
#[test]
fn copies_that_run_beside_ops_are_taken_where_waiting_for_them_would_be_dear() {
    let mut step = Problem::new();
    step.link = Some(Link::new(4096 * 1_000_000_000 / 3000));
    let layers = 32usize;
    let made: Vec<TensorId> =
        (0..layers).map(|n| step.tensor(Tensor::transient(format!("x{n}"), 4096))).collect();
    for n in 0..layers {
        let reads: Vec<TensorId> = n.checked_sub(1).map(|before| made[before]).into_iter().collect();
        step.op(Op::new(format!("f{n}"), &reads, &[made[n]], 1000));
    }
    let mut last = made[layers - 1];
    for n in (0..layers).rev() {
        let next = step.tensor(Tensor::transient(format!("g{n}"), 4096));
        step.op(Op::new(format!("b{n}"), &[last, made[n]], &[next], 1000));
        last = next;
    }
    let budget = 4096 * 24;
    let without = plan(&step, &Request::within(budget)).unwrap().figures;
    let with = plan(&step, &Request { host_budget: 1 << 20, ..Request::within(budget) }).unwrap().figures;
    let over = |ns: u64| ns as f64 / step.unlimited_ns() as f64;
    println!(
        "{:.3} without, {:.3} with {} copies",
        over(without.predicted_ns),
        over(with.predicted_ns),
        with.offloaded_tensors
    );
    assert!(with.offloaded_tensors > 4 && over(with.predicted_ns) < 1.02, "{with:?}");
    assert!(over(without.predicted_ns) > 1.05, "{without:?}");
}

#[test]
fn copies_run_beside_ops_where_there_is_room() {
    let (mut beside, mut waited) = (0, 0);
    for seed in 400..412 {
        let mut step = random_step(10, seed);
        step.link = Some(Link::new(20_000_000_000));
        let request = Request { host_budget: 20_000, ..Request::within(0) };
        let mut planner = Planner::new(&step, &request).unwrap();
        let (floor, most) = (planner.floor_bytes(), planner.unlimited_bytes());
        for budget in [floor, floor + (most - floor) / 3, floor + (most - floor) / 2] {
            let plan = planner.plan(budget).unwrap();
            verify(&step, &plan).unwrap();
            let mut ns = 0;
            for (at, act) in plan.steps.iter().enumerate() {
                match act {
                    Step::Run { op, .. } => {
                        ns += step.ops[op.index()].ns;
                    }
                    Step::Offload { tensor, .. } | Step::Prefetch { tensor, .. } => {
                        ns += Link::new(20_000_000_000).ns(step.tensors[tensor.index()].bytes);
                        let next = plan.steps.get(at + 1);
                        beside += usize::from(!matches!(next, Some(Step::Await { .. })));
                    }
                    Step::Await { .. } => {}
                }
            }
            // No plan takes longer than all its parts one after the other.
            assert!(plan.figures.predicted_ns <= ns, "seed {seed}");
            waited += usize::from(plan.figures.predicted_ns == ns && plan.figures.offloaded_tensors > 0);
        }
    }
    assert!(beside > 0, "no copy runs beside an op; {waited} plans wait for theirs");
}

#[test]
fn a_step_whose_transients_weigh_nothing_is_planned_at_once() {
    let mut step = Problem::new();
    let weight = step.tensor(Tensor::resident("weight", 64));
    let result = step.tensor(Tensor::output("result", 0));
    step.op(Op::new("exp", &[weight], &[result], 10));
    let plan = plan(&step, &Request::within(64)).unwrap();
    assert_eq!((plan.figures.arena_bytes, plan.figures.recomputed_ops), (64, 0));
}

#[test]
fn a_step_without_ops_takes_its_residents_and_nothing_else() {
    let mut step = Problem::new();
    step.tensor(Tensor::resident("weight", 256));
    let mut planner = Planner::new(&step, &Request::within(0)).unwrap();
    assert_eq!((planner.floor_bytes(), planner.unlimited_bytes()), (256, 256));
    assert!(planner.plan(256).unwrap().steps.is_empty());
    assert!(planner.plan(255).is_err());
}

#[test]
fn the_floor_of_a_step_with_state_on_the_host_does_not_depend_on_times() {
    for seed in 720..728 {
        let floors = [1, 200, 40_000].map(|ns| {
            let mut step = with_carried_state(random_step(8, seed), ns);
            for (n, op) in step.ops.iter_mut().enumerate().filter(|(_, op)| op.carry.is_none()) {
                op.ns = op.ns * (1 + ns) % 977 + n as u64;
            }
            let mut planner = Planner::new(&step, &Request::within(0)).unwrap();
            let floor = planner.floor_bytes();
            assert!(planner.plan(floor).is_ok() && planner.plan(floor - 1).is_err(), "seed {seed}");
            floor
        });
        assert!(floors.iter().all(|floor| *floor == floors[0]), "seed {seed}: {floors:?}");
    }
}
