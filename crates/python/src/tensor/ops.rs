//! Methods of tensors that are ops: those that are alike are listed, the others stand behind them.

use plimsoll::internals::graph::Shape;
use plimsoll::internals::graph::ops::ResizeMode;
use plimsoll::prelude::*;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::arithmetic::Other;
use super::{Engine, Tensor, one};
use crate::call::op;

/// A tensor that another one meets.
type Held<'py> = PyRef<'py, Tensor>;

/// Methods that pass on what they are given.
macro_rules! methods {
    (
        unary { $($(#[$about:meta])* $unary:ident)* }
        binary { $($(#[$on:meta])* $binary:ident)* }
        reduce { $($(#[$of:meta])* $reduce:ident)* }
        along { $($(#[$over:meta])* $along:ident)* }
        pool { $($(#[$within:meta])* $pool:ident($($set:literal)?))* }
    ) => {
        #[pymethods]
        impl Tensor {
            $($(#[$about])* fn $unary(&self, py: Python<'_>) -> PyResult<Tensor> {
                one(py, || self.0.$unary())
            })*
            $($(#[$on])* fn $binary(&self, py: Python<'_>, other: Other<'_>) -> PyResult<Tensor> {
                self.with(py, &other, Engine::$binary)
            })*
            $($(#[$of])*
            #[pyo3(signature = (axis=None, keepdims=false, *, dtype=None, out=None))]
            fn $reduce(
                &self,
                py: Python<'_>,
                axis: Option<Axes>,
                keepdims: bool,
                dtype: Option<&Bound<'_, PyAny>>,
                out: Option<&Bound<'_, PyAny>>,
            ) -> PyResult<Tensor> {
                not_given(dtype, out)?;
                let axes = axes(&self.0, axis)?;
                one(py, || self.0.$reduce(&axes, keepdims))
            })*
            $($(#[$over])*
            #[pyo3(signature = (axis=-1))]
            fn $along(&self, py: Python<'_>, axis: isize) -> PyResult<Tensor> {
                one(py, || self.0.$along(axis))
            })*
            $($(#[$within])*
            #[pyo3(signature = (window, stride=None, padding="valid"))]
            fn $pool(
                &self,
                py: Python<'_>,
                window: usize,
                stride: Option<usize>,
                padding: &str,
            ) -> PyResult<Tensor> {
                let (stride, padding) = ([stride.unwrap_or(window); 2], crate::net::padding(padding)?);
                one(py, || self.0.$pool([window; 2], stride, padding $(, $set)?))
            })*
        }
    };
}

methods! {
    unary {
        /// |x|
        abs
        /// -1, 0 or 1
        sign
        /// The largest whole number not above x.
        floor
        /// e^x
        exp
        /// The natural logarithm.
        log
        /// The square root.
        sqrt
        /// One over the square root.
        rsqrt
        /// x · x
        square
        /// 1 / x
        reciprocal
        /// The sine.
        sin
        /// The cosine.
        cos
        /// The hyperbolic tangent.
        tanh
        /// 1 / (1 + e^-x)
        sigmoid
        /// The error function.
        erf
        /// max(x, 0)
        relu
        /// x · Φ(x), with the normal distribution itself.
        gelu
        /// gelu by its tanh approximation.
        gelu_tanh
        /// x · sigmoid(x)
        silu
        /// ln(1 + e^x)
        softplus
        /// True where x is neither infinite nor not a number.
        is_finite
        /// The same values, through which no gradient goes.
        stop_gradient
        /// The mean over the pixels of each image: [N, H, W, C] to [N, C].
        global_avg_pool2d
    }
    binary {
        /// The larger of two elements.
        maximum
        /// The smaller of two elements.
        minimum
        /// Where both are equal, as truth values: ``x == y``.
        equal
        /// Where they differ: ``x != y``.
        not_equal
        /// Each row's cross-entropy of logits with class numbers.
        softmax_cross_entropy
        /// Cross-entropy of logits with probabilities, element by element.
        sigmoid_cross_entropy
    }
    reduce {
        /// The sum along axes; of all elements where none is named.
        sum
        /// The mean along axes.
        mean
        /// The largest along axes.
        max
        /// The smallest along axes.
        min
        /// The product along axes.
        prod
    }
    along {
        /// e^x / Σ e^x along an axis.
        softmax
        /// The logarithm of [`softmax`].
        log_softmax
        /// The place of the largest element along an axis.
        argmax
        /// Sums of all elements up to each one.
        cumsum
    }
    pool {
        /// The largest pixel of each window: images are [N, H, W, C].
        max_pool2d()
        /// The mean of each window; pixels of the border do not count.
        avg_pool2d(false)
    }
}

/// NumPy's own functions hand these on (``np.sum(x)``), and they mean nothing here.
fn not_given(dtype: Option<&Bound<'_, PyAny>>, out: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
    match (dtype, out) {
        (None, None) => Ok(()),
        _ => {
            Err(PyTypeError::new_err("dtype and out are NumPy's; cast the tensor, and take what is returned"))
        }
    }
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

#[pymethods]
impl Tensor {
    /// The matrix product; ``x @ y``.
    fn matmul(&self, py: Python<'_>, other: PyRef<'_, Tensor>) -> PyResult<Tensor> {
        let other = &other.0;
        one(py, || self.0.matmul(other))
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
        let dtype = super::dtype(dtype)?;
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
    fn layer_norm(&self, py: Python<'_>, gamma: Held<'_>, beta: Held<'_>, eps: f64) -> PyResult<Tensor> {
        let (gamma, beta) = (&gamma.0, &beta.0);
        one(py, || self.0.layer_norm(gamma, beta, eps))
    }

    /// Where this is true elements of ``yes``, else of ``no``.
    fn select(&self, py: Python<'_>, yes: PyRef<'_, Tensor>, no: PyRef<'_, Tensor>) -> PyResult<Tensor> {
        let (yes, no) = (&yes.0, &no.0);
        one(py, || self.0.select(yes, no))
    }
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
