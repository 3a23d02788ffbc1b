//! `plimsoll bench`: training steps of the reference cases, measured as `cpu_torch.py` measures its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use plimsoll::device::{Kind, process};
use plimsoll::graph::counted;
use plimsoll::prelude::*;
use serde::Serialize;

use crate::Failure;
use crate::case::{Case, Setup};
use crate::machine::{self, Compute, Exact};

/// Arguments of `plimsoll bench`.
#[derive(clap::Args)]
pub struct Args {
    /// What to train.
    case: Case,
    /// How long to measure, after a few steps of warm-up; by default 8 seconds, on a card 20 steps.
    #[arg(long)]
    seconds: Option<f64>,
    /// Run so many steps instead, without warm-up, and print every loss.
    #[arg(long)]
    steps: Option<usize>,
    /// Samples a step; by default the case's own.
    #[arg(long)]
    batch: Option<usize>,
    /// Threads of the CPU.
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Where to train: `cpu`, `cuda` or `cuda:N`.
    #[arg(long, default_value = "cpu")]
    device: String,
    /// In which element type to compute.
    #[arg(long, default_value = "f32")]
    precision: Compute,
    /// Let a card's f32 products round their operands to TF32's ten bits: faster, other results.
    #[arg(long)]
    tf32: bool,
    /// How far the plan may depart from the bits of an unlimited run.
    #[arg(long, default_value = "reassociated")]
    exact: Exact,
    /// The memory limit: the most that the process may take (`400MiB`, or plain bytes), of a card's memory where it trains there.
    #[arg(long)]
    memory: Option<Bytes>,
    /// How much of the host's memory activations may be copied to and fetched back from; for a card.
    #[arg(long)]
    host_memory: Option<Bytes>,
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
    device: String,
    precision: String,
    steps: usize,
    /// Milliseconds of a step: median.
    ms: f64,
    /// The most of the card's memory that the process held, as NVML counts it; none on a CPU.
    device_bytes: Option<u64>,
    budget_bytes: Option<u64>,
    /// The part of what is planned that is no tensor: the process's own pages, or a card's context and code.
    program_bytes: u64,
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
    /// What is taken of the host's memory to copy to, how much of it is state that lives there, what a step copies there, and how
    /// many copies there and back it makes.
    host_bytes: u64,
    hosted_bytes: u64,
    offloaded_bytes: u64,
    offloaded_copies: u64,
    plan_seconds: f64,
    predicted_ms: f64,
    loss: f64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    losses: Vec<f64>,
}

/// Measures a case and prints the line.
pub fn run(args: &Args) -> Result<(), Failure> {
    let device = machine::device(&args.device, args.threads, args.tf32)?;
    machine::check_host_memory(&device, args.host_memory)?;
    let line = device.scope(|| measure(args, &device))?;
    if args.json {
        say!("{}", serde_json::json!(line));
    } else {
        say!(
            "{}: {:.3} steps/s (best {:.3}), {:.2} CPU ms a step, peak {:.0} MiB, loss {:.4} after {} of {}, {}",
            line.case,
            line.steps_s,
            line.best_steps_s,
            line.cpu_ms,
            line.peak_mib,
            line.loss,
            counted(line.steps, "step"),
            counted(line.batch, "sample"),
            counted(line.params, "parameter")
        );
        if let Some(bytes) = line.device_bytes {
            say!("{:#} of the card at most, {:#} planned", Bytes(bytes), Bytes(line.planned_bytes));
        }
        if line.offloaded_copies > 0 {
            say!(
                "{} a step to the host and back, {:#} there, in {:#} of it, of which {:#} are the optimizer's state",
                counted(line.offloaded_copies, "copy"),
                Bytes(line.offloaded_bytes),
                Bytes(line.host_bytes),
                Bytes(line.hosted_bytes)
            );
        }
    }
    Ok(())
}

/// The most of a device's own memory that the process has held, seen by looking again and again.
struct Watch {
    most: Arc<AtomicU64>,
    done: Arc<AtomicBool>,
}

