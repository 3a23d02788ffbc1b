//! What several commands ask of the machine: a device whose kernels are timed, and how exact a plan must be.

use std::path::PathBuf;

use clap::ValueEnum;
use plimsoll::prelude::*;
use plimsoll::run::Error;
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
    let device = Device::cpu_threads(threads)?;
    if let Some(folder) = cache_folder() {
        device.calibrate(&folder);
    }
    Ok(device)
}

/// The device of a name: `cpu`, `cuda` or `cuda:1`. Its kernels are timed as they are first planned, and remembered.
pub fn device(name: &str, threads: usize) -> Result<Device, Failure> {
    let ordinal = match name.split_once(':') {
        None if name == "cpu" => return Ok(cpu(threads)?),
        None if name == "cuda" => Some(0),
        Some(("cuda", number)) => number.parse().ok(),
        _ => None,
    };
    let Some(ordinal) = ordinal else {
        return Err(Failure(format!("there is no device {name}; use cpu, cuda or cuda:N")));
    };
    let device = Device::cuda(ordinal)?;
    if let Some(folder) = cache_folder() {
        device.calibrate(&folder);
    }
    Ok(device)
}

/// `PLIMSOLL_CACHE`, or the user's cache folder; none if neither is known, or if `PLIMSOLL_CACHE` is empty.
fn cache_folder() -> Option<PathBuf> {
    let named = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let folder = named("PLIMSOLL_CACHE")
        .or_else(|| Some(named("XDG_CACHE_HOME")?.join("plimsoll")))
        .or_else(|| Some(named("HOME")?.join(".cache/plimsoll")))?;
    (!folder.as_os_str().is_empty()).then_some(folder)
}
