//! The Adam optimizer, with either kind of weight decay.
//!
//! m ← m + (1 - β₁)(g - m), v ← β₂ v + (1 - β₂) g², p ← p - lr / (1 - β₁ᵗ) · m / (√v / √(1 - β₂ᵗ) + ε)

use std::sync::Arc;

use plimsoll_graph::TensorOps;
use plimsoll_graph::ops::{Update, UpdateRule};
use plimsoll_run::{Result, Tensor};

use super::{
    Decay, Kept, Optimizer, Slot, UpdateAt, Updated, follow, mix, name_and_rate, one_minus_power, taken,
    unbiased,
};
use crate::Param;

/// Adam's settings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adam {
    /// The learning rate.
    pub lr: f64,
    /// How slowly the first moment follows the gradient.
    pub beta1: f64,
    /// How slowly the second moment follows the squared gradient.
    pub beta2: f64,
    /// Added to the denominator.
    pub eps: f64,
    /// Weight decay.
    pub decay: Decay,
}

impl Adam {
    /// The usual settings with a learning rate, without decay.
    pub fn new(lr: f64) -> Adam {
        Adam { lr, beta1: 0.9, beta2: 0.999, eps: 1e-8, decay: Decay::NONE }
    }

    /// AdamW: the usual settings with decoupled weight decay.
    pub fn w(lr: f64, decay: f64) -> Adam {
        Adam { decay: Decay::decoupled(decay), ..Adam::new(lr) }
    }
}

impl Optimizer for Adam {
    name_and_rate!("adam");

    fn keeps_elements_apart(&self) -> bool {
        true
    }

    fn slots(&self, param: &Param) -> Vec<Slot> {
        vec![Slot::zeros("m", param), Slot::zeros("v", param)]
    }

    /// lr / (1 - β₁ᵗ), √(1 - β₂ᵗ) and the decay.
    fn prepare(&self, count: &Tensor, rate: &Tensor) -> Result<Vec<Tensor>> {
        let size = unbiased(rate, self.beta1, count)?;
        let root = one_minus_power(self.beta2, count)?.sqrt()?.cast(rate.dtype())?;
        Ok(vec![size, root, self.decay.shrink(rate)?])
    }

    fn update(&self, at: &UpdateAt<'_>, value: &Tensor, grad: &Tensor, slots: &[Tensor]) -> Updated {
        let [size, root, shrink] = taken(at.scalars, "scalars")?;
        let [m, v] = taken(slots, "slots")?;
        let grad = self.decay.grad(at.param, value, grad)?;
        let m = follow(m, &grad, 1.0 - self.beta1)?;
        let v = mix(v, &grad.square()?, self.beta2)?;
        let scale = v.sqrt()?.div(root)?.add_scalar(self.eps)?;
        let value = self.decay.value(at.param, value, shrink)?;
        Ok((value.sub(&m.div(&scale)?.mul(size)?)?, vec![m, v]))
    }

    fn rule(&self, param: &Param) -> Option<Update> {
        let (beta1, beta2, eps) = (self.beta1.into(), self.beta2.into(), self.eps.into());
        Some(self.decay.update(UpdateRule::Adam { beta1, beta2, eps }, param))
    }

    fn with_state(&self, kept: Kept) -> Option<Arc<dyn Optimizer>> {
        Some(kept.around(*self))
    }
}
