//! What a name of a graph stands for while the model runs: known beforehand, a weight, or computed.

use plimsoll_graph::{DType, Shape};
use plimsoll_nn::blocks::Laid;
use plimsoll_run::Tensor;

use crate::constant::Constant;

/// The value behind a name.
#[derive(Clone)]
pub(crate) enum Value {
    /// Known before the model runs: shapes, constants and what follows from them.
    Known(Constant),
    /// A weight as it is kept, and the element type in which the file has it.
    Weight(Laid, DType),
    /// Computed.
    Run(Laid),
}

impl Value {
    pub(crate) fn shape(&self) -> &Shape {
        match self {
            Value::Known(constant) => &constant.ty.shape,
            Value::Weight(laid, _) | Value::Run(laid) => laid.shape(),
        }
    }

    pub(crate) fn dtype(&self) -> DType {
        match self {
            Value::Known(constant) => constant.ty.dtype,
            Value::Weight(_, dtype) => *dtype,
            Value::Run(laid) => laid.dtype(),
        }
    }

    pub(crate) fn known(&self) -> Option<&Constant> {
        match self {
            Value::Known(constant) => Some(constant),
            _ => None,
        }
    }
}

impl From<Laid> for Value {
    fn from(laid: Laid) -> Value {
        Value::Run(laid)
    }
}

impl From<Tensor> for Value {
    fn from(tensor: Tensor) -> Value {
        Value::Run(tensor.into())
    }
}

impl From<Constant> for Value {
    fn from(constant: Constant) -> Value {
        Value::Known(constant)
    }
}
