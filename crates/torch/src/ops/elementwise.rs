//! Arithmetic and functions, element by element.

use plimsoll_graph::{DType, TensorOps, Type};
use plimsoll_nn::blocks::Laid;
use plimsoll_run::{Result, Tensor};

use super::{Table, Values, mapped, one};
use crate::call::{Call, Number};
use crate::error::refuse;
use crate::value::Value;

pub(super) const OPS: Table = &[
    ("aten.add.Tensor", |c| sum(c, 1.0)),
    ("aten.add.Scalar", |c| sum(c, 1.0)),
    ("aten.sub.Tensor", |c| sum(c, -1.0)),
    ("aten.sub.Scalar", |c| sum(c, -1.0)),
    ("aten.rsub.Scalar", |c| reversed(c)),
    ("aten.rsub.Tensor", |c| reversed(c)),
    ("aten.mul.Tensor", |c| product(c)),
    ("aten.mul.Scalar", |c| product(c)),
    ("aten.div.Tensor", |c| quotient(c, None)),
    ("aten.div.Scalar", |c| quotient(c, None)),
    ("aten.div.Tensor_mode", |c| {
        let mode = c.opt_text("rounding_mode")?;
        quotient(c, mode)
    }),
    ("aten.div.Scalar_mode", |c| {
        let mode = c.opt_text("rounding_mode")?;
        quotient(c, mode)
    }),
    ("aten.floor_divide.default", |c| quotient(c, Some("floor".into()))),
    ("aten.remainder.Tensor", |c| remainder(c, true)),
    ("aten.remainder.Scalar", |c| remainder(c, true)),
    ("aten.fmod.Tensor", |c| remainder(c, false)),
    ("aten.fmod.Scalar", |c| remainder(c, false)),
    ("aten.pow.Tensor_Scalar", |c| {
        let exponent = c.number("exponent")?;
        power(c, exponent)
    }),
    ("aten.pow.Tensor_Tensor", |c| binary(c, "self", "exponent", |a, b| a.pow(b))),
    ("aten.pow.Scalar", |c| {
        // sˣ = e^(x ln s)
        let base = c.float("self")?;
        if base <= 0.0 {
            return Err(refuse(format!("raises {base} to powers; only numbers above 0 are raised here")));
        }
        let (x, dtype) = (c.laid("exponent")?, c.out_dtype(0)?);
        one(x.map(|t| t.cast(dtype)?.mul_scalar(base.ln())?.exp())?)
    }),
    ("aten.maximum.default", |c| binary(c, "self", "other", |a, b| a.maximum(b))),
    ("aten.max.other", |c| binary(c, "self", "other", |a, b| a.maximum(b))),
    ("aten.minimum.default", |c| binary(c, "self", "other", |a, b| a.minimum(b))),
    ("aten.min.other", |c| binary(c, "self", "other", |a, b| a.minimum(b))),
    ("aten.hypot.default", |c| binary(c, "self", "other", |a, b| length(&a.square()?.add(&b.square()?)?))),
    ("aten.copysign.Tensor", |c| {
        binary(c, "self", "other", |a, b| {
            let (size, zero) = (a.abs()?, b.full_like(Type::new(b.dtype(), []), 0.0)?);
            b.less(&zero)?.select(&size.neg()?, &size)
        })
    }),
    ("aten.addcmul.default", |c| fused(c, false)),
    ("aten.addcdiv.default", |c| fused(c, true)),
    ("aten.lerp.Scalar", |c| {
        let weight = c.float("weight")?;
        binary(c, "self", "end", |a, b| a.add(&b.sub(a)?.mul_scalar(weight)?))
    }),
    ("aten.lerp.Tensor", |c| {
        let (a, b, w) = (c.laid("self")?, c.laid("end")?, c.laid("weight")?);
        one(Laid::zip(&[&a, &b, &w], |t| t[0].add(&t[1].sub(&t[0])?.mul(&t[2])?))?)
    }),
    ("aten.abs.default", |c| mapped(c, |x| x.abs())),
    ("aten.neg.default", |c| mapped(c, |x| x.neg())),
    ("aten.sign.default", |c| mapped(c, |x| x.sign())),
    ("aten.square.default", |c| float(c, |x| x.square())),
    ("aten.exp.default", |c| float(c, |x| x.exp())),
    ("aten.exp2.default", |c| float(c, |x| x.mul_scalar(std::f64::consts::LN_2)?.exp())),
    ("aten.expm1.default", |c| float(c, |x| x.exp()?.add_scalar(-1.0))),
    ("aten.log.default", |c| float(c, |x| x.log())),
    ("aten.log2.default", |c| float(c, |x| x.log()?.mul_scalar(std::f64::consts::LOG2_E))),
    ("aten.log10.default", |c| float(c, |x| x.log()?.mul_scalar(std::f64::consts::LOG10_E))),
    ("aten.log1p.default", |c| float(c, |x| x.add_scalar(1.0)?.log())),
    ("aten.sqrt.default", |c| float(c, |x| x.sqrt())),
    ("aten.rsqrt.default", |c| float(c, |x| x.rsqrt())),
    ("aten.reciprocal.default", |c| float(c, |x| x.reciprocal())),
    ("aten.sin.default", |c| float(c, |x| x.sin())),
    ("aten.cos.default", |c| float(c, |x| x.cos())),
    ("aten.tan.default", |c| float(c, |x| x.sin()?.div(&x.cos()?))),
    ("aten.tanh.default", |c| float(c, |x| x.tanh())),
    ("aten.sinh.default", |c| float(c, |x| x.exp()?.sub(&x.neg()?.exp()?)?.mul_scalar(0.5))),
    ("aten.cosh.default", |c| float(c, |x| x.exp()?.add(&x.neg()?.exp()?)?.mul_scalar(0.5))),
    ("aten.sigmoid.default", |c| float(c, |x| x.sigmoid())),
    ("aten.erf.default", |c| float(c, |x| x.erf())),
    ("aten.erfc.default", |c| float(c, |x| x.erf()?.rsub_scalar(1.0))),
    ("aten.logit.default", |c| {
        let eps = c.opt_number("eps")?;
        float(c, |x| {
            let x = match eps {
                Some(eps) => x.clamp(eps.value, 1.0 - eps.value)?,
                None => x.clone(),
            };
            x.div(&x.rsub_scalar(1.0)?)?.log()
        })
    }),
    ("aten.floor.default", |c| whole(c, |x| x.floor())),
    ("aten.ceil.default", |c| whole(c, |x| x.neg()?.floor()?.neg())),
    ("aten.trunc.default", |c| whole(c, truncated)),
    ("aten.round.default", |c| whole(c, rounded)),
    ("aten.frac.default", |c| whole(c, |x| x.sub(&truncated(x)?))),
    ("aten.relu.default", |c| mapped(c, |x| x.relu())),
    ("aten.gelu.default", |c| {
        let tanh = c.text("approximate")? == "tanh";
        mapped(c, |x| if tanh { x.gelu_tanh() } else { x.gelu() })
    }),
    ("aten.silu.default", |c| mapped(c, |x| x.silu())),
    ("aten.mish.default", |c| mapped(c, |x| x.mul(&x.softplus()?.tanh()?))),
    ("aten.leaky_relu.default", |c| {
        let slope = c.float("negative_slope")?;
        mapped(c, |x| x.leaky_relu(slope))
    }),
    ("aten.prelu.default", |c| prelu(c)),
    ("aten._prelu_kernel.default", |c| prelu(c)),
    ("aten.elu.default", |c| {
        let (alpha, scale, inner) = (c.float("alpha")?, c.float("scale")?, c.float("input_scale")?);
        mapped(c, |x| elu(x, alpha * scale, scale, inner))
    }),
    ("aten.selu.default", |c| {
        let (alpha, scale) = (1.673_263_242_354_377_2, 1.050_700_987_355_480_5);
        mapped(c, |x| elu(x, alpha * scale, scale, 1.0))
    }),
    ("aten.celu.default", |c| {
        let alpha = c.float("alpha")?;
        mapped(c, |x| elu(x, alpha, 1.0, 1.0 / alpha))
    }),
    ("aten.softplus.default", |c| {
        let (beta, threshold) = (c.float("beta")?, c.float("threshold")?);
        mapped(c, |x| {
            let scaled = x.mul_scalar(beta)?;
            let soft = scaled.softplus()?.mul_scalar(1.0 / beta)?;
            let limit = x.full_like(Type::new(x.dtype(), []), threshold)?;
            scaled.greater(&limit)?.select(x, &soft)
        })
    }),
    ("aten.log_sigmoid.default", |c| mapped(c, |x| x.neg()?.softplus()?.neg())),
    ("aten.threshold.default", |c| {
        let (limit, value) = (c.float("threshold")?, c.float("value")?);
        mapped(c, |x| {
            let scalar = |value: f64| x.full_like(Type::new(x.dtype(), []), value);
            x.greater(&scalar(limit)?)?.select(x, &scalar(value)?)
        })
    }),
    ("aten.hardshrink.default", |c| {
        let limit = c.float("lambd")?;
        mapped(c, |x| {
            let scalar = |value: f64| x.full_like(Type::new(x.dtype(), []), value);
            x.abs()?.greater(&scalar(limit)?)?.select(x, &scalar(0.0)?)
        })
    }),
    ("aten.softshrink.default", |c| {
        let limit = c.float("lambd")?;
        mapped(c, |x| x.sub(&x.clamp(-limit, limit)?))
    }),
    ("aten._to_copy.default", |c| cast(c)),
    ("aten.to.dtype", |c| cast(c)),
    ("aten.to.dtype_layout", |c| cast(c)),
    ("aten.to.device", |c| cast(c)),
    ("aten.type_as.default", |c| {
        let (_, dtype) = (c.laid("other")?, c.out_dtype(0)?);
        mapped(c, |x| converted(x, dtype))
    }),
    ("aten.clone.default", |c| mapped(c, |x| Ok(x.clone()))),
    ("aten.alias.default", |c| mapped(c, |x| Ok(x.clone()))),
    ("aten.contiguous.default", |c| mapped(c, |x| Ok(x.clone()))),
    ("aten.lift_fresh_copy.default", |c| mapped(c, |x| Ok(x.clone()))),
    ("aten.detach.default", |c| {
        use plimsoll_graph::GradientOps;
        mapped(c, |x| x.stop_gradient())
    }),
    ("aten.copy.default", |c| {
        let (x, from) = (c.laid("self")?, c.laid("src")?);
        let _ = c.flag("non_blocking");
        one(super::shape::expanded(&from.map(|t| converted(t, x.dtype()))?, &x.shape()[..])?)
    }),
];

