//! A linear layer with cross-entropy on a card: losses, gradients, or both at once, from logits that are never all there.
//!
//! Which pieces there are is a matter of types alone ([`Samples::takes`]), so that losses and gradients have the same bits apart and together.

mod by_classes;
mod by_samples;

use std::ptr::null_mut;

use plimsoll_device::backend::Call;
use plimsoll_graph::ops::{
    JointCrossEntropy, LinearCrossEntropy, LinearCrossEntropyDims, LinearCrossEntropyGrad,
};
use plimsoll_graph::{DType, Scalar, Type};

use self::by_classes::Pieces;
use self::by_samples::Samples;
use super::{Kernel, padded};
use crate::Cuda;
use crate::error::Error;

/// An address that only alignment is read of.
const ANY: *mut u8 = 4096 as *mut u8;

/// The sizes of a call of these types.
fn dims_of(types: &[&Type]) -> Result<LinearCrossEntropyDims, Error> {
    let wrong = |why| Error::Library { library: "the CUDA backend", call: "linear_cross_entropy", why };
    LinearCrossEntropyDims::new(types[0], types[1], types[2]).map_err(wrong)
}

/// What kernels are told of a call beside its pieces. What is not wanted has no address.
struct Told {
    labels: *mut u8,
    labels_type: DType,
    loss: *mut u8,
    lse: *mut u8,
    dloss: *mut u8,
    dx: *mut u8,
    dw: *mut u8,
    cap: Option<Scalar>,
}

impl Told {
    /// The labels of a call, and nothing else.
    fn new(call: &Call<'_>, cap: Option<Scalar>) -> Told {
        let labels = &call.inputs[2];
        let labels_type = if labels.ty.dtype == DType::I32 { DType::I32 } else { DType::I64 };
        let [loss, lse, dloss, dx, dw] = [null_mut(); 5];
        Told { labels: labels.ptr, labels_type, loss, lse, dloss, dx, dw, cap }
    }

    fn cap_or_one(&self) -> f64 {
        self.cap.map_or(1.0, |Scalar(cap)| cap)
    }

    /// dx and dw, where they have an address.
    fn outputs(&self) -> [Option<*mut u8>; 2] {
        [self.dx, self.dw].map(|at| (!at.is_null()).then_some(at))
    }
}

fn types_of<'a>(call: &Call<'a>) -> Vec<&'a Type> {
    call.inputs.iter().map(|x| x.ty).collect()
}

/// The layer and the samples of a call.
fn operands_of(call: &Call<'_>) -> [*mut u8; 2] {
    [call.inputs[0].ptr, call.inputs[1].ptr]
}

impl Kernel for LinearCrossEntropy {
    fn scratch(&self, cuda: &Cuda, inputs: &[&Type], _: &[&Type]) -> Result<usize, Error> {
        if Samples::takes(inputs) {
            return Ok(Samples::new(inputs, [ANY; 2], ANY)?.bytes(cuda));
        }
        Ok(Pieces::new(inputs, [ANY; 2], ANY, None)?.bytes(cuda))
    }

    unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
        let (types, at) = (types_of(call), operands_of(call));
        let told = Told { loss: call.outputs[0].ptr, lse: call.outputs[1].ptr, ..Told::new(call, self.cap) };
        if dims_of(&types)?.rows == 0 {
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe {
            match Samples::takes(&types) {
                true => Samples::new(&types, at, call.scratch)?.run(cuda, call, &told),
                false => {
                    Pieces::new(&types, at, call.scratch, None)?.run(cuda, call, call.scratch_bytes, &told)
                }
            }
        }
    }
}

impl Kernel for LinearCrossEntropyGrad {
    fn scratch(&self, cuda: &Cuda, inputs: &[&Type], _: &[&Type]) -> Result<usize, Error> {
        if self.dw && Samples::takes(inputs) {
            return Ok(Samples::new(inputs, [ANY; 2], ANY)?.bytes(cuda));
        }
        let outputs = [self.dx.then_some(ANY), self.dw.then_some(ANY)];
        Ok(Pieces::new(inputs, [ANY; 2], ANY, Some(outputs))?.bytes(cuda))
    }

    unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
        let (types, at) = (types_of(call), operands_of(call));
        let mut outputs = call.outputs.iter().map(|y| y.ptr);
        let mut told =
            Told { lse: call.inputs[3].ptr, dloss: call.inputs[4].ptr, ..Told::new(call, self.cap) };
        told.dx = if self.dx { outputs.next() } else { None }.unwrap_or(null_mut());
        told.dw = if self.dw { outputs.next() } else { None }.unwrap_or(null_mut());
        // SAFETY: the caller's promise.
        unsafe {
            match self.dw && Samples::takes(&types) {
                true => Samples::new(&types, at, call.scratch)?.run(cuda, call, &told),
                false => {
                    let pieces = Pieces::new(&types, at, call.scratch, Some(told.outputs()))?;
                    pieces.run(cuda, call, call.scratch_bytes, &told)
                }
            }
        }
    }
}

/// Bytes of the log-sums of a call of these types, where nobody else keeps them.
fn lse_bytes(types: &[&Type]) -> Result<usize, Error> {
    Ok(padded(dims_of(types)?.rows * types[0].dtype.accumulator().bytes()))
}

impl Kernel for JointCrossEntropy {
    fn scratch(&self, cuda: &Cuda, inputs: &[&Type], _: &[&Type]) -> Result<usize, Error> {
        if Samples::takes(inputs) {
            return Ok(Samples::new(inputs, [ANY; 2], ANY)?.bytes(cuda));
        }
        let losses = Pieces::new(inputs, [ANY; 2], ANY, None)?.bytes(cuda);
        let outputs = [self.dx.then_some(ANY), Some(ANY)];
        let gradients = Pieces::new(inputs, [ANY; 2], ANY, Some(outputs))?.bytes(cuda);
        Ok(lse_bytes(inputs)? + losses.max(gradients))
    }

    unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
        let (types, at) = (types_of(call), operands_of(call));
        let told = Told {
            loss: call.outputs[0].ptr,
            dloss: call.inputs[3].ptr,
            dx: if self.dx { call.outputs[1].ptr } else { null_mut() },
            dw: call.outputs[1 + usize::from(self.dx)].ptr,
            ..Told::new(call, self.cap)
        };
        if Samples::takes(&types) {
            // SAFETY: the caller's promise.
            return unsafe { Samples::new(&types, at, call.scratch)?.run(cuda, call, &told) };
        }
        let (told, before) = (Told { lse: call.scratch, ..told }, lse_bytes(&types)?);
        let (scratch, bytes) = (call.scratch.wrapping_add(before), call.scratch_bytes.saturating_sub(before));
        // SAFETY: the caller's promise; the losses' scratch is done with when the gradients begin.
        unsafe {
            if dims_of(&types)?.rows > 0 {
                Pieces::new(&types, at, scratch, None)?.run(cuda, call, bytes, &told)?;
            }
            Pieces::new(&types, at, scratch, Some(told.outputs()))?.run(cuda, call, bytes, &told)
        }
    }
}
