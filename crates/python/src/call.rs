//! Turns a call from Python into a run of the engine: without the interpreter's lock, one at a time, in the process that began it, and
//! with panics as exceptions.

use std::any::Any;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError, TryLockError};

use plimsoll::device::process;
use plimsoll::internals::device::process::{held_before, release_unused_heap, set_held_before};
use plimsoll::internals::graph::Site;
use plimsoll::internals::run::asked_at;
use plimsoll::prelude::*;
use pyo3::prelude::*;

use crate::array::interrupt;
use crate::errors::{Failure, plain};

/// The process that first used the engine: its threads are there and in no child.
static OWNER: AtomicU32 = AtomicU32::new(0);
/// Held while a run has its memory limit, which is of one run at a time.
static RUNNING: Mutex<()> = Mutex::new(());

/// Runs without the interpreter's lock; a panic becomes an exception.
pub fn caught<T: Send>(py: Python<'_>, body: impl FnOnce() -> Result<T, Failure> + Send) -> PyResult<T> {
    let result = py.detach(|| {
        let told = |panic: Box<dyn Any + Send>| {
            let words = panic.downcast_ref::<&str>().map(|text| text.to_string());
            let words = words.or_else(|| panic.downcast_ref::<String>().cloned());
            Err(plain(format!("internal error, please report it: {}", words.unwrap_or_default())))
        };
        check_process()?;
        catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(told)
    });
    // Ctrl-C in the middle of a variable is Ctrl-C, and not a variable that cannot be read.
    let interrupt = interrupt();
    result.map_err(|failure| interrupt.unwrap_or_else(|| failure.raised(py)))
}

/// Refuses a child of the process whose engine has threads: there it would wait for them for ever.
fn check_process() -> Result<(), Failure> {
    let owner = OWNER.load(Ordering::Relaxed);
    if owner == 0 || owner == std::process::id() {
        return Ok(());
    }
    Err(plain(
        "this process was forked from one that had used plimsoll, whose threads are not in the child; start it with \
         multiprocessing's spawn method, or fork before the first call",
    ))
}

/// As [`caught`], for an op that runs at once or is traced: it has threads, and carries the line of Python that asked for it.
pub fn op<T: Send>(
    py: Python<'_>,
    body: impl FnOnce() -> Result<T, plimsoll::internals::run::Error> + Send,
) -> PyResult<T> {
    let site = line(py);
    caught(py, || {
        OWNER.store(std::process::id(), Ordering::Relaxed);
        Ok(asked_at(site, body)?)
    })
}

/// The line of Python that is running.
fn line(py: Python<'_>) -> Site {
    static FILES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let read = || -> PyResult<(String, u32)> {
        // Lines of the package itself tell nobody where to look.
        let package: String = py.import("plimsoll")?.getattr("__path__")?.get_item(0)?.extract()?;
        let mut frame = py.import("sys")?.call_method0("_getframe")?;
        loop {
            let file: String = frame.getattr("f_code")?.getattr("co_filename")?.extract()?;
            let next = frame.getattr("f_back")?;
            if next.is_none() || !Path::new(&file).starts_with(&package) {
                return Ok((file, frame.getattr("f_lineno")?.extract()?));
            }
            frame = next;
        }
    };
    let Ok((file, line)) = read() else { return Site::new("", 0) };
    let mut files = FILES.lock().unwrap_or_else(PoisonError::into_inner);
    let file = match files.get(file.as_str()) {
        Some(known) => known,
        // A program has few files, and their names are kept as long as it runs, as those of a compiled program are.
        None => {
            let kept: &'static str = Box::leak(file.into_boxed_str());
            files.insert(kept);
            kept
        }
    };
    Site::new(file, line)
}

/// As [`caught`], for a run with a memory limit: what the process holds now, before the engine begins, is not counted in it.
///
/// # Errors
/// Another run is under way, or this process is a child of the one whose engine has threads.
pub fn run<T: Send>(py: Python<'_>, body: impl FnOnce() -> Result<T, Failure> + Send) -> PyResult<T> {
    run_beside(py, |resident| resident, body)
}

/// As [`run`], where `beside` says what of all that is resident now is not counted in the limit: a trainer that has run before has
/// memory of its own there.
pub fn run_beside<T: Send>(
    py: Python<'_>,
    beside: impl FnOnce(Bytes) -> Bytes + Send,
    body: impl FnOnce() -> Result<T, Failure> + Send,
) -> PyResult<T> {
    run_again(py, || {
        release_unused_heap();
        set_held_before(beside(process::resident().unwrap_or(Bytes::ZERO)));
        let said = body();
        // What the run's threads leave behind on their heaps is Python's to have.
        release_unused_heap();
        said
    })
}

/// As [`run`], for a step of a training that is planned already: nothing is counted anew.
pub fn run_again<T: Send>(py: Python<'_>, body: impl FnOnce() -> Result<T, Failure> + Send) -> PyResult<T> {
    caught(py, || {
        OWNER.store(std::process::id(), Ordering::Relaxed);
        let _running = match RUNNING.try_lock() {
            Ok(running) => running,
            Err(TryLockError::Poisoned(poisoned)) => PoisonError::into_inner(poisoned),
            Err(TryLockError::WouldBlock) => {
                return Err(plain(
                    "another call of plimsoll is under way in this process, and a memory limit is of one run at a time; wait for it to end",
                ));
            }
        };
        body()
    })
}

/// What the interpreter, its libraries and the user's arrays held when the run at hand, or the last one, began.
pub fn held() -> Bytes {
    held_before()
}
