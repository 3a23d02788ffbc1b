//! `plimsoll bench`: training steps of the reference cases, measured as `cpu_torch.py` measures its own.

use std::time::Instant;

use plimsoll::device::{Kind, process};
use plimsoll::prelude::*;
use plimsoll::run::Result;
use serde::Serialize;

use crate::case::{Case, Setup};
use crate::machine::{self, Exact};

/// Arguments of `plimsoll bench`.
#[derive(clap::Args)]
pub struct Args {
    /// What to train.
    case: Case,
    /// How long to measure, after three steps of warm-up.
    #[arg(long, default_value_t = 8.0)]
    seconds: f64,
    /// Run so many steps instead, without warm-up, and print every loss.
    #[arg(long)]
    steps: Option<usize>,
    /// Samples a step; by default the case's own.
    #[arg(long)]
    batch: Option<usize>,
    /// Threads.
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// How far the plan may depart from the bits of an unlimited run.
    #[arg(long, default_value = "reassociated")]
    exact: Exact,
    /// The line: the most that the process may take (`400MiB`, or plain bytes).
    #[arg(long)]
    memory: Option<Bytes>,
    /// One JSON line instead of text.
    #[arg(long)]
    json: bool,
}

/// The line that is printed.
#[derive(Serialize)]
struct Line {
    engine: String,
    case: &'static str,
    batch: usize,
    params: usize,
    threads: usize,
    steps: usize,
    /// Steps a second: median and best.
    steps_s: f64,
    best_steps_s: f64,
    /// CPU milliseconds a step, over all threads.
    cpu_ms: f64,
    /// The process's highest resident set (VmHWM), in MiB.
    peak_mib: f64,
    peak_bytes: u64,
    arena_bytes: u64,
    state_bytes: u64,
    /// Of the whole process: what is planned, and the least for which there is a plan.
    planned_bytes: u64,
    floor_bytes: u64,
    unlimited_bytes: u64,
    live_bytes: u64,
    /// What the ledger has for the arena.
    ledger_bytes: u64,
    micro_batches: usize,
    exactness: Exactness,
    recomputed_ops: u64,
    plan_seconds: f64,
    predicted_ms: f64,
    loss: f64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    losses: Vec<f64>,
}

/// Measures a case and prints the line.
pub fn run(args: &Args) -> Result<()> {
    let line = machine::cpu(args.threads)?.scope(|| measure(args))?;
    if args.json {
        say!("{}", serde_json::json!(line));
    } else {
        say!(
            "{}: {:.3} steps/s (best {:.3}), {:.2} CPU ms a step, peak {:.0} MiB, loss {:.4} after {} steps of {} samples, {} parameters",
            line.case,
            line.steps_s,
            line.best_steps_s,
            line.cpu_ms,
            line.peak_mib,
            line.loss,
            line.steps,
            line.batch,
            line.params
        );
    }
    Ok(())
}

fn measure(args: &Args) -> Result<Line> {
    let case = args.case;
    let Setup { batch, input, labels, classes } = case.setup(args.batch);
    let mut recipe = Recipe::cross_entropy(Adam::new(1e-3), input.clone(), labels.clone());
    recipe.memory = args.memory;
    recipe.exactness = args.exact.into();
    let mut training = Training::new(move |net: &mut Net, x: &[Tensor]| case.model(net, x), recipe, 0)?;
    let key = Tensor::from_slice(&[0i64, 0, 0], [3])?;
    let indices = |ty: &Type, stream: u32| {
        let drawn = key.random_uniform(ty.with_dtype(DType::F32), stream, 0.0, classes as f64)?;
        drawn.clamp(0.0, classes as f64 - 1.0)?.cast(DType::I64)
    };
    let x = match input.dtype {
        DType::I64 => indices(&input, 1)?,
        _ => key.random_normal(input, 1, 0.0, 1.0)?,
    };
    let y = indices(&labels, 2)?;
    let warm_up = if args.steps.is_some() { 0 } else { 3 };
    for _ in 0..warm_up {
        training.step(&[&x], &y)?;
    }
    let (mut times, mut losses, mut loss) = (Vec::with_capacity(1 << 16), Vec::new(), 0.0);
    let (start, cpu) = (Instant::now(), process::cpu_time());
    let more = |done: usize| match args.steps {
        Some(steps) => done < steps.max(1),
        None => start.elapsed().as_secs_f64() < args.seconds || done < 5,
    };
    while more(times.len()) {
        let step = Instant::now();
        loss = training.step(&[&x], &y)?;
        times.push(step.elapsed().as_secs_f64());
        if args.steps.is_some() {
            losses.push(loss);
        }
    }
    let spent = process::cpu_time().zip(cpu).map_or(0.0, |(end, start)| (end - start).as_secs_f64());
    let (steps, info) = (times.len(), *training.info());
    times.sort_by(f64::total_cmp);
    let round = |x: f64, digits: i32| (x * 10f64.powi(digits)).round() / 10f64.powi(digits);
    Ok(Line {
        engine: format!("plimsoll {}", env!("CARGO_PKG_VERSION")),
        case: case.name(),
        batch,
        params: training.n_trained(),
        threads: args.threads.max(1),
        steps,
        steps_s: round(1.0 / times[steps / 2], 3),
        best_steps_s: round(1.0 / times[0], 3),
        cpu_ms: round(spent / steps as f64 * 1e3, 3),
        peak_mib: round(process::peak_resident().map_or(0.0, |b| b.get() as f64 / (1 << 20) as f64), 1),
        peak_bytes: process::peak_resident().map_or(0, Bytes::get),
        arena_bytes: training.arena_bytes().get(),
        state_bytes: training.state_bytes().get(),
        planned_bytes: info.planned.get(),
        floor_bytes: info.floor.get(),
        unlimited_bytes: info.unlimited.get(),
        live_bytes: info.live.get(),
        ledger_bytes: training.ledger().total(Kind::Activation).measured.get(),
        micro_batches: info.micro_batches,
        exactness: info.exactness,
        recomputed_ops: info.recomputed_ops,
        plan_seconds: round(info.plan_seconds, 3),
        predicted_ms: round(info.predicted_seconds * 1e3, 3),
        loss: round(loss, 4),
        losses,
    })
}
