//! Adafactor: second moments kept as a row and a column each, so that state is small beside the parameters. After
//! Shazeer and Stern (2018), with PyTorch's settings.
//!
//! With w = t^-0.8: r ← r + w (mean of g² along rows - r), c likewise along columns, v = r c / mean of r; u = g / √v;
//! p ← p - max(ε₂, rms p) min(lr, 1/√t) · u / max(1, rms u / d). Vectors keep v itself.

use plimsoll_graph::{DType, Shape, TensorOps};
use plimsoll_run::{Result, Tensor};

use super::{Decay, Optimizer, Slot, UpdateAt, Updated, name_and_rate, taken};
use crate::Param;

/// Settings of Adafactor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adafactor {
    /// The learning rate, relative to a parameter's own size.
    pub lr: f64,
    /// The exponent with which the second moment's share of new gradients falls.
    pub beta2_decay: f64,
    /// ε₁, the least second moment, squared.
    pub eps1: f64,
    /// ε₂, the least size of a parameter.
    pub eps2: f64,
    /// d, the largest root mean square of a step before it is scaled down.
    pub clip: f64,
    /// Weight decay.
    pub decay: Decay,
}

impl Adafactor {
    /// PyTorch's settings with a learning rate.
    pub fn new(lr: f64) -> Adafactor {
        let eps1 = f64::from(f32::EPSILON);
        Adafactor { lr, beta2_decay: -0.8, eps1, eps2: 1e-3, clip: 1.0, decay: Decay::NONE }
    }
}

/// The shape with one of its last two axes (0: the last, 1: the one before) of length 1.
fn without(shape: &Shape, from_last: usize) -> Shape {
    let axis = shape.rank() - 1 - from_last;
    shape.iter().enumerate().map(|(i, &n)| if i == axis { 1 } else { n }).collect()
}

fn root_mean_square(x: &Tensor) -> Result<Tensor> {
    x.square()?.mean(&[], false)?.sqrt()
}

impl Optimizer for Adafactor {
    name_and_rate!("adafactor");

    fn slots(&self, param: &Param) -> Vec<Slot> {
        if param.ty.shape.rank() < 2 {
            return vec![Slot::zeros("variance", param)];
        }
        let slot = |name, from_last| {
            let ty = param.ty.with_shape(without(&param.ty.shape, from_last));
            Slot { name, ty, init: 0.0 }
        };
        vec![slot("row", 0), slot("column", 1)]
    }

    /// min(lr, 1/√t), t^-0.8 and the decay.
    fn prepare(&self, count: &Tensor, rate: &Tensor) -> Result<Vec<Tensor>> {
        let (count, wide) = (count.cast(DType::F64)?, rate.cast(DType::F64)?);
        let size = wide.minimum(&count.rsqrt()?)?.cast(rate.dtype())?;
        let share = count.pow_scalar(self.beta2_decay)?.cast(rate.dtype())?;
        Ok(vec![size, share, self.decay.shrink(rate)?])
    }

    fn update(&self, at: &UpdateAt<'_>, value: &Tensor, grad: &Tensor, slots: &[Tensor]) -> Updated {
        let [size, share, shrink] = taken(at.scalars, "scalars")?;
        let grad = self.decay.grad(at.param, value, grad)?;
        let square = grad.square()?;
        let follow = |old: &Tensor, new: &Tensor| old.add(&new.sub(old)?.mul(share)?);
        let rank = value.shape().rank();
        let (variance, new) = if rank < 2 {
            let [variance] = taken(slots, "slots")?;
            let variance = follow(variance, &square)?;
            (variance.clone(), vec![variance])
        } else {
            let [row, column] = taken(slots, "slots")?;
            let row = follow(row, &square.mean(&[rank - 1], true)?)?;
            let column = follow(column, &square.mean(&[rank - 2], true)?)?;
            let whole = row.mean(&[rank - 2], true)?.clamp(self.eps1, f64::INFINITY)?;
            (row.mul(&column)?.div(&whole)?, vec![row, column])
        };
        let step = variance.clamp(self.eps1 * self.eps1, f64::INFINITY)?.rsqrt()?.mul(&grad)?;
        let at_least = |x: Tensor, least: f64| x.clamp(least, f64::INFINITY);
        let own = at_least(root_mean_square(value)?, self.eps2)?.mul(size)?;
        let limit = at_least(root_mean_square(&step)?.mul_scalar(1.0 / self.clip)?, 1.0)?;
        let value = self.decay.value(at.param, value, shrink)?;
        Ok((value.sub(&step.mul(&own.div(&limit)?)?)?, new))
    }
}
