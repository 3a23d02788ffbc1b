//! Ops that go element by element.

use plimsoll_graph::{DType, Shape, TensorOps};
use plimsoll_nn::Activation;
use plimsoll_nn::blocks::{Laid, element, integer};
use plimsoll_run::{Result, Tensor};

use super::Table;
use crate::call::Call;
use crate::error::refuse;
use crate::value::Value;

pub(super) const TABLE: Table = &[
    ("Abs", |c| one(c, |x| integer::arithmetic_one(x, |x| x.abs()))),
    ("Neg", |c| one(c, |x| integer::arithmetic_one(x, |x| x.neg()))),
    ("Sign", |c| one(c, |x| integer::arithmetic_one(x, |x| x.sign()))),
    ("Floor", |c| one(c, |x| x.floor())),
    ("Ceil", |c| one(c, element::ceil)),
    ("Round", |c| one(c, element::round)),
    ("Exp", |c| one(c, |x| x.exp())),
    ("Log", |c| one(c, |x| x.log())),
    ("Sqrt", |c| one(c, |x| x.sqrt())),
    ("Reciprocal", |c| one(c, |x| x.reciprocal())),
    ("Sin", |c| one(c, |x| x.sin())),
    ("Cos", |c| one(c, |x| x.cos())),
    ("Tan", |c| one(c, element::tan)),
    ("Sinh", |c| one(c, element::sinh)),
    ("Cosh", |c| one(c, element::cosh)),
    ("Tanh", |c| one(c, |x| x.tanh())),
    ("Asinh", |c| one(c, element::asinh)),
    ("Acosh", |c| one(c, element::acosh)),
    ("Atanh", |c| one(c, element::atanh)),
    ("Erf", |c| one(c, |x| x.erf())),
    ("Sigmoid", |c| one(c, |x| x.sigmoid())),
    ("Relu", |c| one(c, |x| integer::arithmetic_one(x, |x| x.relu()))),
    ("Softplus", |c| one(c, |x| x.softplus())),
    ("Softsign", |c| one(c, |x| Activation::Softsign.apply(x))),
    ("Mish", |c| one(c, |x| Activation::Mish.apply(x))),
    ("HardSwish", |c| one(c, |x| Activation::HardSwish.apply(x))),
    ("LeakyRelu", |c| by_alpha(c, 0.01, |x, alpha| x.leaky_relu(alpha))),
    ("Elu", |c| by_alpha(c, 1.0, |x, alpha| Activation::Elu(alpha).apply(x))),
    ("Selu", |c| {
        let (alpha, gamma) =
            (c.float("alpha", 1.673_263_192_176_818_8)?, c.float("gamma", 1.050_701_022_148_132_3)?);
        one(c, |x| element::selu(x, alpha, gamma))
    }),
    ("Celu", |c| by_alpha(c, 1.0, element::celu)),
    ("HardSigmoid", |c| {
        let (alpha, beta) = (c.float("alpha", 0.2)?, c.float("beta", 0.5)?);
        one(c, |x| element::hard_sigmoid(x, alpha, beta))
    }),
    ("ThresholdedRelu", |c| by_alpha(c, 1.0, element::thresholded_relu)),
    ("Shrink", |c| {
        let (bias, lambd) = (c.float("bias", 0.0)?, c.float("lambd", 0.5)?);
        one(c, |x| integer::arithmetic_one(x, |x| element::shrink(x, lambd, bias)))
    }),
    ("Gelu", |c| {
        let is_tanh = c.one_of("approximate", &["none", "tanh"])? == "tanh";
        one(c, |x| if is_tanh { x.gelu_tanh() } else { x.gelu() })
    }),
    ("Swish", |c| {
        by_alpha(c, 1.0, |x, alpha| match alpha == 1.0 {
            true => x.silu(),
            false => x.mul(&x.mul_scalar(alpha)?.sigmoid()?),
        })
    }),
    ("PRelu", |c| {
        let (x, slope) = (c.x(0)?, c.x(1)?);
        Ok(vec![Laid::zip(&[&x, &slope], |t| integer::arithmetic(&t[0], &t[1], element::prelu))?.into()])
    }),
    ("Not", |c| one(c, |x| x.not())),
    ("IsNaN", |c| one(c, element::is_nan)),
    ("IsInf", |c| {
        let (negative, positive) = (c.flag("detect_negative", true)?, c.flag("detect_positive", true)?);
        one(c, |x| element::is_inf(x, negative, positive))
    }),
    ("BitwiseNot", |c| {
        one(c, |x| match x.dtype() {
            dtype @ (DType::U8 | DType::U16 | DType::U32) => {
                let last = dtype.range().map_or(0.0, |(_, last)| last as f64);
                integer::arithmetic_one(x, |x| x.rsub_scalar(last))
            }
            _ => integer::arithmetic_one(x, |x| x.rsub_scalar(-1.0)),
        })
    }),
    ("BitShift", |c| {
        let is_left = c.one_of("direction", &["LEFT", "RIGHT"])? == "LEFT";
        let (a, b) = (c.x(0)?, c.x(1)?);
        Ok(vec![Laid::zip(&[&a, &b], |t| shift(&t[0], &t[1], is_left))?.into()])
    }),
    ("Identity", |c| Ok(vec![c.value(0)?.clone()])),
    ("Add", |c| arithmetic(c, Sum::Add)),
    ("Sub", |c| arithmetic(c, Sum::Sub)),
    ("Mul", |c| arithmetic(c, Sum::Mul)),
    ("Div", |c| arithmetic(c, Sum::Div)),
    ("Pow", pow),
    ("Mod", |c| {
        let is_fmod = c.flag("fmod", false)?;
        zip(c, move |a, b| match (a.dtype().is_float(), is_fmod) {
            (true, true) => element::fmod(a, b),
            (true, false) => floor_mod(a, b),
            (false, true) => integer::cut_remainder(a, b),
            (false, false) => integer::remainder(a, b),
        })
    }),
    ("Max", |c| variadic(c, |a, b| integer::arithmetic(a, b, |a, b| a.maximum(b)))),
    ("Min", |c| variadic(c, |a, b| integer::arithmetic(a, b, |a, b| a.minimum(b)))),
    ("Sum", |c| variadic(c, |a, b| a.add(b))),
    ("Mean", |c| {
        let n = c.n_inputs() as f64;
        let sum = variadic(c, |a, b| a.add(b))?;
        let Some(Value::Run(sum)) = sum.first() else { return Err(refuse("has no input")) };
        Ok(vec![sum.map(|x| x.mul_scalar(1.0 / n))?.into()])
    }),
    ("Equal", |c| zip(c, |a, b| orderly(a)?.equal(&orderly(b)?))),
    ("Less", |c| zip(c, |a, b| a.less(b))),
    ("LessOrEqual", |c| zip(c, |a, b| a.less_equal(b))),
    ("Greater", |c| zip(c, |a, b| a.greater(b))),
    ("GreaterOrEqual", |c| zip(c, |a, b| a.greater_equal(b))),
    ("And", |c| zip(c, |a, b| a.and(b))),
    ("Or", |c| zip(c, |a, b| a.or(b))),
    ("Xor", |c| zip(c, element::xor)),
    ("Where", |c| {
        let (choice, yes, no) = (c.x(0)?, c.x(1)?, c.x(2)?);
        Ok(vec![Laid::zip(&[&choice, &yes, &no], |t| t[0].select(&t[1], &t[2]))?.into()])
    }),
    ("Clip", clip),
    ("Cast", |c| {
        let to = c.dtype("to")?.ok_or_else(|| refuse("does not say which type it makes"))?;
        // Both are about types that are not here.
        c.flag("saturate", true)?;
        c.text("round_mode", "up")?;
        cast(c, to)
    }),
    ("CastLike", |c| {
        c.flag("saturate", true)?;
        c.text("round_mode", "up")?;
        let to = c.value(1)?.dtype();
        cast(c, to)
    }),
];

