//! Relu that keeps one bit an element for its gradient.

use plimsoll_device::backend::Call;
use plimsoll_graph::ops::{ReluMask, ReluMaskGrad};

use super::Kernel;
use crate::Cuda;
use crate::error::Error;
use crate::launch::{Args, Code, Grid};

const TEXT: &str = include_str!("relu.cu");

impl Kernel for ReluMask {
    unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
        let (x, y, mask) = (call.inputs[0], call.outputs[0], call.outputs[1]);
        let n = x.ty.elements();
        let args = Args::new().int(n).at(x.ptr).at(y.ptr).at(mask.ptr);
        let code = Code::of("relu", TEXT, x.ty.dtype);
        // SAFETY: the caller's promise.
        unsafe { cuda.launch(&code, "relu_mask", Grid::each(n.div_ceil(8)), &args) }
    }
}

impl Kernel for ReluMaskGrad {
    unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
        let (mask, dy, dx) = (call.inputs[0], call.inputs[1], call.outputs[0]);
        let n = dy.ty.elements();
        let args = Args::new().int(n).at(dy.ptr).at(dx.ptr).at(mask.ptr);
        let code = Code::of("relu", TEXT, dy.ty.dtype);
        // SAFETY: the caller's promise.
        unsafe { cuda.launch(&code, "relu_mask_grad", Grid::each(n), &args) }
    }
}
