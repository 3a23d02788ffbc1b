//! The ops between layers as Keras's layers and functions.

use plimsoll_graph::ops::{Binary, ReduceKind, ResizeMode, Unary};
use plimsoll_graph::{Node, Op, ValueId};
use plimsoll_nn::Activation;
use plimsoll_nn::blocks::unwritable;
use serde_json::{Value, json};

use super::config::type_name;
use super::emit::{Argument, Emitter, MATH, Made, NN, NUMPY, New, Weight};
use super::layers::activation;
use super::source::Source;
use crate::error::{Error, Result};

impl Emitter<'_> {
    /// The shape of a value without its batch.
    pub(super) fn sample(&self, id: ValueId) -> Vec<usize> {
        self.from.graph.ty(id).shape.iter().skip(1).copied().collect()
    }

    /// Adds what makes one output of a node.
    pub(super) fn op(&mut self, node: &Node, output: usize, id: ValueId) -> Result<Made> {
        let place = unwritable::place_of(node);
        let refuse = |why: &str| -> Result<Made> { Err(Error::export(place.clone(), why)) };
        // A slice of everything is what it is a slice of.
        if let Op::Slice(_) = &node.op
            && self.from.graph.ty(node.inputs[0]) == self.from.graph.ty(id)
        {
            return Ok(self.made(node.inputs[0], &place)?.clone());
        }
        if let Op::Binary(op) = &node.op {
            return self.binary(*op, node, id, &place);
        }
        if let (Op::Broadcast(_), Made::Param(name, shape)) =
            (&node.op, self.made(node.inputs[0], &place)?.clone())
        {
            let target = self.from.graph.ty(id).shape.to_vec();
            let at = self.batched(&name, &shape, target.len(), &place)?;
            let kept = shape.len() < target.len() || shape[1..] == target[1..];
            let wide = shape.len() >= target.len() || target[target.len() - shape.len()..] == shape[..];
            return if kept && wide {
                Ok(Made::Layer(at))
            } else {
                refuse("a parameter is repeated along an axis")
            };
        }
        if let Op::MatMul(matmul) = &node.op
            && let Made::Param(name, shape) = self.made(node.inputs[1], &place)?.clone()
        {
            let [rows, columns] = shape[..] else {
                return refuse("a product with a parameter of other than two axes");
            };
            if matmul.ta || matmul.act.is_some() {
                return refuse("a product whose first operand is transposed");
            }
            let x = self.tensor(node.inputs[0], &place)?;
            if matmul.tb
                && !matmul.bias
                && let Some(call) = self.reversed(&name, &shape, x, id)?
            {
                return Ok(Made::Layer(call));
            }
            let (inner, units, source) = match matmul.tb {
                true => (columns, rows, Source::Transposed(name)),
                false => (rows, columns, Source::Param(name)),
            };
            let mut weights = vec![Weight::new([inner, units], source)];
            if matmul.bias {
                let Made::Param(bias, _) = self.made(node.inputs[2], &place)?.clone() else {
                    return refuse("a product with a bias that is computed");
                };
                weights.push(Weight::new([units], Source::Param(bias)));
            }
            let config = json!({"units": units, "activation": "linear", "use_bias": matmul.bias});
            let new = New::layer("Dense", config, x).weights("dense", weights);
            return Ok(Made::Layer(self.give(&place, new, id)?));
        }
        let mut inputs = Vec::new();
        for &input in &node.inputs {
            inputs.push(self.tensor(input, &place)?);
        }
        let x = *inputs.first().ok_or_else(|| Error::export(place.clone(), "it reads nothing"))?;
        let sample = self.sample(node.inputs[0]);
        let given = self.sample(id);
        let is_first = |axis: &usize| *axis == 0;
        let new = match &node.op {
            Op::Unary(f) => match unary(*f, x) {
                Some(new) => new,
                None => return refuse("there is no such layer or function"),
            },
            Op::Cast(cast) => {
                let config = json!({"dtype": type_name(cast.0)});
                New::function("Cast", "keras.src.ops.core", config, vec![Argument::Tensor(x)])
            }
            Op::Reshape(_) if given.len() == 1 => {
                New::layer("Flatten", json!({"data_format": "channels_last"}), x)
            }
            Op::Reshape(_) => New::layer("Reshape", json!({"target_shape": given}), x),
            Op::Transpose(order) if order.0.first() == Some(&0) => {
                New::layer("Permute", json!({"dims": order.0[1..].to_vec()}), x)
            }
            Op::Slice(slice) => {
                let key = slice.0.iter().enumerate().map(|(i, axis)| match i {
                    0 => part(None, None, None),
                    _ => part(Some(axis.start), Some(axis.stop), Some(axis.step)),
                });
                item(x, key.collect())
            }
            Op::Split(split) if split.axis > 0 => {
                let start: usize = split.sizes[..output].iter().sum();
                let mut key = vec![part(None, None, None); split.axis];
                key.push(part(Some(start), Some(start + split.sizes[output]), None));
                item(x, key)
            }
            Op::Concat(concat) if concat.axis > 0 => {
                let mut new = New::layer("Concatenate", json!({"axis": concat.axis}), x);
                new.args = vec![Argument::List(inputs)];
                new
            }
            Op::Reduce(reduce) if !reduce.axes.iter().any(is_first) => {
                let images = sample.len() == 3 && reduce.axes[..] == [1, 2];
                let steps = sample.len() == 2 && reduce.axes[..] == [1];
                let config = json!({"data_format": "channels_last", "keepdims": reduce.keep});
                match (reduce.kind, images, steps) {
                    (ReduceKind::Mean, true, _) => New::layer("GlobalAveragePooling2D", config, x),
                    (ReduceKind::Max, true, _) => New::layer("GlobalMaxPooling2D", config, x),
                    (ReduceKind::Mean, _, true) => New::layer("GlobalAveragePooling1D", config, x),
                    (ReduceKind::Max, _, true) => New::layer("GlobalMaxPooling1D", config, x),
                    (kind, ..) => {
                        let class = match kind {
                            ReduceKind::Sum => "Sum",
                            ReduceKind::Mean => "Mean",
                            ReduceKind::Max => "Max",
                            ReduceKind::Min => "Min",
                            ReduceKind::Prod => "Prod",
                        };
                        let config = json!({"axis": reduce.axes.to_vec(), "keepdims": reduce.keep});
                        New::function(class, NUMPY, config, vec![Argument::Tensor(x)])
                    }
                }
            }
            Op::Softmax(softmax) if softmax.axis > 0 => {
                New::layer("Softmax", json!({"axis": softmax.axis}), x)
            }
            Op::LogSoftmax(softmax) if softmax.axis > 0 => {
                New::function("LogSoftmax", NN, json!({"axis": softmax.axis}), vec![Argument::Tensor(x)])
            }
            Op::MaxPool(pool) if output == 0 => {
                let sides = sides(pool.pad, pool.window, pool.stride, &sample);
                // Zeros beside numbers that are not negative change no maximum.
                let x = match sides {
                    None if self.is_relu(x) => self.zero_padded(&place, x, pool.pad, &sample),
                    None => return refuse("padding of a maximum over numbers that may be negative"),
                    Some(_) => x,
                };
                New::layer("MaxPooling2D", pooling(pool.window, pool.stride, sides), x)
            }
            Op::AvgPool(pool) => {
                let mut sides = sides(pool.pad, pool.window, pool.stride, &sample);
                let mut x = x;
                if pool.count_pad && sides != Some("valid") {
                    x = self.zero_padded(&place, x, pool.pad, &sample);
                    sides = Some("valid");
                }
                if sides.is_none() {
                    return refuse("a mean over windows that leaves out padding");
                }
                New::layer("AveragePooling2D", pooling(pool.window, pool.stride, sides), x)
            }
            Op::Resize(resize) if !resize.align_corners && sample.len() == 3 => {
                let [h, w] = resize.out;
                if h % sample[0].max(1) != 0 || w % sample[1].max(1) != 0 {
                    return refuse("images at a size that is not a multiple of theirs");
                }
                let mode = if resize.mode == ResizeMode::Nearest { "nearest" } else { "bilinear" };
                let config = json!({
                    "size": [h / sample[0], w / sample[1]], "interpolation": mode, "data_format": "channels_last",
                });
                New::layer("UpSampling2D", config, x)
            }
            Op::MatMul(matmul) if !(matmul.ta || matmul.tb || matmul.bias) => {
                New::function("Matmul", NUMPY, json!({}), inputs.into_iter().map(Argument::Tensor).collect())
            }
            _ => return refuse("there is no such layer or function, or not with these settings"),
        };
        Ok(Made::Layer(self.give(&place, new, id)?))
    }

    fn binary(&mut self, op: Binary, node: &Node, id: ValueId, place: &str) -> Result<Made> {
        let rank = self.from.graph.ty(id).shape.len();
        let mut args = Vec::new();
        for &input in &node.inputs {
            args.push(match self.made(input, place)?.clone() {
                Made::Layer(at) => Argument::Tensor(at),
                Made::Number(value) => Argument::Value(json!(value)),
                Made::Param(name, shape) => Argument::Tensor(self.batched(&name, &shape, rank, place)?),
            });
        }
        let (layer, function) = match op {
            Binary::Add => (Some("Add"), "Add"),
            Binary::Sub => (Some("Subtract"), "Subtract"),
            Binary::Mul => (Some("Multiply"), "Multiply"),
            Binary::Max => (Some("Maximum"), "Maximum"),
            Binary::Min => (Some("Minimum"), "Minimum"),
            Binary::Div => (None, "Divide"),
            Binary::Pow => (None, "Power"),
            Binary::And => (None, "LogicalAnd"),
            Binary::Or => (None, "LogicalOr"),
        };
        let graph = &self.from.graph;
        let alike = graph.ty(node.inputs[0]).shape == graph.ty(node.inputs[1]).shape;
        let new = match (layer, &args[..]) {
            (Some(class), [Argument::Tensor(a), Argument::Tensor(b)]) if alike => {
                let mut new = New::layer(class, json!({}), *a);
                new.args = vec![Argument::List(vec![*a, *b])];
                new
            }
            _ => New::function(function, NUMPY, json!({}), args),
        };
        Ok(Made::Layer(self.give(place, new, id)?))
    }
}

