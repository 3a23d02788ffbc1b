//! Turns a case's op name into a method call, on eager tensors, traced ones or values of a graph alike.
//!
//! Ops are called by the method of their name. What only passes or gradients make (activations inside of a product,
//! relu with its mask, a fused chain, the transposes of picking) is emitted as an op.

use plimsoll_graph::ops::{self, Arg, Binary, Chain, Compare, ElementOp, Fused, ResizeMode, Step, Unary};
use plimsoll_graph::{
    AttentionOps, ConvGeometry, ConvOps, CumulativeOps, DType, EinsumOps, FrozenCrossEntropyOps, GatherOps,
    GridSampleOps, IndexPutOps, LinearCrossEntropyOps, LossOps, MatMulAddOps, NormOps, PoolOps, RecurrentOps,
    ReorderOps, ResizeOps, RotaryOps, Scalar, Shape, Site, SoftmaxOps, SortOps, TensorOps, Type, UniqueOps,
    VolumeOps,
};

use crate::case::{Attrs, Case};

/// The outputs of a case's op for inputs `x`; `float` is the element type under test.
pub fn apply<T: TensorOps>(case: &Case, x: &[T], float: DType) -> Result<Vec<T>, T::Error> {
    let a = &case.attrs;
    if let Some(y) = elementwise(&case.op, a, x)? {
        return Ok(vec![y]);
    }
    let bias = x.get(2);
    Ok(vec![match &case.op[..] {
        "cast" => x[0].cast(a.dtype("to", float))?,
        "relu_mask" => x[0].emit_one(ops::ReluMask, &[&x[0]], Site::here())?,
        "fused" => {
            return Ok(x[0].emit(chain(&x[0]).into(), &x.iter().collect::<Vec<_>>(), Site::here())?.to_vec());
        }
        "exp_log" => x[0].exp()?.mul(&x[1].log()?)?,

        "full_like" => x[0].full_like(Type::new(a.dtype("dtype", float), shape(a)), a.get("value"))?,
        "iota_like" => x[0].iota_like(Type::new(a.dtype("dtype", float), shape(a)), a.get("axis"))?,
        "broadcast" => x[0].broadcast(shape(a))?,
        "sum_to" => x[0].sum_to(&shape(a))?,
        "reshape" => x[0].reshape(shape(a))?,
        "flatten" => x[0].flatten(a.get("first"))?,
        "transpose" => x[0].transpose(&a.get::<Vec<usize>>("order"))?,
        "narrow" => x[0].narrow(a.get("axis"), a.get("start"), a.get("stop"))?,
        "slice" => x[0].slice(&a.get::<Vec<(usize, usize, usize, usize)>>("ranges"))?,
        "pad" => x[0].pad(&a.get::<Vec<(usize, usize)>>("padding"), a.get("value"))?,
        "concat" => T::concat(&x.iter().collect::<Vec<_>>(), a.get("axis"))?,
        "split" => return Ok(x[0].split(a.get("axis"), &a.get::<Vec<usize>>("sizes"))?.to_vec()),

        "sum" => x[0].sum(&a.get::<Vec<usize>>("axes"), a.get("keep"))?,
        "mean" => x[0].mean(&a.get::<Vec<usize>>("axes"), a.get("keep"))?,
        "max" => x[0].max(&a.get::<Vec<usize>>("axes"), a.get("keep"))?,
        "min" => x[0].min(&a.get::<Vec<usize>>("axes"), a.get("keep"))?,
        "prod" => x[0].prod(&a.get::<Vec<usize>>("axes"), a.get("keep"))?,
        "argmax" => x[0].argmax(a.get("axis"))?,

        "cumsum" => x[0].cumsum_with(a.get("axis"), a.get("exclusive"), a.get("reverse"))?,
        "cumprod" => x[0].cumprod_with(a.get("axis"), a.get("exclusive"), a.get("reverse"))?,

        "sort" => x[0].sort(a.get("axis"), a.get("descending"))?,
        "argsort" => x[0].argsort(a.get("axis"), a.get("descending"))?,
        "top_k" => {
            let (values, places) = x[0].top_k(a.get("k"), a.get("axis"), a.get("largest"))?;
            return Ok(vec![values, places]);
        }

        "flip" => x[0].flip(&a.get::<Vec<isize>>("axes"))?,
        "roll" => x[0].roll(a.get("shift"), a.get("axis"))?,

        "matmul" => x[0].matmul(&x[1])?,
        "matmul_with" => x[0].matmul_with(&x[1], bias, a.get("ta"), a.get("tb"))?,
        "matmul_onto" => x[0].matmul_onto(&x[1], a.get("ta"), a.get("tb"), a.get("scale"), &x[2])?,
        "matmul_act" => {
            let op = ops::MatMul {
                ta: a.get("ta"),
                tb: a.get("tb"),
                bias: bias.is_some(),
                act: Some(activation(a)),
            };
            x[0].emit_one(op, &x.iter().collect::<Vec<_>>(), Site::here())?
        }

        "einsum" => T::einsum(&a.get::<String>("equation"), &x.iter().collect::<Vec<_>>())?,

        "conv2d" => x[0].conv2d(&x[1], bias, geometry(a))?,
        "conv1d" => x[0].conv1d(&x[1], bias, geometry(a))?,
        "depthwise_conv2d" => x[0].depthwise_conv2d(&x[1], bias, geometry(a))?,
        "conv_transpose2d" => x[0].conv_transpose2d(&x[1], bias, geometry(a), a.get("extra"))?,
        "conv2d_act" => {
            let ConvGeometry { stride, pad, dilation, groups } = geometry::<2>(a);
            let pad = [0, 1].map(|axis| {
                pad.resolve(axis, x[0].shape()[axis + 1], x[1].shape()[axis], stride[axis], dilation[axis])
            });
            let frame = ops::ConvFrame { stride, pad, dilation, groups };
            let op = ops::Conv { frame, bias: bias.is_some(), act: Some(activation(a)) };
            x[0].emit_one(op, &x.iter().collect::<Vec<_>>(), Site::here())?
        }
        "max_pool2d" => x[0].max_pool2d(a.get("window"), a.get("stride"), a.padding())?,
        "avg_pool2d" => x[0].avg_pool2d(a.get("window"), a.get("stride"), a.padding(), a.get("count_pad"))?,
        "max_pool1d" => {
            let ([window], [stride]) = (a.get("window"), a.get("stride"));
            x[0].max_pool1d(window, stride, a.padding())?
        }
        "avg_pool1d" => {
            let ([window], [stride]) = (a.get("window"), a.get("stride"));
            x[0].avg_pool1d(window, stride, a.padding(), a.get("count_pad"))?
        }
        "global_avg_pool2d" => x[0].global_avg_pool2d()?,
        "global_max_pool2d" => x[0].global_max_pool2d()?,
        "resize2d" => x[0].resize2d(a.get("out"), mode(a), a.get("align"))?,
        "grid_sample" => x[0].grid_sample(&x[1], mode(a), a.get("border"), a.get("align"))?,
        "upsample2d" => x[0].upsample2d(a.get("factor"), mode(a))?,

        "conv3d" => x[0].conv3d(&x[1], bias, geometry(a))?,
        "conv_transpose3d" => x[0].conv_transpose3d(&x[1], bias, geometry(a), a.get("extra"))?,
        "max_pool3d" => x[0].max_pool3d(a.get("window"), a.get("stride"), a.padding())?,
        "avg_pool3d" => x[0].avg_pool3d(a.get("window"), a.get("stride"), a.padding(), a.get("count_pad"))?,

        "gather" => x[0].gather(&x[1], a.get("axis"))?,
        "embedding" => x[0].embedding(&x[1])?,
        "one_hot" => x[0].one_hot(a.get("depth"), a.dtype("dtype", float))?,
        "take_along" => x[0].take_along(&x[1], a.get("axis"))?,
        "scatter_add" => {
            let op = ops::ScatterAdd { axis: a.get("axis"), length: a.get("length") };
            x[0].emit_one(op, &[&x[0], &x[1]], Site::here())?
        }
        "put_along_add" => {
            let op = ops::PutAlongAdd { axis: a.get("axis"), length: a.get("length") };
            x[0].emit_one(op, &[&x[0], &x[1]], Site::here())?
        }

        "index_put" => x[0].index_put(&x[1], &x[2], a.get("axis"))?,
        "index_add" => x[0].index_add(&x[1], &x[2], a.get("axis"))?,
        "masked_fill" => x[0].masked_fill(&x[1], a.get("value"))?,

        "unique" => {
            let (values, counts) = x[0].unique(a.get("size"), a.get("fill"))?;
            return Ok(vec![values, counts]);
        }

        "softmax" => x[0].softmax(a.get("axis"))?,
        "log_softmax" => x[0].log_softmax(a.get("axis"))?,
        "softmax_cross_entropy" => x[0].softmax_cross_entropy(&x[1])?,
        "frozen_cross_entropy" => x[0].frozen_cross_entropy(&x[1], &x[2])?,
        "linear_cross_entropy" => x[0].linear_cross_entropy(&x[1], &x[2], a.get("cap"))?,
        "dense_softmax_cross_entropy" => x[0].dense_softmax_cross_entropy(&x[1])?,
        "sigmoid_cross_entropy" => x[0].sigmoid_cross_entropy(&x[1])?,
        "mse" => x[0].mse(&x[1])?,

        "layer_norm" => x[0].layer_norm(&x[1], &x[2], a.get("eps"))?,
        "rms_norm" => x[0].rms_norm(&x[1], a.get("eps"))?,
        "group_norm" => x[0].group_norm(&x[1], &x[2], a.get("groups"), a.get("eps"))?,
        "batch_norm" => {
            let (y, mean, var) = x[0].batch_norm(&x[1], &x[2], a.get("eps"))?;
            return Ok(vec![y, mean, var]);
        }
        "batch_norm_inference" => x[0].batch_norm_inference(&x[1], &x[2], &x[3], &x[4], a.get("eps"))?,

        "rotary" => x[0].rotary(&x[1], &x[2])?,
        "attention" => x[0].attention(&x[1], &x[2], x.get(3), a.get("causal"), a.number("scale"))?,
        "lstm" => {
            let (y, h, c) = x[0].lstm(&x[1], &x[2], &x[3], &x[4], &x[5])?;
            return Ok(vec![y, h, c]);
        }
        "gru" => {
            let (y, h) = x[0].gru(&x[1], &x[2], &x[3], &x[4], &x[5])?;
            return Ok(vec![y, h]);
        }
        other => panic!("no method is known for {other}"),
    }])
}

