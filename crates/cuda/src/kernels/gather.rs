//! Picking by index and adding back by index.

use std::ptr::null_mut;

use plimsoll_device::backend::{Call, Operand};
use plimsoll_graph::ops::{Gather, OneHot, PutAlongAdd, ScatterAdd, ScatterAddTo, TakeAlong};
use plimsoll_graph::{DType, Op, Type};

use super::layout::around;
use super::{Kernel, Parts, padded};
use crate::Cuda;
use crate::error::Error;
use crate::launch::{Args, Code, Grid};
use crate::memory::refusal_code;

const TEXT: &str = include_str!("gather.cu");

/// The sizes of a call: `[outer, length or indices, inner]`.
#[derive(Clone, Copy)]
struct Sizes {
    outer: usize,
    length: usize,
    indices: usize,
    inner: usize,
}

/// How many outputs may each look at all indices: those of a metric's counts, say.
const FEW: usize = 1 << 12;
/// From so many indices on, sums are taken in parts.
const MANY: usize = 1 << 11;
/// Indices of a part of a long list.
const SEGMENT: usize = 256;

impl Sizes {
    fn outputs(self) -> usize {
        self.outer * self.length * self.inner
    }

    /// Into slices of how many indices they are divided where every output looks at all of them; none where they are too many for
    /// that.
    fn slice(self) -> Option<usize> {
        let few = self.length * self.inner <= FEW && self.outputs() <= 16 * FEW;
        (few && self.indices >= MANY).then(|| self.indices.isqrt().max(64))
    }

    /// Parts of lists that are summed by themselves, in case a list has many.
    fn segments(self) -> usize {
        if self.indices >= MANY { self.indices / SEGMENT } else { 0 }
    }
}

fn args(cuda: &Cuda, call: &Call<'_>, at: [*mut u8; 6], s: Sizes) -> Args {
    let Sizes { outer, length, indices, inner } = s;
    at.into_iter()
        .fold(Args::new(), Args::at)
        .int(outer)
        .int(length)
        .int(indices)
        .int(inner)
        .at(cuda.0.flag)
        .int(refusal_code(call.op.name()))
        .int(usize::from(indices <= PLACED))
        .int(s.slice().unwrap_or(1))
        .int(s.segments())
        .int(SEGMENT)
        .int(usize::from(matches!(call.op, Op::ScatterAddTo(_))))
}

/// Up to so many indices, their places in lists are found by comparing all pairs.
const PLACED: usize = 1 << 14;

fn code(ty: DType, index: DType) -> Code<'static> {
    Code::of("gather", TEXT, ty).with_type("I", index).with("N", 1)
}

/// The source for rows of `inner` elements, and how many elements a thread moves.
fn row_code(x: &Operand<'_>, y: &Operand<'_>, index: DType, inner: usize) -> (Code<'static>, usize) {
    let aligned = (x.ptr as usize | y.ptr as usize).is_multiple_of(16);
    let most = 16 / x.ty.dtype.bytes();
    let together = if aligned && inner.is_multiple_of(most) { most } else { 1 };
    (Code::of("gather", TEXT, x.ty.dtype).with_type("I", index).with("N", together), together)
}

impl Kernel for Gather {
    unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
        let (x, index, y) = (call.inputs[0], call.inputs[1], call.outputs[0]);
        let (outer, inner) = around(x.ty, self.axis);
        let s = Sizes { outer, length: x.ty.shape[self.axis], indices: index.ty.elements(), inner };
        let n = y.ty.elements();
        if n == 0 {
            return Ok(());
        }
        let args = args(cuda, call, [x.ptr, index.ptr, y.ptr, null_mut(), null_mut(), null_mut()], s);
        let (code, together) = row_code(&x, &y, index.ty.dtype, inner);
        // SAFETY: the caller's promise.
        unsafe { cuda.launch(&code, "gather", Grid::each(n / together), &args) }
    }
}

impl Kernel for OneHot {
    unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
        let (index, y) = (call.inputs[0], call.outputs[0]);
        let s = Sizes { outer: 1, length: self.depth, indices: index.ty.elements(), inner: 1 };
        let n = y.ty.elements();
        if n == 0 {
            return Ok(());
        }
        let args = args(cuda, call, [null_mut(), index.ptr, y.ptr, null_mut(), null_mut(), null_mut()], s);
        // SAFETY: the caller's promise.
        unsafe { cuda.launch(&code(y.ty.dtype, index.ty.dtype), "one_hot", Grid::each(n), &args) }
    }
}

impl Kernel for TakeAlong {
    unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
        let (x, index, y) = (call.inputs[0], call.inputs[1], call.outputs[0]);
        let (outer, inner) = around(x.ty, self.axis);
        let (length, indices) = (x.ty.shape[self.axis], index.ty.shape[self.axis]);
        let n = y.ty.elements();
        if n == 0 {
            return Ok(());
        }
        let s = Sizes { outer, length, indices, inner };
        let args = args(cuda, call, [x.ptr, index.ptr, y.ptr, null_mut(), null_mut(), null_mut()], s);
        // SAFETY: the caller's promise.
        unsafe { cuda.launch(&code(x.ty.dtype, index.ty.dtype), "take_along", Grid::each(n), &args) }
    }
}

