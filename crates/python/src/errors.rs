//! Turns errors of the engine into exceptions of the package, which have their data as attributes.

use std::fmt::Display;

use plimsoll::internals::run::{Error as RunError, Remedy};
use plimsoll::prelude::Bytes;
use plimsoll::train::Error as TrainError;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

/// Why a call did not do what it was asked.
pub enum Failure {
    /// Something that Python raised: a callback, an iterator, Ctrl-C.
    Raised(PyErr),
    /// An error of the engine.
    Engine(Box<TrainError>),
    /// Anything else, in words.
    Plain(String),
}

/// An error that is told by its words.
pub fn plain(why: impl Display) -> Failure {
    Failure::Plain(why.to_string())
}

impl<E: Into<TrainError>> From<E> for Failure {
    fn from(error: E) -> Failure {
        Failure::Engine(Box::new(error.into()))
    }
}

impl Failure {
    /// Whether the engine ended with what was only said inside of it: a function of Python that raised, say.
    pub fn is_internal(&self) -> bool {
        matches!(self, Failure::Engine(error) if matches!(cause(error), Some(RunError::Internal(_))))
    }

    /// The exception.
    pub fn raised(self, py: Python<'_>) -> PyErr {
        let made = match self {
            Failure::Raised(error) => return error,
            Failure::Engine(error) => of_engine(py, &error),
            Failure::Plain(why) => made(py, "PlimsollError", &why, None),
        };
        made.unwrap_or_else(|error| error)
    }
}

/// An exception of the package, by its name.
fn made(py: Python<'_>, name: &str, text: &str, data: Option<&Bound<'_, PyDict>>) -> PyResult<PyErr> {
    let class = match py.import("plimsoll.errors").and_then(|module| module.getattr(name)) {
        Ok(class) => class,
        // The module is there without its package: that is no reason to say less.
        Err(_) => return Ok(PyRuntimeError::new_err(text.to_string())),
    };
    Ok(PyErr::from_value(class.call((text,), data)?))
}

fn of_engine(py: Python<'_>, error: &TrainError) -> PyResult<PyErr> {
    let data = PyDict::new(py);
    let text = error.to_string();
    match cause(error) {
        Some(RunError::Infeasible { asked, least, account, heaviest, ways, .. }) => {
            let held = [
                ("program", account.program),
                ("tensors", account.tensors),
                ("inputs", account.inputs),
                ("pipelines", account.reserved),
                ("ranks", account.ranks),
            ];
            let held = held.iter().map(|(name, bytes)| (name.to_string(), *bytes)).chain(heaviest.clone());
            limit_error(py, &data, Some(*asked), *least, held, ways)?;
            made(py, "MemoryLimitError", &text, Some(&data))
        }
        Some(RunError::HostInfeasible(refusal)) => {
            let held = refusal.account.parts().into_iter().map(|(name, bytes)| (name.to_string(), bytes));
            limit_error(py, &data, refusal.account.limit, refusal.least, held, &refusal.ways)?;
            made(py, "MemoryLimitError", &text, Some(&data))
        }
        Some(RunError::OutOfMemory(refused)) => {
            data.set_item("requested", refused.requested.get())?;
            data.set_item("in_use", refused.in_use.get())?;
            data.set_item("limit", refused.limit.get())?;
            let holder = |holder: &plimsoll::device::Holder| (holder.owner.to_string(), holder.bytes.get());
            data.set_item("holders", PyList::new(py, refused.holders.iter().map(holder))?)?;
            made(py, "OutOfMemoryError", &text, Some(&data))
        }
        _ => made(py, "PlimsollError", &text, None),
    }
}

fn limit_error(
    py: Python<'_>,
    data: &Bound<'_, PyDict>,
    limit: Option<Bytes>,
    least: Bytes,
    holders: impl Iterator<Item = (String, Bytes)>,
    ways: &[Remedy],
) -> PyResult<()> {
    data.set_item("limit", limit.map(Bytes::get))?;
    data.set_item("least", least.get())?;
    let holders: Vec<(String, u64)> =
        holders.filter(|(_, bytes)| *bytes > Bytes::ZERO).map(|(name, bytes)| (name, bytes.get())).collect();
    data.set_item("holders", holders)?;
    let way = |way: &Remedy| (way.change.clone(), way.least.get());
    data.set_item("ways_out", PyList::new(py, ways.iter().map(way))?)
}

/// What the engine itself said, behind what a trainer says about it.
fn cause(error: &TrainError) -> Option<&RunError> {
    match error {
        TrainError::Run(RunError::Full { refusal, .. }) => Some(refusal),
        TrainError::Run(error) => Some(error),
        TrainError::Stopped { cause: inner, .. } | TrainError::Lost { cause: inner, .. } => cause(inner),
        _ => None,
    }
}
