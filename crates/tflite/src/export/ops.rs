//! Every op of a graph as TensorFlow Lite's.

use plimsoll_graph::ops::{AxisOrder, Binary, Compare, CumulativeKind, ReduceKind, Unary};
use plimsoll_graph::{Node, Op, TensorOps, ValueId, ops};
use rustc_hash::FxHashSet;

use super::emit::Emitter;
use crate::error::{Result, refuse};
use crate::lite_model::ElementType;
use crate::ops::OpCode;
use crate::options::Options;

impl Emitter<'_> {
    /// Adds what makes the outputs of a node.
    pub(super) fn op(&mut self, node: &Node, wanted: &FxHashSet<ValueId>) -> Result<()> {
        let others_wanted = node.outputs[1..].iter().any(|id| wanted.contains(id));
        let is_several = matches!(&node.op, Op::Split(_) | Op::Lstm(_) | Op::Gru(_));
        if others_wanted && !is_several {
            return refuse("what it keeps for a gradient is used");
        }
        let ty = self.graph.ty(node.outputs[0]);
        if ElementType::of_dtype(ty.dtype).is_none() {
            return refuse(format!(
                "its elements are {}, which TensorFlow Lite does not compute with",
                ty.dtype
            ));
        }
        match &node.op {
            Op::Lstm(_) => return self.lstm(node, wanted),
            Op::Gru(_) => return self.gru(node, wanted),
            Op::Split(split) => {
                let x = self.value(node.inputs[0])?;
                let parts = self.split(x, split.axis, &split.sizes);
                node.outputs.iter().zip(parts).for_each(|(&id, at)| self.set(id, at));
                return Ok(());
            }
            _ => {}
        }
        let made = self.single(node)?;
        self.set(node.outputs[0], made);
        Ok(())
    }

    /// Adds what makes the one output of a node.
    fn single(&mut self, node: &Node) -> Result<usize> {
        let out = self.graph.ty(node.outputs[0]).clone();
        let shape = out.shape.to_vec();
        let axis_of = |axis: usize| axis as i32;
        // The operand that most ops have.
        let first = |own: &mut Self| own.value(node.inputs[0]);
        Ok(match &node.op {
            Op::Unary(f) => {
                let x = first(self)?;
                self.function(*f, x)?
            }
            Op::Binary(f) => {
                let (a, b) = self.two(node)?;
                self.binary(binary(*f), a, b)?
            }
            Op::Compare(f) => {
                let (a, b) = self.two(node)?;
                self.binary(compare(*f), a, b)?
            }
            Op::Select(_) => {
                let (c, a) = self.two(node)?;
                let b = self.value(node.inputs[2])?;
                let ty = self.ty(a);
                self.add(OpCode::Select, &[c, a, b], ty, &shape, Options::None)
            }
            Op::Cast(cast) => {
                let x = first(self)?;
                match ElementType::of_dtype(cast.0) {
                    Some(to) if to == self.ty(x) => x,
                    Some(to) => self.cast(x, to),
                    None => return refuse(format!("there are no elements of {}", cast.0)),
                }
            }
            Op::Full(full) => {
                let Some(ty) = ElementType::of_dtype(out.dtype) else { return refuse("of its elements") };
                let number = self.number(ty, full.value.0)?;
                self.repeat(number, &shape)
            }
            Op::Broadcast(_) => {
                let x = first(self)?;
                self.repeat(x, &shape)
            }
            Op::Reshape(_) => {
                let x = first(self)?;
                self.reshape(x, &shape)
            }
            Op::StopGradient(_) | Op::OwnGradient(_) => first(self)?,
            Op::Transpose(order) => {
                let x = first(self)?;
                self.transpose(x, &order.0)
            }
            Op::Slice(slice) => {
                let x = first(self)?;
                self.cut(x, slice)
            }
            Op::Pad(pad) => {
                if pad.axes.iter().any(|axis| axis.inner > 0) {
                    return refuse("it puts elements between others");
                }
                let x = first(self)?;
                let around: Vec<(usize, usize)> = pad.axes.iter().map(|axis| (axis.low, axis.high)).collect();
                self.pad(x, &around, pad.value.0)?
            }
            Op::Concat(concat) => {
                let parts = node.inputs.iter().map(|&id| self.value(id)).collect::<Result<Vec<usize>>>()?;
                self.concat(&parts, concat.axis)
            }
            Op::Reorder(reorder) => {
                let x = first(self)?;
                match reorder.order {
                    AxisOrder::Flip => {
                        let (axis, ty) = (self.list(&[axis_of(reorder.axis)]), self.ty(x));
                        self.add(OpCode::Reverse, &[x, axis], ty, &shape, Options::None)
                    }
                    AxisOrder::Roll(shift) => {
                        let cut = shape[reorder.axis] - shift;
                        let parts = self.split(x, reorder.axis, &[cut, shift]);
                        self.concat(&[parts[1], parts[0]], reorder.axis)
                    }
                }
            }
            Op::Reduce(reduce) => {
                let code = match reduce.kind {
                    ReduceKind::Sum => OpCode::Sum,
                    ReduceKind::Mean => OpCode::Mean,
                    ReduceKind::Max => OpCode::ReduceMax,
                    ReduceKind::Min => OpCode::ReduceMin,
                    ReduceKind::Prod => OpCode::ReduceProd,
                };
                let x = first(self)?;
                self.reduce(code, x, &reduce.axes, reduce.keep)
            }
            Op::ArgMax(argmax) => {
                let (x, axis) = (first(self)?, self.whole(axis_of(argmax.axis)));
                let ty = ElementType::I64;
                self.add(OpCode::ArgMax, &[x, axis], ty, &shape, Options::ArgMax { output: ty })
            }
            Op::Cumulative(run) if run.kind == CumulativeKind::Sum => {
                let (x, axis) = (first(self)?, self.whole(axis_of(run.axis)));
                let options = Options::CumSum { exclusive: run.exclusive, reverse: run.reverse };
                let ty = self.ty(x);
                self.add(OpCode::CumSum, &[x, axis], ty, &shape, options)
            }
            Op::ArgSort(sort) if sort.descending && sort.axis + 1 == shape.len() => {
                let (x, k) = (first(self)?, self.whole(shape[sort.axis] as i32));
                let Some(to) = ElementType::of_dtype(sort.dtype) else { return refuse("of its elements") };
                let shapes = [shape.clone(), shape];
                let ty = self.ty(x);
                let made = self.add_of(OpCode::TopK, vec![Some(x), Some(k)], ty, &shapes, Options::None);
                self.model.tensors[made[1]].ty = ElementType::I32;
                if to == ElementType::I32 { made[1] } else { self.cast(made[1], to) }
            }
            Op::ArgSort(_) => return refuse("it sorts upwards, or not along the last axis"),
            Op::MatMul(matmul) => self.matmul(matmul, node)?,
            Op::Conv(conv) => self.conv(conv, node)?,
            Op::ConvGradInput(conv) => self.conv_transpose(conv, node)?,
            Op::MaxPool(pool) => self.max_pool(pool, node)?,
            Op::AvgPool(pool) => self.avg_pool(pool, node)?,
            Op::Resize(resize) => self.resize(resize, node)?,
            Op::Softmax(softmax) => {
                let x = first(self)?;
                self.along(OpCode::Softmax, Options::Softmax { beta: 1.0 }, x, softmax.axis)
            }
            Op::LogSoftmax(softmax) => {
                let x = first(self)?;
                self.along(OpCode::LogSoftmax, Options::None, x, softmax.axis)
            }
            Op::LayerNorm(norm) => self.layer_norm(norm, node)?,
            Op::RmsNorm(norm) => self.rms_norm(norm, node)?,
            Op::GroupNorm(norm) => self.group_norm(norm, node)?,
            Op::Gather(gather) => {
                let (x, at) = self.two(node)?;
                let options = Options::Gather { axis: axis_of(gather.axis), batch_axes: 0 };
                let ty = self.ty(x);
                self.add(OpCode::Gather, &[x, at], ty, &shape, options)
            }
            Op::OneHot(hot) => {
                let Some(ty) = ElementType::of_dtype(hot.dtype) else { return refuse("of its elements") };
                let (at, depth) = (first(self)?, self.whole(hot.depth as i32));
                let (on, off) = (self.number(ty, 1.0)?, self.number(ty, 0.0)?);
                self.add(OpCode::OneHot, &[at, depth, on, off], ty, &shape, Options::OneHot { axis: -1 })
            }
            Op::Attention(attention) => self.attention(attention, node)?,
            _ => return refuse("there is no such op"),
        })
    }

    pub(super) fn two(&mut self, node: &Node) -> Result<(usize, usize)> {
        Ok((self.value(node.inputs[0])?, self.value(node.inputs[1])?))
    }

    fn repeat(&mut self, x: usize, shape: &[usize]) -> usize {
        let list = self.list(&shape.iter().map(|&n| n as i32).collect::<Vec<_>>());
        let ty = self.ty(x);
        self.add(OpCode::BroadcastTo, &[x, list], ty, shape, Options::None)
    }

    fn cut(&mut self, x: usize, slice: &ops::Slice) -> usize {
        if slice.0.iter().all(|part| part.step == 1) {
            let ranges: Vec<(usize, usize)> = slice.0.iter().map(|part| (part.start, part.stop)).collect();
            return self.slice(x, &ranges);
        }
        let shape: Vec<usize> = slice.0.iter().map(|part| part.length()).collect();
        let starts = self.list(&slice.0.iter().map(|part| part.start as i32).collect::<Vec<_>>());
        let stops = self.list(&slice.0.iter().map(|part| part.stop as i32).collect::<Vec<_>>());
        let steps = self.list(&slice.0.iter().map(|part| part.step as i32).collect::<Vec<_>>());
        let ty = self.ty(x);
        self.add(OpCode::StridedSlice, &[x, starts, stops, steps], ty, &shape, Options::StridedSlice)
    }

    /// An op along the last axis, to which another is brought.
    pub(super) fn along(&mut self, code: OpCode, options: Options, x: usize, axis: usize) -> usize {
        let last = self.shape(x).len() - 1;
        if axis == last {
            return self.unary(code, x, options);
        }
        let mut order: Vec<usize> = (0..=last).collect();
        order.swap(axis, last);
        let turned = self.transpose(x, &order);
        let made = self.unary(code, turned, options);
        self.transpose(made, &order)
    }

    fn function(&mut self, f: Unary, x: usize) -> Result<usize> {
        let ty = self.ty(x);
        let plain = match f {
            Unary::Neg => OpCode::Neg,
            Unary::Abs => OpCode::Abs,
            Unary::Sign => OpCode::Sign,
            Unary::Floor => OpCode::Floor,
            Unary::Exp => OpCode::Exp,
            Unary::Log => OpCode::Log,
            Unary::Sqrt => OpCode::Sqrt,
            Unary::Rsqrt => OpCode::Rsqrt,
            Unary::Square => OpCode::Square,
            Unary::Sin => OpCode::Sin,
            Unary::Cos => OpCode::Cos,
            Unary::Tanh => OpCode::Tanh,
            Unary::Sigmoid => OpCode::Logistic,
            Unary::Relu => OpCode::Relu,
            Unary::Not => OpCode::LogicalNot,
            Unary::Clamp(low, high) if (low.0, high.0) == (0.0, 6.0) => OpCode::Relu6,
            Unary::Clamp(low, high) if (low.0, high.0) == (-1.0, 1.0) => OpCode::ReluN1To1,
            Unary::Clamp(low, high) if (low.0, high.0) == (0.0, f64::INFINITY) => OpCode::Relu,
            _ => return self.composed(f, x, ty),
        };
        Ok(self.unary(plain, x, Options::None))
    }

    /// Functions that are no ops of their own, or that have an operand more.
    fn composed(&mut self, f: Unary, x: usize, ty: ElementType) -> Result<usize> {
        let with = |own: &mut Self, code: OpCode, s: f64, is_first: bool| -> Result<usize> {
            let number = own.number(ty, s)?;
            if is_first { own.binary(code, number, x) } else { own.binary(code, x, number) }
        };
        Ok(match f {
            Unary::Reciprocal => with(self, OpCode::Div, 1.0, true)?,
            Unary::Gelu => self.unary(OpCode::Gelu, x, Options::Gelu { approximate: false }),
            Unary::GeluTanh => self.unary(OpCode::Gelu, x, Options::Gelu { approximate: true }),
            Unary::Silu => {
                let gate = self.unary(OpCode::Logistic, x, Options::None);
                self.binary(OpCode::Mul, x, gate)?
            }
            Unary::LeakyRelu(slope) => {
                self.unary(OpCode::LeakyRelu, x, Options::LeakyRelu { slope: slope.0 as f32 })
            }
            Unary::Softplus => {
                // max(x, 0) + ln(1 + e^-|x|), which is exact far from zero.
                self.keeps_float = true;
                let size = self.unary(OpCode::Abs, x, Options::None);
                let low = self.unary(OpCode::Neg, size, Options::None);
                let small = self.unary(OpCode::Exp, low, Options::None);
                let one = self.number(ty, 1.0)?;
                let sum = self.binary(OpCode::Add, small, one)?;
                let rest = self.unary(OpCode::Log, sum, Options::None);
                let main = self.unary(OpCode::Relu, x, Options::None);
                self.binary(OpCode::Add, main, rest)?
            }
            Unary::Clamp(low, high) => {
                let mut y = x;
                for (bound, code) in [(low.0, OpCode::Maximum), (high.0, OpCode::Minimum)] {
                    if bound.is_finite() {
                        let number = self.number(ty, bound)?;
                        y = self.binary(code, y, number)?;
                    }
                }
                y
            }
            Unary::AddScalar(s) => with(self, OpCode::Add, s.0, false)?,
            Unary::MulScalar(s) => with(self, OpCode::Mul, s.0, false)?,
            Unary::RsubScalar(s) => with(self, OpCode::Sub, s.0, true)?,
            Unary::RdivScalar(s) => with(self, OpCode::Div, s.0, true)?,
            Unary::PowScalar(s) => with(self, OpCode::Pow, s.0, false)?,
            _ => return refuse("there is no such function"),
        })
    }

    /// A product with weights as FULLY_CONNECTED, any other as BATCH_MATMUL.
    fn matmul(&mut self, matmul: &ops::MatMul, node: &Node) -> Result<usize> {
        if matmul.act.is_some() {
            return refuse("it holds an activation");
        }
        let (a_id, b_id) = (node.inputs[0], node.inputs[1]);
        let bias = match matmul.bias {
            true => Some(self.value(node.inputs[2])?),
            false => None,
        };
        let mut a = self.value(a_id)?;
        let rank = self.shape(a).len();
        let weights = self.known(b_id).filter(|b| b.shape().rank() == 2).cloned();
        if let Some(weights) = weights.filter(|_| rank >= 2) {
            if matmul.ta {
                let mut order: Vec<usize> = (0..rank).collect();
                order.swap(rank - 1, rank - 2);
                a = self.transpose(a, &order);
            }
            let w = match matmul.tb {
                true => self.value(b_id)?,
                false => {
                    let turned = weights.transpose(&[1, 0])?;
                    let name = self.known_name(b_id);
                    self.constant(&name, &turned)?
                }
            };
            return Ok(self.dense(a, w, bias));
        }
        let b = self.value(b_id)?;
        let shape = self.graph.ty(node.outputs[0]).shape.to_vec();
        let options = Options::BatchMatMul { turn_a: matmul.ta, turn_b: matmul.tb };
        let ty = self.ty(a);
        let made = self.add(OpCode::BatchMatMul, &[a, b], ty, &shape, options);
        match bias {
            Some(bias) => self.binary(OpCode::Add, made, bias),
            None => Ok(made),
        }
    }
}

fn binary(f: Binary) -> OpCode {
    match f {
        Binary::Add => OpCode::Add,
        Binary::Sub => OpCode::Sub,
        Binary::Mul => OpCode::Mul,
        Binary::Div => OpCode::Div,
        Binary::Pow => OpCode::Pow,
        Binary::Max => OpCode::Maximum,
        Binary::Min => OpCode::Minimum,
        Binary::And => OpCode::LogicalAnd,
        Binary::Or => OpCode::LogicalOr,
    }
}

fn compare(f: Compare) -> OpCode {
    match f {
        Compare::Eq => OpCode::Equal,
        Compare::Ne => OpCode::NotEqual,
        Compare::Lt => OpCode::Less,
        Compare::Le => OpCode::LessEqual,
        Compare::Gt => OpCode::Greater,
        Compare::Ge => OpCode::GreaterEqual,
    }
}
