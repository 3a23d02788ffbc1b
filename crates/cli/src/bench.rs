//! `plimsoll bench`: a model's training step, planned as `train` plans it, run again and again on one batch of random numbers and timed.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use plimsoll::device::Traffic;
use plimsoll::internals::device::{Kind, process};
use plimsoll::internals::graph::counted;
use plimsoll::nn::Training;
use plimsoll::prelude::*;
use plimsoll::step::profile_room;
use serde::Serialize;

use crate::config::Config;
use crate::model_setup;
use crate::profile::Profiled;
use crate::setup::Setup;
use crate::{Failure, Stop, batch_auto, device_args, profile, random, ranks, records, request};

/// Arguments of `plimsoll bench`.
#[derive(clap::Args)]
#[command(allow_negative_numbers = true, after_help = model_setup::help())]
pub struct Args {
    /// What to measure, as of `plimsoll train`: a model by name, a `.keras`, `.h5`, `.onnx` or `.pt2` file, a file of settings (`run.toml`), or the folder
    /// of a run, which means its settings. All flags of `train` are taken, and mean the same; the step is the one that `train` would run. No data is read while it is
    /// measured: all steps are on one batch of random numbers of the data's shapes.
    #[arg(value_name = "CONFIG.toml | MODEL | RUN")]
    model: String,
    #[command(flatten)]
    config: Config,
    /// How long to measure, after a few steps of warm-up. [default: 8 seconds; 20 steps on a card]
    #[arg(long, help_heading = "Bench")]
    seconds: Option<f64>,
    /// Run so many steps instead, without warm-up, and print every loss.
    #[arg(long, help_heading = "Bench")]
    steps: Option<usize>,
    /// Then measure so many more steps instruction by instruction: the time of every kernel and copy, waiting, bytes to and from the card.
    /// With --out, the plan has it too, and beside it lies a trace (ui.perfetto.dev opens it).
    #[arg(long, value_name = "STEPS", num_args = 0..=1, default_missing_value = "10", help_heading = "Bench")]
    profile: Option<usize>,
    /// Also writes the plan with its step, instruction by instruction, as a JSON document: what `plimsoll report` draws.
    #[arg(long, help_heading = "Bench")]
    out: Option<PathBuf>,
    /// One JSON line instead of text.
    #[arg(long, help_heading = "Output")]
    json: bool,
}

/// What is printed.
#[derive(Serialize)]
struct Measured {
    engine: String,
    case: String,
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
    memory_limit_bytes: Option<u64>,
    /// The same under the name that it had first.
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
    /// The same of a disk.
    disk_bytes: u64,
    hosted_bytes: u64,
    /// On a card: the limit of the host's memory, and all that was planned of it; its most is `peak_bytes`.
    host_limit_bytes: Option<u64>,
    host_planned_bytes: Option<u64>,
    offloaded_bytes: u64,
    offloaded_copies: u64,
    /// Bytes that a step copied from the host to a card, and back.
    uploaded_bytes: u64,
    downloaded_bytes: u64,
    plan_seconds: f64,
    predicted_ms: f64,
    loss: f64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    losses: Vec<f64>,
    /// What was found where the batch size was looked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    batch_auto: Option<serde_json::Value>,
    /// What steps took instruction by instruction, where that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    profile: Option<serde_json::Value>,
    #[serde(skip)]
    profile_text: Vec<String>,
}

/// Measures a model and prints what came out.
pub fn run(args: &Args) -> Result<(), Stop> {
    profile::check(args.profile).map_err(Stop::usage)?;
    let config = request::without_training(Some(&args.model), &args.config)?;
    ranks::remark_on_one(
        &config,
        "plimsoll plan --ranks N plans for several, plimsoll train --ranks N measures them",
    );
    let device = device_args::device(&config)?;
    let (config, sizes) = batch_auto::settled(&config, &device)?;
    let mut measured = device.scope(|| measure(args, &config, &device))?;
    measured.batch_auto = sizes.as_ref().map(batch_auto::json);
    if let Some(sizes) = sizes.filter(|_| !args.json) {
        batch_auto::text(&sizes).iter().for_each(|line| say!("{line}"));
    }
    if args.json {
        say!("{}", serde_json::json!(measured));
    } else {
        print(&measured);
    }
    Ok(())
}

