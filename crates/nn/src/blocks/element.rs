//! Functions of one element, or of two, that other systems have by name and that are a few of our ops.

use plimsoll_graph::{TensorOps, Type};
use plimsoll_run::{Result, Tensor};

use crate::Activation;

/// A scalar beside a tensor, in its element type.
#[track_caller]
pub fn scalar(x: &Tensor, value: f64) -> Result<Tensor> {
    x.full_like(Type::new(x.dtype(), []), value)
}

/// The smallest integer not below x.
#[track_caller]
pub fn ceil(x: &Tensor) -> Result<Tensor> {
    x.neg()?.floor()?.neg()
}

/// x without what is behind the point.
#[track_caller]
pub fn trunc(x: &Tensor) -> Result<Tensor> {
    x.sign()?.mul(&x.abs()?.floor()?)
}

/// The nearest integer; of two that are as near, the even one.
#[track_caller]
pub fn round(x: &Tensor) -> Result<Tensor> {
    let down = x.floor()?;
    let rest = x.sub(&down)?;
    let half = scalar(x, 0.5)?;
    let up = down.add_scalar(1.0)?;
    // Odd where half of it is no integer.
    let halved = down.mul_scalar(0.5)?;
    let odd = halved.floor()?.less(&halved)?;
    let at_half = odd.select(&up, &down)?;
    rest.less(&half)?.select(&down, &rest.greater(&half)?.select(&up, &at_half)?)
}

/// sin x / cos x
#[track_caller]
pub fn tan(x: &Tensor) -> Result<Tensor> {
    x.sin()?.div(&x.cos()?)
}

/// (e^x - e^-x) / 2
#[track_caller]
pub fn sinh(x: &Tensor) -> Result<Tensor> {
    x.exp()?.sub(&x.neg()?.exp()?)?.mul_scalar(0.5)
}

/// (e^x + e^-x) / 2
#[track_caller]
pub fn cosh(x: &Tensor) -> Result<Tensor> {
    x.exp()?.add(&x.neg()?.exp()?)?.mul_scalar(0.5)
}

/// The inverse of sinh: sign(x) ln(|x| + √(x² + 1)).
#[track_caller]
pub fn asinh(x: &Tensor) -> Result<Tensor> {
    let size = x.abs()?;
    x.sign()?.mul(&size.add(&size.square()?.add_scalar(1.0)?.sqrt()?)?.log()?)
}

/// The inverse of cosh: ln(x + √(x² - 1)).
#[track_caller]
pub fn acosh(x: &Tensor) -> Result<Tensor> {
    x.add(&x.square()?.add_scalar(-1.0)?.sqrt()?)?.log()
}

/// The inverse of tanh: ½ ln((1 + x) / (1 - x)).
#[track_caller]
pub fn atanh(x: &Tensor) -> Result<Tensor> {
    x.add_scalar(1.0)?.div(&x.rsub_scalar(1.0)?)?.log()?.mul_scalar(0.5)
}

/// x where x > 0, else α (e^(x/α) - 1).
#[track_caller]
pub fn celu(x: &Tensor, alpha: f64) -> Result<Tensor> {
    let below = Activation::Elu(alpha).apply(&x.mul_scalar(1.0 / alpha)?)?;
    x.greater(&scalar(x, 0.0)?)?.select(x, &below)
}

/// The scaled elu with parameters of one's own.
#[track_caller]
pub fn selu(x: &Tensor, alpha: f64, gamma: f64) -> Result<Tensor> {
    Activation::Elu(alpha).apply(x)?.mul_scalar(gamma)
}

/// α x + β, held between 0 and 1.
#[track_caller]
pub fn hard_sigmoid(x: &Tensor, alpha: f64, beta: f64) -> Result<Tensor> {
    x.mul_scalar(alpha)?.add_scalar(beta)?.clamp(0.0, 1.0)
}

/// x where x > α, else 0.
#[track_caller]
pub fn thresholded_relu(x: &Tensor, alpha: f64) -> Result<Tensor> {
    x.greater(&scalar(x, alpha)?)?.select(x, &scalar(x, 0.0)?)
}

/// x + bias where x < -λ, x - bias where x > λ, else 0.
#[track_caller]
pub fn shrink(x: &Tensor, lambda: f64, bias: f64) -> Result<Tensor> {
    let (low, high) = (x.less(&scalar(x, -lambda)?)?, x.greater(&scalar(x, lambda)?)?);
    let inner = high.select(&x.add_scalar(-bias)?, &scalar(x, 0.0)?)?;
    low.select(&x.add_scalar(bias)?, &inner)
}

/// x where x > 0, else slope · x, with slopes that are broadcast.
#[track_caller]
pub fn prelu(x: &Tensor, slope: &Tensor) -> Result<Tensor> {
    x.greater(&scalar(x, 0.0)?)?.select(x, &x.mul(slope)?)
}

/// True where x is not a number.
#[track_caller]
pub fn is_nan(x: &Tensor) -> Result<Tensor> {
    x.equal(x)?.not()
}

/// True where x is infinite, of the signs that are asked for.
#[track_caller]
pub fn is_inf(x: &Tensor, negative: bool, positive: bool) -> Result<Tensor> {
    let low = x.equal(&scalar(x, f64::NEG_INFINITY)?)?;
    let high = x.equal(&scalar(x, f64::INFINITY)?)?;
    match (negative, positive) {
        (true, true) => low.or(&high),
        (true, false) => Ok(low),
        (false, true) => Ok(high),
        (false, false) => low.and(&high),
    }
}

/// True where just one of two truth values is.
#[track_caller]
pub fn xor(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    a.or(b)?.and(&a.and(b)?.not()?)
}

/// a - b · trunc(a / b): the remainder with the sign of a.
#[track_caller]
pub fn fmod(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    a.sub(&trunc(&a.div(b)?)?.mul(b)?)
}

/// a - b · floor(a / b): the remainder with the sign of b.
#[track_caller]
pub fn floor_mod(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    a.sub(&a.div(b)?.floor()?.mul(b)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(f: impl Fn(&Tensor) -> Result<Tensor>, g: impl Fn(f64) -> f64, at: &[f64]) {
        let x = Tensor::from_slice(at, [at.len()]).unwrap();
        for (found, x) in f(&x).unwrap().to_vec::<f64>().unwrap().into_iter().zip(at) {
            assert!((found - g(*x)).abs() < 1e-12, "{x}: {found} instead of {}", g(*x));
        }
    }

    #[test]
    fn compositions_are_the_functions_that_they_are_named_after() {
        let around = [-2.5, -1.5, -1.2, -0.5, -0.1, 0.0, 0.3, 0.5, 1.5, 2.5, 3.7];
        check(ceil, f64::ceil, &around);
        check(trunc, f64::trunc, &around);
        check(round, f64::round_ties_even, &around);
        check(tan, f64::tan, &around);
        check(sinh, f64::sinh, &around);
        check(cosh, f64::cosh, &around);
        check(asinh, f64::asinh, &around);
        check(acosh, f64::acosh, &[1.0, 1.5, 7.0]);
        check(atanh, f64::atanh, &[-0.9, 0.0, 0.3]);
        check(|x| fmod(x, &scalar(x, -0.7)?), |x| x % -0.7, &around);
        check(|x| floor_mod(x, &scalar(x, 0.7)?), |x| x.rem_euclid(0.7), &around);
    }
}
