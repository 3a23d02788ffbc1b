//! Convolutions and their two gradients, channels last, as products whose operands are read from the images.

use std::ptr::null_mut;

use plimsoll_device::backend::Call;
use plimsoll_graph::Type;
use plimsoll_graph::ops::{Conv, ConvGradFilter, ConvGradInput, Unary};

use super::Kernel;
use super::matmul::activation;
use crate::Cuda;
use crate::error::Error;
use crate::launch::{Args, Code, Grid};

const TEXT: &str = concat!(include_str!("element.cu"), include_str!("tile.cu"), include_str!("conv.cu"));

/// What a convolution, as x ∗ w = y, is about.
struct Shape {
    images: usize,
    size: [usize; 2],
    channels: usize,
    out: [usize; 2],
    filters: usize,
    window: [usize; 2],
    stride: [usize; 2],
    pad: [(usize, usize); 2],
    dilation: [usize; 2],
    groups: usize,
}

impl Shape {
    /// Pieces that the sum over all windows is cut into for the filter's gradient.
    fn pieces(&self) -> usize {
        let rows = self.images * self.out[0] * self.out[1];
        let taps = self.window[0] * self.window[1] * self.channels / self.groups.max(1);
        let tiles = taps.div_ceil(64) * (self.filters / self.groups.max(1)).div_ceil(64) * self.groups;
        (Cuda::PARALLEL / tiles.max(1)).clamp(1, rows.div_ceil(256).max(1))
    }

    fn taps(&self) -> usize {
        self.window[0] * self.window[1] * (self.channels / self.groups.max(1))
    }

    fn args(&self, at: [*mut u8; 6], s0: f64, s1: f64) -> Args {
        at.into_iter()
            .fold(Args::new(), Args::at)
            .int(self.images)
            .ints(self.size, 2, 1)
            .int(self.channels)
            .ints(self.out, 2, 1)
            .int(self.filters)
            .ints(self.window, 2, 1)
            .ints(self.stride, 2, 1)
            .ints(self.pad.map(|(low, _)| low), 2, 0)
            .ints(self.dilation, 2, 1)
            .int(self.groups)
            .int(self.pieces())
            .float(s0)
            .float(s1)
    }
}

macro_rules! shape {
    ($op:expr, $x:expr, $y:expr, $window:expr) => {
        Shape {
            images: $x[0],
            size: [$x[1], $x[2]],
            channels: $x[3],
            out: [$y[1], $y[2]],
            filters: $y[3],
            window: $window,
            stride: $op.stride,
            pad: $op.pad,
            dilation: $op.dilation,
            groups: $op.groups,
        }
    };
}

fn code(x: &Type, act: Option<Unary>) -> (Code<'static>, f64, f64) {
    let mut code = Code::of("conv", TEXT, x.dtype);
    let (text, s0, s1) = activation(act);
    code.head += &text;
    (code, s0, s1)
}

/// Blocks for a product of `m` by `n` in every group.
fn tiles(m: usize, n: usize, groups: usize, pieces: usize) -> Grid {
    Grid::tiles(m.div_ceil(64) * n.div_ceil(64), groups, pieces, 256)
}

impl Kernel for Conv {
    unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
        let (x, w, y) = (call.inputs[0], call.inputs[1], call.outputs[0]);
        if y.ty.elements() == 0 {
            return Ok(());
        }
        let shape = shape!(self, x.ty.shape, y.ty.shape, [w.ty.shape[0], w.ty.shape[1]]);
        let bias = call.inputs.get(2).map_or(null_mut(), |b| b.ptr);
        let (code, s0, s1) = code(x.ty, self.act);
        let args = shape.args([x.ptr, w.ptr, null_mut(), y.ptr, bias, null_mut()], s0, s1);
        let rows = shape.images * shape.out[0] * shape.out[1];
        let grid = tiles(rows, shape.filters / shape.groups, shape.groups, 1);
        // SAFETY: the caller's promise.
        unsafe { cuda.launch(&code, "conv", grid, &args) }
    }
}

impl Kernel for ConvGradInput {
    unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
        let (dy, w, dx) = (call.inputs[0], call.inputs[1], call.outputs[0]);
        if dx.ty.elements() == 0 {
            return Ok(());
        }
        let shape = shape!(self, dx.ty.shape, dy.ty.shape, [w.ty.shape[0], w.ty.shape[1]]);
        let bias = call.inputs.get(2).map_or(null_mut(), |b| b.ptr);
        let (code, s0, s1) = code(dy.ty, None);
        let args = shape.args([null_mut(), w.ptr, dy.ptr, dx.ptr, bias, null_mut()], s0, s1);
        let rows = shape.images * shape.size[0] * shape.size[1];
        let grid = tiles(rows, shape.channels / shape.groups, shape.groups, 1);
        // SAFETY: the caller's promise.
        unsafe { cuda.launch(&code, "conv_grad_input", grid, &args) }
    }
}

impl Kernel for ConvGradFilter {
    fn scratch(&self, _: &Cuda, inputs: &[&Type], _: &[&Type]) -> Result<usize, Error> {
        let (x, dy) = (inputs[0], inputs[1]);
        let shape = shape!(self, x.shape, dy.shape, self.filter);
        let pieces = shape.pieces();
        let bytes = shape.taps() * shape.filters * x.dtype.accumulator().bytes();
        Ok(if pieces > 1 { pieces * bytes } else { 0 })
    }

    unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
        let (x, dy, dw) = (call.inputs[0], call.inputs[1], call.outputs[0]);
        if dw.ty.elements() == 0 {
            return Ok(());
        }
        let shape = shape!(self, x.ty.shape, dy.ty.shape, self.filter);
        let (code, s0, s1) = code(x.ty, None);
        let args = shape.args([x.ptr, null_mut(), dy.ptr, dw.ptr, null_mut(), call.scratch], s0, s1);
        let pieces = shape.pieces();
        let grid = tiles(shape.taps(), shape.filters / shape.groups, shape.groups, pieces);
        // SAFETY: the caller's promise; the scratch holds a partial result for every piece.
        unsafe {
            cuda.launch(&code, "conv_grad_filter", grid, &args)?;
            if pieces > 1 {
                cuda.launch(&code, "add_pieces", Grid::each(dw.ty.elements()), &args)?;
            }
        }
        Ok(())
    }
}
