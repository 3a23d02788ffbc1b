//! Damages valid plans in 200 ways and shows that the verifier catches every one.
//!
//! A kind of damage is a way to break a plan together with the place where it is broken: what part of which sort
//! of step, and how. Each is constructed so that the plan it leaves is wrong, not merely different.

use crate::carried::with_carried_state;
use crate::common::{Chance, random_step};
use plimsoll_plan::{
    Carry, Fault, Home, Link, Op, Plan, Planner, Problem, Request, Step, Tensor, TensorId, verify,
};

/// A step with everything in it, planned tightly, so that the plan has replays, copies, scratch and sharing.
fn subjects() -> Vec<(Problem, Plan)> {
    let mut all = Vec::new();
    for seed in 0..40 {
        let mut step = random_step(10, 500 + seed);
        if seed % 2 == 0 {
            step.link = Some(Link::new(50_000_000_000));
        }
        if seed % 4 == 1 {
            step = with_carried_state(step, 400);
        }
        let host_budget = if seed % 2 == 0 { 16_000 } else { 0 };
        let request = Request { host_budget, ..Request::within(0) };
        let mut planner = Planner::new(&step, &request).unwrap();
        let floor = planner.floor_bytes();
        let plan = planner.plan(floor).unwrap();
        verify(&step, &plan).unwrap();
        all.push((step, plan));
    }
    all
}

type Damage = fn(&Problem, &mut Plan, &mut Chance) -> bool;

/// Picks a random step for which `fits` holds.
fn pick(plan: &Plan, chance: &mut Chance, fits: impl Fn(&Step) -> bool) -> Option<usize> {
    let at: Vec<usize> = (0..plan.steps.len()).filter(|&i| fits(&plan.steps[i])).collect();
    (!at.is_empty()).then(|| at[chance.below(at.len() as u64) as usize])
}

/// A random step of a kind, to be changed.
macro_rules! picked {
    ($plan:ident, $chance:ident, $kind:ident) => {
        pick($plan, $chance, |s| matches!(s, Step::$kind { .. })).map(|i| &mut $plan.steps[i])
    };
}

/// A damage done to a random step of a kind, if there is one.
macro_rules! at {
    ($kind:pat, $damage:ident) => {
        |_, plan, chance| {
            let at = pick(plan, chance, |step| matches!(step, $kind));
            at.is_some_and(|at| $damage(plan, at))
        }
    };
}

fn removed(plan: &mut Plan, at: usize) -> bool {
    plan.steps.remove(at);
    true
}

fn to_front(plan: &mut Plan, at: usize) -> bool {
    let step = plan.steps.remove(at);
    plan.steps.insert(0, step);
    true
}

fn to_end(plan: &mut Plan, at: usize) -> bool {
    let step = plan.steps.remove(at);
    plan.steps.push(step);
    true
}

fn twice(plan: &mut Plan, at: usize) -> bool {
    plan.steps.insert(at, plan.steps[at].clone());
    true
}

/// The tensor after this one in its place.
fn another(problem: &Problem, tensor: &mut TensorId) -> bool {
    tensor.0 = (tensor.0 + 1) % problem.tensors.len() as u32;
    true
}

fn op_of<'a>(problem: &'a Problem, step: &Step) -> Option<&'a Op> {
    match step {
        Step::Run { op, .. } => Some(&problem.ops[op.index()]),
        _ => None,
    }
}

/// The first tensor that is carried in, or out.
fn carried(problem: &Problem, plan: &Plan, way: Carry) -> Option<TensorId> {
    let carries = plan.steps.iter().filter_map(|step| op_of(problem, step)).find(|op| op.carry == Some(way));
    carries.map(|op| if way == Carry::In { op.writes[0] } else { op.reads[0] })
}

fn bytes(problem: &Problem, tensor: TensorId) -> u64 {
    problem.tensors[problem.root(tensor).0.index()].bytes
}

/// A read is moved: up, down, by a little, by a lot, to another read's place, past the end.
/// Damages one of several.
fn any<T, R>(all: &mut Vec<T>, chance: &mut Chance, damage: impl Fn(&mut Vec<T>, usize) -> R) -> bool {
    let i = chance.below(all.len() as u64) as usize;
    damage(all, i);
    true
}

