//! Turns NumPy's arrays into tensors, and tensors into NumPy's arrays.
//!
//! A class with as many methods as ops has several files: what it is made of and becomes (here), operators (`arithmetic`), indices (`index`),
//! all other ops (`ops`), and what other libraries take and give (`dlpack`).

mod arithmetic;
mod dlpack;
mod index;
mod ops;

pub use dlpack::from_dlpack;
pub use ops::{concat, einsum};

use std::borrow::Cow;

use plimsoll::internals::formats::Element;
use plimsoll::internals::graph::Shape;
use plimsoll::internals::run::Error;
use plimsoll::prelude::*;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyDict, PyTuple};

use crate::array::{Array, element};
use crate::call::{caught, op};
use crate::device::device;
use crate::errors::Failure;

type Engine = plimsoll::prelude::Tensor;
type Result<T> = std::result::Result<T, Error>;

/// An array on a device, or a value of a step that is being traced. It never changes: ops make new ones.
///
/// Made of anything that NumPy makes an array of: ``plimsoll.Tensor([[1.0, 2.0]])``. Numbers of Python and float64 become float32
/// unless ``dtype`` says otherwise.
#[pyclass(frozen, module = "plimsoll", name = "Tensor")]
pub struct Tensor(pub Engine);

/// What a tensor is made of again: an array, its type and its device.
type Pickled<'py> = (Bound<'py, PyAny>, String, String);

/// The device of a name, where tensors are made: of several that are the CPU, the one at hand, since tensors of two devices do not go together.
fn device_for_tensors(name: &str) -> std::result::Result<Device, Failure> {
    let current = Device::current()?;
    if name == "cpu" && !current.has_own_memory() {
        return Ok(current);
    }
    device(name)
}

/// A type of elements by NumPy's name for it.
pub fn dtype(name: &str) -> PyResult<DType> {
    let found = element(name)?;
    found.dtype().ok_or_else(|| PyTypeError::new_err(format!("tensors of {name} there are not; use int64")))
}

/// The tensor that an op makes.
fn one(py: Python<'_>, body: impl FnOnce() -> Result<Engine> + Send) -> PyResult<Tensor> {
    op(py, body).map(Tensor)
}

#[pymethods]
impl Tensor {
    #[new]
    #[pyo3(signature = (value, dtype=None, device=None))]
    fn new(
        py: Python<'_>,
        value: &Bound<'_, PyAny>,
        dtype: Option<&str>,
        device: Option<&str>,
    ) -> PyResult<Tensor> {
        let numpy = py.import("numpy")?;
        let is_array = value.hasattr("dtype")?;
        let made = numpy.call_method1("asarray", (value,))?;
        let name: String = made.getattr("dtype")?.getattr("name")?.extract()?;
        // Numbers of Python are float64 only because NumPy has to choose something.
        let wanted = match dtype {
            Some(wanted) => wanted,
            None if name == "float64" && !is_array => "float32",
            None => &name,
        };
        let dtype = self::dtype(wanted)?;
        // NumPy has no bfloat16 of its own.
        let read = if dtype == DType::BF16 { "float32" } else { wanted };
        let made = made.call_method1("astype", (read,))?;
        let shape: Vec<usize> = made.getattr("shape")?.extract()?;
        let array = Array::new(&numpy.call_method1("ascontiguousarray", (made,))?)?;
        let ty = Type::new(self::dtype(read)?, shape.into_iter().collect::<Shape>());
        let on = match device {
            Some(name) => Some(caught(py, || device_for_tensors(name))?),
            None => None,
        };
        one(py, || {
            let fill = || -> Result<Engine> {
                let mut tensor = Engine::zeros(ty)?;
                tensor.set_bytes(array.as_ref())?;
                if tensor.dtype() == dtype { Ok(tensor) } else { tensor.cast(dtype) }
            };
            match on {
                Some(device) => device.scope(fill),
                None => fill(),
            }
        })
    }

