//! Tensors, their ops, gradients and traced functions.
//!
//! Ops are methods of [`Tensor`]: those of [`TensorOps`] and of the other traits here. [`Tape`] gives gradients; [`function()`] traces a
//! closure and runs it compiled, with the same bits.

#[doc(inline)]
pub use plimsoll_graph::ops::ResizeMode;
#[doc(inline)]
pub use plimsoll_graph::{
    AttentionOps, ConvGeometry, ConvOps, CumulativeOps, DType, EinsumOps, FrozenCrossEntropyOps, GatherOps,
    GradientOps, GridSampleOps, IndexPutOps, LinearCrossEntropyOps, LossOps, MatMulAddOps, NormOps, Padding,
    PoolOps, RandomOps, RecurrentOps, ReorderOps, ResizeOps, RotaryOps, Shape, SoftmaxOps, SortOps,
    TensorOps, Type, UniqueOps, VolumeOps,
};
#[doc(inline)]
pub use plimsoll_run::{
    Error, Function, OpCall, OpProfile, Result, Tape, Tensor, cond, function, profile, scan, while_loop,
};

/// Ops of your own: a kernel in Rust, CUDA source for a card, a gradient. Plans, memory limits and reports treat them like any other.
///
/// A tensor has `custom(op, inputs)` from [`CustomOps`](custom::CustomOps); `examples/custom_op.rs` is a whole one.
pub mod custom {
    #[doc(inline)]
    pub use plimsoll_graph::custom::*;
    #[doc(inline)]
    pub use plimsoll_graph::ops::Custom;
    #[doc(inline)]
    pub use plimsoll_graph::{Along, Backward, Cost, Keep, Result, Sym, Types};
}
