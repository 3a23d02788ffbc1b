//! The heads of encoders: masked words, one label a text or picture, one label a token.

use plimsoll_graph::{TensorOps, Type};
use plimsoll_nn::{Init, Net};
use plimsoll_run::{Result, Tensor};

use super::{Encoder, START};
use crate::config::{EncoderFamily, Task};

/// Features that a bias takes: one, and zeros so that rows stay a whole number of sixteen bytes.
const BIAS: usize = 8;

/// What a head is computed from: features `[B, T, C]`, a layer `[classes, C]` and its bias.
pub(super) struct Head {
    features: Tensor,
    layer: Tensor,
    bias: Tensor,
}

impl Head {
    /// Logits in f32.
    pub(super) fn logits(&self) -> Result<Tensor> {
        let logits = self.features.matmul_with(&self.layer, Some(&self.bias), false, true)?;
        logits.cast(logits.dtype().accumulator())
    }

    /// Features and layer with the bias as one feature more, which is 1: a loss over them needs to know of no bias.
    pub(super) fn with_bias_inside(self) -> Result<[Tensor; 2]> {
        let Head { features, layer, bias } = self;
        let [b, t] = [features.shape()[0], features.shape()[1]];
        let one = features.full_like(Type::new(features.dtype(), [b, t, 1]), 1.0)?;
        let one = one.pad(&[(0, 0), (0, 0), (0, BIAS - 1)], 0.0)?;
        let classes = layer.shape()[0];
        let bias = bias.reshape([classes, 1])?.pad(&[(0, 0), (0, BIAS - 1)], 0.0)?;
        Ok([Tensor::concat(&[&features, &one], 2)?, Tensor::concat(&[&layer, &bias], 1)?])
    }
}

impl Encoder {
    /// The head of the config's task, over the features of the last block.
    pub(super) fn head(&self, net: &mut Net, x: &Tensor) -> Result<Head> {
        match self.config.task {
            Task::MaskedWords => self.words_head(net, x),
            Task::Tokens => {
                let share = match self.config.family {
                    EncoderFamily::DistilBert => self.config.dropout,
                    _ => self.config.head_dropout,
                };
                let x = net.dropout("head_dropped", x, share)?;
                self.labels_head(net, "classifier", x)
            }
            Task::Sequence | Task::Image => self.first_head(net, x),
        }
    }

    fn layer(&self, net: &mut Net, name: &str, width: usize) -> Result<(Tensor, Tensor)> {
        let (classes, dtype) = (self.config.classes(), net.dtype());
        net.scope(name, |net| {
            let layer = net.param("weight", [classes, width], START)?;
            Ok((layer, net.master("bias", [classes], Init::Constant(0.0))?.cast(dtype)?))
        })
    }

    fn labels_head(&self, net: &mut Net, name: &str, features: Tensor) -> Result<Head> {
        let (layer, bias) = self.layer(net, name, self.config.width)?;
        Ok(Head { features, layer, bias })
    }

    /// One label a sample, from the features of the first token or of the whole picture.
    fn first_head(&self, net: &mut Net, x: &Tensor) -> Result<Head> {
        let (config, width) = (&self.config, self.config.width);
        let first = x.narrow(1, 0, 1)?;
        let dropped = |net: &mut Net, name: &str, x: &Tensor| net.dropout(name, x, config.head_dropout);
        match config.family {
            EncoderFamily::Vit => self.labels_head(net, "classifier", first),
            EncoderFamily::Bert => {
                let y = self.dense(net, "bert/pooler/dense", &first, width, true)?.tanh()?;
                let y = dropped(net, "head_dropped", &y)?;
                self.labels_head(net, "classifier", y)
            }
            EncoderFamily::Roberta => {
                let y = dropped(net, "first_dropped", &first)?;
                let y = self.dense(net, "classifier/dense", &y, width, true)?.tanh()?;
                let y = dropped(net, "head_dropped", &y)?;
                self.labels_head(net, "classifier/out_proj", y)
            }
            EncoderFamily::DistilBert => {
                let y = self.dense(net, "pre_classifier", &first, width, true)?.relu()?;
                let y = dropped(net, "head_dropped", &y)?;
                self.labels_head(net, "classifier", y)
            }
        }
    }

    /// Words, by the table of embeddings.
    fn words_head(&self, net: &mut Net, x: &Tensor) -> Result<Head> {
        let [dense, norm, bias] = match self.config.family {
            EncoderFamily::Roberta => ["lm_head/dense", "lm_head/layer_norm", "lm_head/bias"],
            EncoderFamily::DistilBert => ["vocab_transform", "vocab_layer_norm", "vocab_projector/bias"],
            _ => [
                "cls/predictions/transform/dense",
                "cls/predictions/transform/LayerNorm",
                "cls/predictions/bias",
            ],
        };
        let (width, dtype) = (self.config.width, net.dtype());
        let y = self.dense(net, dense, x, width, true)?;
        // RoBERTa's own code has gelu here, whatever its blocks have.
        let y = if self.config.family == EncoderFamily::Roberta {
            y.gelu()?
        } else {
            self.config.activation.of(&y)?
        };
        let features = self.norm(net, norm, &y)?;
        let classes = self.config.classes();
        let table = format!("{}/embeddings/word_embeddings/weight", self.config.family.root());
        let layer = net.param(&table, [classes, width], START)?;
        let bias = net.master(bias, [classes], Init::Constant(0.0))?.cast(dtype)?;
        Ok(Head { features, layer, bias })
    }
}
