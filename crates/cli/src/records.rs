//! Turns what the engine knows of a plan and a run into the records that `plimsoll report` reads (`docs/report.md`).

use std::path::Path;
use std::time::Duration;

use plimsoll::internals::run::{FrontierPoint, record};
use plimsoll::plan::{Frontier, PlanFigures};
use plimsoll::prelude::*;

use crate::Failure;

/// For so many memory limits, and for so long, other plans are looked for.
pub const FRONTIER_LINES: usize = 24;
pub const FRONTIER_TIME: Duration = Duration::from_secs(20);

/// What was planned for a run.
pub fn plan(model: &str, batch: usize, info: &PlanFigures, trainer: &Trainer) -> record::Plan {
    let training = trainer.training();
    let mut plan = figures(model, batch, info);
    plan.memory_limit_bytes = trainer.request().limit.map(Bytes::get);
    plan.parts.arena_bytes = training.map_or(0, |t| t.arena_bytes().get());
    plan.parts.state_bytes = training.map_or(0, |t| t.state_bytes().get());
    plan
}

/// A plan with its step and other plans beside it, as one document.
pub fn write_plan(
    path: &Path,
    model: &str,
    batch: usize,
    info: &PlanFigures,
    step: &record::Step,
    other: Option<&Frontier>,
    profile: Option<&record::Profile>,
) -> Result<(), Failure> {
    write_compared(path, &of_plan(model, batch, info, step), step, other, profile)
}

/// As [`write_plan`], of a plan that has all its figures.
pub fn write_compared(
    path: &Path,
    plan: &record::Plan,
    step: &record::Step,
    other: Option<&Frontier>,
    profile: Option<&record::Profile>,
) -> Result<(), Failure> {
    let other = other.map(|other| frontier(&other.points));
    let document = record::PlanFile { plan, step, frontier: other.as_ref(), profile };
    write_document(path, &document)
}

/// A JSON document where `--out` names a place for it.
pub fn write_document(path: &Path, document: &impl serde::Serialize) -> Result<(), Failure> {
    let written: std::io::Result<()> =
        plimsoll::formats::durable::write_file(path, |out| Ok(serde_json::to_writer(out, document)?));
    let shown = path.display();
    written.map_err(|e| Failure(format!("{shown} cannot be written: {e}; name another place with --out")))
}

/// What was planned for a step that is not run.
pub fn of_plan(model: &str, batch: usize, info: &PlanFigures, step: &record::Step) -> record::Plan {
    let mut plan = figures(model, batch, info);
    plan.memory_limit_bytes = step.memory_limit_bytes;
    plan.parts.arena_bytes = step.bytes.arena_bytes;
    plan
}

/// Other plans for the step of a run, and its own among them. `least` is the least memory that the run could have been given:
/// below what the first of them takes, input pipelines make do with less, and the step is that one's.
pub fn frontier_of_run(found: &Frontier, own: &PlanFigures, least: Bytes) -> record::Frontier {
    let mut all = found.points.clone();
    all.extend(all.first().map(|first| FrontierPoint { limit: least, planned: least, ..*first }));
    let (limit, planned, predicted_seconds) = (own.unlimited, own.unlimited, own.unlimited_seconds);
    // The fastest is one too, also where the rest of the process hides what it takes more.
    all.push(FrontierPoint { limit, planned, predicted_seconds, micro_batches: 1, recomputed_ops: 0 });
    let mut all = plimsoll::internals::run::undominated(all);
    // Its own stays, also where one with smaller pipelines takes less and no more time.
    all.retain(|point| point.planned != own.planned || point.predicted_seconds < own.predicted_seconds);
    all.push(FrontierPoint {
        limit: own.planned,
        planned: own.planned,
        predicted_seconds: own.predicted_seconds,
        micro_batches: own.micro_batches,
        recomputed_ops: own.recomputed_ops as usize,
    });
    all.sort_by(|a, b| a.planned.cmp(&b.planned).then(b.predicted_seconds.total_cmp(&a.predicted_seconds)));
    frontier(&all)
}

/// Plans for the same step as they are written.
fn frontier(points: &[FrontierPoint]) -> record::Frontier {
    let points = points.iter().map(record::Point::from).collect();
    record::Frontier { points, ..record::Frontier::default() }
}

/// The figures of a plan, with what it is a plan of.
pub fn figures(model: &str, batch: usize, info: &PlanFigures) -> record::Plan {
    let device = Device::current().ok();
    record::Plan {
        model: model.into(),
        batch: batch as u64,
        device: Some(device.as_ref().map_or("", Device::name).into()),
        allocator: device.map(|device| device.allocator().into()),
        ..record::Plan::from(info)
    }
}
