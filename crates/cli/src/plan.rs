//! `plimsoll plan`: what a training step would take and cost under a budget, for a model or a traced step.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use plimsoll::plan::trace::read_trace;
use plimsoll::plan::{PlanError, Planner, Request};
use plimsoll::prelude::*;
use plimsoll::run::{Error, Profile};

use clap::ValueEnum;

use crate::Failure;
use crate::case::Case;
use crate::compare::{self, Budget};
use crate::machine::{self, Compute, Exact};
use crate::outlook;

/// Arguments of `plimsoll plan`.
#[derive(clap::Args)]
pub struct Args {
    /// The model: one of the reference cases or of the zoo (mlp, cnn, resnet18, resnet50, mobilenet, unet, gpt, gpt2, vit, lstm), or a
    /// `.keras` file.
    #[arg(required_unless_present = "trace", conflicts_with = "trace")]
    model: Option<String>,
    /// Instead of a model, a traced step: one JSON line a storage and an op, in executed order.
    #[arg(long)]
    trace: Option<PathBuf>,
    /// Samples a step; by default the case's own.
    #[arg(long, conflicts_with = "trace")]
    batch: Option<usize>,
    /// The budget: `6GiB`, `512MiB`, or plain bytes. For a model it counts the whole process.
    #[arg(long, conflicts_with = "ratio")]
    memory: Option<Bytes>,
    /// How much of the host's memory activations may be copied to and fetched back from; for a card.
    #[arg(long, conflicts_with = "trace")]
    host_memory: Option<Bytes>,
    /// The budget of a traced step as a part of what it takes without one.
    #[arg(long, requires = "trace")]
    ratio: Option<f64>,
    /// How long to try, for a traced step.
    #[arg(long, requires = "trace")]
    seconds: Option<f64>,
    /// What to plan a model for: `cpu`, `cuda`, `cuda:N`, the record of a card that is not here (`h200`), or a file of kernel
    /// times. On a card the budget is of its memory.
    #[arg(long, default_value = "cpu", conflicts_with = "trace")]
    device: String,
    /// In which element type a model computes, where that is not a file's to say.
    #[arg(long, conflicts_with = "trace")]
    precision: Option<Compute>,
    /// How far the plan of a model may depart from the bits of an unlimited run.
    #[arg(long, default_value = "reassociated", conflicts_with = "trace")]
    exact: Exact,
    /// Threads, for a model.
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Also writes the plan with its step, instruction by instruction, as a JSON document: what `plimsoll report` draws.
    #[arg(long, conflicts_with = "trace")]
    out: Option<PathBuf>,
    /// Budgets to put side by side: `4GiB,8GiB,16GiB`. One that is refused is an answer too: the command succeeds.
    #[arg(long, value_delimiter = ',', num_args = 1.., conflicts_with_all = ["trace", "memory"])]
    compare: Vec<Bytes>,
    /// Do not look for the plans at other lines.
    #[arg(long)]
    no_frontier: bool,
    /// One JSON line instead of text.
    #[arg(long)]
    json: bool,
}

/// So many lines are tried for the frontier, for so long: a plan is asked for in passing.
const FRONTIER_LINES: usize = 17;
const FRONTIER_LIMIT: Duration = Duration::from_secs(3);

/// Plans and prints.
pub fn run(args: &Args) -> Result<(), Failure> {
    match (&args.trace, &args.model) {
        (Some(file), _) => traced(args, file),
        (None, Some(name)) => {
            let (device, profile) = machine::plannable(&args.device, args.threads, false)?;
            machine::check_host_memory(&device, args.host_memory)?;
            let (batch, recipe, planned) = device.scope(|| asked(args, name, &device))?;
            device.scope(|| model(args, name, batch, recipe, planned, profile.as_deref()))
        }
        (None, None) => Err(Failure("name a model, or a traced step with --trace".into())),
    }
}

/// Whether a name is that of a Keras file.
pub fn is_keras(name: &str) -> bool {
    name.ends_with(".keras") || name.ends_with(".h5")
}

/// A model with its batch and recipe.
fn asked(args: &Args, name: &str, device: &Device) -> Result<(usize, Recipe, Arc<dyn Model>), Failure> {
    let (batch, mut recipe, model): (usize, Recipe, Arc<dyn Model>) = match Case::from_str(name, true) {
        _ if is_keras(name) => {
            let batch = args.batch.unwrap_or(32);
            let compiled = plimsoll::keras::KerasModel::open(name)?.compiled()?;
            let inputs = compiled.model.inputs(batch)?;
            // Labels as integers where the loss takes classes, else of the outputs' shape.
            let (model, outputs) = (compiled.model.clone(), compiled.model.outputs().to_vec());
            let recipe = |classes: bool| {
                let label = |ty: &Type| {
                    let shape = ty.shape.with(0, batch);
                    match classes {
                        true => Type::new(DType::I64, &shape[..shape.rank().saturating_sub(1).max(1)]),
                        false => Type::new(DType::F32, shape),
                    }
                };
                compiled.recipe(inputs.clone(), outputs.iter().map(label).collect())
            };
            let classes = Training::plan(model.clone(), recipe(true)).is_ok();
            (batch, recipe(classes), Arc::new(model))
        }
        Ok(case) => {
            let card = device.taken().is_some();
            let setup = case.setup(args.batch, card);
            let model = move |net: &mut Net, x: &[Tensor]| case.model(net, x, card);
            (setup.batch, case.recipe(&setup), Arc::new(model))
        }
        Err(_) => {
            let Some(entry) = zoo::find(name) else {
                let names: Vec<&str> = zoo::ALL.iter().map(|entry| entry.name).collect();
                return Err(Failure(format!("there is no model {name}; there are {}", names.join(", "))));
            };
            let batch = args.batch.unwrap_or(32);
            let recipe = Recipe::cross_entropy(Adam::new(1e-3), entry.input(batch), entry.labels(batch));
            (batch, recipe, Arc::new(entry))
        }
    };
    if batch == 0 {
        return Err(Failure("a batch has at least one sample".into()));
    }
    recipe.memory = args.memory;
    recipe.host_memory = args.host_memory;
    recipe.exactness = args.exact.into();
    if let Some(precision) = args.precision {
        recipe.precision = precision.into();
    }
    Ok((batch, recipe, model))
}

