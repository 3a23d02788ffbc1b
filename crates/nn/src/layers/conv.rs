//! Convolutional layers, channels last: images `[N, H, W, C]`, sequences `[N, L, C]`, volumes `[N, D, H, W, C]`.

use plimsoll_graph::{ConvGeometry, ConvOps, Padding, VolumeOps};
use plimsoll_run::{Result, Tensor};

use super::channels;
use crate::error::refuse;
use crate::{LayerKind, Net};

/// The shape of a convolutional layer: window and geometry.
///
/// ```
/// use plimsoll_nn::Conv2d;
/// let halving = Conv2d::new(64, 3).stride(2).pad(1).no_bias();
/// assert_eq!((halving.window, halving.geometry.stride), ([3, 3], [2, 2]));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conv<const AXES: usize> {
    /// Output channels.
    pub channels: usize,
    /// Window lengths.
    pub window: [usize; AXES],
    /// Stride, padding, dilation and groups.
    pub geometry: ConvGeometry<AXES>,
    /// Whether a bias is added.
    pub bias: bool,
}

/// A convolution of sequences.
pub type Conv1d = Conv<1>;
/// A convolution of images.
pub type Conv2d = Conv<2>;
/// A convolution of volumes.
pub type Conv3d = Conv<3>;

impl<const AXES: usize> Conv<AXES> {
    /// Windows of one length along every axis, stride 1, no padding, with bias.
    pub fn new(channels: usize, window: usize) -> Conv<AXES> {
        Conv { channels, window: [window; AXES], geometry: ConvGeometry::default(), bias: true }
    }

    /// With a stride along every axis.
    pub fn stride(mut self, stride: usize) -> Conv<AXES> {
        self.geometry.stride = [stride; AXES];
        self
    }

    /// With this many elements added on every side.
    pub fn pad(mut self, elements: usize) -> Conv<AXES> {
        self.geometry.pad = Padding::all(elements);
        self
    }

    /// With as much padding as gives ⌈length / stride⌉ windows.
    pub fn same(mut self) -> Conv<AXES> {
        self.geometry.pad = Padding::Same;
        self
    }

    /// With a dilation along every axis.
    pub fn dilation(mut self, dilation: usize) -> Conv<AXES> {
        self.geometry.dilation = [dilation; AXES];
        self
    }

    /// With the channels cut in groups, each convolved by itself.
    pub fn groups(mut self, groups: usize) -> Conv<AXES> {
        self.geometry.groups = groups;
        self
    }

    /// Without a bias: for layers before a norm.
    pub fn no_bias(mut self) -> Conv<AXES> {
        self.bias = false;
        self
    }

    /// The elements of a window.
    fn area(&self) -> usize {
        self.window.iter().product()
    }

    /// The channels that one filter reads, of `inputs` there are.
    #[track_caller]
    fn per_group(&self, inputs: usize) -> Result<usize> {
        let groups = self.geometry.groups;
        if groups == 0 || !inputs.is_multiple_of(groups) || !self.channels.is_multiple_of(groups) {
            let out = self.channels;
            return Err(refuse(format!("cuts {inputs} input and {out} output channels in {groups} groups")));
        }
        Ok(inputs / groups)
    }
}

impl Net {
    /// A convolution of images. Parameters: `weight` `[KH, KW, C / groups, channels]`, `bias`.
    #[track_caller]
    pub fn conv2d(&mut self, name: &str, x: &Tensor, conv: Conv2d) -> Result<Tensor> {
        let x = self.compute_in(name, x)?;
        let conv = Conv { channels: self.width_of(name, conv.channels), ..conv };
        let width = conv.per_group(channels(&x)?)?;
        let (fan_in, fan_out) = fans(width, &conv);
        let [kh, kw] = conv.window;
        let y = self.layer(name, |net| {
            let w = net.weight([kh, kw, width, conv.channels], fan_in, fan_out)?;
            let b = net.bias(conv.bias, conv.channels, fan_in)?;
            let (x, w) = net.rounded(&x, &w)?;
            x.conv2d(&w, b.as_ref(), conv.geometry)
        });
        self.note(name, LayerKind::Conv2d(conv), &[&x], y)
    }

