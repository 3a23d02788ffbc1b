//! The four norms, forward and backward, as one family of kernels.

use std::ptr::null_mut;

use plimsoll_device::backend::{Call, Operand};
use plimsoll_graph::Type;
use plimsoll_graph::ops::{
    BatchNorm, BatchNormGrad, GroupNorm, GroupNormGrad, LayerNorm, LayerNormGrad, LayerNormGradAdd, RmsNorm,
    RmsNormGrad,
};

use super::Kernel;
use super::columns::{Cut, PIECES};
use crate::Cuda;
use crate::error::Error;
use crate::launch::{Args, Code, Grid};

const TEXT: &str = concat!(include_str!("columns.cu"), include_str!("norm.cu"));
/// Packs of a row that a lane holds at most where a row has one warp: beyond that, registers spill in the gradient.
const PACKS_OF_ONE: usize = 4;
/// Packs that a lane holds where a row has several warps, as long as eight are enough; and at most.
const PACKS_OF_SEVERAL: [usize; 2] = [2, 4];
/// Warps of a block.
const WARPS: usize = 8;

/// How a norm sees x: `[samples, positions, groups, part]`.
#[derive(Clone, Copy)]
struct View {
    samples: usize,
    positions: usize,
    groups: usize,
    part: usize,
    /// Whether statistics are of columns: batch norm.
    of_columns: bool,
}

impl View {
    fn layer(x: &Type, axes: usize) -> View {
        let (rows, row) = x.shape.split_at(x.shape.rank() - axes);
        View {
            samples: rows.iter().product(),
            positions: 1,
            groups: 1,
            part: row.iter().product(),
            of_columns: false,
        }
    }

    fn group(x: &Type, groups: usize) -> View {
        let channels = x.shape[x.shape.rank() - 1];
        let positions = x.shape[1..x.shape.rank() - 1].iter().product();
        View { samples: x.shape[0], positions, groups, part: channels / groups.max(1), of_columns: false }
    }

    fn batch(x: &Type) -> View {
        let channels = x.shape.last().copied().unwrap_or(1);
        let positions = x.elements() / channels.max(1);
        View { samples: 1, positions, groups: channels, part: 1, of_columns: true }
    }

    fn columns(&self) -> usize {
        self.groups * self.part
    }

    /// Pieces that the rows are cut into for sums of columns.
    fn pieces(&self, x: &Type) -> usize {
        match self.way(x, true) {
            // Enough to fill a large card once; each piece costs a row of sums.
            Way::Rows { warps, .. } => self.samples.div_ceil(WARPS / warps).clamp(1, PIECES / 2),
            _ => Cut::new(x.dtype, self.columns()).pieces(self.samples * self.positions),
        }
    }

    fn partial_bytes(&self, x: &Type) -> usize {
        2 * self.pieces(x) * self.columns() * x.dtype.accumulator().bytes()
    }

    /// How the norm of x is computed where its operands are aligned, and where they are not.
    fn way(&self, x: &Type, aligned: bool) -> Way {
        let together = 16 / x.dtype.bytes();
        let is_row = self.groups == 1 && self.positions == 1 && self.part.is_multiple_of(together);
        match self.lanes(together) {
            _ if self.of_columns => Way::Columns,
            Some((warps, packs)) if is_row && aligned => Way::Rows { warps, packs, together },
            _ => Way::Sets,
        }
    }

    /// Warps of a row and packs of a lane, where a row is short enough to stay in registers.
    fn lanes(&self, together: usize) -> Option<(usize, usize)> {
        let packs = |warps: usize| self.part.div_ceil(32 * warps * together);
        if packs(1) <= PACKS_OF_ONE {
            return Some((1, packs(1)));
        }
        let [usual, most] = PACKS_OF_SEVERAL;
        let warps = [2, 4, WARPS].into_iter().find(|warps| packs(*warps) <= usual).unwrap_or(WARPS);
        (packs(warps) <= most).then(|| (warps, packs(warps)))
    }

