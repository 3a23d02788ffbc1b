//! Gather, take-along and one-hot: elements moved by index, as bytes. Sums by index are in [`scatter`].
//!
//! Indices are checked before anything is written.

use half::{bf16, f16};
use plimsoll_device::backend::{Call, Fault};
use plimsoll_graph::ops::{Gather, OneHot, TakeAlong};
use plimsoll_graph::{DType, Shape};

use super::Kernel;
use super::lanes::{Place, rows_per_task};
use crate::Cpu;

mod scatter;

/// Elements a task.
const TASK: usize = 16384;

/// Indices of either integer type, all in range.
#[derive(Clone, Copy)]
pub(crate) struct Indices {
    at: Place<u8>,
    wide: bool,
}

impl Indices {
    /// The indices of an input, or the fault that names the first that is not below `limit`.
    ///
    /// # Safety
    /// The input must be live memory of this machine that holds i64 or i32, unwritten while the result is used.
    pub(crate) unsafe fn checked(
        call: &Call<'_>,
        input: usize,
        limit: usize,
        what: &str,
    ) -> Result<Indices, Fault> {
        let operand = &call.inputs[input];
        let wide = operand.ty.dtype == DType::I64;
        let bad = |(_, index): &(usize, i64)| *index < 0 || *index as u64 >= limit as u64;
        let found = if wide {
            // SAFETY: the caller's promise.
            unsafe { operand.slice::<i64>() }.iter().copied().enumerate().find(bad)
        } else {
            // SAFETY: the caller's promise.
            unsafe { operand.slice::<i32>() }.iter().map(|&i| i64::from(i)).enumerate().find(bad)
        };
        match found {
            Some((position, index)) => {
                let why = format!("{what} {index} at position {position} is out of range 0..{limit}");
                Err(Fault::new(call.op.name(), why))
            }
            None => Ok(Indices { at: Place::new(operand.ptr), wide }),
        }
    }

    /// Index `i`, which must exist.
    ///
    /// # Safety
    /// `i` must be below the number of indices.
    #[inline(always)]
    pub(crate) unsafe fn at(self, i: usize) -> usize {
        // SAFETY: the caller's promise.
        unsafe {
            if self.wide {
                self.at.at(i * 8).cast::<i64>().read() as usize
            } else {
                self.at.at(i * 4).cast::<i32>().read() as usize
            }
        }
    }
}

/// Elements before, along and after an axis.
pub(crate) fn around(shape: &Shape, axis: usize) -> (usize, usize, usize) {
    (shape[..axis].iter().product(), shape[axis], shape[axis + 1..].iter().product())
}

/// Runs a body with `$t` naming an integer type as wide as the elements: for ops that only move them.
macro_rules! for_width {
    ($bytes:expr, $t:ident => $body:expr) => {
        match $bytes {
            1 => {
                type $t = u8;
                $body
            }
            2 => {
                type $t = u16;
                $body
            }
            4 => {
                type $t = u32;
                $body
            }
            _ => {
                type $t = u64;
                $body
            }
        }
    };
}
pub(crate) use for_width;

impl Kernel for Gather {
    unsafe fn run(&self, cpu: &Cpu, call: &Call<'_>) -> Result<(), Fault> {
        let (outer, length, inner) = around(&call.inputs[0].ty.shape, self.axis);
        // SAFETY: the indices are live.
        let indices = unsafe { Indices::checked(call, 1, length, "index") }?;
        let n = call.inputs[1].ty.elements();
        for_width!(call.inputs[0].ty.dtype.bytes(), T => {
            let (x, y) = (Place::<T>::new(call.inputs[0].ptr), Place::<T>::new(call.outputs[0].ptr));
            let step = rows_per_task(inner, TASK);
            cpu.pool().run((outer * n).div_ceil(step), |task| {
                for row in task * step..(task * step + step).min(outer * n) {
                    // SAFETY: row / n < outer, and indices are below the length; tasks write disjoint rows.
                    unsafe {
                        let from = row / n * length + indices.at(row % n);
                        if inner == 1 {
                            y.at(row).write(x.at(from).read());
                        } else {
                            x.at(from * inner).copy_to_nonoverlapping(y.at(row * inner), inner);
                        }
                    }
                }
            });
        });
        Ok(())
    }
}

impl Kernel for TakeAlong {
    unsafe fn run(&self, cpu: &Cpu, call: &Call<'_>) -> Result<(), Fault> {
        let (outer, length, inner) = around(&call.inputs[0].ty.shape, self.axis);
        // SAFETY: the indices are live.
        let indices = unsafe { Indices::checked(call, 1, length, "index") }?;
        let n = call.outputs[0].ty.shape[self.axis];
        for_width!(call.inputs[0].ty.dtype.bytes(), T => {
            let (x, y) = (Place::<T>::new(call.inputs[0].ptr), Place::<T>::new(call.outputs[0].ptr));
            let step = rows_per_task(inner, TASK);
            cpu.pool().run((outer * n).div_ceil(step), |task| {
                for row in task * step..(task * step + step).min(outer * n) {
                    let o = row / n;
                    for i in 0..inner {
                        // SAFETY: o < outer, indices are below the length, i < inner; tasks write disjoint rows.
                        unsafe {
                            let k = indices.at(row * inner + i);
                            y.at(row * inner + i).write(x.at((o * length + k) * inner + i).read());
                        }
                    }
                }
            });
        });
        Ok(())
    }
}

/// The bytes of 1 in an element type.
fn one(dtype: DType) -> [u8; 8] {
    let mut bytes = [0; 8];
    match dtype {
        DType::F32 => bytes[..4].copy_from_slice(&1f32.to_ne_bytes()),
        DType::F64 => bytes.copy_from_slice(&1f64.to_ne_bytes()),
        DType::BF16 => bytes[..2].copy_from_slice(&bf16::ONE.to_ne_bytes()),
        DType::F16 => bytes[..2].copy_from_slice(&f16::ONE.to_ne_bytes()),
        DType::I64 => bytes.copy_from_slice(&1i64.to_ne_bytes()),
        DType::I32 => bytes[..4].copy_from_slice(&1i32.to_ne_bytes()),
        DType::U32 => bytes[..4].copy_from_slice(&1u32.to_ne_bytes()),
        DType::I16 | DType::U16 => bytes[..2].copy_from_slice(&1u16.to_ne_bytes()),
        DType::I8 | DType::U8 | DType::Bool => bytes[0] = 1,
    }
    bytes
}

impl Kernel for OneHot {
    unsafe fn run(&self, cpu: &Cpu, call: &Call<'_>) -> Result<(), Fault> {
        // SAFETY: the indices are live.
        let indices = unsafe { Indices::checked(call, 0, self.depth, "index") }?;
        let (n, size, one) = (call.inputs[0].ty.elements(), self.dtype.bytes(), one(self.dtype));
        let y = Place::<u8>::new(call.outputs[0].ptr);
        let (row, step) = (self.depth * size, rows_per_task(self.depth, TASK));
        cpu.pool().run(n.div_ceil(step), |task| {
            let (first, last) = (task * step, (task * step + step).min(n));
            // SAFETY: rows first..last of the output belong to this task, and indices are below the depth.
            unsafe {
                y.at(first * row).write_bytes(0, (last - first) * row);
                for i in first..last {
                    let place = y.at(i * row + indices.at(i) * size);
                    one.as_ptr().copy_to_nonoverlapping(place, size);
                }
            }
        });
        Ok(())
    }
}