fn one(c: &mut Call<'_>, f: impl FnOnce(&Tensor) -> Result<Tensor>) -> Result<Vec<Value>> {
    Ok(vec![c.x(0)?.map(f)?.into()])
}

/// A function with one number, ONNX's `alpha`.
fn by_alpha(
    c: &mut Call<'_>,
    usual: f64,
    f: impl FnOnce(&Tensor, f64) -> Result<Tensor>,
) -> Result<Vec<Value>> {
    let alpha = c.float("alpha", usual)?;
    one(c, |x| f(x, alpha))
}

fn zip(c: &mut Call<'_>, f: impl FnOnce(&Tensor, &Tensor) -> Result<Tensor>) -> Result<Vec<Value>> {
    let (a, b) = (c.x(0)?, c.x(1)?);
    Ok(vec![Laid::zip(&[&a, &b], |t| f(&t[0], &t[1]))?.into()])
}

fn variadic(c: &mut Call<'_>, f: impl Fn(&Tensor, &Tensor) -> Result<Tensor>) -> Result<Vec<Value>> {
    let mut y = c.x(0)?;
    for i in 1..c.n_inputs() {
        let other = c.x(i)?;
        y = Laid::zip(&[&y, &other], |t| f(&t[0], &t[1]))?;
    }
    Ok(vec![y.into()])
}

