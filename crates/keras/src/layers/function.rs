//! Functions of `keras.ops` beyond arithmetic: choosing, moving and joining elements, orders, statistics, windows.

use plimsoll_graph::{
    CumulativeOps, DType, EinsumOps, GatherOps, GradientOps, ReorderOps, Shape, SortOps, TensorOps, Type,
};
use plimsoll_run::{Result as RunResult, Tensor};
use serde_json::Value;

use super::function_elements::{arctan, choose, extreme, pad, split, take, tile, triangle};
use super::function_windows::{conv, patches, pool};
use super::operation::{axes_of, first, of_one, place_of, promoted};
use super::{Activation, merge};
use crate::error::{Result, refuse};
use crate::layer::{Args, Made};
use crate::loss::OutputLoss;
use crate::settings::Settings;

type Function = fn(&Settings<'_>) -> Result<Made>;

/// The functions by the class that Keras stores.
pub(crate) const TABLE: &[(&str, Function)] = &[
    ("Where", |_| {
        Ok(Made::with(Vec::new(), |cx, args| Ok(vec![choose(cx, args)?])).kwargs(&["condition", "x1", "x2"]))
    }),
    ("Split", split),
    ("Stack", |s| {
        let axis = axis_or(s, 0)?;
        Ok(Made::with(Vec::new(), move |_, args| {
            let all = promoted(&args.all())?;
            let rows = all.iter().map(|x| expanded(x, axis)).collect::<RunResult<Vec<_>>>()?;
            Ok(vec![merge::concat(&rows.iter().collect::<Vec<_>>(), axis as isize)?])
        })
        .kwargs(&["x"]))
    }),
    ("Unstack", |s| {
        let axis = axis_or(s, 0)?;
        s.get("num");
        Ok(Made::with(Vec::new(), move |_, args| {
            let x = first(args)?;
            let place = place_of(axis, x)?;
            let one = |i: usize| squeezed(&x.narrow(place, i, i + 1)?, place);
            (0..x.shape()[place]).map(one).collect()
        })
        .kwargs(&["x"]))
    }),
    ("Einsum", |s| {
        let equation = s.text("subscripts")?.to_string();
        Ok(Made::with(Vec::new(), move |_, args| {
            let all = promoted(&args.all())?;
            Ok(vec![Tensor::einsum(&equation, &all.iter().collect::<Vec<_>>())?])
        })
        .kwargs(&["operands"]))
    }),
    ("Take", take),
    ("TakeAlongAxis", |s| {
        let axis = axis_or(s, -1)?;
        Ok(Made::with(Vec::new(), move |_, args| {
            let x = first(args)?;
            let places =
                args.tensor(1, "indices")?.ok_or_else(|| refuse("takes elements without indices"))?;
            Ok(vec![x.take_along(places, axis as isize)?])
        })
        .kwargs(&["x", "indices"]))
    }),
    ("Argmax", |s| extreme(s, false)),
    ("Argmin", |s| extreme(s, true)),
    ("Pad", pad),
    ("Tile", |s| {
        let repeats = s.integers("repeats")?;
        Ok(of_one(move |x| tile(x, &repeats)))
    }),
    ("Repeat", |s| {
        let repeats = s.integers("repeats")?;
        let [n] = repeats[..] else { return Err(s.wrong("repeats", "one number for all is taken")) };
        if s.is_null("axis") {
            return Err(s.wrong("axis", "an axis should be named"));
        }
        let axis = axis_or(s, 0)?;
        Ok(of_one(move |x| {
            let place = place_of(axis, x)?;
            let each = x.shape()[place];
            let wide = expanded(x, place as i64 + 1)?;
            let mut shape = wide.shape().to_vec();
            shape[place + 1] = n.max(0) as usize;
            let mut whole = x.shape().to_vec();
            whole[place] = each.saturating_mul(n.max(0) as usize);
            wide.broadcast(&shape[..])?.reshape(&whole[..])
        }))
    }),
    ("Cumsum", |s| running(s, |x, axis| x.cumsum(axis))),
    ("Cumprod", |s| running(s, |x, axis| x.cumprod(axis))),
    ("Flip", |s| {
        let axes = if s.is_null("axis") { None } else { Some(s.integers("axis")?) };
        Ok(of_one(move |x| {
            let axes: Vec<isize> = axes_of(&axes, x)?.into_iter().map(|axis| axis as isize).collect();
            x.flip(&axes)
        }))
    }),
    ("Roll", |s| {
        let (shift, axis) = (s.integers("shift")?, s.get("axis").as_i64());
        let ([shift], Some(axis)) = (&shift[..], axis) else {
            return Err(s.wrong("axis", "one axis and one shift are taken"));
        };
        let shift = *shift;
        Ok(of_one(move |x| x.roll(shift as isize, axis as isize)))
    }),
    ("Sort", |s| {
        let axis = axis_or(s, -1)?;
        Ok(of_one(move |x| x.sort(axis as isize, false)))
    }),
    ("Argsort", |s| {
        let axis = axis_or(s, -1)?;
        Ok(of_one(move |x| x.argsort(axis as isize, false)?.cast(DType::I32)))
    }),
    ("TopK", |s| {
        let k = s.units("k")?;
        // In order is how it comes in any case.
        s.get("sorted");
        Ok(Made::with(Vec::new(), move |_, args| {
            let (values, places) = first(args)?.top_k(k, -1, true)?;
            Ok(vec![values, places.cast(DType::I32)?])
        })
        .kwargs(&["x"]))
    }),
    ("OneHot", |s| {
        let n = s.units("num_classes")?;
        if axis_or(s, -1)? != -1 || s.flag("sparse", false)? || s.text_or("dtype", "float32")? != "float32" {
            return Err(s.unsupported(
                "with settings that are not supported: the last axis, float32 and dense are taken",
            ));
        }
        Ok(of_one(move |x| x.one_hot(n, DType::F32)))
    }),
    ("BroadcastTo", |s| {
        let shape = s.integers("shape")?;
        Ok(of_one(move |x| x.broadcast(shape.iter().map(|n| (*n).max(0) as usize).collect::<Shape>())))
    }),
    ("Var", |s| statistic(s, spread)),
    ("Std", |s| statistic(s, |x, axes, keep| spread(x, axes, keep)?.sqrt())),
    ("Logsumexp", |s| {
        statistic(s, |x, axes, keep| {
            let most = x.max(axes, true)?.stop_gradient()?;
            let sum = x.sub(&most)?.exp()?.sum(axes, true)?.log()?.add(&most)?;
            if keep { Ok(sum) } else { without(&sum, axes) }
        })
    }),
    ("Norm", |s| {
        match s.get("ord") {
            Value::Null => {}
            ord if ord.as_f64() == Some(2.0) || ord == "euclidean" => {}
            _ => return Err(s.wrong("ord", "only the Euclidean norm is taken")),
        }
        statistic(s, |x, axes, keep| x.square()?.sum(axes, keep)?.sqrt())
    }),
    ("Normalize", |s| {
        let axis = axis_or(s, -1)?;
        if s.number_or("order", 2.0)? != 2.0 {
            return Err(s.wrong("order", "only the Euclidean norm is taken"));
        }
        let least = s.number_or("epsilon", 1e-7)?;
        Ok(of_one(move |x| {
            let place = place_of(axis, x)?;
            x.div(&x.square()?.sum(&[place], true)?.clamp(least * least, f64::INFINITY)?.sqrt()?)
        }))
    }),
    ("Moments", |s| {
        let (axes, keep) = (s.integers("axes")?, s.flag("keepdims", false)?);
        s.get("synchronized");
        Ok(Made::with(Vec::new(), move |_, args| {
            let x = first(args)?;
            let axes = axes_of(&Some(axes.clone()), x)?;
            Ok(vec![x.mean(&axes, keep)?, spread(x, &axes, keep)?])
        })
        .kwargs(&["x"]))
    }),
    ("Median", |s| {
        let (axis, keep) = (s.integers("axis")?, s.flag("keepdims", false)?);
        let [axis] = axis[..] else { return Err(s.wrong("axis", "one axis is taken")) };
        Ok(of_one(move |x| {
            let place = place_of(axis, x)?;
            let n = x.shape()[place];
            let sorted = x.sort(place as isize, false)?;
            let middle = sorted.narrow(place, (n.max(1) - 1) / 2, n / 2 + 1)?;
            middle.mean(&[place], keep)
        }))
    }),
    ("Log1p", |_| Ok(of_one(|x| x.add_scalar(1.0)?.log()))),
    ("Log2", |_| Ok(of_one(|x| x.log()?.mul_scalar(std::f64::consts::LOG2_E)))),
    ("Log10", |_| Ok(of_one(|x| x.log()?.mul_scalar(std::f64::consts::LOG10_E)))),
    ("Expm1", |_| Ok(of_one(|x| x.exp()?.add_scalar(-1.0)))),
    ("Exp2", |_| Ok(of_one(|x| x.mul_scalar(std::f64::consts::LN_2)?.exp()))),
    ("Tan", |_| Ok(of_one(|x| x.sin()?.div(&x.cos()?)))),
    ("Sinh", |_| Ok(of_one(|x| x.exp()?.sub(&x.neg()?.exp()?)?.mul_scalar(0.5)))),
    ("Cosh", |_| Ok(of_one(|x| x.exp()?.add(&x.neg()?.exp()?)?.mul_scalar(0.5)))),
    ("Ceil", |_| Ok(of_one(|x| x.neg()?.floor()?.neg()))),
    ("Round", |s| {
        if s.number_or("decimals", 0.0)? != 0.0 {
            return Err(s.wrong("decimals", "only whole numbers are rounded to"));
        }
        Ok(of_one(rounded))
    }),
    ("Swapaxes", |s| {
        let (a, b) = (one_of(s, "axis1")?, one_of(s, "axis2")?);
        Ok(of_one(move |x| {
            let mut order: Vec<usize> = (0..x.shape().rank()).collect();
            order.swap(place_of(a, x)?, place_of(b, x)?);
            x.transpose(&order)
        }))
    }),
    ("Moveaxis", |s| {
        let (from, to) = (one_of(s, "source")?, one_of(s, "destination")?);
        Ok(of_one(move |x| {
            let (from, to) = (place_of(from, x)?, place_of(to, x)?);
            let mut order: Vec<usize> = (0..x.shape().rank()).filter(|&i| i != from).collect();
            order.insert(to, from);
            x.transpose(&order)
        }))
    }),
    ("Dot", |_| Ok(Made::with(Vec::new(), |_, args| Ok(vec![product(args, 1)?])).kwargs(&["x1", "x2"]))),
    ("Tensordot", |s| {
        let axes = s.get("axes").as_u64().filter(|n| (1..=4).contains(n));
        let axes = axes.ok_or_else(|| s.wrong("axes", "only a number of axes is taken"))? as usize;
        Ok(Made::with(Vec::new(), move |_, args| Ok(vec![product(args, axes)?])).kwargs(&["x1", "x2"]))
    }),
    ("StopGradient", |_| {
        Ok(Made::with(Vec::new(), |_, args| {
            let x = args.tensor(0, "variable")?.ok_or_else(|| refuse("stops no gradient"))?;
            Ok(vec![x.stop_gradient()?])
        })
        .kwargs(&["variable", "x"]))
    }),
    ("OnesLike", |s| {
        if !s.is_null("dtype") {
            return Err(s.wrong("dtype", "only the type of the tensor is taken"));
        }
        Ok(of_one(|x| x.full_like(x.ty().clone(), 1.0)))
    }),
    ("ConvertToTensor", |s| {
        for key in ["dtype", "sparse", "ragged"] {
            if !s.is_null(key) && s.get(key) != &Value::Bool(false) {
                return Err(s.wrong(key, "only the tensor as it is is taken"));
            }
        }
        Ok(of_one(|x| Ok(x.clone())))
    }),
    ("LogicalNot", |_| Ok(of_one(|x| x.not()))),
    ("Isnan", |_| Ok(of_one(|x| x.not_equal(x)))),
    ("Isfinite", |_| Ok(of_one(|x| x.is_finite()))),
    ("Tril", |s| triangle(s, true)),
    ("Triu", |s| triangle(s, false)),
    ("Mod", |_| two(|a, b| a.sub(&a.div(b)?.floor()?.mul(b)?))),
    ("FloorDivide", |_| two(|a, b| a.div(b)?.floor())),
    ("SquaredDifference", |_| two(|a, b| a.sub(b)?.square())),
    ("LogicalXor", |_| two(|a, b| a.not_equal(b))),
    ("Diff", |s| {
        let axis = axis_or(s, -1)?;
        if s.units_or("n", 1)? != 1 {
            return Err(s.wrong("n", "only differences of neighbours are taken"));
        }
        Ok(of_one(move |x| {
            let place = place_of(axis, x)?;
            let n = x.shape()[place];
            x.narrow(place, 1.min(n), n)?.sub(&x.narrow(place, 0, n.saturating_sub(1))?)
        }))
    }),
    ("Arctan", |_| Ok(of_one(arctan))),
    ("ExtractPatches", patches),
    ("AveragePool", |s| pool(s, false)),
    ("MaxPool", |s| pool(s, true)),
    ("Conv", conv),
    ("HardTanh", |_| by_name(Activation::HardTanh)),
    ("TanhShrink", |_| by_name(Activation::TanhShrink)),
    ("LogSigmoid", |_| by_name(Activation::LogSigmoid)),
    ("Squareplus", |s| {
        if s.number_or("b", 4.0)? != 4.0 {
            return Err(s.wrong("b", "only 4 is taken"));
        }
        by_name(Activation::SquarePlus)
    }),
    ("SparsePlus", |_| by_name(Activation::SparsePlus)),
    ("SparseSigmoid", |_| by_name(Activation::SparseSigmoid)),
    ("Sparsemax", |s| {
        if axis_or(s, -1)? != -1 {
            return Err(s.wrong("axis", "only the last axis is taken"));
        }
        by_name(Activation::Sparsemax)
    }),
    ("Mish", |_| by_name(Activation::Of(plimsoll_nn::Activation::Mish))),
    ("SoftShrink", |s| shrink(s, Activation::SoftShrink)),
    ("HardShrink", |s| shrink(s, Activation::HardShrink)),
    ("Celu", |s| {
        if s.number_or("alpha", 1.0)? != 1.0 {
            return Err(s.wrong("alpha", "only 1 is taken"));
        }
        by_name(Activation::Celu)
    }),
    ("Glu", |s| {
        if axis_or(s, -1)? != -1 {
            return Err(s.wrong("axis", "only the last axis is taken"));
        }
        by_name(Activation::Glu)
    }),
    ("CategoricalCrossentropy", |s| {
        let from_logits = s.flag("from_logits", false)?;
        compared(s, OutputLoss::Categorical { from_logits, smoothing: 0.0 })
    }),
    ("SparseCategoricalCrossentropy", |s| {
        let from_logits = s.flag("from_logits", false)?;
        compared(s, OutputLoss::SparseCategorical { from_logits })
    }),
    ("BinaryCrossentropy", |s| {
        let from_logits = s.flag("from_logits", false)?;
        compared(s, OutputLoss::Binary { from_logits, smoothing: 0.0 })
    }),
];

/// A loss as a function: of targets and outputs, one number for each row or element.
fn compared(s: &Settings<'_>, loss: OutputLoss) -> Result<Made> {
    if axis_or(s, -1)? != -1 {
        return Err(s.wrong("axis", "only the last axis is taken"));
    }
    Ok(Made::with(Vec::new(), move |_, args| {
        let missing = || refuse("compares without targets and outputs");
        let targets = args.tensor(0, "target")?.ok_or_else(missing)?;
        let outputs = args.tensor(1, "output")?.ok_or_else(missing)?;
        Ok(vec![loss.all(outputs, targets)?])
    })
    .kwargs(&["target", "output"]))
}

fn by_name(activation: Activation) -> Result<Made> {
    Ok(of_one(move |x| activation.apply(x)))
}

fn shrink(s: &Settings<'_>, activation: Activation) -> Result<Made> {
    if s.number_or("threshold", 0.5)? != 0.5 {
        return Err(s.wrong("threshold", "only 0.5 is taken"));
    }
    by_name(activation)
}

pub(super) fn axis_or(s: &Settings<'_>, default: i64) -> Result<i64> {
    if s.is_null("axis") { Ok(default) } else { one_of(s, "axis") }
}

pub(super) fn one_of(s: &Settings<'_>, key: &str) -> Result<i64> {
    match s.integers(key)?[..] {
        [one] => Ok(one),
        _ => Err(s.wrong(key, "one axis is taken")),
    }
}

/// A function of two operands, one of which may be a number.
fn two(f: fn(&Tensor, &Tensor) -> RunResult<Tensor>) -> Result<Made> {
    Ok(Made::with(Vec::new(), move |_, args| Ok(vec![super::operation::binary(args, f)?]))
        .kwargs(&["x1", "x2"]))
}

/// A tensor with an axis of length 1 more; a negative one is counted from behind the last.
pub(super) fn expanded(x: &Tensor, axis: i64) -> RunResult<Tensor> {
    let mut shape: Vec<usize> = x.shape().to_vec();
    let rank = shape.len() as i64;
    let at = if axis < 0 { axis + rank + 1 } else { axis };
    if !(0..=rank).contains(&at) {
        return Err(refuse(format!("adds axis {axis} to {}", x.ty())));
    }
    shape.insert(at as usize, 1);
    x.reshape(&shape[..])
}

pub(super) fn squeezed(x: &Tensor, place: usize) -> RunResult<Tensor> {
    without(x, &[place])
}

/// A tensor without axes, which are of length 1.
fn without(x: &Tensor, axes: &[usize]) -> RunResult<Tensor> {
    let kept = (0..x.shape().rank()).filter(|i| !axes.contains(i));
    x.reshape(kept.map(|i| x.shape()[i]).collect::<Shape>())
}

/// The mean square of what is left without the mean.
fn spread(x: &Tensor, axes: &[usize], keep: bool) -> RunResult<Tensor> {
    x.sub(&x.mean(axes, true)?)?.square()?.mean(axes, keep)
}

fn statistic(s: &Settings<'_>, f: fn(&Tensor, &[usize], bool) -> RunResult<Tensor>) -> Result<Made> {
    let axes = if s.is_null("axis") { None } else { Some(s.integers("axis")?) };
    let keep = s.flag("keepdims", false)?;
    Ok(of_one(move |x| f(x, &axes_of(&axes, x)?, keep)))
}

fn running(s: &Settings<'_>, f: fn(&Tensor, isize) -> RunResult<Tensor>) -> Result<Made> {
    if s.is_null("axis") || !s.is_null("dtype") {
        return Err(s.wrong("axis", "an axis should be named, and no type"));
    }
    let axis = axis_or(s, -1)?;
    Ok(of_one(move |x| f(x, axis as isize)))
}

/// The nearest whole number, of two the even one.
pub(super) fn rounded(x: &Tensor) -> RunResult<Tensor> {
    let up = x.add_scalar(0.5)?.floor()?;
    let is_tie = up.sub(x)?.equal(&x.full_like(Type::new(x.dtype(), []), 0.5)?)?;
    let odd = up.sub(&up.mul_scalar(0.5)?.floor()?.mul_scalar(2.0)?)?;
    is_tie.select(&up.sub(&odd)?, &up)
}

/// The product over the last axes of one and the first of another.
fn product(args: &Args, axes: usize) -> RunResult<Tensor> {
    let all = promoted(&args.all())?;
    let [a, b] = &all[..] else { return Err(refuse("multiplies not two tensors")) };
    let (m, n) = (a.shape().rank(), b.shape().rank());
    // Keras's dot sums over the last but one of a larger second operand.
    if m < axes || n < axes || (axes == 1 && n > 2) {
        return Err(refuse(format!("multiplies {} and {}, which is not supported", a.ty(), b.ty())));
    }
    let (outer, inner) = a.shape().split_at(m - axes);
    let rest = &b.shape()[axes..];
    if inner != &b.shape()[..axes] {
        return Err(refuse(format!("multiplies {} and {}", a.ty(), b.ty())));
    }
    let size = |part: &[usize]| part.iter().product::<usize>();
    let shape: Vec<usize> = outer.iter().chain(rest).copied().collect();
    a.reshape([size(outer), size(inner)])?.matmul(&b.reshape([size(inner), size(rest)])?)?.reshape(&shape[..])
}
