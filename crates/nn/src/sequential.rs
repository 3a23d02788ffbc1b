//! A model as a list of layers.

use std::sync::Arc;

use plimsoll_graph::ops::ResizeMode;
use plimsoll_graph::{DType, Padding, PoolOps, ResizeOps, Shape, Site, TensorOps, Type, VolumeOps};
use plimsoll_run::{Result, Tensor, asked_at};

use crate::error::refuse;
use crate::model::{Model, Outputs, one};
use crate::{Activation, Conv1d, Conv2d, Conv3d, MultiHead, Net, Recurrent};

type Layer = Arc<dyn Fn(&mut Net, &Tensor) -> Result<Tensor> + Send + Sync>;

/// Layers of the net by their arguments, numbered among those of their kind.
macro_rules! layers {
    ($( $(#[$doc:meta])+ $method:ident($( $arg:ident: $type:ty ),*) => $kind:literal, $layer:ident; )+) => {
        $( $(#[$doc])+ #[track_caller]
        pub fn $method(self, $( $arg: $type ),*) -> Sequential {
            self.push($kind, move |net, x, name| net.$layer(name, x, $( $arg ),*))
        } )+
    };
}

/// Layers one after the other. Their parameters are filed under the layer's kind and number: `conv1/weight`,
/// `dense2/bias`.
///
/// ```
/// use plimsoll_nn::{Net, Sequential};
/// let model = Sequential::new([28, 28, 1])
///     .conv2d(32, 3).relu().max_pool2d(2)
///     .flatten().dropout(0.2).dense(10);
/// let params = Net::discover(&[model.input(128)], &model)?;
/// assert_eq!(params[2].name, "dense1/weight");
/// assert_eq!(params[2].ty.shape.to_string(), "[5408, 10]");
/// # Ok::<(), plimsoll_run::Error>(())
/// ```
///
/// What has no method here is a plain function: `.layer("squeeze", |net, x| …)`. Skips over several layers are nested
/// lists: `.residual(Sequential::block().conv2d_with(…).relu())`.
#[derive(Clone)]
pub struct Sequential {
    sample: Type,
    /// Whether the first axis of a sample may be shorter.
    varies: bool,
    layers: Vec<(String, Layer)>,
    /// How many layers of each kind there are.
    counts: Vec<(&'static str, usize)>,
}

impl Sequential {
    /// A model of samples of this shape, f32.
    pub fn new(sample: impl Into<Shape>) -> Sequential {
        Sequential::of(Type::new(DType::F32, sample))
    }

    /// A model of sequences of that many tokens, i64.
    pub fn tokens(length: usize) -> Sequential {
        Sequential::of(Type::new(DType::I64, [length]))
    }

    /// A model of sequences of at most that many tokens, i64; see [`Sequential::padding`].
    pub fn tokens_up_to(most: usize) -> Sequential {
        Sequential { varies: true, ..Sequential::tokens(most) }
    }

    /// A part of a model, for [`Sequential::residual`] and [`Sequential::beside`]; it takes what it is given.
    pub fn block() -> Sequential {
        Sequential::of(Type::new(DType::F32, []))
    }

    fn of(sample: Type) -> Sequential {
        Sequential { sample, varies: false, layers: Vec::new(), counts: Vec::new() }
    }

    /// The type of a batch of inputs.
    pub fn input(&self, batch: usize) -> Type {
        let shape: Shape = std::iter::once(batch).chain(self.sample.shape.iter().copied()).collect();
        self.sample.with_shape(shape)
    }

    /// A layer of one's own.
    #[track_caller]
    pub fn layer(
        mut self,
        name: &str,
        f: impl Fn(&mut Net, &Tensor) -> Result<Tensor> + Send + Sync + 'static,
    ) -> Sequential {
        let path = name.to_string();
        let scoped = move |net: &mut Net, x: &Tensor| net.scope(&path, |net| f(net, x));
        self.layers.push((name.into(), Arc::new(scoped)));
        self
    }

    /// A layer numbered among those of its kind.
    #[track_caller]
    fn push(
        mut self,
        kind: &'static str,
        f: impl Fn(&mut Net, &Tensor, &str) -> Result<Tensor> + Send + Sync + 'static,
    ) -> Sequential {
        let n = match self.counts.iter_mut().find(|(k, _)| *k == kind) {
            Some((_, n)) => {
                *n += 1;
                *n
            }
            None => {
                self.counts.push((kind, 1));
                1
            }
        };
        let site = Site::here();
        let name = format!("{kind}{n}");
        let path = name.clone();
        self.layers
            .push((name, Arc::new(move |net: &mut Net, x: &Tensor| asked_at(site, || f(net, x, &path)))));
        self
    }

    /// A layer without parameters.
    #[track_caller]
    fn plain(
        self,
        kind: &'static str,
        f: impl Fn(&Tensor) -> Result<Tensor> + Send + Sync + 'static,
    ) -> Sequential {
        self.push(kind, move |net, x, name| net.scope(name, |_| f(x)))
    }

    /// A dense layer with bias.
    #[track_caller]
    pub fn dense(self, units: usize) -> Sequential {
        self.push("dense", move |net, x, name| net.dense(name, x, units, true))
    }

    /// A convolution of images with square windows, no padding, with bias.
    #[track_caller]
    pub fn conv2d(self, channels: usize, window: usize) -> Sequential {
        self.conv2d_with(Conv2d::new(channels, window))
    }

    layers! {
        /// A convolution of images.
        conv2d_with(conv: Conv2d) => "conv", conv2d;
        /// A convolution of sequences.
        conv1d_with(conv: Conv1d) => "conv", conv1d;
        /// A convolution of volumes `[N, D, H, W, C]`.
        conv3d_with(conv: Conv3d) => "conv", conv3d;
        /// Every channel convolved by itself.
        depthwise_conv2d(conv: Conv2d) => "conv", depthwise_conv2d;
        /// A depthwise convolution, then a 1 × 1 one.
        separable_conv2d(conv: Conv2d) => "conv", separable_conv2d;
        /// A transposed convolution.
        conv_transpose2d(conv: Conv2d) => "conv", conv_transpose2d;
    }

    /// The largest of every window; windows do not overlap.
    #[track_caller]
    pub fn max_pool2d(self, window: usize) -> Sequential {
        self.plain("pool", move |x| x.max_pool2d([window; 2], [window; 2], Padding::Valid))
    }

    /// The mean of every window; windows do not overlap.
    #[track_caller]
    pub fn avg_pool2d(self, window: usize) -> Sequential {
        self.plain("pool", move |x| x.avg_pool2d([window; 2], [window; 2], Padding::Valid, false))
    }

    /// The mean of every channel of an image.
    #[track_caller]
    pub fn global_avg_pool2d(self) -> Sequential {
        self.plain("pool", |x| x.global_avg_pool2d())
    }

    /// The largest of every channel of an image.
    #[track_caller]
    pub fn global_max_pool2d(self) -> Sequential {
        self.plain("pool", |x| x.global_max_pool2d())
    }

    /// The largest of every window of a volume; windows do not overlap.
    #[track_caller]
    pub fn max_pool3d(self, window: usize) -> Sequential {
        self.plain("pool", move |x| x.max_pool3d([window; 3], [window; 3], Padding::Valid))
    }

    /// The largest of every window of a sequence; windows do not overlap.
    #[track_caller]
    pub fn max_pool1d(self, window: usize) -> Sequential {
        self.push("pool", move |net, x, name| {
            net.refuse_padding("pooling")?;
            net.scope(name, |_| x.max_pool1d(window, window, Padding::Valid))
        })
    }

    layers! {
        /// The mean of every channel of a sequence `[T, C]`, without padding ([`Sequential::padding`]).
        global_avg_pool1d() => "pool", mean_over_time;
    }

    /// Images at `factor` times their size, by the nearest pixel or bilinear.
    #[track_caller]
    pub fn upsample2d(self, factor: usize, mode: ResizeMode) -> Sequential {
        self.plain("upsample", move |x| x.upsample2d(factor, mode))
    }

    layers! {
        /// Batch norm.
        batch_norm() => "norm", batch_norm;
        /// Layer norm over the last axis.
        layer_norm() => "norm", layer_norm;
        /// Group norm.
        group_norm(groups: usize) => "norm", group_norm;
        /// RMS norm over the last axis.
        rms_norm() => "norm", rms_norm;
        /// Dropout.
        dropout(rate: f64) => "dropout", dropout;
        /// Dropout of whole channels.
        spatial_dropout(rate: f64) => "dropout", spatial_dropout;
        /// Rows of a table, by index.
        embedding(rows: usize, width: usize) => "embedding", embedding;
    }

    /// From here on, places of sequences whose token is `id` are padding, which stands behind what is filled: recurrent layers,
    /// self-attention and the mean over time leave it out, and layers that would mix it in are errors (see [`Net::padded`]). Put it
    /// before the embedding.
    ///
    /// ```
    /// use plimsoll_nn::{Net, Recurrent, Sequential};
    /// let reader = Sequential::tokens_up_to(64).padding(0).embedding(1000, 16).lstm(Recurrent::last(32)).dense(2);
    /// assert_eq!(Net::discover(&[reader.input(8)], &reader)?[0].name, "embedding1/table");
    /// # Ok::<(), plimsoll_run::Error>(())
    /// ```
    #[track_caller]
    pub fn padding(self, id: i64) -> Sequential {
        self.push("padding", move |net, x, name| {
            if x.shape().rank() != 2 || x.dtype().is_float() {
                return Err(refuse(format!(
                    "looks for padding in {}; put it before the embedding of tokens [B, T]",
                    x.ty()
                )));
            }
            let filled = net.scope(name, |_| x.not_equal(&x.full_like(x.ty().clone(), id as f64)?))?;
            net.replace_filled(Some(filled));
            Ok(x.clone())
        })
    }

    layers! {
        /// A long short-term memory.
        lstm(layer: Recurrent) => "lstm", lstm;
        /// A gated recurrent unit.
        gru(layer: Recurrent) => "gru", gru;
        /// Self-attention.
        self_attention(layer: MultiHead) => "attention", self_attention;
    }

    /// max(x, 0)
    #[track_caller]
    pub fn relu(self) -> Sequential {
        self.activation(Activation::Relu)
    }

    layers! {
        /// An activation.
        activation(f: Activation) => "activation", activation;
    }

    /// All axes of a sample joined into one.
    #[track_caller]
    pub fn flatten(self) -> Sequential {
        self.push("flatten", |net, x, name| {
            net.refuse_padding("flatten")?;
            net.scope(name, |_| x.flatten(1))
        })
    }

    /// Samples under another shape.
    #[track_caller]
    pub fn reshape(self, sample: impl Into<Shape>) -> Sequential {
        let sample: Shape = sample.into();
        self.plain("reshape", move |x| {
            let batch = x.shape().first().copied().unwrap_or(1);
            x.reshape(std::iter::once(batch).chain(sample.iter().copied()).collect::<Shape>())
        })
    }

    /// x + block(x)
    #[track_caller]
    pub fn residual(self, block: Sequential) -> Sequential {
        self.push("residual", move |net, x, name| net.residual(name, x, |net, x| block.apply(net, x)))
    }

    /// x and block(x) one after the other along the channels.
    #[track_caller]
    pub fn beside(self, block: Sequential) -> Sequential {
        self.push("beside", move |net, x, name| {
            let y = net.scope(name, |net| block.apply(net, x))?;
            Tensor::concat(&[&net.compute(x)?, &y], -1)
        })
    }

    fn apply(&self, net: &mut Net, x: &Tensor) -> Result<Tensor> {
        let outer = net.filled().cloned();
        let y = self.layers.iter().try_fold(x.clone(), |x, (_, layer)| layer(net, &x));
        net.replace_filled(outer);
        y
    }
}

impl Model for Sequential {
    fn forward(&self, net: &mut Net, inputs: &[Tensor]) -> Result<Outputs> {
        let x = one(inputs)?;
        let whole = self.input(x.shape().first().copied().unwrap_or(1)).shape;
        let shorter = || {
            self.varies
                && x.shape().rank() == whole.rank()
                && x.shape()[1] < whole[1]
                && x.shape()[2..] == whole[2..]
        };
        if !self.sample.shape.is_empty() && x.shape()[..] != whole[..] && !shorter() {
            let (sample, most) = (&self.sample.shape, if self.varies { " or shorter" } else { "" });
            return Err(refuse(format!("gives {} to a model of samples {sample}{most}", x.ty())));
        }
        Ok(self.apply(net, x)?.into())
    }
}

impl std::fmt::Debug for Sequential {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<&str> = self.layers.iter().map(|(name, _)| name.as_str()).collect();
        write!(f, "{} → {}", self.sample, names.join(" → "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Adam, Recipe, Training};

    #[test]
    fn layers_are_numbered_by_kind_and_nested_in_blocks() {
        let block = Sequential::block().conv2d_with(Conv2d::new(4, 3).same()).batch_norm().relu();
        let model = Sequential::new([8, 8, 3])
            .conv2d(4, 3)
            .relu()
            .residual(block.clone())
            .beside(block)
            .global_avg_pool2d()
            .layer("own", |net, x| net.dense("inner", x, 4, false))
            .dense(2);
        let params = Net::discover(&[model.input(2)], &model).unwrap();
        let names: Vec<&str> = params.iter().filter(|p| p.trained).map(|p| p.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "conv1/weight",
                "conv1/bias",
                "residual1/conv1/weight",
                "residual1/conv1/bias",
                "residual1/norm1/gamma",
                "residual1/norm1/beta",
                "beside1/conv1/weight",
                "beside1/conv1/bias",
                "beside1/norm1/gamma",
                "beside1/norm1/beta",
                "own/inner/weight",
                "dense1/weight",
                "dense1/bias"
            ]
        );
        assert!(format!("{model:?}").contains("conv1 → activation1 → residual1"), "{model:?}");
    }

    #[test]
    fn a_model_with_dropout_learns_and_its_masks_follow_the_seed() {
        let model = Sequential::new([6]).dense(32).relu().dropout(0.2).dense(2);
        let (x, y) = (model.input(16), Type::new(DType::I64, [16]));
        let data: Vec<f32> = (0..96).map(|i| ((i * 37 % 19) as f32 - 9.0) / 9.0).collect();
        let labels: Vec<i64> = data.chunks(6).map(|s| i64::from(s[0] + s[1] > 0.0)).collect();
        let (inputs, labels) =
            (Tensor::from_slice(&data, [16, 6]).unwrap(), Tensor::from_slice(&labels, [16]).unwrap());
        let losses = |seed: u64| {
            let recipe = Recipe::cross_entropy(Adam::new(1e-2), x.clone(), y.clone());
            let mut training = Training::new(model.clone(), recipe, seed).unwrap();
            (0..60).map(|_| training.step(&[&inputs], &labels).unwrap()).collect::<Vec<f64>>()
        };
        let first = losses(1);
        assert!(first[59] < 0.5 * first[0], "{first:?}");
        assert_eq!(first, losses(1));
        assert_ne!(first, losses(2));
    }

    #[test]
    fn samples_of_another_shape_are_refused() {
        let model = Sequential::new([28, 28, 1]).flatten().dense(10);
        let wrong = Type::new(DType::F32, [4, 28, 27, 1]);
        let error = Net::discover(&[wrong], &model).unwrap_err().to_string();
        assert!(error.contains("[28, 28, 1]"), "{error}");
        let two = [model.input(4), model.input(4)];
        assert!(Net::discover(&two, &model).unwrap_err().to_string().contains("2 inputs"));
    }
}
