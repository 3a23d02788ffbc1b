//! Convolutions and their two gradients, channels last.
//!
//! By a library where one knows the case, else as products whose operands are read from the images.

use std::ptr::null_mut;

use plimsoll_device::backend::Call;
use plimsoll_graph::Type;
use plimsoll_graph::ops::{Conv, ConvFrame, ConvGradFilter, ConvGradInput, Unary};

use super::by_library::{as_product, as_products, biases_bytes, dnn_run, library_scratch};
use super::matmul::{Product, activation};
use super::patches::Patches;
use super::{Kernel, Parts};
use crate::Cuda;
use crate::dnn::{Shape, Wanted};
use crate::error::Error;
use crate::launch::{Args, Code, Grid};

const TEXT: &str = concat!(include_str!("element.cu"), include_str!("tile.cu"), include_str!("conv.cu"));

impl Shape {
    /// The sizes of a convolution of x by windows to y.
    fn of(frame: &ConvFrame, x: &Type, y: &Type, window: [usize; 2]) -> Shape {
        let (x, y) = (&x.shape, &y.shape);
        Shape {
            images: x[0],
            size: [x[1], x[2]],
            channels: x[3],
            out: [y[1], y[2]],
            filters: y[3],
            window,
            stride: frame.stride,
            pad: frame.pad,
            dilation: frame.dilation,
            groups: frame.groups,
        }
    }

    /// Whether windows cover the images, each pixel once.
    pub(super) fn are_side_by_side(&self) -> bool {
        self.window == self.stride
            && self.pad == [(0, 0); 2]
            && self.dilation == [1, 1]
            && self.groups == 1
            && (0..2).all(|i| self.out[i] * self.stride[i] == self.size[i])
    }

    /// Pieces that the sum over all windows is cut into for the filter's gradient.
    fn pieces(&self) -> usize {
        let rows = self.images * self.out[0] * self.out[1];
        let taps = self.window[0] * self.window[1] * self.channels / self.groups.max(1);
        let tiles = taps.div_ceil(64) * (self.filters / self.groups.max(1)).div_ceil(64) * self.groups;
        (Cuda::PARALLEL / tiles.max(1)).clamp(1, rows.div_ceil(256).max(1))
    }

    pub(super) fn taps(&self) -> usize {
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

/// Adds the bias to rows of `columns` and applies the activation, where there is either.
///
/// # Safety
/// As for [`Kernel::run`].
unsafe fn finish(
    cuda: &Cuda,
    x: &Type,
    act: Option<Unary>,
    [to, bias]: [*mut u8; 2],
    [rows, columns]: [usize; 2],
) -> Result<(), Error> {
    if bias.is_null() && act.is_none() {
        return Ok(());
    }
    let (code, s0, s1) = code(x, act);
    let one = [1, 1];
    let (size, out, window, stride, dilation) = (one, one, one, one, one);
    let shape = Shape {
        images: rows,
        size,
        channels: 1,
        out,
        filters: columns,
        window,
        stride,
        pad: [(0, 0); 2],
        dilation,
        groups: 1,
    };
    let args = shape.args([null_mut(), null_mut(), null_mut(), to, bias, null_mut()], s0, s1);
    // SAFETY: the caller's promise.
    unsafe { cuda.launch(&code, "finish", Grid::each(rows * columns), &args) }
}

/// Runs what a library knows, with the bias and the activation after it, or what is done already because it has no elements; false
/// where no library knows the case.
///
/// # Safety
/// As for [`Kernel::run`].
unsafe fn by_library(
    cuda: &Cuda,
    call: &Call<'_>,
    wanted: Wanted,
    shape: &Shape,
    [x, w, y]: [*mut u8; 3],
    bias: *mut u8,
    act: Option<Unary>,
) -> Result<bool, Error> {
    let (from, to) = (call.inputs[0].ty, call.outputs[0]);
    if to.ty.elements() == 0 {
        return Ok(true);
    }
    let whole = (call.scratch, call.scratch_bytes);
    let product = match as_product(cuda, wanted, shape, from.dtype, [x, w, y]) {
        Some(product) => Some((product, whole.0, whole.1)),
        None => match Patches::of(cuda, wanted, shape, from.dtype) {
            // SAFETY: the caller's promise.
            Some(patches) => Some(unsafe { patches.rows(cuda, [x, w, y], whole) }?),
            None => None,
        },
    };
    if let Some((product, scratch, bytes)) = product {
        let product = Product { bias: (!bias.is_null()).then_some(bias), act, ..product };
        // SAFETY: the caller's promise.
        unsafe { product.run(cuda, scratch, bytes) }?;
        return Ok(true);
    }
    // SAFETY: the caller's promise.
    if !unsafe { dnn_run(cuda, call, wanted, shape, [x, w, y]) }? {
        return Ok(false);
    }
    let columns = if wanted == Wanted::Input { shape.channels } else { shape.filters };
    // SAFETY: the caller's promise.
    unsafe { finish(cuda, from, act, [to.ptr, bias], [to.ty.elements() / columns, columns]) }?;
    Ok(true)
}

impl Kernel for Conv {
    fn scratch(&self, cuda: &Cuda, inputs: &[&Type], outputs: &[&Type]) -> Result<usize, Error> {
        let (x, w, y) = (inputs[0], inputs[1], outputs[0]);
        let shape = Shape::of(&self.frame, x, y, [w.shape[0], w.shape[1]]);
        Ok(library_scratch(cuda, Wanted::Output, &shape, x.dtype)?.unwrap_or(0))
    }

    unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
        let (x, w, y) = (call.inputs[0], call.inputs[1], call.outputs[0]);
        let shape = Shape::of(&self.frame, x.ty, y.ty, [w.ty.shape[0], w.ty.shape[1]]);
        let bias = call.inputs.get(2).map_or(null_mut(), |b| b.ptr);
        let operands = [x.ptr, w.ptr, y.ptr];
        // SAFETY: the caller's promise.
        if unsafe { by_library(cuda, call, Wanted::Output, &shape, operands, bias, self.act) }? {
            return Ok(());
        }
        let (code, s0, s1) = code(x.ty, self.act);
        let args = shape.args([x.ptr, w.ptr, null_mut(), y.ptr, bias, null_mut()], s0, s1);
        let rows = shape.images * shape.out[0] * shape.out[1];
        let grid = tiles(rows, shape.filters / shape.groups, shape.groups, 1);
        // SAFETY: the caller's promise.
        unsafe { cuda.launch(&code, "conv", grid, &args) }
    }
}

impl Kernel for ConvGradInput {
    fn scratch(&self, cuda: &Cuda, inputs: &[&Type], outputs: &[&Type]) -> Result<usize, Error> {
        let (dy, w, dx) = (inputs[0], inputs[1], outputs[0]);
        let shape = Shape::of(&self.frame, dx, dy, [w.shape[0], w.shape[1]]);
        let address = std::ptr::without_provenance_mut(4096);
        if let Some(products) = as_products(cuda, &shape, dy.dtype, [address; 3]) {
            let biases = biases_bytes(&shape, dy.dtype, self.bias);
            let scratch = |product: Product| {
                let bias = self.bias.then_some(address);
                Product { bias, ..product }.scratch(cuda)
            };
            return Ok(biases + products.map(scratch).max().unwrap_or(0));
        }
        Ok(library_scratch(cuda, Wanted::Input, &shape, dy.dtype)?.unwrap_or(0))
    }

    unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
        let (dy, w, dx) = (call.inputs[0], call.inputs[1], call.outputs[0]);
        if dx.ty.elements() == 0 {
            return Ok(());
        }
        let shape = Shape::of(&self.frame, dx.ty, dy.ty, [w.ty.shape[0], w.ty.shape[1]]);
        let bias = call.inputs.get(2).map_or(null_mut(), |b| b.ptr);
        if let Some(products) = as_products(cuda, &shape, dy.ty.dtype, [dx.ptr, w.ptr, dy.ptr]) {
            let bytes = shape.channels * dy.ty.dtype.bytes();
            let mut parts = Parts::new(call);
            let biases = parts.take(biases_bytes(&shape, dy.ty.dtype, self.bias));
            let (scratch, left) = (parts.take(0), parts.left(call));
            let copies = if self.bias { shape.window[1] } else { 0 };
            // SAFETY: the caller's promise; the scratch holds a bias for every column of a window, then the products'.
            unsafe {
                (0..copies).try_for_each(|s| cuda.copy(biases.wrapping_add(s * bytes), bias, bytes))?;
                for product in products {
                    let bias = self.bias.then_some(biases);
                    Product { bias, ..product }.run(cuda, scratch, left)?;
                }
            }
            return Ok(());
        }
        // SAFETY: the caller's promise.
        if unsafe { by_library(cuda, call, Wanted::Input, &shape, [dx.ptr, w.ptr, dy.ptr], bias, None) }? {
            return Ok(());
        }
        let (code, s0, s1) = code(dy.ty, None);
        let args = shape.args([null_mut(), w.ptr, dy.ptr, dx.ptr, bias, null_mut()], s0, s1);
        let rows = shape.images * shape.size[0] * shape.size[1];
        let grid = tiles(rows, shape.channels / shape.groups, shape.groups, 1);
        // SAFETY: the caller's promise.
        unsafe { cuda.launch(&code, "conv_grad_input", grid, &args) }
    }
}

impl Kernel for ConvGradFilter {
    fn scratch(&self, cuda: &Cuda, inputs: &[&Type], _: &[&Type]) -> Result<usize, Error> {
        let (x, dy) = (inputs[0], inputs[1]);
        let shape = Shape::of(&self.frame, x, dy, self.filter);
        if let Some(bytes) = library_scratch(cuda, Wanted::Filter, &shape, x.dtype)? {
            return Ok(bytes);
        }
        let pieces = shape.pieces();
        let bytes = shape.taps() * shape.filters * x.dtype.accumulator().bytes();
        Ok(if pieces > 1 { pieces * bytes } else { 0 })
    }

    unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
        let (x, dy, dw) = (call.inputs[0], call.inputs[1], call.outputs[0]);
        let shape = Shape::of(&self.frame, x.ty, dy.ty, self.filter);
        let operands = [x.ptr, dw.ptr, dy.ptr];
        // SAFETY: the caller's promise.
        if unsafe { by_library(cuda, call, Wanted::Filter, &shape, operands, null_mut(), None) }? {
            return Ok(());
        }
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
