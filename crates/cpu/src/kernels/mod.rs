//! A kernel for every op, in the file of the same name as the op's.

use plimsoll_device::backend::{Call, Fault};
use plimsoll_graph::{Op, Type};

use crate::Cpu;

mod bf16_update;
mod cumulative;
mod eight_bit;
mod exchange;
mod frozen_cross_entropy;
mod gather;
mod grid_sample;
mod index_put;
mod lanes;
mod linear_cross_entropy;
mod loss;
mod norm;
mod reorder;
mod softmax;
mod sort;

mod custom;
mod element;
mod layout;
mod matmul;
mod matmul_add;
mod quant_matmul;
mod reduce;
mod relu;
mod strided;

mod carver;
mod conv;
mod image;
mod pool;
mod resize;
mod rotary;

mod attention;
mod random;
mod recurrent;
mod small_matmul;
mod update;

/// What the CPU knows of one op.
pub(crate) trait Kernel {
    /// The bytes of scratch it needs for these types.
    fn scratch(&self, _cpu: &Cpu, _inputs: &[&Type], _outputs: &[&Type]) -> usize {
        0
    }

    /// Computes the outputs.
    ///
    /// # Safety
    /// As for [`plimsoll_device::backend::Backend::run`].
    unsafe fn run(&self, cpu: &Cpu, call: &Call<'_>) -> Result<(), Fault>;
}

macro_rules! kernel_table {
    ($( $section:literal { $( $(#[doc = $doc:literal])+ $name:ident, )+ } )+) => {
        /// The kernel of an op: every op has one, or this does not compile.
        pub(crate) fn kernel(op: &Op) -> &dyn Kernel {
            match op { $( $( Op::$name(kernel) => kernel, )+ )+ }
        }
    };
}

plimsoll_graph::with_ops!(kernel_table);
