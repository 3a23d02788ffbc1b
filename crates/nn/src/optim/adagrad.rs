//! Adagrad: steps divided by the root of the sum of all squared gradients.
//!
//! s ← s + g², p ← p - lr / (1 + (t - 1) η) · g / (√s + ε)

use plimsoll_graph::{DType, TensorOps};
use plimsoll_run::{Result, Tensor};

use super::{Decay, Optimizer, Slot, UpdateAt, Updated, name_and_rate, taken};
use crate::Param;

/// Settings of Adagrad.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adagrad {
    /// The learning rate.
    pub lr: f64,
    /// η, how fast the learning rate falls beside.
    pub lr_decay: f64,
    /// What the sum of squares starts with.
    pub start: f64,
    /// Added to the denominator.
    pub eps: f64,
    /// Weight decay.
    pub decay: Decay,
}

impl Adagrad {
    /// PyTorch's settings with a learning rate.
    pub fn new(lr: f64) -> Adagrad {
        Adagrad { lr, lr_decay: 0.0, start: 0.0, eps: 1e-10, decay: Decay::NONE }
    }
}

impl Optimizer for Adagrad {
    name_and_rate!("adagrad");

    fn keeps_elements_apart(&self) -> bool {
        true
    }

    fn slots(&self, param: &Param) -> Vec<Slot> {
        vec![Slot { init: self.start, ..Slot::zeros("sum", param) }]
    }

    fn prepare(&self, count: &Tensor, rate: &Tensor) -> Result<Vec<Tensor>> {
        let slower = count.cast(DType::F64)?.add_scalar(-1.0)?.mul_scalar(self.lr_decay)?.add_scalar(1.0)?;
        let size = rate.cast(DType::F64)?.div(&slower)?.cast(rate.dtype())?;
        Ok(vec![size, self.decay.shrink(rate)?])
    }

    fn update(&self, at: &UpdateAt<'_>, value: &Tensor, grad: &Tensor, slots: &[Tensor]) -> Updated {
        let [size, shrink] = taken(at.scalars, "scalars")?;
        let [sum] = taken(slots, "slots")?;
        let grad = self.decay.grad(at.param, value, grad)?;
        let sum = sum.add(&grad.square()?)?;
        let step = grad.div(&sum.sqrt()?.add_scalar(self.eps)?)?;
        let value = self.decay.value(at.param, value, shrink)?;
        Ok((value.sub(&step.mul(size)?)?, vec![sum]))
    }
}
