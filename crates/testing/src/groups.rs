//! Turns 'this machine has no card' into a line that is counted, instead of a test that passes without having run.
//!
//! A test asks for its group ([`group`]). Where what it needs is there, it runs, and a line says so; where it is not, a line says
//! why, and the test ends. The lines go to the file that `PLIMSOLL_TEST_LOG` names; `.ci/run` ends with a table of them. A group
//! that `PLIMSOLL_REQUIRE` names (`emulator,browser`) must be there: without it, its tests fail.
//!
//! Groups: `emulator` (a C++ compiler for the CUDA kernels), `card` (an NVIDIA card), `browser` (Chromium), `terminal` (the command
//! `script`), `release` (a release build of the command), `mpi` (the launcher of Open MPI or of MPICH), `nccl` (that library), `keras` and `torch` (those packages for Python),
//! `c` (a C compiler), `litert` (TensorFlow for the Python that `PLIMSOLL_LITERT_PYTHON` names), `onnx` (onnx's own node tests, in the folder that `PLIMSOLL_ONNX_NODE_TESTS` names).

use std::fmt::Display;
use std::fs::File;
use std::io::Write;
use std::panic::Location;
use std::sync::{Mutex, MutexGuard, PoisonError};

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

/// Held by a test while it uses a card, so that tests of one process do so one after the other: what a card counts is the whole
/// process, and a test would plan around what others hold.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The test that asks: its name, or where it is, if there is only one thread and so no name.
#[track_caller]
fn test() -> String {
    let package = std::env::var("CARGO_PKG_NAME").unwrap_or_default();
    match std::thread::current().name() {
        Some(name) if name != "main" => format!("{package} {name}"),
        _ => format!("{package} {}", Location::caller()),
    }
}

/// Adds a line in one piece: several processes write to the same file.
fn log(line: &str) {
    let Some(path) = std::env::var_os("PLIMSOLL_TEST_LOG") else { return };
    let mut file = File::options().create(true).append(true).open(&path);
    let written = file.as_mut().map(|file| file.write_all(line.as_bytes()));
    assert!(matches!(written, Ok(Ok(()))), "PLIMSOLL_TEST_LOG={} cannot be written", path.display());
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::Scratch;

    #[test]
    fn an_absent_group_is_written_down_and_fails_where_it_is_required() {
        if std::env::var_os("PLIMSOLL_TEST_OF_GROUPS").is_some() {
            assert_eq!(group("earth", Ok::<u32, &str>(1)), Some(1));
            assert_eq!(group::<u32, _>("moon", Err("too\nfar")), None);
            return;
        }
        let scratch = Scratch::new("groups");
        let passes = |required: &str| {
            let test = "groups::tests::an_absent_group_is_written_down_and_fails_where_it_is_required";
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", test]).env("PLIMSOLL_TEST_OF_GROUPS", "1");
            command.env("PLIMSOLL_TEST_LOG", scratch.path("log")).env("PLIMSOLL_REQUIRE", required);
            command.output().unwrap().status.success()
        };
        assert!(passes("") && passes("earth,sun"));
        assert!(!passes("sun, moon"));
        let log = std::fs::read_to_string(scratch.path("log")).unwrap();
        let lines: Vec<Vec<&str>> = log.lines().map(|line| line.split('\t').collect()).collect();
        assert_eq!(lines.len(), 6, "{log}");
        for (line, [group, what, why]) in
            lines.iter().zip([["earth", "ran", ""], ["moon", "absent", "too far"]].repeat(3))
        {
            assert_eq!((line[0], line[1], line[3]), (group, what, why), "{log}");
            assert!(line[2].contains("an_absent_group"), "{log}");
        }
    }
}
