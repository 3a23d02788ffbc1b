//! RMSprop: steps divided by a running root mean square of the gradient.
//!
//! s ← α s + (1 - α) g², p ← p - lr g / (√s + ε); centred: √(s - a²) with a ← a + (1 - α)(g - a)

use plimsoll_graph::TensorOps;
use plimsoll_run::{Result, Tensor};

use super::{Decay, Optimizer, Slot, UpdateAt, Updated, follow, mix, name_and_rate, taken};
use crate::Param;

/// Settings of RMSprop.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RmsProp {
    /// The learning rate.
    pub lr: f64,
    /// α, how slowly the mean square follows.
    pub alpha: f64,
    /// Added to the denominator, outside the root as PyTorch does.
    pub eps: f64,
    /// The share of the last step that is taken again.
    pub momentum: f64,
    /// Whether the square of the mean gradient is taken off.
    pub is_centered: bool,
    /// Weight decay.
    pub decay: Decay,
}

impl RmsProp {
    /// PyTorch's settings with a learning rate.
    pub fn new(lr: f64) -> RmsProp {
        RmsProp { lr, alpha: 0.99, eps: 1e-8, momentum: 0.0, is_centered: false, decay: Decay::NONE }
    }
}

impl Optimizer for RmsProp {
    name_and_rate!("rmsprop");

    fn keeps_elements_apart(&self) -> bool {
        true
    }

    fn slots(&self, param: &Param) -> Vec<Slot> {
        let mut slots = vec![Slot::zeros("square", param)];
        if self.is_centered {
            slots.push(Slot::zeros("mean", param));
        }
        if self.momentum != 0.0 {
            slots.push(Slot::zeros("momentum", param));
        }
        slots
    }

    fn prepare(&self, _: &Tensor, rate: &Tensor) -> Result<Vec<Tensor>> {
        Ok(vec![rate.cast(rate.dtype())?, self.decay.shrink(rate)?])
    }

    fn update(&self, at: &UpdateAt<'_>, value: &Tensor, grad: &Tensor, slots: &[Tensor]) -> Updated {
        let [rate, shrink] = taken(at.scalars, "scalars")?;
        let missing = || crate::error::refuse("gives RMSprop fewer slots than it has");
        let mut slots = slots.iter();
        let mut slot = || slots.next().ok_or_else(missing);
        let grad = self.decay.grad(at.param, value, grad)?;
        let square = mix(slot()?, &grad.square()?, self.alpha)?;
        let mut new = vec![square.clone()];
        let mut spread = square;
        if self.is_centered {
            let mean = follow(slot()?, &grad, 1.0 - self.alpha)?;
            spread = spread.sub(&mean.square()?)?;
            new.push(mean);
        }
        let mut step = grad.div(&spread.sqrt()?.add_scalar(self.eps)?)?;
        if self.momentum != 0.0 {
            step = slot()?.mul_scalar(self.momentum)?.add(&step)?;
            new.push(step.clone());
        }
        let value = self.decay.value(at.param, value, shrink)?;
        Ok((value.sub(&step.mul(rate)?)?, new))
    }
}
