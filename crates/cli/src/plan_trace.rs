//! `plimsoll plan --trace`: a step that was traced elsewhere, as a file of its storages and ops, planned within a memory limit.

use std::path::Path;
use std::time::Instant;

use plimsoll::internals::graph::counted;
use plimsoll::internals::plan::trace::read_trace;
use plimsoll::internals::plan::{PlanError, Planner, Request};
use plimsoll::prelude::*;
use serde_json::{Value, json};

use crate::{Failure, named_file, records};

/// Of the document that has the instructions.
const VERSION: u32 = 1;

/// What is asked of a traced step.
#[derive(Clone, Copy, Default)]
pub struct Asked {
    pub limit: Option<Bytes>,
    /// The limit as a part of what the step takes without one.
    pub ratio: Option<f64>,
    /// How long to try.
    pub seconds: Option<f64>,
}

/// What is said to that.
pub struct Answer {
    /// The figures.
    pub line: Value,
    /// The same as a sentence, or the refusal.
    pub said: String,
    /// The figures with the instructions, where there is a plan.
    pub document: Option<Value>,
}

impl Asked {
    /// Plans the step that a text describes.
    ///
    /// # Errors
    /// The text is no trace; in words.
    pub fn of(&self, text: &str) -> Result<Answer, String> {
        let traced = read_trace(text, 1).map_err(|e| e.to_string())?;
        let step = &traced.problem;
        if step.ops.is_empty() {
            return Err("the trace has no op; each is a JSON line, as is each storage".into());
        }
        let start = Instant::now();
        let deadline_ms = self.seconds.map(|s| (s.max(0.0) * 1000.0) as u64);
        let request = Request { deadline_ms, ..Request::within(0) };
        let mut planner = Planner::new(step, &request).map_err(|e| e.to_string())?;
        let limit = match (self.limit, self.ratio) {
            (Some(bytes), _) => bytes.get(),
            (None, Some(ratio)) => (planner.unlimited_bytes() as f64 * ratio) as u64,
            (None, None) => planner.unlimited_bytes(),
        };
        let base = step.unlimited_ns().max(1) as f64;
        match planner.plan(limit) {
            Ok(plan) => {
                let f = &plan.figures;
                let (time, bound) = (f.predicted_ns as f64 / base, f.lower_bound_ns as f64 / base);
                let line = json!({
                    "ops": step.ops.len(), "memory_limit_bytes": limit, "budget_bytes": limit, "peak_bytes": f.live_bytes, "arena_bytes": f.arena_bytes,
                    "unlimited_bytes": f.unlimited_bytes, "recomputed_ops": f.recomputed_ops,
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
                let mut document = line.clone();
                document["version"] = VERSION.into();
                document["instructions"] =
                    serde_json::to_value(traced.instructions(&plan)).map_err(|e| e.to_string())?;
                Ok(Answer { line, said, document: Some(document) })
            }
            Err(PlanError::Infeasible(refusal)) => {
                let line = json!({
                    "ops": step.ops.len(), "memory_limit_bytes": limit, "budget_bytes": limit, "seconds": start.elapsed().as_secs_f64(),
                    "feasible": false, "floor_bytes": refusal.floor_bytes,
                });
                Ok(Answer { line, said: refusal.to_string(), document: None })
            }
            Err(error) => Err(error.to_string()),
        }
    }
}

/// Plans the step of a file, prints the answer and writes the instructions where they are wanted.
pub fn run(file: &Path, asked: &Asked, out: Option<&Path>, is_json: bool) -> Result<(), Failure> {
    let named = |why: String| Failure(format!("{}: {why}", file.display()));
    let text = named_file::text(file, "a trace, with a JSON line a storage and an op")?;
    let Answer { line, said, document } = asked.of(&text).map_err(named)?;
    match (out, document) {
        (Some(out), Some(document)) => records::write_document(out, &document)?,
        // As of a model: there is nothing to write.
        (Some(_), None) => return Err(named(said)),
        (None, _) => {}
    }
    say!("{}", if is_json { line.to_string() } else { said });
    Ok(())
}
