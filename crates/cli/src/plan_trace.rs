//! `plimsoll plan --trace`: a step that was traced elsewhere, as a file of its storages and ops, planned within a memory limit.

use std::path::Path;
use std::time::Instant;

use plimsoll::internals::graph::counted;
use plimsoll::internals::plan::trace::read_trace;
use plimsoll::internals::plan::{PlanError, Planner, Request};
use plimsoll::prelude::*;

use crate::Failure;

/// What is asked of a traced step.
pub struct Trace<'a> {
    pub file: &'a Path,
    pub limit: Option<Bytes>,
    /// The limit as a part of what the step takes without one.
    pub ratio: Option<f64>,
    /// How long to try.
    pub seconds: Option<f64>,
}

impl Trace<'_> {
    /// Plans it and prints the plan.
    pub fn plan(&self, is_json: bool) -> Result<(), Failure> {
        let file = self.file.display();
        let text = std::fs::read_to_string(self.file).map_err(|e| Failure(format!("{file}: {e}")))?;
        let step = read_trace(&text, 1).map_err(|e| Failure(format!("{file}: {e}")))?;
        let start = Instant::now();
        let deadline_ms = self.seconds.map(|s| (s.max(0.0) * 1000.0) as u64);
        let request = Request { deadline_ms, ..Request::within(0) };
        let mut planner = Planner::new(&step, &request).map_err(|e| Failure(format!("{file}: {e}")))?;
        let limit = match (self.limit, self.ratio) {
            (Some(bytes), _) => bytes.get(),
            (None, Some(ratio)) => (planner.unlimited_bytes() as f64 * ratio) as u64,
            (None, None) => planner.unlimited_bytes(),
        };
        let base = step.unlimited_ns().max(1) as f64;
        let (line, said) = match planner.plan(limit) {
            Ok(plan) => {
                let f = plan.figures;
                let (time, bound) = (f.predicted_ns as f64 / base, f.lower_bound_ns as f64 / base);
                let line = serde_json::json!({
                    "ops": step.ops.len(), "memory_limit_bytes": limit, "budget_bytes": limit, "peak_bytes": f.live_bytes, "arena_bytes": f.arena_bytes,
                    "time_multiple": time, "lower_bound_multiple": bound, "seconds": start.elapsed().as_secs_f64(),
                    "feasible": true, "floor_bytes": f.floor_bytes,
                });
                let said = format!(
                    "{} fit {}: arena {}, {time:.3} × the time (no plan is under {bound:.3} ×); the least memory limit is {}",
                    counted(step.ops.len(), "op"),
                    Bytes(limit),
                    Bytes(f.arena_bytes),
                    Bytes(f.floor_bytes)
                );
                (line, said)
            }
            Err(PlanError::Infeasible(refusal)) => {
                let line = serde_json::json!({
                    "ops": step.ops.len(), "memory_limit_bytes": limit, "budget_bytes": limit, "seconds": start.elapsed().as_secs_f64(),
                    "feasible": false, "floor_bytes": refusal.floor_bytes,
                });
                (line, refusal.to_string())
            }
            Err(error) => return Err(Failure(format!("{file}: {error}"))),
        };
        say!("{}", if is_json { line.to_string() } else { said });
        Ok(())
    }
}