fn unary(f: Unary, x: usize) -> Option<New> {
    let of = |class: &'static str, module: &'static str| {
        New::function(class, module, json!({}), vec![Argument::Tensor(x)])
    };
    let with = |class: &'static str, s: f64, is_first: bool| {
        let mut args = vec![Argument::Tensor(x), Argument::Value(json!(s))];
        if is_first {
            args.reverse();
        }
        New::function(class, NUMPY, json!({}), args)
    };
    Some(match f {
        Unary::Relu => activation(Activation::Relu, x),
        Unary::Gelu => activation(Activation::Gelu, x),
        Unary::GeluTanh => activation(Activation::GeluTanh, x),
        Unary::Silu => activation(Activation::Silu, x),
        Unary::Softplus => activation(Activation::Softplus, x),
        Unary::Sigmoid => activation(Activation::Sigmoid, x),
        Unary::Tanh => activation(Activation::Tanh, x),
        Unary::LeakyRelu(slope) => activation(Activation::LeakyRelu(slope.0), x),
        Unary::Clamp(low, high) if low.0 == 0.0 && high.0.is_finite() => {
            New::layer("ReLU", json!({"max_value": high.0, "negative_slope": 0.0, "threshold": 0.0}), x)
        }
        Unary::Clamp(low, high) if low.0.is_finite() && high.0.is_finite() => {
            let config = json!({"x_min": low.0, "x_max": high.0});
            New::function("Clip", NUMPY, config, vec![Argument::Tensor(x)])
        }
        Unary::Neg => of("Negative", NUMPY),
        Unary::Abs => of("Absolute", NUMPY),
        Unary::Sign => of("Sign", NUMPY),
        Unary::Floor => of("Floor", NUMPY),
        Unary::Exp => of("Exp", NUMPY),
        Unary::Log => of("Log", NUMPY),
        Unary::Sqrt => of("Sqrt", NUMPY),
        Unary::Rsqrt => of("Rsqrt", MATH),
        Unary::Square => of("Square", NUMPY),
        Unary::Reciprocal => of("Reciprocal", NUMPY),
        Unary::Sin => of("Sin", NUMPY),
        Unary::Cos => of("Cos", NUMPY),
        Unary::Erf => of("Erf", MATH),
        Unary::AddScalar(s) => with("Add", s.0, false),
        Unary::MulScalar(s) => with("Multiply", s.0, false),
        Unary::RsubScalar(s) => with("Subtract", s.0, true),
        Unary::RdivScalar(s) => with("Divide", s.0, true),
        Unary::PowScalar(s) => with("Power", s.0, false),
        Unary::Clamp(..) | Unary::Not | Unary::IsFinite => return None,
    })
}

