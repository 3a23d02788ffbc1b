//! Python's operators and indices of tensors, as ops.

use std::borrow::Cow;

use plimsoll::internals::graph::Shape;
use plimsoll::prelude::*;
use pyo3::exceptions::{PyIndexError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PySlice, PyTuple};

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

/// One index of `x[…]`: a number, or a part.
enum Index {
    At(usize),
    Part(usize, usize, usize),
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

    /// ``x[0]``, ``x[:, 1:3]``, ``x[::2]``: numbers and parts along the first axes. Rows by a tensor of indices are ``x.gather``.
    fn __getitem__(&self, py: Python<'_>, index: &Bound<'_, PyAny>) -> PyResult<Tensor> {
        let parts: Vec<Bound<'_, PyAny>> = match index.cast::<PyTuple>() {
            Ok(several) => several.iter().collect(),
            Err(_) => vec![index.clone()],
        };
        let shape = self.0.shape();
        if parts.len() > shape.rank() {
            let why = format!("{} indices into a tensor {shape}", parts.len());
            return Err(PyIndexError::new_err(why));
        }
        let read = |(axis, part): (usize, &Bound<'_, PyAny>)| index_of(part, shape[axis]);
        let indices = parts.iter().enumerate().map(read).collect::<PyResult<Vec<Index>>>()?;
        one(py, || {
            let mut ranges = Vec::new();
            let mut kept = Vec::new();
            for (axis, &length) in self.0.shape().iter().enumerate() {
                match indices.get(axis) {
                    Some(Index::At(at)) => ranges.push((axis, *at, at + 1, 1)),
                    Some(Index::Part(start, stop, step)) => {
                        ranges.push((axis, *start, *stop, *step));
                        kept.push((stop - start).div_ceil(*step));
                    }
                    None => kept.push(length),
                }
            }
            self.0.slice(&ranges)?.reshape(kept.into_iter().collect::<Shape>())
        })
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

/// What one index means along an axis of some length.
fn index_of(part: &Bound<'_, PyAny>, length: usize) -> PyResult<Index> {
    if let Ok(slice) = part.cast::<PySlice>() {
        let found = slice.indices(length as isize)?;
        if found.step < 1 {
            return Err(PyValueError::new_err("parts go forwards; turn the tensor round with flip"));
        }
        let start = found.start as usize;
        return Ok(Index::Part(start, (found.stop as usize).max(start), found.step as usize));
    }
    let at: isize = part.extract().map_err(|_| {
        PyTypeError::new_err(
            "an index is a whole number or a part (1:3); rows by a tensor of indices are x.gather",
        )
    })?;
    let from_front = if at < 0 { at + length as isize } else { at };
    if !(0..length as isize).contains(&from_front) {
        let why = format!("index {at} is outside of an axis of length {length}");
        return Err(PyIndexError::new_err(why));
    }
    Ok(Index::At(from_front as usize))
}
