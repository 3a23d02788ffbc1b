//! Writing by index: a copy, then row after row in the order of the indices, so that the last of equals stays.

use plimsoll_device::backend::{Call, Fault};
use plimsoll_graph::ops::IndexPut;

use super::Kernel;
use super::gather::{Indices, around, for_width};
use super::lanes::Place;
use crate::Cpu;

/// Elements a task copies.
const TASK: usize = 64 * 1024;
/// Neighbouring elements of rows that a task puts.
const WIDTH: usize = 256;

impl Kernel for IndexPut {
    unsafe fn run(&self, cpu: &Cpu, call: &Call<'_>) -> Result<(), Fault> {
        let (outer, length, inner) = around(&call.inputs[0].ty.shape, self.axis);
        // SAFETY: the indices are live.
        let indices = unsafe { Indices::checked(call, 2, length, "index") }?;
        let (n, elements) = (call.inputs[2].ty.elements(), call.inputs[0].ty.elements());
        for_width!(call.inputs[0].ty.dtype.bytes(), T => {
            let (x, y) = (Place::<T>::new(call.inputs[0].ptr), Place::<T>::new(call.outputs[0].ptr));
            let values = Place::<T>::new(call.inputs[1].ptr);
            if call.inputs[0].ptr != call.outputs[0].ptr {
                cpu.pool().run(elements.div_ceil(TASK), |task| {
                    let first = task * TASK;
                    // SAFETY: the part lies inside of both, which are not one; tasks copy disjoint parts.
                    unsafe { x.at(first).copy_to_nonoverlapping(y.at(first), TASK.min(elements - first)) };
                });
            }
            let blocks = inner.div_ceil(WIDTH);
            cpu.pool().run(outer * blocks, |task| {
                let (o, c) = (task / blocks, task % blocks * WIDTH);
                let width = WIDTH.min(inner - c);
                for i in 0..n {
                    // SAFETY: indices are below the length, c + width ≤ inner; the columns are this task's.
                    unsafe {
                        let to = y.at((o * length + indices.at(i)) * inner + c);
                        values.at((o * n + i) * inner + c).copy_to_nonoverlapping(to, width);
                    }
                }
            });
        });
        Ok(())
    }
}
