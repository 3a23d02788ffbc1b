//! An optimizer's step over state in bf16, rounded by draws of a counter.

use std::ptr::null_mut;

use plimsoll_device::backend::{Call, Operand};
use plimsoll_graph::ops::Bf16Update;

use super::{Kernel, update};
use crate::Cuda;
use crate::error::Error;
use crate::launch::Grid;

const TEXT: &str =
    concat!(include_str!("philox.cu"), include_str!("update.cu"), include_str!("bf16_update.cu"));

/// Numbers of a thread, as in the source.
const OF_THREAD: usize = 8;

impl Kernel for Bf16Update {
    unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
        let (n, dtype) = (call.inputs[0].ty.elements(), call.inputs[0].ty.dtype);
        if n == 0 {
            return Ok(());
        }
        let mut args = update::moved(&self.update, call);
        for at in self.key()..self.key() + 3 {
            args = args.at(call.inputs.get(at).map_or(null_mut(), |x| x.ptr));
        }
        for at in 1..3 {
            args = args.at(call.outputs.get(at).map_or(null_mut(), |y| y.ptr));
        }
        // Blocks of draws are at multiples of four elements of the whole parameter, and a thread has two; no more than 16 bytes go at once.
        let lies_well = |operand: &Operand<'_>| {
            (operand.ptr as usize).is_multiple_of((OF_THREAD * operand.ty.dtype.bytes()).min(16))
        };
        let of_elements = call.inputs.iter().filter(|x| x.ty.elements() == n).chain(call.outputs);
        let is_whole = [self.first, n].iter().all(|at| at.is_multiple_of(OF_THREAD))
            && of_elements.into_iter().all(lies_well);
        let args = args.int(self.first).int(self.stream as usize);
        let shares = (self.first + n).div_ceil(OF_THREAD) - self.first / OF_THREAD;
        let code =
            update::code("bf16_update", TEXT, &self.update, dtype).with("WHOLE", usize::from(is_whole));
        // SAFETY: the caller's promise; the arguments are in the order of the source's struct.
        unsafe { cuda.launch(&code, "bf16_update", Grid::each(shares), &args) }
    }
}
