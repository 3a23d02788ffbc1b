//! A kernel for every op, in the file of the same name as the op's; beside it, its CUDA source.

use plimsoll_device::backend::Call;
use plimsoll_graph::{Op, Type};

use crate::Cuda;
use crate::error::Error;

mod attention;
mod by_library;
mod columns;
mod conv;
mod element;
mod fold;
mod gather;
mod layout;
mod loss;
mod matmul;
mod norm;
mod pool;
mod random;
mod recurrent;
mod reduce;
mod relu;
mod resize;
mod softmax;
mod strided;

pub(crate) use matmul::{Matrix, Product};

/// All sources: what was timed with others is not known of these.
pub(crate) const SOURCES: [&str; 26] = [
    include_str!("argmax.cu"),
    include_str!("attention.cu"),
    include_str!("attention_args.cu"),
    include_str!("column_sums.cu"),
    include_str!("columns.cu"),
    include_str!("conv.cu"),
    include_str!("element.cu"),
    include_str!("flash.cu"),
    include_str!("fold.cu"),
    include_str!("gather.cu"),
    include_str!("iota.cu"),
    include_str!("layout.cu"),
    include_str!("loss.cu"),
    include_str!("matmul.cu"),
    include_str!("norm.cu"),
    include_str!("pool.cu"),
    include_str!("prelude.cu"),
    include_str!("prod_grad.cu"),
    include_str!("random.cu"),
    include_str!("recurrent.cu"),
    include_str!("reduce.cu"),
    include_str!("relu.cu"),
    include_str!("resize.cu"),
    include_str!("softmax.cu"),
    include_str!("tensor.cu"),
    include_str!("tile.cu"),
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

/// The kernel of an op: every op has one, or this does not compile.
pub(crate) fn kernel(op: &Op) -> &dyn Kernel {
    match op {
        Op::ConvGradFilter(k) => k,
        Op::ConvGradInput(k) => k,
        Op::Conv(k) => k,
        Op::ResizeGrad(k) => k,
        Op::Resize(k) => k,
        Op::AvgPoolGrad(k) => k,
        Op::AvgPool(k) => k,
        Op::MaxPoolGather(k) => k,
        Op::MaxPoolGrad(k) => k,
        Op::MaxPool(k) => k,
        Op::Unary(k) => k,
        Op::Binary(k) => k,
        Op::Compare(k) => k,
        Op::Select(k) => k,
        Op::Cast(k) => k,
        Op::ReluGrad(k) => k,
        Op::Fused(k) => k,
        Op::ReluMask(k) => k,
        Op::ReluMaskGrad(k) => k,
        Op::Full(k) => k,
        Op::Iota(k) => k,
        Op::Broadcast(k) => k,
        Op::Reshape(k) => k,
        Op::Transpose(k) => k,
        Op::Slice(k) => k,
        Op::Pad(k) => k,
        Op::Concat(k) => k,
        Op::Split(k) => k,
        Op::Reduce(k) => k,
        Op::ProdGrad(k) => k,
        Op::ArgMax(k) => k,
        Op::MatMul(k) => k,
        Op::Softmax(k) => k,
        Op::SoftmaxGrad(k) => k,
        Op::LogSoftmax(k) => k,
        Op::LogSoftmaxGrad(k) => k,
        Op::CrossEntropy(k) => k,
        Op::CrossEntropyGrad(k) => k,
        Op::DenseCrossEntropy(k) => k,
        Op::DenseCrossEntropyGrad(k) => k,
        Op::LayerNorm(k) => k,
        Op::LayerNormGrad(k) => k,
        Op::RmsNorm(k) => k,
        Op::RmsNormGrad(k) => k,
        Op::GroupNorm(k) => k,
        Op::GroupNormGrad(k) => k,
        Op::BatchNorm(k) => k,
        Op::BatchNormGrad(k) => k,
        Op::Gather(k) => k,
        Op::ScatterAdd(k) => k,
        Op::OneHot(k) => k,
        Op::TakeAlong(k) => k,
        Op::PutAlongAdd(k) => k,
        Op::Attention(k) => k,
        Op::AttentionGrad(k) => k,
        Op::Lstm(k) => k,
        Op::LstmGrad(k) => k,
        Op::Gru(k) => k,
        Op::GruGrad(k) => k,
        Op::Uniform(k) => k,
        Op::Normal(k) => k,
        Op::Dropout(k) => k,
    }
}