/// Truth values as bytes, which can be compared.
fn orderly(x: &Tensor) -> Result<Tensor> {
    if x.dtype() == DType::Bool { x.cast(DType::U8) } else { Ok(x.clone()) }
}

#[derive(Clone, Copy)]
enum Sum {
    Add,
    Sub,
    Mul,
    Div,
}

/// a ∘ b. A number that is known becomes part of the op.
fn arithmetic(c: &mut Call<'_>, kind: Sum) -> Result<Vec<Value>> {
    let (left, right) = (c.value(0)?, c.value(1)?);
    if left.dtype().is_float() {
        let (of_left, of_right) = (c.scalar(0, right.shape()), c.scalar(1, left.shape()));
        let y = match (kind, of_left, of_right) {
            (Sum::Add, Some(s), _) => Some(c.x(1)?.map(|x| x.add_scalar(s))?),
            (Sum::Mul, Some(s), _) => Some(c.x(1)?.map(|x| x.mul_scalar(s))?),
            (Sum::Sub, Some(s), _) => Some(c.x(1)?.map(|x| x.rsub_scalar(s))?),
            (Sum::Div, Some(s), _) => Some(c.x(1)?.map(|x| x.rdiv_scalar(s))?),
            (Sum::Add, _, Some(s)) => Some(c.x(0)?.map(|x| x.add_scalar(s))?),
            (Sum::Mul, _, Some(s)) => Some(c.x(0)?.map(|x| x.mul_scalar(s))?),
            (Sum::Sub, _, Some(s)) => Some(c.x(0)?.map(|x| x.add_scalar(-s))?),
            (Sum::Div, _, Some(s)) => Some(c.x(0)?.map(|x| x.div(&element::scalar(x, s)?))?),
            _ => None,
        };
        if let Some(y) = y {
            return Ok(vec![y.into()]);
        }
    }
    zip(c, move |a, b| match kind {
        Sum::Add => integer::arithmetic(a, b, |a, b| a.add(b)),
        Sum::Sub => integer::arithmetic(a, b, |a, b| a.sub(b)),
        Sum::Mul => integer::arithmetic(a, b, |a, b| a.mul(b)),
        Sum::Div if a.dtype().is_float() => a.div(b),
        Sum::Div => integer::quotient(a, b),
    })
}

