//! Relu that keeps one bit an element for its gradient.

use plimsoll_device::backend::{Call, Operand};
use plimsoll_graph::ops::{ReluMask, ReluMaskGrad};

use super::Kernel;
use crate::Cuda;
use crate::error::Error;
use crate::launch::{Args, Code, Grid};

const TEXT: &str = include_str!("relu.cu");

/// The source for elements in eights, or one by one where lengths or addresses do not allow that.
fn code(x: Operand<'_>, y: Operand<'_>, n: usize) -> Code<'static> {
    let aligned = |x: Operand<'_>| (x.ptr as usize).is_multiple_of(16);
    let together = if n.is_multiple_of(8) && aligned(x) && aligned(y) { 8 } else { 1 };
    Code::of("relu", TEXT, x.ty.dtype).with("N", together)
}

impl Kernel for ReluMask {
    unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
        let (x, y, mask) = (call.inputs[0], call.outputs[0], call.outputs[1]);
        let n = x.ty.elements();
        let args = Args::new().int(n).at(x.ptr).at(y.ptr).at(mask.ptr);
        let code = code(x, y, n);
        // SAFETY: the caller's promise.
        unsafe { cuda.launch(&code, "relu_mask", Grid::each(n.div_ceil(8)), &args) }
    }
}

impl Kernel for ReluMaskGrad {
    unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
        let (mask, dy, dx) = (call.inputs[0], call.inputs[1], call.outputs[0]);
        let n = dy.ty.elements();
        let args = Args::new().int(n).at(dy.ptr).at(dx.ptr).at(mask.ptr);
        let code = code(dy, dx, n);
        // SAFETY: the caller's promise.
        unsafe { cuda.launch(&code, "relu_mask_grad", Grid::each(n.div_ceil(8)), &args) }
    }
}
