//! Softmax and its logarithm along one axis.

use plimsoll_device::backend::Call;
use plimsoll_graph::ops::{LogSoftmax, LogSoftmaxGrad, Softmax, SoftmaxGrad};

use super::Kernel;
use super::layout::around;
use crate::Cuda;
use crate::error::Error;
use crate::launch::{Args, Code, Grid};

const TEXT: &str = include_str!("softmax.cu");

unsafe fn run(cuda: &Cuda, call: &Call<'_>, axis: usize, kernel: &str) -> Result<(), Error> {
    let (x, y) = (call.inputs[0], call.outputs[0]);
    if x.ty.elements() == 0 {
        return Ok(());
    }
    let (length, (outer, inner)) = (x.ty.shape[axis], around(x.ty, axis));
    let dy = call.inputs.get(1).map_or(std::ptr::null_mut(), |dy| dy.ptr);
    let args = Args::new().at(x.ptr).at(dy).at(y.ptr).int(length).int(inner);
    let code = Code::of("softmax", TEXT, x.ty.dtype);
    // SAFETY: the caller's promise.
    unsafe { cuda.launch(&code, kernel, Grid::rows(outer * inner, length), &args) }
}

macro_rules! along_a_line {
    ($($op:ty, $kernel:literal;)+) => { $(
        impl Kernel for $op {
            unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
                // SAFETY: the caller's promise.
                unsafe { run(cuda, call, self.axis, $kernel) }
            }
        }
    )+ };
}
along_a_line! {
    Softmax, "softmax";
    LogSoftmax, "log_softmax";
    SoftmaxGrad, "softmax_grad";
    LogSoftmaxGrad, "log_softmax_grad";
}
