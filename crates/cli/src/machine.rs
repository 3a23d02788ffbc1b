//! What several commands ask of the machine: a device whose kernels are timed, and how exact a plan must be.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use plimsoll::prelude::*;
use plimsoll::run::{CudaOptions, Error, Profile};
use serde::{Deserialize, Serialize};

use crate::Failure;

/// How far a plan may depart from the bits of an unlimited run.
#[derive(Clone, Copy, ValueEnum, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Exact {
    /// The same bits: order, sharing of memory, recomputation.
    Bitwise,
    /// The same maths, sums in another order: micro-batches too.
    Reassociated,
    /// Also micro-batches for models whose batch statistics they change.
    Approximate,
}

impl From<Exact> for Exactness {
    fn from(exact: Exact) -> Exactness {
        match exact {
            Exact::Bitwise => Exactness::Bitwise,
            Exact::Reassociated => Exactness::Reassociated,
            Exact::Approximate => Exactness::Approximate,
        }
    }
}

/// In which element type a model computes.
#[derive(Clone, Copy, ValueEnum, Debug)]
pub enum Compute {
    /// Everything in f32.
    F32,
    /// Everything in f64; on the CPU.
    F64,
    /// Weights are read and activations kept as bf16.
    MixedBf16,
    /// Weights are read and activations kept as f16, with a loss scale.
    MixedF16,
}

impl From<Compute> for Precision {
    fn from(compute: Compute) -> Precision {
        match compute {
            Compute::F32 => Precision::F32,
            Compute::F64 => Precision::F64,
            Compute::MixedBf16 => Precision::MixedBf16,
            Compute::MixedF16 => Precision::MixedF16,
        }
    }
}

/// The CPU with a number of threads. Its kernels are timed as they are first planned, and remembered.
pub fn cpu(threads: usize) -> Result<Device, Error> {
    Ok(calibrated(Device::cpu_threads(threads)?))
}

/// The device of a name: `cpu`, `cuda` or `cuda:1`. Its kernels are timed as they are first planned, and remembered.
pub fn device(name: &str, threads: usize, tf32: bool) -> Result<Device, Failure> {
    let ordinal = match name.split_once(':') {
        None if name == "cpu" && tf32 => {
            return Err(Failure("a CPU computes f32 as it is; --tf32 is for a card".into()));
        }
        None if name == "cpu" => return Ok(cpu(threads)?),
        None if name == "cuda" => Some(0),
        Some(("cuda", number)) => number.parse().ok(),
        _ => None,
    };
    let Some(ordinal) = ordinal else {
        return Err(Failure(format!("there is no device {name}; use cpu, cuda or cuda:N")));
    };
    let device = Device::cuda_with(ordinal, CudaOptions { tf32, ..CudaOptions::default() })?;
    for note in device.notes() {
        eprintln!("{note}");
    }
    Ok(calibrated(device))
}

/// A device whose kernels are timed where they are not known yet, and says so while that takes long.
fn calibrated(device: Device) -> Device {
    if let Some(folder) = cache_folder() {
        device.calibrate(&folder);
        device.on_timing(timing());
    }
    device
}

/// Nobody waits so long without a word.
const PATIENCE: Duration = Duration::from_secs(2);

/// Says on standard error how far the timing of kernels has come: on a terminal in one line that goes away, else once.
fn timing() -> impl Fn(usize, usize, &str) + Send + Sync {
    let is_terminal = std::io::stderr().is_terminal();
    let (begun, said) = (OnceLock::new(), AtomicBool::new(false));
    move |done, total, op| {
        let is_late = begun.get_or_init(Instant::now).elapsed() > PATIENCE;
        match (is_terminal, op.is_empty()) {
            (true, true) if said.swap(false, Relaxed) => eprint!("\r\x1b[K"),
            (true, false) if is_late => {
                said.store(true, Relaxed);
                eprint!("\r\x1b[Ktiming kernels, once for this machine: {done} of {total} ({op})");
            }
            (false, false) if is_late && !said.swap(true, Relaxed) => {
                eprintln!("plimsoll: timing {total} kernels, once for this machine; {done} are done");
            }
            _ => {}
        }
    }
}

/// Cards of which a record comes with the program.
const PROFILES: [(&str, &str); 1] = [("h200", include_str!("../profiles/h200.times"))];

/// A device to plan for: one that is here, or the record of one that is not. A record comes with the program (`h200`) or is a
/// file of kernel times, as runs on a card leave them in the cache.
pub fn plannable(name: &str, threads: usize, tf32: bool) -> Result<(Device, Option<Arc<Profile>>), Failure> {
    let recorded = |profile: Result<Profile, String>| -> Result<_, Failure> {
        let profile = Arc::new(profile.map_err(Failure)?);
        Ok((Device::profiled(&profile)?, Some(profile)))
    };
    if let Some((name, text)) = PROFILES.iter().find(|(known, _)| name.eq_ignore_ascii_case(known)) {
        return recorded(Profile::parse(name, text));
    }
    if name.ends_with(".times") {
        return recorded(Profile::read(Path::new(name)).map_err(|why| format!("{name}: {why}")));
    }
    match device(name, threads, tf32) {
        Err(Failure(why)) if why.starts_with("there is no device") => {
            let names: Vec<&str> = PROFILES.iter().map(|(name, _)| *name).collect();
            Err(Failure(format!(
                "{why}, the record of a card ({}), or a file of kernel times",
                names.join(", ")
            )))
        }
        device => Ok((device?, None)),
    }
}

/// Refuses host memory for copies where tensors are in it anyway.
pub fn check_host_memory(device: &Device, host_memory: Option<Bytes>) -> Result<(), Failure> {
    match host_memory {
        Some(_) if !device.copies_to_host() => {
            let why = "the CPU's tensors are in host memory already; --host-memory is for a card";
            Err(Failure(format!("{why}: name it with --device cuda, or leave --host-memory out")))
        }
        _ => Ok(()),
    }
}

/// `PLIMSOLL_CACHE`, or the user's cache folder; none if neither is known, or if `PLIMSOLL_CACHE` is empty.
fn cache_folder() -> Option<PathBuf> {
    let named = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let folder = named("PLIMSOLL_CACHE")
        .or_else(|| Some(named("XDG_CACHE_HOME")?.join("plimsoll")))
        .or_else(|| Some(named("HOME")?.join(".cache/plimsoll")))?;
    (!folder.as_os_str().is_empty()).then_some(folder)
}
