//! Turns NumPy's arrays into tensors, tensors into NumPy's arrays, and Python's operators and method calls into ops.

use std::borrow::Cow;

use plimsoll::internals::formats::Element;
use plimsoll::internals::graph::Shape;
use plimsoll::internals::graph::ops::ResizeMode;
use plimsoll::internals::run::Error;
use plimsoll::prelude::*;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyDict, PyTuple};

use crate::array::{Array, element};
use crate::call::{caught, op};
use crate::device::device;

type Engine = plimsoll::prelude::Tensor;
type Result<T> = std::result::Result<T, Error>;

/// An array on a device, or a value of a step that is being traced. It never changes: ops make new ones.
///
/// Made of anything that NumPy makes an array of: ``plimsoll.Tensor([[1.0, 2.0]])``. Numbers of Python and float64 become float32
/// unless ``dtype`` says otherwise.
#[pyclass(frozen, module = "plimsoll", name = "Tensor")]
pub struct Tensor(pub Engine);

/// What stands on the other side of an operator.
#[derive(FromPyObject)]
enum Other<'py> {
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

/// A type of elements by NumPy's name for it.
pub fn dtype(name: &str) -> PyResult<DType> {
    let found = element(name)?;
    found.dtype().ok_or_else(|| PyTypeError::new_err(format!("tensors of {name} there are not; use int64")))
}

/// A function of one tensor, and the same in the words of Python.
fn one(py: Python<'_>, body: impl FnOnce() -> Result<Engine> + Send) -> PyResult<Tensor> {
    op(py, body).map(Tensor)
}

/// The axes of a sum: all where none are named.
fn axes(x: &Engine, axis: Option<Axes>) -> PyResult<Vec<usize>> {
    let rank = x.shape().rank();
    let Some(axis) = axis else { return Ok((0..rank).collect()) };
    let of = |axis: isize| {
        let from_front = if axis < 0 { axis + rank as isize } else { axis };
        let fits = (0..rank as isize).contains(&from_front);
        fits.then_some(from_front as usize).ok_or_else(|| {
            PyValueError::new_err(format!("there is no axis {axis} of a tensor {}", x.shape()))
        })
    };
    match axis {
        Axes::One(axis) => Ok(vec![of(axis)?]),
        Axes::Several(axes) => axes.into_iter().map(of).collect(),
    }
}

/// One axis or several.
#[derive(FromPyObject)]
enum Axes {
    One(isize),
    Several(Vec<isize>),
}

/// One index of `x[…]`: a number, or a part.
enum Index {
    At(usize),
    Part(usize, usize, usize),
}

#[pymethods]
impl Tensor {
    /// |x|
    fn abs(&self, py: Python<'_>) -> PyResult<Tensor> {
        one(py, || self.0.abs())
    }

    /// -1, 0 or 1
    fn sign(&self, py: Python<'_>) -> PyResult<Tensor> {
        one(py, || self.0.sign())
    }

    /// The largest whole number not above x.
    fn floor(&self, py: Python<'_>) -> PyResult<Tensor> {
        one(py, || self.0.floor())
    }

    /// e^x
    fn exp(&self, py: Python<'_>) -> PyResult<Tensor> {
        one(py, || self.0.exp())
    }

    /// The natural logarithm.
    fn log(&self, py: Python<'_>) -> PyResult<Tensor> {
        one(py, || self.0.log())
    }

    /// The square root.
    fn sqrt(&self, py: Python<'_>) -> PyResult<Tensor> {
        one(py, || self.0.sqrt())
    }

    /// One over the square root.
    fn rsqrt(&self, py: Python<'_>) -> PyResult<Tensor> {
        one(py, || self.0.rsqrt())
    }

    /// x · x
    fn square(&self, py: Python<'_>) -> PyResult<Tensor> {
        one(py, || self.0.square())
    }

    /// 1 / x
    fn reciprocal(&self, py: Python<'_>) -> PyResult<Tensor> {
        one(py, || self.0.reciprocal())
    }

    /// The sine.
    fn sin(&self, py: Python<'_>) -> PyResult<Tensor> {
        one(py, || self.0.sin())
    }

    /// The cosine.
    fn cos(&self, py: Python<'_>) -> PyResult<Tensor> {
        one(py, || self.0.cos())
    }

