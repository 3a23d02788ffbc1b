//! A matrix product that is scaled and added to something: as the product of the same operands, told to add.

use plimsoll_device::backend::Call;
use plimsoll_graph::Type;
use plimsoll_graph::ops::MatMulAdd;

use super::matmul::product;
use super::{Kernel, Product};
use crate::Cuda;
use crate::error::Error;

fn scaled(op: &MatMulAdd, types: &[&Type], at: &[*mut u8], y: *mut u8) -> Result<Product, Error> {
    let product = product(&op.product(), &types[..2], &at[..2], y)?;
    Ok(Product { accumulate: op.add, onto: op.add.then(|| at[2]), scale: op.scale.0, ..product })
}

impl Kernel for MatMulAdd {
    fn scratch(&self, cuda: &Cuda, inputs: &[&Type], _: &[&Type]) -> Result<usize, Error> {
        // Any aligned address will do: what is chosen depends on sizes and alignment alone.
        let address = 4096 as *mut u8;
        Ok(scaled(self, inputs, &vec![address; inputs.len()], address)?.scratch(cuda))
    }

    unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
        let types: Vec<&Type> = call.inputs.iter().map(|x| x.ty).collect();
        let at: Vec<*mut u8> = call.inputs.iter().map(|x| x.ptr).collect();
        // SAFETY: the caller's promise; where what is added is the result's memory, each element is read before it is written.
        unsafe { scaled(self, &types, &at, call.outputs[0].ptr)?.run(cuda, call.scratch, call.scratch_bytes) }
    }
}
