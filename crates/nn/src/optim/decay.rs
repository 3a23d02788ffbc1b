//! Weight decay: parameters drawn towards zero.

use plimsoll_graph::ops::{Update, UpdateRule};
use plimsoll_graph::{DType, TensorOps};
use plimsoll_run::{Result, Tensor};

use crate::Param;

/// How a parameter is drawn towards zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecayKind {
    /// λ p is added to the gradient, before everything else.
    L2,
    /// p is multiplied by 1 - lr λ, beside the update.
    Decoupled,
}

/// Weight decay: how much, how, and of what.
///
/// ```
/// use plimsoll_nn::{Adam, Decay};
/// // As transformers are trained: biases and norms stay as they are.
/// let adam = Adam { decay: Decay::decoupled(0.1).matrices_only(), ..Adam::new(3e-4) };
/// assert!(adam.decay.is_matrices_only);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decay {
    /// λ
    pub rate: f64,
    /// How it enters the update.
    pub kind: DecayKind,
    /// Whether parameters of fewer than two axes, biases and the scales of norms, are spared.
    pub is_matrices_only: bool,
}

impl Decay {
    /// No decay.
    pub const NONE: Decay = Decay { rate: 0.0, kind: DecayKind::L2, is_matrices_only: false };

    /// λ p is added to the gradient.
    pub fn l2(rate: f64) -> Decay {
        Decay { rate, kind: DecayKind::L2, is_matrices_only: false }
    }

    /// p is multiplied by 1 - lr λ.
    pub fn decoupled(rate: f64) -> Decay {
        Decay { rate, kind: DecayKind::Decoupled, is_matrices_only: false }
    }

    /// Spares biases and norms.
    pub fn matrices_only(mut self) -> Decay {
        self.is_matrices_only = true;
        self
    }

    fn acts(&self, kind: DecayKind, param: &Param) -> bool {
        self.kind == kind && self.rate != 0.0 && (!self.is_matrices_only || param.ty.shape.rank() > 1)
    }

    /// A rule's step of a parameter with this decay.
    pub(super) fn update(&self, rule: UpdateRule, param: &Param) -> Update {
        let l2 = if self.acts(DecayKind::L2, param) { self.rate } else { 0.0 };
        Update { rule, l2: l2.into(), shrinks: self.acts(DecayKind::Decoupled, param) }
    }

    /// The gradient with its part of the decay.
    pub(super) fn grad(&self, param: &Param, value: &Tensor, grad: &Tensor) -> Result<Tensor> {
        match self.acts(DecayKind::L2, param) {
            true => grad.add(&value.mul_scalar(self.rate)?),
            false => Ok(grad.clone()),
        }
    }

    /// 1 - lr λ, in the type of the rate.
    pub(super) fn shrink(&self, rate: &Tensor) -> Result<Tensor> {
        rate.cast(DType::F64)?.mul_scalar(-self.rate)?.add_scalar(1.0)?.cast(rate.dtype())
    }

    /// The parameter before its update, shrunk where that is wanted.
    pub(super) fn value(&self, param: &Param, value: &Tensor, shrink: &Tensor) -> Result<Tensor> {
        match self.acts(DecayKind::Decoupled, param) {
            true => value.mul(shrink),
            false => Ok(value.clone()),
        }
    }
}
