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

/// The kernel of an op, if there is one.
pub(crate) fn kernel(op: &Op) -> Option<&dyn Kernel> {
    match op {
        Op::ConvGradFilter(k) => Some(k),
        Op::ConvGradInput(k) => Some(k),
        Op::Conv(k) => Some(k),
        Op::ResizeGrad(k) => Some(k),
        Op::Resize(k) => Some(k),
        Op::AvgPoolGrad(k) => Some(k),
        Op::AvgPool(k) => Some(k),
        Op::MaxPoolGather(k) => Some(k),
        Op::MaxPoolGrad(k) => Some(k),
        Op::MaxPool(k) => Some(k),
        Op::Unary(k) => Some(k),
        Op::Binary(k) => Some(k),
        Op::Compare(k) => Some(k),
        Op::Select(k) => Some(k),
        Op::Cast(k) => Some(k),
        Op::ReluGrad(k) => Some(k),
        Op::Fused(k) => Some(k),
        Op::ReluMask(k) => Some(k),
        Op::ReluMaskGrad(k) => Some(k),
        Op::Full(k) => Some(k),
        Op::Iota(k) => Some(k),
        Op::Broadcast(k) => Some(k),
        Op::Reshape(k) => Some(k),
        Op::Transpose(k) => Some(k),
        Op::Slice(k) => Some(k),
        Op::Pad(k) => Some(k),
        Op::Concat(k) => Some(k),
        Op::Split(k) => Some(k),
        Op::Reduce(k) => Some(k),
        Op::ProdGrad(k) => Some(k),
        Op::ArgMax(k) => Some(k),
        Op::MatMul(k) => Some(k),
        Op::Softmax(k) => Some(k),
        Op::SoftmaxGrad(k) => Some(k),
        Op::LogSoftmax(k) => Some(k),
        Op::LogSoftmaxGrad(k) => Some(k),
        Op::CrossEntropy(k) => Some(k),
        Op::CrossEntropyGrad(k) => Some(k),
        Op::DenseCrossEntropy(k) => Some(k),
        Op::DenseCrossEntropyGrad(k) => Some(k),
        Op::LayerNorm(k) => Some(k),
        Op::LayerNormGrad(k) => Some(k),
        Op::RmsNorm(k) => Some(k),
        Op::RmsNormGrad(k) => Some(k),
        Op::GroupNorm(k) => Some(k),
        Op::GroupNormGrad(k) => Some(k),
        Op::BatchNorm(k) => Some(k),
        Op::BatchNormGrad(k) => Some(k),
        Op::Gather(k) => Some(k),
        Op::ScatterAdd(k) => Some(k),
        Op::OneHot(k) => Some(k),
        Op::TakeAlong(k) => Some(k),
        Op::PutAlongAdd(k) => Some(k),
        Op::Attention(k) => Some(k),
        Op::AttentionGrad(k) => Some(k),
        Op::Lstm(k) => Some(k),
        Op::LstmGrad(k) => Some(k),
        Op::Gru(k) => Some(k),
        Op::GruGrad(k) => Some(k),
        Op::Uniform(k) => Some(k),
        Op::Normal(k) => Some(k),
        Op::Dropout(k) => Some(k),
    }
}
