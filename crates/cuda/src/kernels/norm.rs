//! The four norms, forward and backward, as one family of kernels.

use std::ptr::null_mut;

use plimsoll_device::backend::{Call, Operand};
use plimsoll_graph::Type;
use plimsoll_graph::ops::{
    BatchNorm, BatchNormGrad, GroupNorm, GroupNormGrad, LayerNorm, LayerNormGrad, RmsNorm, RmsNormGrad,
};

use super::Kernel;
use crate::Cuda;
use crate::error::Error;
use crate::launch::{Args, Code, Grid};

const TEXT: &str = include_str!("norm.cu");

/// How a norm sees x: `[samples, positions, groups, part]`.
#[derive(Clone, Copy)]
struct View {
    samples: usize,
    positions: usize,
    groups: usize,
    part: usize,
}

impl View {
    fn layer(x: &Type, axes: usize) -> View {
        let (rows, row) = x.shape.split_at(x.shape.rank() - axes);
        View { samples: rows.iter().product(), positions: 1, groups: 1, part: row.iter().product() }
    }

    fn group(x: &Type, groups: usize) -> View {
        let channels = x.shape[x.shape.rank() - 1];
        let positions = x.shape[1..x.shape.rank() - 1].iter().product();
        View { samples: x.shape[0], positions, groups, part: channels / groups.max(1) }
    }

    fn batch(x: &Type) -> View {
        let channels = x.shape.last().copied().unwrap_or(1);
        View { samples: 1, positions: x.elements() / channels.max(1), groups: channels, part: 1 }
    }

    fn columns(&self) -> usize {
        self.groups * self.part
    }

    /// Pieces that the rows are cut into for sums of columns.
    fn pieces(&self) -> usize {
        let rows = self.samples * self.positions;
        (Cuda::PARALLEL / self.columns().div_ceil(32).max(1)).clamp(1, rows.div_ceil(64).max(1))
    }

    fn partial_bytes(&self, x: &Type) -> usize {
        2 * self.pieces() * self.columns() * x.dtype.accumulator().bytes()
    }
}

/// All addresses that the kernels know; what a call has no use for is null.
#[derive(Clone, Copy)]
struct Addresses {
    x: *mut u8,
    gamma: *mut u8,
    beta: *mut u8,
    mean: *mut u8,
    rstd: *mut u8,
    dy: *mut u8,
    y: *mut u8,
    out_mean: *mut u8,
    out_var: *mut u8,
    out_rstd: *mut u8,
    dgamma: *mut u8,
    dbeta: *mut u8,
}

const NOWHERE: Addresses = Addresses {
    x: null_mut(),
    gamma: null_mut(),
    beta: null_mut(),
    mean: null_mut(),
    rstd: null_mut(),
    dy: null_mut(),
    y: null_mut(),
    out_mean: null_mut(),
    out_var: null_mut(),
    out_rstd: null_mut(),
    dgamma: null_mut(),
    dbeta: null_mut(),
};

fn args(a: &Addresses, view: View, scratch: *mut u8, eps: f64) -> Args {
    [a.x, a.gamma, a.beta, a.mean, a.rstd, a.dy, a.y, a.out_mean, a.out_var, a.out_rstd, a.dgamma, a.dbeta]
        .into_iter()
        .fold(Args::new(), Args::at)
        .at(scratch)
        .int(view.samples)
        .int(view.positions)
        .int(view.groups)
        .int(view.part)
        .int(view.pieces())
        .float(eps)
}

fn sets(view: View) -> Grid {
    Grid::rows(view.samples * view.groups, view.positions * view.part)
}

fn column_grid(view: View) -> Grid {
    Grid::tiles(view.columns().div_ceil(32), view.pieces(), 1, 256)
}

/// A forward norm whose sets of elements each fit a block.
unsafe fn forward(cuda: &Cuda, call: &Call<'_>, view: View, a: &Addresses, eps: f64) -> Result<(), Error> {
    let x = call.inputs[0].ty;
    if x.elements() == 0 {
        return Ok(());
    }
    let code = Code::of("norm", TEXT, x.dtype);
    // SAFETY: the caller's promise.
    unsafe { cuda.launch(&code, "forward", sets(view), &args(a, view, call.scratch, eps)) }
}

/// The gradient: first those of the scales, which read x and dy, then dx, which may lie over one of them.
unsafe fn backward(
    cuda: &Cuda,
    call: &Call<'_>,
    view: View,
    a: &Addresses,
    by_columns: bool,
) -> Result<(), Error> {
    let x = call.inputs[0].ty;
    let code = Code::of("norm", TEXT, x.dtype);
    let args = args(a, view, call.scratch, 0.0);
    // SAFETY: the caller's promise; the scratch holds two sums for every piece and column.
    unsafe {
        cuda.launch(&code, "scale_sums", column_grid(view), &args)?;
        cuda.launch(&code, "scales", Grid::each(view.columns()), &args)?;
        if x.elements() == 0 {
            return Ok(());
        }
        if by_columns {
            cuda.launch(&code, "backward_columns", Grid::each(x.elements()), &args)
        } else {
            cuda.launch(&code, "backward", sets(view), &args)
        }
    }
}

