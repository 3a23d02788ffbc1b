//! Ops that make or move elements without computing: every one is a fill or a strided copy.

use half::{bf16, f16};
use plimsoll_device::backend::{Call, Fault, Operand};
use plimsoll_graph::{DType, ops};

use super::Kernel;
use super::strided::{Axes, Axis, copy};
use crate::Cpu;
use crate::gemm::Shared;
use crate::simd::Float32;

/// Elements that make a task worth waking a thread for.
const TASK: usize = 32 * 1024;

/// The bytes of a number in an element type.
fn element(value: f64, dtype: DType) -> ([u8; 8], usize) {
    let mut bytes = [0; 8];
    let n = dtype.bytes();
    match dtype {
        DType::F32 => bytes[..n].copy_from_slice(&(value as f32).to_ne_bytes()),
        DType::F64 => bytes[..n].copy_from_slice(&value.to_ne_bytes()),
        DType::BF16 => bytes[..n].copy_from_slice(&<bf16 as Float32>::narrow(value as f32).to_ne_bytes()),
        DType::F16 => bytes[..n].copy_from_slice(&<f16 as Float32>::narrow(value as f32).to_ne_bytes()),
        DType::I64 => bytes[..n].copy_from_slice(&(value as i64).to_ne_bytes()),
        DType::I32 => bytes[..n].copy_from_slice(&(value as i32).to_ne_bytes()),
        DType::I16 => bytes[..n].copy_from_slice(&(value as i16).to_ne_bytes()),
        DType::I8 => bytes[..n].copy_from_slice(&(value as i8).to_ne_bytes()),
        DType::U32 => bytes[..n].copy_from_slice(&(value as u32).to_ne_bytes()),
        DType::U16 => bytes[..n].copy_from_slice(&(value as u16).to_ne_bytes()),
        DType::U8 => bytes[0] = value as u8,
        DType::Bool => bytes[0] = u8::from(value != 0.0),
    }
    (bytes, n)
}

/// Sets every element of an operand.
///
/// # Safety
/// The operand's memory can be written, and by nobody else.
unsafe fn fill(cpu: &Cpu, to: &Operand<'_>, value: f64) {
    let (bytes, size) = element(value, to.ty.dtype);
    let axes = [Axis { length: to.ty.elements(), from: 0, to: 1 }];
    // SAFETY: the caller's promise; the one element lies on the stack.
    unsafe { copy(cpu.pool(), size, &axes, bytes.as_ptr(), to.ptr) };
}

impl Kernel for ops::Full {
    unsafe fn run(&self, cpu: &Cpu, call: &Call<'_>) -> Result<(), Fault> {
        // SAFETY: the caller's promise, passed on.
        unsafe { fill(cpu, &call.outputs[0], self.value.0) };
        Ok(())
    }
}

impl Kernel for ops::Iota {
    unsafe fn run(&self, cpu: &Cpu, call: &Call<'_>) -> Result<(), Fault> {
        let (ty, to) = (call.outputs[0].ty, Shared(call.outputs[0].ptr));
        let (length, inner) = (ty.shape[self.axis], ty.shape[self.axis + 1..].iter().product::<usize>());
        let n = ty.elements();
        cpu.pool().run(n.div_ceil(TASK), |task| {
            for i in task * TASK..((task + 1) * TASK).min(n) {
                let (bytes, size) = element((i / inner % length) as f64, ty.dtype);
                // SAFETY: element i belongs to this task.
                unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.get().add(i * size), size) };
            }
        });
        Ok(())
    }
}

impl Kernel for ops::Broadcast {
    unsafe fn run(&self, cpu: &Cpu, call: &Call<'_>) -> Result<(), Fault> {
        let (x, y) = (&call.inputs[0], &call.outputs[0]);
        let (from, to) = (x.ty.shape.strides(), y.ty.shape.strides());
        let missing = y.ty.shape.rank() - x.ty.shape.rank();
        let axis = |i: usize| {
            let is_repeated = i < missing || x.ty.shape[i - missing] == 1;
            Axis { length: y.ty.shape[i], from: if is_repeated { 0 } else { from[i - missing] }, to: to[i] }
        };
        let axes: Axes = (0..y.ty.shape.rank()).map(axis).collect();
        // SAFETY: the strides stay inside both operands.
        unsafe { copy(cpu.pool(), x.ty.dtype.bytes(), &axes, x.ptr, y.ptr) };
        Ok(())
    }
}

/// Copies the bytes of x to y, where they are not there already: what a view is when somebody wants it run.
unsafe fn same_bytes(cpu: &Cpu, call: &Call<'_>) {
    let (x, y) = (&call.inputs[0], &call.outputs[0]);
    if x.ptr != y.ptr {
        let axes = [Axis { length: x.ty.elements(), from: 1, to: 1 }];
        // SAFETY: both have the same elements.
        unsafe { copy(cpu.pool(), x.ty.dtype.bytes(), &axes, x.ptr, y.ptr) };
    }
}

