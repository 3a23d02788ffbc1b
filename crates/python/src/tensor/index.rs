//! Turns Python's indices, `x[0]`, `x[:, 1:3]`, `x[..., None]`, into a slice and other axes.

use plimsoll::internals::graph::Shape;
use plimsoll::prelude::*;
use pyo3::exceptions::{PyIndexError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyEllipsis, PySlice, PyTuple};

use super::{Tensor, one};

/// One index of `x[…]`: a number, a part, or an axis of length 1 that is put there.
enum Index {
    At(usize),
    Part(usize, usize, usize),
    New,
}

#[pymethods]
impl Tensor {
    /// ``x[0]``, ``x[:, 1:3]``, ``x[::2]``, ``x[..., -1]``, ``x[:, None]``: numbers and parts along axes, ``...`` for all axes that are left, ``None`` for a
    /// new one. Rows by a tensor of indices are ``x.gather``.
    fn __getitem__(&self, py: Python<'_>, index: &Bound<'_, PyAny>) -> PyResult<Tensor> {
        let parts: Vec<Bound<'_, PyAny>> = match index.cast::<PyTuple>() {
            Ok(several) => several.iter().collect(),
            Err(_) => vec![index.clone()],
        };
        let shape = self.0.shape();
        let is_rest = |part: &Bound<'_, PyAny>| part.is_instance_of::<PyEllipsis>();
        let given = parts.iter().filter(|part| !part.is_none() && !is_rest(part)).count();
        if given > shape.rank() {
            return Err(PyIndexError::new_err(format!("{given} indices into a tensor {shape}")));
        }
        if parts.iter().filter(|part| is_rest(part)).count() > 1 {
            return Err(PyIndexError::new_err("... can stand once in an index"));
        }
        let (mut indices, mut axis) = (Vec::new(), 0);
        for part in &parts {
            if part.is_none() {
                indices.push(Index::New);
            } else if is_rest(part) {
                let rest = shape.rank() - given;
                indices.extend(shape[axis..axis + rest].iter().map(|&length| Index::Part(0, length, 1)));
                axis += rest;
            } else {
                indices.push(index_of(part, shape[axis])?);
                axis += 1;
            }
        }
        indices.extend(shape[axis..].iter().map(|&length| Index::Part(0, length, 1)));
        one(py, || {
            let (mut ranges, mut kept) = (Vec::new(), Vec::new());
            for index in &indices {
                let axis = ranges.len();
                match index {
                    Index::At(at) => ranges.push((axis, *at, at + 1, 1)),
                    Index::Part(start, stop, step) => {
                        ranges.push((axis, *start, *stop, *step));
                        kept.push((stop - start).div_ceil(*step));
                    }
                    Index::New => kept.push(1),
                }
            }
            // What is taken whole need not be copied.
            let is_whole = |&(axis, start, stop, step): &(usize, usize, usize, usize)| {
                start == 0 && stop == self.0.shape()[axis] && step == 1
            };
            ranges.retain(|range| !is_whole(range));
            let part = if ranges.is_empty() { self.0.clone() } else { self.0.slice(&ranges)? };
            part.reshape(kept.into_iter().collect::<Shape>())
        })
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
            "an index is a whole number, a part (1:3), ... or None; rows by a tensor of indices are x.gather",
        )
    })?;
    let from_front = if at < 0 { at + length as isize } else { at };
    if !(0..length as isize).contains(&from_front) {
        let why = format!("index {at} is outside of an axis of length {length}");
        return Err(PyIndexError::new_err(why));
    }
    Ok(Index::At(from_front as usize))
}
