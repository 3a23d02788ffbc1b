//! Convolutions, pooling and resizing: explicit padding becomes SAME or VALID, or an op of its own.

use plimsoll_graph::ops::{self, ConvFrame, ResizeMode};
use plimsoll_graph::{Node, TensorOps, ValueId};

use super::emit::Emitter;
use crate::error::{Result, refuse};
use crate::lite_model::ElementType;
use crate::ops::OpCode;
use crate::options::{Fused, Options, Padding};

/// What SAME pads an axis with: as much as gives ⌈length / stride⌉ windows, an odd element at the end.
pub(crate) fn same(length: usize, window: usize, stride: usize, dilation: usize) -> (usize, usize) {
    let reach = (window - 1) * dilation + 1;
    let all = ((length.div_ceil(stride) - 1) * stride + reach).saturating_sub(length);
    (all / 2, all - all / 2)
}

/// The padding that does what explicit padding does; none where an op of its own must.
fn padding(
    size: &[usize],
    window: [usize; 2],
    stride: [usize; 2],
    dilation: [usize; 2],
    pad: [(usize, usize); 2],
) -> Option<Padding> {
    let of = |axis: usize| same(size[axis], window[axis], stride[axis], dilation[axis]);
    match pad {
        [(0, 0), (0, 0)] => Some(Padding::Valid),
        _ if size.iter().all(|&n| n > 0) && pad == [of(0), of(1)] => Some(Padding::Same),
        _ => None,
    }
}

