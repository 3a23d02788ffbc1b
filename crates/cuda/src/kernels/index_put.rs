//! Writing by index.

use plimsoll_device::backend::Call;
use plimsoll_graph::Type;
use plimsoll_graph::ops::IndexPut;

use super::Kernel;
use super::layout::around;
use crate::Cuda;
use crate::error::Error;
use crate::launch::{Args, Code, Grid};
use crate::memory::refusal_code;

const TEXT: &str = include_str!("index_put.cu");

impl Kernel for IndexPut {
    fn scratch(&self, _: &Cuda, inputs: &[&Type], _: &[&Type]) -> Result<usize, Error> {
        Ok(4 * inputs[0].shape[self.axis])
    }

    unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
        let (x, values, index, y) = (call.inputs[0], call.inputs[1], call.inputs[2], call.outputs[0]);
        let (length, (outer, inner)) = (x.ty.shape[self.axis], around(x.ty, self.axis));
        let (indices, n) = (index.ty.elements(), values.ty.elements());
        let args = Args::new().at(values.ptr).at(index.ptr).at(y.ptr).at(call.scratch);
        let args = args.int(outer).int(length).int(indices).int(inner);
        let args = args.at(cuda.0.flag).int(refusal_code(call.op.name()));
        let code = Code::of("index_put", TEXT, x.ty.dtype).with_type("I", index.ty.dtype);
        // SAFETY: the caller's promise; the scratch holds a number for every place.
        unsafe {
            if x.ptr != y.ptr {
                cuda.copy(y.ptr, x.ptr, x.ty.bytes())?;
            }
            if indices == 0 {
                return Ok(());
            }
            cuda.zero(call.scratch, 4 * length)?;
            cuda.launch(&code, "find_last", Grid::each(indices), &args)?;
            if n == 0 { Ok(()) } else { cuda.launch(&code, "put", Grid::each(n), &args) }
        }
    }
}
