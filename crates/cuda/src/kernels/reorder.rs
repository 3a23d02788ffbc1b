//! Flip and roll.

use plimsoll_device::backend::Call;
use plimsoll_graph::ops::{AxisOrder, Reorder};

use super::Kernel;
use super::layout::around;
use crate::Cuda;
use crate::error::Error;
use crate::launch::{Args, Code, Grid};

const TEXT: &str = include_str!("reorder.cu");

impl Kernel for Reorder {
    unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
        let (x, y) = (call.inputs[0], call.outputs[0]);
        let n = x.ty.elements();
        if n == 0 {
            return Ok(());
        }
        let (length, (_, inner)) = (x.ty.shape[self.axis], around(x.ty, self.axis));
        let (flip, shift) = match self.order {
            AxisOrder::Flip => (1, 0),
            AxisOrder::Roll(shift) => (0, shift % length),
        };
        let args = Args::new().at(x.ptr).at(y.ptr).int(n).int(length).int(inner).int(flip).int(shift);
        // SAFETY: the caller's promise.
        unsafe { cuda.launch(&Code::of("reorder", TEXT, x.ty.dtype), "reorder", Grid::each(n), &args) }
    }
}
