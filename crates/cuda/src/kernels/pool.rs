//! Pooling over windows of images.

use plimsoll_device::backend::{Call, Operand};
use plimsoll_graph::Type;
use plimsoll_graph::ops::{AvgPool, AvgPoolGrad, MaxPool, MaxPoolGather, MaxPoolGrad};

use super::Kernel;
use crate::Cuda;
use crate::error::Error;
use crate::launch::{Args, Code, Grid};

const TEXT: &str = include_str!("pool.cu");

/// Runs a kernel over images `large` that are pooled to `small` by windows, of a mean or of a maximum.
unsafe fn run(
    cuda: &Cuda,
    kernel: &str,
    windows: AvgPool,
    (large, small): (&Type, &Type),
    from: &Operand<'_>,
    index: *mut u8,
    to: &Operand<'_>,
) -> Result<(), Error> {
    let n = to.ty.elements();
    if n == 0 {
        return Ok(());
    }
    let AvgPool { window, stride, pad, count_pad } = windows;
    let args = Args::new()
        .at(from.ptr)
        .at(index)
        .at(to.ptr)
        .ints(large.shape.iter().copied(), 4, 1)
        .ints(small.shape[1..3].iter().copied(), 2, 1)
        .ints(pad.map(|(low, _)| low), 2, 0)
        .int(usize::from(count_pad));
    let aligned = [from.ptr, to.ptr, index].iter().all(|&at| (at as usize).is_multiple_of(16));
    let together = if large.shape[3].is_multiple_of(8) && aligned { 8 } else { 1 };
    let mut code = Code::of("pool", TEXT, to.ty.dtype)
        .with("N", together)
        .with("WY", window[0])
        .with("WX", window[1])
        .with("SY", stride[0])
        .with("SX", stride[1]);
    code.head +=
        if n.max(from.ty.elements()) < 1 << 31 { "typedef u32 Index;\n" } else { "typedef i64 Index;\n" };
    // SAFETY: the caller's promise.
    unsafe { cuda.launch(&code, kernel, Grid::each(n / together), &args) }
}

/// The windows of a max pooling, which counts nothing.
fn windows(MaxPool { window, stride, pad }: MaxPool) -> AvgPool {
    AvgPool { window, stride, pad, count_pad: false }
}

impl Kernel for MaxPool {
    unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
        let (x, y, index) = (&call.inputs[0], &call.outputs[0], call.outputs[1].ptr);
        // SAFETY: the caller's promise.
        unsafe { run(cuda, "max_pool", windows(*self), (x.ty, y.ty), x, index, y) }
    }
}

impl Kernel for MaxPoolGrad {
    unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
        let (index, dy, dx) = (call.inputs[0].ptr, &call.inputs[1], &call.outputs[0]);
        // SAFETY: the caller's promise.
        unsafe { run(cuda, "max_pool_grad", windows(self.forward), (dx.ty, dy.ty), dy, index, dx) }
    }
}

impl Kernel for MaxPoolGather {
    unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
        let (index, x, y) = (call.inputs[0].ptr, &call.inputs[1], &call.outputs[0]);
        // SAFETY: the caller's promise.
        unsafe { run(cuda, "max_pool_gather", windows(self.0), (x.ty, y.ty), x, index, y) }
    }
}

impl Kernel for AvgPool {
    unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
        let (x, y) = (&call.inputs[0], &call.outputs[0]);
        // SAFETY: the caller's promise.
        unsafe { run(cuda, "avg_pool", *self, (x.ty, y.ty), x, std::ptr::null_mut(), y) }
    }
}

impl Kernel for AvgPoolGrad {
    unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
        let (dy, dx) = (&call.inputs[0], &call.outputs[0]);
        // SAFETY: the caller's promise.
        unsafe { run(cuda, "avg_pool_grad", self.forward, (dx.ty, dy.ty), dy, std::ptr::null_mut(), dx) }
    }
}
