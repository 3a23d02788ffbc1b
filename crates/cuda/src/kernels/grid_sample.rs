//! Images read at places of a grid, and the gradients of both.

use std::ptr::null_mut;

use plimsoll_device::backend::Call;
use plimsoll_graph::Type;
use plimsoll_graph::ops::{GridSample, GridSampleGrad, ResizeMode};

use super::Kernel;
use crate::Cuda;
use crate::error::Error;
use crate::launch::{Args, Code, Grid};

const TEXT: &str = include_str!("grid_sample.cu");

fn args(op: &GridSample, call: &Call<'_>, at: [*mut u8; 4]) -> Args {
    let (x, grid) = (call.inputs[0], call.inputs[1]);
    let args = Args::new().at(x.ptr).at(grid.ptr);
    let args = at.into_iter().fold(args, Args::at);
    let (image, places) = (&x.ty.shape, grid.ty.shape[1] * grid.ty.shape[2]);
    args.int(image[0])
        .int(image[1])
        .int(image[2])
        .int(places)
        .int(image[3])
        .int(usize::from(op.mode == ResizeMode::Nearest))
        .int(op.border.into())
        .int(op.align.into())
}

impl Kernel for GridSample {
    unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
        let (x, y) = (call.inputs[0], call.outputs[0]);
        let n = y.ty.elements();
        let args = args(self, call, [null_mut(), y.ptr, null_mut(), null_mut()]);
        let code = Code::of("grid_sample", TEXT, x.ty.dtype);
        // SAFETY: the caller's promise.
        unsafe { cuda.launch(&code, "sample", Grid::each(n), &args) }
    }
}

impl Kernel for GridSampleGrad {
    fn scratch(&self, _: &Cuda, inputs: &[&Type], _: &[&Type]) -> Result<usize, Error> {
        let sum = inputs[0].dtype.accumulator();
        Ok(if sum == inputs[0].dtype { 0 } else { inputs[0].elements() * sum.bytes() })
    }

    unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
        let (x, dy, dx, dgrid) = (call.inputs[0], call.inputs[2], call.outputs[0], call.outputs[1]);
        let (channels, places) = (x.ty.shape[3], dgrid.ty.elements() / 2);
        let sum = if x.ty.dtype == x.ty.dtype.accumulator() { dx.ptr } else { call.scratch };
        let args = args(&self.0, call, [dy.ptr, dx.ptr, dgrid.ptr, sum]);
        let code = Code::of("grid_sample", TEXT, x.ty.dtype);
        // SAFETY: the caller's promise; sums are the result itself, or the scratch holds one for every element.
        unsafe {
            if x.ty.elements() > 0 {
                cuda.launch(&code, "image_grad", Grid::each(x.ty.shape[0] * channels), &args)?;
            }
            if places == 0 {
                return Ok(());
            }
            cuda.launch(&code, "grid_grad", Grid::each(places), &args)
        }
    }
}
