//! Turns functions of Python into models and losses of the engine: they are called while a step is traced, and not while it runs.

use std::sync::{Arc, Mutex, PoisonError};

use plimsoll::internals::graph::{ConvGeometry, Padding, Shape};
use plimsoll::internals::run::Error;
use plimsoll::nn::{Conv2d, Init, Loss, Model, MultiHead, Net as Engine, Outputs, Recurrent};
use plimsoll::prelude::Tensor as Value;
use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::call::op;
use crate::tensor::Tensor;

/// What Python raised while it was called by the engine.
#[derive(Clone, Default)]
pub struct Thrown(Arc<Mutex<Option<PyErr>>>);

impl Thrown {
    /// Keeps an exception for whoever began, and gives the engine an error to end with.
    pub fn keep(&self, error: PyErr) -> Error {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        Error::Internal("Python raised an exception while a step was traced".into())
    }

    /// The exception, if there was one.
    pub fn take(&self) -> Option<PyErr> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// What a model asks for its parameters, by name, and builds its layers with. It is there while the model is traced.
#[pyclass(frozen, module = "plimsoll")]
pub struct Net {
    net: Mutex<Option<Engine>>,
    thrown: Thrown,
}

impl Net {
    /// Lends a net to Python for the time of a call.
    fn lent<T>(&self, net: &mut Engine, body: impl FnOnce() -> PyResult<T>) -> Result<T, Error> {
        *self.locked() = Some(std::mem::replace(net, Engine::bound(&[], &[], false)));
        let result = body();
        if let Some(own) = self.locked().take() {
            *net = own;
        }
        result.map_err(|error| self.thrown.keep(error))
    }

    fn locked(&self) -> std::sync::MutexGuard<'_, Option<Engine>> {
        self.net.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something with the net.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        body: impl FnOnce(&mut Engine) -> Result<T, Error> + Send,
    ) -> PyResult<T> {
        let Some(mut net) = self.locked().take() else {
            return Err(PyRuntimeError::new_err(
                "a net is only there while its model is traced; ask it for layers inside of the model's function",
            ));
        };
        let (net, result) = op(py, move || {
            let result = body(&mut net);
            Ok((net, result))
        })?;
        *self.locked() = Some(net);
        // What Python raised inside is told as it was.
        result.map_err(|error| match self.thrown.take() {
            Some(raised) => raised,
            None => crate::errors::Failure::from(error).raised(py),
        })
    }
}

/// Padding by its name.
pub fn padding<const AXES: usize>(name: &str) -> PyResult<Padding<AXES>> {
    match name {
        "valid" => Ok(Padding::Valid),
        "same" => Ok(Padding::Same),
        other => Err(PyValueError::new_err(format!("padding is valid or same, not {other}"))),
    }
}

/// Where a parameter starts, by name: `zeros`, `ones`, `normal`, `uniform`, or a number that is everywhere.
fn init(start: &Bound<'_, PyAny>, scale: f64) -> PyResult<Init> {
    if let Ok(value) = start.extract::<f64>() {
        return Ok(Init::Constant(value));
    }
    match start.extract::<&str>()? {
        "zeros" => Ok(Init::Constant(0.0)),
        "ones" => Ok(Init::Constant(1.0)),
        "normal" => Ok(Init::Normal(scale)),
        "uniform" => Ok(Init::Uniform(scale)),
        "orthogonal" => Ok(Init::Orthogonal(scale)),
        other => {
            let why = format!(
                "there is no start {other}; zeros, ones, normal, uniform, orthogonal or a number belong there"
            );
            Err(PyValueError::new_err(why))
        }
    }
}

/// A convolution as Python describes it.
pub fn conv(
    channels: usize,
    window: usize,
    stride: usize,
    padding: &str,
    dilation: usize,
    groups: usize,
    bias: bool,
) -> PyResult<Conv2d> {
    let pad = self::padding(padding)?;
    let geometry = ConvGeometry { stride: [stride; 2], pad, dilation: [dilation; 2], groups };
    Ok(Conv2d { channels, window: [window; 2], geometry, bias })
}

#[pymethods]
impl Net {
    /// Whether it is a training step that is traced, and not an evaluation or a prediction.
    #[getter]
    fn training(&self, py: Python<'_>) -> PyResult<bool> {
        self.with(py, |net| Ok(net.is_training()))
    }

    /// A parameter that is trained, by its name. ``init`` is ``zeros``, ``ones``, ``normal``, ``uniform`` or ``orthogonal``, the last three
    /// with a ``scale``, or a number.
    #[pyo3(signature = (name, shape, init, scale=0.05))]
    fn param(
        &self,
        py: Python<'_>,
        name: &str,
        shape: Vec<usize>,
        init: &Bound<'_, PyAny>,
        scale: f64,
    ) -> PyResult<Tensor> {
        let init = self::init(init, scale)?;
        let shape: Shape = shape.into_iter().collect();
        self.with(py, |net| net.param(name, shape, init)).map(Tensor)
    }

    /// What ``body(net)`` makes, with a name before those of all its parameters: a block that stands in a model several times.
    fn scope(slf: &Bound<'_, Self>, name: &str, body: Py<PyAny>) -> PyResult<Py<PyAny>> {
        let (py, this) = (slf.py(), slf.get());
        let own = slf.clone().unbind();
        this.with(py, |net| {
            net.scope(name, |net| {
                let handle = own.get();
                handle.lent(net, || Python::attach(|py| body.call1(py, (own.clone_ref(py),))))
            })
        })
    }
}