/// x^y. A power that is known and small is a product, which is right for numbers below 0 too.
fn pow(c: &mut Call<'_>) -> Result<Vec<Value>> {
    let base = c.value(0)?;
    if let (true, Some(power)) = (base.dtype().is_float(), c.scalar(1, base.shape())) {
        let x = c.x(0)?;
        let y = match power {
            1.0 => x,
            2.0 => x.map(|x| x.square())?,
            3.0 => x.map(|x| x.square()?.mul(x))?,
            4.0 => x.map(|x| x.square()?.square())?,
            -1.0 => x.map(|x| x.reciprocal())?,
            0.5 => x.map(|x| x.sqrt())?,
            -0.5 => x.map(|x| x.rsqrt())?,
            power => x.map(|x| x.pow_scalar(power))?,
        };
        return Ok(vec![y.into()]);
    }
    zip(c, |a, b| match (a.dtype().is_float(), b.dtype().is_float()) {
        (true, _) => a.pow(&b.cast(a.dtype())?),
        (false, _) => integer::power(a, b),
    })
}

/// x held between bounds, either of which may be left out.
fn clip(c: &mut Call<'_>) -> Result<Vec<Value>> {
    let x = c.x(0)?;
    if c.opset < 11 {
        let (low, high) = (c.float("min", f64::from(f32::MIN))?, c.float("max", f64::from(f32::MAX))?);
        return Ok(vec![x.map(|x| x.clamp(low, high))?.into()]);
    }
    let bound = |i: usize| c.given(i).map(|value| value.known().and_then(crate::constant::Constant::one));
    match (bound(1), bound(2)) {
        // Both known, or left out.
        (low, high) if low != Some(None) && high != Some(None) && x.dtype().is_float() => {
            let low = low.flatten().unwrap_or(f64::NEG_INFINITY);
            let high = high.flatten().unwrap_or(f64::INFINITY);
            // Where the bounds are in the wrong order, the upper one counts.
            Ok(vec![x.map(|x| x.clamp(low.min(high), high))?.into()])
        }
        _ => {
            let mut y = x;
            if let Some(low) = c.maybe_x(1)? {
                y = Laid::zip(&[&y, &low], |t| integer::arithmetic(&t[0], &t[1], |a, b| a.maximum(b)))?;
            }
            if let Some(high) = c.maybe_x(2)? {
                y = Laid::zip(&[&y, &high], |t| integer::arithmetic(&t[0], &t[1], |a, b| a.minimum(b)))?;
            }
            Ok(vec![y.into()])
        }
    }
}

fn cast(c: &mut Call<'_>, to: DType) -> Result<Vec<Value>> {
    let to = c.compute(to);
    one(c, |x| match (x.dtype(), to) {
        // Out of range, the lowest bits stay.
        (from, to)
            if from.is_integer() && DType::SMALL_INTEGERS.contains(&to) && from.bytes() >= to.bytes() =>
        {
            integer::wrap(&x.cast(DType::I64)?, to)
        }
        _ => x.cast(to),
    })
}

/// The remainder with the sign of b, which of something infinite is a, or b where the signs differ.
fn floor_mod(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let zero = element::scalar(a, 0.0)?;
    let differs = element::xor(&a.less(&zero)?, &b.less(&zero)?)?.and(&a.not_equal(&zero)?)?;
    let whole = element::is_inf(b, true, true)?.and(&a.is_finite()?)?;
    whole.select(&differs.select(b, a)?, &element::floor_mod(a, b)?)
}

/// x · 2^n, or x / 2^n without what is behind the point. All bits go where n is negative, or as large as there are bits.
fn shift(x: &Tensor, n: &Tensor, is_left: bool) -> Result<Tensor> {
    if x.dtype() == DType::I64 {
        return Err(refuse("shifts 64 bits, which is not exact here"));
    }
    let wide = |x: &Tensor| x.cast(DType::F64);
    let (a, n) = (wide(x)?, wide(n)?);
    let bits = element::scalar(&n, 8.0 * x.dtype().bytes() as f64)?;
    let n = n.less(&element::scalar(&n, 0.0)?)?.select(&bits, &n.minimum(&bits)?)?;
    let two = element::scalar(&n, 2.0)?.broadcast(Shape::clone(n.shape()))?;
    let power = two.pow(&n)?;
    let y = if is_left { a.mul(&power)? } else { a.div(&power)?.floor()? };
    integer::wrap(&y.cast(DType::I64)?, x.dtype())
}
