//! Turns a convolution, or one of its two gradients, into a graph of one operation of cuDNN.

use cudarc::cudnn::sys;
use plimsoll_graph::DType;
use sys::cudnnBackendAttributeName_t as Name;
use sys::cudnnBackendDescriptorType_t as Kind;

use super::case::{Tensor, Where, data_type};
use super::descriptor::Descriptor;
use super::engine::Graph;
use crate::error::Error;

/// The numbers of x, w and y, or of their gradients, in the graph.
pub(crate) const OPERANDS: [i64; 3] = [1, 2, 3];

/// What is computed of x ∗ w = y.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Wanted {
    /// y of x and w.
    Output,
    /// The gradient at x, of w and y's.
    Input,
    /// The gradient at w, of x and y's.
    Filter,
}

/// What a convolution, as x ∗ w = y, is about; images are channels last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Shape {
    pub images: usize,
    pub size: [usize; 2],
    pub channels: usize,
    pub out: [usize; 2],
    pub filters: usize,
    pub window: [usize; 2],
    pub stride: [usize; 2],
    pub pad: [(usize, usize); 2],
    pub dilation: [usize; 2],
    pub groups: usize,
}

impl Shape {
    /// Whether padding by the same on both sides gives an output of this size: then what is read is the same too.
    fn is_symmetric(&self) -> bool {
        (0..2).all(|i| {
            let reach = self.dilation[i] * (self.window[i].max(1) - 1) + 1;
            let padded = self.size[i] + 2 * self.pad[i].0;
            padded >= reach && (padded - reach) / self.stride[i].max(1) + 1 == self.out[i]
        })
    }
}

/// The names of an operation's attributes: the convolution, x, w, y, and the factors of the result and of what was there.
struct Names([Name; 6]);

impl Wanted {
    fn operation(self) -> (Kind, Names) {
        match self {
            Wanted::Output => (
                Kind::CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                Names([
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
                ]),
            ),
            Wanted::Input => (
                Kind::CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                Names([
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA,
                ]),
            ),
            Wanted::Filter => (
                Kind::CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                Names([
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                    Name::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
                ]),
            ),
        }
    }
}

impl Shape {
    /// Elements of x, w and y together.
    pub(super) fn elements(&self) -> usize {
        let [x, y] = [(self.size, self.channels), (self.out, self.filters)];
        let images = |(size, depth): ([usize; 2], usize)| self.images * size[0] * size[1] * depth;
        images(x) + images(y) + self.filters * self.window[0] * self.window[1] * self.channels
    }

    /// The graph; none where cuDNN does not know the type.
    pub(super) fn graph(
        &self,
        handle: sys::cudnnHandle_t,
        wanted: Wanted,
        dtype: DType,
    ) -> Option<Result<Graph, Error>> {
        let data = data_type(dtype)?;
        Some(self.graph_of(handle, wanted, data))
    }

    fn graph_of(
        &self,
        handle: sys::cudnnHandle_t,
        wanted: Wanted,
        data: sys::cudnnDataType_t,
    ) -> Result<Graph, Error> {
        // Channels last, whatever the order in which cuDNN names the sizes.
        let images = |id: i64, [n, c, h, w]: [usize; 4]| {
            Tensor { id, data, sizes: [n, c, h, w], strides: [h * w * c, 1, w * c, c], at: Where::Device }
                .description()
        };
        let depth = self.channels / self.groups.max(1);
        let [x, w, y] = OPERANDS;
        let x = images(x, [self.images, self.channels, self.size[0], self.size[1]])?;
        let w = images(w, [self.filters, depth, self.window[0], self.window[1]])?;
        let y = images(y, [self.images, self.filters, self.out[0], self.out[1]])?;
        let pair = |a: [usize; 2]| a.map(|n| n as i64);
        let low = self.pad.map(|(low, _)| low);
        let high = if self.is_symmetric() { low } else { self.pad.map(|(_, high)| high) };
        let conv = Descriptor::new(Kind::CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR)?
            .with(Name::CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, 2i64)?
            .with(Name::CUDNN_ATTR_CONVOLUTION_COMP_TYPE, sys::cudnnDataType_t::CUDNN_DATA_FLOAT)?
            .with(
                Name::CUDNN_ATTR_CONVOLUTION_CONV_MODE,
                sys::cudnnConvolutionMode_t::CUDNN_CROSS_CORRELATION,
            )?
            .with_all(Name::CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, &pair(low))?
            .with_all(Name::CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, &pair(high))?
            .with_all(Name::CUDNN_ATTR_CONVOLUTION_DILATIONS, &pair(self.dilation))?
            .with_all(Name::CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, &pair(self.stride))?
            .finish()?;
        let (kind, Names([of, at_x, at_w, at_y, alpha, beta])) = wanted.operation();
        let operation = Descriptor::new(kind)?
            .naming(of, &[&conv])?
            .naming(at_x, &[&x])?
            .naming(at_w, &[&w])?
            .naming(at_y, &[&y])?
            .with(alpha, 1.0f32)?
            .with(beta, 0.0f32)?
            .finish()?;
        Graph::new(handle, vec![operation], vec![conv, x, w, y])
    }
}

#[cfg(test)]
impl Shape {
    /// An image of 8 × 8 pixels and 3 channels, 4 filters of 3 × 3, padded to the same size.
    pub(crate) const EXAMPLE: Shape = Shape {
        images: 1,
        size: [8, 8],
        channels: 3,
        out: [8, 8],
        filters: 4,
        window: [3, 3],
        stride: [1, 1],
        pad: [(1, 1); 2],
        dilation: [1, 1],
        groups: 1,
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_on_one_side_counts_as_both_where_it_reads_the_same() {
        let plain = Shape::EXAMPLE;
        assert!(plain.is_symmetric());
        // A stride of two never reaches the last column of padding.
        assert!(Shape { stride: [2, 2], out: [4, 4], ..plain }.is_symmetric());
        assert!(!Shape { pad: [(0, 1); 2], stride: [2, 2], out: [4, 4], ..plain }.is_symmetric());
        assert!(!Shape { pad: [(0, 2); 2], ..plain }.is_symmetric());
    }
}
