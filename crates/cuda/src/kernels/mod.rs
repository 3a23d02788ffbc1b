//! A kernel for every op, in the file of the same name as the op's; beside it, its CUDA source.

use plimsoll_device::backend::Call;
use plimsoll_graph::{Op, Type};

use crate::Cuda;
use crate::error::Error;

mod attention;
mod attention_grad;
mod bf16_update;
mod by_library;
mod columns;
mod conv;
mod cumulative;
mod custom;
mod eight_bit;
mod element;
mod exchange;
mod fold;
mod frozen_cross_entropy;
mod gather;
mod grid_sample;
mod index_put;
mod layout;
mod linear_cross_entropy;
mod loss;
mod matmul;
mod matmul_add;
mod norm;
mod patches;
mod pool;
mod quant_matmul;
mod random;
mod recurrent;
mod reduce;
mod relu;
mod reorder;
mod resize;
mod rotary;
mod softmax;
mod sort;
mod straight;
mod strided;
mod update;

pub(crate) use matmul::{Matrix, Product};

/// All sources: what was timed with others is not known of these.
pub(crate) const SOURCES: [&str; 42] = [
    include_str!("argmax.cu"),
    include_str!("attention.cu"),
    include_str!("attention_args.cu"),
    include_str!("bf16_update.cu"),
    include_str!("column_sums.cu"),
    include_str!("columns.cu"),
    include_str!("conv.cu"),
    include_str!("cumulative.cu"),
    include_str!("eight_bit.cu"),
    include_str!("eight_bit_values.cu"),
    include_str!("element.cu"),
    include_str!("exp_sums.cu"),
    include_str!("flash.cu"),
    include_str!("fold.cu"),
    include_str!("frozen_cross_entropy.cu"),
    include_str!("gather.cu"),
    include_str!("grid_sample.cu"),
    include_str!("index_put.cu"),
    include_str!("iota.cu"),
    include_str!("layout.cu"),
    include_str!("linear_cross_entropy/by_classes.cu"),
    include_str!("linear_cross_entropy/by_samples.cu"),
    include_str!("loss.cu"),
    include_str!("matmul.cu"),
    include_str!("norm.cu"),
    include_str!("philox.cu"),
    include_str!("pool.cu"),
    include_str!("prelude.cu"),
    include_str!("prod_grad.cu"),
    include_str!("quant_matmul.cu"),
    include_str!("random.cu"),
    include_str!("recurrent.cu"),
    include_str!("reduce.cu"),
    include_str!("relu.cu"),
    include_str!("reorder.cu"),
    include_str!("resize.cu"),
    include_str!("rotary.cu"),
    include_str!("softmax.cu"),
    include_str!("sort.cu"),
    include_str!("tensor.cu"),
    include_str!("tile.cu"),
    include_str!("update.cu"),
];

/// What the card knows of one op.
pub(crate) trait Kernel {
    /// The bytes of scratch it needs for these types; an error where there is no kernel.
    fn scratch(&self, _cuda: &Cuda, _inputs: &[&Type], _outputs: &[&Type]) -> Result<usize, Error> {
        Ok(0)
    }

    /// Puts the computation of the outputs on the stream.
    ///
    /// # Safety
    /// As for [`plimsoll_device::backend::Backend::run`].
    unsafe fn run(&self, cuda: &Cuda, call: &Call<'_>) -> Result<(), Error>;
}

/// The places of several parts of a call's scratch, one after the other, each aligned as operands are.
pub(crate) struct Parts {
    at: *mut u8,
    used: usize,
}

impl Parts {
    /// The parts of a call's scratch.
    pub(crate) fn new(call: &Call<'_>) -> Parts {
        Parts { at: call.scratch, used: 0 }
    }

    /// The next part.
    pub(crate) fn take(&mut self, bytes: usize) -> *mut u8 {
        let at = self.at.wrapping_add(self.used);
        self.used += padded(bytes);
        at
    }

    /// The bytes behind the parts that were taken.
    pub(crate) fn left(&self, call: &Call<'_>) -> usize {
        call.scratch_bytes.saturating_sub(self.used)
    }
}

/// What a part of scratch takes.
pub(crate) fn padded(bytes: usize) -> usize {
    bytes.next_multiple_of(256)
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
