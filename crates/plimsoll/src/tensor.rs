//! Tensors, their ops, gradients and traced functions.
//!
//! Ops are methods of [`Tensor`]: those of [`TensorOps`] and of the other traits here. [`Tape`] gives gradients; [`function()`] traces a
//! closure and runs it compiled, with the same bits.

#[doc(inline)]
pub use plimsoll_graph::ops::ResizeMode;
#[doc(inline)]
pub use plimsoll_graph::{
    AttentionOps, ConvGeometry, ConvOps, CumulativeOps, DType, EinsumOps, GatherOps, GridSampleOps,
    IndexPutOps, LossOps, NormOps, Padding, PoolOps, RandomOps, RecurrentOps, ReorderOps, ResizeOps, Shape,
    SoftmaxOps, SortOps, TensorOps, Type, UniqueOps, VolumeOps,
};
#[doc(inline)]
pub use plimsoll_run::{Error, Function, Result, Tape, Tensor, cond, function, scan};
