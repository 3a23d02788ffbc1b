//! Turns what the system says of memory, limits, disks and the clock into checks.

use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use plimsoll::device::{Survey, process};
use plimsoll::internals::device::process as system;
use plimsoll::internals::graph::counted;
use plimsoll::prelude::*;

use super::Check;

/// Less memory than this leaves no room for the program itself.
const LEAST_MEMORY: Bytes = Bytes::mib(64);
/// A checkpoint of a small model and its logs.
const LEAST_DISK: Bytes = Bytes::mib(100);
/// Below this a few checkpoints of a large model fill the disk.
const SMALL_DISK: Bytes = Bytes::gib(5);
/// Files that a run has open at once: data, logs, checkpoints, libraries.
const LEAST_FILES: u64 = 256;
/// What several processes on one machine exchange through shared memory, at least.
const LEAST_SHARED: Bytes = Bytes::mib(64);
/// 2025-01-01: a clock that stands before it was never set.
const EARLIEST: Duration = Duration::from_secs(1_735_689_600);

/// All checks that need no device.
pub fn checks(runs: &Path, cache: Option<&Path>) -> Vec<Check> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let mut checks = vec![
        memory(process::available_memory(), system::physical_memory(), system::cgroup_memory_limit()),
        cores(system::machine_cpus(), process::allowed_cpus(), &read("/proc/loadavg")),
        overcommit(&read("/proc/sys/vm/overcommit_memory")),
    ];
    checks.extend(limits(&read("/proc/self/limits")));
    checks.push(disk("runs folder", runs));
    checks.push(match cache {
        Some(folder) => disk("cache folder", folder),
        None => Check::warning(
            "cache folder",
            "there is none: HOME, XDG_CACHE_HOME and PLIMSOLL_CACHE are not set",
            "set PLIMSOLL_CACHE to a folder, so that kernels are timed once and not guessed at",
        ),
    });
    checks.push(shared_memory(free(Path::new("/dev/shm"))));
    checks.push(clock());
    checks
}

/// Checks of what is known of cards before anything is run on them.
pub fn cards(survey: &Survey) -> Vec<Check> {
    let mut checks = Vec::new();
    if let Some(why) = &survey.no_card {
        // Without a card everything works; a card that is there and cannot be used is another matter.
        checks.push(match survey.has_unusable_card {
            true => Check::warning("cards", why, "plimsoll devices says what there is"),
            false => Check::ok("cards", why),
        });
    }
    for (device, card) in survey.devices.iter().filter_map(|device| Some((device, device.card.as_ref()?))) {
        let name = format!("{} libraries", device.name);
        let found: Vec<String> = card
            .libraries
            .iter()
            .map(|library| format!("{} {}", library.name, library.version.as_deref().unwrap_or("not found")))
            .collect();
        let missing: Vec<&str> =
            card.libraries.iter().filter(|library| !library.is_found()).map(|library| library.name).collect();
        let found = format!("driver {}, {}", card.driver, found.join(", "));
        checks.push(if missing.contains(&"NVRTC") {
            Check::broken(
                name,
                found,
                "install NVRTC (CUDA's compiler library): no kernel can be compiled without it",
            )
        } else if missing.iter().any(|name| *name != "NCCL") {
            Check::warning(name, found, format!("install {} for full speed", missing.join(" and ")))
        } else {
            Check::ok(name, found)
        });
        if let (Some(free), Some(total)) = (device.memory.free, device.memory.total) {
            let holders = counted(device.memory.holders.len(), "process");
            let found = format!("{free} of {total} free, used by {holders}");
            let name = format!("{} memory", device.name);
            checks.push(match free.get() < total.get() / 10 {
                true => Check::warning(name, found, "end what holds it; plimsoll devices lists who does"),
                false => Check::ok(name, found),
            });
        }
    }
    checks
}

fn memory(free: Option<Bytes>, total: Option<Bytes>, group: Option<Bytes>) -> Check {
    let (Some(free), Some(total)) = (free, total) else {
        return Check::warning(
            "memory",
            "the system does not say",
            "name --memory yourself; `max` is not known",
        );
    };
    let group = group.map_or(String::new(), |limit| format!("; the control group allows {limit}"));
    let found = format!("{free} of {total} can be had{group}");
    match free < LEAST_MEMORY {
        true => Check::broken("memory", found, "end other programs, or raise the control group's limit"),
        false => Check::ok("memory", found),
    }
}

fn cores(machine: usize, allowed: usize, load: &str) -> Check {
    let found = format!("{} of the machine's {machine}", counted(allowed, "core"));
    let load = load.split(' ').next().and_then(|load| load.parse::<f64>().ok()).unwrap_or(0.0);
    match load > 1.5 * machine as f64 {
        true => Check::warning(
            "processor",
            format!("{found}; {load:.1} programs want to run"),
            "kernels that are timed now are timed again later; end other programs for full speed",
        ),
        false => Check::ok("processor", found),
    }
}

fn overcommit(mode: &str) -> Check {
    match mode.trim() {
        "2" => Check::warning(
            "overcommit",
            "vm.overcommit_memory is 2: memory that is reserved counts as taken",
            "a run may be refused memory that is free; sysctl vm.overcommit_memory=0 allows reserving",
        ),
        "" => Check::ok("overcommit", "the system does not say"),
        mode => Check::ok("overcommit", format!("vm.overcommit_memory is {mode}")),
    }
}

