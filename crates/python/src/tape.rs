//! Turns ops that run at once into gradients: the engine's tape, which belongs to one thread.

use std::mem::ManuallyDrop;
use std::thread::{self, ThreadId};

use plimsoll::prelude::Tape as Engine;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyAny;

use crate::call::op;
use crate::tensor::Tensor;

/// Records what is computed from the tensors that it watches, and gives gradients.
///
/// >>> w = plimsoll.Tensor([3.0])
/// >>> with plimsoll.Tape() as tape:
/// ...     tape.watch(w)
/// ...     y = (w * w).sum()
/// >>> tape.gradient(y, w).numpy()
/// array([6.], dtype=float32)
///
/// It records ops of the thread that made it, until its ``with`` ends or it gave its gradients. A ``persistent`` one gives them as often as asked,
/// and keeps what it needs for that until it is let go of.
#[pyclass(frozen, module = "plimsoll")]
pub struct Tape {
    tape: ManuallyDrop<Engine>,
    owner: ThreadId,
}

// SAFETY: the tape is touched by the thread alone that made it: every method asks for that first (`Tape::here`), and it is dropped there or not at all.
unsafe impl Send for Tape {}
// SAFETY: as above.
unsafe impl Sync for Tape {}

impl Drop for Tape {
    fn drop(&mut self) {
        if self.owner == thread::current().id() {
            // SAFETY: it is dropped once, here.
            unsafe { ManuallyDrop::drop(&mut self.tape) };
        }
    }
}

impl Tape {
    fn here(&self) -> PyResult<&Engine> {
        if self.owner == thread::current().id() {
            return Ok(&self.tape);
        }
        Err(PyRuntimeError::new_err("a tape belongs to the thread that made it; make one in each thread"))
    }
}

/// What is not shared between threads, handed through a call that stays on this one.
struct Kept<'a>(&'a Engine);

// SAFETY: `op` runs its body on the thread that calls it.
unsafe impl Send for Kept<'_> {}

impl Kept<'_> {
    fn get(&self) -> &Engine {
        self.0
    }
}

#[pymethods]
impl Tape {
    #[new]
    #[pyo3(signature = (persistent=false))]
    fn new(persistent: bool) -> Tape {
        let tape = if persistent { Engine::persistent() } else { Engine::new() };
        Tape { tape: ManuallyDrop::new(tape), owner: thread::current().id() }
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __exit__(&self, _class: Py<PyAny>, _error: Py<PyAny>, _trace: Py<PyAny>) -> PyResult<bool> {
        self.here()?.stop();
        Ok(false)
    }

    /// Follows what is computed from a tensor from now on.
    fn watch(&self, py: Python<'_>, tensor: PyRef<'_, Tensor>) -> PyResult<()> {
        let (tape, tensor) = (Kept(self.here()?), &tensor.0);
        op(py, move || tape.get().watch(tensor))
    }

    /// The gradients of a target (the sum of its elements) with respect to one tensor or a list of them.
    fn gradient(
        &self,
        py: Python<'_>,
        target: PyRef<'_, Tensor>,
        sources: &Bound<'_, PyAny>,
    ) -> PyResult<Py<PyAny>> {
        let (tape, target) = (Kept(self.here()?), &target.0);
        if let Ok(source) = sources.cast::<Tensor>() {
            let source = &source.get().0;
            let mut found = op(py, move || tape.get().gradient(target, &[source]))?;
            return Ok(Py::new(py, Tensor(found.remove(0)))?.into_any());
        }
        let sources: Vec<PyRef<'_, Tensor>> = sources.extract()?;
        let sources: Vec<_> = sources.iter().map(|source| &source.0).collect();
        let found = op(py, move || tape.get().gradient(target, &sources))?;
        let found: Vec<Tensor> = found.into_iter().map(Tensor).collect();
        Ok(found.into_pyobject(py)?.into_any().unbind())
    }
}