/// Layers that take a tensor and settings, and pass both on; what they are given stands before the arrow, what the engine gets behind it.
macro_rules! layers {
    ($(
        $(#[$about:meta])*
        $layer:ident($name:ident, $x:ident $(, $given:ident: $ty:ty)*) => ($($passed:ident $(= $made:expr)?),*)
    )*) => {
        #[pymethods]
        impl Net {
            $($(#[$about])*
            fn $layer(
                &self,
                py: Python<'_>,
                $name: &str,
                $x: PyRef<'_, Tensor>,
                $($given: $ty),*
            ) -> PyResult<Tensor> {
                let $x = &$x.0;
                $($(let $passed = $made;)?)*
                self.with(py, |net| net.$layer($name, $x $(, $passed)*)).map(Tensor)
            })*
        }
    };
}

layers! {
    /// A dense layer: ``units`` sums over the last axis.
    #[pyo3(signature = (name, x, units, bias=true))]
    dense(name, x, units: usize, bias: bool) => (units, bias)

    /// Rows of a table by their numbers.
    embedding(name, indices, rows: usize, width: usize) => (rows, width)

    /// A convolution of images [N, H, W, C].
    #[pyo3(signature = (name, x, channels, window, stride=1, padding="valid", dilation=1, groups=1, bias=true))]
    conv2d(
        name, x, channels: usize, window: usize, stride: usize, padding: &str, dilation: usize, groups: usize, bias: bool
    ) => (layer = conv(channels, window, stride, padding, dilation, groups, bias)?)

    /// A transposed convolution of images.
    #[pyo3(signature = (name, x, channels, window, stride=1, padding="valid", bias=true))]
    conv_transpose2d(name, x, channels: usize, window: usize, stride: usize, padding: &str, bias: bool)
        => (layer = conv(channels, window, stride, padding, 1, 1, bias)?)

    /// Batch norm over all axes but the last, with running statistics.
    batch_norm(name, x) => ()

    /// Layer norm over the last axis.
    layer_norm(name, x) => ()

    /// RMS norm over the last axis.
    rms_norm(name, x) => ()

    /// Dropout: off but in training.
    dropout(name, x, rate: f64) => (rate)

    /// An LSTM over [N, T, C]: every step's output, or with ``last`` the last one's alone.
    #[pyo3(signature = (name, x, units, last=false, bidirectional=false))]
    lstm(name, x, units: usize, last: bool, bidirectional: bool)
        => (layer = Recurrent { units, gives_all: !last, is_bidirectional: bidirectional })

    /// A GRU over [N, T, C].
    #[pyo3(signature = (name, x, units, last=false, bidirectional=false))]
    gru(name, x, units: usize, last: bool, bidirectional: bool)
        => (layer = Recurrent { units, gives_all: !last, is_bidirectional: bidirectional })

    /// Attention of a sequence [N, T, C] to itself.
    #[pyo3(signature = (name, x, heads, causal=false, bias=true))]
    self_attention(name, x, heads: usize, causal: bool, bias: bool)
        => (layer = MultiHead { heads, is_causal: causal, bias })
}

/// A model that is a function of Python: `model(net, *inputs)` gives a tensor or several.
pub struct PyModel {
    pub function: Py<PyAny>,
    pub thrown: Thrown,
}

impl Model for PyModel {
    fn forward(&self, net: &mut Engine, inputs: &[Value]) -> Result<Outputs, Error> {
        Python::attach(|py| {
            let made = Net { net: Mutex::new(None), thrown: self.thrown.clone() };
            let handle = Py::new(py, made).map_err(|error| self.thrown.keep(error))?;
            handle.get().lent(net, || {
                let inputs = inputs.iter().map(|input| Py::new(py, Tensor(input.clone())).map(Py::into_any));
                let mut arguments = vec![handle.clone_ref(py).into_any()];
                for input in inputs {
                    arguments.push(input?);
                }
                let given = self.function.bind(py).call1(PyTuple::new(py, arguments)?)?;
                Ok(Outputs::from(values(&given, "a model")?))
            })
        })
    }
}

/// A loss that is a function of Python: of one output and one label, or of a list of each.
pub struct PyLoss {
    pub function: Py<PyAny>,
    pub thrown: Thrown,
}

impl Loss for PyLoss {
    fn loss(&self, outputs: &[Value], labels: &[Value]) -> Result<Value, Error> {
        let given = Python::attach(|py| -> PyResult<Value> {
            let side = |values: &[Value]| -> PyResult<Py<PyAny>> {
                let tensors: Vec<Tensor> = values.iter().cloned().map(Tensor).collect();
                Ok(tensors.into_pyobject(py)?.into_any().unbind())
            };
            let given = match (outputs, labels) {
                ([output], [label]) => {
                    self.function.bind(py).call1((Tensor(output.clone()), Tensor(label.clone())))?
                }
                _ => self.function.bind(py).call1((side(outputs)?, side(labels)?))?,
            };
            let mut given = values(&given, "a loss")?;
            match given.len() {
                1 => Ok(given.remove(0)),
                n => Err(PyTypeError::new_err(format!("a loss is one number, not {n} tensors"))),
            }
        });
        given.map_err(|error| self.thrown.keep(error))
    }
}

/// The tensors that Python gave: one, or several.
fn values(given: &Bound<'_, PyAny>, who: &str) -> PyResult<Vec<Value>> {
    if let Ok(one) = given.cast::<Tensor>() {
        return Ok(vec![one.get().0.clone()]);
    }
    let several: Vec<PyRef<'_, Tensor>> = given.extract().map_err(|_| {
        let class = given.get_type().name().map(|name| name.to_string()).unwrap_or_default();
        PyTypeError::new_err(format!("{who} gives a plimsoll.Tensor, or a list of them, not {class}"))
    })?;
    Ok(several.iter().map(|tensor| tensor.0.clone()).collect())
}
