//! Small steps against their exact optimum: from an integer program (`optimum/make.py` wrote its results down) and, for
//! chains, found here by trying every schedule, best first.
//!
//! A chain's forward ops make `x1 .. xn`; its backward op `i` reads `xi` and the gradient so far. The exact optimum is
//! a shortest path over sets of held tensors: from each set, run any op whose inputs are held, or drop something.

use plimsoll_plan::{Home, Op, Planner, Problem, Request, Tensor, TensorId};
use serde::Deserialize;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// A forward chain of `sizes.len()` ops and its backward pass; every tensor is transient but the last gradient.
fn chain(sizes: &[u64], times: &[u64]) -> Problem {
    let n = sizes.len();
    let mut step = Problem::new();
    step.scratch_alignment = 1;
    let tensor = |name: String, bytes: u64| Tensor { alignment: 1, ..Tensor::transient(name, bytes) };
    let values: Vec<TensorId> = (0..n).map(|i| step.tensor(tensor(format!("x{i}"), sizes[i]))).collect();
    for i in 0..n {
        let reads: Vec<TensorId> = if i == 0 { vec![] } else { vec![values[i - 1]] };
        step.op(Op::new(format!("f{i}"), &reads, &[values[i]], times[i]));
    }
    let mut gradient: Option<TensorId> = None;
    for i in (0..n).rev() {
        let mut g = tensor(format!("g{i}"), sizes[i]);
        if i == 0 {
            g.home = Home::Output;
        }
        let g = step.tensor(g);
        let reads: Vec<TensorId> = [values[i]].into_iter().chain(gradient).collect();
        step.op(Op::new(format!("b{i}"), &reads, &[g], 2 * times[i]));
        gradient = Some(g);
    }
    step
}

/// The least time of any schedule within `budget`, by shortest path over (held tensors, op to run first next). One tensor
/// is dropped or one op run at a time.
fn optimum(step: &Problem, budget: u64) -> Option<u64> {
    let size = |set: u64| {
        (0..step.tensors.len()).filter(|t| set >> t & 1 == 1).map(|t| step.tensors[t].bytes).sum::<u64>()
    };
    let mask = |ids: &[TensorId]| ids.iter().fold(0u64, |set, t| set | 1 << t.0);
    let outputs = (0..step.tensors.len()).filter(|&t| step.tensors[t].home == Home::Output);
    let outputs = outputs.fold(0u64, |set, t| set | 1 << t);
    let ops: Vec<(u64, u64, u64)> =
        step.ops.iter().map(|op| (mask(&op.reads), mask(&op.writes), op.ns)).collect();
    let mut best: HashMap<(u64, usize), u64> = HashMap::from([((0, 0), 0)]);
    let mut queue = BinaryHeap::from([(Reverse(0u64), 0usize, 0u64)]);
    while let Some((Reverse(ns), next, held)) = queue.pop() {
        if best.get(&(held, next)).is_some_and(|b| *b < ns) {
            continue;
        }
        if next == ops.len() && outputs & held == outputs {
            return Some(ns);
        }
        let mut go = |held: u64, next: usize, ns: u64| {
            let known = best.entry((held, next)).or_insert(u64::MAX);
            if ns < *known {
                *known = ns;
                queue.push((Reverse(ns), next, held));
            }
        };
        (0..64).filter(|t| held >> t & 1 == 1).for_each(|t| go(held & !(1 << t), next, ns));
        for (index, &(reads, writes, time)) in ops.iter().enumerate().take(next + 1) {
            let useful = index == next || writes & held != writes;
            if useful && reads & held == reads && size(held | writes) <= budget {
                go(held | writes, next + usize::from(index == next), ns + time);
            }
        }
    }
    None
}

/// A small step and the least time within some budgets; none if there is no schedule.
#[derive(Deserialize)]
struct Case {
    name: String,
    problem: Problem,
    budgets: Vec<Golden>,
}

#[derive(Deserialize)]
struct Golden {
    bytes: u64,
    ns: Option<u64>,
}

/// What `optimum/make.py` wrote.
fn cases() -> Vec<Case> {
    serde_json::from_str(include_str!("optimum/golden.json")).unwrap()
}