/// One axis of an item: Python's slice.
fn part(start: Option<usize>, stop: Option<usize>, step: Option<usize>) -> Value {
    json!({"class_name": "__slice__", "config": {"start": start, "stop": stop, "step": step}})
}

fn item(x: usize, key: Vec<Value>) -> New {
    New::function("GetItem", NUMPY, json!({}), vec![Argument::Tensor(x), Argument::Value(Value::Array(key))])
}

fn pooling(window: [usize; 2], stride: [usize; 2], padding: Option<&str>) -> Value {
    json!({
        "pool_size": window, "strides": stride, "padding": padding.unwrap_or("valid"), "data_format": "channels_last",
    })
}

/// Keras's word for padding, if it has one.
fn sides(
    pad: [(usize, usize); 2],
    window: [usize; 2],
    stride: [usize; 2],
    sample: &[usize],
) -> Option<&'static str> {
    let same = |axis: usize| {
        let (n, s) = (sample.get(axis).copied().unwrap_or(1), stride[axis].max(1));
        let all = ((n.div_ceil(s).max(1) - 1) * s + window[axis]).saturating_sub(n);
        (all / 2, all - all / 2)
    };
    match pad {
        [(0, 0), (0, 0)] => Some("valid"),
        pad if pad == [same(0), same(1)] => Some("same"),
        _ => None,
    }
}