/// The type in which elements are computed: whole numbers of few bits are not computed with here.
pub(super) fn computed(dtype: DType) -> DType {
    if dtype.is_integer() && !dtype.is_index() { DType::I64 } else { dtype }
}

/// In another type, as PyTorch converts: to truth values everything but 0 is true, fractions are cut off.
pub(super) fn converted(x: &Tensor, dtype: DType) -> Result<Tensor> {
    match (x.dtype(), dtype) {
        (from, to) if from == to => Ok(x.clone()),
        (_, DType::Bool) => x.not_equal(&x.full_like(Type::new(x.dtype(), []), 0.0)?),
        _ => x.cast(dtype),
    }
}

/// The square root of a sum of squares, whose gradient where it is 0 is 0, as PyTorch has it.
pub(super) fn length(squares: &Tensor) -> Result<Tensor> {
    let zero = squares.full_like(Type::new(squares.dtype(), []), 0.0)?;
    let is_zero = squares.equal(&zero)?;
    is_zero.select(&zero, &is_zero.select(&zero.add_scalar(1.0)?, squares)?.sqrt()?)
}

/// Two operands, tensors or numbers, in the type of the result.
fn binary(
    c: &mut Call<'_, '_>,
    left: &str,
    right: &str,
    f: impl FnOnce(&Tensor, &Tensor) -> Result<Tensor>,
) -> Values {
    let out = c.out_dtype(0)?;
    let (a, b) = (operand(c, left, computed(out))?, operand(c, right, computed(out))?);
    one(Laid::zip(&[&a, &b], |t| f(&t[0], &t[1]))?.map(|y| converted(y, out))?)
}

