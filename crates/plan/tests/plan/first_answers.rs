//! What a planner says before it has searched for the floor to the end: it may be less exact, but it may not contradict the floor.

use crate::carried::with_carried_state;
use crate::common::random_step;
use crate::shapes;
use plimsoll_plan::{Link, Planner, Problem, Request};

/// Small and large random steps, well-known shapes, and steps whose state or activations are copied to the host.
fn steps() -> Vec<(String, Problem, Request)> {
    let within = Request::within(0);
    let mut steps = Vec::new();
    for seed in (0..26).chain([34, 40]) {
        let layers = 2 + (seed as usize * 7) % 23;
        steps.push((format!("random {seed}"), random_step(layers, seed), within.clone()));
    }
    steps.extend(shapes::small().into_iter().map(|(name, step)| (name.to_string(), step, within.clone())));
    for seed in 0..3 {
        let mut step = random_step(9, seed);
        step.link = Some(Link::new(20_000_000_000));
        let request = Request { host_budget: 1 << 20, ..within.clone() };
        steps.push((format!("linked {seed}"), step.clone(), request.clone()));
        steps.push((format!("carried {seed}"), with_carried_state(step, 400), request));
    }
    steps
}

/// The floors of the random steps of seeds from 0 on, by the search that went to its end for every step.
const FLOORS: [u64; 48] = [
    13_824, 27_456, 41_016, 40_128, 20_416, 35_456, 46_984, 23_183, 25_728, 48_256, 16_656, 29_488, 38_768,
    44_800, 29_952, 36_952, 32_704, 26_240, 28_960, 60_032, 16_976, 40_896, 33_827, 12_744, 29_888, 39_296,
    43_712, 30_704, 36_544, 37_632, 28_768, 38_076, 38_504, 23_553, 31_232, 35_177, 39_232, 17_498, 35_008,
    46_528, 25_144, 28_270, 37_984, 19_152, 34_688, 33_920, 19_600, 26_474,
];

fn planner(step: &Problem, request: &Request) -> Planner {
    Planner::new(step, request).unwrap()
}

#[test]
fn a_floor_below_some_bytes_is_found_where_there_is_one() {
    let mut seen_sooner = 0;
    for (name, step, request) in steps() {
        let mut known = planner(&step, &request);
        let (floor, unlimited) = (known.floor_bytes(), known.unlimited_bytes());
        for bytes in [0, floor / 2, floor, floor + 1, unlimited + 1, u64::MAX] {
            let expected = Some(floor).filter(|floor| *floor < bytes);
            assert_eq!(known.floor_below(bytes), expected, "{name} below {bytes}, floor known");
            // One that has room is found the harder, the less there is.
            if bytes <= floor + 1 {
                let mut fresh = planner(&step, &request);
                assert_eq!(fresh.floor_below(bytes), expected, "{name} below {bytes}, floor {floor}");
                seen_sooner += u32::from(!fresh.knows_floor());
            }
        }
    }
    assert!(seen_sooner > 60, "only {seen_sooner} questions were answered without the floor");
}

#[test]
fn what_is_said_to_be_enough_is() {
    let mut higher = 0;
    for (name, step, request) in steps() {
        let mut fresh = planner(&step, &request);
        let enough = fresh.enough_bytes();
        assert!(!fresh.knows_floor(), "{name}: it is there to be found sooner");
        assert!(fresh.plan(enough).is_ok(), "{name} within {enough}");
        let floor = fresh.floor_bytes();
        assert!(floor <= enough && enough <= floor + floor / 4, "{name}: {enough}, and the least is {floor}");
        higher += u32::from(enough > floor);
    }
    assert!(higher > 0, "no schedule is packed lower than at first");
}

#[test]
fn no_floor_is_above_what_the_search_to_its_end_found() {
    for (seed, before) in FLOORS.into_iter().enumerate() {
        let step = random_step(2 + (seed * 7) % 23, seed as u64);
        let floor = planner(&step, &Request::within(0)).floor_below(u64::MAX).unwrap();
        assert!(floor <= before, "seed {seed}: {floor}, and it was {before}");
    }
}

#[test]
fn what_lowering_once_finds_is_the_same_before_and_after_the_floor() {
    for (name, step, request) in steps().into_iter().step_by(5) {
        let mut planner = planner(&step, &request);
        let once = planner.lowered_once_bytes();
        planner.floor_bytes();
        assert_eq!(planner.lowered_once_bytes(), once, "{name}");
    }
}

#[test]
fn first_answers_stay_when_ops_are_timed_anew() {
    for (name, step, request) in
        steps().into_iter().filter(|(name, ..)| !name.starts_with("carried")).step_by(4)
    {
        let mut other = step.clone();
        for (n, op) in other.ops.iter_mut().enumerate() {
            op.ns = 1 + (n as u64 * 7919) % 1000;
        }
        let mut fresh = planner(&other, &request);
        let mut before = planner(&step, &request);
        let once = before.lowered_once_bytes();
        before.time(&other);
        assert_eq!((before.lowered_once_bytes(), fresh.lowered_once_bytes()), (once, once), "{name}");
        let (floor, budget) = (fresh.floor_bytes(), fresh.unlimited_bytes() / 2);
        assert_eq!(
            before.floor_bytes(),
            floor,
            "{name}: the search that was begun ends where a new one does"
        );
        let budget = budget.max(floor);
        assert_eq!(before.plan(budget).unwrap(), fresh.plan(budget).unwrap(), "{name}");
    }
}

#[test]
fn no_plan_is_faster_than_its_bound() {
    for (name, step, request) in steps().into_iter().step_by(3) {
        let mut planner = planner(&step, &request);
        let (floor, unlimited) = (planner.floor_bytes(), planner.unlimited_bytes());
        for budget in [floor, floor.midpoint(unlimited), unlimited] {
            let ns = planner.plan(budget).unwrap().figures.predicted_ns;
            let bound = planner.bound_ns(budget);
            assert!(bound.is_some_and(|bound| bound <= ns), "{name} in {budget}: {ns} ns, bound {bound:?}");
        }
        let below = planner.bound_bytes() - 1;
        assert!(planner.bound_ns(below).is_none(), "{name}: nothing runs in {below} bytes");
    }
}
