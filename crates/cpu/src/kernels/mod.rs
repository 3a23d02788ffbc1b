//! A kernel for every op, in the file of the same name as the op's.

use plimsoll_device::backend::{Call, Fault};
use plimsoll_graph::{Op, Type};

use crate::Cpu;

mod gather;
mod lanes;
mod loss;
mod norm;
mod softmax;

mod element;
mod layout;
mod matmul;
mod reduce;
mod relu;
mod strided;

mod conv;
mod image;
mod pool;
mod resize;

mod attention;
mod random;
mod real;
mod recurrent;
mod small_matmul;

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
