//! `plimsoll plan`: what a training step would take and cost under a budget, for a model or a traced step.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use plimsoll::graph::counted;
use plimsoll::plan::trace::read_trace;
use plimsoll::plan::{PlanError, Planner, Request};
use plimsoll::prelude::*;
use plimsoll::run::record::Plan;
use plimsoll::run::{Error, Profile};

use crate::compare::{self, Budget};
use crate::config::Config;
use crate::setup::Setup;
use crate::{Failure, Stop, device_args, model_setup, plan_text, records, request};

/// Arguments of `plimsoll plan`.
#[derive(clap::Args)]
#[command(allow_negative_numbers = true, after_help = model_setup::help())]
pub struct Args {
    /// What would be trained, as of `plimsoll train`: a model by name, a `.keras` or `.h5` file, or a file of settings (`run.toml`). All
    /// flags of `train` are taken, and mean the same. A model that is asked about without `--data` is planned at the sizes of its
    /// table (`plimsoll models`) where `train` has no data for it either.
    #[arg(value_name = "CONFIG.toml | MODEL", required_unless_present = "trace", conflicts_with = "trace")]
    model: Option<String>,
    #[command(flatten)]
    config: Config,
    /// Instead of a model, a traced step: one JSON line a storage and an op, in executed order. Takes --memory, --ratio and --seconds.
    #[arg(long, help_heading = "Plan")]
    trace: Option<PathBuf>,
    /// The memory limit of a traced step as a part of what it takes without one.
    #[arg(long, requires = "trace", conflicts_with = "memory", help_heading = "Plan")]
    ratio: Option<f64>,
    /// How long to try, for a traced step.
    #[arg(long, requires = "trace", help_heading = "Plan")]
    seconds: Option<f64>,
    /// Also writes the plan with its step, instruction by instruction, as a JSON document: what `plimsoll report` draws.
    #[arg(long, conflicts_with = "trace", help_heading = "Plan")]
    out: Option<PathBuf>,
    /// Memory limits to put side by side: `4GiB,8GiB,16GiB`. One that is refused is an answer too: the command succeeds.
    #[arg(long, value_delimiter = ',', num_args = 1.., conflicts_with_all = ["trace", "memory", "out"], help_heading = "Plan")]
    compare: Vec<Bytes>,
    /// Do not look for the plans at other limits.
    #[arg(long, help_heading = "Plan")]
    no_frontier: bool,
    /// One JSON line instead of text.
    #[arg(long, help_heading = "Output")]
    json: bool,
}

/// So many limits are tried for the frontier, for so long: a plan is asked for in passing.
const FRONTIER_LINES: usize = 17;
const FRONTIER_LIMIT: Duration = Duration::from_secs(3);

/// Plans and prints.
pub fn run(args: &Args) -> Result<(), Stop> {
    if let Some(file) = &args.trace {
        return traced(args, file).map_err(Stop::from);
    }
    if args.ratio.is_some() || args.seconds.is_some() {
        return Err(Stop::Usage("--ratio and --seconds are for a traced step; name one with --trace".into()));
    }
    let config = request::without_training(args.model.as_deref(), &args.config)?;
    let (device, profile) = device_args::plannable(&config)?;
    Ok(device.scope(|| model(args, &config, Setup::new(&config, &device)?, profile.as_deref()))?)
}

/// Plans a model's training step and says what it would take; nothing is run, and no memory is taken for it.
fn model(args: &Args, config: &Config, setup: Setup, profile: Option<&Profile>) -> Result<(), Failure> {
    let start = Instant::now();
    let Setup { model_setup, mut trainer, train, form, batch, .. } = setup;
    let name = format!("{} on {}", model_setup.name, form.data);
    if !args.compare.is_empty() {
        return side_by_side(args, &name, batch, &mut trainer, &train);
    }
    let asked = trainer.plan(&train);
    // A refusal needs no kernel timed and says what would do: it is not kept waiting for a plot of everything else.
    let limit = trainer.request().limit;
    let mut frontier = None;
    let (mut line, mut words) = match asked {
        Ok(plan) => {
            let info = &plan.figures;
            if !args.no_frontier {
                frontier = Some(trainer.frontier(&train, FRONTIER_LINES, Some(FRONTIER_LIMIT))?);
            }
            if let Some(out) = &args.out {
                let step = plan.timeline()?;
                records::write_plan(out, &model_setup.name, batch, info, &step, frontier.as_ref())?;
            }
            let (line, words) = described(&name, &model_setup.name, &form.data, limit, batch, info);
            let words = words
                + &frontier.as_ref().map_or(String::new(), |found| plan_text::frontier(found, Some(info)));
            (line, words)
        }
        // To somebody who asked for a file a refusal is an error, since there is none.
        Err(error) if args.out.is_some() => return Err(error.into()),
        Err(plimsoll::train::Error::Run(error @ Error::Infeasible { .. })) => {
            let Error::Infeasible { asked, least, ways, .. } = &error else { return Err(error.into()) };
            let ways: Vec<_> = ways
                .iter()
                .map(|way| serde_json::json!({ "flag": way.flag, "change": way.change, "floor_bytes": way.least.get() }))
                .collect();
            let line = serde_json::json!({
                "model": model_setup.name, "data": form.data, "batch": batch, "fits": false, "budget_bytes": asked.get(),
                "floor_bytes": least.get(), "plan_seconds": start.elapsed().as_secs_f64(),
                "why": error.to_string(), "ways": ways,
            });
            (line, error.to_string() + "\n")
        }
        Err(error) => return Err(error.into()),
    };
    if let Some(frontier) = &frontier {
        line["frontier"] = serde_json::json!(frontier);
    }
    if let Some((all, estimated)) = profile.map(Profile::estimated) {
        (line["kernels"], line["estimated_kernels"]) = (all.into(), estimated.into());
        if estimated > 0 {
            words += &format!(
                "{estimated} of {all} kernels are not in the record of {}: their times and scratch are scaled from like ones\n",
                config.device.as_deref().unwrap_or_default()
            );
        }
    }
    say!("{}", if args.json { line.to_string() } else { words.trim_end().into() });
    Ok(())
}