fn move_read(by: i64) -> impl Fn(&Problem, &mut Plan, &mut Chance) -> bool {
    move |problem, plan, chance| {
        let real =
            |s: &Step| op_of(problem, s).is_some_and(|op| op.reads.iter().any(|&r| bytes(problem, r) > 0));
        let Some(i) = pick(plan, chance, real) else { return false };
        let op = op_of(problem, &plan.steps[i]).unwrap().clone();
        let Step::Run { reads, .. } = &mut plan.steps[i] else { return false };
        let k = op.reads.iter().position(|&r| bytes(problem, r) > 0).unwrap();
        reads[k] = reads[k].wrapping_add_signed(by);
        true
    }
}

/// A write goes elsewhere, though someone reads it where it was.
fn move_write(by: i64) -> impl Fn(&Problem, &mut Plan, &mut Chance) -> bool {
    move |problem, plan, chance| {
        let read = |plan: &Plan, i: usize| {
            let Some(op) = op_of(problem, &plan.steps[i]) else { return false };
            let later = plan.steps[i + 1..].iter().take_while(|s| match (s, &plan.steps[i]) {
                (Step::Run { op: a, .. }, Step::Run { op: b, .. }) => a != b,
                _ => true,
            });
            let wanted: Vec<_> =
                later.filter_map(|s| op_of(problem, s)).flat_map(|op| op.reads.clone()).collect();
            op.writes
                .first()
                .is_some_and(|w| bytes(problem, *w) > 0 && wanted.iter().any(|r| problem.root(*r).0 == *w))
        };
        let at: Vec<usize> = (0..plan.steps.len()).filter(|&i| read(plan, i)).collect();
        if at.is_empty() {
            return false;
        }
        let i = at[chance.below(at.len() as u64) as usize];
        let Step::Run { writes, .. } = &mut plan.steps[i] else { return false };
        writes[0] = writes[0].wrapping_add_signed(by);
        true
    }
}