/// The sizes of adding `x` back by `index`.
fn back(op: &ScatterAdd, x: &Type, index: &Type) -> Sizes {
    let end = op.axis + index.shape.rank();
    let (outer, inner) = (x.shape[..op.axis].iter().product(), x.shape[end..].iter().product());
    Sizes { outer, length: op.length, indices: index.elements(), inner }
}

impl Kernel for ScatterAdd {
    fn scratch(&self, _: &Cuda, inputs: &[&Type], _: &[&Type]) -> Result<usize, Error> {
        let (s, sum) = (back(self, inputs[0], inputs[1]), inputs[0].dtype.accumulator().bytes());
        Ok(match s.slice() {
            Some(slice) => padded(s.outputs() * s.indices.div_ceil(slice) * sum),
            None => {
                let parts = s.outer * s.segments() * s.inner * sum;
                padded(4 * (self.length + 1)) + padded(4 * s.indices) + padded(parts)
            }
        })
    }

    unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
        let (x, index, y) = (call.inputs[0], call.inputs[1], call.outputs[0]);
        let s = back(self, x.ty, index.ty);
        if y.ty.elements() == 0 {
            return Ok(());
        }
        let sum = x.ty.dtype.accumulator().bytes();
        if let Some(slice) = s.slice() {
            let args = args(cuda, call, [x.ptr, index.ptr, y.ptr, null_mut(), null_mut(), call.scratch], s);
            let (code, slices) = (code(x.ty.dtype, index.ty.dtype), s.indices.div_ceil(slice));
            // SAFETY: the caller's promise; the scratch holds a sum for every output and slice.
            return unsafe {
                cuda.launch(&code, "sum_slices", Grid::each(s.outputs() * slices), &args)?;
                cuda.launch(&code, "add_slices", Grid::each(s.outputs()), &args)
            };
        }
        let mut parts = Parts::new(call);
        let count_bytes = 4 * (self.length + 1);
        let (count, list) = (parts.take(count_bytes), parts.take(4 * s.indices));
        let sums = parts.take(s.outer * s.segments() * s.inner * sum);
        let args = args(cuda, call, [x.ptr, index.ptr, y.ptr, count, list, sums], s);
        let (code, together) = row_code(&x, &y, index.ty.dtype, s.inner);
        let threads = (self.length.next_power_of_two() as u32).clamp(32, 1024);
        let scan = Grid { blocks: [1, 1, 1], threads, shared: 0 };
        // SAFETY: the caller's promise; the scratch holds the counts, the lists and the sums of their parts.
        unsafe {
            cuda.zero(count, count_bytes)?;
            cuda.launch(&code, "count_indices", Grid::each(s.indices), &args)?;
            cuda.launch(&code, "scan_counts", scan, &args)?;
            if s.indices <= PLACED {
                let grid = Grid::tiles(s.indices.div_ceil(256).max(1), 1, 1, 256);
                cuda.launch(&code, "place_indices", grid, &args)?;
            } else {
                cuda.launch(&code, "fill_lists", Grid::each(s.indices), &args)?;
                cuda.launch(&code, "sort_short_lists", Grid::each(self.length), &args)?;
                let grid = Grid::tiles(self.length.min(2048), 1, 1, 256);
                cuda.launch(&code, "sort_long_lists", grid, &args)?;
            }
            if s.segments() > 0 {
                let grid = Grid::each(s.outer * s.segments() * (s.inner / together));
                cuda.launch(&code, "sum_segments", grid, &args)?;
            }
            if matches!(call.op, Op::ScatterAddTo(_)) {
                let elements = s.outer * s.indices * s.inner;
                return cuda.launch(&code, "add_lists", Grid::each(elements / together), &args);
            }
            cuda.launch(&code, "sum_lists", Grid::each(y.ty.elements() / together), &args)
        }
    }
}

impl Kernel for ScatterAddTo {
    fn scratch(&self, cuda: &Cuda, inputs: &[&Type], outputs: &[&Type]) -> Result<usize, Error> {
        self.sums.scratch(cuda, &inputs[..2], outputs)
    }

    unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
        let (there, y) = (call.inputs[2], call.outputs[0]);
        // SAFETY: the caller's promise; both have the same type.
        unsafe {
            if there.ptr != y.ptr {
                cuda.copy(y.ptr, there.ptr, y.ty.bytes())?;
            }
            self.sums.run(cuda, call)
        }
    }
}

impl Kernel for PutAlongAdd {
    fn scratch(&self, _: &Cuda, inputs: &[&Type], outputs: &[&Type]) -> Result<usize, Error> {
        Ok(outputs[0].elements() * inputs[0].dtype.accumulator().bytes())
    }

    unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
        let (x, index, y) = (call.inputs[0], call.inputs[1], call.outputs[0]);
        let (outer, inner) = around(x.ty, self.axis);
        let s = Sizes { outer, length: self.length, indices: x.ty.shape[self.axis], inner };
        if y.ty.elements() == 0 {
            return Ok(());
        }
        let args = args(cuda, call, [x.ptr, index.ptr, y.ptr, null_mut(), null_mut(), call.scratch], s);
        let code = code(x.ty.dtype, index.ty.dtype);
        // SAFETY: the caller's promise; the scratch holds a sum for every output.
        unsafe { cuda.launch(&code, "put_along_add", Grid::each(outer * inner), &args) }
    }
}
