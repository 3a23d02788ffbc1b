//! Running sums and products along one axis.

use std::ptr::null_mut;

use plimsoll_device::backend::Call;
use plimsoll_graph::Type;
use plimsoll_graph::ops::{CumProdGrad, Cumulative, CumulativeKind};

use super::Kernel;
use super::layout::around;
use crate::Cuda;
use crate::error::Error;
use crate::launch::{Args, Code, Grid};

const TEXT: &str = include_str!("cumulative.cu");

/// Lines of fewer elements have a thread each.
const LONG: usize = 64;

fn code(x: &Type, join: &str) -> Code<'static> {
    let mut code = Code::of("cumulative", TEXT, x.dtype);
    code.head += &format!("#define JOIN {join}\n");
    code
}

impl Kernel for Cumulative {
    unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
        let (x, y) = (call.inputs[0], call.outputs[0]);
        if x.ty.elements() == 0 {
            return Ok(());
        }
        let (length, (outer, inner)) = (x.ty.shape[self.axis], around(x.ty, self.axis));
        let lines = outer * inner;
        let args = Args::new().at(x.ptr).at(null_mut()).at(y.ptr).at(null_mut());
        let args = args.int(lines).int(length).int(inner).int(self.exclusive.into()).int(self.reverse.into());
        let join = match self.kind {
            CumulativeKind::Sum => "Sum",
            CumulativeKind::Prod => "Product",
        };
        // Lines side by side are read side by side; a line by itself wants more than one thread.
        let (kernel, grid) = if length < LONG || inner >= 32 {
            ("lines", Grid::each(lines))
        } else {
            ("pieces", Grid::rows(lines, length))
        };
        // SAFETY: the caller's promise; a line is written by one thread or block, behind what it has read.
        unsafe { cuda.launch(&code(x.ty, join), kernel, grid, &args) }
    }
}

impl Kernel for CumProdGrad {
    fn scratch(&self, _: &Cuda, inputs: &[&Type], _: &[&Type]) -> Result<usize, Error> {
        Ok(inputs[0].elements() * inputs[0].dtype.accumulator().bytes())
    }

    unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
        let (x, dy, dx) = (call.inputs[0], call.inputs[1], call.outputs[0]);
        if x.ty.elements() == 0 {
            return Ok(());
        }
        let (outer, inner) = around(x.ty, self.axis);
        let lines = outer * inner;
        let args = Args::new().at(x.ptr).at(dy.ptr).at(dx.ptr).at(call.scratch);
        let args = args.int(lines).int(x.ty.shape[self.axis]).int(inner);
        let args = args.int(self.exclusive.into()).int(self.reverse.into());
        // SAFETY: the caller's promise; the scratch holds a product for every element.
        unsafe { cuda.launch(&code(x.ty, "Product"), "product_grad", Grid::each(lines), &args) }
    }
}
