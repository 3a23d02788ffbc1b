//! Turns tokens or pixels into features and a head's classes, as an encoder's config describes it.
//!
//! Parameters have the names of the folder's tensors, with `/` where those have a dot. `heads` is what stands behind the last block.

mod heads;

use plimsoll_graph::{AttentionArgs, AttentionOps, GatherOps, NormOps, SoftmaxOps, TensorOps, Type};
use plimsoll_nn::blocks::refuse;
use plimsoll_nn::{Init, Model, Net, Outputs};
use plimsoll_run::{Result, Tensor};

use crate::config::{EncoderConfig, EncoderFamily, EncoderInput};

/// How weights start that no file holds; transformers' own.
const START: Init = Init::Normal(0.02);

/// An encoder of a config, all of it trained. It is a [`Model`] over tokens `[B, T]` and, where texts are shorter than their row, a
/// number each that is 0 where nothing stands, `[B, T]`; or over pixels `[B, H, W, C]`.
///
/// For predictions it gives logits, `[B, T, classes]` or, of one label a sample, `[B, 1, classes]`. Otherwise it gives features and the
/// output layer with its bias among the features, of which [`TokenLoss`](crate::TokenLoss) makes the loss.
#[derive(Clone, Debug)]
pub struct Encoder {
    /// What it is.
    pub config: EncoderConfig,
}

