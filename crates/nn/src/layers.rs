//! Layers as plain functions over a [`Net`]: each asks for its parameters and applies ops.

use plimsoll_graph::{
    AttentionOps, ConvGeometry, ConvOps, GatherOps, NormOps, Padding, RecurrentOps, TensorOps, Type,
};
use plimsoll_run::{Error, Result, Tensor};

use crate::{Init, Net};

/// The momentum with which running statistics follow the batch's, as PyTorch counts it.
const BATCH_NORM_MOMENTUM: f64 = 0.1;
const NORM_EPS: f64 = 1e-5;

/// The layers of a net. Each opens a scope of the given name for its parameters.
pub trait Layers {
    /// x w + b over the last axis.
    fn dense(&mut self, name: &str, x: &Tensor, units: usize, bias: bool) -> Result<Tensor>;

    /// A k × k convolution over images `[N, H, W, C]`.
    fn conv2d(&mut self, name: &str, x: &Tensor, conv: Conv2d) -> Result<Tensor>;

    /// A transposed convolution whose window is its stride: images grow by that factor.
    fn conv_up2d(&mut self, name: &str, x: &Tensor, channels: usize, factor: usize) -> Result<Tensor>;

    /// Batch norm over all axes but the last, with running statistics.
    fn batch_norm(&mut self, name: &str, x: &Tensor) -> Result<Tensor>;

    /// Layer norm over the last axis.
    fn layer_norm(&mut self, name: &str, x: &Tensor) -> Result<Tensor>;

    /// Rows of a table, by index.
    fn embedding(&mut self, name: &str, indices: &Tensor, rows: usize, width: usize) -> Result<Tensor>;

    /// A recurrent layer over `[B, T, C]`; gives every step's output.
    fn lstm(&mut self, name: &str, x: &Tensor, units: usize) -> Result<Tensor>;

    /// Causal self-attention over `[B, T, C]` with a number of heads.
    fn causal_attention(&mut self, name: &str, x: &Tensor, heads: usize) -> Result<Tensor>;
}

/// The shape of a convolutional layer.
#[derive(Clone, Copy, Debug)]
pub struct Conv2d {
    /// Output channels.
    pub channels: usize,
    /// Window length, both axes.
    pub window: usize,
    /// Stride, both axes.
    pub stride: usize,
    /// Padding on every side.
    pub pad: usize,
    /// Whether a bias is added.
    pub bias: bool,
}

impl Layers for Net {
    fn dense(&mut self, name: &str, x: &Tensor, units: usize, bias: bool) -> Result<Tensor> {
        let width = last(x)?;
        self.scope(name, |net| {
            let w = net.param("weight", [width, units], Init::fan_in(width))?;
            let b = if bias { Some(net.param("bias", [units], Init::fan_in(width))?) } else { None };
            x.matmul_with(&w, b.as_ref(), false, false)
        })
    }

    fn conv2d(&mut self, name: &str, x: &Tensor, conv: Conv2d) -> Result<Tensor> {
        let width = last(x)?;
        let Conv2d { channels, window, stride, pad, bias } = conv;
        let fan_in = width * window * window;
        self.scope(name, |net| {
            let w = net.param("weight", [window, window, width, channels], Init::fan_in(fan_in))?;
            let b = if bias { Some(net.param("bias", [channels], Init::fan_in(fan_in))?) } else { None };
            let geometry = ConvGeometry { stride: [stride; 2], pad: Padding::all(pad), ..Default::default() };
            x.conv2d(&w, b.as_ref(), geometry)
        })
    }

    fn conv_up2d(&mut self, name: &str, x: &Tensor, channels: usize, factor: usize) -> Result<Tensor> {
        let width = last(x)?;
        // As PyTorch counts the fan of a transposed convolution.
        let init = Init::fan_in(channels * factor * factor);
        self.scope(name, |net| {
            let w = net.param("weight", [factor, factor, channels, width], init)?;
            let b = net.param("bias", [channels], init)?;
            let geometry = ConvGeometry { stride: [factor; 2], ..Default::default() };
            x.conv_transpose2d(&w, Some(&b), geometry, [0, 0])
        })
    }

