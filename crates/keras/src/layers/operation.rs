//! Functions of `keras.ops` that were called on a symbolic tensor: `x + 1`, `x[:, 0]`, `ops.mean(x, axis=1)`.

use plimsoll_formats::Element;
use plimsoll_formats::keras::Layer;
use plimsoll_graph::{DType, Shape, SoftmaxOps, TensorOps, Type};
use plimsoll_nn::Activation as Nn;
use plimsoll_run::{Result as RunResult, Tensor};
use serde_json::Value;

use super::activation::relu;
use super::reshape::resolved;
use super::{function, merge};
use crate::error::{Error, Result, refuse};
use crate::layer::{Arg, Args, Made, Masks};
use crate::settings::Settings;

pub(super) type Binary = fn(&Tensor, &Tensor) -> RunResult<Tensor>;
type Unary = fn(&Tensor) -> RunResult<Tensor>;
type Reduction = fn(&Tensor, &[usize], bool) -> RunResult<Tensor>;

const BINARY: [(&str, Binary); 16] = [
    ("Add", |a, b| a.add(b)),
    ("Subtract", |a, b| a.sub(b)),
    ("Multiply", |a, b| a.mul(b)),
    ("Divide", |a, b| a.div(b)),
    ("TrueDivide", |a, b| a.div(b)),
    ("Maximum", |a, b| a.maximum(b)),
    ("Minimum", |a, b| a.minimum(b)),
    ("Power", |a, b| a.pow(b)),
    ("Equal", |a, b| a.equal(b)),
    ("NotEqual", |a, b| a.not_equal(b)),
    ("Less", |a, b| a.less(b)),
    ("LessEqual", |a, b| a.less_equal(b)),
    ("Greater", |a, b| a.greater(b)),
    ("GreaterEqual", |a, b| a.greater_equal(b)),
    ("LogicalAnd", |a, b| a.and(b)),
    ("LogicalOr", |a, b| a.or(b)),
];

const UNARY: [(&str, Unary); 24] = [
    ("Negative", |x| x.neg()),
    ("Absolute", |x| x.abs()),
    ("Abs", |x| x.abs()),
    ("Square", |x| x.square()),
    ("Sqrt", |x| x.sqrt()),
    ("Rsqrt", |x| x.rsqrt()),
    ("Reciprocal", |x| x.reciprocal()),
    ("Exp", |x| x.exp()),
    ("Log", |x| x.log()),
    ("Sin", |x| x.sin()),
    ("Cos", |x| x.cos()),
    ("Tanh", |x| x.tanh()),
    ("Sigmoid", |x| x.sigmoid()),
    ("Relu", |x| x.relu()),
    ("Relu6", |x| relu(x, 0.0, Some(6.0), 0.0)),
    ("Silu", |x| x.silu()),
    ("Softplus", |x| x.softplus()),
    ("Softsign", |x| Nn::Softsign.apply(x)),
    ("Selu", |x| Nn::Selu.apply(x)),
    ("HardSigmoid", |x| Nn::HardSigmoid.apply(x)),
    ("HardSilu", |x| Nn::HardSwish.apply(x)),
    ("Erf", |x| x.erf()),
    ("Floor", |x| x.floor()),
    ("Sign", |x| x.sign()),
];

const REDUCTIONS: [(&str, Reduction); 7] = [
    ("Mean", |x, axes, keep| x.mean(axes, keep)),
    ("Sum", |x, axes, keep| x.sum(axes, keep)),
    ("Max", |x, axes, keep| x.max(axes, keep)),
    ("Min", |x, axes, keep| x.min(axes, keep)),
    ("Prod", |x, axes, keep| x.prod(axes, keep)),
    ("Any", |x, axes, keep| truth(&x.cast(DType::F32)?.max(axes, keep)?)),
    ("All", |x, axes, keep| truth(&x.cast(DType::F32)?.min(axes, keep)?)),
];

/// Functions that are neither of one element, of two nor a reduction.
const OTHERS: [&str; 15] = [
    "Softmax",
    "LogSoftmax",
    "Gelu",
    "LeakyRelu",
    "Elu",
    "Clip",
    "Reshape",
    "Transpose",
    "ExpandDims",
    "Squeeze",
    "Concatenate",
    "Matmul",
    "Cast",
    "GetItem",
    "ZerosLike",
];

/// Whether there is a function of this class.
pub(crate) fn is_known(class: &str) -> bool {
    BINARY.iter().any(|(name, _)| *name == class)
        || UNARY.iter().any(|(name, _)| *name == class)
        || REDUCTIONS.iter().any(|(name, _)| *name == class)
        || OTHERS.contains(&class)
        || function::TABLE.iter().any(|(name, _)| *name == class)
}

