//! What each op means, in the engine's.

use plimsoll_graph::ops::{Conv, ConvFrame, ConvGradInput, ReduceKind, ResizeMode};
use plimsoll_graph::{
    CumulativeOps, DType, GatherOps, PoolOps, ReorderOps, ResizeOps, Site, SoftmaxOps, SortOps, TensorOps,
    ops,
};
use plimsoll_run::Tensor;

use crate::error::{Result, refuse};
use crate::export::same;
use crate::lite_model::{LiteModel, LiteOp};
use crate::ops::OpCode;
use crate::options::{Fused, Options, Padding};
use crate::values::integers;

/// An op with the values of its operands.
pub(super) struct Call<'a> {
    pub model: &'a LiteModel,
    pub op: &'a LiteOp,
    pub values: &'a [Option<Tensor>],
}

impl Call<'_> {
    fn place(&self, i: usize) -> Result<usize> {
        match self.op.inputs.get(i).copied().flatten() {
            Some(at) => Ok(at),
            None => refuse(format!("whose operand {i} is left out")),
        }
    }

    fn input(&self, i: usize) -> Result<&Tensor> {
        match &self.values[self.place(i)?] {
            Some(value) => Ok(value),
            None => refuse("which reads what is not there"),
        }
    }

    fn optional(&self, i: usize) -> Option<&Tensor> {
        let at = self.op.inputs.get(i).copied().flatten()?;
        self.values[at].as_ref()
    }

    /// Whole numbers that are stored.
    fn list(&self, i: usize) -> Result<Vec<i64>> {
        integers(&self.model.tensors[self.place(i)?])
    }

    fn sizes(&self, i: usize) -> Result<Vec<usize>> {
        let of = |n: i64| match usize::try_from(n) {
            Ok(n) => Ok(n),
            Err(_) => refuse(format!("with a size of {n}")),
        };
        self.list(i)?.into_iter().map(of).collect()
    }

    fn axis(axis: i64, rank: usize) -> Result<usize> {
        let from_first = if axis < 0 { axis + rank as i64 } else { axis };
        match usize::try_from(from_first) {
            Ok(axis) if axis < rank => Ok(axis),
            _ => refuse(format!("along axis {axis} of {rank}")),
        }
    }

    fn axes(&self, i: usize, rank: usize) -> Result<Vec<usize>> {
        self.list(i)?.into_iter().map(|axis| Call::axis(axis, rank)).collect()
    }

    fn single_axis(&self, i: usize, rank: usize) -> Result<usize> {
        match self.axes(i, rank)?[..] {
            [axis] => Ok(axis),
            _ => refuse("whose axis is no one number"),
        }
    }

    /// The shape that the file says the result has.
    fn out_shape(&self) -> &[usize] {
        self.op.outputs.first().map_or(&[], |&at| &self.model.tensors[at].shape)
    }

    pub(super) fn run(&self) -> Result<Vec<Tensor>> {
        let made = match self.op.code {
            OpCode::Split => {
                let x = self.input(1)?;
                let axis = self.single_axis(0, x.shape().rank())?;
                let n = self.op.outputs.len().max(1);
                return Ok(x.split(axis as isize, &vec![x.shape()[axis] / n; n])?.into_vec());
            }
            OpCode::SplitV => {
                let x = self.input(0)?;
                let axis = self.single_axis(2, x.shape().rank())?;
                return Ok(x.split(axis as isize, &self.sizes(1)?)?.into_vec());
            }
            OpCode::TopK => {
                let [k] = self.sizes(1)?[..] else { return refuse("whose number is no one number") };
                let (values, places) = self.input(0)?.top_k(k, -1, true)?;
                return Ok(vec![values, places.cast(DType::I32)?]);
            }
            _ => self.single()?,
        };
        let made = match self.op.options.fused().unwrap_or_default() {
            Fused::None => made,
            Fused::Relu => made.relu()?,
            Fused::ReluN1To1 => made.clamp(-1.0, 1.0)?,
            Fused::Relu6 => made.clamp(0.0, 6.0)?,
        };
        Ok(vec![made])
    }

    fn single(&self) -> Result<Tensor> {
        use OpCode as C;
        let x = self.input(0)?;
        let rank = x.shape().rank();
        Ok(match (self.op.code, &self.op.options) {
            (C::Add, _) => x.add(self.input(1)?)?,
            (C::Sub, _) => x.sub(self.input(1)?)?,
            (C::Mul, _) => x.mul(self.input(1)?)?,
            (C::Div, _) => x.div(self.input(1)?)?,
            (C::Pow, _) => x.pow(self.input(1)?)?,
            (C::Maximum, _) => x.maximum(self.input(1)?)?,
            (C::Minimum, _) => x.minimum(self.input(1)?)?,
            (C::SquaredDifference, _) => x.sub(self.input(1)?)?.square()?,
            (C::LogicalAnd, _) => x.emit_one(ops::Binary::And, &[x, self.input(1)?], Site::here())?,
            (C::LogicalOr, _) => x.emit_one(ops::Binary::Or, &[x, self.input(1)?], Site::here())?,
            (C::Equal, _) => self.compared(ops::Compare::Eq)?,
            (C::NotEqual, _) => self.compared(ops::Compare::Ne)?,
            (C::Less, _) => self.compared(ops::Compare::Lt)?,
            (C::LessEqual, _) => self.compared(ops::Compare::Le)?,
            (C::Greater, _) => self.compared(ops::Compare::Gt)?,
            (C::GreaterEqual, _) => self.compared(ops::Compare::Ge)?,
            (C::Select, _) => x.select(self.input(1)?, self.input(2)?)?,
            (C::Neg, _) => self.function(ops::Unary::Neg)?,
            (C::Abs, _) => self.function(ops::Unary::Abs)?,
            (C::Sign, _) => self.function(ops::Unary::Sign)?,
            (C::Floor, _) => self.function(ops::Unary::Floor)?,
            (C::Exp, _) => self.function(ops::Unary::Exp)?,
            (C::Log, _) => self.function(ops::Unary::Log)?,
            (C::Sqrt, _) => self.function(ops::Unary::Sqrt)?,
            (C::Rsqrt, _) => self.function(ops::Unary::Rsqrt)?,
            (C::Square, _) => self.function(ops::Unary::Square)?,
            (C::Sin, _) => self.function(ops::Unary::Sin)?,
            (C::Cos, _) => self.function(ops::Unary::Cos)?,
            (C::Tanh, _) => self.function(ops::Unary::Tanh)?,
            (C::Logistic, _) => self.function(ops::Unary::Sigmoid)?,
            (C::Relu, _) => self.function(ops::Unary::Relu)?,
            (C::Relu6, _) => x.clamp(0.0, 6.0)?,
            (C::ReluN1To1, _) => x.clamp(-1.0, 1.0)?,
            (C::LogicalNot, _) => self.function(ops::Unary::Not)?,
            (C::Gelu, Options::Gelu { approximate: true }) => self.function(ops::Unary::GeluTanh)?,
            (C::Gelu, _) => self.function(ops::Unary::Gelu)?,
            (C::LeakyRelu, Options::LeakyRelu { slope }) => {
                self.function(ops::Unary::LeakyRelu(plimsoll_graph::Scalar(f64::from(*slope))))?
            }
            // The numbers that quantized tensors stand for are what is held of them.
            (C::Quantize | C::Dequantize, _) => x.clone(),
            (C::Cast, Options::Cast { to, .. }) => x.cast(to.dtype())?,
            (C::Reshape, _) => x.reshape(self.out_shape())?,
            (C::BroadcastTo, _) => x.broadcast(&self.sizes(1)?[..])?,
            (C::Transpose, _) => x.transpose(&self.axes(1, rank)?)?,
            (C::Slice, _) => {
                let begins = self.sizes(1)?;
                let sizes = self.sizes(2)?;
                let ranges = |(i, (&begin, &size)): (usize, (&usize, &usize))| {
                    (i, begin, begin.saturating_add(size), 1)
                };
                x.slice(&begins.iter().zip(&sizes).enumerate().map(ranges).collect::<Vec<_>>())?
            }
            (C::StridedSlice, _) => {
                let (begins, ends, steps) = (self.sizes(1)?, self.sizes(2)?, self.sizes(3)?);
                let ranges: Vec<_> = (0..rank.min(begins.len()).min(ends.len()).min(steps.len()))
                    .map(|i| (i, begins[i], ends[i], steps[i]))
                    .collect();
                x.slice(&ranges)?
            }
            (C::Pad | C::PadV2, _) => {
                let around: Vec<(usize, usize)> =
                    self.sizes(1)?.as_chunks::<2>().0.iter().map(|&[low, high]| (low, high)).collect();
                let value = if self.op.code == C::PadV2 { self.input(2)?.to_f64()? } else { vec![0.0] };
                x.pad(&around, value.first().copied().unwrap_or(0.0))?
            }
            (C::Concatenation, Options::Concatenation { axis }) => {
                let parts = (0..self.op.inputs.len()).map(|i| self.input(i)).collect::<Result<Vec<_>>>()?;
                Tensor::concat(&parts, *axis as isize)?
            }
            (C::Reverse, _) => {
                let axes: Vec<isize> = self.axes(1, rank)?.into_iter().map(|axis| axis as isize).collect();
                x.flip(&axes)?
            }
            (C::Sum, Options::Reduce { keeps_axes }) => x.sum(&self.axes(1, rank)?, *keeps_axes)?,
            (C::Mean, Options::Reduce { keeps_axes }) => x.mean(&self.axes(1, rank)?, *keeps_axes)?,
            (C::ReduceMax, Options::Reduce { keeps_axes }) => {
                x.reduce(ReduceKind::Max, &self.axes(1, rank)?, *keeps_axes)?
            }
            (C::ReduceMin, Options::Reduce { keeps_axes }) => {
                x.reduce(ReduceKind::Min, &self.axes(1, rank)?, *keeps_axes)?
            }
            (C::ReduceProd, Options::Reduce { keeps_axes }) => {
                x.reduce(ReduceKind::Prod, &self.axes(1, rank)?, *keeps_axes)?
            }
            (C::ArgMax, Options::ArgMax { output }) => {
                x.argmax(self.single_axis(1, rank)? as isize)?.cast(output.dtype())?
            }
            (C::CumSum, Options::CumSum { exclusive, reverse }) => {
                x.cumsum_with(self.single_axis(1, rank)? as isize, *exclusive, *reverse)?
            }
            (C::Gather, Options::Gather { axis, batch_axes: 0 }) => {
                x.gather(self.input(1)?, *axis as isize)?
            }
            (C::OneHot, Options::OneHot { axis: -1 }) => {
                let [depth] = self.sizes(1)?[..] else { return refuse("whose depth is no one number") };
                let (on, off) = (self.input(2)?, self.input(3)?);
                let hot = x.one_hot(depth, DType::Bool)?;
                hot.select(on, off)?
            }
            (C::Softmax, Options::Softmax { beta }) => x.mul_scalar(f64::from(*beta))?.softmax(-1)?,
            (C::LogSoftmax, _) => x.log_softmax(-1)?,
            (C::FullyConnected, _) => {
                let w = self.input(1)?;
                let Some(&width) = w.shape().get(1) else { return refuse("whose weights have no two axes") };
                let rows = x.reshape([x.ty().elements() / width.max(1), width])?;
                rows.matmul_with(w, self.optional(2), false, true)?.reshape(self.out_shape())?
            }
            (C::BatchMatMul, Options::BatchMatMul { turn_a, turn_b }) => {
                x.matmul_with(self.input(1)?, None, *turn_a, *turn_b)?
            }
            (C::Conv2d, Options::Conv { padding, stride, dilation, .. }) => {
                let w = self.input(1)?.transpose(&[1, 2, 3, 0])?;
                let groups = x.shape().get(3).copied().unwrap_or(0) / w.shape()[2].max(1);
                self.convolved(w, *padding, *stride, *dilation, groups)?
            }
            (C::DepthwiseConv2d, Options::Depthwise { padding, stride, dilation, .. }) => {
                let w = self.input(1)?.transpose(&[1, 2, 0, 3])?;
                let groups = x.shape().get(3).copied().unwrap_or(0);
                self.convolved(w, *padding, *stride, *dilation, groups)?
            }
            (C::TransposeConv, Options::TransposeConv { padding, stride }) => {
                let w = self.input(1)?.transpose(&[1, 2, 0, 3])?;
                let &[_, height, width, _] = &self.sizes(0)?[..] else {
                    return refuse("whose result has no four lengths");
                };
                let frame = frame(*padding, [height, width], &w, *stride, [1, 1], 1);
                let bias = self.optional(3);
                let op = ConvGradInput { frame, input: [height, width], bias: bias.is_some() };
                let inputs: Vec<&Tensor> = [self.input(2)?, &w].into_iter().chain(bias).collect();
                x.emit_one(op, &inputs, Site::here())?
            }
            (C::MaxPool2d, Options::Pool { padding, stride, window, .. }) => {
                x.max_pool2d(*window, *stride, pool_padding(*padding))?
            }
            (C::AveragePool2d, Options::Pool { padding, stride, window, .. }) => {
                x.avg_pool2d(*window, *stride, pool_padding(*padding), false)?
            }
            (C::ResizeNearestNeighbor, Options::Nearest { align_corners: false, half_pixel: false }) => {
                x.resize2d(self.new_size()?, ResizeMode::Nearest, false)?
            }
            (C::ResizeBilinear, Options::Bilinear { align_corners, half_pixel })
                if align_corners != half_pixel =>
            {
                x.resize2d(self.new_size()?, ResizeMode::Bilinear, *align_corners)?
            }
            _ => return refuse("whose options are not known here"),
        })
    }

    fn new_size(&self) -> Result<[usize; 2]> {
        match self.sizes(1)?[..] {
            [height, width] => Ok([height, width]),
            _ => refuse("whose size is no two numbers"),
        }
    }

    fn function(&self, f: ops::Unary) -> Result<Tensor> {
        let x = self.input(0)?;
        Ok(x.emit_one(f, &[x], Site::here())?)
    }

    fn compared(&self, f: ops::Compare) -> Result<Tensor> {
        let x = self.input(0)?;
        Ok(x.emit_one(f, &[x, self.input(1)?], Site::here())?)
    }

    fn convolved(
        &self,
        w: Tensor,
        padding: Padding,
        stride: [usize; 2],
        dilation: [usize; 2],
        groups: usize,
    ) -> Result<Tensor> {
        let x = self.input(0)?;
        let &[_, height, width, _] = &x.shape()[..] else { return refuse("whose images have no four axes") };
        let frame = frame(padding, [height, width], &w, stride, dilation, groups);
        let bias = self.optional(2);
        let inputs: Vec<&Tensor> = [x, &w].into_iter().chain(bias).collect();
        Ok(x.emit_one(Conv { frame, bias: bias.is_some(), act: None }, &inputs, Site::here())?)
    }
}

fn frame(
    padding: Padding,
    size: [usize; 2],
    w: &Tensor,
    stride: [usize; 2],
    dilation: [usize; 2],
    groups: usize,
) -> ConvFrame {
    let of = |axis: usize| match padding {
        Padding::Valid => (0, 0),
        Padding::Same => same(size[axis], w.shape()[axis], stride[axis], dilation[axis]),
    };
    ConvFrame { stride, pad: [of(0), of(1)], dilation, groups }
}

fn pool_padding(padding: Padding) -> plimsoll_graph::Padding {
    match padding {
        Padding::Same => plimsoll_graph::Padding::Same,
        Padding::Valid => plimsoll_graph::Padding::Valid,
    }
}