macro_rules! views {
    ($( $op:ident, )+) => { $(
        impl Kernel for ops::$op {
            unsafe fn run(&self, cpu: &Cpu, call: &Call<'_>) -> Result<(), Fault> {
                // SAFETY: the caller's promise.
                unsafe { same_bytes(cpu, call) };
                Ok(())
            }
        }
    )+ };
}
views! { Reshape, StopGradient, OwnGradient, }

impl Kernel for ops::Transpose {
    unsafe fn run(&self, cpu: &Cpu, call: &Call<'_>) -> Result<(), Fault> {
        let (x, y) = (&call.inputs[0], &call.outputs[0]);
        let (from, to) = (x.ty.shape.strides(), y.ty.shape.strides());
        let axis =
            |(i, &source): (usize, &usize)| Axis { length: y.ty.shape[i], from: from[source], to: to[i] };
        let axes: Axes = self.0.iter().enumerate().map(axis).collect();
        // SAFETY: the strides stay inside both operands.
        unsafe { copy(cpu.pool(), x.ty.dtype.bytes(), &axes, x.ptr, y.ptr) };
        Ok(())
    }
}

impl Kernel for ops::Slice {
    unsafe fn run(&self, cpu: &Cpu, call: &Call<'_>) -> Result<(), Fault> {
        let (x, y) = (&call.inputs[0], &call.outputs[0]);
        if y.ty.elements() == 0 {
            return Ok(());
        }
        let (from, to) = (x.ty.shape.strides(), y.ty.shape.strides());
        let axis =
            |(i, r): (usize, &ops::SliceAxis)| Axis { length: r.length(), from: from[i] * r.step, to: to[i] };
        let axes: Axes = self.0.iter().enumerate().map(axis).collect();
        let start: usize = self.0.iter().zip(&from).map(|(r, stride)| r.start * stride).sum();
        let size = x.ty.dtype.bytes();
        // SAFETY: the ranges lie inside x, as its shape rule saw.
        unsafe { copy(cpu.pool(), size, &axes, x.ptr.add(start * size), y.ptr) };
        Ok(())
    }
}

impl Kernel for ops::Pad {
    unsafe fn run(&self, cpu: &Cpu, call: &Call<'_>) -> Result<(), Fault> {
        let (x, y) = (&call.inputs[0], &call.outputs[0]);
        // SAFETY: the caller's promise, passed on.
        unsafe { fill(cpu, y, self.value.0) };
        if x.ty.elements() == 0 {
            return Ok(());
        }
        let (from, to) = (x.ty.shape.strides(), y.ty.shape.strides());
        let axis = |(i, p): (usize, &ops::PadAxis)| Axis {
            length: x.ty.shape[i],
            from: from[i],
            to: to[i] * (p.inner + 1),
        };
        let axes: Axes = self.axes.iter().enumerate().map(axis).collect();
        let start: usize = self.axes.iter().zip(&to).map(|(p, stride)| p.low * stride).sum();
        let size = x.ty.dtype.bytes();
        // SAFETY: the places of x lie inside y, as its shape rule saw.
        unsafe { copy(cpu.pool(), size, &axes, x.ptr, y.ptr.add(start * size)) };
        Ok(())
    }
}

/// The whole as rows of `length · inner` elements, of which a piece has `piece · inner`.
fn piece_axes(rows: usize, piece: usize, length: usize, inner: usize, joins: bool) -> [Axis; 2] {
    let (small, large) = (piece * inner, length * inner);
    let (from, to) = if joins { (small, large) } else { (large, small) };
    [Axis { length: rows, from, to }, Axis { length: small, from: 1, to: 1 }]
}

/// Copies all pieces of an axis to or from the whole.
///
/// # Safety
/// The pieces add up to the whole along the axis, and share no memory with it.
unsafe fn pieces(cpu: &Cpu, axis: usize, parts: &[Operand<'_>], whole: &Operand<'_>, joins: bool) {
    let shape = &whole.ty.shape;
    let (rows, inner) = (shape[..axis].iter().product(), shape[axis + 1..].iter().product::<usize>());
    let size = whole.ty.dtype.bytes();
    let mut start = 0;
    for part in parts {
        let n = part.ty.shape[axis];
        let axes = piece_axes(rows, n, shape[axis], inner, joins);
        let place = whole.ptr.wrapping_add(start * inner * size);
        // SAFETY: the caller's promise.
        unsafe {
            if joins {
                copy(cpu.pool(), size, &axes, part.ptr, place);
            } else {
                copy(cpu.pool(), size, &axes, place, part.ptr);
            }
        }
        start += n;
    }
}

impl Kernel for ops::Concat {
    unsafe fn run(&self, cpu: &Cpu, call: &Call<'_>) -> Result<(), Fault> {
        // SAFETY: the shape rule saw that the pieces fit.
        unsafe { pieces(cpu, self.axis, call.inputs, &call.outputs[0], true) };
        Ok(())
    }
}

impl Kernel for ops::Split {
    unsafe fn run(&self, cpu: &Cpu, call: &Call<'_>) -> Result<(), Fault> {
        // SAFETY: the shape rule saw that the pieces fit.
        unsafe { pieces(cpu, self.axis, call.outputs, &call.inputs[0], false) };
        Ok(())
    }
}