    /// The lengths of its axes.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.0.shape().iter())
    }

    /// How many axes it has.
    #[getter]
    fn ndim(&self) -> usize {
        self.0.shape().rank()
    }

    /// The type of its elements, as NumPy calls it.
    #[getter]
    fn dtype(&self) -> &'static str {
        Element::from(self.0.dtype()).numpy_name()
    }

    /// The device that it is on; none of a value that is being traced.
    #[getter]
    fn device(&self) -> Option<String> {
        self.0.device().map(|device| device.name().to_string())
    }

    /// Its elements as an array of NumPy: of a tensor on the CPU a view that cannot be written to, else a copy.
    fn numpy<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let (py, this) = (slf.py(), slf.get());
        let numpy = py.import("numpy")?;
        if this.is_here() {
            return numpy.call_method1("asarray", (slf,));
        }
        let bytes = op(py, || this.0.to_bytes())?;
        let flat = numpy.call_method1("frombuffer", (PyByteArray::new(py, &bytes), this.numpy_dtype()?))?;
        flat.call_method1("reshape", (this.shape(py)?,))
    }

    #[pyo3(signature = (dtype=None, copy=None))]
    fn __array__<'py>(
        slf: &Bound<'py, Self>,
        dtype: Option<&Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        // A view that NumPy makes by itself of what is described to it, or a copy from elsewhere.
        let described = py.import("types")?.getattr("SimpleNamespace")?;
        let array = if slf.get().is_here() {
            let names = PyDict::new(py);
            names.set_item("__array_interface__", slf.get().interface(py)?)?;
            names.set_item("tensor", slf)?;
            py.import("numpy")?.call_method1("asarray", (described.call((), Some(&names))?,))?
        } else {
            Self::numpy(slf)?
        };
        match (dtype, copy) {
            (Some(dtype), _) => array.call_method1("astype", (dtype,)),
            (None, Some(true)) => array.call_method0("copy"),
            (None, _) => Ok(array),
        }
    }

    /// NumPy is not to take an operator's other side for an array of its own: the result would be on no tape.
    #[classattr]
    fn __array_ufunc__() -> Option<bool> {
        None
    }

    /// The only element, as a number.
    fn item(&self, py: Python<'_>) -> PyResult<f64> {
        op(py, || self.0.item())
    }

    fn __float__(&self, py: Python<'_>) -> PyResult<f64> {
        self.item(py)
    }

    fn __bool__(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.item(py)? != 0.0)
    }

    fn __len__(&self) -> PyResult<usize> {
        let first = self.0.shape().first().copied();
        first.ok_or_else(|| PyTypeError::new_err("a tensor of one number has no length"))
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        let (py, this) = (slf.py(), slf.get());
        let ty = format!("shape={}, dtype={}", this.shape(py)?.repr()?, this.dtype());
        let Some(device) = this.device() else { return Ok(format!("plimsoll.Tensor(traced, {ty})")) };
        let shown = match this.0.dtype() {
            DType::BF16 => Self::numpy(&Bound::new(py, this.cast(py, "float32")?)?)?,
            _ => Self::numpy(slf)?,
        };
        let elements = py.import("numpy")?.call_method1("array2string", (shown,))?;
        Ok(format!("plimsoll.Tensor({elements}, {ty}, device={device:?})"))
    }

    /// A pickle has its elements: it is read as a tensor on the same device.
    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, Pickled<'py>)> {
        let (py, this) = (slf.py(), slf.get());
        let Some(device) = this.device() else {
            return Err(PyTypeError::new_err(
                "a tensor that is being traced has no elements, and cannot be pickled",
            ));
        };
        let array = match this.0.dtype() {
            DType::BF16 => Self::numpy(&Bound::new(py, this.cast(py, "float32")?)?)?,
            _ => Self::numpy(slf)?,
        };
        let class = py.get_type::<Tensor>().into_any();
        Ok((class, (array.call_method0("copy")?, this.dtype().to_string(), device)))
    }

    /// Itself: a tensor never changes.
    fn __deepcopy__(slf: Py<Self>, _memo: &Bound<'_, PyAny>) -> Py<Self> {
        slf
    }

    /// The same elements on another device: ``cpu``, ``cuda``, ``cuda:1``.
    fn to(&self, py: Python<'_>, device: &str) -> PyResult<Tensor> {
        let device = caught(py, || device_for_tensors(device))?;
        one(py, || self.0.to(&device))
    }

    /// Other elements of the same values: ``x.cast("float32")``.
    fn cast(&self, py: Python<'_>, dtype: &str) -> PyResult<Tensor> {
        let dtype = self::dtype(dtype)?;
        one(py, || self.0.cast(dtype))
    }
}

impl Tensor {
    /// Whether its bytes can be read where they lie.
    fn is_here(&self) -> bool {
        matches!(self.0.as_bytes(), Ok(Cow::Borrowed(_)))
    }

    fn numpy_dtype(&self) -> PyResult<&'static str> {
        match self.dtype() {
            "bfloat16" => Err(PyTypeError::new_err("NumPy has no bfloat16; cast it to float32 first")),
            name => Ok(name),
        }
    }

    /// What NumPy wants to know of memory that it is to show.
    fn interface<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let bytes = op(py, || self.0.as_bytes())?;
        let interface = PyDict::new(py);
        let code = py.import("numpy")?.call_method1("dtype", (self.numpy_dtype()?,))?.getattr("str")?;
        interface.set_item("typestr", code)?;
        interface.set_item("shape", self.shape(py)?)?;
        interface.set_item("data", (bytes.as_ptr() as usize, true))?;
        interface.set_item("version", 3)?;
        Ok(interface)
    }
}