/// The result of an elementwise op, if it is one.
fn elementwise<T: TensorOps>(op: &str, attrs: &Attrs, inputs: &[T]) -> Result<Option<T>, T::Error> {
    let (x, y) = (&inputs[0], inputs.get(1).unwrap_or(&inputs[0]));
    Ok(Some(match op {
        "neg" => x.neg()?,
        "abs" => x.abs()?,
        "sign" => x.sign()?,
        "floor" => x.floor()?,
        "exp" => x.exp()?,
        "log" => x.log()?,
        "sqrt" => x.sqrt()?,
        "rsqrt" => x.rsqrt()?,
        "square" => x.square()?,
        "reciprocal" => x.reciprocal()?,
        "sin" => x.sin()?,
        "cos" => x.cos()?,
        "tanh" => x.tanh()?,
        "sigmoid" => x.sigmoid()?,
        "erf" => x.erf()?,
        "relu" => x.relu()?,
        "gelu" => x.gelu()?,
        "gelu_tanh" => x.gelu_tanh()?,
        "silu" => x.silu()?,
        "softplus" => x.softplus()?,
        "not" => x.not()?,
        "is_finite" => x.is_finite()?,
        "add" => x.add(y)?,
        "sub" => x.sub(y)?,
        "mul" => x.mul(y)?,
        "div" => x.div(y)?,
        "pow" => x.pow(y)?,
        "maximum" => x.maximum(y)?,
        "minimum" => x.minimum(y)?,
        "and" => x.and(y)?,
        "or" => x.or(y)?,
        "equal" => x.equal(y)?,
        "not_equal" => x.not_equal(y)?,
        "less" => x.less(y)?,
        "less_equal" => x.less_equal(y)?,
        "greater" => x.greater(y)?,
        "greater_equal" => x.greater_equal(y)?,
        "add_scalar" => x.add_scalar(attrs.scalar())?,
        "mul_scalar" => x.mul_scalar(attrs.scalar())?,
        "rsub_scalar" => x.rsub_scalar(attrs.scalar())?,
        "rdiv_scalar" => x.rdiv_scalar(attrs.scalar())?,
        "pow_scalar" => x.pow_scalar(attrs.scalar())?,
        "leaky_relu" => x.leaky_relu(attrs.scalar())?,
        "clamp" => x.clamp(attrs.get("low"), attrs.get("high"))?,
        "select" => x.select(y, &inputs[2])?,
        _ => return Ok(None),
    }))
}

