//! Images at another size.

use plimsoll_device::backend::Call;
use plimsoll_graph::Type;
use plimsoll_graph::ops::{Resize, ResizeGrad, ResizeMode};

use super::Kernel;
use crate::Cuda;
use crate::error::Error;
use crate::launch::{Args, Code, Grid};

const TEXT: &str = include_str!("resize.cu");

/// Runs a kernel between images of an old and a new size.
unsafe fn run(
    cuda: &Cuda,
    call: &Call<'_>,
    kernel: &str,
    (old, new): (&Type, &Type),
    mode: ResizeMode,
    align_corners: bool,
) -> Result<(), Error> {
    let (x, y) = (call.inputs[0], call.outputs[0]);
    let n = y.ty.elements();
    if n == 0 {
        return Ok(());
    }
    let args = Args::new()
        .at(x.ptr)
        .at(y.ptr)
        .int(old.shape[0])
        .int(old.shape[3])
        .ints(old.shape[1..3].iter().copied(), 2, 1)
        .ints(new.shape[1..3].iter().copied(), 2, 1)
        .int(usize::from(mode == ResizeMode::Bilinear))
        .int(usize::from(align_corners));
    // SAFETY: the caller's promise.
    unsafe { cuda.launch(&Code::of("resize", TEXT, y.ty.dtype), kernel, Grid::each(n), &args) }
}

impl Kernel for Resize {
    unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
        let sizes = (call.inputs[0].ty, call.outputs[0].ty);
        // SAFETY: the caller's promise.
        unsafe { run(cuda, call, "resize", sizes, self.mode, self.align_corners) }
    }
}

impl Kernel for ResizeGrad {
    unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
        let sizes = (call.outputs[0].ty, call.inputs[0].ty);
        // SAFETY: the caller's promise.
        unsafe { run(cuda, call, "resize_grad", sizes, self.mode, self.align_corners) }
    }
}
