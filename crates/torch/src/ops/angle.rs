//! Angles of what sines, cosines and tangents give, and areas of the hyperbolic ones.

use plimsoll_graph::{GradientOps, TensorOps, Type};
use plimsoll_nn::blocks::{Laid, element};
use plimsoll_run::{Result, Tensor};

use super::elementwise::{converted, float};
use super::{Table, one};

/// How often an angle is halved before its series is summed: then it is below π/32.
const HALVINGS: usize = 3;

pub(super) const OPS: Table = &[
    ("aten.atan.default", |c| float(c, arctangent)),
    ("aten.asin.default", |c| float(c, arcsine)),
    ("aten.acos.default", |c| float(c, |x| arcsine(x)?.rsub_scalar(std::f64::consts::FRAC_PI_2))),
    ("aten.atan2.default", |c| {
        let (y, x, out) = (c.laid("self")?, c.laid("other")?, c.out_dtype(0)?);
        one(Laid::zip(&[&y, &x], |t| angle(&converted(&t[0], out)?, &converted(&t[1], out)?))?)
    }),
    ("aten.asinh.default", |c| float(c, element::asinh)),
    ("aten.acosh.default", |c| float(c, element::acosh)),
    ("aten.atanh.default", |c| float(c, element::atanh)),
];

/// The angle whose tangent this is.
fn arctangent(x: &Tensor) -> Result<Tensor> {
    let one = x.full_like(Type::new(x.dtype(), []), 1.0)?;
    let size = x.abs()?;
    let is_steep = size.greater(&one)?;
    // atan x = π/2 - atan 1/x; the reciprocal of what is not taken must not be infinite.
    let mut t = is_steep.select(&is_steep.select(&size, &one)?.reciprocal()?, &size)?;
    // atan t = 2 atan(t / (1 + √(1 + t²)))
    for _ in 0..HALVINGS {
        t = t.div(&t.square()?.add_scalar(1.0)?.sqrt()?.add_scalar(1.0)?)?;
    }
    // t - t³/3 + t⁵/5 - …, of which the term of t¹⁷ is below the rounding of f64.
    let square = t.square()?;
    let mut series = square.mul_scalar(1.0 / 17.0)?;
    for odd in [15.0, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0] {
        series = series.rsub_scalar(1.0 / odd)?.mul(&square)?;
    }
    let gentle = series.rsub_scalar(1.0)?.mul(&t)?.mul_scalar(f64::from(1 << HALVINGS))?;
    let turned = is_steep.select(&gentle.rsub_scalar(std::f64::consts::FRAC_PI_2)?, &gentle)?;
    let y = turned.mul(&x.sign()?)?;
    y.with_gradient(&[x], |at| Ok(vec![Some(at.grad(0)?.div(&at.input(1)?.square()?.add_scalar(1.0)?)?)]))
}

fn arcsine(x: &Tensor) -> Result<Tensor> {
    arctangent(&x.div(&x.square()?.rsub_scalar(1.0)?.sqrt()?)?)
}

/// The angle of a point, from -π to π.
fn angle(y: &Tensor, x: &Tensor) -> Result<Tensor> {
    use std::f64::consts::PI;
    let zero = x.full_like(Type::new(x.dtype(), []), 0.0)?;
    let is_origin = y.equal(&zero)?.and(&x.equal(&zero)?)?;
    let one = x.full_like(Type::new(x.dtype(), []), 1.0)?;
    let straight = arctangent(&y.div(&is_origin.select(&one, x)?)?)?;
    let below = y.less(&zero)?;
    let half = below.select(&zero.add_scalar(-PI)?, &zero.add_scalar(PI)?)?;
    let value = x.less(&zero)?.select(&straight.add(&half)?, &straight)?;
    value.with_gradient(&[y, x], |at| {
        let (y, x, grad) = (at.input(1)?, at.input(2)?, at.grad(0)?);
        let length = y.square()?.add(&x.square()?)?;
        let share = grad.div(&length)?;
        Ok(vec![Some(share.mul(&x)?.sum_to(y.shape())?), Some(share.mul(&y)?.neg()?.sum_to(x.shape())?)])
    })
}
