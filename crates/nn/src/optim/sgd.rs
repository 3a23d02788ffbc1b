//! Gradient descent, with momentum.
//!
//! b ← μ b + g, p ← p - lr b; with Nesterov's momentum p ← p - lr (g + μ b)

use std::sync::Arc;

use plimsoll_graph::TensorOps;
use plimsoll_graph::ops::{Update, UpdateRule};
use plimsoll_run::{Result, Tensor};

use super::{Decay, Kept, Optimizer, Slot, UpdateAt, Updated, name_and_rate, taken};
use crate::Param;

/// Settings of gradient descent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sgd {
    /// The learning rate.
    pub lr: f64,
    /// μ, the share of the last step that is taken again; 0 keeps no state.
    pub momentum: f64,
    /// Whether the gradient is as if taken after the momentum's step.
    pub is_nesterov: bool,
    /// Weight decay.
    pub decay: Decay,
}

impl Sgd {
    /// Without momentum and decay.
    pub fn new(lr: f64) -> Sgd {
        Sgd { lr, momentum: 0.0, is_nesterov: false, decay: Decay::NONE }
    }

    /// With momentum.
    pub fn momentum(lr: f64, momentum: f64) -> Sgd {
        Sgd { momentum, ..Sgd::new(lr) }
    }

    /// With Nesterov's momentum.
    pub fn nesterov(lr: f64, momentum: f64) -> Sgd {
        Sgd { momentum, is_nesterov: true, ..Sgd::new(lr) }
    }
}

impl Optimizer for Sgd {
    name_and_rate!("sgd");

    fn keeps_elements_apart(&self) -> bool {
        true
    }

    fn slots(&self, param: &Param) -> Vec<Slot> {
        if self.momentum == 0.0 { Vec::new() } else { vec![Slot::zeros("momentum", param)] }
    }

    fn prepare(&self, _: &Tensor, rate: &Tensor) -> Result<Vec<Tensor>> {
        Ok(vec![rate.cast(rate.dtype())?, self.decay.shrink(rate)?])
    }

    fn update(&self, at: &UpdateAt<'_>, value: &Tensor, grad: &Tensor, slots: &[Tensor]) -> Updated {
        let [rate, shrink] = taken(at.scalars, "scalars")?;
        let grad = self.decay.grad(at.param, value, grad)?;
        let value = self.decay.value(at.param, value, shrink)?;
        if self.momentum == 0.0 {
            return Ok((value.sub(&grad.mul(rate)?)?, Vec::new()));
        }
        let [momentum] = taken(slots, "slots")?;
        let momentum = momentum.mul_scalar(self.momentum)?.add(&grad)?;
        let step = match self.is_nesterov {
            true => grad.add(&momentum.mul_scalar(self.momentum)?)?,
            false => momentum.clone(),
        };
        Ok((value.sub(&step.mul(rate)?)?, vec![momentum]))
    }

    fn rule(&self, param: &Param) -> Option<Update> {
        let (momentum, is_nesterov) = (self.momentum.into(), self.is_nesterov);
        let rule = UpdateRule::Momentum { momentum, is_nesterov };
        (self.momentum != 0.0).then(|| self.decay.update(rule, param))
    }

    fn with_state(&self, kept: Kept) -> Option<Arc<dyn Optimizer>> {
        // Without momentum there is no state.
        (self.momentum != 0.0).then(|| kept.around(*self))
    }
}