const DAMAGES: &[(&str, Damage)] = &[
    ("a step is left out", |problem, plan, chance| {
        let first = |s: &Step| matches!(s, Step::Run { replay: false, .. });
        let Some(i) = pick(plan, chance, first) else { return false };
        let _ = problem;
        plan.steps.remove(i);
        true
    }),
    ("a replay is left out", |_, plan, chance| {
        let Some(i) = pick(plan, chance, |s| matches!(s, Step::Run { replay: true, .. })) else {
            return false;
        };
        plan.steps.remove(i);
        true
    }),
    ("a step runs twice as a first run", |_, plan, chance| {
        let Some(i) = pick(plan, chance, |s| matches!(s, Step::Run { replay: false, .. })) else {
            return false;
        };
        plan.steps.insert(i + 1, plan.steps[i].clone());
        true
    }),
    ("a first run is called a replay", |_, plan, chance| {
        let Some(i) = pick(plan, chance, |s| matches!(s, Step::Run { replay: false, .. })) else {
            return false;
        };
        let Step::Run { replay, .. } = &mut plan.steps[i] else { return false };
        *replay = true;
        true
    }),
    ("a replay is called a first run", |_, plan, chance| {
        let Some(i) = pick(plan, chance, |s| matches!(s, Step::Run { replay: true, .. })) else {
            return false;
        };
        let Step::Run { replay, .. } = &mut plan.steps[i] else { return false };
        *replay = false;
        true
    }),
    ("an op that does not exist", |problem, plan, chance| {
        let Some(i) = pick(plan, chance, |s| matches!(s, Step::Run { .. })) else { return false };
        let Step::Run { op, .. } = &mut plan.steps[i] else { return false };
        op.0 += problem.ops.len() as u32;
        true
    }),
    ("a read too few", |problem, plan, chance| {
        let Some(i) = pick(plan, chance, |s| op_of(problem, s).is_some_and(|op| !op.reads.is_empty())) else {
            return false;
        };
        let Step::Run { reads, .. } = &mut plan.steps[i] else { return false };
        reads.pop();
        true
    }),
    ("a write too many", |_, plan, chance| {
        let Some(i) = pick(plan, chance, |s| matches!(s, Step::Run { .. })) else { return false };
        let Step::Run { writes, .. } = &mut plan.steps[i] else { return false };
        writes.push(0);
        true
    }),
    ("a write on top of what the op reads", |problem, plan, chance| {
        let plain = |s: &Step| {
            op_of(problem, s).is_some_and(|op| {
                let solid = |t| bytes(problem, t) > 0;
                op.in_place.is_empty()
                    && op.reads.iter().any(|r| solid(*r))
                    && op.writes.iter().any(|w| solid(*w))
            })
        };
        let Some(i) = pick(plan, chance, plain) else { return false };
        let op = op_of(problem, &plan.steps[i]).unwrap().clone();
        let Step::Run { reads, writes, .. } = &mut plan.steps[i] else { return false };
        let r = op.reads.iter().position(|r| bytes(problem, *r) > 0).unwrap();
        let w = op.writes.iter().position(|w| bytes(problem, *w) > 0).unwrap();
        writes[w] = reads[r] - problem.root(op.reads[r]).1;
        true
    }),
    ("two writes in one place", |problem, plan, chance| {
        let two = |s: &Step| {
            op_of(problem, s)
                .is_some_and(|op| op.writes.len() > 1 && op.writes.iter().all(|w| bytes(problem, *w) > 0))
        };
        let Some(i) = pick(plan, chance, two) else { return false };
        let Step::Run { writes, .. } = &mut plan.steps[i] else { return false };
        writes[1] = writes[0];
        true
    }),
    ("scratch on top of an operand", |problem, plan, chance| {
        let some = |s: &Step| match s {
            Step::Run { op, .. } => {
                let op = &problem.ops[op.index()];
                op.scratch > 0 && op.writes.iter().any(|w| bytes(problem, *w) > 0)
            }
            _ => false,
        };
        let Some(i) = pick(plan, chance, some) else { return false };
        let Step::Run { writes, scratch, .. } = &mut plan.steps[i] else { return false };
        *scratch = writes[0] / 64 * 64;
        true
    }),
    ("scratch past the budget", |problem, plan, chance| {
        let some = |s: &Step| match s {
            Step::Run { op, .. } => problem.ops[op.index()].scratch > 0,
            _ => false,
        };
        let Some(i) = pick(plan, chance, some) else { return false };
        let Step::Run { scratch, .. } = &mut plan.steps[i] else { return false };
        *scratch = plan.budget / 64 * 64;
        true
    }),
    ("scratch out of line", |problem, plan, chance| {
        let Some(i) = pick(plan, chance, |s| op_of(problem, s).is_some()) else { return false };
        let Step::Run { scratch, .. } = &mut plan.steps[i] else { return false };
        *scratch += 1;
        true
    }),
    ("a write on top of a resident", |problem, plan, chance| {
        let solid =
            |s: &Step| op_of(problem, s).is_some_and(|op| op.writes.iter().any(|w| bytes(problem, *w) > 0));
        let Some(i) = pick(plan, chance, solid) else { return false };
        let op = op_of(problem, &plan.steps[i]).unwrap().clone();
        let w = op.writes.iter().position(|w| bytes(problem, *w) > 0).unwrap();
        let Step::Run { writes, .. } = &mut plan.steps[i] else { return false };
        writes[w] = 0;
        true
    }),
    ("a resident forgotten", |_, plan, chance| any(&mut plan.residents, chance, |all, i| all.remove(i))),
    ("a resident placed twice", |_, plan, chance| {
        any(&mut plan.residents, chance, |all, i| all.push(all[i]))
    }),
    ("a resident moved", |_, plan, chance| any(&mut plan.residents, chance, |all, i| all[i].offset += 64)),
    ("a resident out of line", |_, plan, chance| {
        any(&mut plan.residents, chance, |all, i| all[i].offset += 1)
    }),
    ("two residents in one place", |_, plan, chance| {
        let i = chance.below(plan.residents.len() as u64 - 1) as usize;
        plan.residents[i].offset = plan.residents[i + 1].offset;
        true
    }),
    ("a transient called a resident", |problem, plan, _| {
        let Some(i) = problem.tensors.iter().position(|t| t.home == Home::Transient) else { return false };
        plan.residents[0].tensor.0 = i as u32;
        true
    }),
    ("an output forgotten", |_, plan, chance| any(&mut plan.outputs, chance, |all, i| all.remove(i))),
    ("an output looked for elsewhere", |_, plan, chance| {
        any(&mut plan.outputs, chance, |all, i| all[i].offset += 64)
    }),
    ("the budget a byte too small", |_, plan, _| {
        plan.budget = plan.figures.arena_bytes - 1;
        true
    }),
    ("a faster time than it takes", |_, plan, chance| {
        plan.figures.predicted_ns -= 1 + chance.below(plan.figures.predicted_ns);
        true
    }),
    ("fewer bytes than it takes", |_, plan, chance| {
        plan.figures.arena_bytes -= 1 + chance.below(plan.figures.arena_bytes);
        true
    }),
    ("more bytes than it takes", |_, plan, chance| {
        plan.figures.arena_bytes += 1 + chance.below(1000);
        true
    }),
    ("more live bytes than the arena has", |_, plan, chance| {
        plan.figures.live_bytes = plan.figures.arena_bytes + 1 + chance.below(1000);
        true
    }),
    ("fewer replays than it has", |_, plan, _| {
        plan.figures.recomputed_ops += 1;
        true
    }),
    ("other copies than it has", |_, plan, _| {
        plan.figures.offloaded_tensors += 1;
        true
    }),
    ("other host bytes than it has", |_, plan, _| {
        plan.figures.host_bytes += 64;
        true
    }),
    ("a copy out left out", at!(Step::Offload { .. }, removed)),
    ("a copy back left out", at!(Step::Prefetch { .. }, removed)),
    ("a copy back before the copy out", at!(Step::Prefetch { .. }, to_front)),
    ("a copy of another tensor", |problem, plan, chance| {
        let Some(Step::Offload { tensor, .. }) = picked!(plan, chance, Offload) else { return false };
        another(problem, tensor)
    }),
    ("a copy out of the wrong place", |_, plan, chance| {
        let Some(Step::Offload { from, .. }) = picked!(plan, chance, Offload) else { return false };
        *from += 512;
        true
    }),
    ("a copy past the host budget", |_, plan, chance| {
        let Some(Step::Offload { to, .. }) = picked!(plan, chance, Offload) else { return false };
        *to = plan.host_budget.next_multiple_of(512);
        true
    }),
    ("a copy back on top of a resident", |_, plan, chance| {
        let Some(Step::Prefetch { to, .. }) = picked!(plan, chance, Prefetch) else { return false };
        *to = 0;
        true
    }),
    ("a copy that is never awaited", at!(Step::Await { .. }, removed)),
    ("a copy awaited twice", at!(Step::Await { .. }, twice)),
    ("a copy awaited the wrong way", |_, plan, chance| {
        let Some(Step::Await { offload, .. }) = picked!(plan, chance, Await) else { return false };
        *offload = !*offload;
        true
    }),
    ("a copy awaited before it starts", at!(Step::Await { .. }, to_front)),
    ("a copy back awaited after it is used", at!(Step::Await { offload: false, .. }, to_end)),
    ("a copy out awaited after the copy back", |_, plan, chance| {
        let back = |t| plan.steps.iter().any(|s| matches!(s, Step::Prefetch { tensor, .. } if *tensor == t));
        let out = |s: &Step| matches!(s, Step::Await { offload: true, tensor } if back(*tensor));
        let Some(i) = pick(plan, chance, out) else { return false };
        to_end(plan, i)
    }),
    ("a copy started twice", at!(Step::Offload { .. } | Step::Prefetch { .. }, twice)),
    ("another copy awaited", |problem, plan, chance| {
        let Some(Step::Await { tensor, .. }) = picked!(plan, chance, Await) else { return false };
        another(problem, tensor)
    }),
    ("a consumer before its producer", |problem, plan, _| {
        let reads = |s: &Step| {
            op_of(problem, s).is_some_and(|op| {
                op.reads.iter().any(|r| {
                    let root = problem.root(*r).0;
                    problem.tensors[root.index()].home != Home::Resident && bytes(problem, *r) > 0
                })
            })
        };
        let Some(i) = plan.steps.iter().position(reads) else { return false };
        to_front(plan, i)
    }),
    ("an update before the last read of the old value", |problem, plan, _| {
        // The update of the first weight goes before the backward step that still reads that weight.
        let Some(i) =
            plan.steps.iter().position(|s| op_of(problem, s).is_some_and(|op| op.name.starts_with("sgd")))
        else {
            return false;
        };
        to_front(plan, i)
    }),
    ("an update twice", |problem, plan, chance| {
        let Some(i) = pick(plan, chance, |s| op_of(problem, s).is_some_and(|op| op.name.starts_with("sgd")))
        else {
            return false;
        };
        let mut again = plan.steps[i].clone();
        if let Step::Run { replay, .. } = &mut again {
            *replay = chance.one_in(2);
        }
        plan.steps.insert(i + 1, again);
        true
    }),
    ("the end cut off", |_, plan, chance| {
        let keep = chance.below(plan.steps.len() as u64) as usize;
        plan.steps.truncate(keep);
        true
    }),
    ("what is brought read before it is awaited", |problem, plan, _| {
        let Some(tensor) = carried(problem, plan, Carry::In) else { return false };
        let wait = Step::Await { tensor, offload: false };
        let Some(at) = plan.steps.iter().position(|s| *s == wait) else { return false };
        let reads = |s: &Step| op_of(problem, s).is_some_and(|op| op.reads.contains(&tensor));
        let Some(reader) = plan.steps.iter().position(reads) else { return false };
        let wait = plan.steps.remove(at);
        plan.steps.insert(reader, wait);
        true
    }),
    ("what is taken away never awaited", |problem, plan, _| {
        let Some(tensor) = carried(problem, plan, Carry::Out) else { return false };
        plan.steps.retain(|s| *s != Step::Await { tensor, offload: true });
        true
    }),
    ("state brought twice", |problem, plan, chance| {
        let fetch = |s: &Step| op_of(problem, s).is_some_and(|op| op.carry.is_some());
        let Some(i) = pick(plan, chance, fetch) else { return false };
        let again = plan.steps[i].clone();
        plan.steps.insert(i + 1, again);
        true
    }),
    ("the beginning cut off", |_, plan, chance| {
        let cut = 1 + chance.below(plan.steps.len() as u64 - 1) as usize;
        plan.steps.drain(..cut);
        true
    }),
    ("the order turned around", |_, plan, _| {
        plan.steps.reverse();
        true
    }),
];

