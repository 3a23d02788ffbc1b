//! Plans a traced training step under a budget and prints one line of JSON.
//!
//! `cargo run --release -p plimsoll-plan --example trace -- FILE.jsonl (--memory BYTES | --ratio R) [--seconds S]`

use plimsoll_plan::trace::read_trace;
use plimsoll_plan::{PlanError, Planner, Request};
use std::process::ExitCode;
use std::time::Instant;

const USAGE: &str = "usage: trace FILE.jsonl (--memory BYTES | --ratio R) [--seconds S]";

fn main() -> ExitCode {
    match run(&std::env::args().skip(1).collect::<Vec<_>>()) {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &[String]) -> Result<String, String> {
    let (mut file, mut memory, mut ratio, mut seconds) = (None, None, None, None);
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} wants a value; {USAGE}"));
        let bad = |text: &String| format!("{text} is not a number; {USAGE}");
        match arg.as_str() {
            "--memory" => memory = Some(value().and_then(|v| v.parse::<u64>().map_err(|_| bad(v)))?),
            "--ratio" => ratio = Some(value().and_then(|v| v.parse::<f64>().map_err(|_| bad(v)))?),
            "--seconds" => seconds = Some(value().and_then(|v| v.parse::<f64>().map_err(|_| bad(v)))?),
            _ => file = Some(arg.clone()),
        }
    }
    let file = file.ok_or(USAGE)?;
    let text = std::fs::read_to_string(&file).map_err(|error| format!("cannot read {file}: {error}"))?;
    let step = read_trace(&text, 1).map_err(|error| format!("{file}: {error}"))?;
    let start = Instant::now();
    let deadline_ms = seconds.map(|s| (s.max(0.0) * 1000.0) as u64);
    let request = Request { deadline_ms, ..Request::within(0) };
    let mut planner = Planner::new(&step, &request).map_err(|error| error.to_string())?;
    let budget = match (memory, ratio) {
        (Some(bytes), None) => bytes,
        (None, Some(ratio)) => (planner.unlimited_bytes() as f64 * ratio) as u64,
        _ => return Err(USAGE.into()),
    };
    let base = step.unlimited_ns().max(1) as f64;
    let answer = match planner.plan(budget) {
        Ok(plan) => {
            let f = plan.figures;
            serde_json::json!({
                "ops": step.ops.len(), "budget_bytes": budget, "peak_bytes": f.live_bytes, "arena_bytes": f.arena_bytes,
                "time_multiple": f.predicted_ns as f64 / base, "lower_bound_multiple": f.lower_bound_ns as f64 / base,
                "seconds": start.elapsed().as_secs_f64(), "feasible": true, "floor_bytes": f.floor_bytes,
            })
        }
        Err(PlanError::Infeasible(refusal)) => serde_json::json!({
            "ops": step.ops.len(), "budget_bytes": budget, "peak_bytes": null, "arena_bytes": null,
            "time_multiple": null, "lower_bound_multiple": null,
            "seconds": start.elapsed().as_secs_f64(), "feasible": false, "floor_bytes": refusal.floor_bytes,
        }),
        Err(error) => return Err(error.to_string()),
    };
    Ok(answer.to_string())
}