/// Operands in one element type, as Keras promotes them: floating point over integers, f32 where two kinds of it meet
/// and f64 where one of them is.
pub(super) fn promoted(all: &[&Tensor]) -> RunResult<Vec<Tensor>> {
    let floats: Vec<DType> = all.iter().map(|x| x.dtype()).filter(|d| d.is_float()).collect();
    let Some((&first, rest)) = floats.split_first() else {
        return Ok(all.iter().map(|x| (*x).clone()).collect());
    };
    let common = match rest.iter().all(|d| *d == first) {
        true => first,
        false if floats.contains(&DType::F64) => DType::F64,
        false => DType::F32,
    };
    all.iter().map(|x| x.cast(common)).collect()
}

/// What an operation computes, or why it is refused.
pub(crate) fn make(layer: &Layer, place: &str) -> Result<Made> {
    let s = Settings::new(place, &layer.class_name, &layer.config);
    let made = of(layer, &s)?;
    s.finish(&["name"])?;
    Ok(made)
}

fn of(layer: &Layer, s: &Settings<'_>) -> Result<Made> {
    let class = s.class;
    if let Some((_, f)) = BINARY.iter().find(|(name, _)| *name == class) {
        return Ok(Made::with(Vec::new(), move |_, args| Ok(vec![binary(args, *f)?])).kwargs(&["x1", "x2"]));
    }
    if let Some((_, f)) = UNARY.iter().find(|(name, _)| *name == class) {
        return Ok(Made::with(Vec::new(), move |_, args| Ok(vec![f(first(args)?)?])).kwargs(&["x"]));
    }
    if let Some((_, f)) = REDUCTIONS.iter().find(|(name, _)| *name == class) {
        let axes = if s.is_null("axis") { None } else { Some(s.integers("axis")?) };
        let keep = s.flag("keepdims", false)?;
        return Ok(Made::with(Vec::new(), move |_, args| {
            let x = first(args)?;
            Ok(vec![f(x, &axes_of(&axes, x)?, keep)?])
        })
        .kwargs(&["x"]));
    }
    let made = match class {
        "Softmax" | "LogSoftmax" => {
            let axis = if s.is_null("axis") { vec![-1] } else { s.integers("axis")? };
            let [axis] = axis[..] else { return Err(s.wrong("axis", "one axis is taken")) };
            let is_log = class == "LogSoftmax";
            of_one(move |x| if is_log { x.log_softmax(axis as isize) } else { x.softmax(axis as isize) })
        }
        "Gelu" => {
            let approximate = s.flag("approximate", true)?;
            of_one(move |x| if approximate { x.gelu_tanh() } else { x.gelu() })
        }
        "LeakyRelu" => {
            let slope = s.number_or("negative_slope", 0.2)?;
            of_one(move |x| x.leaky_relu(slope))
        }
        "Elu" => {
            let alpha = s.number_or("alpha", 1.0)?;
            of_one(move |x| Nn::Elu(alpha).apply(x))
        }
        "Clip" => {
            let (low, high) = (s.number("x_min")?, s.number("x_max")?);
            of_one(move |x| x.clamp(low, high))
        }
        "Reshape" => {
            let target = s.get("newshape").as_array().cloned().unwrap_or_default();
            let target = shape_list(&target).ok_or_else(|| s.wrong("newshape", "it should be a shape"))?;
            of_one(move |x| {
                let shape = resolved(&target, x.ty().elements());
                x.reshape(&shape.ok_or_else(|| refuse(format!("reshapes {} to {target:?}", x.ty())))?[..])
            })
        }
        "Transpose" => {
            let order = if s.is_null("axes") { None } else { Some(s.integers("axes")?) };
            of_one(move |x| {
                let order: Vec<usize> = match &order {
                    Some(order) => order.iter().map(|&i| place_of(i, x)).collect::<RunResult<_>>()?,
                    None => (0..x.shape().rank()).rev().collect(),
                };
                x.transpose(&order)
            })
        }
        "ExpandDims" => {
            let axis = s.integers("axis")?;
            let [axis] = axis[..] else { return Err(s.wrong("axis", "one axis is taken")) };
            of_one(move |x| function::expanded(x, axis))
        }
        "Squeeze" => {
            let axes = if s.is_null("axis") { None } else { Some(s.integers("axis")?) };
            of_one(move |x| {
                let gone = match &axes {
                    Some(axes) => {
                        axes.iter().map(|&axis| place_of(axis, x)).collect::<RunResult<Vec<_>>>()?
                    }
                    None => (0..x.shape().rank()).filter(|&i| x.shape()[i] == 1).collect(),
                };
                let kept = (0..x.shape().rank()).filter(|i| !gone.contains(i));
                x.reshape(kept.map(|i| x.shape()[i]).collect::<Shape>())
            })
        }
        "Concatenate" => {
            let axis = if s.is_null("axis") { vec![-1] } else { s.integers("axis")? };
            let [axis] = axis[..] else { return Err(s.wrong("axis", "one axis is taken")) };
            Made::with(Vec::new(), move |_, args| {
                let all = promoted(&args.all())?;
                Ok(vec![merge::concat(&all.iter().collect::<Vec<_>>(), axis as isize)?])
            })
            .kwargs(&["xs"])
        }
        "Matmul" => Made::with(Vec::new(), move |_, args| match &promoted(&args.all())?[..] {
            [a, b] => Ok(vec![a.matmul(b)?]),
            _ => Err(refuse("multiplies not two matrices")),
        })
        .kwargs(&["x1", "x2"]),
        "Cast" => {
            let dtype = element_type(s, s.text("dtype")?)?;
            Made::with(Vec::new(), move |cx, args| {
                let x = first(args)?;
                // To the type that it has already, Keras gives the tensor itself, and its mask with it.
                if let (Some(Arg::Tensor(_, mask)), true) = (args.get(0, "x"), x.dtype() == dtype) {
                    cx.pass.mask = mask.clone();
                }
                Ok(vec![if dtype == DType::Bool { truth(x)? } else { x.cast(dtype)? }])
            })
            .kwargs(&["x"])
            .masks(Masks::Read)
        }
        "ZerosLike" => {
            let dtype = if s.is_null("dtype") { None } else { Some(element_type(s, s.text("dtype")?)?) };
            of_one(move |x| x.full_like(x.ty().with_dtype(dtype.unwrap_or(x.dtype())), 0.0))
        }
        "GetItem" => Made::with(Vec::new(), |_, args| {
            let mut tensors = Vec::new();
            if let Some(key) = args.get(1, "key") {
                key.tensors(&mut tensors);
            }
            if !tensors.is_empty() {
                return Err(refuse("takes items by a tensor, which is not supported; use keras.ops.take"));
            }
            let key = args.value(1, "key");
            Ok(vec![item(first(args)?, &key)?])
        })
        .kwargs(&["x", "key"]),
        _ if function::TABLE.iter().any(|(name, _)| *name == class) => {
            let (_, make) =
                function::TABLE.iter().find(|(name, _)| *name == class).ok_or_else(|| s.unsupported(""))?;
            make(s)?
        }
        _ => {
            return Err(Error::unsupported(
                s.place,
                class,
                format!(
                    "a function of {}, which is not known here",
                    layer.module.as_deref().unwrap_or("keras.ops")
                ),
            ));
        }
    };
    Ok(made)
}

