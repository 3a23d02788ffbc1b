//! Convolutions of sequences, images and volumes, channels last, whatever the number of axes.

use plimsoll_graph::{ConvGeometry, ConvOps, Padding, TensorOps, VolumeOps};
use plimsoll_run::{Result, Tensor};

use crate::error::refuse;

/// How a filter slides: one entry for each axis between samples and channels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sliding {
    /// Elements from one window to the next.
    pub stride: Vec<usize>,
    /// Elements added before and after.
    pub pad: Vec<(usize, usize)>,
    /// Elements from one element of a window to the next.
    pub dilation: Vec<usize>,
    /// Parts that the channels are cut into, each convolved by itself.
    pub groups: usize,
}

impl Sliding {
    /// Stride and dilation 1, no padding, one group.
    pub fn plain(axes: usize) -> Sliding {
        Sliding { stride: vec![1; axes], pad: vec![(0, 0); axes], dilation: vec![1; axes], groups: 1 }
    }

    fn geometry<const N: usize>(&self) -> Result<ConvGeometry<N>> {
        let wrong = || {
            refuse(format!(
                "slides over {N} axes with {} strides, {} paddings and {} dilations",
                self.stride.len(),
                self.pad.len(),
                self.dilation.len()
            ))
        };
        Ok(ConvGeometry {
            stride: self.stride[..].try_into().map_err(|_| wrong())?,
            pad: Padding::Explicit(self.pad[..].try_into().map_err(|_| wrong())?),
            dilation: self.dilation[..].try_into().map_err(|_| wrong())?,
            groups: self.groups,
        })
    }
}

/// What a convolution gives for `x` `[N, .., CI]`, a filter `[.., CI / groups, CO]` and a bias `[CO]`, over one, two or three axes.
///
/// ```
/// use plimsoll_graph::TensorOps;
/// use plimsoll_nn::blocks::conv::{Sliding, conv};
/// use plimsoll_run::Tensor;
/// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [1, 4, 1])?;
/// let w = Tensor::from_slice(&[1.0f32, 1.0], [2, 1, 1])?;
/// assert_eq!(conv(&x, &w, None, &Sliding::plain(1))?.to_vec::<f32>()?, [3.0, 5.0, 7.0]);
/// # Ok::<(), plimsoll_run::Error>(())
/// ```
#[track_caller]
pub fn conv(x: &Tensor, w: &Tensor, bias: Option<&Tensor>, sliding: &Sliding) -> Result<Tensor> {
    match x.shape().rank() {
        3 => x.conv1d(w, bias, sliding.geometry()?),
        4 => x.conv2d(w, bias, sliding.geometry()?),
        5 => x.conv3d(w, bias, sliding.geometry()?),
        rank => Err(refuse(format!(
            "convolves a tensor of {rank} axes; it takes samples, 1 to 3 axes and channels"
        ))),
    }
}

/// The transposed convolution: `x` `[N, .., CI]`, the filter `[.., CO / groups, CI]` of the convolution whose gradient it is, a bias
/// `[CO]`. `more` elements are added to the end of each axis of the result.
#[track_caller]
pub fn conv_transpose(
    x: &Tensor,
    w: &Tensor,
    bias: Option<&Tensor>,
    sliding: &Sliding,
    more: &[usize],
) -> Result<Tensor> {
    let wrong = || refuse(format!("adds {} lengths to the result of a transposed convolution", more.len()));
    match (x.shape().rank(), w.shape().rank()) {
        (3, 3) => {
            let wide = Sliding {
                stride: [&[1], &sliding.stride[..]].concat(),
                pad: [&[(0, 0)], &sliding.pad[..]].concat(),
                dilation: [&[1], &sliding.dilation[..]].concat(),
                groups: sliding.groups,
            };
            let &[more] = more else { return Err(wrong()) };
            let (x, w) = (widened(x, 1)?, widened(w, 0)?);
            let y = x.conv_transpose2d(&w, bias, wide.geometry()?, [0, more])?;
            let s = y.shape();
            y.reshape([s[0], s[2], s[3]])
        }
        (4, 4) => x.conv_transpose2d(w, bias, sliding.geometry()?, more.try_into().map_err(|_| wrong())?),
        (5, 5) => x.conv_transpose3d(w, bias, sliding.geometry()?, more.try_into().map_err(|_| wrong())?),
        (rank, own) => Err(refuse(format!(
            "convolves a tensor of {rank} axes with a filter of {own}; both have 1 to 3 axes beside two others"
        ))),
    }
}

/// With an axis of length 1 at a place.
fn widened(x: &Tensor, at: usize) -> Result<Tensor> {
    let mut shape = x.shape().to_vec();
    shape.insert(at, 1);
    x.reshape(shape)
}
