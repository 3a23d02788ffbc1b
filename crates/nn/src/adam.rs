//! The Adam optimizer.
//!
//! m ← m + (1 - β₁)(g - m), v ← β₂ v + (1 - β₂) g², p ← p - lr / (1 - β₁ᵗ) · m / (√v / √(1 - β₂ᵗ) + ε)

use plimsoll_graph::{DType, TensorOps, Type};
use plimsoll_run::{Result, Tensor};

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
}

impl Adam {
    /// The usual settings with a learning rate.
    pub fn new(lr: f64) -> Adam {
        Adam { lr, beta1: 0.9, beta2: 0.999, eps: 1e-8 }
    }

    /// The type of the step counter: f64, so that its powers are exact enough over any number of steps.
    pub(crate) fn counter() -> Type {
        Type::new(DType::F64, [])
    }

    /// The step sizes lr / (1 - β₁ᵗ) and √(1 - β₂ᵗ) for step t, as f32 scalars.
    pub(crate) fn sizes(&self, t: &Tensor) -> Result<(Tensor, Tensor)> {
        let power = |beta: f64| t.mul_scalar(beta.ln())?.exp()?.rsub_scalar(1.0);
        let size = power(self.beta1)?.rdiv_scalar(self.lr)?.cast(DType::F32)?;
        let root = power(self.beta2)?.sqrt()?.cast(DType::F32)?;
        Ok((size, root))
    }

    /// One parameter's update: new p, m and v.
    pub(crate) fn update(
        &self,
        p: &Tensor,
        g: &Tensor,
        m: &Tensor,
        v: &Tensor,
        (size, root): (&Tensor, &Tensor),
    ) -> Result<[Tensor; 3]> {
        let m = m.add(&g.sub(m)?.mul_scalar(1.0 - self.beta1)?)?;
        let v = v.mul_scalar(self.beta2)?.add(&g.square()?.mul_scalar(1.0 - self.beta2)?)?;
        let scale = v.sqrt()?.div(root)?.add_scalar(self.eps)?;
        Ok([p.sub(&m.div(&scale)?.mul(size)?)?, m, v])
    }
}
