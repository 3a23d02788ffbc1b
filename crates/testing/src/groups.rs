//! Turns 'this machine has no card' into a line that is counted, instead of a test that passes without having run.
//!
//! A test asks for its group ([`group`]). Where what it needs is there, it runs, and a line says so; where it is not, a line says
//! why, and the test ends. The lines go to the file that `PLIMSOLL_TEST_LOG` names; `.ci/run` ends with a table of them. A group
//! that `PLIMSOLL_REQUIRE` names (`emulator,browser`) must be there: without it, its tests fail.
//!
//! Groups: `emulator` (a C++ compiler for the CUDA kernels), `card` (an NVIDIA card), `browser` (Chromium), `terminal` (the command
//! `script`), `release` (a release build of the command), `keras` and `torch` (those packages for Python).

use std::fmt::Display;
use std::fs::File;
use std::io::Write;
use std::panic::Location;

/// What the test needs, where this machine has it. Where it has not, the line that says why has been written, and the test
/// has nothing to do.
///
/// ```
/// let found: Result<u32, &str> = Err("nobody has built one");
/// let Some(machine) = plimsoll_testing::group("perpetual-motion", found) else { return };
/// unreachable!("{machine}");
/// ```
///
/// # Panics
/// Where it is not there and `PLIMSOLL_REQUIRE` names the group.
#[track_caller]
pub fn group<T, E: Display>(name: &str, found: Result<T, E>) -> Option<T> {
    let test = test();
    match found {
        Ok(there) => {
            log(&format!("{name}\tran\t{test}\t\n"));
            Some(there)
        }
        Err(why) => {
            let why = why.to_string().replace(['\t', '\n', '\r'], " ");
            log(&format!("{name}\tabsent\t{test}\t{why}\n"));
            let required = std::env::var("PLIMSOLL_REQUIRE").unwrap_or_default();
            let is_required = required.split(',').any(|group| group.trim() == name);
            assert!(!is_required, "PLIMSOLL_REQUIRE names the group '{name}', which is not here: {why}");
            println!("not run: no {name} ({why})");
            None
        }
    }
}

/// The same for what is there or not: whether the test goes on.
///
/// # Panics
/// As [`group`].
#[track_caller]
pub fn needs(name: &str, is_there: bool, why_not: &str) -> bool {
    group(name, is_there.then_some(()).ok_or(why_not)).is_some()
}

/// The test that asks: its name, or where it is, if there is only one thread and so no name.
#[track_caller]
fn test() -> String {
    let thread = std::thread::current();
    match thread.name() {
        Some(name) if name != "main" => name.into(),
        _ => Location::caller().to_string(),
    }
}

/// Adds a line in one piece: several processes write to the same file.
fn log(line: &str) {
    let Some(path) = std::env::var_os("PLIMSOLL_TEST_LOG") else { return };
    let mut file = File::options().create(true).append(true).open(&path);
    let written = file.as_mut().map(|file| file.write_all(line.as_bytes()));
    assert!(matches!(written, Ok(Ok(()))), "PLIMSOLL_TEST_LOG={} cannot be written", path.display());
}
