//! Turns a call from Python into a run of the engine: without the interpreter's lock, one at a time, in the process that began it, and
//! with panics as exceptions.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError, TryLockError};

use plimsoll::device::process;
use plimsoll::internals::device::process::{held_before, release_unused_heap, set_held_before};
use plimsoll::prelude::*;
use pyo3::prelude::*;

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
    result.map_err(|failure| failure.raised(py))
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

/// As [`caught`], for a run with a memory limit: what the process holds now, before the engine begins, is not counted in it.
///
/// # Errors
/// Another run is under way, or this process is a child of the one whose engine has threads.
pub fn run<T: Send>(py: Python<'_>, body: impl FnOnce() -> Result<T, Failure> + Send) -> PyResult<T> {
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
        release_unused_heap();
        set_held_before(process::resident().unwrap_or(Bytes::ZERO));
        body()
    })
}

/// What the interpreter, its libraries and the user's arrays held when the run at hand, or the last one, began.
pub fn held() -> Bytes {
    held_before()
}