impl Emitter<'_> {
    /// Images with as much around them that windows lie inside.
    fn framed(&mut self, x: usize, pad: [(usize, usize); 2], value: f64) -> Result<usize> {
        self.pad(x, &[(0, 0), pad[0], pad[1], (0, 0)], value)
    }

    /// A filter with its axes in another order: stored so, or turned when the model runs.
    fn filter(&mut self, id: ValueId, order: &[usize]) -> Result<usize> {
        match self.known(id).cloned() {
            Some(known) => {
                let name = self.known_name(id);
                self.constant(&name, &known.transpose(order)?)
            }
            None => {
                let plain = self.value(id)?;
                Ok(self.transpose(plain, order))
            }
        }
    }

    /// A bias that is there, as stored.
    fn bias(&mut self, node: &Node, channels: usize) -> Result<usize> {
        match node.inputs.get(2) {
            Some(&bias) => self.value(bias),
            // Runtimes differ in whether it may be left out.
            None => Ok(self.floats("zeros", &vec![0.0; channels], &[channels])),
        }
    }

    pub(super) fn conv(&mut self, conv: &ops::Conv, node: &Node) -> Result<usize> {
        if conv.act.is_some() {
            return refuse("it holds an activation");
        }
        let ConvFrame { stride, pad, dilation, groups } = conv.frame;
        let filter = self.graph.ty(node.inputs[1]).shape.to_vec();
        let mut x = self.value(node.inputs[0])?;
        let window = [filter[0], filter[1]];
        let padding = match padding(&self.shape(x)[1..3], window, stride, dilation, pad) {
            Some(padding) => padding,
            None => {
                x = self.framed(x, pad, 0.0)?;
                Padding::Valid
            }
        };
        let shape = self.graph.ty(node.outputs[0]).shape.to_vec();
        let bias = self.bias(node, filter[3])?;
        let is_depthwise = groups > 1 && filter[2] == 1 && groups == self.shape(x)[3];
        if is_depthwise {
            // [H, W, 1, O] as [1, H, W, O].
            let w = self.filter(node.inputs[1], &[2, 0, 1, 3])?;
            let multiplier = filter[3] / groups;
            let options = Options::Depthwise { padding, stride, dilation, multiplier, fused: Fused::None };
            return Ok(self.add(OpCode::DepthwiseConv2d, &[x, w, bias], ElementType::F32, &shape, options));
        }
        let w = self.filter(node.inputs[1], &[3, 0, 1, 2])?;
        let options = Options::Conv { padding, stride, dilation, fused: Fused::None };
        Ok(self.add(OpCode::Conv2d, &[x, w, bias], ElementType::F32, &shape, options))
    }

    pub(super) fn conv_transpose(&mut self, conv: &ops::ConvGradInput, node: &Node) -> Result<usize> {
        let ConvFrame { stride, pad, dilation, groups } = conv.frame;
        if groups != 1 || dilation != [1, 1] {
            return refuse("transposed convolutions have no groups and no dilation there");
        }
        let filter = self.graph.ty(node.inputs[1]).shape.to_vec();
        let x = self.value(node.inputs[0])?;
        let w = self.filter(node.inputs[1], &[2, 0, 1, 3])?;
        let bias = self.bias(node, filter[2])?;
        let shape = self.graph.ty(node.outputs[0]).shape.to_vec();
        let window = [filter[0], filter[1]];
        let (padding, whole) = match padding(&conv.input, window, stride, dilation, pad) {
            Some(padding) => (padding, shape.clone()),
            // All that the windows reach, of which the middle is cut out.
            None => {
                let mut whole = shape.clone();
                whole[1] += pad[0].0 + pad[0].1;
                whole[2] += pad[1].0 + pad[1].1;
                (Padding::Valid, whole)
            }
        };
        let lengths = self.list(&whole.iter().map(|&n| n as i32).collect::<Vec<_>>());
        let options = Options::TransposeConv { padding, stride };
        let made = self.add(OpCode::TransposeConv, &[lengths, w, x, bias], ElementType::F32, &whole, options);
        if whole == shape {
            return Ok(made);
        }
        let inside = |axis: usize| (pad[axis - 1].0, pad[axis - 1].0 + shape[axis]);
        Ok(self.slice(made, &[(0, shape[0]), inside(1), inside(2), (0, shape[3])]))
    }

    pub(super) fn max_pool(&mut self, pool: &ops::MaxPool, node: &Node) -> Result<usize> {
        let mut x = self.value(node.inputs[0])?;
        let padding = match padding(&self.shape(x)[1..3], pool.window, pool.stride, [1, 1], pool.pad) {
            Some(padding) => padding,
            None => {
                x = self.framed(x, pool.pad, f64::from(f32::MIN))?;
                Padding::Valid
            }
        };
        Ok(self.pooled(OpCode::MaxPool2d, x, padding, pool.window, pool.stride, node))
    }

    pub(super) fn avg_pool(&mut self, pool: &ops::AvgPool, node: &Node) -> Result<usize> {
        let mut x = self.value(node.inputs[0])?;
        let size = self.shape(x)[1..3].to_vec();
        let found = padding(&size, pool.window, pool.stride, [1, 1], pool.pad);
        // SAME leaves out what is padded.
        let found = found.filter(|found| *found == Padding::Valid || !pool.count_pad);
        if let Some(padding) = found {
            return Ok(self.pooled(OpCode::AveragePool2d, x, padding, pool.window, pool.stride, node));
        }
        x = self.framed(x, pool.pad, 0.0)?;
        let made = self.pooled(OpCode::AveragePool2d, x, Padding::Valid, pool.window, pool.stride, node);
        if pool.count_pad {
            return Ok(made);
        }
        // Means of all places become means of those inside.
        let out = self.shape(made).to_vec();
        let inside = |axis: usize, i: usize| {
            let (start, pad) = (i * pool.stride[axis], pool.pad[axis].0);
            let (low, high) = (start.max(pad), (start + pool.window[axis]).min(pad + size[axis]));
            high.saturating_sub(low).max(1) as f32 / pool.window[axis] as f32
        };
        let shares: Vec<f32> = (0..out[1])
            .flat_map(|i| (0..out[2]).map(move |j| (i, j)))
            .map(|(i, j)| 1.0 / (inside(0, i) * inside(1, j)))
            .collect();
        let shares = self.floats("shares", &shares, &[1, out[1], out[2], 1]);
        self.binary(OpCode::Mul, made, shares)
    }

    fn pooled(
        &mut self,
        code: OpCode,
        x: usize,
        padding: Padding,
        window: [usize; 2],
        stride: [usize; 2],
        node: &Node,
    ) -> usize {
        let shape = self.graph.ty(node.outputs[0]).shape.to_vec();
        let options = Options::Pool { padding, stride, window, fused: Fused::None };
        self.add(code, &[x], ElementType::F32, &shape, options)
    }

    pub(super) fn resize(&mut self, resize: &ops::Resize, node: &Node) -> Result<usize> {
        let x = self.value(node.inputs[0])?;
        let shape = self.graph.ty(node.outputs[0]).shape.to_vec();
        let size = self.list(&resize.out.map(|n| n as i32));
        let align_corners = resize.align_corners;
        let (code, options) = match resize.mode {
            ResizeMode::Nearest => {
                if align_corners {
                    return refuse("it takes the nearest pixel with its corners aligned");
                }
                (OpCode::ResizeNearestNeighbor, Options::Nearest { align_corners, half_pixel: false })
            }
            ResizeMode::Bilinear => {
                (OpCode::ResizeBilinear, Options::Bilinear { align_corners, half_pixel: !align_corners })
            }
        };
        Ok(self.add(code, &[x, size], ElementType::F32, &shape, options))
    }
}