/// The element type of a name.
fn element_type(s: &Settings<'_>, name: &str) -> Result<DType> {
    let found = Element::from_numpy(name).and_then(Element::dtype);
    found.ok_or_else(|| s.wrong("dtype", "this type is not taken"))
}

/// True where a number is not zero.
fn truth(x: &Tensor) -> RunResult<Tensor> {
    x.not_equal(&x.full_like(Type::new(x.dtype(), []), 0.0)?)
}

pub(super) fn of_one(f: impl Fn(&Tensor) -> RunResult<Tensor> + Send + Sync + 'static) -> Made {
    Made::with(Vec::new(), move |_, args| Ok(vec![f(first(args)?)?])).kwargs(&["x"])
}

pub(super) fn first(args: &Args) -> RunResult<&Tensor> {
    args.tensor(0, "x")?.ok_or_else(|| refuse("gives no tensor to a function that takes one"))
}

pub(super) fn place_of(axis: i64, x: &Tensor) -> RunResult<usize> {
    let rank = x.shape().rank() as i64;
    let place = if axis < 0 { axis + rank } else { axis };
    let there = (0..rank).contains(&place);
    there.then_some(place as usize).ok_or_else(|| refuse(format!("names axis {axis} of {}", x.ty())))
}

/// Axes as places; none named are all.
pub(super) fn axes_of(axes: &Option<Vec<i64>>, x: &Tensor) -> RunResult<Vec<usize>> {
    match axes {
        Some(axes) => axes.iter().map(|&axis| place_of(axis, x)).collect(),
        None => Ok((0..x.shape().rank()).collect()),
    }
}

