//! A linear layer with cross-entropy: logits a piece of the vocabulary at a time, in f32 (f64), each made, used and written over.
//!
//! A piece is a product of all samples with some rows of the layer. Forward, each sample's largest logit and sum of exponentials go
//! on from piece to piece. Backward, a piece is made again and becomes its own gradient, from which two more products follow. Where both are
//! one op, pieces are kept where the layer's gradient will be, if they fit there.

mod pieces;
mod rows;

use half::{bf16, f16};
use plimsoll_device::backend::{Call, Fault};
use plimsoll_graph::ops::{
    JointCrossEntropy, LinearCrossEntropy, LinearCrossEntropyDims, LinearCrossEntropyGrad,
};
use plimsoll_graph::{DType, Type};

use self::pieces::{Pieces, Wanted};
pub(super) use self::rows::{Multiply, add_piece, differentiate};
use super::Kernel;
use super::lanes::{Place, for_float, rows_per_task};
use crate::Cpu;

/// Elements a task, as for softmax.
const TASK: usize = 8192;

/// Runs `body(first sample, number of samples)` over all samples.
pub(super) fn over_samples(cpu: &Cpu, samples: usize, classes: usize, body: impl Fn(usize, usize) + Sync) {
    let step = rows_per_task(classes, TASK);
    cpu.pool().run(samples.div_ceil(step), |task| body(task * step, step.min(samples - task * step)));
}

pub(super) fn dims_of(call: &Call<'_>) -> Result<LinearCrossEntropyDims, Fault> {
    let [x, w, labels] = [0, 1, 2].map(|i| call.inputs[i].ty);
    LinearCrossEntropyDims::new(x, w, labels).map_err(|why| Fault::new(call.op.name(), why))
}

fn scratch(cpu: &Cpu, inputs: &[&Type], wanted: Wanted) -> usize {
    let Ok(dims) = LinearCrossEntropyDims::new(inputs[0], inputs[1], inputs[2]) else { return 0 };
    match inputs[0].dtype {
        DType::F64 => Pieces::<f64>::bytes(cpu, dims, wanted),
        DType::BF16 => Pieces::<bf16>::bytes(cpu, dims, wanted),
        DType::F16 => Pieces::<f16>::bytes(cpu, dims, wanted),
        _ => Pieces::<f32>::bytes(cpu, dims, wanted),
    }
}

impl Kernel for LinearCrossEntropy {
    fn scratch(&self, cpu: &Cpu, inputs: &[&Type], _: &[&Type]) -> usize {
        scratch(cpu, inputs, Wanted::losses(self.cap))
    }

    unsafe fn run(&self, cpu: &Cpu, call: &Call<'_>) -> Result<(), Fault> {
        let [loss, lse] = [0, 1].map(|i| call.outputs[i].ptr);
        for_float!(call.inputs[0].ty.dtype, call.op, T => {
            // SAFETY: the caller's promise.
            unsafe {
                let pieces = Pieces::<T>::new(cpu, call, Wanted::losses(self.cap))?;
                pieces.losses(Place::new(loss), Place::new(lse));
            }
            Ok(())
        })
    }
}

impl Kernel for LinearCrossEntropyGrad {
    fn scratch(&self, cpu: &Cpu, inputs: &[&Type], _: &[&Type]) -> usize {
        scratch(cpu, inputs, Wanted::gradients(self))
    }

    unsafe fn run(&self, cpu: &Cpu, call: &Call<'_>) -> Result<(), Fault> {
        let [lse, dloss] = [3, 4].map(|i| call.inputs[i].ptr);
        let mut outputs = call.outputs.iter().map(|y| y.ptr);
        let dx = if self.dx { outputs.next() } else { None };
        let dw = if self.dw { outputs.next() } else { None };
        for_float!(call.inputs[0].ty.dtype, call.op, T => {
            // SAFETY: the caller's promise.
            unsafe {
                let pieces = Pieces::<T>::new(cpu, call, Wanted::gradients(self))?;
                pieces.gradients(Place::new(lse), Place::new(dloss), dx, dw);
            }
            Ok(())
        })
    }
}

impl Kernel for JointCrossEntropy {
    fn scratch(&self, cpu: &Cpu, inputs: &[&Type], _: &[&Type]) -> usize {
        scratch(cpu, inputs, Wanted::both(self))
    }

    unsafe fn run(&self, cpu: &Cpu, call: &Call<'_>) -> Result<(), Fault> {
        let (loss, dloss) = (call.outputs[0].ptr, call.inputs[3].ptr);
        let dx = self.dx.then(|| call.outputs[1].ptr);
        let dw = call.outputs[1 + usize::from(self.dx)].ptr;
        for_float!(call.inputs[0].ty.dtype, call.op, T => {
            // SAFETY: the caller's promise; nothing is in the layer's gradient yet.
            unsafe {
                let pieces = Pieces::<T>::new(cpu, call, Wanted::both(self))?.kept_in(dw);
                let lse = pieces.own_lse();
                pieces.losses(Place::new(loss), lse);
                pieces.gradients(lse, Place::new(dloss), dx, Some(dw));
            }
            Ok(())
        })
    }
}
