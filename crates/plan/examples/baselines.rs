//! Plans traced steps at the budgets of a table of baselines and prints how the plans compare.
//!
//! ```text
//! cargo run --release -p plimsoll-plan --example baselines -- [--deadline-ms N] BASELINES.csv TRACE.jsonl...
//! ```
//!
//! With a deadline the search is cut off after so many milliseconds.
//!
//! The table has a row for each model and ratio: `model,ratio,budget_bytes,lower_bound,baseline,baseline`, the last
//! three as multiples of the time without a budget, empty or in words where there is none. A trace belongs to the
//! rows that name its file without `.jsonl`.

use plimsoll_plan::trace::read_trace;
use plimsoll_plan::{PlanError, Planner, Request};
use std::path::Path;
use std::time::Instant;

/// Seconds of processor time this thread has had, where the system tells; the machine may be busy with other things.
fn processor_seconds(start: Instant) -> f64 {
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let ns = told.and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
    ns.map_or_else(|| start.elapsed().as_secs_f64(), |ns| ns as f64 * 1e-9)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let start = Instant::now();
    let mut args = std::env::args().skip(1).peekable();
    let deadline_ms = match args.next_if(|word| word == "--deadline-ms") {
        Some(_) => Some(args.next().ok_or("--deadline-ms takes milliseconds")?.parse()?),
        None => None,
    };
    let Some(table) = args.next() else {
        return Err("name a table of baselines and traces".into());
    };
    let table = std::fs::read_to_string(table)?;
    println!("model ratio budget | bound ours best-baseline | arena/live arena/budget floor | seconds");
    let (mut ours_sum, mut bound_sum, mut other_sum, mut rows) = (0.0, 0.0, 0.0, 0);
    for file in args {
        let step = read_trace(&std::fs::read_to_string(&file)?, 1)?.problem;
        let name = Path::new(&file).file_stem().and_then(|n| n.to_str()).unwrap_or_default().to_owned();
        for row in table.lines().skip(1) {
            let cells: Vec<&str> = row.split(',').collect();
            let [model, ratio, budget, bound, baselines @ ..] = &cells[..] else { continue };
            if *model != name {
                continue;
            }
            let budget: u64 = budget.parse()?;
            let before = processor_seconds(start);
            let mut planner = Planner::new(&step, &Request { deadline_ms, ..Request::within(0) })?;
            let outcome = planner.plan(budget);
            let seconds = processor_seconds(start) - before;
            let other = baselines.iter().filter_map(|b| b.parse::<f64>().ok()).fold(f64::MAX, f64::min);
            let words = if other == f64::MAX { "-".to_owned() } else { format!("{other:.4}") };
            match outcome {
                Ok(plan) => {
                    let f = &plan.figures;
                    let ours = f.predicted_ns as f64 / f.unlimited_ns.max(1) as f64;
                    let bound = bound.parse::<f64>().unwrap_or(1.0);
                    if other < f64::MAX {
                        (ours_sum, bound_sum, other_sum) =
                            (ours_sum + ours, bound_sum + bound, other_sum + other);
                        rows += 1;
                    }
                    let mark = if ours > other { " WORSE" } else { "" };
                    println!(
                        "{name} {ratio} {budget} | {bound:.4} ({:.4}) {ours:.4} {words}{mark} | {:.4} {:.4} {:.3} of {:.3} {} | {seconds:.2}",
                        f.lower_bound_ns as f64 / f.unlimited_ns.max(1) as f64,
                        f.arena_bytes as f64 / f.live_bytes.max(1) as f64,
                        f.arena_bytes as f64 / budget as f64,
                        f.floor_bytes as f64 / f.unlimited_bytes as f64,
                        f.unlimited_bytes as f64 * ratio.parse::<f64>()? / budget as f64,
                        step.ops.len(),
                    );
                }
                Err(PlanError::Infeasible(refusal)) => println!(
                    "{name} {ratio} {budget} | {bound} refused {words}: floor {} bound {} at {} | {seconds:.2}",
                    refusal.floor_bytes, refusal.bound_bytes, refusal.op_name
                ),
                Err(error) => return Err(error.into()),
            }
        }
    }
    let closed = (other_sum - ours_sum) / (other_sum - bound_sum).max(1e-9);
    println!(
        "{rows} rows with a baseline: {:.1} % of the way from the baselines to the bound",
        100.0 * closed
    );
    Ok(())
}