/// The limits of this process (`ulimit`): the text of `/proc/self/limits`.
fn limits(text: &str) -> Vec<Check> {
    let soft = |name: &str| -> Option<u64> {
        let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
        rest.split_whitespace().next()?.parse().ok()
    };
    let unlimited = |name: &'static str, row: &str, flag: &str, why: &str| match soft(row) {
        Some(bytes) => Check::warning(
            name,
            format!("ulimit -{flag} allows {}", Bytes(bytes)),
            format!("{why}ulimit -{flag} unlimited, and name --memory instead"),
        ),
        None => Check::ok(name, "not limited"),
    };
    let mut checks = vec![
        unlimited("address space", "Max address space", "v", "addresses are reserved before they are used; "),
        unlimited("data size", "Max data size", "d", ""),
    ];
    checks.push(match soft("Max open files") {
        Some(n) if n < LEAST_FILES => Check::warning(
            "open files",
            format!("ulimit -n allows {n}"),
            format!("ulimit -n {LEAST_FILES} or more"),
        ),
        Some(n) => Check::ok("open files", format!("ulimit -n allows {n}")),
        None => Check::ok("open files", "not limited"),
    });
    checks
}

/// Whether a folder, or the nearest above it that exists, can be written to and has room.
fn disk(name: &str, folder: &Path) -> Check {
    let absolute = std::path::absolute(folder).unwrap_or_else(|_| folder.to_path_buf());
    let shown = absolute.display();
    let Some(there) = absolute.ancestors().find(|path| path.exists()) else {
        return Check::broken(name, format!("{shown} is nowhere"), "name a folder that can be made");
    };
    let probe = there.join(format!(".plimsoll-doctor-{}", std::process::id()));
    let written = std::fs::write(&probe, "x");
    std::fs::remove_file(&probe).ok();
    if let Err(why) = written {
        return Check::broken(
            name,
            format!("{shown} cannot be written to: {why}"),
            "name another folder, or allow writing there",
        );
    }
    let Some(free) = free(there) else { return Check::ok(name, format!("{shown} can be written to")) };
    let found = format!("{shown} can be written to, {free} free");
    match free {
        free if free < LEAST_DISK => {
            Check::broken(name, found, "make room: checkpoints and logs will not fit")
        }
        free if free < SMALL_DISK => {
            Check::warning(name, found, "make room, or keep fewer checkpoints (--keep 1)")
        }
        _ => Check::ok(name, found),
    }
}

fn shared_memory(free: Option<Bytes>) -> Check {
    match free {
        Some(free) if free < LEAST_SHARED => Check::warning(
            "/dev/shm",
            format!("{free} free"),
            "one process does not use it; several that exchange gradients do: docker run --shm-size 1g",
        ),
        Some(free) => Check::ok("/dev/shm", format!("{free} free")),
        None => Check::ok("/dev/shm", "not there; one process does not use it"),
    }
}

/// The clock of the day and the one that times kernels.
fn clock() -> Check {
    let day = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    if day < EARLIEST {
        return Check::broken(
            "clock",
            format!("it says {} seconds after 1970, before this program was written", day.as_secs()),
            "set the clock: checkpoints and logs are told apart by their times",
        );
    }
    let (asked, begun) = (Duration::from_millis(20), Instant::now());
    std::thread::sleep(asked);
    let slept = begun.elapsed();
    let found = format!("a pause of 20 ms took {:.1} ms", slept.as_secs_f64() * 1e3);
    match slept {
        slept if slept < asked => Check::broken(
            "clock",
            found,
            "the clock runs wrong: times of kernels and steps will mean nothing",
        ),
        slept if slept > 10 * asked => {
            Check::warning("clock", found, "the machine is very busy: times of kernels will not be trusted")
        }
        _ => Check::ok("clock", found),
    }
}

/// What a disk has free for this user.
fn free(path: &Path) -> Option<Bytes> {
    let about = rustix::fs::statvfs(path).ok()?;
    Some(Bytes(about.f_bavail.saturating_mul(about.f_frsize)))
}

#[cfg(test)]
mod tests {
    use super::super::Status;
    use super::*;

    #[test]
    fn what_is_short_is_told_with_what_to_do() {
        let tight = memory(Some(Bytes::mib(10)), Some(Bytes::gib(1)), Some(Bytes::mib(20)));
        assert_eq!(tight.status, Status::Broken);
        assert!(tight.found.contains("the control group allows 20 MiB"), "{tight:?}");
        assert_eq!(memory(Some(Bytes::gib(1)), Some(Bytes::gib(2)), None).status, Status::Ok);
        assert_eq!(cores(2, 2, "9.5 1 1 1/2 3").status, Status::Warning);
        assert_eq!(cores(2, 2, "0.5 1 1 1/2 3").status, Status::Ok);
        assert_eq!(overcommit("2\n").status, Status::Warning);
        assert_eq!(overcommit("1\n").status, Status::Ok);
        assert_eq!(shared_memory(Some(Bytes::mib(1))).status, Status::Warning);
        let text = "Limit                     Soft Limit           Hard Limit           Units     \n\
                    Max data size             unlimited            unlimited            bytes     \n\
                    Max open files            64                   4096                 files     \n\
                    Max address space         1073741824           unlimited            bytes     \n";
        let by_limit: Vec<(String, Status)> =
            limits(text).into_iter().map(|check| (check.name, check.status)).collect();
        assert_eq!(
            by_limit,
            [
                ("address space".into(), Status::Warning),
                ("data size".into(), Status::Ok),
                ("open files".into(), Status::Warning)
            ]
        );
    }

    #[test]
    fn a_folder_that_cannot_be_written_to_is_broken_and_none_is_left_behind() {
        let folder = std::env::temp_dir().join(format!("plimsoll-doctor-{}", std::process::id()));
        let check = disk("runs folder", &folder.join("a/b"));
        assert_ne!(check.found, "");
        assert!(check.found.contains("can be written to"), "{check:?}");
        assert!(!folder.exists(), "a check makes no folders");
        assert_eq!(disk("runs folder", Path::new("/proc/plimsoll")).status, Status::Broken);
    }
}