/// Plans a model's training step and says what it would take; nothing is run, and no memory is taken for it.
fn model(
    args: &Args,
    name: &str,
    batch: usize,
    recipe: Recipe,
    model: Arc<dyn Model>,
    profile: Option<&Profile>,
) -> Result<(), Failure> {
    let start = Instant::now();
    let mut survey = Training::survey(model, recipe)?;
    if !args.compare.is_empty() {
        return Ok(side_by_side(args, name, batch, &mut survey)?);
    }
    let planned = survey.plan(args.memory);
    // A refusal needs no kernel timed and says what would do: it is not kept waiting for a plot of everything else.
    let frontier = match args.no_frontier || planned.is_err() {
        true => None,
        false => Some(survey.frontier(FRONTIER_LINES, Some(FRONTIER_LIMIT))?),
    };
    if let (Some(out), Ok(info)) = (&args.out, &planned) {
        let step = survey.timeline(args.memory)?;
        crate::records::write_plan(out, name, batch, info, &step, frontier.as_ref())?;
    }
    let (mut line, mut words) = match &planned {
        Ok(info) => described(args, name, batch, info),
        Err(error @ Error::Infeasible { asked, least, ways, .. }) => {
            let ways: Vec<_> = ways
                .iter()
                .map(|way| serde_json::json!({ "flag": way.flag, "change": way.change, "floor_bytes": way.least.get() }))
                .collect();
            let line = serde_json::json!({
                "model": name, "batch": batch, "fits": false, "budget_bytes": asked.get(),
                "floor_bytes": least.get(), "plan_seconds": start.elapsed().as_secs_f64(),
                "why": error.to_string(), "ways": ways,
            });
            (line, error.to_string() + "\n")
        }
        Err(_) => return Ok(planned.map(|_| ())?),
    };
    if let Some(frontier) = &frontier {
        words += &outlook::frontier(frontier, planned.as_ref().ok());
        line["frontier"] = serde_json::json!(frontier);
    }
    if let Some((all, estimated)) = profile.map(Profile::estimated) {
        (line["kernels"], line["estimated_kernels"]) = (all.into(), estimated.into());
        if estimated > 0 {
            words += &format!(
                "{estimated} of {all} kernels are not in the record of {}: their times and scratch are scaled from like ones\n",
                args.device
            );
        }
    }
    // A refusal is an answer; to somebody who asked for a file it is an error, since there is none.
    let is_missing = args.out.is_some() && planned.is_err();
    if args.json || !is_missing {
        say!("{}", if args.json { line.to_string() } else { words.trim_end().into() });
    }
    if is_missing { Ok(planned.map(|_| ())?) } else { Ok(()) }
}

/// A plan in JSON and in words.
fn described(args: &Args, name: &str, batch: usize, info: &StepInfo) -> (serde_json::Value, String) {
    let (ms, unlimited_ms) = (info.predicted_seconds * 1e3, info.unlimited_seconds * 1e3);
    let mut line = serde_json::json!({
        "model": name, "batch": batch, "fits": true, "budget_bytes": args.memory.map(Bytes::get),
        "floor_bytes": info.floor.get(), "planned_bytes": info.planned.get(),
        "arena_bytes": info.arena.get(), "live_bytes": info.live.get(), "predicted_ms": ms,
        "unlimited_bytes": info.unlimited.get(), "unlimited_ms": unlimited_ms, "micro_batches": info.micro_batches,
        "recomputed_ops": info.recomputed_ops, "exactness": info.exactness, "plan_seconds": info.plan_seconds,
        "host_bytes": info.host_bytes.get(), "hosted_bytes": info.hosted_bytes.get(), "offloaded_bytes": info.offloaded_bytes.get(),
        "offloaded_copies": info.offloaded_copies,
    });
    for (name, value) in outlook::json(info) {
        line[name] = value;
    }
    let copies = info.copies().map_or(String::new(), |copies| format!("{copies}, "));
    let words = format!(
        "{name} at batch {batch}: {:#} for the whole process (arena {}), {ms:.1} ms a step predicted\n\
         {} micro-batches, {} ops run again, {copies}{}\n\
         the fastest plan takes {:#} and {unlimited_ms:.1} ms; the least is {:#}; planned in {:.2} s\n{}",
        info.planned,
        info.arena,
        info.micro_batches,
        info.recomputed_ops,
        info.exactness,
        info.unlimited,
        info.floor,
        info.plan_seconds,
        outlook::page(info)
    );
    (line, words)
}

/// Budgets side by side.
fn side_by_side(args: &Args, name: &str, batch: usize, survey: &mut Survey<'_>) -> plimsoll::run::Result<()> {
    let mut budgets = Vec::new();
    for &line in &args.compare {
        // The planner's own refusal is a page for each budget; the least says it here.
        budgets.push(match line < survey.floor() {
            true => Budget::Refused(line, survey.floor()),
            false => Budget::Fits(line, Box::new(survey.plan(Some(line))?)),
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
    let budget = match (args.memory, args.ratio) {
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
    say!("{}", if args.json { line.to_string() } else { words });
    Ok(())
}
