//! Every op of a graph as ONNX's.

use plimsoll_graph::ops::{self, AxisOrder, ConvFrame, CumulativeKind, ReduceKind, ResizeMode};
use plimsoll_graph::{DType, Node, Op, Type, ValueId};
use plimsoll_run::Tensor;
use rustc_hash::FxHashSet;

use super::emit::{Dim, Emitter, float, int, ints, text};
use crate::constant::{Constant, data_type_of};
use crate::error::{Error, Result};

pub(super) fn refuse<T>(why: impl Into<String>) -> Result<T> {
    Err(Error::export("", why))
}

fn list(values: &[usize]) -> Vec<i64> {
    values.iter().map(|&n| n as i64).collect()
}

/// Padding as ONNX lists it: all that stands before, then all behind.
fn pads(pad: &[(usize, usize)]) -> Vec<i64> {
    pad.iter().map(|p| p.0 as i64).chain(pad.iter().map(|p| p.1 as i64)).collect()
}

impl Emitter<'_> {
    fn ty(&self, id: ValueId) -> Type {
        self.graph.ty(id).clone()
    }

    /// Adds what makes the outputs of a node.
    pub(super) fn op(&mut self, node: &Node, wanted: &FxHashSet<ValueId>) -> Result<()> {
        let out = node.outputs[0];
        let others_wanted = node.outputs[1..].iter().any(|id| wanted.contains(id));
        let is_several = matches!(&node.op, Op::Split(_) | Op::Lstm(_) | Op::Gru(_));
        if others_wanted && !is_several {
            return refuse("what it keeps for a gradient is used");
        }
        if self.by_element(node)? {
            return Ok(());
        }
        let dtype = self.ty(out).dtype;
        match &node.op {
            Op::Full(full) => {
                let number = self.scalar(dtype, full.value.0)?;
                let name = if self.ty(out).shape.rank() == 0 { number } else { self.expanded(&number, out)? };
                self.set(out, name);
            }
            Op::Iota(iota) => self.iota(iota, out)?,
            Op::Broadcast(_) => {
                let x = self.plain(node.inputs[0])?;
                let name = self.expanded(&x, out)?;
                self.set(out, name);
            }
            Op::Reshape(_) => {
                let x = self.plain(node.inputs[0])?;
                let dims = self.dims(out)?;
                let target = self.target(&dims);
                // A length of 0 is one here, not a sign to keep what is there.
                let zero = dims.contains(&Dim::Fixed(0));
                let attributes = if zero { vec![int("allowzero", 1)] } else { vec![] };
                let name = self.node("Reshape", &[&x, &target], attributes);
                self.set(out, name);
            }
            Op::StopGradient(_) | Op::OwnGradient(_) => {
                let name = self.plain(node.inputs[0])?;
                self.set(out, name);
            }
            Op::Transpose(order) => match order.0[..] {
                [0, 3, 1, 2] => {
                    let name = self.first(node.inputs[0])?;
                    self.set(out, name);
                }
                [0, 2, 3, 1] => {
                    let name = self.plain(node.inputs[0])?;
                    self.set_first(out, name);
                }
                _ => {
                    let x = self.plain(node.inputs[0])?;
                    let name = self.node("Transpose", &[&x], vec![ints("perm", &list(&order.0))]);
                    self.set(out, name);
                }
            },
            Op::Slice(slice) => self.slice(slice, node.inputs[0], out)?,
            Op::Pad(pad) => {
                if pad.axes.iter().any(|axis| axis.inner > 0) {
                    return refuse("it puts elements between others");
                }
                let x = self.plain(node.inputs[0])?;
                let around: Vec<(usize, usize)> = pad.axes.iter().map(|axis| (axis.low, axis.high)).collect();
                let (around, value) = (self.list(&pads(&around)), self.scalar(dtype, pad.value.0)?);
                let name = self.node("Pad", &[&x, &around, &value], vec![]);
                self.set(out, name);
            }
            Op::Concat(concat) => {
                let in_first = concat.axis == 3 && node.inputs.iter().any(|&id| self.has_first(id));
                let mut parts = Vec::new();
                for &id in &node.inputs {
                    parts.push(if in_first { self.first(id)? } else { self.plain(id)? });
                }
                let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
                let axis = if in_first { 1 } else { concat.axis as i64 };
                let name = self.node("Concat", &parts, vec![int("axis", axis)]);
                if in_first { self.set_first(out, name) } else { self.set(out, name) }
            }
            Op::Split(split) => {
                if matches!(self.dims(node.inputs[0])?[split.axis], Dim::Batch(_)) {
                    return refuse("it cuts the batch in pieces");
                }
                let (x, sizes) = (self.plain(node.inputs[0])?, self.list(&list(&split.sizes)));
                let n = node.outputs.len();
                let names = self.node_of("Split", &[&x, &sizes], n, vec![int("axis", split.axis as i64)]);
                node.outputs.iter().zip(names).for_each(|(&id, name)| self.set(id, name));
            }
            Op::Reorder(reorder) => self.reorder(reorder, node.inputs[0], out)?,
            Op::Reduce(reduce) => self.reduce(reduce, node.inputs[0], out)?,
            Op::ArgMax(argmax) => {
                let x = self.plain(node.inputs[0])?;
                let attributes = vec![int("axis", argmax.axis as i64), int("keepdims", 0)];
                let name = self.node("ArgMax", &[&x], attributes);
                self.set(out, name);
            }
            Op::Cumulative(run) if run.kind == CumulativeKind::Sum => {
                let x = self.plain(node.inputs[0])?;
                let axis = self.initializer("axis", &Constant::int(run.axis as i64));
                let flags = vec![int("exclusive", run.exclusive.into()), int("reverse", run.reverse.into())];
                let name = self.node("CumSum", &[&x, &axis], flags);
                self.set(out, name);
            }
            Op::ArgSort(sort) => {
                let x = self.plain(node.inputs[0])?;
                let k = self.list(&[self.ty(out).shape[sort.axis] as i64]);
                let flags = vec![int("axis", sort.axis as i64), int("largest", sort.descending.into())];
                let places = self.node_of("TopK", &[&x, &k], 2, flags).swap_remove(1);
                let name = if sort.dtype == DType::I64 { places } else { self.cast(&places, sort.dtype) };
                self.set(out, name);
            }
            Op::MatMul(matmul) => self.matmul(matmul, node)?,
            Op::Conv(conv) => {
                if conv.act.is_some() {
                    return refuse("it holds an activation");
                }
                let name = self.conv("Conv", &conv.frame, node, vec![])?;
                self.set_first(out, name);
            }
            Op::ConvGradInput(conv) => {
                let (x, w) = (self.ty(node.inputs[0]), self.ty(node.inputs[1]));
                let mut more = Vec::new();
                for i in 0..2 {
                    let ConvFrame { stride, pad, dilation, .. } = conv.frame;
                    let reach = (x.shape[i + 1] - 1) * stride[i] + dilation[i] * (w.shape[i] - 1) + 1;
                    match (conv.input[i] + pad[i].0 + pad[i].1).checked_sub(reach) {
                        Some(extra) => more.push(extra as i64),
                        None => return refuse("its result is smaller than its windows reach"),
                    }
                }
                let name =
                    self.conv("ConvTranspose", &conv.frame, node, vec![ints("output_padding", &more)])?;
                self.set_first(out, name);
            }
            Op::MaxPool(pool) => {
                let attributes = window(pool.window, pool.stride, pool.pad);
                let x = self.first(node.inputs[0])?;
                let name = self.node("MaxPool", &[&x], attributes);
                self.set_first(out, name);
            }
            Op::AvgPool(pool) => {
                let mut attributes = window(pool.window, pool.stride, pool.pad);
                attributes.push(int("count_include_pad", pool.count_pad.into()));
                let x = self.first(node.inputs[0])?;
                let name = self.node("AveragePool", &[&x], attributes);
                self.set_first(out, name);
            }
            Op::Resize(resize) => {
                let x = self.first(node.inputs[0])?;
                let sizes = self.list(&list(&resize.out));
                let (mode, how) = match (resize.mode, resize.align_corners) {
                    (ResizeMode::Nearest, _) => ("nearest", "asymmetric"),
                    (ResizeMode::Bilinear, true) => ("linear", "align_corners"),
                    (ResizeMode::Bilinear, false) => ("linear", "half_pixel"),
                };
                let attributes = vec![
                    text("mode", mode),
                    text("coordinate_transformation_mode", how),
                    text("nearest_mode", "floor"),
                    ints("axes", &[2, 3]),
                ];
                let name = self.node("Resize", &[&x, "", "", &sizes], attributes);
                self.set_first(out, name);
            }
            Op::Softmax(softmax) => self.along("Softmax", softmax.axis, node)?,
            Op::LogSoftmax(softmax) => self.along("LogSoftmax", softmax.axis, node)?,
            Op::LayerNorm(norm) => {
                let (x, scale, shift) = self.three(node)?;
                let attributes = vec![int("axis", -(norm.axes as i64)), float("epsilon", norm.eps.0)];
                let name = self.node("LayerNormalization", &[&x, &scale, &shift], attributes);
                self.set(out, name);
            }
            Op::RmsNorm(norm) => {
                let (x, scale) = (self.plain(node.inputs[0])?, self.plain(node.inputs[1])?);
                let (last, eps) = (self.list(&[-1]), self.scalar(dtype, norm.eps.0)?);
                let squares = self.node("Mul", &[&x, &x], vec![]);
                let mean = self.node("ReduceMean", &[&squares, &last], vec![int("keepdims", 1)]);
                let sum = self.node("Add", &[&mean, &eps], vec![]);
                let size = self.node("Sqrt", &[&sum], vec![]);
                let normed = self.node("Div", &[&x, &size], vec![]);
                let name = self.node("Mul", &[&normed, &scale], vec![]);
                self.set(out, name);
            }
            Op::GroupNorm(norm) if self.ty(out).shape.rank() == 4 => {
                let x = self.first(node.inputs[0])?;
                let (scale, shift) = (self.plain(node.inputs[1])?, self.plain(node.inputs[2])?);
                let attributes = vec![int("num_groups", norm.groups as i64), float("epsilon", norm.eps.0)];
                let name = self.node("GroupNormalization", &[&x, &scale, &shift], attributes);
                self.set_first(out, name);
            }
            Op::Gather(gather) => {
                let (x, at) = (self.plain(node.inputs[0])?, self.plain(node.inputs[1])?);
                let name = self.node("Gather", &[&x, &at], vec![int("axis", gather.axis as i64)]);
                self.set(out, name);
            }
            Op::TakeAlong(take) => {
                let (x, at) = (self.plain(node.inputs[0])?, self.plain(node.inputs[1])?);
                let name = self.node("GatherElements", &[&x, &at], vec![int("axis", take.axis as i64)]);
                self.set(out, name);
            }
            Op::OneHot(hot) => {
                let at = self.plain(node.inputs[0])?;
                let depth = self.list(&[hot.depth as i64]);
                let values = Tensor::from_f64(&[0.0, 1.0], Type::new(hot.dtype, [2]))?;
                let values = self.initializer("values", &Constant::of(&values)?);
                let name = self.node("OneHot", &[&at, &depth, &values], vec![int("axis", -1)]);
                self.set(out, name);
            }
            Op::Attention(attention) => self.attention(attention, node)?,
            Op::Lstm(_) => self.lstm(node, wanted)?,
            Op::Gru(_) => self.gru(node, wanted)?,
            _ => return refuse("there is no such op"),
        }
        Ok(())
    }

    fn three(&mut self, node: &Node) -> Result<(String, String, String)> {
        Ok((self.plain(node.inputs[0])?, self.plain(node.inputs[1])?, self.plain(node.inputs[2])?))
    }

    pub(super) fn cast(&mut self, x: &str, to: DType) -> String {
        self.node("Cast", &[x], vec![int("to", data_type_of(to) as i64)])
    }

    fn expanded(&mut self, x: &str, to: ValueId) -> Result<String> {
        let dims = self.dims(to)?;
        let shape = self.shape(&dims);
        Ok(self.node("Expand", &[x, &shape], vec![]))
    }

    fn iota(&mut self, iota: &ops::Iota, out: ValueId) -> Result<()> {
        let dims = self.dims(out)?;
        let Dim::Fixed(n) = dims[iota.axis] else { return refuse("it counts samples") };
        let counted: Vec<f64> = (0..n).map(|i| i as f64).collect();
        let mut shape = vec![1; dims.len()];
        shape[iota.axis] = n;
        let row = Tensor::from_f64(&counted, Type::new(iota.ty.dtype, &shape[..]))?;
        let row = self.initializer("places", &Constant::of(&row)?);
        let is_row = dims.iter().enumerate().all(|(i, dim)| i == iota.axis || *dim == Dim::Fixed(1));
        let name = if is_row { row } else { self.expanded(&row, out)? };
        self.set(out, name);
        Ok(())
    }

    fn slice(&mut self, slice: &ops::Slice, from: ValueId, out: ValueId) -> Result<()> {
        let (dims, shape) = (self.dims(from)?, self.ty(from).shape);
        let mut parts: Vec<[i64; 4]> = Vec::new();
        for (axis, part) in slice.0.iter().enumerate() {
            if part.start == 0 && part.stop == shape[axis] && part.step == 1 {
                continue;
            }
            if matches!(dims[axis], Dim::Batch(_)) {
                return refuse("it takes a part of the batch");
            }
            parts.push([axis as i64, part.start as i64, part.stop as i64, part.step as i64]);
        }
        let x = self.plain(from)?;
        let of = |i: usize| parts.iter().map(|part| part[i]).collect::<Vec<i64>>();
        let name = if parts.is_empty() {
            x
        } else {
            let [axes, starts, ends, steps] = [of(0), of(1), of(2), of(3)].map(|values| self.list(&values));
            self.node("Slice", &[&x, &starts, &ends, &axes, &steps], vec![])
        };
        self.set(out, name);
        Ok(())
    }

    fn reorder(&mut self, reorder: &ops::Reorder, from: ValueId, out: ValueId) -> Result<()> {
        if matches!(self.dims(from)?[reorder.axis], Dim::Batch(_)) {
            return refuse("it changes the order of samples");
        }
        let (x, n) = (self.plain(from)?, self.ty(from).shape[reorder.axis] as i64);
        let axis = self.list(&[reorder.axis as i64]);
        let mut part = |start: i64, end: i64, step: i64| {
            let (start, end, step) = (self.list(&[start]), self.list(&[end]), self.list(&[step]));
            self.node("Slice", &[&x, &start, &end, &axis, &step], vec![])
        };
        let name = match reorder.order {
            AxisOrder::Flip => part(-1, i64::MIN, -1),
            AxisOrder::Roll(shift) => {
                let cut = n - shift as i64;
                let (last, first) = (part(cut, n, 1), part(0, cut, 1));
                self.node("Concat", &[&last, &first], vec![int("axis", reorder.axis as i64)])
            }
        };
        self.set(out, name);
        Ok(())
    }

    fn reduce(&mut self, reduce: &ops::Reduce, from: ValueId, out: ValueId) -> Result<()> {
        let op = match reduce.kind {
            ReduceKind::Sum => "ReduceSum",
            ReduceKind::Mean => "ReduceMean",
            ReduceKind::Max => "ReduceMax",
            ReduceKind::Min => "ReduceMin",
            ReduceKind::Prod => "ReduceProd",
        };
        // Places of images, channels first or last alike.
        let in_first = self.has_first(from) && reduce.axes[..] == [1, 2];
        let (x, axes) = match in_first {
            true => (self.first(from)?, vec![2, 3]),
            false => (self.plain(from)?, list(&reduce.axes)),
        };
        let axes = self.list(&axes);
        let name = self.node(op, &[&x, &axes], vec![int("keepdims", reduce.keep.into())]);
        if in_first && reduce.keep {
            self.set_first(out, name)
        } else {
            self.set(out, name)
        }
        Ok(())
    }

    fn along(&mut self, op: &str, axis: usize, node: &Node) -> Result<()> {
        let x = self.plain(node.inputs[0])?;
        let name = self.node(op, &[&x], vec![int("axis", axis as i64)]);
        self.set(node.outputs[0], name);
        Ok(())
    }

    fn matmul(&mut self, matmul: &ops::MatMul, node: &Node) -> Result<()> {
        if matmul.act.is_some() {
            return refuse("it holds an activation");
        }
        let out = node.outputs[0];
        let (a, b) = (self.plain(node.inputs[0])?, self.plain(node.inputs[1])?);
        let rank = |id: ValueId| self.graph.ty(id).shape.rank();
        if rank(node.inputs[0]) == 2 && rank(node.inputs[1]) == 2 {
            let attributes = vec![int("transA", matmul.ta.into()), int("transB", matmul.tb.into())];
            let name = match matmul.bias {
                true => {
                    let bias = self.plain(node.inputs[2])?;
                    self.node("Gemm", &[&a, &b, &bias], attributes)
                }
                false => self.node("Gemm", &[&a, &b], attributes),
            };
            self.set(out, name);
            return Ok(());
        }
        let (ra, rb) = (rank(node.inputs[0]), rank(node.inputs[1]));
        let mut turned = |x: String, rank: usize, is_turned: bool| {
            if !is_turned {
                return x;
            }
            let mut order: Vec<i64> = (0..rank as i64).collect();
            order.swap(rank - 1, rank - 2);
            self.node("Transpose", &[&x], vec![ints("perm", &order)])
        };
        let (a, b) = (turned(a, ra, matmul.ta), turned(b, rb, matmul.tb));
        let mut name = self.node("MatMul", &[&a, &b], vec![]);
        if matmul.bias {
            let bias = self.plain(node.inputs[2])?;
            name = self.node("Add", &[&name, &bias], vec![]);
        }
        self.set(out, name);
        Ok(())
    }

    /// A convolution, or a transposed one, whose filter `[H, W, I, O]` is `[O, I, H, W]` in the file.
    fn conv(
        &mut self,
        op: &str,
        frame: &ConvFrame,
        node: &Node,
        more: Vec<crate::messages::AttributeProto>,
    ) -> Result<String> {
        let window = list(&self.ty(node.inputs[1]).shape[..2]);
        let x = self.first(node.inputs[0])?;
        let w = self.turned(node.inputs[1], &[3, 2, 0, 1])?;
        let mut inputs = vec![x, w];
        if let Some(&bias) = node.inputs.get(2) {
            inputs.push(self.plain(bias)?);
        }
        let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
        let mut attributes = vec![
            ints("kernel_shape", &window),
            ints("strides", &list(&frame.stride)),
            ints("pads", &pads(&frame.pad)),
            ints("dilations", &list(&frame.dilation)),
            int("group", frame.groups as i64),
        ];
        attributes.extend(more);
        Ok(self.node(op, &inputs, attributes))
    }

    /// softmax(scale q kᵀ + mask) v with heads behind time, which ONNX's products have in front.
    fn attention(&mut self, attention: &ops::Attention, node: &Node) -> Result<()> {
        let (q, k) = (self.ty(node.inputs[0]), self.ty(node.inputs[1]));
        let (tq, tk, heads, groups) = (q.shape[1], k.shape[1], q.shape[2], k.shape[2]);
        if heads != groups {
            return refuse("heads share keys");
        }
        if attention.hides_early() || attention.cap.is_some() {
            return refuse("attention has documents, a window or a cap");
        }
        let (q_name, k_name, v_name) = self.three(node)?;
        let front = ints("perm", &[0, 2, 1, 3]);
        let q_name = self.node("Transpose", &[&q_name], vec![front.clone()]);
        let k_name = self.node("Transpose", &[&k_name], vec![ints("perm", &[0, 2, 3, 1])]);
        let v_name = self.node("Transpose", &[&v_name], vec![front.clone()]);
        let scale = self.scalar(q.dtype, attention.scale.0)?;
        let scaled = self.node("Mul", &[&q_name, &scale], vec![]);
        let mut scores = self.node("MatMul", &[&scaled, &k_name], vec![]);
        if attention.mask {
            let mask = self.plain(node.inputs[3])?;
            scores = self.node("Add", &[&scores, &mask], vec![]);
        }
        if attention.causal {
            let seen: Vec<i64> = (0..tq as i64).map(|i| i + tk as i64 - tq as i64).collect();
            let row = Constant { ty: Type::new(DType::I64, [tq, 1]), ..Constant::ints(&seen) };
            let row = self.initializer("queries", &row);
            let column = self.list(&(0..tk as i64).collect::<Vec<_>>());
            let is_seen = self.node("LessOrEqual", &[&column, &row], vec![]);
            let hidden = self.scalar(q.dtype, f64::NEG_INFINITY)?;
            scores = self.node("Where", &[&is_seen, &scores, &hidden], vec![]);
        }
        let weights = self.node("Softmax", &[&scores], vec![int("axis", -1)]);
        let weighed = self.node("MatMul", &[&weights, &v_name], vec![]);
        let name = self.node("Transpose", &[&weighed], vec![front]);
        self.set(node.outputs[0], name);
        Ok(())
    }
}

fn window(
    window: [usize; 2],
    stride: [usize; 2],
    pad: [(usize, usize); 2],
) -> Vec<crate::messages::AttributeProto> {
    vec![ints("kernel_shape", &list(&window)), ints("strides", &list(&stride)), ints("pads", &pads(&pad))]
}