/// A tensor or a number in a type.
pub(super) fn operand(c: &Call<'_, '_>, name: &str, dtype: DType) -> Result<Laid> {
    match c.value(name)? {
        Value::Tensor(laid, _) => laid.map(|t| converted(t, dtype)),
        _ => {
            let number = c.number(name)?;
            Ok(c.full(dtype, [], number.value)?.into())
        }
    }
}

/// The second operand where it is a number.
fn scalar(c: &Call<'_, '_>, name: &str) -> Result<Option<Number>> {
    match c.value(name)? {
        Value::Tensor(..) => Ok(None),
        _ => c.number(name).map(Some),
    }
}

fn sum(c: &mut Call<'_, '_>, sign: f64) -> Values {
    let (alpha, out) = (c.float("alpha")? * sign, c.out_dtype(0)?);
    if out == DType::Bool {
        return binary(c, "self", "other", |a, b| a.or(b));
    }
    if let (Value::Tensor(x, _), Some(number)) = (c.value("self")?, scalar(c, "other")?) {
        let dtype = computed(out);
        let y = x.map(|t| converted(&converted(t, dtype)?.add_scalar(alpha * number.value)?, out));
        return one(y?);
    }
    binary(c, "self", "other", |a, b| match alpha {
        1.0 => a.add(b),
        -1.0 => a.sub(b),
        alpha => a.add(&b.mul_scalar(alpha)?),
    })
}

