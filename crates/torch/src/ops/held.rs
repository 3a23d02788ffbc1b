//! Elements held between two bounds, and functions made of that. At a bound there is no gradient, as PyTorch has it.

use plimsoll_graph::{GradientOps, TensorOps, Type};
use plimsoll_nn::blocks::Laid;
use plimsoll_run::{Result, Tensor};

use super::elementwise::{computed, converted};
use super::{Table, Values, mapped, one};
use crate::call::Call;

pub(super) const OPS: Table = &[
    ("aten.clamp.default", |c| {
        let (low, high) = (c.opt_number("min")?, c.opt_number("max")?);
        clamp(c, low.map_or(f64::NEG_INFINITY, |n| n.value), high.map_or(f64::INFINITY, |n| n.value))
    }),
    ("aten.clamp_min.default", |c| {
        let low = c.float("min")?;
        clamp(c, low, f64::INFINITY)
    }),
    ("aten.clamp_max.default", |c| {
        let high = c.float("max")?;
        clamp(c, f64::NEG_INFINITY, high)
    }),
    ("aten.clamp.Tensor", |c| {
        let mut x = c.laid("self")?;
        if let Some(low) = c.opt_laid("min")? {
            x = Laid::zip(&[&x, &low], |t| t[0].maximum(&t[1].cast(t[0].dtype())?))?;
        }
        if let Some(high) = c.opt_laid("max")? {
            x = Laid::zip(&[&x, &high], |t| t[0].minimum(&t[1].cast(t[0].dtype())?))?;
        }
        one(x)
    }),
    ("aten.relu6.default", |c| mapped(c, |x| held(x, 0.0, 6.0))),
    ("aten.hardtanh.default", |c| {
        let (low, high) = (c.float("min_val")?, c.float("max_val")?);
        mapped(c, |x| held(x, low, high))
    }),
    ("aten.hardsigmoid.default", |c| mapped(c, hard_sigmoid)),
    ("aten.hardswish.default", |c| mapped(c, |x| x.mul(&hard_sigmoid(x)?))),
];

/// Between two bounds. Where they are in the wrong order, PyTorch gives the upper one.
fn clamp(c: &mut Call<'_, '_>, low: f64, high: f64) -> Values {
    let out = c.out_dtype(0)?;
    mapped(c, |x| converted(&held(&converted(x, computed(out))?, low.min(high), high)?, out))
}

/// Between two bounds, of which either may be infinite; a gradient for what lies between them alone.
pub(super) fn held(x: &Tensor, low: f64, high: f64) -> Result<Tensor> {
    let y = x.clamp(low, high)?;
    if !x.dtype().is_float() || (low == f64::NEG_INFINITY && high == f64::INFINITY) {
        return Ok(y);
    }
    y.with_gradient(&[x], move |at| {
        let (x, grad) = (at.input(1)?, at.grad(0)?);
        let bound = |value: f64| at.full(&Type::new(x.dtype(), []), value);
        let above = if low == f64::NEG_INFINITY { None } else { Some(x.greater(&bound(low)?)?) };
        let below = if high == f64::INFINITY { None } else { Some(x.less(&bound(high)?)?) };
        let inside = match (above, below) {
            (Some(above), Some(below)) => above.and(&below)?,
            (Some(one), None) | (None, Some(one)) => one,
            (None, None) => return Ok(vec![Some(grad)]),
        };
        Ok(vec![Some(inside.select(&grad, &at.full(grad.ty(), 0.0)?)?)])
    })
}

fn hard_sigmoid(x: &Tensor) -> Result<Tensor> {
    held(&x.add_scalar(3.0)?, 0.0, 6.0)?.mul_scalar(1.0 / 6.0)
}
