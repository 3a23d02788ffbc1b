//! Functions of `keras.ops` that choose, move, repeat and pad elements.

use plimsoll_graph::{DType, GatherOps, GradientOps, ReorderOps, TensorOps, Type};
use plimsoll_run::{Result as RunResult, Tensor};
use serde_json::Value;

use super::function::{axis_or, expanded, one_of, squeezed};
use super::operation::{first, of_one, place_of, promoted};
use crate::error::{Result, refuse};
use crate::layer::{Arg, Args, Cx, Made};
use crate::settings::Settings;

/// `condition ? a : b`, where the last two may be numbers: of both, Keras makes whole ones where they are whole, and else the type of activations.
pub(super) fn choose(cx: &Cx<'_>, args: &Args) -> RunResult<Tensor> {
    let missing = || refuse("chooses without a condition and two values");
    let shown = args.tensor(0, "condition")?.ok_or_else(missing)?;
    let (a, b) = (args.get(1, "x1").ok_or_else(missing)?, args.get(2, "x2").ok_or_else(missing)?);
    let number = |value: &Value, like: &Tensor| {
        let number = value.as_f64().ok_or_else(|| refuse(format!("chooses {value}, which is no number")))?;
        like.full_like(Type::new(like.dtype(), []), number)
    };
    let (a, b) = match (a, b) {
        (Arg::Tensor(a, _), Arg::Tensor(b, _)) => match &promoted(&[a, b])?[..] {
            [a, b] => (a.clone(), b.clone()),
            _ => return Err(missing()),
        },
        (Arg::Tensor(a, _), Arg::Value(b)) => (a.clone(), number(b, a)?),
        (Arg::Value(a), Arg::Tensor(b, _)) => (number(a, b)?, b.clone()),
        (Arg::Value(a), Arg::Value(b)) => {
            let dtype = if a.is_i64() && b.is_i64() { DType::I32 } else { cx.dtype() };
            let like = shown.full_like(Type::new(dtype, []), 0.0)?;
            (number(a, &like)?, number(b, &like)?)
        }
        _ => return Err(missing()),
    };
    let shown = match shown.dtype() {
        DType::Bool => shown.clone(),
        _ => shown.not_equal(&shown.full_like(Type::new(shown.dtype(), []), 0.0)?)?,
    };
    shown.select(&a, &b)
}

pub(super) fn split(s: &Settings<'_>) -> Result<Made> {
    let (parts, axis) = (s.integers("indices_or_sections")?, axis_or(s, 0)?);
    let is_list = s.get("indices_or_sections").is_array();
    Ok(Made::with(Vec::new(), move |_, args| {
        let x = first(args)?;
        let place = place_of(axis, x)?;
        let n = x.shape()[place] as i64;
        let wrong = || refuse(format!("splits {} at {parts:?}", x.ty()));
        let ends: Vec<i64> = match (is_list, &parts[..]) {
            (false, &[sections]) if sections > 0 && n % sections == 0 => {
                (1..=sections).map(|i| i * (n / sections)).collect()
            }
            (true, at) => at.iter().map(|&i| if i < 0 { i + n } else { i }).chain([n]).collect(),
            _ => return Err(wrong()),
        };
        let mut start = 0;
        let mut found = Vec::new();
        for end in ends {
            if end <= start || end > n {
                return Err(wrong());
            }
            found.push(x.narrow(place, start as usize, end as usize)?);
            start = end;
        }
        Ok(found)
    })
    .kwargs(&["x"]))
}

pub(super) fn take(s: &Settings<'_>) -> Result<Made> {
    if s.is_null("axis") {
        return Err(s.wrong("axis", "an axis should be named"));
    }
    let axis = axis_or(s, 0)?;
    Ok(Made::with(Vec::new(), move |_, args| {
        let x = first(args)?;
        let place = place_of(axis, x)?;
        let n = x.shape()[place] as i64;
        match args.get(1, "indices") {
            Some(Arg::Tensor(places, _)) => {
                // Negative ones count from the end.
                let places = places.cast(DType::I64)?;
                let zero = places.full_like(Type::new(DType::I64, []), 0.0)?;
                let places = places.less(&zero)?.select(&places.add_scalar(n as f64)?, &places)?;
                Ok(vec![x.gather(&places, place as isize)?])
            }
            Some(Arg::Value(one)) => {
                let one = one.as_i64().map(|i| if i < 0 { i + n } else { i }).filter(|i| (0..n).contains(i));
                let one =
                    one.ok_or_else(|| refuse(format!("takes an element that {} does not have", x.ty())))?;
                Ok(vec![squeezed(&x.narrow(place, one as usize, one as usize + 1)?, place)?])
            }
            _ => Err(refuse("takes elements without indices")),
        }
    })
    .kwargs(&["x", "indices"]))
}

pub(super) fn extreme(s: &Settings<'_>, is_least: bool) -> Result<Made> {
    if s.is_null("axis") {
        return Err(s.wrong("axis", "an axis should be named"));
    }
    let (axis, keep) = (axis_or(s, -1)?, s.flag("keepdims", false)?);
    Ok(of_one(move |x| {
        let x = if is_least { x.neg()? } else { x.clone() };
        let found = x.argmax(axis as isize)?.cast(DType::I32)?;
        if keep { expanded(&found, place_of(axis, &x)? as i64) } else { Ok(found) }
    }))
}

