//! `plimsoll plan --trace`: a plan for a traced training step under a budget.

use std::path::PathBuf;
use std::time::Instant;

use plimsoll::device::Bytes;
use plimsoll::plan::trace::read_trace;
use plimsoll::plan::{PlanError, Planner, Request};

use crate::Failure;

/// Arguments of `plimsoll plan`.
#[derive(clap::Args)]
pub struct Args {
    /// A traced step: one JSON line a storage and an op, in executed order.
    #[arg(long)]
    trace: PathBuf,
    /// The budget: `6GiB`, `512MiB`, or plain bytes.
    #[arg(long, conflicts_with = "ratio", required_unless_present = "ratio")]
    memory: Option<Bytes>,
    /// The budget as a part of what the step takes without one.
    #[arg(long)]
    ratio: Option<f64>,
    /// How long to try.
    #[arg(long)]
    seconds: Option<f64>,
    /// One JSON line instead of text.
    #[arg(long)]
    json: bool,
}

/// Plans and prints.
pub fn run(args: &Args) -> Result<(), Failure> {
    let file = args.trace.display();
    let text = std::fs::read_to_string(&args.trace).map_err(|e| Failure(format!("{file}: {e}")))?;
    let step = read_trace(&text, 1).map_err(|e| Failure(format!("{file}: {e}")))?;
    let start = Instant::now();
    let deadline_ms = args.seconds.map(|s| (s.max(0.0) * 1000.0) as u64);
    let request = Request { deadline_ms, ..Request::within(0) };
    let mut planner = Planner::new(&step, &request).map_err(|e| Failure(format!("{file}: {e}")))?;
    let budget = match (args.memory, args.ratio) {
        (Some(bytes), _) => bytes.get(),
        (None, ratio) => (planner.unlimited_bytes() as f64 * ratio.unwrap_or(1.0)) as u64,
    };
    let base = step.unlimited_ns().max(1) as f64;
    let (line, words) = match planner.plan(budget) {
        Ok(plan) => {
            let f = plan.figures;
            let (time, bound) = (f.predicted_ns as f64 / base, f.lower_bound_ns as f64 / base);
            let line = serde_json::json!({
                "ops": step.ops.len(), "budget_bytes": budget, "peak_bytes": f.live_bytes, "arena_bytes": f.arena_bytes,
                "time_multiple": time, "lower_bound_multiple": bound, "seconds": start.elapsed().as_secs_f64(),
                "feasible": true, "floor_bytes": f.floor_bytes,
            });
            let words = format!(
                "{} ops fit {}: arena {}, {time:.3} × the time (no plan is under {bound:.3} ×); the least budget is {}",
                step.ops.len(),
                Bytes(budget),
                Bytes(f.arena_bytes),
                Bytes(f.floor_bytes)
            );
            (line, words)
        }
        Err(PlanError::Infeasible(refusal)) => {
            let line = serde_json::json!({
                "ops": step.ops.len(), "budget_bytes": budget, "seconds": start.elapsed().as_secs_f64(),
                "feasible": false, "floor_bytes": refusal.floor_bytes,
            });
            (line, refusal.to_string())
        }
        Err(error) => return Err(Failure(format!("{file}: {error}"))),
    };
    println!("{}", if args.json { line.to_string() } else { words });
    Ok(())
}
