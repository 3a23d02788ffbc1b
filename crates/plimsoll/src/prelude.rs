//! What a program needs in its first week; `use plimsoll::prelude::*`.
//!
//! All methods of tensors come with it, those of [`crate::tensor`]'s other traits too.

#[doc(inline)]
pub use plimsoll_data::{Column, Dataset};
#[doc(inline)]
pub use plimsoll_device::Bytes;
#[doc(inline)]
pub use plimsoll_graph::{DType, TensorOps, Type};
#[doc(inline)]
pub use plimsoll_nn::{
    Adam, Metric, Model, Net, Schedule, Sequential, Sgd, binary_cross_entropy, model, mse,
    softmax_cross_entropy,
};
#[doc(inline)]
pub use plimsoll_run::{Device, Exactness, MemoryRequest, Precision, Tape, Tensor, function};
#[doc(inline)]
pub use plimsoll_train::{Callback, Checkpoints, Epochs, ProgressBar, Trainer};

// Methods of tensors, without names to remember.
pub use plimsoll_graph::{
    AttentionOps as _, ConvOps as _, CumulativeOps as _, EinsumOps as _, FrozenCrossEntropyOps as _,
    GatherOps as _, GradientOps as _, GridSampleOps as _, IndexPutOps as _, LinearCrossEntropyOps as _,
    LossOps as _, MatMulAddOps as _, NormOps as _, PoolOps as _, RandomOps as _, RecurrentOps as _,
    ReorderOps as _, ResizeOps as _, RotaryOps as _, SoftmaxOps as _, SortOps as _, UniqueOps as _,
    VolumeOps as _, custom::CustomOps as _,
};