    /// The source for a call with a result, or the gradient of one, of a type, and how it goes about it.
    fn code(&self, call: &Call<'_>, y: &Type, relu: bool) -> (Code<'static>, Way, Cut) {
        let x = call.inputs[0].ty;
        let aligned = call.inputs.iter().chain(call.outputs).all(|x| (x.ptr as usize).is_multiple_of(16));
        let way = self.way(x, aligned);
        let rounded =
            call.outputs.get(3).filter(|_| !self.of_columns).map_or(x.dtype, |rounded| rounded.ty.dtype);
        let code = Code::of("norm", TEXT, x.dtype).with_type("Y", y.dtype).with_type("R", rounded);
        let cut = match way {
            Way::Columns if aligned => Cut::new(x.dtype, self.columns()),
            _ => Cut::single(self.columns()),
        };
        let code = match way {
            Way::Sets => cut.code(code.with("WAY", 0)),
            Way::Rows { warps, packs, together } => code
                .with("WAY", 1)
                .with("WARPS", warps)
                .with("PACKS", packs)
                .with("N", together)
                .with("ACROSS", 32),
            Way::Columns => cut.code(code.with("WAY", 2).with("RELU", usize::from(relu))),
        };
        (code, way, cut)
    }
}

/// How a norm is computed.
#[derive(Clone, Copy)]
enum Way {
    /// A block a set of elements that share statistics.
    Sets,
    /// One or several warps a row, which stays in registers.
    Rows { warps: usize, packs: usize, together: usize },
    /// By sums of columns.
    Columns,
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
    added: *mut u8,
    rounded: *mut u8,
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
    added: null_mut(),
    rounded: null_mut(),
};

fn args(a: &Addresses, view: View, call: &Call<'_>, eps: f64) -> Args {
    [a.x, a.gamma, a.beta, a.mean, a.rstd, a.dy, a.y, a.out_mean, a.out_var, a.out_rstd, a.dgamma, a.dbeta]
        .into_iter()
        .fold(Args::new(), Args::at)
        .at(call.scratch)
        .int(view.samples)
        .int(view.positions)
        .int(view.groups)
        .int(view.part)
        .int(view.pieces(call.inputs[0].ty))
        .float(eps)
        .at(a.added)
        .at(a.rounded)
}

/// A forward norm but for batch norm.
unsafe fn forward(cuda: &Cuda, call: &Call<'_>, view: View, a: &Addresses, eps: f64) -> Result<(), Error> {
    let x = call.inputs[0].ty;
    if x.elements() == 0 {
        return Ok(());
    }
    let (code, way, _) = view.code(call, call.outputs[0].ty, false);
    let grid = match way {
        Way::Rows { warps, .. } => Grid::tiles(view.samples.div_ceil(WARPS / warps), 1, 1, 256),
        _ => Grid::rows(view.samples * view.groups, view.positions * view.part),
    };
    // SAFETY: the caller's promise.
    unsafe { cuda.launch(&code, "forward", grid, &args(a, view, call, eps)) }
}

/// The gradient. What sums x and dy over columns comes before dx, which may lie over one of them, or is one with it.
unsafe fn backward(cuda: &Cuda, call: &Call<'_>, view: View, dy: &Type, a: &Addresses) -> Result<(), Error> {
    let x = call.inputs[0].ty;
    let (code, way, cut) = view.code(call, dy, !a.beta.is_null());
    let (args, pieces) = (args(a, view, call, 0.0), view.pieces(x));
    // SAFETY: the caller's promise; the scratch holds two sums for every piece and column.
    unsafe {
        if let Way::Rows { .. } = way {
            let shared = (2 * view.columns() * x.dtype.accumulator().bytes()) as u32;
            cuda.launch(&code, "backward", Grid { shared, ..Grid::tiles(pieces, 1, 1, 256) }, &args)?;
            return cuda.launch(&code, "scales", cut.join(), &args);
        }
        cuda.launch(&code, "scale_sums", cut.grid(pieces), &args)?;
        cuda.launch(&code, "scales", cut.join(), &args)?;
        if x.elements() == 0 {
            return Ok(());
        }
        let grid = match way {
            Way::Columns => cut.grid(pieces),
            _ => Grid::rows(view.samples * view.groups, view.positions * view.part),
        };
        cuda.launch(&code, "backward", grid, &args)
    }
}