#[test]
fn two_hundred_kinds_of_damage_are_all_caught() {
    let subjects = subjects();
    let mut kinds = 0;
    let mut missed: Vec<String> = Vec::new();
    let mut check = |name: String, damage: &dyn Fn(&Problem, &mut Plan, &mut Chance) -> bool| {
        let mut done = 0;
        for (k, (problem, plan)) in subjects.iter().enumerate() {
            let mut broken = plan.clone();
            let mut chance = Chance(k as u64);
            if damage(problem, &mut broken, &mut chance) && broken != *plan {
                done += 1;
                if verify(problem, &broken).is_ok() {
                    missed.push(format!("{name} (subject {k})"));
                }
            }
        }
        if done > 0 {
            kinds += 1;
        }
    };
    for (name, damage) in DAMAGES {
        check((*name).to_string(), damage);
    }
    // Moved operands, one kind for each direction and distance.
    for shift in 0..16 {
        for sign in [1, -1] {
            let by = sign * (1i64 << shift);
            check(format!("a read moved by {by}"), &move_read(by));
            check(format!("a write moved by {by}"), &move_write(by));
        }
    }
    // Claims that are off, one kind for each size of the error.
    for shift in 0..16 {
        let by = 1u64 << shift;
        check(format!("a time {by} ns too long"), &|_, plan, _| {
            plan.figures.predicted_ns += by;
            true
        });
        check(format!("an arena {by} bytes too large"), &|_, plan, _| {
            plan.figures.arena_bytes += by;
            true
        });
        check(format!("a budget {by} bytes too small"), &|_, plan, _| {
            let Some(budget) = plan.figures.arena_bytes.checked_sub(by) else { return false };
            plan.budget = budget;
            true
        });
        check(format!("outputs {by} bytes off"), &|_, plan, _| {
            plan.outputs.iter_mut().for_each(|p| p.offset += by);
            true
        });
        check(format!("residents {by} bytes off"), &|_, plan, _| {
            plan.residents.iter_mut().for_each(|p| p.offset += by);
            true
        });
    }
    // A step taken out at each tenth of the plan.
    for tenth in 0..10 {
        check(format!("a first run taken out after {tenth} tenths"), &|_, plan, _| {
            let from = plan.steps.len() * tenth / 10;
            let first = |s: &Step| matches!(s, Step::Run { replay: false, .. });
            let Some(i) = (from..plan.steps.len()).find(|&i| first(&plan.steps[i])) else { return false };
            plan.steps.remove(i);
            true
        });
    }
    assert!(missed.is_empty(), "not caught: {missed:#?}");
    assert!(kinds >= 200, "only {kinds} kinds of damage");
}

#[test]
fn a_fault_says_where_it_is() {
    let mut step = Problem::new();
    let a = step.tensor(Tensor::transient("a", 64));
    let b = step.tensor(Tensor::output("b", 64));
    step.op(Op::new("make a", &[], &[a], 1));
    step.op(Op::new("make b", &[a], &[b], 1));
    let mut plan = plimsoll_plan::plan(&step, &Request::within(128)).unwrap();
    let Step::Run { reads, .. } = &mut plan.steps[1] else { unreachable!("the second step runs an op") };
    let offset = reads[0] + 64;
    reads[0] = offset;
    assert_eq!(verify(&step, &plan), Err(Fault::StaleRead { step: 1, tensor: a, offset }));
}