pub(super) fn pad(s: &Settings<'_>) -> Result<Made> {
    let wrong = || s.wrong("pad_width", "it should be a pair of numbers for every axis");
    let width = |n: &Value| n.as_u64().filter(|n| *n <= 1 << 16).map(|n| n as usize);
    let pair = |value: &Value| match value.as_array().map(Vec::as_slice) {
        Some([low, high]) => Some((width(low)?, width(high)?)),
        _ => None,
    };
    let list = s.get("pad_width").as_array().filter(|list| list.len() <= 8).ok_or_else(wrong)?;
    let sides: Vec<(usize, usize)> = list.iter().map(pair).collect::<Option<_>>().ok_or_else(wrong)?;
    let mode = s.text_or("mode", "constant")?.to_string();
    if !["constant", "reflect", "symmetric"].contains(&mode.as_str()) {
        return Err(s.wrong("mode", "constant, reflect and symmetric are known"));
    }
    Ok(Made::with(Vec::new(), move |_, args| {
        let x = first(args)?;
        let value = args.value(1, "constant_values").as_f64().unwrap_or(0.0);
        if mode == "constant" {
            return Ok(vec![x.pad(&sides, value)?]);
        }
        // The border itself is not repeated where it is a mirror.
        let skipped = usize::from(mode == "reflect");
        let mut x = x.clone();
        for (axis, &(low, high)) in sides.iter().enumerate() {
            let n = x.shape().get(axis).copied().unwrap_or(0);
            if low.max(high) + skipped > n {
                return Err(refuse(format!("mirrors {low} and {high} of {n} elements")));
            }
            let before = x.narrow(axis, skipped, low + skipped)?.flip(&[axis as isize])?;
            let after = x.narrow(axis, n - high - skipped, n - skipped)?.flip(&[axis as isize])?;
            let parts: Vec<&Tensor> = [(low, &before), (n, &x), (high, &after)]
                .into_iter()
                .filter_map(|(n, part)| (n > 0).then_some(part))
                .collect();
            x = Tensor::concat(&parts, axis as isize)?;
        }
        Ok(vec![x])
    })
    .kwargs(&["x", "constant_values"]))
}

pub(super) fn tile(x: &Tensor, repeats: &[i64]) -> RunResult<Tensor> {
    let rank = x.shape().rank().max(repeats.len());
    let padded =
        |list: Vec<usize>| -> Vec<usize> { std::iter::repeat_n(1, rank - list.len()).chain(list).collect() };
    let shape = padded(x.shape().to_vec());
    let repeats = padded(repeats.iter().map(|n| (*n).max(0) as usize).collect());
    let between: Vec<usize> = shape.iter().flat_map(|&n| [1, n]).collect();
    let wide: Vec<usize> = shape.iter().zip(&repeats).flat_map(|(&n, &r)| [r, n]).collect();
    let whole: Vec<usize> = shape.iter().zip(&repeats).map(|(n, r)| n * r).collect();
    x.reshape(&between[..])?.broadcast(&wide[..])?.reshape(&whole[..])
}

/// The part of matrices at and below a diagonal, or at and above it.
pub(super) fn triangle(s: &Settings<'_>, is_lower: bool) -> Result<Made> {
    let k = if s.is_null("k") { 0 } else { one_of(s, "k")? };
    Ok(of_one(move |x| {
        let rank = x.shape().rank();
        let [.., rows, columns] = x.shape()[..] else { return Err(refuse("takes a triangle of no matrix")) };
        let ty = Type::new(DType::I64, [rows, columns]);
        let (row, column) = (x.iota_like(ty.clone(), 0)?.add_scalar(k as f64)?, x.iota_like(ty, 1)?);
        let shown = if is_lower { column.less_equal(&row)? } else { column.greater_equal(&row)? };
        debug_assert!(rank >= 2);
        x.mul(&shown.cast(DType::F32)?.cast(x.dtype())?)
    }))
}

/// The angle of a slope. Its gradient is 1 / (1 + x²) itself, and not that of the series.
pub(super) fn arctan(x: &Tensor) -> RunResult<Tensor> {
    // Half of an angle has the slope x / (1 + √(1 + x²)): of a quarter, below √2 - 1, few terms are enough.
    let half = |x: &Tensor| x.div(&x.square()?.add_scalar(1.0)?.sqrt()?.add_scalar(1.0)?);
    let known = x.stop_gradient()?;
    // The largest are a right angle to the last bit, and must not overflow.
    let quarter = half(&half(&known.clamp(-1e9, 1e9)?)?)?;
    let square = quarter.square()?;
    let mut series = square.full_like(square.ty().clone(), 0.0)?;
    for n in (0..18).rev() {
        let sign = if n % 2 == 0 { 1.0 } else { -1.0 };
        series = series.mul(&square)?.add_scalar(sign / f64::from(2 * n + 1))?;
    }
    let value = series.mul(&quarter)?.mul_scalar(4.0)?;
    value.add(&x.sub(&known)?.div(&known.square()?.add_scalar(1.0)?)?)
}