fn reversed(c: &mut Call<'_, '_>) -> Values {
    let alpha = c.float("alpha")?;
    binary(c, "other", "self", |a, b| if alpha == 1.0 { a.sub(b) } else { a.sub(&b.mul_scalar(alpha)?) })
}

fn product(c: &mut Call<'_, '_>) -> Values {
    let out = c.out_dtype(0)?;
    if out == DType::Bool {
        return binary(c, "self", "other", |a, b| a.and(b));
    }
    if let (Value::Tensor(x, _), Some(number)) = (c.value("self")?, scalar(c, "other")?) {
        let dtype = computed(out);
        return one(x.map(|t| converted(&converted(t, dtype)?.mul_scalar(number.value)?, out))?);
    }
    binary(c, "self", "other", |a, b| a.mul(b))
}

fn quotient(c: &mut Call<'_, '_>, mode: Option<String>) -> Values {
    let out = c.out_dtype(0)?;
    // Whole numbers are divided as f64, which holds all that stand for sizes and places.
    let dtype = if out.is_float() { out } else { DType::F64 };
    if let (Value::Tensor(x, _), Some(number), None) = (c.value("self")?, scalar(c, "other")?, &mode) {
        return one(x.map(|t| converted(t, dtype)?.mul_scalar(1.0 / number.value))?);
    }
    let (a, b) = (operand(c, "self", dtype)?, operand(c, "other", dtype)?);
    let y = Laid::zip(&[&a, &b], |t| {
        let y = t[0].div(&t[1])?;
        match mode.as_deref() {
            None => Ok(y),
            Some("floor") => y.floor(),
            Some("trunc") => truncated(&y),
            Some(other) => Err(refuse(format!("rounds by {other}"))),
        }
    })?;
    one(y.map(|y| converted(y, out))?)
}

/// a - b ⌊a / b⌋, or with the quotient cut off.
fn remainder(c: &mut Call<'_, '_>, is_floor: bool) -> Values {
    let out = c.out_dtype(0)?;
    let dtype = if out.is_float() { out } else { DType::F64 };
    let (a, b) = (operand(c, "self", dtype)?, operand(c, "other", dtype)?);
    let y = Laid::zip(&[&a, &b], |t| {
        let ratio = t[0].div(&t[1])?;
        let ratio = if is_floor { ratio.floor()? } else { truncated(&ratio)? };
        t[0].sub(&ratio.mul(&t[1])?)
    })?;
    one(y.map(|y| converted(y, out))?)
}