/// A plan in JSON and in words.
fn described(
    name: &str,
    model: &str,
    data: &str,
    limit: Option<Bytes>,
    batch: usize,
    info: &StepInfo,
) -> (serde_json::Value, String) {
    let (ms, unlimited_ms) = (info.predicted_seconds * 1e3, info.unlimited_seconds * 1e3);
    let memory_limit_bytes = limit.map(Bytes::get);
    let mut line = serde_json::json!(Plan { memory_limit_bytes, ..records::figures(model, batch, info) });
    (line["data"], line["fits"], line["budget_bytes"]) =
        (data.into(), true.into(), limit.map(Bytes::get).into());
    for (name, value) in plan_text::json(info) {
        line[name] = value;
    }
    let copies = info.copies().map_or(String::new(), |copies| format!("{copies}, "));
    let words = format!(
        "{name} at batch {batch}: {:#} for the whole process (arena {}), {ms:.1} ms a step predicted\n\
         {}, {} run again, {copies}{}\n\
         the fastest plan takes {:#} and {unlimited_ms:.1} ms; the least is {:#}; planned in {:.2} s\n{}",
        info.planned,
        info.arena,
        counted(info.micro_batches, "micro-batch"),
        counted(info.recomputed_ops, "op"),
        info.exactness,
        info.unlimited,
        info.floor,
        info.plan_seconds,
        plan_text::page(info)
    );
    (line, words)
}

/// Budgets side by side.
fn side_by_side(
    args: &Args,
    name: &str,
    batch: usize,
    trainer: &mut Trainer,
    train: &Dataset,
) -> Result<(), Failure> {
    let mut budgets = Vec::new();
    for &line in &args.compare {
        trainer.set_memory_limit(Some(line))?;
        budgets.push(match trainer.plan(train) {
            Ok(plan) => Budget::Fits(line, Box::new(plan.figures)),
            // The planner's own refusal is a page for each budget; the least says it here.
            Err(plimsoll::train::Error::Run(Error::Infeasible { least, .. })) => Budget::Refused(line, least),
            Err(error) => return Err(error.into()),
        });
    }
    match args.json {
        true => say!(
            "{}",
            serde_json::json!({ "model": name, "batch": batch, "compare": compare::json(&budgets) })
        ),
        false => say!("{name} at batch {batch}\n{}", compare::table(&budgets).trim_end()),
    }
    Ok(())
}

/// Plans a traced step.
fn traced(args: &Args, file: &Path) -> Result<(), Failure> {
    let text = std::fs::read_to_string(file).map_err(|e| Failure(format!("{}: {e}", file.display())))?;
    let file = file.display();
    let step = read_trace(&text, 1).map_err(|e| Failure(format!("{file}: {e}")))?;
    let start = Instant::now();
    let deadline_ms = args.seconds.map(|s| (s.max(0.0) * 1000.0) as u64);
    let request = Request { deadline_ms, ..Request::within(0) };
    let mut planner = Planner::new(&step, &request).map_err(|e| Failure(format!("{file}: {e}")))?;
    let budget = match (args.config.written_memory_limit()?, args.ratio) {
        (Some(bytes), _) => bytes.get(),
        (None, Some(ratio)) => (planner.unlimited_bytes() as f64 * ratio) as u64,
        (None, None) => planner.unlimited_bytes(),
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
                "{} fit {}: arena {}, {time:.3} × the time (no plan is under {bound:.3} ×); the least budget is {}",
                counted(step.ops.len(), "op"),
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
    say!("{}", if args.json { line.to_string() } else { words });
    Ok(())
}