    fn batch_norm(&mut self, name: &str, x: &Tensor) -> Result<Tensor> {
        let width = last(x)?;
        let training = self.is_training();
        self.scope(name, |net| {
            let gamma = net.param("gamma", [width], Init::Constant(1.0))?;
            let beta = net.param("beta", [width], Init::Constant(0.0))?;
            let mean = net.state("mean", [width], Init::Constant(0.0))?;
            let var = net.state("var", [width], Init::Constant(1.0))?;
            if !training {
                return x.batch_norm_inference(&gamma, &beta, &mean, &var, NORM_EPS);
            }
            let (y, batch_mean, batch_var) = x.batch_norm(&gamma, &beta, NORM_EPS)?;
            // The running variance is kept unbiased, as PyTorch and Keras do.
            let n = (x.ty().elements() / width.max(1)) as f64;
            let unbiased = batch_var.mul_scalar(n / (n - 1.0).max(1.0))?;
            let follow = |old: &Tensor, new: &Tensor| {
                old.mul_scalar(1.0 - BATCH_NORM_MOMENTUM)?.add(&new.mul_scalar(BATCH_NORM_MOMENTUM)?)
            };
            net.update("mean", follow(&mean, &batch_mean)?)?;
            net.update("var", follow(&var, &unbiased)?)?;
            Ok(y)
        })
    }

    fn layer_norm(&mut self, name: &str, x: &Tensor) -> Result<Tensor> {
        let width = last(x)?;
        self.scope(name, |net| {
            let gamma = net.param("gamma", [width], Init::Constant(1.0))?;
            let beta = net.param("beta", [width], Init::Constant(0.0))?;
            x.layer_norm(&gamma, &beta, NORM_EPS)
        })
    }

    fn embedding(&mut self, name: &str, indices: &Tensor, rows: usize, width: usize) -> Result<Tensor> {
        self.scope(name, |net| net.param("table", [rows, width], Init::Normal(1.0))?.embedding(indices))
    }

    fn lstm(&mut self, name: &str, x: &Tensor, units: usize) -> Result<Tensor> {
        let (batch, width) = (x.shape().first().copied().unwrap_or(1), last(x)?);
        self.scope(name, |net| {
            let w = net.param("input_weight", [width, 4 * units], Init::fan_in(units))?;
            let u = net.param("hidden_weight", [units, 4 * units], Init::fan_in(units))?;
            // Two biases, as PyTorch has them, so that a model counts and trains as it does there.
            let input_bias = net.param("input_bias", [4 * units], Init::fan_in(units))?;
            let hidden_bias = net.param("hidden_bias", [4 * units], Init::fan_in(units))?;
            let bias = input_bias.add(&hidden_bias)?;
            let zeros = x.full_like(Type::new(x.dtype(), [batch, units]), 0.0)?;
            Ok(x.lstm(&w, &u, &bias, &zeros, &zeros)?.0)
        })
    }

    fn causal_attention(&mut self, name: &str, x: &Tensor, heads: usize) -> Result<Tensor> {
        let &[b, t, d] = &x.shape()[..] else { return Err(not_a_sequence(x)) };
        self.scope(name, |net| {
            let qkv = net.dense("qkv", x, 3 * d, true)?.reshape([b, t, 3, heads, d / heads.max(1)])?;
            let parts = qkv.split(2, &[1, 1, 1])?;
            let head = |i: usize| parts[i].reshape([b, t, heads, d / heads.max(1)]);
            let y = head(0)?.attention(&head(1)?, &head(2)?, None, true, None)?;
            net.dense("proj", &y.reshape([b, t, d])?, d, true)
        })
    }
}

fn last(x: &Tensor) -> Result<usize> {
    x.shape().last().copied().ok_or_else(|| not_a_sequence(x))
}

fn not_a_sequence(x: &Tensor) -> Error {
    let why = format!("gives {} to a layer that takes more axes", x.ty());
    Error::Signature { site: plimsoll_graph::Site::here(), why }
}