    /// The hyperbolic tangent.
    fn tanh(&self, py: Python<'_>) -> PyResult<Tensor> {
        one(py, || self.0.tanh())
    }

    /// 1 / (1 + e^-x)
    fn sigmoid(&self, py: Python<'_>) -> PyResult<Tensor> {
        one(py, || self.0.sigmoid())
    }

    /// The error function.
    fn erf(&self, py: Python<'_>) -> PyResult<Tensor> {
        one(py, || self.0.erf())
    }

    /// max(x, 0)
    fn relu(&self, py: Python<'_>) -> PyResult<Tensor> {
        one(py, || self.0.relu())
    }

    /// x · Φ(x), with the normal distribution itself.
    fn gelu(&self, py: Python<'_>) -> PyResult<Tensor> {
        one(py, || self.0.gelu())
    }

    /// gelu by its tanh approximation.
    fn gelu_tanh(&self, py: Python<'_>) -> PyResult<Tensor> {
        one(py, || self.0.gelu_tanh())
    }

    /// x · sigmoid(x)
    fn silu(&self, py: Python<'_>) -> PyResult<Tensor> {
        one(py, || self.0.silu())
    }

    /// ln(1 + e^x)
    fn softplus(&self, py: Python<'_>) -> PyResult<Tensor> {
        one(py, || self.0.softplus())
    }

    /// True where x is neither infinite nor not a number.
    fn is_finite(&self, py: Python<'_>) -> PyResult<Tensor> {
        one(py, || self.0.is_finite())
    }

    /// The same values, through which no gradient goes.
    fn stop_gradient(&self, py: Python<'_>) -> PyResult<Tensor> {
        one(py, || self.0.stop_gradient())
    }

    /// The mean over the pixels of each image: [N, H, W, C] to [N, C].
    fn global_avg_pool2d(&self, py: Python<'_>) -> PyResult<Tensor> {
        one(py, || self.0.global_avg_pool2d())
    }

    /// The larger of two elements.
    fn maximum(&self, py: Python<'_>, other: Other<'_>) -> PyResult<Tensor> {
        self.with(py, &other, Engine::maximum)
    }

    /// The smaller of two elements.
    fn minimum(&self, py: Python<'_>, other: Other<'_>) -> PyResult<Tensor> {
        self.with(py, &other, Engine::minimum)
    }

    /// Where both are equal, as truth values. (``==`` asks whether two names are of the same tensor.)
    fn equal(&self, py: Python<'_>, other: Other<'_>) -> PyResult<Tensor> {
        self.with(py, &other, Engine::equal)
    }

    /// Where they differ.
    fn not_equal(&self, py: Python<'_>, other: Other<'_>) -> PyResult<Tensor> {
        self.with(py, &other, Engine::not_equal)
    }

    /// Each row's cross-entropy of logits with class numbers.
    fn softmax_cross_entropy(&self, py: Python<'_>, other: Other<'_>) -> PyResult<Tensor> {
        self.with(py, &other, Engine::softmax_cross_entropy)
    }

    /// Cross-entropy of logits with probabilities, element by element.
    fn sigmoid_cross_entropy(&self, py: Python<'_>, other: Other<'_>) -> PyResult<Tensor> {
        self.with(py, &other, Engine::sigmoid_cross_entropy)
    }

    /// The sum along axes; of all elements where none is named.
    #[pyo3(signature = (axis=None, keepdims=false))]
    fn sum(&self, py: Python<'_>, axis: Option<Axes>, keepdims: bool) -> PyResult<Tensor> {
        let axes = axes(&self.0, axis)?;
        one(py, || self.0.sum(&axes, keepdims))
    }

    /// The mean along axes.
    #[pyo3(signature = (axis=None, keepdims=false))]
    fn mean(&self, py: Python<'_>, axis: Option<Axes>, keepdims: bool) -> PyResult<Tensor> {
        let axes = axes(&self.0, axis)?;
        one(py, || self.0.mean(&axes, keepdims))
    }

    /// The largest along axes.
    #[pyo3(signature = (axis=None, keepdims=false))]
    fn max(&self, py: Python<'_>, axis: Option<Axes>, keepdims: bool) -> PyResult<Tensor> {
        let axes = axes(&self.0, axis)?;
        one(py, || self.0.max(&axes, keepdims))
    }

