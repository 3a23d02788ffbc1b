//! Cross-entropy of logits against labels or distributions.

use plimsoll_device::backend::Call;
use plimsoll_graph::DType;
use plimsoll_graph::ops::{CrossEntropy, CrossEntropyGrad, DenseCrossEntropy, DenseCrossEntropyGrad};

use super::Kernel;
use crate::Cuda;
use crate::error::Error;
use crate::launch::{Args, Code, Grid};
use crate::memory::refusal_code;

const TEXT: &str = include_str!("loss.cu");

/// Up to so many classes a thread has a sample for itself.
const FEW: usize = 16;
/// Rows of more classes than this are passed by packs wherever they begin.
const LONG: usize = 64;

unsafe fn run(cuda: &Cuda, call: &Call<'_>, kernel: &str) -> Result<(), Error> {
    let (x, target) = (call.inputs[0], call.inputs[1]);
    let classes = x.ty.shape.last().copied().unwrap_or(1);
    let rows = x.ty.elements() / classes.max(1);
    if rows == 0 {
        return Ok(());
    }
    let input = |i: usize| call.inputs.get(i).map_or(std::ptr::null_mut(), |x| x.ptr);
    // The forward ops have two results in the accumulator's type; the gradients have one in that of the logits.
    let (loss, sum, dx) = match call.outputs {
        [loss, sum] => (loss.ptr, sum.ptr, std::ptr::null_mut()),
        _ => (std::ptr::null_mut(), std::ptr::null_mut(), call.outputs[0].ptr),
    };
    let args = Args::new()
        .at(x.ptr)
        .at(target.ptr)
        .at(input(2))
        .at(input(3))
        .at(loss)
        .at(sum)
        .at(dx)
        .int(rows)
        .int(classes)
        .at(cuda.0.flag)
        .int(refusal_code(call.op.name()));
    let labels = if target.ty.dtype == DType::I32 { DType::I32 } else { DType::I64 };
    let most = 16 / x.ty.dtype.bytes();
    let aligned = [x.ptr, dx].iter().all(|&at| (at as usize).is_multiple_of(16));
    // Long rows that begin anywhere are passed by packs all the same, but for their ends.
    let anywhere = !classes.is_multiple_of(most) && aligned && classes > LONG;
    let together = if (classes.is_multiple_of(most) && aligned) || anywhere { most } else { 1 };
    let code = Code::of("loss", TEXT, x.ty.dtype)
        .with_type("I", labels)
        .with("N", together)
        .with("ANYWHERE", usize::from(anywhere));
    let code = code.with("SHORT", usize::from(x.ty.dtype.bytes() == 2));
    if classes <= FEW && target.ty.dtype != x.ty.dtype {
        // SAFETY: the caller's promise.
        return unsafe { cuda.launch(&code, &format!("few_{kernel}"), Grid::each(rows), &args) };
    }
    // SAFETY: the caller's promise.
    unsafe { cuda.launch(&code, kernel, Grid::rows(rows, classes.div_ceil(together)), &args) }
}

macro_rules! a_row_a_sample {
    ($($op:ty, $kernel:literal;)+) => { $(
        impl Kernel for $op {
            unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error> {
                // SAFETY: the caller's promise.
                unsafe { run(cuda, call, $kernel) }
            }
        }
    )+ };
}
a_row_a_sample! {
    CrossEntropy, "cross_entropy";
    CrossEntropyGrad, "cross_entropy_grad";
    DenseCrossEntropy, "dense_cross_entropy";
    DenseCrossEntropyGrad, "dense_cross_entropy_grad";
}
