//! What several commands ask of the machine: a device whose kernels are timed, and how exact a plan must be.

use std::path::PathBuf;

use clap::ValueEnum;
use plimsoll::prelude::*;
use plimsoll::run::Result;
use serde::{Deserialize, Serialize};

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

/// The CPU with a number of threads. Its kernels are timed as they are first planned, and remembered.
pub fn cpu(threads: usize) -> Result<Device> {
    let device = Device::cpu_threads(threads)?;
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
