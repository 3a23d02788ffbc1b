//! Every op in its family's file: formula, shape rule, in-place rule, cost, gradient, reference meaning, examples.

mod attention;
mod avg_pool;
mod bf16_update;
mod binary;
mod cast;
mod composed;
mod conv;
mod conv_grad;
mod conv_methods;
mod cumulative;
pub mod custom;
mod eight_bit;
mod einsum;
mod exchange;
mod frozen_cross_entropy;
mod fused;
mod gather;
mod grid_sample;
mod index_put;
mod joint_cross_entropy;
mod kinds;
mod layout;
mod linear_cross_entropy;
mod loss;
mod matmul;
mod matmul_add;
mod max_pool;
mod norm;
mod own_gradient;
mod pool;
mod quant_matmul;
mod random;
mod recurrent;
mod reduce;
mod relu;
mod reorder;
mod resize;
mod rotary;
mod scatter_add_to;
mod softmax;
mod sort;
mod split;
mod unary;
mod unique;
mod update;
mod volume;
mod window;

pub use attention::{Attention, AttentionArgs, AttentionDims, AttentionGrad, AttentionOps};
pub use avg_pool::AvgPool;
pub use bf16_update::{Bf16Update, dither, rounded, value_dither};
pub use binary::{Binary, Compare, Select};
pub use cast::Cast;
pub use conv::{Conv, ConvFrame};
pub use conv_grad::{ConvGradFilter, ConvGradInput};
pub use conv_methods::{ConvGeometry, ConvOps, Padding};
pub use cumulative::{CumProdGrad, Cumulative, CumulativeKind, CumulativeOps};
pub use custom::Custom;
pub use eight_bit::{EightBitUpdate, coded};
pub use einsum::EinsumOps;
pub use exchange::{Exchange, ExchangeKind, ExchangeOps, Rank};
pub use frozen_cross_entropy::{FrozenCrossEntropy, FrozenCrossEntropyOps};
pub use fused::{Arg, Chain, ElementOp, Fused, Step};
pub use gather::{Gather, GatherOps, OneHot, PutAlongAdd, ScatterAdd, TakeAlong};
pub use grid_sample::{GridSample, GridSampleGrad, GridSampleOps};
pub use index_put::{IndexPut, IndexPutOps};
pub use joint_cross_entropy::JointCrossEntropy;
pub use layout::{Broadcast, Full, Iota, Pad, PadAxis, Reshape, Slice, SliceAxis, Transpose};
pub use linear_cross_entropy::{
    LinearCrossEntropy, LinearCrossEntropyDims, LinearCrossEntropyGrad, LinearCrossEntropyOps,
};
pub use loss::{CrossEntropy, CrossEntropyGrad, DenseCrossEntropy, DenseCrossEntropyGrad, LossOps};
pub use matmul::{MatMul, MatMulDims};
pub use matmul_add::{MatMulAdd, MatMulAddOps};
pub use max_pool::{MaxPool, MaxPoolGather};
pub use norm::{
    BatchNorm, BatchNormGrad, GroupNorm, GroupNormGrad, LayerNorm, LayerNormGrad, LayerNormGradAdd, NormOps,
    RmsNorm, RmsNormGrad,
};
pub use own_gradient::{GradientOps, OwnGradient, StopGradient};
pub use pool::{AvgPoolGrad, MaxPoolGrad, PoolGrad, PoolOps};
pub use quant_matmul::{QuantMatMul, QuantOps};
pub use random::{Dropout, Normal, RandomOps, TruncatedNormal, Uniform};
pub use recurrent::{Gru, GruGrad, Lstm, LstmGrad, RecurrentDims, RecurrentOps};
pub use reduce::{ArgMax, ProdGrad, Reduce, ReduceKind};
pub use relu::{ReluGrad, ReluMask, ReluMaskGrad};
pub use reorder::{AxisOrder, Reorder, ReorderOps};
pub use resize::{Resize, ResizeAxis, ResizeGrad, ResizeMode, ResizeOps};
pub use rotary::{Rotary, RotaryDims, RotaryOps};
pub use scatter_add_to::ScatterAddTo;
pub use softmax::{LogSoftmax, LogSoftmaxGrad, Softmax, SoftmaxGrad, SoftmaxOps};
pub use sort::{ArgSort, SortOps};
pub use split::{Concat, Split};
pub use unary::Unary;
pub use unique::UniqueOps;
pub use update::{Update, UpdateOps, UpdateRule, UpdateStep};
pub use volume::VolumeOps;
pub use window::WindowAxis;

use crate::error::Error;
use crate::{DType, Site, Type};

/// Checks the number of inputs.
pub(crate) fn arity<'a, const N: usize>(inputs: &[&'a Type]) -> Result<[&'a Type; N], String> {
    <[&Type; N]>::try_from(inputs).map_err(|_| format!("it takes {N} inputs and was given {}", inputs.len()))
}

/// Checks that a value is floating point.
pub(crate) fn float(ty: &Type) -> Result<(), String> {
    if ty.dtype.is_float() {
        return Ok(());
    }
    Err(format!("it takes floating-point values, not {}; cast them first", ty.dtype))
}

/// Checks that two values have one element type.
pub(crate) fn same_dtype(a: &Type, b: &Type) -> Result<DType, String> {
    if a.dtype == b.dtype {
        return Ok(a.dtype);
    }
    Err(format!("the element types {} and {} differ; cast one of them", a.dtype, b.dtype))
}

/// Checks that an axis exists.
pub(crate) fn axis_of(ty: &Type, axis: usize) -> Result<usize, String> {
    if axis < ty.shape.rank() {
        return Ok(axis);
    }
    Err(format!("axis {axis} does not exist in shape {}", ty.shape))
}

/// The error of a method whose inputs do not fit.
pub(crate) fn refuse<E: From<Error>>(op: &'static str, site: Site, inputs: &[&Type], why: String) -> E {
    Error::Shape { op, layer: String::new(), site, inputs: inputs.iter().map(|&t| t.clone()).collect(), why }
        .into()
}