    /// A convolution of sequences. Parameters: `weight` `[K, C / groups, channels]`, `bias`.
    #[track_caller]
    pub fn conv1d(&mut self, name: &str, x: &Tensor, conv: Conv1d) -> Result<Tensor> {
        self.refuse_padding("a convolution")?;
        let x = self.compute_in(name, x)?;
        let width = conv.per_group(channels(&x)?)?;
        let (fan_in, fan_out) = fans(width, &conv);
        let y = self.layer(name, |net| {
            let w = net.weight([conv.window[0], width, conv.channels], fan_in, fan_out)?;
            let b = net.bias(conv.bias, conv.channels, fan_in)?;
            x.conv1d(&w, b.as_ref(), conv.geometry)
        });
        self.note(name, LayerKind::Conv1d(conv), &[&x], y)
    }

    /// A convolution of volumes. Parameters: `weight` `[KD, KH, KW, C / groups, channels]`, `bias`.
    ///
    /// ```
    /// use plimsoll_graph::{DType, TensorOps, Type, VolumeOps};
    /// use plimsoll_nn::{Conv3d, Net, model};
    /// let scan = model(|net, x| net.conv3d("conv", &x[0], Conv3d::new(8, 3).same())?.max_pool3d([2; 3], [2; 3], Default::default()));
    /// let weight = &Net::discover(&[Type::new(DType::F32, [1, 8, 16, 16, 1])], &scan)?[0];
    /// assert_eq!((&weight.name[..], weight.ty.shape.to_string()), ("conv/weight", "[3, 3, 3, 1, 8]".into()));
    /// # Ok::<(), plimsoll_run::Error>(())
    /// ```
    #[track_caller]
    pub fn conv3d(&mut self, name: &str, x: &Tensor, conv: Conv3d) -> Result<Tensor> {
        let x = self.compute_in(name, x)?;
        let width = conv.per_group(channels(&x)?)?;
        let (fan_in, fan_out) = fans(width, &conv);
        let [kd, kh, kw] = conv.window;
        self.layer(name, |net| {
            let w = net.weight([kd, kh, kw, width, conv.channels], fan_in, fan_out)?;
            let b = net.bias(conv.bias, conv.channels, fan_in)?;
            x.conv3d(&w, b.as_ref(), conv.geometry)
        })
    }

    /// Every channel convolved by itself; `conv.channels` is a multiple of the input's. Parameters: `weight`
    /// `[KH, KW, 1, channels]`, `bias`.
    #[track_caller]
    pub fn depthwise_conv2d(&mut self, name: &str, x: &Tensor, conv: Conv2d) -> Result<Tensor> {
        let groups = channels(x)?;
        self.conv2d(name, x, conv.groups(groups))
    }

    /// A depthwise convolution without bias, then a 1 × 1 convolution to `conv.channels`. Parameters: those of the
    /// layers `depthwise` and `pointwise`.
    #[track_caller]
    pub fn separable_conv2d(&mut self, name: &str, x: &Tensor, conv: Conv2d) -> Result<Tensor> {
        let width = channels(x)?;
        self.layer(name, |net| {
            let each = Conv { channels: width, bias: false, ..conv };
            let y = net.depthwise_conv2d("depthwise", x, each)?;
            net.conv2d("pointwise", &y, Conv { bias: conv.bias, ..Conv2d::new(conv.channels, 1) })
        })
    }

    /// A transposed convolution: images grow by the stride. Parameters: `weight` `[KH, KW, channels / groups, C]`,
    /// `bias`.
    #[track_caller]
    pub fn conv_transpose2d(&mut self, name: &str, x: &Tensor, conv: Conv2d) -> Result<Tensor> {
        let x = self.compute_in(name, x)?;
        let width = channels(&x)?;
        conv.per_group(width)?;
        let per_group = conv.channels / conv.geometry.groups.max(1);
        // The fans as PyTorch counts them: those of the convolution of which this is the transpose.
        let (fan_in, fan_out) = (per_group * conv.area(), width * conv.area());
        let [kh, kw] = conv.window;
        let y = self.layer(name, |net| {
            let w = net.weight([kh, kw, per_group, width], fan_in, fan_out)?;
            let b = net.bias(conv.bias, conv.channels, fan_in)?;
            x.conv_transpose2d(&w, b.as_ref(), conv.geometry, [0, 0])
        });
        self.note(name, LayerKind::ConvTranspose2d(conv), &[&x], y)
    }
}

fn fans<const AXES: usize>(width: usize, conv: &Conv<AXES>) -> (usize, usize) {
    (width * conv.area(), conv.channels / conv.geometry.groups.max(1) * conv.area())
}
