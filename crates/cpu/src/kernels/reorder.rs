//! Flip and roll: rows of an axis moved whole.

use plimsoll_device::backend::{Call, Fault};
use plimsoll_graph::ops::Reorder;

use super::Kernel;
use super::gather::{around, for_width};
use super::lanes::{Place, rows_per_task};
use crate::Cpu;

/// Elements a task.
const TASK: usize = 32 * 1024;

impl Kernel for Reorder {
    unsafe fn run(&self, cpu: &Cpu, call: &Call<'_>) -> Result<(), Fault> {
        let (outer, n, inner) = around(&call.inputs[0].ty.shape, self.axis);
        for_width!(call.inputs[0].ty.dtype.bytes(), T => {
            let (x, y) = (Place::<T>::new(call.inputs[0].ptr), Place::<T>::new(call.outputs[0].ptr));
            let step = rows_per_task(inner, TASK);
            cpu.pool().run((outer * n).div_ceil(step), |task| {
                for row in task * step..(task * step + step).min(outer * n) {
                    let from = row / n * n + self.source(row % n, n);
                    // SAFETY: both rows are there; tasks write disjoint ones.
                    unsafe { x.at(from * inner).copy_to_nonoverlapping(y.at(row * inner), inner) };
                }
            });
        });
        Ok(())
    }
}
