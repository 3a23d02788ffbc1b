//! `plimsoll data`: reads data through its pipeline without a model, and says how fast it feeds and what it takes.

use std::time::Instant;

use plimsoll::internals::device::process;
use plimsoll::internals::graph::counted;
use plimsoll::prelude::*;
use serde::Serialize;

use crate::config::{BatchSize, Config};
use crate::model_setup::Purpose;
use crate::source::Source;
use crate::{Failure, Stop, check};

/// Arguments of `plimsoll data`.
#[derive(clap::Args)]
pub struct Args {
    /// The data, as of `plimsoll train --data`. The part to train on is read.
    data: String,
    /// Samples in a batch.
    #[arg(long, default_value_t = 32)]
    batch: usize,
    /// Pixels of an image's side: images are resized to it. [default: the size of the first]
    #[arg(long, alias = "size", value_name = "SIDE")]
    image: Option<usize>,
    /// Tokens of a sequence, of a text. [default: 128]
    #[arg(long)]
    sequence: Option<usize>,
    /// What stored bytes become, as of `plimsoll train`: `none`, `unit`, or a number to multiply by. [default: unit]
    #[arg(long)]
    scale: Option<String>,
    /// The columns of a table that are read, as of `plimsoll train`: `x=age,height,y=price`. [default: all]
    #[arg(long)]
    columns: Option<String>,
    /// Changes of pictures, as of `plimsoll train`: `flip,crop:4,color:0.2`. [default: none]
    #[arg(long)]
    augment: Option<String>,
    /// Use the first so many samples only. [default: all]
    #[arg(long)]
    take: Option<u64>,
    /// What happens to samples that cannot be read: fail or skip. [default: fail]
    #[arg(long)]
    on_error: Option<String>,
    /// How often the data is gone through. The first pass also finds out how many threads and batches are best.
    #[arg(long, default_value_t = 2)]
    passes: u64,
    /// Threads that make batches. [default: as many as waiting asks for]
    #[arg(long)]
    threads: Option<usize>,
    /// The most that the pipeline may take (`64MiB`). [default: 256MiB, or an eighth of what the process can have]
    #[arg(long)]
    memory: Option<String>,
    /// One JSON line instead of text.
    #[arg(long)]
    json: bool,
}

/// What is printed.
#[derive(Serialize)]
struct Measured {
    data: String,
    batch: usize,
    fields: Vec<FieldLine>,
    /// What happens to numbers and files on the way.
    notes: Vec<String>,
    passes: Vec<Pass>,
    /// Samples that could not be read and were left out.
    skipped: u64,
    /// The most threads and batches that there were.
    threads: usize,
    batches_ahead: usize,
    /// The most that the pipeline held, and the most that it may.
    held_bytes: u64,
    declared_bytes: u64,
    /// The process's highest resident set.
    peak_bytes: Option<u64>,
    stages: Vec<StageLine>,
}

#[derive(Serialize)]
struct FieldLine {
    name: String,
    dtype: String,
    shape: Vec<usize>,
}

#[derive(Serialize)]
struct Pass {
    samples: u64,
    seconds: f64,
    samples_per_second: f64,
    /// Of all threads together.
    cpu_seconds_per_sample: Option<f64>,
}

#[derive(Serialize)]
struct StageLine {
    name: String,
    samples: u64,
    busy_seconds: f64,
    waiting_seconds: f64,
}

impl Args {
    fn config(&self) -> Config {
        Config {
            data: Some(self.data.clone()),
            batch: Some(BatchSize::Samples(self.batch)),
            image: self.image,
            sequence: self.sequence,
            scale: self.scale.clone(),
            columns: self.columns.clone(),
            augment: self.augment.clone(),
            take: self.take,
            on_error: self.on_error.clone(),
            threads: self.threads,
            memory: self.memory.clone(),
            ..Config::default()
        }
    }
}

