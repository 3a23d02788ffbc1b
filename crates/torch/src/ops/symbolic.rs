//! Sizes of the batch at hand and numbers made of them, and checks that the export left behind.

use plimsoll_run::Result;

use super::{Table, Values, one};
use crate::call::{Call, axis};
use crate::error::refuse;
use crate::value::Value;

pub(super) const OPS: Table = &[
    ("aten.sym_size.int", |c| {
        let x = c.laid("self")?;
        let at = axis(c.int("dim")?, x.rank())?;
        one(Value::Int(x.shape()[at] as i64))
    }),
    ("aten.sym_numel.default", |c| {
        let n = c.laid("self")?.shape().elements();
        one(Value::Int(n as i64))
    }),
    ("_operator.add", |c| whole(c, |a, b| a.checked_add(b), |a, b| a + b)),
    ("_operator.sub", |c| whole(c, |a, b| a.checked_sub(b), |a, b| a - b)),
    ("_operator.mul", |c| whole(c, |a, b| a.checked_mul(b), |a, b| a * b)),
    ("_operator.floordiv", |c| {
        whole(c, |a, b| (b != 0).then(|| (a as f64 / b as f64).floor() as i64), |a, b| (a / b).floor())
    }),
    ("_operator.mod", |c| {
        whole(
            c,
            |a, b| (b != 0).then(|| a - b * (a as f64 / b as f64).floor() as i64),
            |a, b| a - b * (a / b).floor(),
        )
    }),
    ("_operator.pow", |c| whole(c, |a, b| a.checked_pow(u32::try_from(b).ok()?), f64::powf)),
    ("_operator.truediv", |c| {
        let (a, b) = (number(c, 0)?, number(c, 1)?);
        one(Value::Float(a / b))
    }),
    ("_operator.neg", |c| match c.at(0)? {
        Value::Int(n) => one(Value::Int(-n)),
        Value::Float(x) => one(Value::Float(-x)),
        other => Err(refuse(format!("takes {}", other.kind()))),
    }),
    ("_operator.ge", |c| truth(c, |a, b| a >= b)),
    ("_operator.le", |c| truth(c, |a, b| a <= b)),
    ("_operator.gt", |c| truth(c, |a, b| a > b)),
    ("_operator.lt", |c| truth(c, |a, b| a < b)),
    ("_operator.eq", |c| truth(c, |a, b| a == b)),
    ("_operator.ne", |c| truth(c, |a, b| a != b)),
    ("_operator.and_", |c| both(c, |a, b| a && b)),
    ("_operator.or_", |c| both(c, |a, b| a || b)),
    ("math.ceil", |c| rounded(c, f64::ceil)),
    ("math.floor", |c| rounded(c, f64::floor)),
    ("math.trunc", |c| rounded(c, f64::trunc)),
    ("torch.sym_float", |c| {
        let x = number(c, 0)?;
        one(Value::Float(x))
    }),
    ("torch.sym_max", |c| whole(c, |a, b| Some(a.max(b)), f64::max)),
    ("torch.sym_min", |c| whole(c, |a, b| Some(a.min(b)), f64::min)),
    ("torch.sym_not", |c| match c.at(0)? {
        Value::Bool(flag) => one(Value::Bool(!flag)),
        other => Err(refuse(format!("takes {}", other.kind()))),
    }),
    ("torch.sym_ite", |c| match c.at(0)? {
        Value::Bool(flag) => {
            let (yes, no) = (c.at(1)?, c.at(2)?);
            one(if flag { yes } else { no })
        }
        other => Err(refuse(format!("takes {}", other.kind()))),
    }),
    ("aten._assert_scalar.default", |c| {
        let (holds, why) = (c.flag("self")?, c.text("assert_msg")?);
        if holds { Ok(Vec::new()) } else { Err(refuse(format!("does not hold for this batch: {why}"))) }
    }),
    // What these look at is known from the types, or is the user's own check of values: an engine that stops at every wrong value
    // would wait for each of them.
    ("aten._assert_tensor_metadata.default", |c| aside(c)),
    ("aten._assert_async.msg", |c| aside(c)),
    ("aten._assert_async.default", |c| aside(c)),
    ("aten.sym_constrain_range_for_size.default", |c| aside(c)),
    ("aten.sym_constrain_range.default", |c| aside(c)),
];

fn aside(c: &mut Call<'_, '_>) -> Values {
    c.look_at_all();
    Ok(Vec::new())
}

fn number(c: &Call<'_, '_>, at: usize) -> Result<f64> {
    match c.at(at)? {
        Value::Int(n) => Ok(n as f64),
        Value::Float(x) => Ok(x),
        other => Err(refuse(format!("takes {}", other.kind()))),
    }
}

/// Whole numbers stay whole; with a fraction among them both have one.
fn whole(
    c: &mut Call<'_, '_>,
    of_ints: impl FnOnce(i64, i64) -> Option<i64>,
    of_floats: impl FnOnce(f64, f64) -> f64,
) -> Values {
    match (c.at(0)?, c.at(1)?) {
        (Value::Int(a), Value::Int(b)) => match of_ints(a, b) {
            Some(n) => one(Value::Int(n)),
            None => Err(refuse(format!("has no result for {a} and {b}"))),
        },
        _ => {
            let (a, b) = (number(c, 0)?, number(c, 1)?);
            one(Value::Float(of_floats(a, b)))
        }
    }
}

fn truth(c: &mut Call<'_, '_>, f: impl FnOnce(f64, f64) -> bool) -> Values {
    let (a, b) = (number(c, 0)?, number(c, 1)?);
    one(Value::Bool(f(a, b)))
}

fn both(c: &mut Call<'_, '_>, f: impl FnOnce(bool, bool) -> bool) -> Values {
    match (c.at(0)?, c.at(1)?) {
        (Value::Bool(a), Value::Bool(b)) => one(Value::Bool(f(a, b))),
        (a, b) => Err(refuse(format!("takes {} and {}", a.kind(), b.kind()))),
    }
}

fn rounded(c: &mut Call<'_, '_>, f: impl FnOnce(f64) -> f64) -> Values {
    let x = number(c, 0)?;
    one(Value::Int(f(x) as i64))
}
