//! Python's operators of tensors, as ops.

use std::borrow::Cow;

use plimsoll::prelude::*;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

use super::{Engine, Result, Tensor, one};

/// What stands on the other side of an operator.
#[derive(FromPyObject)]
pub(super) enum Other<'py> {
    Tensor(PyRef<'py, Tensor>),
    Number(f64),
}

impl Other<'_> {
    /// As a tensor that goes with another one.
    fn beside(&self, x: &Engine) -> PyResult<Cow<'_, Engine>> {
        let value = match self {
            Other::Tensor(tensor) => return Ok(Cow::Borrowed(&tensor.0)),
            Other::Number(value) => *value,
        };
        if !x.dtype().is_float() && value.fract() != 0.0 {
            let why = format!("{value} does not go with a tensor of {}; cast it to float32 first", x.dtype());
            return Err(PyTypeError::new_err(why));
        }
        let made = x.full_like(Type::new(x.dtype(), []), value);
        made.map(Cow::Owned).map_err(|why| PyValueError::new_err(why.to_string()))
    }
}

#[pymethods]
impl Tensor {
    fn __neg__(&self, py: Python<'_>) -> PyResult<Tensor> {
        one(py, || self.0.neg())
    }

    fn __abs__(&self, py: Python<'_>) -> PyResult<Tensor> {
        one(py, || self.0.abs())
    }

    fn __add__(&self, py: Python<'_>, other: Other<'_>) -> PyResult<Tensor> {
        self.with(py, &other, Engine::add)
    }

    fn __radd__(&self, py: Python<'_>, other: Other<'_>) -> PyResult<Tensor> {
        self.with(py, &other, Engine::add)
    }

    fn __sub__(&self, py: Python<'_>, other: Other<'_>) -> PyResult<Tensor> {
        self.with(py, &other, Engine::sub)
    }

    fn __rsub__(&self, py: Python<'_>, other: Other<'_>) -> PyResult<Tensor> {
        self.with(py, &other, |x, other| other.sub(x))
    }

    fn __mul__(&self, py: Python<'_>, other: Other<'_>) -> PyResult<Tensor> {
        self.with(py, &other, Engine::mul)
    }

    fn __rmul__(&self, py: Python<'_>, other: Other<'_>) -> PyResult<Tensor> {
        self.with(py, &other, Engine::mul)
    }

    fn __truediv__(&self, py: Python<'_>, other: Other<'_>) -> PyResult<Tensor> {
        self.with(py, &other, Engine::div)
    }

    fn __rtruediv__(&self, py: Python<'_>, other: Other<'_>) -> PyResult<Tensor> {
        self.with(py, &other, |x, other| other.div(x))
    }

    fn __pow__(&self, py: Python<'_>, other: Other<'_>, modulo: Option<i64>) -> PyResult<Tensor> {
        if modulo.is_some() {
            return Err(PyTypeError::new_err("a power of a tensor has no modulus"));
        }
        match other {
            Other::Number(power) => one(py, || self.0.pow_scalar(power)),
            other => self.with(py, &other, Engine::pow),
        }
    }

    fn __matmul__(&self, py: Python<'_>, other: PyRef<'_, Tensor>) -> PyResult<Tensor> {
        let other = &other.0;
        one(py, || self.0.matmul(other))
    }

    /// Element by element, as in NumPy; a tensor is still a key of a dictionary by itself.
    fn __eq__(&self, py: Python<'_>, other: Other<'_>) -> PyResult<Tensor> {
        self.with(py, &other, Engine::equal)
    }

    fn __ne__(&self, py: Python<'_>, other: Other<'_>) -> PyResult<Tensor> {
        self.with(py, &other, Engine::not_equal)
    }

    fn __hash__(slf: &Bound<'_, Self>) -> isize {
        slf.as_ptr() as isize
    }

    fn __lt__(&self, py: Python<'_>, other: Other<'_>) -> PyResult<Tensor> {
        self.with(py, &other, Engine::less)
    }

    fn __le__(&self, py: Python<'_>, other: Other<'_>) -> PyResult<Tensor> {
        self.with(py, &other, Engine::less_equal)
    }

    fn __gt__(&self, py: Python<'_>, other: Other<'_>) -> PyResult<Tensor> {
        self.with(py, &other, Engine::greater)
    }

    fn __ge__(&self, py: Python<'_>, other: Other<'_>) -> PyResult<Tensor> {
        self.with(py, &other, Engine::greater_equal)
    }
}

impl Tensor {
    /// An op of this tensor and what stands on its other side.
    pub(super) fn with(
        &self,
        py: Python<'_>,
        other: &Other<'_>,
        f: impl FnOnce(&Engine, &Engine) -> Result<Engine> + Send,
    ) -> PyResult<Tensor> {
        let other = other.beside(&self.0)?;
        let other: &Engine = &other;
        one(py, || f(&self.0, other))
    }
}
