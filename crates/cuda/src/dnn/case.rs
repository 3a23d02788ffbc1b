//! Turns a computation with all its sizes into a graph for cuDNN, and says what engines may do for it.

use cudarc::cudnn::sys;
use plimsoll_graph::DType;
use sys::cudnnBackendAttributeName_t as Name;
use sys::cudnnBackendDescriptorType_t as Kind;

use super::attention::Heads;
use super::attention_grad::HeadsGrad;
use super::conv::{Shape, Wanted};
use super::descriptor::Descriptor;
use super::engine::{Allowed, Graph};
use crate::error::Error;

/// Workspace that an engine may have beside operands of any size, and the part of the operands' bytes that it may have else:
/// memory is worth more than the last few percent of speed.
const LITTLE: usize = 20 << 20;
const PART: usize = 16;

/// What cuDNN calls a type, where it computes in it.
pub(super) fn data_type(dtype: DType) -> Option<sys::cudnnDataType_t> {
    match dtype {
        DType::F32 => Some(sys::cudnnDataType_t::CUDNN_DATA_FLOAT),
        DType::BF16 => Some(sys::cudnnDataType_t::CUDNN_DATA_BFLOAT16),
        DType::F16 => Some(sys::cudnnDataType_t::CUDNN_DATA_HALF),
        _ => None,
    }
}

/// Where a tensor of a graph is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Where {
    Device,
    /// On the host: a number that is read when the graph is run.
    Host,
    /// Within the graph alone.
    Within,
}

/// A tensor of a graph.
pub(super) struct Tensor {
    pub id: i64,
    pub data: sys::cudnnDataType_t,
    pub sizes: [usize; 4],
    pub strides: [usize; 4],
    pub at: Where,
}

impl Tensor {
    /// How cuDNN is told of it.
    pub(super) fn description(&self) -> Result<Descriptor, Error> {
        Descriptor::new(Kind::CUDNN_BACKEND_TENSOR_DESCRIPTOR)?
            .with(Name::CUDNN_ATTR_TENSOR_DATA_TYPE, self.data)?
            .with_all(Name::CUDNN_ATTR_TENSOR_DIMENSIONS, &self.sizes.map(|n| n as i64))?
            .with_all(Name::CUDNN_ATTR_TENSOR_STRIDES, &self.strides.map(|n| n as i64))?
            .with(Name::CUDNN_ATTR_TENSOR_UNIQUE_ID, self.id)?
            .with(Name::CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, 16i64)?
            .with(Name::CUDNN_ATTR_TENSOR_IS_VIRTUAL, self.at == Where::Within)?
            .with(Name::CUDNN_ATTR_TENSOR_IS_BY_VALUE, self.at == Where::Host)?
            .finish()
    }
}

/// One computation with all its sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Case {
    /// A convolution, or one of its gradients.
    Conv(Wanted, Shape, DType),
    /// Attention.
    Attention(Heads),
    /// The gradient of attention.
    AttentionGrad(HeadsGrad),
}

impl Case {
    /// The graph; none where cuDNN does not know the type.
    pub(super) fn graph(&self, handle: sys::cudnnHandle_t) -> Option<Result<Graph, Error>> {
        match self {
            Case::Conv(wanted, shape, dtype) => shape.graph(handle, *wanted, *dtype),
            Case::Attention(heads) => heads.graph(handle),
            Case::AttentionGrad(heads) => heads.graph(handle),
        }
    }

    /// Whether the crate's own kernel is good enough to be timed beside the engines.
    pub(super) fn has_own(&self) -> bool {
        matches!(self, Case::Attention(_) | Case::AttentionGrad(_))
    }

    /// What engines for it may do.
    pub(super) fn allowed(&self, tf32: bool) -> Allowed {
        match self {
            Case::Conv(_, shape, dtype) => Allowed {
                strict: *dtype == DType::F32 && !tf32,
                compiling: false,
                workspace: (shape.elements() * dtype.bytes() / PART).max(LITTLE),
                number: 8,
                else_least: true,
            },
            Case::Attention(heads) => Allowed {
                strict: false,
                compiling: true,
                workspace: (heads.bytes() / PART).max(LITTLE),
                number: 2,
                else_least: false,
            },
            Case::AttentionGrad(_) => Allowed {
                strict: false,
                compiling: true,
                workspace: HeadsGrad::workspace(),
                number: 2,
                else_least: false,
            },
        }
    }
}