fn at(operands: &[Operand<'_>], i: usize) -> *mut u8 {
    operands[i].ptr
}

impl Kernel for LayerNorm {
    unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
        let (i, o) = (call.inputs, call.outputs);
        let a = Addresses {
            x: at(i, 0),
            gamma: at(i, 1),
            beta: at(i, 2),
            y: at(o, 0),
            out_mean: at(o, 1),
            out_rstd: at(o, 2),
            ..NOWHERE
        };
        // SAFETY: the caller's promise.
        unsafe { forward(cuda, call, View::layer(i[0].ty, self.axes), &a, self.eps.0) }
    }
}

impl Kernel for RmsNorm {
    unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
        let (i, o) = (call.inputs, call.outputs);
        let a = Addresses { x: at(i, 0), gamma: at(i, 1), y: at(o, 0), out_rstd: at(o, 1), ..NOWHERE };
        // SAFETY: the caller's promise.
        unsafe { forward(cuda, call, View::layer(i[0].ty, 1), &a, self.eps.0) }
    }
}

impl Kernel for GroupNorm {
    unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
        let (i, o) = (call.inputs, call.outputs);
        let a = Addresses {
            x: at(i, 0),
            gamma: at(i, 1),
            beta: at(i, 2),
            y: at(o, 0),
            out_mean: at(o, 1),
            out_rstd: at(o, 2),
            ..NOWHERE
        };
        // SAFETY: the caller's promise.
        unsafe { forward(cuda, call, View::group(i[0].ty, self.groups), &a, self.eps.0) }
    }
}

impl Kernel for BatchNorm {
    fn scratch(&self, _: &Cuda, inputs: &[&Type], _: &[&Type]) -> Result<usize, Error> {
        Ok(View::batch(inputs[0]).partial_bytes(inputs[0]))
    }

    unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
        let (i, o, view) = (call.inputs, call.outputs, View::batch(call.inputs[0].ty));
        let (mean, var, rstd) = (at(o, 1), at(o, 2), at(o, 3));
        let code = Code::of("norm", TEXT, i[0].ty.dtype);
        let first = Addresses { x: at(i, 0), out_mean: mean, ..NOWHERE };
        let second = Addresses { x: at(i, 0), mean, out_var: var, out_rstd: rstd, ..NOWHERE };
        let third =
            Addresses { x: at(i, 0), gamma: at(i, 1), beta: at(i, 2), mean, rstd, y: at(o, 0), ..NOWHERE };
        let args = |a: &Addresses| args(a, view, call.scratch, self.eps.0);
        let each = Grid::each(view.groups);
        // SAFETY: the caller's promise; the scratch holds two sums for every piece and column.
        unsafe {
            cuda.launch(&code, "moments", column_grid(view), &args(&first))?;
            cuda.launch(&code, "means", each, &args(&first))?;
            cuda.launch(&code, "moments", column_grid(view), &args(&second))?;
            cuda.launch(&code, "variances", each, &args(&second))?;
            cuda.launch(&code, "apply_columns", Grid::each(i[0].ty.elements()), &args(&third))
        }
    }
}

/// The addresses of a gradient with a mean: inputs x, γ, mean, rstd, dy; outputs dx, dγ, dβ.
fn with_mean(call: &Call<'_>) -> Addresses {
    let (i, o) = (call.inputs, call.outputs);
    Addresses {
        x: at(i, 0),
        gamma: at(i, 1),
        mean: at(i, 2),
        rstd: at(i, 3),
        dy: at(i, 4),
        y: at(o, 0),
        dgamma: at(o, 1),
        dbeta: at(o, 2),
        ..NOWHERE
    }
}

macro_rules! gradients {
    ($($op:ty, $this:ident, $x:ident => $view:expr, $addresses:expr, $by_columns:literal;)+) => { $(
        impl Kernel for $op {
            fn scratch(&self, _: &Cuda, inputs: &[&Type], _: &[&Type]) -> Result<usize, Error> {
                let ($this, $x) = (self, inputs[0]);
                let _ = $this;
                Ok($view.partial_bytes($x))
            }

            unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
                let ($this, $x) = (self, call.inputs[0].ty);
                let _ = $this;
                // SAFETY: the caller's promise.
                unsafe { backward(cuda, call, $view, &$addresses(call), $by_columns) }
            }
        }
    )+ };
}
gradients! {
    LayerNormGrad, this, x => View::layer(x, this.axes), with_mean, false;
    GroupNormGrad, this, x => View::group(x, this.groups), with_mean, false;
    BatchNormGrad, this, x => View::batch(x), with_mean, true;
    RmsNormGrad, this, x => View::layer(x, 1), without_mean, false;
}

/// The addresses of RMS norm's gradient: inputs x, γ, rstd, dy; outputs dx, dγ.
fn without_mean(call: &Call<'_>) -> Addresses {
    let (i, o) = (call.inputs, call.outputs);
    Addresses {
        x: at(i, 0),
        gamma: at(i, 1),
        rstd: at(i, 2),
        dy: at(i, 3),
        y: at(o, 0),
        dgamma: at(o, 1),
        ..NOWHERE
    }
}
