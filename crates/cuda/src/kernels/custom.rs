//! Launches kernels that users wrote in CUDA.

use std::borrow::Cow;

use plimsoll_device::backend::{Call, Fault};
use plimsoll_graph::custom::{CudaArgument, CudaKernel};
use plimsoll_graph::{Type, ops};
use smallvec::SmallVec;

use super::Kernel;
use crate::Cuda;
use crate::error::Error;
use crate::launch::{Args, Code, Grid};

fn kernel_of(op: &ops::Custom, inputs: &[&Type], outputs: &[&Type]) -> Result<CudaKernel, Error> {
    let why =
        || "its CustomOp has no kernel for a card; write CustomOp::cuda, or run it on the CPU".to_string();
    op.op().cuda(inputs, outputs).ok_or_else(|| Fault::new(op.op().name(), why()).into())
}

impl Kernel for ops::Custom {
    fn scratch(&self, _: &Cuda, inputs: &[&Type], outputs: &[&Type]) -> Result<usize, Error> {
        kernel_of(self, inputs, outputs)?;
        Ok(self.op().scratch(inputs, outputs))
    }

    unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
        let inputs: SmallVec<[&Type; 8]> = call.inputs.iter().map(|x| x.ty).collect();
        let outputs: SmallVec<[&Type; 8]> = call.outputs.iter().map(|x| x.ty).collect();
        let kernel = kernel_of(self, &inputs, &outputs)?;
        let code = Code {
            name: "custom",
            text: "",
            head: String::new(),
            tail: Cow::Borrowed(&kernel.source),
            contract: true,
        };
        let mut args = call.inputs.iter().chain(call.outputs).fold(Args::new(), |args, x| args.at(x.ptr));
        if self.op().scratch(&inputs, &outputs) > 0 {
            args = args.at(call.scratch);
        }
        for argument in &kernel.arguments {
            args = match *argument {
                CudaArgument::Int(value) => args.int(value as usize),
                CudaArgument::Float(value) => args.float(value),
            };
        }
        // SAFETY: the caller's promise; that the source takes these arguments is its author's.
        unsafe { cuda.launch(&code, &kernel.name, Grid::each(kernel.threads), &args) }
    }
}
