//! The reference cases, defined as the peers' scripts define theirs.

use std::sync::Arc;

use clap::ValueEnum;
use plimsoll::prelude::*;
use plimsoll::run::Result;

/// The reference cases: cross-entropy, Adam at 1e-3 unless said otherwise. On a card some have other sizes.
#[derive(Clone, Copy, ValueEnum, Debug, PartialEq, Eq)]
pub enum Case {
    /// 784-1024-1024-10, batch 128.
    Mlp,
    /// Four 3 × 3 convolutions, 32 × 32 images, batch 64.
    Cnn,
    /// ResNet-18, 32 × 32 images, batch 64.
    Resnet18,
    /// ResNet-50, 224 × 224 images, batch 256, SGD with momentum.
    Resnet50,
    /// U-Net of base 32 and depth 4, 128 × 128 images, batch 4; on a card base 64, depth 5, 256 × 256, batch 32.
    Unet,
    /// Transformer of width 256, 4 layers, 4 heads, 128 tokens, batch 8.
    Gpt,
    /// GPT-2 small, 1024 tokens, batch 16, AdamW.
    Gpt2,
    /// Two recurrent layers of 256, 64 tokens, batch 16; on a card of 1024, 256 tokens, batch 64.
    Lstm,
}

/// What a case is made of.
pub struct Setup {
    /// Samples a step.
    pub batch: usize,
    /// The type of the inputs.
    pub input: Type,
    /// The type of the labels.
    pub labels: Type,
    /// Classes of the labels, and of the inputs where those are tokens.
    pub classes: usize,
}

impl Setup {
    fn images(batch: usize, shape: &[usize], labels: &[usize], classes: usize) -> Setup {
        let input = Type::new(DType::F32, [&[batch], shape].concat());
        let labels = Type::new(DType::I64, [&[batch], labels].concat());
        Setup { batch, input, labels, classes }
    }

    fn tokens(batch: usize, length: usize, vocabulary: usize) -> Setup {
        let ty = Type::new(DType::I64, [batch, length]);
        Setup { batch, input: ty.clone(), labels: ty, classes: vocabulary }
    }
}

impl Case {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Case::Mlp => "mlp",
            Case::Cnn => "cnn",
            Case::Resnet18 => "resnet18",
            Case::Resnet50 => "resnet50",
            Case::Unet => "unet",
            Case::Gpt => "gpt",
            Case::Gpt2 => "gpt2",
            Case::Lstm => "lstm",
        }
    }

    /// Inputs and labels, for the case's own batch or another, at the sizes for a card or for a CPU.
    pub fn setup(self, batch: Option<usize>, card: bool) -> Setup {
        let or = |own: usize| batch.unwrap_or(own);
        match self {
            Case::Mlp => Setup::images(or(128), &[784], &[], 10),
            Case::Cnn | Case::Resnet18 => Setup::images(or(64), &[32, 32, 3], &[], 10),
            Case::Resnet50 => Setup::images(or(256), &[224, 224, 3], &[], 1000),
            Case::Unet if card => Setup::images(or(32), &[256, 256, 3], &[256, 256], 2),
            Case::Unet => Setup::images(or(4), &[128, 128, 3], &[128, 128], 2),
            Case::Gpt => Setup::tokens(or(8), 128, 1000),
            Case::Gpt2 => Setup::tokens(or(16), 1024, 50304),
            Case::Lstm if card => Setup::tokens(or(64), 256, 10000),
            Case::Lstm => Setup::tokens(or(16), 64, 1000),
        }
    }

    /// How it is trained.
    pub fn recipe(self, setup: &Setup) -> Recipe {
        let mut recipe = Recipe::cross_entropy(Adam::new(1e-3), setup.input.clone(), setup.labels.clone());
        match self {
            Case::Resnet50 => {
                recipe.optimizer = Arc::new(Sgd { decay: Decay::l2(1e-4), ..Sgd::momentum(0.1, 0.9) });
            }
            Case::Gpt2 => recipe.optimizer = Arc::new(Adam::w(3e-4, 1e-2)),
            _ => {}
        }
        recipe
    }

    /// The model.
    pub fn model(self, net: &mut Net, x: &[Tensor], card: bool) -> Result<Tensor> {
        let x = &x[0];
        match self {
            Case::Mlp => zoo::mlp(net, x, &[1024, 1024, 10]),
            Case::Cnn => zoo::cnn(net, x, &[32, 64], 10),
            Case::Resnet18 => zoo::resnet18(net, x, 64, 10),
            Case::Resnet50 => zoo::resnet50(net, x, 64, 1000),
            Case::Unet if card => zoo::unet(net, x, 64, 5, 2),
            Case::Unet => zoo::unet(net, x, 32, 4, 2),
            Case::Gpt => zoo::gpt(net, x, zoo::Gpt { vocabulary: 1000, width: 256, layers: 4, heads: 4 }),
            Case::Gpt2 => {
                let size = zoo::Gpt { vocabulary: 50304, width: 768, layers: 12, heads: 12 };
                zoo::gpt2(net, x, size, 1024)
            }
            Case::Lstm if card => zoo::lstm(net, x, 10000, 1024, 2),
            Case::Lstm => zoo::lstm(net, x, 1000, 256, 2),
        }
    }
}
