//! The reference cases, defined as the peers' scripts define theirs.

use clap::ValueEnum;
use plimsoll::prelude::*;
use plimsoll::run::Result;

/// The reference cases: f32, cross-entropy, Adam at 1e-3.
#[derive(Clone, Copy, ValueEnum, Debug)]
pub enum Case {
    /// 784-1024-1024-10, batch 128.
    Mlp,
    /// Four 3 × 3 convolutions, 32 × 32 images, batch 64.
    Cnn,
    /// ResNet-18, 32 × 32 images, batch 64.
    Resnet18,
    /// U-Net of base 32 and depth 4, 128 × 128 images, batch 4.
    Unet,
    /// Transformer of width 256, 4 layers, 4 heads, 128 tokens, batch 8.
    Gpt,
    /// Two recurrent layers of 256, 64 tokens, batch 16.
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

impl Case {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Case::Mlp => "mlp",
            Case::Cnn => "cnn",
            Case::Resnet18 => "resnet18",
            Case::Unet => "unet",
            Case::Gpt => "gpt",
            Case::Lstm => "lstm",
        }
    }

    /// Inputs and labels, for the case's own batch or another.
    pub fn setup(self, batch: Option<usize>) -> Setup {
        let images = |own: usize, shape: &[usize], labels: &[usize], classes: usize| {
            let batch = batch.unwrap_or(own);
            let input = Type::new(DType::F32, [&[batch], shape].concat());
            let labels = Type::new(DType::I64, [&[batch], labels].concat());
            Setup { batch, input, labels, classes }
        };
        let tokens = |own: usize, length: usize| {
            let batch = batch.unwrap_or(own);
            let ty = Type::new(DType::I64, [batch, length]);
            Setup { batch, input: ty.clone(), labels: ty, classes: 1000 }
        };
        match self {
            Case::Mlp => images(128, &[784], &[], 10),
            Case::Cnn | Case::Resnet18 => images(64, &[32, 32, 3], &[], 10),
            Case::Unet => images(4, &[128, 128, 3], &[128, 128], 2),
            Case::Gpt => tokens(8, 128),
            Case::Lstm => tokens(16, 64),
        }
    }

    /// The model.
    pub fn model(self, net: &mut Net, x: &[Tensor]) -> Result<Tensor> {
        let x = &x[0];
        match self {
            Case::Mlp => zoo::mlp(net, x, &[1024, 1024, 10]),
            Case::Cnn => zoo::cnn(net, x, &[32, 64], 10),
            Case::Resnet18 => zoo::resnet18(net, x, 64, 10),
            Case::Unet => zoo::unet(net, x, 32, 4, 2),
            Case::Gpt => zoo::gpt(net, x, zoo::Gpt { vocabulary: 1000, width: 256, layers: 4, heads: 4 }),
            Case::Lstm => zoo::lstm(net, x, 1000, 256, 2),
        }
    }
}