fn at(operands: &[Operand<'_>], i: usize) -> *mut u8 {
    operands[i].ptr
}

/// The addresses that every call has first: inputs x, γ; output y or dx.
fn ends(call: &Call<'_>) -> Addresses {
    let (i, o) = (call.inputs, call.outputs);
    Addresses { x: at(i, 0), gamma: at(i, 1), y: at(o, 0), ..NOWHERE }
}

/// The addresses of a norm with an offset: inputs x, γ, β; outputs y, mean, rstd.
fn with_offset(call: &Call<'_>) -> Addresses {
    let (i, o) = (call.inputs, call.outputs);
    Addresses { beta: at(i, 2), out_mean: at(o, 1), out_rstd: at(o, 2), ..ends(call) }
}

impl Kernel for LayerNorm {
    unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe {
            forward(cuda, call, View::layer(call.inputs[0].ty, self.axes), &with_offset(call), self.eps.0)
        }
    }
}

impl Kernel for RmsNorm {
    unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
        let a = Addresses { out_rstd: at(call.outputs, 1), ..ends(call) };
        // SAFETY: the caller's promise.
        unsafe { forward(cuda, call, View::layer(call.inputs[0].ty, 1), &a, self.eps.0) }
    }
}

impl Kernel for GroupNorm {
    unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe {
            forward(cuda, call, View::group(call.inputs[0].ty, self.groups), &with_offset(call), self.eps.0)
        }
    }
}

impl Kernel for BatchNorm {
    fn scratch(&self, _: &Cuda, inputs: &[&Type], _: &[&Type]) -> Result<usize, Error> {
        Ok(View::batch(inputs[0]).partial_bytes(inputs[0]))
    }

    unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
        let (i, o, view) = (call.inputs, call.outputs, View::batch(call.inputs[0].ty));
        let (mean, var, rstd) = (at(o, 1), at(o, 2), at(o, 3));
        let (code, _, cut) = view.code(call, o[0].ty, self.relu);
        let first = Addresses { x: at(i, 0), out_mean: mean, out_var: var, out_rstd: rstd, ..NOWHERE };
        let second = Addresses { beta: at(i, 2), mean, rstd, ..ends(call) };
        let args = |a: &Addresses| args(a, view, call, self.eps.0);
        let grid = cut.grid(view.pieces(i[0].ty));
        if i[0].ty.elements() == 0 {
            return Ok(());
        }
        // SAFETY: the caller's promise; the scratch holds two sums for every piece and column.
        unsafe {
            cuda.launch(&code, "moments", grid, &args(&first))?;
            cuda.launch(&code, "statistics", cut.join(), &args(&first))?;
            cuda.launch(&code, "apply", grid, &args(&second))
        }
    }
}

/// The addresses of a gradient with a mean: inputs x, γ, mean, rstd, dy, and β where a relu follows; outputs dx, dγ, dβ.
fn with_mean(call: &Call<'_>) -> Addresses {
    let (i, o) = (call.inputs, call.outputs);
    Addresses {
        beta: i.get(5).map_or(null_mut(), |beta| beta.ptr),
        mean: at(i, 2),
        rstd: at(i, 3),
        dy: at(i, 4),
        dgamma: at(o, 1),
        dbeta: at(o, 2),
        ..ends(call)
    }
}

/// The same with what is added to dx behind dy, and dx rounded behind dβ.
fn and_added(call: &Call<'_>) -> Addresses {
    let rounded = call.outputs.get(3).map_or(null_mut(), |rounded| rounded.ptr);
    Addresses { beta: null_mut(), added: at(call.inputs, 5), rounded, ..with_mean(call) }
}

macro_rules! gradients {
    ($($op:ty, $this:ident, $x:ident => $view:expr, $addresses:expr, $dy:expr;)+) => { $(
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
                unsafe { backward(cuda, call, $view, call.inputs[$dy].ty, &$addresses(call)) }
            }
        }
    )+ };
}
gradients! {
    LayerNormGrad, this, x => View::layer(x, this.axes), with_mean, 4;
    LayerNormGradAdd, this, x => View::layer(x, this.axes), and_added, 4;
    GroupNormGrad, this, x => View::group(x, this.groups), with_mean, 4;
    BatchNormGrad, this, x => View::batch(x), with_mean, 4;
    RmsNormGrad, this, x => View::layer(x, 1), without_mean, 3;
}

/// The addresses of RMS norm's gradient: inputs x, γ, rstd, dy; outputs dx, dγ.
fn without_mean(call: &Call<'_>) -> Addresses {
    let i = call.inputs;
    Addresses { rstd: at(i, 2), dy: at(i, 3), dgamma: at(call.outputs, 1), ..ends(call) }
}
