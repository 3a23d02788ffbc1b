//! Keras's optimizers that look at a whole parameter: Lamb and Muon.

use plimsoll_graph::{DType, TensorOps, Type};
use plimsoll_nn::{UpdateAt, Updated};
use plimsoll_run::{Result as RunResult, Tensor};

use crate::error::refuse;
use crate::optimizer::{follow, one_minus_power};

/// The settings of Muon.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Muon {
    /// How slowly Adam's first moment follows, for parameters that are no matrices.
    pub beta1: f64,
    /// How slowly Adam's second moment follows.
    pub beta2: f64,
    /// Added to Adam's root.
    pub eps: f64,
    /// Adam's weight decay, beside that of the matrices.
    pub adam_decay: Option<f64>,
    /// Adam's share of the learning rate.
    pub adam_ratio: f64,
    /// The three numbers of an iteration.
    pub coefficients: [f64; 3],
    /// How much of the momentum stays.
    pub momentum: f64,
    /// Iterations.
    pub steps: usize,
    /// Whether the gradient is as if taken after the momentum's step.
    pub nesterov: bool,
    /// What a step is scaled by, times the root of the longer side.
    pub rms: Option<f64>,
    /// Whether embeddings are left to Adam.
    pub spares_embeddings: bool,
}

impl Muon {
    /// Whether a parameter is left to Adam.
    pub(crate) fn is_adams(&self, name: &str, shape: &[usize]) -> bool {
        shape.len() != 2 || (self.spares_embeddings && name.to_lowercase().contains("embedding"))
    }

    pub(crate) fn update(
        &self,
        at: &UpdateAt<'_>,
        value: &Tensor,
        grad: &Tensor,
        slots: &[Tensor],
    ) -> Updated {
        match slots {
            [m, v] => {
                let m = follow(m, grad, 1.0 - self.beta1)?;
                let v = follow(v, &grad.square()?, 1.0 - self.beta2)?;
                let rate = at.rate.cast(DType::F64)?.mul_scalar(self.adam_ratio)?;
                let size = rate
                    .mul(&one_minus_power(self.beta2, at.count)?.sqrt()?)?
                    .div(&one_minus_power(self.beta1, at.count)?)?
                    .cast(value.dtype())?;
                let step = m.mul(&size)?.div(&v.sqrt()?.add_scalar(self.eps)?)?;
                Ok((value.sub(&step)?, vec![m, v]))
            }
            [m] => {
                let m = m.mul_scalar(self.momentum)?.add(grad)?;
                let g = if self.nesterov { m.mul_scalar(self.momentum)?.add(grad)? } else { m.clone() };
                let mut step = self.orthogonal(&g)?.mul(&at.rate.cast(value.dtype())?)?;
                if let Some(rms) = self.rms {
                    let longer = value.shape().iter().copied().max().unwrap_or(1) as f64;
                    step = step.mul_scalar(longer.sqrt() * rms)?;
                }
                Ok((value.sub(&step)?, vec![m]))
            }
            _ => Err(refuse("gives an optimizer fewer slots than it has")),
        }
    }

    /// The nearest matrix whose singular values are about 1, by a few iterations of Newton and Schulz.
    fn orthogonal(&self, g: &Tensor) -> RunResult<Tensor> {
        let is_tall = g.shape()[0] > g.shape()[1];
        let mut x = if is_tall { g.transpose(&[1, 0])? } else { g.clone() };
        x = x.div(&x.square()?.sum(&[], false)?.sqrt()?.add_scalar(1e-7)?)?;
        let [a, b, c] = self.coefficients;
        for _ in 0..self.steps {
            let square = x.matmul_with(&x, None, false, true)?;
            let mixed = square.mul_scalar(b)?.add(&square.mul_scalar(c)?.matmul(&square)?)?;
            x = x.mul_scalar(a)?.add(&mixed.matmul(&x)?)?;
        }
        if is_tall { x.transpose(&[1, 0]) } else { Ok(x) }
    }
}

/// Lamb: Adam whose step has the size of the parameter.
pub(crate) fn lamb(
    [beta1, beta2, eps]: [f64; 3],
    at: &UpdateAt<'_>,
    value: &Tensor,
    grad: &Tensor,
    slots: &[Tensor],
) -> Updated {
    let [m, v] = slots else { return Err(refuse("gives an optimizer fewer slots than it has")) };
    let m = follow(m, grad, 1.0 - beta1)?;
    let v = follow(v, &grad.square()?, 1.0 - beta2)?;
    let share = |beta: f64| one_minus_power(beta, at.count)?.cast(value.dtype());
    let step = m.div(&share(beta1)?)?.div(&v.div(&share(beta2)?)?.sqrt()?.add_scalar(eps)?)?;
    let norm = |x: &Tensor| x.square()?.sum(&[], false)?.sqrt();
    let (own, other) = (norm(value)?, norm(&step)?);
    let zero = own.full_like(Type::new(own.dtype(), []), 0.0)?;
    let one = own.full_like(Type::new(own.dtype(), []), 1.0)?;
    let both = own.greater(&zero)?.and(&other.greater(&zero)?)?;
    let safe = both.select(&other, &one)?;
    let ratio = both.select(&own.div(&safe)?, &one)?;
    let new = value.sub(&step.mul(&ratio)?.mul(&at.rate.cast(value.dtype())?)?)?;
    Ok((new, vec![m, v]))
}
