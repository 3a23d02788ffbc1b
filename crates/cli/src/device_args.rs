//! Turns the name of a device into the device, with kernels that are timed once; or into the record of a card that is not here.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use plimsoll::device::AllocatorKind;
use plimsoll::internals::device::process;
use plimsoll::internals::run::{CudaOptions, Profile};
use plimsoll::prelude::*;
use plimsoll::ranks::Machine;

use crate::config::Config;
use crate::{Failure, named_file, scaled_record};

/// Why there is no device of a name.
enum NoDevice {
    /// The name is that of none.
    Unknown,
    /// There is one, and it cannot be used.
    Unusable(Failure),
}

impl<E: Into<Failure>> From<E> for NoDevice {
    fn from(error: E) -> NoDevice {
        NoDevice::Unusable(error.into())
    }
}

/// The device that settings name.
pub fn device(config: &Config) -> Result<Device, Failure> {
    let name = name(config);
    let device = named(name, config).map_err(|why| match why {
        NoDevice::Unknown => Failure(format!("there is no device {name}; use cpu, cuda or cuda:N")),
        NoDevice::Unusable(why) => why,
    })?;
    placing(&device, config)?;
    Ok(device)
}

/// Tells a device which layers are to run where.
fn placing(device: &Device, config: &Config) -> Result<(), Failure> {
    device.soft_placement(config.soft_placement == Some(true));
    for wish in config.place.iter().flat_map(|wishes| wishes.split(',')) {
        match wish.split_once('=').map(|(layers, on)| (layers.trim(), on.trim())) {
            Some((layers, on)) if !layers.is_empty() && !on.is_empty() => device.place(layers, on),
            _ => {
                let why = format!("--place {wish}: name a layer and its device, as in embed=cpu");
                return Err(Failure(why));
            }
        }
    }
    Ok(())
}

fn name(config: &Config) -> &str {
    config.device.as_deref().unwrap_or("cpu")
}

/// Threads of the CPU: those that are named, or as many as this process may use.
pub fn threads(config: &Config) -> usize {
    config.threads.unwrap_or_else(process::allowed_cpus).max(1)
}

/// The device of a name: `cpu`, `cuda` or `cuda:1`. Its kernels are timed as they are first planned, and remembered.
fn named(name: &str, config: &Config) -> Result<Device, NoDevice> {
    let (tf32, kind) = (config.tf32.unwrap_or(false), config.allocator()?);
    let ordinal = match name.split_once(':') {
        None if name == "cpu" && tf32 => {
            return Err(Failure("a CPU computes f32 as it is; --tf32 is for a card".into()).into());
        }
        None if name == "cpu" => {
            let kind = kind.unwrap_or(AllocatorKind::BestFit);
            let device = calibrated(Device::cpu_allocating(threads(config), None, kind)?, config);
            return Ok(match config.disk()? {
                Some((folder, bytes)) => with_disk(&device, &folder, bytes)?,
                None => device,
            });
        }
        None if name == "cuda" => Some(0),
        Some(("cuda", number)) => number.parse().ok(),
        _ => None,
    };
    let ordinal = ordinal.ok_or(NoDevice::Unknown)?;
    no_disk(config, name)?;
    let options = CudaOptions { tf32, ..CudaOptions::default() };
    let device = Device::cuda_allocating(ordinal, options, kind.unwrap_or(AllocatorKind::Pages))?;
    for note in device.notes() {
        eprintln!("{note}");
    }
    let device = calibrated(device, config);
    // Who only plans has no time to time every kernel: the rest is better taken from such a card than scaled.
    for (_, record) in PROFILES {
        device.recorded_times(record);
    }
    Ok(device)
}

/// A device with a folder beside its memory.
fn with_disk(device: &Device, folder: &Path, bytes: Bytes) -> Result<Device, Failure> {
    let device = device.with_disk(folder, bytes).map_err(|why| Failure(format!("--disk: {why}")))?;
    device.notes().iter().for_each(|note| eprintln!("{note}"));
    Ok(device)
}

/// Refuses a disk beside a card.
fn no_disk(config: &Config, name: &str) -> Result<(), Failure> {
    match &config.disk {
        None => Ok(()),
        Some(disk) => Err(Failure(format!(
            "--disk {disk}: {name} keeps nothing on a disk, only the CPU does; give the card host memory instead (--host-memory)"
        ))),
    }
}

/// A device whose kernels are timed where they are not known yet, and says so while that takes long.
fn calibrated(device: Device, config: &Config) -> Device {
    if let Some(folder) = cache_folder() {
        device.calibrate(&folder);
        device.on_timing(timing());
    }
    keeping_plans(device, config)
}

/// A device with which plans are kept from run to run, unless somebody says no.
fn keeping_plans(device: Device, config: &Config) -> Device {
    device.on_remark(|remark| eprintln!("plimsoll: {remark}"));
    if let Some(folder) = cache_folder().filter(|_| config.no_plan_cache != Some(true)) {
        device.keep_plans(&folder);
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

/// A device to plan for: one that is here, or the record of one that is not. A record comes with the program (`h200`), is scaled from that for another card
/// that is known by its datasheet (`a100-80g`, `h100`), or is a file of kernel times, as runs on a card leave them in the cache.
pub fn plannable(config: &Config) -> Result<(Device, Option<Arc<Profile>>), Failure> {
    let recorded = |profile: Result<Profile, String>| -> Result<_, Failure> {
        if let Some(kind) = config.allocator()?.filter(|kind| *kind != AllocatorKind::Pages) {
            let why = "the record of a card is planned in its pages; leave it out, or plan where the card is";
            return Err(Failure(format!("--allocator {kind}: {why}")));
        }
        no_disk(config, name(config))?;
        let profile = Arc::new(profile.map_err(Failure)?);
        let device = keeping_plans(Device::profiled(&profile)?, config);
        placing(&device, config)?;
        Ok((device, Some(profile)))
    };
    let name = name(config);
    if let Some((name, text)) = PROFILES.iter().find(|(known, _)| name.eq_ignore_ascii_case(known)) {
        return recorded(Profile::parse(name, text));
    }
    if let Some(machine) = Machine::known(name) {
        let (_, measured) = PROFILES[0];
        return recorded(Profile::parse(&machine.name, &scaled_record::scaled(measured, &machine)));
    }
    if name.ends_with(".times") {
        named_file::check(
            Path::new(name),
            "the kernel times of a card, as runs there leave them in the cache",
        )?;
        return recorded(Profile::read(Path::new(name)).map_err(|why| format!("{name}: {why}")));
    }
    match named(name, config) {
        Ok(device) => placing(&device, config).map(|()| (device, None)),
        Err(NoDevice::Unusable(why)) => Err(why),
        Err(NoDevice::Unknown) => {
            let records: Vec<String> =
                Machine::all_known().map(|machine| machine.name.to_lowercase()).collect();
            Err(Failure(format!(
                "there is no device {name}; use cpu, cuda or cuda:N, the record of a card ({}), or a file of kernel times",
                records.join(", ")
            )))
        }
    }
}

/// `PLIMSOLL_CACHE`, or the user's cache folder; none if neither is known, or if `PLIMSOLL_CACHE` is empty.
pub fn cache_folder() -> Option<PathBuf> {
    let named = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let folder = named("PLIMSOLL_CACHE")
        .or_else(|| Some(named("XDG_CACHE_HOME")?.join("plimsoll")))
        .or_else(|| Some(named("HOME")?.join(".cache/plimsoll")))?;
    (!folder.as_os_str().is_empty()).then_some(folder)
}
