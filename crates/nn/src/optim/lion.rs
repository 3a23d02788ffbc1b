//! Lion: steps of one size, with the sign of an interpolated momentum. After Chen and others (2023).
//!
//! p ← p - lr sign(β₁ m + (1 - β₁) g), m ← β₂ m + (1 - β₂) g

use std::sync::Arc;

use plimsoll_graph::TensorOps;
use plimsoll_graph::ops::{Update, UpdateRule};
use plimsoll_run::{Result, Tensor};

use super::{Decay, Kept, Optimizer, Slot, UpdateAt, Updated, mix, name_and_rate, taken};
use crate::Param;

/// Settings of Lion.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lion {
    /// The learning rate; a tenth of Adam's is usual.
    pub lr: f64,
    /// The share of the momentum in the step.
    pub beta1: f64,
    /// How slowly the momentum follows the gradient.
    pub beta2: f64,
    /// Weight decay.
    pub decay: Decay,
}

impl Lion {
    /// The usual settings with a learning rate, without decay.
    pub fn new(lr: f64) -> Lion {
        Lion { lr, beta1: 0.9, beta2: 0.99, decay: Decay::NONE }
    }
}

impl Optimizer for Lion {
    name_and_rate!("lion");

    fn keeps_elements_apart(&self) -> bool {
        true
    }

    fn slots(&self, param: &Param) -> Vec<Slot> {
        vec![Slot::zeros("m", param)]
    }

    fn prepare(&self, _: &Tensor, rate: &Tensor) -> Result<Vec<Tensor>> {
        Ok(vec![rate.cast(rate.dtype())?, self.decay.shrink(rate)?])
    }

    fn update(&self, at: &UpdateAt<'_>, value: &Tensor, grad: &Tensor, slots: &[Tensor]) -> Updated {
        let [rate, shrink] = taken(at.scalars, "scalars")?;
        let [m] = taken(slots, "slots")?;
        let grad = self.decay.grad(at.param, value, grad)?;
        let step = mix(m, &grad, self.beta1)?.sign()?;
        let value = self.decay.value(at.param, value, shrink)?;
        Ok((value.sub(&step.mul(rate)?)?, vec![mix(m, &grad, self.beta2)?]))
    }

    fn rule(&self, param: &Param) -> Option<Update> {
        let (beta1, beta2) = (self.beta1.into(), self.beta2.into());
        Some(self.decay.update(UpdateRule::Lion { beta1, beta2 }, param))
    }

    fn with_state(&self, kept: Kept) -> Option<Arc<dyn Optimizer>> {
        Some(kept.around(*self))
    }
}
