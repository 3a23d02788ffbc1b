//! Turns model code into graphs and graphs into their gradients.
//!
//! Read in this order: what a value is ([`DType`], [`Shape`], [`Type`]), what an op is ([`Op`], the files under
//! `ops/`), what can be called ([`TensorOps`]), what is recorded ([`Graph`], [`Trace`]), how it is differentiated
//! ([`gradient()`]), what it means ([`mod@reference`]) how it is split ([`micro_batch`])
//! and how it is improved ([`passes`]).
//!
//! What is not here: devices, memory, kernels. Nothing in this crate holds a tensor's bytes.

mod counted;
mod dtype;
pub mod eight_bit;
pub mod quant;
mod scalar;
mod shape;
mod shard;
mod site;

mod error;
mod op;
pub mod ops;

mod graph;
mod methods;
mod trace;

mod gradient;
pub mod micro_batch;
pub mod passes;

pub mod example;
pub mod philox;
pub mod reference;

pub use counted::counted;
pub use dtype::DType;
pub use error::{Error, Result};
pub use gradient::{Backward, gradient, gradients};
pub use graph::{Graph, Node, NodeId, Phase, ValueId, ValueInfo};
pub use methods::TensorOps;
pub use op::{Along, Cost, Keep, OPS, Op, OpDef, Rule, Types, traffic};
pub use ops::custom;
pub use ops::{AttentionArgs, AttentionOps, GradientOps, QuantOps, RandomOps, RecurrentOps};
pub use ops::{ConvGeometry, ConvOps, Padding, PoolOps, ResizeOps};
pub use ops::{
    CumulativeOps, EinsumOps, ExchangeOps, FrozenCrossEntropyOps, GatherOps, GridSampleOps, IndexPutOps,
    LinearCrossEntropyOps, LossOps, MatMulAddOps, NormOps, ReorderOps, RotaryOps, SoftmaxOps, SortOps,
    UniqueOps, UpdateOps, VolumeOps,
};
pub use scalar::Scalar;
pub use shape::{Shape, Type};
pub use shard::shard;
pub use site::{At, Site};
pub use trace::{Sym, Trace};
