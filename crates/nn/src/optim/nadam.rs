//! NAdam: Adam with Nesterov's momentum, of which more and more is taken.
//!
//! μₜ = β₁ (1 - ½ 0.96^(tψ)), m and v as of Adam, d = √(v / (1 - β₂ᵗ)) + ε,
//! p ← p - lr (1 - μₜ) / (1 - μ₁…μₜ) · g / d - lr μₜ₊₁ / (1 - μ₁…μₜ₊₁) · m / d

use plimsoll_graph::{DType, TensorOps, Type};
use plimsoll_run::{Result, Tensor};

use super::{Decay, Optimizer, Slot, UpdateAt, Updated, follow, mix, name_and_rate, one_minus_power, taken};
use crate::Param;

/// Settings of NAdam.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NAdam {
    /// The learning rate.
    pub lr: f64,
    /// How slowly the first moment follows the gradient.
    pub beta1: f64,
    /// How slowly the second moment follows the squared gradient.
    pub beta2: f64,
    /// Added to the denominator.
    pub eps: f64,
    /// ψ, how fast the momentum grows.
    pub momentum_decay: f64,
    /// Weight decay.
    pub decay: Decay,
}

impl NAdam {
    /// PyTorch's settings with a learning rate.
    pub fn new(lr: f64) -> NAdam {
        NAdam { lr, beta1: 0.9, beta2: 0.999, eps: 1e-8, momentum_decay: 4e-3, decay: Decay::NONE }
    }

    /// μ of an update by its number.
    fn momentum(&self, count: &Tensor) -> Result<Tensor> {
        let power = count.mul_scalar(self.momentum_decay * 0.96f64.ln())?.exp()?;
        power.mul_scalar(-0.5 * self.beta1)?.add_scalar(self.beta1)
    }
}

impl Optimizer for NAdam {
    name_and_rate!("nadam");

    /// Both moments, and the product of all momentums so far.
    fn slots(&self, param: &Param) -> Vec<Slot> {
        let product = Slot { name: "product", ty: Type::new(DType::F32, []), init: 1.0 };
        vec![Slot::zeros("m", param), Slot::zeros("v", param), product]
    }

    /// lr, μₜ, μₜ₊₁, √(1 - β₂ᵗ) and the decay.
    fn prepare(&self, count: &Tensor, rate: &Tensor) -> Result<Vec<Tensor>> {
        let t = count.cast(DType::F64)?;
        let (now, next) = (self.momentum(&t)?, self.momentum(&t.add_scalar(1.0)?)?);
        let root = one_minus_power(self.beta2, count)?.sqrt()?;
        let of_rate = |x: Tensor| x.cast(rate.dtype());
        Ok(vec![
            rate.cast(rate.dtype())?,
            of_rate(now)?,
            of_rate(next)?,
            of_rate(root)?,
            self.decay.shrink(rate)?,
        ])
    }

    fn update(&self, at: &UpdateAt<'_>, value: &Tensor, grad: &Tensor, slots: &[Tensor]) -> Updated {
        let [rate, now, next, root, shrink] = taken(at.scalars, "scalars")?;
        let [m, v, product] = taken(slots, "slots")?;
        let grad = self.decay.grad(at.param, value, grad)?;
        let product = product.mul(&now.cast(DType::F32)?)?;
        let so_far = product.cast(rate.dtype())?;
        let m = follow(m, &grad, 1.0 - self.beta1)?;
        let v = mix(v, &grad.square()?, self.beta2)?;
        let own = now.rsub_scalar(1.0)?.div(&so_far.rsub_scalar(1.0)?)?.mul(rate)?;
        let ahead = next.div(&so_far.mul(next)?.rsub_scalar(1.0)?)?.mul(rate)?;
        let scale = v.sqrt()?.div(root)?.add_scalar(self.eps)?;
        let value = self.decay.value(at.param, value, shrink)?;
        let step = grad.mul(&own)?.add(&m.mul(&ahead)?)?.div(&scale)?;
        Ok((value.sub(&step)?, vec![m, v, product]))
    }
}
