//! Comparisons, truth values and choices between elements.

use plimsoll_graph::{DType, TensorOps, Type};
use plimsoll_nn::blocks::Laid;
use plimsoll_run::{Result, Tensor};

use super::elementwise::{converted, operand};
use super::{Table, Values, mapped, one};
use crate::call::Call;
use crate::error::refuse;
use crate::value::Value;

pub(super) const OPS: Table = &[
    ("aten.eq.Tensor", |c| compare(c, |a, b| a.equal(b))),
    ("aten.eq.Scalar", |c| compare(c, |a, b| a.equal(b))),
    ("aten.ne.Tensor", |c| compare(c, |a, b| a.not_equal(b))),
    ("aten.ne.Scalar", |c| compare(c, |a, b| a.not_equal(b))),
    ("aten.lt.Tensor", |c| compare(c, |a, b| a.less(b))),
    ("aten.lt.Scalar", |c| compare(c, |a, b| a.less(b))),
    ("aten.le.Tensor", |c| compare(c, |a, b| a.less_equal(b))),
    ("aten.le.Scalar", |c| compare(c, |a, b| a.less_equal(b))),
    ("aten.gt.Tensor", |c| compare(c, |a, b| a.greater(b))),
    ("aten.gt.Scalar", |c| compare(c, |a, b| a.greater(b))),
    ("aten.ge.Tensor", |c| compare(c, |a, b| a.greater_equal(b))),
    ("aten.ge.Scalar", |c| compare(c, |a, b| a.greater_equal(b))),
    ("aten.logical_and.default", |c| truth(c, |a, b| a.and(b))),
    ("aten.logical_or.default", |c| truth(c, |a, b| a.or(b))),
    ("aten.logical_xor.default", |c| truth(c, |a, b| a.not_equal(b))),
    ("aten.logical_not.default", |c| mapped(c, |x| converted(x, DType::Bool)?.not())),
    ("aten.bitwise_and.Tensor", |c| bits(c, Bits::And)),
    ("aten.bitwise_and.Scalar", |c| bits(c, Bits::And)),
    ("aten.bitwise_or.Tensor", |c| bits(c, Bits::Or)),
    ("aten.bitwise_or.Scalar", |c| bits(c, Bits::Or)),
    ("aten.bitwise_xor.Tensor", |c| bits(c, Bits::Xor)),
    ("aten.__and__.Tensor", |c| bits(c, Bits::And)),
    ("aten.__and__.Scalar", |c| bits(c, Bits::And)),
    ("aten.__or__.Tensor", |c| bits(c, Bits::Or)),
    ("aten.__or__.Scalar", |c| bits(c, Bits::Or)),
    ("aten.__xor__.Tensor", |c| bits(c, Bits::Xor)),
    ("aten.bitwise_not.default", |c| {
        mapped(c, |x| match x.dtype() {
            DType::Bool => x.not(),
            // ~x = -x - 1
            _ => x.neg()?.add_scalar(-1.0),
        })
    }),
    ("aten.isnan.default", |c| mapped(c, |x| x.not_equal(x))),
    ("aten.isinf.default", |c| {
        mapped(c, |x| {
            let endless = x.full_like(Type::new(x.dtype(), []), f64::INFINITY)?;
            x.abs()?.equal(&endless)
        })
    }),
    ("aten.isfinite.default", |c| mapped(c, |x| x.is_finite())),
    ("aten.nan_to_num.default", |c| {
        let given = [c.opt_number("nan")?, c.opt_number("posinf")?, c.opt_number("neginf")?];
        let [nan, high, low] = given.map(|number| number.map(|n| n.value));
        mapped(c, |x| {
            let most = match x.dtype() {
                DType::F64 => f64::MAX,
                DType::F16 => 65504.0,
                DType::BF16 => 3.389_531_389_251_535_5e38,
                _ => f64::from(f32::MAX),
            };
            let scalar = |value: f64| x.full_like(Type::new(x.dtype(), []), value);
            let y = x.not_equal(x)?.select(&scalar(nan.unwrap_or(0.0))?, x)?;
            let y = y.equal(&scalar(f64::INFINITY)?)?.select(&scalar(high.unwrap_or(most))?, &y)?;
            y.equal(&scalar(f64::NEG_INFINITY)?)?.select(&scalar(low.unwrap_or(-most))?, &y)
        })
    }),
    ("aten.where.self", |c| select(c, "condition", "self", "other")),
    ("aten.where.ScalarSelf", |c| select(c, "condition", "self", "other")),
    ("aten.where.ScalarOther", |c| select(c, "condition", "self", "other")),
    ("aten.where.Scalar", |c| select(c, "condition", "self", "other")),
    ("aten.masked_fill.Scalar", |c| select(c, "mask", "value", "self")),
    ("aten.masked_fill.Tensor", |c| select(c, "mask", "value", "self")),
];