fn print(measured: &Measured) {
    say!(
        "{}: {:.3} steps/s (best {:.3}), {:.2} CPU ms a step, peak {:.0} MiB, loss {:.4} after {} of {}, {}",
        measured.case,
        measured.steps_s,
        measured.best_steps_s,
        measured.cpu_ms,
        measured.peak_mib,
        measured.loss,
        counted(measured.steps, "step"),
        counted(measured.batch, "sample"),
        counted(measured.params, "parameter")
    );
    if let Some(bytes) = measured.device_bytes {
        let of = |limit: Option<u64>| limit.map_or(String::new(), |bytes| format!(" of {:#}", Bytes(bytes)));
        let limit = of(measured.memory_limit_bytes);
        say!("{:#}{limit} of the card at most, {:#} planned", Bytes(bytes), Bytes(measured.planned_bytes));
        if let Some(planned) = measured.host_planned_bytes {
            let (peak, limit) = (Bytes(measured.peak_bytes), of(measured.host_limit_bytes));
            say!("{peak:#}{limit} of the host at most, {:#} planned", Bytes(planned));
        }
    }
    if measured.offloaded_copies > 0 {
        say!(
            "{} a step to {} and back, {:#} there, in {:#} of it, of which {:#} are state",
            counted(measured.offloaded_copies, "copy"),
            if measured.disk_bytes > 0 { "the disk" } else { "the host" },
            Bytes(measured.offloaded_bytes),
            Bytes(measured.host_bytes + measured.disk_bytes),
            Bytes(measured.hosted_bytes)
        );
    }
    if measured.uploaded_bytes + measured.downloaded_bytes > 0 {
        let (up, down) = (Bytes(measured.uploaded_bytes), Bytes(measured.downloaded_bytes));
        say!("{up:#} a step from the host to the card and {down:#} back");
    }
    measured.profile_text.iter().for_each(|line| say!("{line}"));
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

/// One batch of random numbers for the setup's step: inputs, then labels.
fn random_batch(setup: &Setup, config: &Config) -> Result<Vec<Tensor>, Failure> {
    let file = setup.model_setup.keras.as_ref().map(|compiled| &compiled.model);
    // What has fewer samples than a batch is one smaller batch.
    let samples = setup.train.samples()?.map_or(setup.batch, |n| setup.batch.min(n as usize));
    let data = random::batch_like(setup.train.spec()?, setup.form.classes, file, samples, config.seed);
    let none = || Failure("there is no batch to measure with".into());
    let batch = data.batches()?.next().ok_or_else(none)??;
    let mut tensors = Vec::new();
    for (i, (dtype, shape)) in (0..batch.len()).filter_map(|i| Some((i, batch.field_type(i)?))) {
        let mut tensor = Tensor::zeros(Type::new(dtype, &shape[..]))?;
        tensor.fill_bytes(|bytes| batch.write_field(i, bytes))?;
        tensors.push(tensor);
    }
    Ok(tensors)
}

/// Losses and times of steps.
struct Steps {
    seconds: Vec<f64>,
    losses: Vec<f64>,
    loss: f64,
    cpu_seconds: f64,
    /// Bytes between host and card in all of them.
    traffic: Traffic,
}

/// Runs steps on a batch, after those of a warm-up.
fn run_steps(
    args: &Args,
    training: &mut Training,
    batch: &[&Tensor],
    watch: Option<&Watch>,
) -> Result<Steps, Failure> {
    let mut step = || -> Result<f64, Failure> {
        let loss = training.run(batch)?.loss;
        if let Some(notice) = training.take_notice() {
            eprintln!("{notice}");
        }
        Ok(loss)
    };
    let is_card = watch.is_some();
    let warm_up = match args.steps {
        Some(_) => 0,
        None if is_card => 6,
        None => 3,
    };
    for _ in 0..warm_up {
        step()?;
    }
    if let Some(watch) = watch {
        watch.rest();
    }
    let mut steps = Steps {
        seconds: Vec::with_capacity(1 << 16),
        losses: Vec::new(),
        loss: 0.0,
        cpu_seconds: 0.0,
        traffic: Traffic::default(),
    };
    let device = Device::current()?;
    let traffic = device.traffic();
    let (start, cpu) = (Instant::now(), process::cpu_time());
    let more = |done: usize| match args.steps {
        Some(steps) => done < steps.max(1),
        None if is_card && args.seconds.is_none() => done < 20,
        None => start.elapsed().as_secs_f64() < args.seconds.unwrap_or(8.0) || done < 5,
    };
    while more(steps.seconds.len()) {
        let began = Instant::now();
        steps.loss = step()?;
        steps.seconds.push(began.elapsed().as_secs_f64());
        if args.steps.is_some() {
            steps.losses.push(steps.loss);
        }
    }
    steps.cpu_seconds = process::cpu_time().zip(cpu).map_or(0.0, |(end, start)| (end - start).as_secs_f64());
    steps.traffic = device.traffic().since(traffic);
    Ok(steps)
}

/// Runs steps until so many have been measured instruction by instruction, or it is clear that they will not be.
fn profile_steps(training: &mut Training, batch: &[&Tensor], steps: usize) -> Result<Profiled, Failure> {
    training.profile(steps)?;
    // A few to warm up, and as many again where the step is planned anew meanwhile.
    for _ in 0..steps.saturating_mul(2).saturating_add(32) {
        if !training.is_profiling() {
            break;
        }
        training.run(batch)?;
    }
    let none = || Failure("no step was measured: each of them was planned anew".into());
    training.take_profile().map(Profiled::new).ok_or_else(none)
}

fn measure(args: &Args, config: &Config, device: &Device) -> Result<Measured, Failure> {
    let watch = Watch::start(device);
    let mut setup = Setup::new(config, device)?;
    if let Some(steps) = args.profile {
        setup.trainer = setup.trainer.reserve(profile_room(steps));
    }
    let info = setup.compile()?;
    if let (Some(out), Some(timeline)) = (&args.out, setup.trainer.training().and_then(Training::timeline)) {
        records::write_plan(out, &setup.model_setup.name, setup.batch, &info, &timeline, None, None)?;
        process::release_unused_heap();
    }
    let batch = random_batch(&setup, config)?;
    let batch: Vec<&Tensor> = batch.iter().collect();
    let samples = batch.first().and_then(|x| x.shape().first().copied()).unwrap_or(setup.batch);
    let limit = setup.trainer.request().limit.map(Bytes::get);
    let none = || Failure("the step was not compiled".into());
    let training = setup.trainer.training_mut().ok_or_else(none)?;
    let steps = run_steps(args, training, &batch, watch.as_ref())?;
    let profiled = match args.profile {
        Some(n) => Some(profile_steps(training, &batch, n)?),
        None => None,
    };
    let trace = args.out.as_ref().filter(|_| profiled.is_some()).map(|out| out.with_extension("trace.json"));
    if let (Some(out), Some(trace), Some(profiled)) = (&args.out, &trace, &profiled) {
        let Profiled { step, profile } = profiled;
        let info = training.info();
        records::write_plan(out, &setup.model_setup.name, setup.batch, info, step, None, Some(profile))?;
        profiled.write_trace(trace)?;
    }
    let mut seconds = steps.seconds;
    seconds.sort_by(f64::total_cmp);
    let (n, median) = (seconds.len(), seconds[seconds.len() / 2]);
    let round = |x: f64, digits: i32| (x * 10f64.powi(digits)).round() / 10f64.powi(digits);
    // A step may have been planned anew since; its least with the least pipelines is as it was.
    let (floor, host, info) = (info.floor, info.host, training.info().clone());
    let about = device.properties();
    Ok(Measured {
        engine: format!("plimsoll {}", env!("CARGO_PKG_VERSION")),
        case: setup.model_setup.name.clone(),
        batch: samples,
        params: training.n_trained(),
        threads: device_args::threads(config),
        device: format!("{} ({})", about.name, about.model),
        precision: config.precision.clone().unwrap_or_else(|| setup.model_setup.precision.name().into()),
        ms: round(median * 1e3, 3),
        device_bytes: watch.map(|watch| watch.most(device)),
        memory_limit_bytes: limit,
        budget_bytes: limit,
        program_bytes: info.account.program.get(),
        steps: n,
        steps_s: round(1.0 / median, 3),
        best_steps_s: round(1.0 / seconds[0], 3),
        cpu_ms: round(steps.cpu_seconds / n as f64 * 1e3, 3),
        peak_mib: round(process::peak_resident().map_or(0.0, |b| b.get() as f64 / (1 << 20) as f64), 1),
        peak_bytes: process::peak_resident().map_or(0, Bytes::get),
        arena_bytes: training.arena_bytes().get(),
        state_bytes: training.state_bytes().get(),
        planned_bytes: info.planned.get(),
        floor_bytes: floor.get(),
        unlimited_bytes: info.unlimited.get(),
        live_bytes: info.live.get(),
        ledger_bytes: training.ledger().total(Kind::Activation).measured.map_or(0, Bytes::get),
        micro_batches: info.micro_batches,
        exactness: info.exactness,
        recomputed_ops: info.recomputed_ops,
        host_bytes: info.taken_elsewhere().0.get(),
        disk_bytes: info.taken_elsewhere().1.get(),
        hosted_bytes: info.hosted_bytes.get(),
        host_limit_bytes: host.and_then(|host| host.limit).map(Bytes::get),
        host_planned_bytes: host.map(|host| host.planned().get()),
        offloaded_bytes: info.offloaded_bytes.get(),
        offloaded_copies: info.offloaded_copies,
        uploaded_bytes: steps.traffic.up.get() / n as u64,
        downloaded_bytes: steps.traffic.down.get() / n as u64,
        plan_seconds: round(info.plan_seconds, 3),
        predicted_ms: round(info.predicted_seconds * 1e3, 3),
        loss: round(steps.loss, 4),
        losses: steps.losses,
        batch_auto: None,
        profile: profiled.as_ref().map(|profiled| profiled.json(trace.as_ref())),
        profile_text: profiled.map_or(Vec::new(), |profiled| profiled.text()),
    })
}