/// The names of a block's layers.
struct Names {
    blocks: &'static str,
    qkv: [&'static str; 3],
    out: &'static str,
    /// The norm of attention and that of the other two layers.
    norms: [&'static str; 2],
    inner: &'static str,
    outer: &'static str,
}

impl EncoderFamily {
    fn names(self) -> Names {
        let named = |blocks, qkv, [out, inner, outer]: [&'static str; 3], norms| Names {
            blocks,
            qkv,
            out,
            norms,
            inner,
            outer,
        };
        let bert = ["attention/output/dense", "intermediate/dense", "output/dense"];
        match self {
            EncoderFamily::Bert | EncoderFamily::Roberta => named(
                "encoder/layer",
                ["attention/self/query", "attention/self/key", "attention/self/value"],
                bert,
                ["attention/output/LayerNorm", "output/LayerNorm"],
            ),
            EncoderFamily::DistilBert => named(
                "transformer/layer",
                ["attention/q_lin", "attention/k_lin", "attention/v_lin"],
                ["attention/out_lin", "ffn/lin1", "ffn/lin2"],
                ["sa_layer_norm", "output_layer_norm"],
            ),
            EncoderFamily::Vit => {
                let qkv =
                    ["attention/attention/query", "attention/attention/key", "attention/attention/value"];
                named("encoder/layer", qkv, bert, ["layernorm_before", "layernorm_after"])
            }
        }
    }
}

impl Encoder {
    /// The type of one sample's input and of what says where something stands, for so many tokens.
    pub fn inputs(&self, batch: usize, length: usize) -> Vec<Type> {
        use plimsoll_graph::DType;
        match &self.config.input {
            EncoderInput::Text { .. } => vec![Type::new(DType::I32, [batch, length]); 2],
            EncoderInput::Image { size: [h, w], channels, .. } => {
                vec![Type::new(DType::F32, [batch, *h, *w, *channels])]
            }
        }
    }

    /// x Wᵀ + b.
    fn dense(&self, net: &mut Net, name: &str, x: &Tensor, units: usize, bias: bool) -> Result<Tensor> {
        let (width, dtype) = (x.shape().last().copied().unwrap_or(0), net.dtype());
        net.scope(name, |net| {
            let w = net.param("weight", [units, width], START)?;
            let b = match bias {
                true => Some(net.master("bias", [units], Init::Constant(0.0))?.cast(dtype)?),
                false => None,
            };
            x.matmul_with(&w, b.as_ref(), false, true)
        })
    }

    fn norm(&self, net: &mut Net, name: &str, x: &Tensor) -> Result<Tensor> {
        let width = x.shape().last().copied().unwrap_or(0);
        net.scope(name, |net| {
            let weight = net.master("weight", [width], Init::Constant(1.0))?;
            let bias = net.master("bias", [width], Init::Constant(0.0))?;
            x.layer_norm(&weight, &bias, self.config.eps)
        })
    }

    /// Tokens as features, with their positions.
    fn words(&self, net: &mut Net, tokens: &Tensor) -> Result<Tensor> {
        let EncoderInput::Text { vocabulary, positions, first, types, .. } = self.config.input else {
            return Err(refuse("gives tokens to an encoder of pictures"));
        };
        let [_, length] = tokens.shape()[..] else {
            return Err(refuse(format!("gives tokens of {}; they are [B, T]", tokens.ty())));
        };
        let (width, dtype, context) = (self.config.width, net.dtype(), positions - first);
        if length > context {
            return Err(refuse(format!("gives texts of {length} tokens to a model of {context} positions")));
        }
        net.scope("embeddings", |net| {
            let table = net.master("word_embeddings/weight", [vocabulary, width], START)?;
            let x = table.embedding(tokens)?.cast(dtype)?;
            let table = net.master("position_embeddings/weight", [positions, width], START)?;
            let mut x = x.add(&table.narrow(0, first, first + length)?.cast(dtype)?)?;
            if let Some(types) = types {
                // One text a sample: all tokens are of the first kind.
                let table = net.master("token_type_embeddings/weight", [types, width], START)?;
                x = x.add(&table.narrow(0, 0, 1)?.cast(dtype)?)?;
            }
            self.norm(net, "LayerNorm", &x)
        })
    }

    /// Pixels as features of patches, behind one of the whole picture, with their positions.
    fn patches(&self, net: &mut Net, pixels: &Tensor) -> Result<Tensor> {
        let EncoderInput::Image { size: [h, w], patch: [ph, pw], channels, ref mean, ref std } =
            self.config.input
        else {
            return Err(refuse("gives pixels to an encoder of texts"));
        };
        if pixels.shape().rank() != 4 || pixels.shape()[1..] != [h, w, channels] {
            let why = format!("gives pictures of {}; they are [B, {h}, {w}, {channels}]", pixels.ty());
            return Err(refuse(why));
        }
        let (batch, width, dtype) = (pixels.shape()[0], self.config.width, net.dtype());
        let mut x = pixels.clone();
        if !mean.is_empty() {
            let row = |numbers: Vec<f64>| {
                let numbers: Vec<f32> = numbers.into_iter().map(|x| x as f32).collect();
                Tensor::from_slice(&numbers, [channels])?.cast(x.dtype())
            };
            let (mean, over) = (row(mean.clone())?, row(std.iter().map(|x| 1.0 / x).collect())?);
            x = x.sub(&mean)?.mul(&over)?;
        }
        let (down, across) = (h / ph, w / pw);
        // Channel by channel within a patch, as the weights have it.
        let x = x
            .cast(dtype)?
            .reshape([batch, down, ph, across, pw, channels])?
            .transpose(&[0, 1, 3, 5, 2, 4])?;
        let x = x.reshape([batch, down * across, channels * ph * pw])?;
        net.scope("embeddings", |net| {
            let x = net.scope("patch_embeddings/projection", |net| {
                let kernel = net.param("weight", [width, channels, ph, pw], START)?;
                let bias = net.master("bias", [width], Init::Constant(0.0))?.cast(dtype)?;
                x.matmul_with(&kernel.reshape([width, channels * ph * pw])?, Some(&bias), false, true)
            })?;
            let whole = net.master("cls_token", [1, 1, width], START)?.cast(dtype)?;
            let whole = x.full_like(Type::new(dtype, [batch, 1, width]), 0.0)?.add(&whole)?;
            let x = Tensor::concat(&[&whole, &x], 1)?;
            x.add(&net.master("position_embeddings", [1, down * across + 1, width], START)?.cast(dtype)?)
        })
    }

    /// What queries see of all keys that are not hidden.
    fn attention(&self, net: &mut Net, names: &Names, x: &Tensor, hidden: Option<&Tensor>) -> Result<Tensor> {
        let config = &self.config;
        let ([b, t], head) = ([x.shape()[0], x.shape()[1]], config.width / config.heads);
        let mut parts = Vec::new();
        for name in names.qkv {
            let y = self.dense(net, name, x, config.width, config.has_qkv_bias)?;
            parts.push(y.reshape([b, t, config.heads, head])?);
        }
        let scale = (head as f64).powf(-0.5);
        let y = match config.attention_dropout > 0.0 && net.is_training() {
            false => {
                let args = AttentionArgs { scale: Some(scale), mask: hidden, ..AttentionArgs::default() };
                parts[0].attention_with(&parts[1], &parts[2], &args)?
            }
            // By its parts: weights are dropped.
            true => {
                for part in &mut parts {
                    *part = part.transpose(&[0, 2, 1, 3])?;
                }
                let scores = parts[0].matmul_with(&parts[1], None, false, true)?.mul_scalar(scale)?;
                let scores = hidden.map_or(Ok(scores.clone()), |hidden| scores.add(hidden))?;
                let weights =
                    net.dropout("attention_weights", &scores.softmax(-1)?, config.attention_dropout)?;
                weights.matmul(&parts[2])?.transpose(&[0, 2, 1, 3])?
            }
        };
        let y = self.dense(net, names.out, &y.reshape([b, t, config.width])?, config.width, true)?;
        // DistilBERT drops nothing here.
        match config.family {
            EncoderFamily::DistilBert => Ok(y),
            _ => net.dropout("attention_dropped", &y, config.dropout),
        }
    }

    fn feed_forward(&self, net: &mut Net, names: &Names, x: &Tensor) -> Result<Tensor> {
        let y = self.config.activation.of(&self.dense(net, names.inner, x, self.config.inner, true)?)?;
        let y = self.dense(net, names.outer, &y, self.config.width, true)?;
        net.dropout("output_dropped", &y, self.config.dropout)
    }

    /// One block. ViT norms what a part of it reads, the others what it gives.
    fn block(&self, net: &mut Net, names: &Names, x: &Tensor, hidden: Option<&Tensor>) -> Result<Tensor> {
        let [first, second] = names.norms;
        if self.config.family == EncoderFamily::Vit {
            let y = self.norm(net, first, x)?;
            let x = x.add(&self.attention(net, names, &y, hidden)?)?;
            let y = self.norm(net, second, &x)?;
            return x.add(&self.feed_forward(net, names, &y)?);
        }
        let y = self.attention(net, names, x, hidden)?;
        let x = self.norm(net, first, &x.add(&y)?)?;
        let y = self.feed_forward(net, names, &x)?;
        self.norm(net, second, &x.add(&y)?)
    }

    /// The features behind the last block.
    fn features(&self, net: &mut Net, inputs: &[Tensor]) -> Result<Tensor> {
        let Some(first) = inputs.first() else { return Err(refuse("gives nothing to an encoder")) };
        let (names, dtype) = (self.config.family.names(), net.dtype());
        let hidden = match inputs.get(1) {
            Some(seen) if seen.shape() != first.shape() => {
                return Err(refuse(format!("gives {} for tokens of {}", seen.ty(), first.ty())));
            }
            Some(seen) => {
                let [b, t] = [seen.shape()[0], seen.shape()[1]];
                let seen = seen.reshape([b, 1, 1, t])?;
                let of = |value: f64| seen.full_like(Type::new(dtype, []), value);
                let nothing = seen.full_like(Type::new(seen.dtype(), []), 0.0)?;
                Some(seen.greater(&nothing)?.select(&of(0.0)?, &of(f64::NEG_INFINITY)?)?)
            }
            None => None,
        };
        net.scope(self.config.family.root(), |net| {
            let x = match self.config.input {
                EncoderInput::Text { .. } => self.words(net, first)?,
                EncoderInput::Image { .. } => self.patches(net, first)?,
            };
            let mut x = net.dropout("embedding_dropped", &x, self.config.dropout)?;
            for i in 0..self.config.layers {
                let name = format!("{}/{i}", names.blocks);
                x = net.scope(&name, |net| self.block(net, &names, &x, hidden.as_ref()))?;
            }
            match self.config.family {
                EncoderFamily::Vit => self.norm(net, "layernorm", &x),
                _ => Ok(x),
            }
        })
    }
}

impl Model for Encoder {
    fn forward(&self, net: &mut Net, inputs: &[Tensor]) -> Result<Outputs> {
        let x = self.features(net, inputs)?;
        let head = self.head(net, &x)?;
        match net.is_predicting() {
            true => Ok(head.logits()?.into()),
            false => Ok(head.with_bias_inside()?.into()),
        }
    }
}