fn power(c: &mut Call<'_, '_>, exponent: Number) -> Values {
    let (x, out) = (c.laid("self")?, c.out_dtype(0)?);
    let y = x.map(|t| {
        let t = converted(t, computed(out))?;
        let y = match exponent.value {
            0.0 => t.full_like(t.ty().clone(), 1.0)?,
            1.0 => t,
            2.0 => t.square()?,
            3.0 if !out.is_float() => t.square()?.mul(&t)?,
            0.5 => t.sqrt()?,
            -0.5 => t.rsqrt()?,
            -1.0 => t.reciprocal()?,
            // Exact for negative bases too, where a power by logarithms would be none.
            3.0 => t.square()?.mul(&t)?,
            4.0 => t.square()?.square()?,
            value => t.pow_scalar(value)?,
        };
        converted(&y, out)
    });
    one(y?)
}

fn fused(c: &mut Call<'_, '_>, divides: bool) -> Values {
    let (value, out) = (c.float("value")?, c.out_dtype(0)?);
    let names = ["self", "tensor1", "tensor2"];
    let all = names.map(|name| operand(c, name, out));
    let [a, b, d] = all;
    one(Laid::zip(&[&a?, &b?, &d?], |t| {
        let both = if divides { t[1].div(&t[2])? } else { t[1].mul(&t[2])? };
        t[0].add(&if value == 1.0 { both } else { both.mul_scalar(value)? })
    })?)
}

/// A function of fractions: whole numbers become the type that the program says first.
pub(super) fn float(c: &mut Call<'_, '_>, f: impl FnOnce(&Tensor) -> Result<Tensor>) -> Values {
    let out = c.out_dtype(0)?;
    mapped(c, |x| f(&converted(x, out)?))
}

/// Rounding, which leaves whole numbers as they are.
fn whole(c: &mut Call<'_, '_>, f: impl FnOnce(&Tensor) -> Result<Tensor>) -> Values {
    mapped(c, |x| if x.dtype().is_float() { f(x) } else { Ok(x.clone()) })
}

fn truncated(x: &Tensor) -> Result<Tensor> {
    x.abs()?.floor()?.mul(&x.sign()?)
}

/// To the nearest whole number, halves to the even one.
pub(super) fn rounded(x: &Tensor) -> Result<Tensor> {
    let up = x.add_scalar(0.5)?.floor()?;
    let half = up.sub(x)?.equal(&x.full_like(Type::new(x.dtype(), []), 0.5)?)?;
    // Odd where its half is no whole number.
    let halved = up.mul_scalar(0.5)?;
    let odd = halved.not_equal(&halved.floor()?)?;
    half.and(&odd)?.select(&up.add_scalar(-1.0)?, &up)
}

/// scale · x where x > 0, else factor · (e^(inner · x) - 1)
fn elu(x: &Tensor, factor: f64, scale: f64, inner: f64) -> Result<Tensor> {
    let zero = x.full_like(Type::new(x.dtype(), []), 0.0)?;
    // Held below 0, so that no infinity meets a gradient of 0.
    let below =
        x.clamp(f64::NEG_INFINITY, 0.0)?.mul_scalar(inner)?.exp()?.add_scalar(-1.0)?.mul_scalar(factor)?;
    x.greater(&zero)?.select(&x.mul_scalar(scale)?, &below)
}

fn prelu(c: &mut Call<'_, '_>) -> Values {
    let (x, mut slope) = (c.laid("self")?, c.laid("weight")?);
    // One slope a channel, of which the second axis counts.
    if slope.rank() == 1 && x.rank() >= 2 && c.op == "aten.prelu.default" {
        let n = slope.shape()[0];
        let shape: Vec<usize> = [1, n].into_iter().chain(std::iter::repeat_n(1, x.rank() - 2)).collect();
        slope = slope.reshape(shape)?;
    }
    one(Laid::zip(&[&x, &slope], |t| {
        let zero = t[0].full_like(Type::new(t[0].dtype(), []), 0.0)?;
        t[0].greater(&zero)?.select(&t[0], &t[0].mul(&t[1])?)
    })?)
}

fn cast(c: &mut Call<'_, '_>) -> Values {
    let (out, _) = (c.out_dtype(0)?, c.value("dtype"));
    mapped(c, |x| converted(x, out))
}
