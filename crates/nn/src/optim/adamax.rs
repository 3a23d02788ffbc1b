//! Adamax: Adam with the largest gradient in the place of the mean square.
//!
//! m ← m + (1 - β₁)(g - m), u ← max(β₂ u, |g| + ε), p ← p - lr / (1 - β₁ᵗ) · m / u

use plimsoll_graph::TensorOps;
use plimsoll_run::{Result, Tensor};

use super::{Decay, Optimizer, Slot, UpdateAt, Updated, follow, name_and_rate, taken, unbiased};
use crate::Param;

/// Settings of Adamax.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adamax {
    /// The learning rate.
    pub lr: f64,
    /// How slowly the first moment follows the gradient.
    pub beta1: f64,
    /// How slowly the largest gradient is forgotten.
    pub beta2: f64,
    /// Added to every gradient's size.
    pub eps: f64,
    /// Weight decay.
    pub decay: Decay,
}

impl Adamax {
    /// PyTorch's settings with a learning rate.
    pub fn new(lr: f64) -> Adamax {
        Adamax { lr, beta1: 0.9, beta2: 0.999, eps: 1e-8, decay: Decay::NONE }
    }
}

impl Optimizer for Adamax {
    name_and_rate!("adamax");

    fn slots(&self, param: &Param) -> Vec<Slot> {
        vec![Slot::zeros("m", param), Slot::zeros("largest", param)]
    }

    /// lr / (1 - β₁ᵗ) and the decay.
    fn prepare(&self, count: &Tensor, rate: &Tensor) -> Result<Vec<Tensor>> {
        Ok(vec![unbiased(rate, self.beta1, count)?, self.decay.shrink(rate)?])
    }

    fn update(&self, at: &UpdateAt<'_>, value: &Tensor, grad: &Tensor, slots: &[Tensor]) -> Updated {
        let [size, shrink] = taken(at.scalars, "scalars")?;
        let [m, largest] = taken(slots, "slots")?;
        let grad = self.decay.grad(at.param, value, grad)?;
        let m = follow(m, &grad, 1.0 - self.beta1)?;
        let largest = largest.mul_scalar(self.beta2)?.maximum(&grad.abs()?.add_scalar(self.eps)?)?;
        let value = self.decay.value(at.param, value, shrink)?;
        Ok((value.sub(&m.div(&largest)?.mul(size)?)?, vec![m, largest]))
    }
}
