//! Relu that keeps one bit an element for its gradient.

use plimsoll_device::backend::{Call, Operand};
use plimsoll_graph::ops::{ReluMask, ReluMaskGrad};

use super::Kernel;
use crate::Cuda;
use crate::error::Error;
use crate::launch::{Args, Code, Grid};

const TEXT: &str = include_str!("relu.cu");

/// Runs a kernel from x to y with a mask: on elements in eights, or one by one where lengths or addresses do not allow that.
///
/// # Safety
/// The operands are live, and as the kernel takes them.
unsafe fn launch(
    cuda: &Cuda,
    kernel: &str,
    x: Operand<'_>,
    y: Operand<'_>,
    mask: Operand<'_>,
) -> Result<(), Error> {
    let n = x.ty.elements();
    let aligned = |x: Operand<'_>| (x.ptr as usize).is_multiple_of(16);
    let together = if n.is_multiple_of(8) && aligned(x) && aligned(y) { 8 } else { 1 };
    let code = Code::of("relu", TEXT, x.ty.dtype).with("N", together);
    let args = Args::new().int(n).at(x.ptr).at(y.ptr).at(mask.ptr);
    // SAFETY: the caller's promise.
    unsafe { cuda.launch(&code, kernel, Grid::each(n.div_ceil(8)), &args) }
}

impl Kernel for ReluMask {
    unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { launch(cuda, "relu_mask", call.inputs[0], call.outputs[0], call.outputs[1]) }
    }
}

impl Kernel for ReluMaskGrad {
    unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { launch(cuda, "relu_mask_grad", call.inputs[1], call.outputs[0], call.inputs[0]) }
    }
}
