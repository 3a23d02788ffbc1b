//! A matrix product that is scaled and added to something: as the product of the same operands, told to add to what is there.
//!
//! cuBLASLt can read what is added from elsewhere, but then runs other code, with other last bits (seen on an H200 for nearly all sizes of a language model). Where a
//! result lies is the plan's to say, and must not change it. So what is added is copied to where the result goes, unless it lies there.

use plimsoll_device::backend::Call;
use plimsoll_graph::Type;
use plimsoll_graph::ops::MatMulAdd;

use super::matmul::{anywhere, of_call, product};
use super::{Kernel, Product};
use crate::Cuda;
use crate::error::Error;

fn scaled(op: &MatMulAdd, types: &[&Type], at: &[*mut u8], y: *mut u8) -> Result<Product, Error> {
    let product = product(&op.product(), &types[..2], &at[..2], y)?;
    Ok(Product { accumulate: op.add, scale: op.scale.0, ..product })
}

impl Kernel for MatMulAdd {
    fn scratch(&self, cuda: &Cuda, inputs: &[&Type], _: &[&Type]) -> Result<usize, Error> {
        let product = anywhere(inputs, |at, y| scaled(self, inputs, at, y))?;
        Ok(product.scratch(cuda))
    }

    unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
        // SAFETY: the caller's promise: what is added has as many bytes as the result, and lies apart from it or in its place.
        unsafe {
            if let (true, [_, _, added, ..], [y, ..]) = (self.add, call.inputs, call.outputs)
                && added.ptr != y.ptr
            {
                cuda.copy(y.ptr, added.ptr, y.ty.bytes())?;
            }
            of_call(call, |types, at, y| scaled(self, types, at, y))?.run(
                cuda,
                call.scratch,
                call.scratch_bytes,
            )
        }
    }
}
