//! Rotary positions: a task turns the heads of some positions.

use plimsoll_device::backend::{Call, Fault};
use plimsoll_graph::ops::{Rotary, RotaryDims};

use super::Kernel;
use super::lanes::{Place, Stored, for_float, rows_per_task};
use crate::Cpu;

/// Elements a task.
const TASK: usize = 16384;

impl Kernel for Rotary {
    unsafe fn run(&self, cpu: &Cpu, call: &Call<'_>) -> Result<(), Fault> {
        let [x, sin, cos] = [0, 1, 2].map(|i| call.inputs[i].ty);
        let dims = RotaryDims::new(x, sin, cos).map_err(|why| Fault::new(call.op.name(), why))?;
        let RotaryDims { positions, period, heads, features, pairs } = dims;
        let step = rows_per_task(heads * features, TASK);
        for_float!(x.dtype, call.op, T => {
            let (x, y) = (Place::<T>::new(call.inputs[0].ptr), Place::<T>::new(call.outputs[0].ptr));
            let (sin, cos) = (Place::<T>::new(call.inputs[1].ptr), Place::<T>::new(call.inputs[2].ptr));
            cpu.pool().run(positions.div_ceil(step), |task| {
                for position in task * step..(task * step + step).min(positions) {
                    let angles = position % period * pairs;
                    for head in position * heads..(position + 1) * heads {
                        let first = head * features;
                        // SAFETY: all elements are inside their operands, and those of a head are this task's alone; both of a pair are read
                        // before they are written.
                        unsafe {
                            for f in 0..pairs {
                                let (a, b) = (x.at(first + f).read().widen(), x.at(first + f + pairs).read().widen());
                                let (s, c) = (sin.at(angles + f).read().widen(), cos.at(angles + f).read().widen());
                                let s = if self.back { -s } else { s };
                                y.at(first + f).write(T::narrow(a * c - b * s));
                                y.at(first + f + pairs).write(T::narrow(b * c + a * s));
                            }
                            for f in 2 * pairs..features {
                                y.at(first + f).write(x.at(first + f).read());
                            }
                        }
                    }
                }
            });
            Ok(())
        })
    }
}
