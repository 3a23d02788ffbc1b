//! A matrix product that is scaled and added to something: as the product of the same operands, told to add.

use plimsoll_device::backend::Call;
use plimsoll_graph::Type;
use plimsoll_graph::ops::MatMulAdd;

use super::matmul::{anywhere, of_call, product};
use super::{Kernel, Product};
use crate::Cuda;
use crate::error::Error;

fn scaled(op: &MatMulAdd, types: &[&Type], at: &[*mut u8], y: *mut u8) -> Result<Product, Error> {
    let product = product(&op.product(), &types[..2], &at[..2], y)?;
    Ok(Product { accumulate: op.add, onto: op.add.then(|| at[2]), scale: op.scale.0, ..product })
}

impl Kernel for MatMulAdd {
    fn scratch(&self, cuda: &Cuda, inputs: &[&Type], _: &[&Type]) -> Result<usize, Error> {
        let product = anywhere(inputs, |at, y| scaled(self, inputs, at, y))?;
        Ok(product.scratch(cuda))
    }

    unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
        // SAFETY: the caller's promise; where what is added is the result's memory, each element is read before it is written.
        unsafe {
            of_call(call, |types, at, y| scaled(self, types, at, y))?.run(
                cuda,
                call.scratch,
                call.scratch_bytes,
            )
        }
    }
}