/// The type in which operands are compared: PyTorch's promotion, where tensors with axes go before scalars of the same kind.
fn common(c: &Call<'_, '_>, names: &[&str]) -> Result<DType> {
    // Of each: how much it has to say (numbers least), and its type.
    let mut all = Vec::new();
    for name in names {
        all.push(match c.value(name)? {
            Value::Tensor(laid, _) => (if laid.rank() > 0 { 0 } else { 1 }, laid.dtype()),
            _ => {
                let number = c.number(name)?;
                let dtype = match (number.is_bool, number.is_float) {
                    (true, _) => DType::Bool,
                    (_, true) => DType::F32,
                    _ => DType::I64,
                };
                (2, dtype)
            }
        });
    }
    all.sort_by_key(|(say, _)| *say);
    let mut result: Option<(u8, DType)> = None;
    for (say, dtype) in all {
        result = Some(match result {
            None => (say, dtype),
            Some((own, known)) if own == say => (own, promoted(known, dtype)),
            Some((own, known)) if kind(dtype) > kind(known) => (own, dtype),
            Some(known) => known,
        });
    }
    let dtype = result.map_or(DType::F32, |(_, dtype)| dtype);
    Ok(if dtype.is_integer() && !dtype.is_index() { DType::I64 } else { dtype })
}

fn kind(dtype: DType) -> u8 {
    if dtype == DType::Bool {
        0
    } else if dtype.is_float() {
        2
    } else {
        1
    }
}

fn promoted(a: DType, b: DType) -> DType {
    match (kind(a), kind(b)) {
        (x, y) if x > y => a,
        (x, y) if x < y => b,
        _ if a == b => a,
        // 16-bit floats of two kinds meet in f32, whole numbers of two sizes in i64.
        (2, 2) if a.bytes() == b.bytes() => DType::F32,
        (2, 2) => {
            if a.bytes() > b.bytes() {
                a
            } else {
                b
            }
        }
        _ => DType::I64,
    }
}

fn compare(c: &mut Call<'_, '_>, f: impl FnOnce(&Tensor, &Tensor) -> Result<Tensor>) -> Values {
    let dtype = common(c, &["self", "other"])?;
    let (a, b) = (operand(c, "self", dtype)?, operand(c, "other", dtype)?);
    one(Laid::zip(&[&a, &b], |t| f(&t[0], &t[1]))?)
}

fn truth(c: &mut Call<'_, '_>, f: impl FnOnce(&Tensor, &Tensor) -> Result<Tensor>) -> Values {
    let (a, b) = (operand(c, "self", DType::Bool)?, operand(c, "other", DType::Bool)?);
    one(Laid::zip(&[&a, &b], |t| f(&t[0], &t[1]))?)
}

/// How bits are combined.
#[derive(Clone, Copy)]
enum Bits {
    And,
    Or,
    Xor,
}

/// Ops on bits: of truth values, and of whole numbers with what has the lowest bit alone, or with the lowest bits of a number.
fn bits(c: &mut Call<'_, '_>, how: Bits) -> Values {
    let out = c.out_dtype(0)?;
    if out == DType::Bool {
        return match how {
            Bits::And => truth(c, |a, b| a.and(b)),
            Bits::Or => truth(c, |a, b| a.or(b)),
            Bits::Xor => truth(c, |a, b| a.not_equal(b)),
        };
    }
    let names = ["self", "other"];
    let Some(at) = names.iter().position(|name| lowest(c, name).is_some()) else {
        return Err(refuse(format!(
            "combines bits of {out} elements; here one side must be truth values, or a number such as 1, 3, 7 for &, and 1 for | and ^"
        )));
    };
    let (width, other) = (lowest(c, names[at]).unwrap_or(1), names[1 - at]);
    if width > 1 && !matches!(how, Bits::And) {
        return Err(refuse(format!(
            "combines bits of {out} elements by | or ^ with more than the lowest bit"
        )));
    }
    let (x, own) = (operand(c, other, DType::F64)?, operand(c, names[at], DType::F64)?);
    let y = Laid::zip(&[&x, &own], |t| {
        let (x, own) = (&t[0], &t[1]);
        let unit = f64::from(width).exp2();
        let low = x.sub(&x.mul_scalar(1.0 / unit)?.floor()?.mul_scalar(unit)?)?;
        match how {
            Bits::And if width > 1 => Ok(low),
            Bits::And => low.mul(own),
            Bits::Or => x.add(&own.mul(&low.rsub_scalar(1.0)?)?),
            Bits::Xor => x.add(&own.mul(&low.mul_scalar(-2.0)?.add_scalar(1.0)?)?),
        }
    })?;
    one(y.map(|t| converted(t, out))?)
}

/// How many of the lowest bits an argument is about, where that is seen: one of truth values, k of the number 2ᵏ - 1.
fn lowest(c: &Call<'_, '_>, name: &str) -> Option<u8> {
    match c.value(name).ok()? {
        Value::Tensor(laid, _) => (laid.dtype() == DType::Bool).then_some(1),
        Value::Bool(_) => Some(1),
        Value::Int(n) => (1..=32).find(|&width| n == (1i64 << width) - 1).or_else(|| (n == 0).then_some(1)),
        _ => None,
    }
}

fn select(c: &mut Call<'_, '_>, mask: &str, yes: &str, no: &str) -> Values {
    let out = c.out_dtype(0)?;
    let (mask, yes, no) = (operand(c, mask, DType::Bool)?, operand(c, yes, out)?, operand(c, no, out)?);
    one(Laid::zip(&[&mask, &yes, &no], |t| t[0].select(&t[1], &t[2]))?)
}