impl Watch {
    fn start(device: &Device) -> Option<Watch> {
        device.taken()?;
        let watch = Watch { most: Arc::default(), done: Arc::default() };
        let (most, done, device) = (watch.most.clone(), watch.done.clone(), device.clone());
        std::thread::spawn(move || {
            while !done.load(Ordering::Relaxed) {
                most.fetch_max(device.taken().map_or(0, Bytes::get), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        Some(watch)
    }

    /// Looks no more on its own, so that nothing but the steps is timed.
    fn rest(&self) {
        self.done.store(true, Ordering::Relaxed);
    }

    fn most(&self, device: &Device) -> u64 {
        self.most.load(Ordering::Relaxed).max(device.taken().map_or(0, Bytes::get))
    }
}

/// A batch of random numbers. It is drawn on the host: what drawing takes for itself is no part of a card's line.
fn batch_of(
    input: &Type,
    labels: &Type,
    classes: usize,
    device: &Device,
) -> plimsoll::run::Result<(Tensor, Tensor)> {
    let draw = || {
        let key = Tensor::from_slice(&[0i64, 0, 0], [3])?;
        let indices = |ty: &Type, stream: u32| {
            let drawn = key.random_uniform(ty.with_dtype(DType::F32), stream, 0.0, classes as f64)?;
            drawn.clamp(0.0, classes as f64 - 1.0)?.cast(DType::I64)
        };
        let x = match input.dtype {
            DType::I64 => indices(input, 1)?,
            _ => key.random_normal(input.clone(), 1, 0.0, 1.0)?,
        };
        Ok((x, indices(labels, 2)?))
    };
    if device.taken().is_none() {
        return draw();
    }
    let (x, y) = Device::cpu()?.scope(draw)?;
    let moved = |drawn: &Tensor| {
        let mut there = Tensor::zeros(drawn.ty().clone())?;
        there.set_bytes(&drawn.as_bytes()?)?;
        Ok::<Tensor, plimsoll::run::Error>(there)
    };
    Ok((moved(&x)?, moved(&y)?))
}

fn measure(args: &Args, device: &Device) -> plimsoll::run::Result<Line> {
    let (case, watch) = (args.case, Watch::start(device));
    let card = watch.is_some();
    let setup = case.setup(args.batch, card);
    let mut recipe = case.recipe(&setup);
    recipe.request.limit = args.memory;
    recipe.request.host_limit = args.host_memory;
    recipe.request.exactness = args.exact.into();
    recipe.request.precision = args.precision.into();
    let Setup { batch, input, labels, classes } = setup;
    let mut training = Training::new(move |net: &mut Net, x: &[Tensor]| case.model(net, x, card), recipe, 0)?;
    let (x, y) = batch_of(&input, &labels, classes, device)?;
    let warm_up = match args.steps {
        Some(_) => 0,
        None if card => 6,
        None => 3,
    };
    for _ in 0..warm_up {
        training.step(&[&x], &y)?;
        if let Some(notice) = training.take_notice() {
            eprintln!("{notice}");
        }
    }
    if let Some(watch) = &watch {
        watch.rest();
    }
    let (mut times, mut losses, mut loss) = (Vec::with_capacity(1 << 16), Vec::new(), 0.0);
    let (start, cpu) = (Instant::now(), process::cpu_time());
    let more = |done: usize| match args.steps {
        Some(steps) => done < steps.max(1),
        None if card && args.seconds.is_none() => done < 20,
        None => start.elapsed().as_secs_f64() < args.seconds.unwrap_or(8.0) || done < 5,
    };
    while more(times.len()) {
        let step = Instant::now();
        loss = training.step(&[&x], &y)?;
        times.push(step.elapsed().as_secs_f64());
        if args.steps.is_some() {
            losses.push(loss);
        }
        if let Some(notice) = training.take_notice() {
            eprintln!("{notice}");
        }
    }
    let spent = process::cpu_time().zip(cpu).map_or(0.0, |(end, start)| (end - start).as_secs_f64());
    let (steps, info) = (times.len(), training.info().clone());
    times.sort_by(f64::total_cmp);
    let round = |x: f64, digits: i32| (x * 10f64.powi(digits)).round() / 10f64.powi(digits);
    Ok(Line {
        engine: format!("plimsoll {}", env!("CARGO_PKG_VERSION")),
        case: case.name(),
        batch,
        params: training.n_trained(),
        threads: args.threads.max(1),
        device: format!("{device:?}").split(", ").next().unwrap_or_default().into(),
        precision: format!("{:?}", args.precision).to_lowercase(),
        ms: round(times[steps / 2] * 1e3, 3),
        device_bytes: watch.map(|watch| watch.most(device)),
        budget_bytes: args.memory.map(Bytes::get),
        program_bytes: info.account.program.get(),
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
        ledger_bytes: training.ledger().total(Kind::Activation).measured.map_or(0, Bytes::get),
        micro_batches: info.micro_batches,
        exactness: info.exactness,
        recomputed_ops: info.recomputed_ops,
        host_bytes: info.host_bytes.get(),
        hosted_bytes: info.hosted_bytes.get(),
        offloaded_bytes: info.offloaded_bytes.get(),
        offloaded_copies: info.offloaded_copies,
        plan_seconds: round(info.plan_seconds, 3),
        predicted_ms: round(info.predicted_seconds * 1e3, 3),
        loss: round(loss, 4),
        losses,
    })
}