/// Lengths of a shape; one that is unknown (null) is to be found.
fn shape_list(list: &[Value]) -> Option<Vec<i64>> {
    let length = |n: &Value| match n {
        Value::Null => Some(-1),
        n => n.as_i64().filter(|n| (-1..=1 << 28).contains(n)),
    };
    if list.len() > 8 { None } else { list.iter().map(length).collect() }
}

/// A function of two operands, one of which may be a number.
pub(super) fn binary(args: &Args, f: Binary) -> RunResult<Tensor> {
    let missing = || refuse("gives not two operands to a function of two");
    let (a, b) = (args.get(0, "x1").ok_or_else(missing)?, args.get(1, "x2").ok_or_else(missing)?);
    let constant = |value: &Value, like: &Tensor| {
        let number = value.as_f64().filter(|x| x.is_finite());
        let number = number.ok_or_else(|| refuse(format!("computes with {value}, which is not a number")))?;
        like.full_like(Type::new(like.dtype(), []), number)
    };
    match (a, b) {
        (Arg::Tensor(a, _), Arg::Tensor(b, _)) => match &promoted(&[a, b])?[..] {
            [a, b] => f(a, b),
            _ => Err(missing()),
        },
        (Arg::Tensor(a, _), Arg::Value(b)) => f(a, &constant(b, a)?),
        (Arg::Value(a), Arg::Tensor(b, _)) => f(&constant(a, b)?, b),
        _ => Err(missing()),
    }
}

/// `x[key]` for keys of integers and slices.
fn item(x: &Tensor, key: &Value) -> RunResult<Tensor> {
    let unknown = || refuse(format!("takes an item {key} of {}, which is not supported", x.ty()));
    let keys = match key {
        Value::Array(list) => list.clone(),
        // A tuple is an object around its list.
        Value::Object(map) if map.get("class_name").is_some_and(|c| c == "__tuple__") => {
            map.get("items").and_then(Value::as_array).cloned().ok_or_else(unknown)?
        }
        key => vec![key.clone()],
    };
    if keys.len() > 16 {
        return Err(unknown());
    }
    // All that the others leave.
    let is_rest = |key: &Value| key.get("class_name").is_some_and(|c| c == "__ellipsis__");
    let keys = match keys.iter().position(is_rest) {
        None => keys,
        Some(at) => {
            let named = keys.iter().filter(|key| !key.is_null() && !is_rest(key)).count();
            let rest = x.shape().rank().checked_sub(named).ok_or_else(unknown)?;
            let all = serde_json::json!({"class_name": "__slice__", "config": {}});
            let (before, after) = (&keys[..at], &keys[at + 1..]);
            before
                .iter()
                .cloned()
                .chain(std::iter::repeat_n(all, rest))
                .chain(after.iter().cloned())
                .collect()
        }
    };
    let mut ranges = Vec::new();
    // The result's axes: which of the slice's, or a new one.
    let mut axes: Vec<Option<usize>> = Vec::new();
    let mut axis = 0;
    for key in &keys {
        if key.is_null() {
            axes.push(None);
            continue;
        }
        let n = *x.shape().get(axis).ok_or_else(unknown)? as i64;
        let from_end = |i: i64| if i < 0 { i + n } else { i };
        if let Some(i) = key.as_i64() {
            let i = from_end(i);
            if !(0..n).contains(&i) {
                return Err(unknown());
            }
            ranges.push((axis, i as usize, i as usize + 1, 1));
            axis += 1;
            continue;
        }
        let is_slice = key.get("class_name").is_some_and(|c| c == "slice" || c == "__slice__");
        let config = key.get("config").filter(|_| is_slice).ok_or_else(unknown)?;
        let part = |name: &str| match config.get(name).unwrap_or(&Value::Null) {
            Value::Null => Ok(None),
            value => value.as_i64().map(Some).ok_or_else(unknown),
        };
        let step = part("step")?.unwrap_or(1);
        let start = from_end(part("start")?.unwrap_or(0)).clamp(0, n);
        let stop = from_end(part("stop")?.unwrap_or(n)).clamp(0, n);
        if step < 1 || stop <= start {
            return Err(unknown());
        }
        ranges.push((axis, start as usize, stop as usize, step as usize));
        axes.push(Some(axis));
        axis += 1;
    }
    axes.extend((axis..x.shape().rank()).map(Some));
    let y = x.slice(&ranges)?;
    y.reshape(axes.into_iter().map(|axis| axis.map_or(1, |i| y.shape()[i])).collect::<Shape>())
}
