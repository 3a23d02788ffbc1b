//! Turns a graph and input values into output values, plainly and in f64: the meaning of every op, for tests.
//!
//! Slow by design: no sharing, no reuse, one loop an op. Integers and truth values are held as f64 too; all that
//! occur in tests are far below 2^53.

use crate::graph::Graph;
use crate::{DType, Shape, Type};

/// A dense array of f64, whatever the element type it stands for.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    /// The axis lengths.
    pub shape: Shape,
    /// The elements, row-major.
    pub data: Vec<f64>,
}

impl Array {
    /// An array from its parts; the number of elements must be the shape's.
    pub fn new(shape: impl Into<Shape>, data: Vec<f64>) -> Array {
        let shape = shape.into();
        debug_assert_eq!(shape.elements(), data.len());
        Array { shape, data }
    }

    /// An array whose element at each index is given by a function of the index.
    pub fn from_fn(shape: &Shape, mut f: impl FnMut(&[usize]) -> f64) -> Array {
        let mut data = Vec::with_capacity(shape.elements());
        for_each_index(shape, |index| data.push(f(index)));
        Array { shape: shape.clone(), data }
    }

    /// The element at an index.
    pub fn at(&self, index: &[usize]) -> f64 {
        self.data[self.offset(index)]
    }

    /// The place of an index in `data`.
    pub fn offset(&self, index: &[usize]) -> usize {
        index.iter().zip(self.shape.iter()).fold(0, |offset, (&i, &n)| offset * n + i)
    }

    /// The element that a broadcast of this array to a larger shape has at an index of that shape.
    pub fn broadcast_at(&self, index: &[usize]) -> f64 {
        let tail = &index[index.len() - self.shape.rank()..];
        let offset =
            tail.iter().zip(self.shape.iter()).fold(0, |o, (&i, &n)| o * n + if n == 1 { 0 } else { i });
        self.data[offset]
    }
}

/// Calls `f` with every index of a shape, in row-major order.
pub fn for_each_index(shape: &Shape, mut f: impl FnMut(&[usize])) {
    let mut index = vec![0; shape.rank()];
    for _ in 0..shape.elements() {
        f(&index);
        for axis in (0..shape.rank()).rev() {
            index[axis] += 1;
            if index[axis] < shape[axis] {
                break;
            }
            index[axis] = 0;
        }
    }
}

/// Replaces every line along an axis: `f` gets the lines of all inputs and writes the first.
pub(crate) fn along(axis: usize, inputs: &[&Array], f: impl Fn(&mut [Vec<f64>])) -> Vec<Array> {
    let shape = inputs[0].shape.clone();
    let inner: usize = shape[axis + 1..].iter().product();
    let (n, outer) = (shape[axis], shape[..axis].iter().product::<usize>());
    let mut out = vec![0.0; shape.elements()];
    for o in 0..outer {
        for i in 0..inner {
            let place = |k: usize| (o * n + k) * inner + i;
            let mut lines: Vec<Vec<f64>> =
                inputs.iter().map(|a| (0..n).map(|k| a.data[place(k)]).collect()).collect();
            f(&mut lines);
            (0..n).for_each(|k| out[place(k)] = lines[0][k]);
        }
    }
    vec![Array::new(shape, out)]
}

/// Rounds a value to what the element type can hold, floats excepted: the reference keeps those in f64.
pub(crate) fn settle(value: f64, dtype: DType) -> f64 {
    match (dtype, dtype.range()) {
        (DType::I64 | DType::I32, _) => value.trunc(),
        (_, Some((low, high))) => value.trunc().clamp(low as f64, high as f64),
        (DType::Bool, _) => f64::from(value != 0.0),
        _ => value,
    }
}

/// Runs a graph on the given inputs (in the graph's input order) and returns its outputs.
///
/// ```
/// use plimsoll_graph::{DType, TensorOps, Trace, Type, reference::{Array, interpret}};
/// let trace = Trace::new();
/// let x = trace.input("x", Type::new(DType::F32, [2]));
/// let graph = trace.finish(&[&x.mul(&x)?])?;
/// let y = interpret(&graph, &[Array::new([2], vec![3.0, 4.0])]);
/// assert_eq!(y[0].data, [9.0, 16.0]);
/// # Ok::<(), plimsoll_graph::Error>(())
/// ```
pub fn interpret(graph: &Graph, inputs: &[Array]) -> Vec<Array> {
    let mut values: Vec<Option<Array>> = vec![None; graph.values().len()];
    for (&id, array) in graph.inputs().iter().zip(inputs) {
        values[id.index()] = Some(array.clone());
    }
    for node in graph.nodes() {
        let ins: Vec<&Array> = node.inputs.iter().filter_map(|v| values[v.index()].as_ref()).collect();
        let types: Vec<Type> = node.outputs.iter().map(|&v| graph.ty(v).clone()).collect();
        let outs = node.op.reference(&ins, &types);
        for ((&id, mut array), ty) in node.outputs.iter().zip(outs).zip(&types) {
            debug_assert_eq!(array.shape, ty.shape, "{}", node.op);
            array.data.iter_mut().for_each(|x| *x = settle(*x, ty.dtype));
            values[id.index()] = Some(array);
        }
    }
    graph.outputs().iter().filter_map(|v| values[v.index()].clone()).collect()
}