fn shape(a: &Attrs) -> Shape {
    Shape::from(&a.get::<Vec<usize>>("shape")[..])
}

fn geometry<const AXES: usize>(a: &Attrs) -> ConvGeometry<AXES> {
    let axes = |name: &str| {
        <[usize; AXES]>::try_from(a.get::<Vec<usize>>(name)).unwrap_or_else(|v| panic!("{name}: {v:?}"))
    };
    let groups = a.number("groups").map_or(1, |g| g as usize);
    ConvGeometry { stride: axes("stride"), pad: a.padding(), dilation: axes("dilation"), groups }
}

fn mode(a: &Attrs) -> ResizeMode {
    match a.text("mode") {
        Some("nearest") => ResizeMode::Nearest,
        _ => ResizeMode::Bilinear,
    }
}

fn activation(a: &Attrs) -> Unary {
    match a.text("act") {
        Some("relu") => Unary::Relu,
        Some("gelu") => Unary::Gelu,
        Some("gelu_tanh") => Unary::GeluTanh,
        Some("tanh") => Unary::Tanh,
        Some("sigmoid") => Unary::Sigmoid,
        Some("silu") => Unary::Silu,
        Some("leaky_relu") => Unary::LeakyRelu(Scalar(0.125)),
        other => panic!("no activation is called {other:?}"),
    }
}

/// t = tanh(x + row), p = t · column; outputs: p > 0.125 ? one : t, and p.
fn chain<T: TensorOps>(x: &T) -> Fused {
    let step = |op, args: &[Arg]| Step { op, args: args.into(), dtype: x.dtype() };
    Fused::new(Chain {
        shape: x.shape().clone(),
        n_inputs: 4,
        steps: vec![
            step(ElementOp::Binary(Binary::Add), &[Arg::Input(0), Arg::Input(1)]),
            step(ElementOp::Unary(Unary::Tanh), &[Arg::Step(0)]),
            step(ElementOp::Binary(Binary::Mul), &[Arg::Step(1), Arg::Input(2)]),
            Step {
                dtype: DType::Bool,
                ..step(ElementOp::Compare(Compare::Gt), &[Arg::Step(2), Arg::Const(Scalar(0.125))])
            },
            step(ElementOp::Select, &[Arg::Step(3), Arg::Input(3), Arg::Step(1)]),
        ],
        outputs: vec![4, 2],
    })
}