/// Reads the data and prints what that took.
pub fn run(args: &Args) -> Result<(), Stop> {
    let config = args.config();
    check::check(&config).map_err(Stop::usage)?;
    if args.passes == 0 {
        return Err(Stop::Usage("--passes 0 means nothing; 1 is the least".into()));
    }
    if args.data == "random" {
        let why = "random numbers are made where they are wanted, so nothing is read; name other data";
        return Err(Stop::Usage(format!("data random: {why}")));
    }
    let source = Source::open(&config, Purpose::Train)?;
    let mut train = source.train;
    if let Some(augment) = config.augment()? {
        train = train.augment(&augment, config.seed.unwrap_or(42))?;
    }
    let mut data = train.batch(args.batch).repeat(args.passes);
    if let Some(threads) = args.threads {
        data = data.workers(threads);
    }
    if let Some(bytes) = config.written_memory_limit()? {
        data = data.memory(bytes);
    }
    let measured = measure(&data, args)?;
    if args.json {
        say!("{}", serde_json::json!(measured));
    } else {
        print(&measured);
    }
    Ok(())
}

fn measure(data: &Dataset, args: &Args) -> Result<Measured, Failure> {
    let spec = data.spec()?;
    let mut batches = data.batches()?;
    let (mut passes, mut samples, mut held) = (Vec::new(), 0, Bytes::ZERO);
    let (mut threads, mut batches_ahead) = (0, 0);
    let (mut began, mut cpu) = (Instant::now(), process::cpu_time());
    while let Some(batch) = batches.next() {
        let batch = batch?;
        samples += batch.samples() as u64;
        held = held.max(batches.held_bytes());
        let now = batches.parallelism();
        (threads, batches_ahead) = (now.0.max(threads), now.1.max(batches_ahead));
        if batch.is_last_of_epoch() {
            let (seconds, now) = (began.elapsed().as_secs_f64(), process::cpu_time());
            let spent = now.zip(cpu).map(|(now, before)| (now - before).as_secs_f64() / samples as f64);
            let samples_per_second = samples as f64 / seconds.max(1e-9);
            passes.push(Pass { samples, seconds, samples_per_second, cpu_seconds_per_sample: spent });
            (samples, began, cpu) = (0, Instant::now(), now);
        }
    }
    let stage = |stage: plimsoll::internals::data::StageCount| StageLine {
        name: stage.name,
        samples: stage.elements,
        busy_seconds: stage.busy.as_secs_f64(),
        waiting_seconds: stage.waiting.as_secs_f64(),
    };
    Ok(Measured {
        data: args.data.clone(),
        batch: args.batch,
        fields: spec
            .into_iter()
            .map(|field| FieldLine { name: field.name, dtype: field.dtype.name().into(), shape: field.shape })
            .collect(),
        notes: data.notes(),
        passes,
        skipped: batches.skipped(),
        threads,
        batches_ahead,
        held_bytes: held.0,
        declared_bytes: batches.declared_bytes().0,
        peak_bytes: process::peak_resident().map(Bytes::get),
        stages: batches.stages().into_iter().map(stage).collect(),
    })
}

fn print(measured: &Measured) {
    let field = |field: &FieldLine| format!("{} {} {:?}", field.name, field.dtype, field.shape);
    let fields: Vec<String> = measured.fields.iter().map(field).collect();
    say!("{} in batches of {}: {}", measured.data, measured.batch, fields.join(", "));
    for note in &measured.notes {
        say!("  {note}");
    }
    for (number, pass) in measured.passes.iter().enumerate() {
        let cpu = pass.cpu_seconds_per_sample;
        let cpu = cpu.map_or(String::new(), |cpu| format!(", {:.3} ms of processor time each", 1e3 * cpu));
        say!(
            "pass {}: {} in {:.2} s, {:.0} samples/s{cpu}",
            number + 1,
            counted(pass.samples, "sample"),
            pass.seconds,
            pass.samples_per_second
        );
    }
    if measured.skipped > 0 {
        say!("{} could not be read and left out", counted(measured.skipped, "sample"));
    }
    for stage in &measured.stages {
        say!("  {:<10} busy {:.2} s, waiting {:.2} s", stage.name, stage.busy_seconds, stage.waiting_seconds);
    }
    say!(
        "pipeline: {} and {}, {:#} held of {:#} at most; peak resident set {:#}",
        counted(measured.threads, "thread"),
        counted(measured.batches_ahead, "batch"),
        Bytes(measured.held_bytes),
        Bytes(measured.declared_bytes),
        Bytes(measured.peak_bytes.unwrap_or(0))
    );
}
