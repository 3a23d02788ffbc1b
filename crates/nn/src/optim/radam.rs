//! RAdam: Adam whose first steps are plain, until the second moment is of enough gradients to be trusted.
//!
//! m and v as of Adam, ρ∞ = 2 / (1 - β₂) - 1, ρₜ = ρ∞ - 2 t β₂ᵗ / (1 - β₂ᵗ); where ρₜ > 5
//! p ← p - lr / (1 - β₁ᵗ) · m · r √(1 - β₂ᵗ) / (√v + ε) with r = √((ρₜ - 4)(ρₜ - 2) ρ∞ / ((ρ∞ - 4)(ρ∞ - 2) ρₜ)), else p ← p - lr / (1 - β₁ᵗ) · m

use plimsoll_graph::{DType, TensorOps, Type};
use plimsoll_run::{Result, Tensor};

use super::{
    Decay, Optimizer, Slot, UpdateAt, Updated, follow, mix, name_and_rate, one_minus_power, taken, unbiased,
};
use crate::Param;

/// Settings of RAdam.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RAdam {
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

impl RAdam {
    /// PyTorch's settings with a learning rate.
    pub fn new(lr: f64) -> RAdam {
        RAdam { lr, beta1: 0.9, beta2: 0.999, eps: 1e-8, decay: Decay::NONE }
    }
}

impl Optimizer for RAdam {
    name_and_rate!("radam");

    fn slots(&self, param: &Param) -> Vec<Slot> {
        vec![Slot::zeros("m", param), Slot::zeros("v", param)]
    }

    /// lr / (1 - β₁ᵗ), r √(1 - β₂ᵗ) or 0, 0 or 1, and the decay: the two in the middle choose between the two steps.
    fn prepare(&self, count: &Tensor, rate: &Tensor) -> Result<Vec<Tensor>> {
        let size = unbiased(rate, self.beta1, count)?;
        let t = count.cast(DType::F64)?;
        let rest = one_minus_power(self.beta2, count)?;
        let power = rest.rsub_scalar(1.0)?;
        let most = 2.0 / (1.0 - self.beta2) - 1.0;
        let length = t.mul(&power)?.mul_scalar(-2.0)?.div(&rest)?.add_scalar(most)?;
        let scalar = |value: f64| length.full_like(Type::new(DType::F64, []), value);
        let (zero, one, few) = (scalar(0.0)?, scalar(1.0)?, scalar(5.0)?);
        let is_enough = length.greater(&few)?;
        // Where it is not, anything that has a root will do.
        let enough = is_enough.select(&length, &few)?;
        let square = enough.add_scalar(-4.0)?.mul(&enough.add_scalar(-2.0)?)?.div(&enough)?;
        let square = square.mul_scalar(most / ((most - 4.0) * (most - 2.0)))?;
        let rectified = square.mul(&rest)?.sqrt()?;
        let of_rate = |x: Tensor| x.cast(rate.dtype());
        let adaptive = of_rate(is_enough.select(&rectified, &zero)?)?;
        let plain = of_rate(is_enough.select(&zero, &one)?)?;
        Ok(vec![size, adaptive, plain, self.decay.shrink(rate)?])
    }

    fn update(&self, at: &UpdateAt<'_>, value: &Tensor, grad: &Tensor, slots: &[Tensor]) -> Updated {
        let [size, adaptive, plain, shrink] = taken(at.scalars, "scalars")?;
        let [m, v] = taken(slots, "slots")?;
        let grad = self.decay.grad(at.param, value, grad)?;
        let m = follow(m, &grad, 1.0 - self.beta1)?;
        let v = mix(v, &grad.square()?, self.beta2)?;
        let share = v.sqrt()?.add_scalar(self.eps)?.reciprocal()?.mul(adaptive)?.add(plain)?;
        let value = self.decay.value(at.param, value, shrink)?;
        Ok((value.sub(&m.mul(&share)?.mul(size)?)?, vec![m, v]))
    }
}
