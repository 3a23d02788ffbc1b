//! Ftrl: follow the regularized leader, for sparse weights of wide models.
//!
//! a' = a + g², z ← z + g + 2 s p - (a'^-k - a^-k) / lr · p, p ← (clip(z, -l₁, l₁) - z) / (a'^-k / lr + 2 l₂ + β / lr),
//! where k is the power of the learning rate, ≤ 0. McMahan et al. 2013, in the form that TensorFlow and Keras have.

use plimsoll_graph::{DType, TensorOps};
use plimsoll_run::{Result, Tensor};

use super::{Optimizer, Slot, UpdateAt, Updated, name_and_rate, taken};
use crate::Param;

/// Settings of Ftrl.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ftrl {
    /// The learning rate.
    pub lr: f64,
    /// How the learning rate falls with the sum of squares, ≤ 0; at 0 not at all.
    pub power: f64,
    /// What the sum of squares starts with.
    pub start: f64,
    /// How strongly weights are drawn to exactly 0.
    pub l1: f64,
    /// How strongly weights are drawn towards 0.
    pub l2: f64,
    /// As l2, but of the weights at hand and not of those to come.
    pub shrinkage: f64,
    /// Slows down all steps, the first ones most.
    pub beta: f64,
}

impl Ftrl {
    /// Keras's settings with a learning rate.
    pub fn new(lr: f64) -> Ftrl {
        Ftrl { lr, power: -0.5, start: 0.1, l1: 0.0, l2: 0.0, shrinkage: 0.0, beta: 0.0 }
    }

    fn power(&self, sum: &Tensor) -> Result<Tensor> {
        match -self.power {
            0.5 => sum.sqrt(),
            1.0 => Ok(sum.clone()),
            power => sum.pow_scalar(power),
        }
    }
}

impl Optimizer for Ftrl {
    name_and_rate!("ftrl");

    fn keeps_elements_apart(&self) -> bool {
        true
    }

    fn slots(&self, param: &Param) -> Vec<Slot> {
        vec![Slot { init: self.start, ..Slot::zeros("sum", param) }, Slot::zeros("linear", param)]
    }

    /// 1 / lr, and what is added to the denominator.
    fn prepare(&self, _: &Tensor, rate: &Tensor) -> Result<Vec<Tensor>> {
        let inverse = rate.cast(DType::F64)?.rdiv_scalar(1.0)?;
        let added = inverse.mul_scalar(self.beta)?.add_scalar(2.0 * self.l2)?;
        Ok(vec![inverse.cast(DType::F32)?, added.cast(DType::F32)?])
    }

    fn update(&self, at: &UpdateAt<'_>, value: &Tensor, grad: &Tensor, slots: &[Tensor]) -> Updated {
        let [inverse, added] = taken(at.scalars, "scalars")?;
        let [sum, linear] = taken(slots, "slots")?;
        let new_sum = sum.add(&grad.square()?)?;
        let (before, after) = (self.power(sum)?, self.power(&new_sum)?);
        let pulled = match self.shrinkage {
            0.0 => grad.clone(),
            s => grad.add(&value.mul_scalar(2.0 * s)?)?,
        };
        let linear = linear.add(&pulled.sub(&after.sub(&before)?.mul(inverse)?.mul(value)?)?)?;
        let beyond = linear.clamp(-self.l1, self.l1)?.sub(&linear)?;
        let new = beyond.div(&after.mul(inverse)?.add(added)?)?;
        Ok((new, vec![new_sum, linear]))
    }
}
