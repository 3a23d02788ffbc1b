//! Random values from a counter-based generator: the same words as on every device.

use std::ptr::null_mut;

use plimsoll_device::backend::Call;
use plimsoll_graph::Type;
use plimsoll_graph::ops::{Dropout, Normal, TruncatedNormal, Uniform};

use super::Kernel;
use crate::Cuda;
use crate::error::Error;
use crate::launch::{Args, Code, Grid};

const TEXT: &str = concat!(include_str!("philox.cu"), include_str!("random.cu"));

/// What a kernel draws with.
struct Draw {
    stream: u32,
    threshold: u32,
    a: f64,
    b: f64,
}

unsafe fn run(
    cuda: &Cuda,
    kernel: &str,
    key: *mut u8,
    x: *mut u8,
    (ty, y): (&Type, *mut u8),
    draw: Draw,
) -> Result<(), Error> {
    if ty.elements() == 0 {
        return Ok(());
    }
    // A scalar is one sample of one element.
    let samples = ty.shape.first().copied().unwrap_or(1);
    let sample = ty.elements() / samples;
    let args = Args::new()
        .at(key)
        .at(x)
        .at(y)
        .int(samples)
        .int(sample)
        .int(draw.stream as usize)
        .int(draw.threshold as usize)
        .float(draw.a)
        .float(draw.b);
    let code = Code::of("random", TEXT, ty.dtype);
    // SAFETY: the caller's promise.
    unsafe { cuda.launch(&code, kernel, Grid::each(samples * sample.div_ceil(4)), &args) }
}

impl Kernel for Uniform {
    unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
        let (key, y) = (call.inputs[0].ptr, call.outputs[0]);
        let draw = Draw { stream: self.stream, threshold: 0, a: self.low.0, b: self.high.0 - self.low.0 };
        // SAFETY: the caller's promise.
        unsafe { run(cuda, "uniform", key, null_mut(), (y.ty, y.ptr), draw) }
    }
}

impl Kernel for Normal {
    unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
        let (key, y) = (call.inputs[0].ptr, call.outputs[0]);
        let draw = Draw { stream: self.stream, threshold: 0, a: self.mean.0, b: self.std.0 };
        // SAFETY: the caller's promise.
        unsafe { run(cuda, "normal", key, null_mut(), (y.ty, y.ptr), draw) }
    }
}

impl Kernel for TruncatedNormal {
    unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
        let (key, y) = (call.inputs[0].ptr, call.outputs[0]);
        if y.ty.elements() == 0 {
            return Ok(());
        }
        let samples = y.ty.shape.first().copied().unwrap_or(1);
        let sample = y.ty.elements() / samples;
        let args = Args::new().at(key).at(y.ptr).int(samples).int(sample);
        let args =
            self.streams.iter().fold(args, |args, &stream| args.int(stream as usize)).float(self.std.0);
        let code = Code::of("random", TEXT, y.ty.dtype);
        // SAFETY: the caller's promise.
        unsafe { cuda.launch(&code, "truncated_normal", Grid::each(samples * sample.div_ceil(4)), &args) }
    }
}

impl Kernel for Dropout {
    unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
        let (x, key, y) = (call.inputs[0].ptr, call.inputs[1].ptr, call.outputs[0]);
        let draw = Draw { stream: self.stream, threshold: self.threshold(), a: self.scale(), b: 0.0 };
        // SAFETY: the caller's promise.
        unsafe { run(cuda, "dropout", key, x, (y.ty, y.ptr), draw) }
    }
}
