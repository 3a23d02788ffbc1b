//! Turns tokens into the features behind the last block of a decoder, as its config describes it.
//!
//! Parameters have the names of the folder's tensors, with `/` where those have a dot. `layers` is where adapters stand (`dora` has those with magnitudes), `sight`
//! which keys a query sees.

mod dora;
mod layers;
mod sight;

pub(crate) use sight::{Memory, Sight};

use plimsoll_graph::quant::QuantForm;
use plimsoll_graph::{DType, GatherOps, NormOps, TensorOps, Type};
use plimsoll_nn::blocks::refuse;
use plimsoll_nn::{Init, Model, Net, Outputs};
use plimsoll_run::{Result, Tensor};

use crate::config::{Config, Family};
use crate::tuning::Tuning;

/// How weights start that no file holds; transformers' own.
const START: Init = Init::Normal(0.02);

/// A decoder of a config, with what of it is trained. It is a [`Model`] over tokens `[B, T]`, and positions `[B, T]` where several
/// texts are packed into a sequence: each text begins at position 0 and sees nothing of those before it.
///
/// For predictions it gives logits `[B, T, V]`. Otherwise it gives the features `[B, T, C]` and the output layer `[V, C]`, of which
/// [`TokenLoss`](crate::TokenLoss) makes the loss without all logits at once.
#[derive(Clone, Debug)]
pub struct Decoder {
    /// What it is.
    pub config: Config,
    /// What of it is trained.
    pub tuning: Tuning,
    /// The type in which weights are kept that are not trained.
    pub kept: DType,
    /// How the weights of linear layers are kept in fewer bits than that, where none is trained.
    pub base: Option<QuantForm>,
}

impl Decoder {
    /// A decoder whose frozen weights are kept as the config says that they are stored, or else in f32.
    pub fn new(config: Config, tuning: Tuning) -> Decoder {
        let kept = config.stored.and_then(|element| element.dtype()).unwrap_or(DType::F32);
        Decoder { config, tuning, kept, base: None }
    }

    /// The name of the tensor of a folder that a parameter is; none for an adapter's.
    pub fn tensor_name(parameter: &str) -> Option<String> {
        let name = parameter.replace('/', ".");
        match crate::adapter::is_adapter(parameter) {
            true => None,
            false => Some(name),
        }
    }

    /// What stands before the names of all blocks.
    fn root(&self) -> &'static str {
        if self.config.family == Family::Gpt2 { "transformer" } else { "model" }
    }

    /// The name of the table of embeddings.
    fn table_name(&self) -> &'static str {
        if self.config.family == Family::Gpt2 {
            "transformer/wte/weight"
        } else {
            "model/embed_tokens/weight"
        }
    }

    fn is_frozen(&self) -> bool {
        self.tuning != Tuning::Full
    }

    /// A weight in the type in which the model computes.
    fn weight(&self, net: &mut Net, name: &str, shape: [usize; 2]) -> Result<Tensor> {
        if !self.is_frozen() {
            return net.param(name, shape, START);
        }
        let dtype = net.dtype();
        self.kept_weight(net, name, &shape, START)?.cast(dtype)
    }

    /// A weight in the type in which it is kept.
    fn kept_weight(&self, net: &mut Net, name: &str, shape: &[usize], init: Init) -> Result<Tensor> {
        match self.is_frozen() {
            true => net.frozen(name, Type::new(self.kept, shape)),
            false => net.master(name, shape, init),
        }
    }

    /// The features of tokens, before the first block.
    fn embedded(&self, net: &mut Net, tokens: &Tensor, sight: &Sight) -> Result<Tensor> {
        let config = &self.config;
        let dtype = net.dtype();
        let table = self.kept_weight(net, self.table_name(), &[config.vocabulary, config.width], START)?;
        let mut x = table.embedding(tokens)?.cast(dtype)?;
        if config.is_gemma() {
            x = x.mul_scalar((config.width as f64).sqrt())?;
        }
        if config.family == Family::Gpt2 {
            let table =
                self.kept_weight(net, "transformer/wpe/weight", &[config.context, config.width], START)?;
            x = x.add(&table.embedding(&sight.indices()?)?.cast(dtype)?)?;
        }
        match config.dropout.embedding > 0.0 && net.is_training() {
            true => net.dropout("embedding_dropout", &x, config.dropout.embedding),
            false => Ok(x),
        }
    }

    fn norm(&self, net: &mut Net, name: &str, x: &Tensor) -> Result<Tensor> {
        let (config, width) = (&self.config, x.shape().last().copied().unwrap_or(0));
        let usual = if config.is_gemma() { 0.0 } else { 1.0 };
        let wide = net.master_dtype();
        let weight =
            self.kept_weight(net, &format!("{name}/weight"), &[width], Init::Constant(usual))?.cast(wide)?;
        if config.family == Family::Gpt2 {
            let bias =
                self.kept_weight(net, &format!("{name}/bias"), &[width], Init::Constant(0.0))?.cast(wide)?;
            return x.layer_norm(&weight, &bias, config.eps);
        }
        let gamma = if config.is_gemma() { weight.add_scalar(1.0)? } else { weight };
        x.rms_norm(&gamma, config.eps)
    }

    /// The features behind the last norm.
    pub(crate) fn features(
        &self,
        net: &mut Net,
        tokens: &Tensor,
        sight: &Sight,
        memory: &mut dyn Memory,
    ) -> Result<Tensor> {
        let mut x = self.embedded(net, tokens, sight)?;
        let root = self.root();
        let (blocks, norm) = match self.config.family {
            Family::Gpt2 => ("h", "ln_f"),
            _ => ("layers", "norm"),
        };
        net.scope(root, |net| {
            for i in 0..self.config.layers.len() {
                x = net.scope(&format!("{blocks}/{i}"), |net| self.block(net, &x, i, sight, memory))?;
            }
            self.norm(net, norm, &x)
        })
    }

    /// The output layer `[V, C]`.
    pub(crate) fn head(&self, net: &mut Net) -> Result<Tensor> {
        let name = if self.config.is_tied { self.table_name() } else { "lm_head/weight" };
        self.weight(net, name, [self.config.vocabulary, self.config.width])
    }

    /// Logits in f32 of features, with the output layer.
    pub(crate) fn logits(&self, features: &Tensor, head: &Tensor) -> Result<Tensor> {
        let logits = features.matmul_with(head, None, false, true)?;
        let logits = logits.cast(logits.dtype().accumulator())?;
        capped(&logits, self.config.caps.logits)
    }
}

/// c · tanh(x / c), where there is a cap.
pub(crate) fn capped(x: &Tensor, cap: Option<f64>) -> Result<Tensor> {
    match cap {
        Some(cap) => x.mul_scalar(1.0 / cap)?.tanh()?.mul_scalar(cap),
        None => Ok(x.clone()),
    }
}

impl Model for Decoder {
    fn forward(&self, net: &mut Net, inputs: &[Tensor]) -> Result<Outputs> {
        let Some(tokens) = inputs.first() else {
            return Err(refuse("gives no tokens to a decoder"));
        };
        let sight = Sight::of_batch(&self.config, tokens, inputs.get(1), net.dtype())?;
        let features = self.features(net, tokens, &sight, &mut sight::Nothing)?;
        let head = self.head(net)?;
        match net.is_predicting() {
            true => Ok(self.logits(&features, &head)?.into()),
            false => Ok([features, head].into()),
        }
    }
}
