//! Turns what the engine knows of a plan and a run into the records that `plimsoll report` reads (`docs/report.md`).

use std::path::Path;
use std::time::Duration;

use plimsoll::device::Ledger;
use plimsoll::prelude::*;
use plimsoll::run::{Frontier, FrontierPoint, Timeline};
use serde::Serialize;
use serde_json::{Value, json};

use crate::Failure;

/// For so many lines, and for so long, other plans are looked for.
pub const FRONTIER_LINES: usize = 24;
pub const FRONTIER_TIME: Duration = Duration::from_secs(20);

/// What was planned for a run.
pub fn plan(model: &str, batch: usize, info: &StepInfo, trainer: &Trainer) -> Value {
    let training = trainer.training();
    let mut plan = figures(model, batch, info);
    plan["line_bytes"] = json!(trainer.request().limit.map(Bytes::get));
    plan["arena_bytes"] = json!(training.map_or(0, |t| t.arena_bytes().get()));
    plan["state_bytes"] = json!(training.map_or(0, |t| t.state_bytes().get()));
    plan
}

/// A plan with its step and other plans beside it, as one document.
pub fn write_plan(
    path: &Path,
    model: &str,
    batch: usize,
    info: &StepInfo,
    step: &Timeline,
    other: Option<&Frontier>,
) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct Document<'a> {
        #[serde(flatten)]
        plan: Value,
        step: &'a Timeline,
        frontier: Option<Value>,
    }
    let mut plan = figures(model, batch, info);
    plan["line_bytes"] = json!(step.line_bytes);
    plan["arena_bytes"] = json!(step.arena_bytes);
    plan["state_bytes"] = json!(info.account.tensors.get());
    let document = Document { plan, step, frontier: other.map(frontier) };
    let written: std::io::Result<()> =
        plimsoll::formats::durable::write_file(path, |out| Ok(serde_json::to_writer(out, &document)?));
    let shown = path.display();
    written.map_err(|e| Failure(format!("{shown} cannot be written: {e}; name another place with --out")))
}

/// Other plans for the same step.
pub fn frontier(frontier: &Frontier) -> Value {
    points(&frontier.points)
}

/// Other plans for the step of a run, and its own among them. `least` is the least memory that the run could have been given:
/// below what the first of them takes, input pipelines make do with less, and the step is that one's.
pub fn frontier_of_run(frontier: &Frontier, own: &StepInfo, least: Bytes) -> Value {
    let mut all = frontier.points.clone();
    all.extend(all.first().map(|first| FrontierPoint { line: least, planned: least, ..*first }));
    let (line, planned, predicted_seconds) = (own.unlimited, own.unlimited, own.unlimited_seconds);
    // The fastest is one too, also where the rest of the process hides what it takes more.
    all.push(FrontierPoint { line, planned, predicted_seconds, micro_batches: 1, recomputed_ops: 0 });
    let mut all = plimsoll::run::undominated(all);
    // Its own stays, also where one with smaller pipelines takes less and no more time.
    all.retain(|point| point.planned != own.planned || point.predicted_seconds < own.predicted_seconds);
    all.push(FrontierPoint {
        line: own.planned,
        planned: own.planned,
        predicted_seconds: own.predicted_seconds,
        micro_batches: own.micro_batches,
        recomputed_ops: own.recomputed_ops as usize,
    });
    all.sort_by(|a, b| a.planned.cmp(&b.planned).then(b.predicted_seconds.total_cmp(&a.predicted_seconds)));
    points(&all)
}

fn points(points: &[FrontierPoint]) -> Value {
    let point = |p: &FrontierPoint| {
        json!({
            "planned_bytes": p.planned.get(), "predicted_ms": p.predicted_seconds * 1e3,
            "micro_batches": p.micro_batches, "recomputed_ops": p.recomputed_ops,
        })
    };
    json!({ "points": points.iter().map(point).collect::<Vec<Value>>() })
}

/// Planned and measured bytes by owner; what nobody measured by itself is `null`.
pub fn ledger(ledger: &Ledger) -> Value {
    let row = |(kind, name, row): (plimsoll::device::Kind, &str, &plimsoll::device::Row)| {
        json!({
            "kind": kind.name(), "name": name, "planned_bytes": row.planned.get(),
            "measured_bytes": row.measured.map(Bytes::get),
        })
    };
    ledger.rows().map(row).collect()
}

fn figures(model: &str, batch: usize, info: &StepInfo) -> Value {
    json!({
        "schema": 1, "model": model, "batch": batch,
        "device": Device::current().map(|device| device.name().to_string()).unwrap_or_default(),
        "planned_bytes": info.planned.get(), "floor_bytes": info.floor.get(), "unlimited_bytes": info.unlimited.get(),
        "unshared_bytes": info.unshared.get(), "outside_bytes": info.outside.get(),
        "live_bytes": info.live.get(), "program_bytes": info.account.program.get(),
        "pipeline_bytes": info.account.beside.get(), "input_bytes": info.account.staged.get(),
        "predicted_ms": info.predicted_seconds * 1e3, "unlimited_ms": info.unlimited_seconds * 1e3,
        "micro_batches": info.micro_batches, "recomputed_ops": info.recomputed_ops, "exactness": info.exactness,
        "plan_seconds": info.plan_seconds, "host_bytes": info.host_bytes.get(), "hosted_bytes": info.hosted_bytes.get(),
        "offloaded_bytes": info.offloaded_bytes.get(), "offloaded_copies": info.offloaded_copies,
    })
}
