//! The engine as `plimsoll._native`, a module of Python: what the package under `python/` calls.
//!
//! Here stands only what must be compiled: arrays as columns, a live Keras model as a model of ours, runs without the interpreter's
//! lock, errors as exceptions. What Keras's arguments mean is said in Python.

mod array;
mod call;
mod device;
mod errors;
mod follower;
mod model;
mod net;
mod plan;
mod recipe;
mod run;
mod source;
mod stream;
mod tape;
mod tensor;
mod torch;
mod torch_optim;
mod trainer;

use pyo3::prelude::*;

#[pymodule(name = "_native")]
mod native {
    use super::*;

    #[pymodule_export]
    use super::model::LiveModel;
    #[pymodule_export]
    use super::net::Net;
    #[pymodule_export]
    use super::plan::page;
    #[pymodule_export]
    use super::run::{evaluate, fit, plan, predict};
    #[pymodule_export]
    use super::source::{Data, arrays, batches, files, open_files};
    #[pymodule_export]
    use super::tape::Tape;
    #[pymodule_export]
    use super::tensor::{Tensor, concat, einsum, from_dlpack};
    #[pymodule_export]
    use super::torch::{TorchTraining, torch_ops};
    #[pymodule_export]
    use super::trainer::Trainer;

    /// The version of the engine.
    #[pymodule_export]
    #[allow(non_upper_case_globals)]
    const __version__: &str = env!("CARGO_PKG_VERSION");

    /// The `plimsoll` command: words in, exit code out.
    #[pyfunction]
    fn command(py: Python<'_>, words: Vec<String>) -> PyResult<u8> {
        call::caught(py, || Ok(plimsoll_cli::command(words)))
    }

    /// A size as people write it, in bytes: ``6GiB``, or a whole number.
    #[pyfunction]
    fn parsed_bytes(py: Python<'_>, size: String) -> PyResult<u64> {
        call::caught(py, || Ok(size.parse::<plimsoll::prelude::Bytes>().map_err(errors::plain)?.get()))
    }

    /// Plans a step that was traced elsewhere: the answer of ``plimsoll plan --trace --json``, with its instructions.
    #[pyfunction]
    #[pyo3(signature = (trace, limit=None))]
    fn plan_traced(py: Python<'_>, trace: String, limit: Option<String>) -> PyResult<String> {
        call::caught(py, || {
            plimsoll_cli::shared::plan_traced(&trace, limit.as_deref()).map_err(errors::plain)
        })
    }

    /// Explains an out-of-memory report of another system: as text, as JSON and as a page.
    #[pyfunction]
    fn explain(py: Python<'_>, report: Vec<u8>, name: &str) -> PyResult<(String, String, String)> {
        call::caught(py, || {
            let told = plimsoll_explain::explain(&report[..], name).map_err(errors::plain)?;
            let json = serde_json::to_string(&told).map_err(errors::plain)?;
            Ok((told.to_string(), json, told.to_html()))
        })
    }
}