    /// The smallest along axes.
    #[pyo3(signature = (axis=None, keepdims=false))]
    fn min(&self, py: Python<'_>, axis: Option<Axes>, keepdims: bool) -> PyResult<Tensor> {
        let axes = axes(&self.0, axis)?;
        one(py, || self.0.min(&axes, keepdims))
    }

    /// The product along axes.
    #[pyo3(signature = (axis=None, keepdims=false))]
    fn prod(&self, py: Python<'_>, axis: Option<Axes>, keepdims: bool) -> PyResult<Tensor> {
        let axes = axes(&self.0, axis)?;
        one(py, || self.0.prod(&axes, keepdims))
    }

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
        self::dtype(wanted)?;
        let made = made.call_method1("astype", (wanted,))?;
        let shape: Vec<usize> = made.getattr("shape")?.extract()?;
        let array = Array::new(&numpy.call_method1("ascontiguousarray", (made,))?)?;
        let ty = Type::new(self::dtype(wanted)?, shape.into_iter().collect::<Shape>());
        let on = match device {
            Some(name) => Some(caught(py, || crate::device::device(name))?),
            None => None,
        };
        one(py, || {
            let fill = || -> Result<Engine> {
                let mut tensor = Engine::zeros(ty)?;
                tensor.set_bytes(array.as_ref())?;
                Ok(tensor)
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

    /// DLPack, by which PyTorch, JAX and TensorFlow take its elements: a copy of them, on the host.
    #[pyo3(signature = (**settings))]
    fn __dlpack__<'py>(
        slf: &Bound<'py, Self>,
        settings: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        Self::numpy(slf)?.call_method0("copy")?.call_method("__dlpack__", (), settings)
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        (1, 0)
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
        let elements = py.import("numpy")?.call_method1("array2string", (Self::numpy(slf)?,))?;
        Ok(format!("plimsoll.Tensor({elements}, {ty}, device={device:?})"))
    }

    /// The same elements on another device: ``cpu``, ``cuda``, ``cuda:1``.
    fn to(&self, py: Python<'_>, device: &str) -> PyResult<Tensor> {
        let device = caught(py, || self::device(device))?;
        one(py, || self.0.to(&device))
    }

    /// Other elements of the same values: ``x.cast("float32")``.
    fn cast(&self, py: Python<'_>, dtype: &str) -> PyResult<Tensor> {
        let dtype = self::dtype(dtype)?;
        one(py, || self.0.cast(dtype))
    }

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
            return Err(pyo3::exceptions::PyIndexError::new_err(why));
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

    /// The matrix product; ``x @ y``.
    fn matmul(&self, py: Python<'_>, other: PyRef<'_, Tensor>) -> PyResult<Tensor> {
        self.__matmul__(py, other)
    }

    /// The same elements with other axes; -1 once for whatever is left.
    #[pyo3(signature = (*shape))]
    fn reshape(&self, py: Python<'_>, shape: &Bound<'_, PyTuple>) -> PyResult<Tensor> {
        let lengths: Vec<i64> = match shape.len() {
            1 => shape.get_item(0)?.extract().or_else(|_| shape.extract())?,
            _ => shape.extract()?,
        };
        let shape = completed(&lengths, self.0.ty().elements())?;
        one(py, || self.0.reshape(shape))
    }

    /// Its axes in another order; turned round where none is named.
    #[pyo3(signature = (order=None))]
    fn transpose(&self, py: Python<'_>, order: Option<Vec<usize>>) -> PyResult<Tensor> {
        let order = order.unwrap_or_else(|| (0..self.0.shape().rank()).rev().collect());
        one(py, || self.0.transpose(&order))
    }

    /// Held between two bounds.
    fn clamp(&self, py: Python<'_>, low: f64, high: f64) -> PyResult<Tensor> {
        one(py, || self.0.clamp(low, high))
    }

    /// x where x > 0, else a part of it.
    #[pyo3(signature = (slope=0.01))]
    fn leaky_relu(&self, py: Python<'_>, slope: f64) -> PyResult<Tensor> {
        one(py, || self.0.leaky_relu(slope))
    }

    /// e^x / Σ e^x along an axis.
    #[pyo3(signature = (axis=-1))]
    fn softmax(&self, py: Python<'_>, axis: isize) -> PyResult<Tensor> {
        one(py, || self.0.softmax(axis))
    }

    /// The logarithm of [`softmax`].
    #[pyo3(signature = (axis=-1))]
    fn log_softmax(&self, py: Python<'_>, axis: isize) -> PyResult<Tensor> {
        one(py, || self.0.log_softmax(axis))
    }

    /// The place of the largest element along an axis.
    #[pyo3(signature = (axis=-1))]
    fn argmax(&self, py: Python<'_>, axis: isize) -> PyResult<Tensor> {
        one(py, || self.0.argmax(axis))
    }

    /// Sums of all elements up to each one.
    #[pyo3(signature = (axis=-1))]
    fn cumsum(&self, py: Python<'_>, axis: isize) -> PyResult<Tensor> {
        one(py, || self.0.cumsum(axis))
    }

    /// Elements in order along an axis.
    #[pyo3(signature = (axis=-1, descending=false))]
    fn sort(&self, py: Python<'_>, axis: isize, descending: bool) -> PyResult<Tensor> {
        one(py, || self.0.sort(axis, descending))
    }

    /// The k largest elements along an axis, and their places.
    #[pyo3(signature = (k, axis=-1))]
    fn top_k(&self, py: Python<'_>, k: usize, axis: isize) -> PyResult<(Tensor, Tensor)> {
        op(py, || self.0.top_k(k, axis, true)).map(|(values, places)| (Tensor(values), Tensor(places)))
    }

    /// The slices of an axis that a tensor of indices names.
    #[pyo3(signature = (indices, axis=0))]
    fn gather(&self, py: Python<'_>, indices: PyRef<'_, Tensor>, axis: isize) -> PyResult<Tensor> {
        let indices = &indices.0;
        one(py, || self.0.gather(indices, axis))
    }

    /// Along an axis, the elements that indices of the same rank name.
    #[pyo3(signature = (indices, axis=-1))]
    fn take_along(&self, py: Python<'_>, indices: PyRef<'_, Tensor>, axis: isize) -> PyResult<Tensor> {
        let indices = &indices.0;
        one(py, || self.0.take_along(indices, axis))
    }

    /// 1 at the place that each index names on a new last axis, 0 elsewhere.
    #[pyo3(signature = (depth, dtype="float32"))]
    fn one_hot(&self, py: Python<'_>, depth: usize, dtype: &str) -> PyResult<Tensor> {
        let dtype = self::dtype(dtype)?;
        one(py, || self.0.one_hot(depth, dtype))
    }

    /// A value in the place of every element where a mask is true.
    fn masked_fill(&self, py: Python<'_>, mask: PyRef<'_, Tensor>, value: f64) -> PyResult<Tensor> {
        let mask = &mask.0;
        one(py, || self.0.masked_fill(mask, value))
    }

    /// Turned round along axes.
    fn flip(&self, py: Python<'_>, axes: Vec<isize>) -> PyResult<Tensor> {
        one(py, || self.0.flip(&axes))
    }

    /// Zeros, or another value, around it: a pair of numbers for each axis.
    #[pyo3(signature = (padding, value=0.0))]
    fn pad(&self, py: Python<'_>, padding: Vec<(usize, usize)>, value: f64) -> PyResult<Tensor> {
        one(py, || self.0.pad(&padding, value))
    }

    /// The largest pixel of each window: images are [N, H, W, C].
    #[pyo3(signature = (window, stride=None, padding="valid"))]
    fn max_pool2d(
        &self,
        py: Python<'_>,
        window: usize,
        stride: Option<usize>,
        padding: &str,
    ) -> PyResult<Tensor> {
        let (stride, padding) = ([stride.unwrap_or(window); 2], crate::net::padding(padding)?);
        one(py, || self.0.max_pool2d([window; 2], stride, padding))
    }

    /// The mean of each window.
    #[pyo3(signature = (window, stride=None, padding="valid"))]
    fn avg_pool2d(
        &self,
        py: Python<'_>,
        window: usize,
        stride: Option<usize>,
        padding: &str,
    ) -> PyResult<Tensor> {
        let (stride, padding) = ([stride.unwrap_or(window); 2], crate::net::padding(padding)?);
        one(py, || self.0.avg_pool2d([window; 2], stride, padding, false))
    }

    /// Images so many times as large: by their nearest pixel, or with ``bilinear`` by what lies between.
    #[pyo3(signature = (factor, bilinear=false))]
    fn upsample2d(&self, py: Python<'_>, factor: usize, bilinear: bool) -> PyResult<Tensor> {
        let mode = if bilinear { ResizeMode::Bilinear } else { ResizeMode::Nearest };
        one(py, || self.0.upsample2d(factor, mode))
    }

    /// Attention of queries [N, T, heads, D] over keys and values.
    #[pyo3(signature = (keys, values, causal=false))]
    fn attention(
        &self,
        py: Python<'_>,
        keys: PyRef<'_, Tensor>,
        values: PyRef<'_, Tensor>,
        causal: bool,
    ) -> PyResult<Tensor> {
        let (keys, values) = (&keys.0, &values.0);
        one(py, || self.0.attention(keys, values, None, causal, None))
    }

    /// Normalised along the last axis, scaled and shifted.
    #[pyo3(signature = (gamma, beta, eps=1e-5))]
    fn layer_norm(
        &self,
        py: Python<'_>,
        gamma: PyRef<'_, Tensor>,
        beta: PyRef<'_, Tensor>,
        eps: f64,
    ) -> PyResult<Tensor> {
        let (gamma, beta) = (&gamma.0, &beta.0);
        one(py, || self.0.layer_norm(gamma, beta, eps))
    }

    /// Where this is true elements of ``yes``, else of ``no``.
    fn select(&self, py: Python<'_>, yes: PyRef<'_, Tensor>, no: PyRef<'_, Tensor>) -> PyResult<Tensor> {
        let (yes, no) = (&yes.0, &no.0);
        one(py, || self.0.select(yes, no))
    }
}

impl Tensor {
    fn with(
        &self,
        py: Python<'_>,
        other: &Other<'_>,
        f: impl FnOnce(&Engine, &Engine) -> Result<Engine> + Send,
    ) -> PyResult<Tensor> {
        let other = other.beside(&self.0)?;
        let other: &Engine = &other;
        one(py, || f(&self.0, other))
    }

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

/// What one index means along an axis of some length.
fn index_of(part: &Bound<'_, PyAny>, length: usize) -> PyResult<Index> {
    if let Ok(slice) = part.cast::<pyo3::types::PySlice>() {
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
        return Err(pyo3::exceptions::PyIndexError::new_err(why));
    }
    Ok(Index::At(from_front as usize))
}

/// A shape in which one length may be left to be found.
fn completed(lengths: &[i64], elements: usize) -> PyResult<Shape> {
    let open = lengths.iter().filter(|length| **length < 0).count();
    let known: usize = lengths.iter().filter(|length| **length >= 0).map(|length| *length as usize).product();
    if open > 1 || lengths.iter().any(|length| *length < -1) {
        return Err(PyValueError::new_err("one length of a shape can be left open, with -1"));
    }
    let rest = elements.checked_div(known).unwrap_or(0);
    Ok(lengths.iter().map(|length| if *length < 0 { rest } else { *length as usize }).collect())
}

/// Tensors one behind the other along an axis.
#[pyfunction]
#[pyo3(signature = (tensors, axis=0))]
pub fn concat(py: Python<'_>, tensors: Vec<PyRef<'_, Tensor>>, axis: isize) -> PyResult<Tensor> {
    let tensors: Vec<&Engine> = tensors.iter().map(|tensor| &tensor.0).collect();
    one(py, || Engine::concat(&tensors, axis))
}

/// A sum of products, in Einstein's notation: ``einsum("bij,bjk->bik", a, b)``.
#[pyfunction]
#[pyo3(signature = (equation, *tensors))]
pub fn einsum(py: Python<'_>, equation: &str, tensors: Vec<PyRef<'_, Tensor>>) -> PyResult<Tensor> {
    let tensors: Vec<&Engine> = tensors.iter().map(|tensor| &tensor.0).collect();
    one(py, || Engine::einsum(equation, &tensors))
}