#[test]
fn small_steps_are_planned_within_one_percent_of_the_optimum_on_average() {
    let (mut sum, mut worst, mut count, mut missed) = (0.0, (1.0f64, String::new()), 0, 0);
    for case in cases() {
        let mut planner = Planner::new(&case.problem, &Request::within(0)).unwrap();
        for golden in &case.budgets {
            let Some(exact) = optimum(&case.problem, golden.bytes) else { continue };
            let label = format!("{} within {}", case.name, golden.bytes);
            let Ok(plan) = planner.plan(golden.bytes) else {
                // The optimum knows no addresses, so a budget may do for it and not for any packing.
                println!("{label}: {exact} ns, but the floor is {}", planner.floor_bytes());
                missed += 1;
                continue;
            };
            // The optimum keeps to program order, and the planner may know a better one.
            let ratio = (plan.figures.predicted_ns as f64 / exact as f64).max(1.0);
            println!("{label}: {ratio:.4}");
            sum += ratio;
            count += 1;
            if ratio > worst.0 {
                worst = (ratio, label);
            }
        }
    }
    let mean = sum / f64::from(count);
    println!("{count} cases: mean {mean:.4}, worst {:.4} ({}), {missed} missed", worst.0, worst.1);
    assert!(count >= 50 && missed == 0);
    assert!(mean <= 1.01 && worst.0 <= 1.05);
}

/// The integer program has one stage an op, runs each op at most once in it, and drops things only after a use; the search
/// knows no stages. So the program is never better, and nearly always equal.
#[test]
fn the_integer_program_and_the_search_through_all_schedules_agree() {
    let (mut equal, mut all) = (0, 0);
    for case in cases() {
        for golden in &case.budgets {
            let exact = optimum(&case.problem, golden.bytes);
            let no_better = golden.ns.is_none_or(|ns| exact.is_some_and(|exact| exact <= ns));
            assert!(no_better, "{} within {}: {exact:?}, {:?}", case.name, golden.bytes, golden.ns);
            equal += u32::from(exact == golden.ns);
            all += 1;
        }
    }
    println!("{equal} of {all} equal");
    assert!(equal * 10 >= all * 9);
}

#[test]
fn small_chains_are_planned_within_one_percent_of_the_optimum_on_average() {
    let cases: [(&[u64], &[u64]); 5] = [
        (&[10, 10, 10, 10, 10, 10], &[10, 10, 10, 10, 10, 10]),
        (&[40, 10, 30, 10, 20, 10], &[5, 50, 10, 40, 5, 30]),
        (&[10, 20, 30, 40, 30, 20], &[30, 10, 20, 10, 5, 10]),
        (&[16, 64, 16, 64, 16, 64], &[8, 2, 8, 2, 8, 2]),
        (&[50, 40, 30, 20, 10, 5], &[10, 20, 30, 20, 10, 5]),
    ];
    let (mut sum, mut worst, mut count, mut missed) = (0.0, 1.0f64, 0, 0);
    for (sizes, times) in cases {
        let step = chain(sizes, times);
        let mut planner = Planner::new(&step, &Request::within(0)).unwrap();
        let top = planner.unlimited_bytes();
        for tenth in 3..=10 {
            let budget = top * tenth / 10;
            let exact = optimum(&step, budget);
            match (planner.plan(budget), exact) {
                (Ok(plan), Some(exact)) => {
                    assert!(plan.figures.predicted_ns >= exact, "faster than the optimum");
                    assert!(plan.figures.lower_bound_ns <= exact, "the lower bound is above the optimum");
                    let ratio = plan.figures.predicted_ns as f64 / exact as f64;
                    sum += ratio;
                    worst = worst.max(ratio);
                    count += 1;
                }
                (Err(_), None) => {}
                // The optimum knows no addresses, so a budget may do for it and not for any packing.
                (Err(_), Some(_)) => {
                    let floor = planner.floor_bytes();
                    println!("{sizes:?}: {budget} would do without addresses, the floor is {floor}");
                    missed += 1;
                }
                (Ok(_), None) => unreachable!("{sizes:?} within {budget}: planned what is impossible"),
            }
        }
    }
    assert!(count >= 20 && missed == 0, "{count} planned, {missed} missed");
    println!("{count} cases: mean {:.4}, worst {worst:.4}", sum / f64::from(count));
    assert!(sum / f64::from(count) <= 1.01 && worst <= 1.05);
}
