//! The table of models.

use plimsoll_graph::{DType, Type};
use plimsoll_run::{Result, Tensor};

use super::{Gpt, Vit};
use crate::model::{Model, Outputs, one};
use crate::{Net, zoo};

/// A model of the zoo with its sizes. It is itself a [`Model`].
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Its name.
    pub name: &'static str,
    /// What it is, in a few words.
    pub about: &'static str,
    /// What it reads and what it is to say.
    pub kind: Kind,
    /// Its sizes.
    pub size: Size,
    build: Build,
}

/// What a model reads and what it is to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Vectors of image² numbers to a class each.
    Vectors,
    /// Images to a class each.
    Images,
    /// Images to a class a pixel.
    Pixels,
    /// Tokens to the next token each; the vocabulary is the number of classes.
    Tokens,
}

/// The sizes of a model; 0 where a model has no such thing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// Channels of the first stage, or of the residual stream.
    pub width: usize,
    /// Layers, stages or blocks. The residual networks and MobileNet have theirs fixed.
    pub depth: usize,
    /// Heads of each attention.
    pub heads: usize,
    /// Pixels of an image's side.
    pub image: usize,
    /// Pixels of a patch's side.
    pub patch: usize,
    /// Tokens of a sequence.
    pub sequence: usize,
    /// Classes of the labels, or tokens of the vocabulary.
    pub classes: usize,
}

/// No such thing anywhere.
const NONE: Size = Size { width: 0, depth: 0, heads: 0, image: 0, patch: 0, sequence: 0, classes: 0 };

type Build = fn(&mut Net, &Tensor, &Size) -> Result<Tensor>;

const fn images(name: &'static str, about: &'static str, size: Size, build: Build) -> Entry {
    Entry { name, about, kind: Kind::Images, size, build }
}

const fn tokens(name: &'static str, about: &'static str, size: Size, build: Build) -> Entry {
    Entry { name, about, kind: Kind::Tokens, size, build }
}

/// All models. mlp, cnn, resnet18, unet, gpt and lstm stand at the sizes at which other systems are compared
/// (`benches/cases.py`), the others at the published ones.
pub const ALL: &[Entry] = &[
    Entry {
        name: "mlp",
        about: "dense layers with relu, 784-1024-1024-10",
        kind: Kind::Vectors,
        size: Size { width: 1024, depth: 3, image: 28, classes: 10, ..NONE },
        build: |net, x, size| {
            let mut widths = vec![size.width; size.depth.saturating_sub(1)];
            widths.push(size.classes);
            zoo::mlp(net, x, &widths)
        },
    },
    images(
        "cnn",
        "pairs of 3 × 3 convolutions with pooling between them",
        Size { width: 32, depth: 2, image: 32, classes: 10, ..NONE },
        |net, x, size| {
            let widths: Vec<usize> = (0..size.depth).map(|i| size.width << i.min(16)).collect();
            zoo::cnn(net, x, &widths, size.classes)
        },
    ),
    images(
        "resnet18",
        "ResNet-18 for small images",
        Size { width: 64, image: 32, classes: 10, ..NONE },
        |net, x, size| zoo::resnet18(net, x, size.width, size.classes),
    ),
    images(
        "resnet50",
        "ResNet-50 (25.6M parameters)",
        Size { width: 64, image: 224, classes: 1000, ..NONE },
        |net, x, size| zoo::resnet50(net, x, size.width, size.classes),
    ),
    images(
        "mobilenet",
        "MobileNetV2 (3.5M parameters)",
        Size { width: 32, image: 224, classes: 1000, ..NONE },
        |net, x, size| zoo::mobilenet(net, x, size.width, size.classes),
    ),
    Entry {
        name: "unet",
        about: "U-Net with batch norm",
        kind: Kind::Pixels,
        size: Size { width: 32, depth: 4, image: 128, classes: 2, ..NONE },
        build: |net, x, size| zoo::unet(net, x, size.width, size.depth, size.classes),
    },
    tokens(
        "gpt",
        "a small decoder-only transformer",
        Size { width: 256, depth: 4, heads: 4, sequence: 128, classes: 1000, ..NONE },
        |net, x, size| zoo::gpt(net, x, Gpt::of(size)),
    ),
    tokens(
        "gpt2",
        "GPT-2 small (124M parameters), embedding and output tied",
        Size { width: 768, depth: 12, heads: 12, sequence: 1024, classes: 50257, ..NONE },
        |net, x, size| zoo::gpt2(net, x, Gpt::of(size), size.sequence),
    ),
    images(
        "vit",
        "ViT-B/16 (86M parameters)",
        Size { width: 768, depth: 12, heads: 12, image: 224, patch: 16, classes: 1000, ..NONE },
        |net, x, size| {
            let Size { width, depth, heads, patch, classes, .. } = *size;
            zoo::vit(net, x, Vit { patch, width, layers: depth, heads, classes })
        },
    ),
    tokens(
        "lstm",
        "a recurrent language model",
        Size { width: 256, depth: 2, sequence: 64, classes: 1000, ..NONE },
        |net, x, size| zoo::lstm(net, x, size.classes, size.width, size.depth),
    ),
];

/// The model of a name.
pub fn find(name: &str) -> Option<Entry> {
    ALL.iter().find(|entry| entry.name == name).copied()
}

impl Gpt {
    fn of(size: &Size) -> Gpt {
        Gpt { vocabulary: size.classes, width: size.width, layers: size.depth, heads: size.heads }
    }
}

impl Entry {
    /// The same model at another size.
    pub fn sized(mut self, change: impl FnOnce(&mut Size)) -> Entry {
        change(&mut self.size);
        self
    }

    /// The same model with no size above these.
    pub fn within(self, most: Size) -> Entry {
        self.sized(|size| {
            size.width = size.width.min(most.width);
            size.depth = size.depth.min(most.depth);
            size.heads = size.heads.min(most.heads);
            size.image = size.image.min(most.image);
            size.patch = size.patch.min(most.patch);
            size.sequence = size.sequence.min(most.sequence);
            size.classes = size.classes.min(most.classes);
        })
    }

    /// The type of a batch of inputs.
    pub fn input(&self, batch: usize) -> Type {
        let Size { image, sequence, .. } = self.size;
        match self.kind {
            Kind::Vectors => Type::new(DType::F32, [batch, image * image]),
            Kind::Images | Kind::Pixels => Type::new(DType::F32, [batch, image, image, 3]),
            Kind::Tokens => Type::new(DType::I64, [batch, sequence]),
        }
    }

    /// The type of a batch of labels.
    pub fn labels(&self, batch: usize) -> Type {
        let Size { image, sequence, .. } = self.size;
        match self.kind {
            Kind::Vectors | Kind::Images => Type::new(DType::I64, [batch]),
            Kind::Pixels => Type::new(DType::I64, [batch, image, image]),
            Kind::Tokens => Type::new(DType::I64, [batch, sequence]),
        }
    }

    /// The number of classes of a label.
    pub fn classes(&self) -> usize {
        self.size.classes
    }
}

impl Model for Entry {
    fn forward(&self, net: &mut Net, inputs: &[Tensor]) -> Result<Outputs> {
        Ok((self.build)(net, one(inputs)?, &self.size)?.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trained(name: &str) -> usize {
        let entry = find(name).unwrap();
        let params = Net::discover(&[entry.input(2)], &entry).unwrap();
        params.iter().filter(|p| p.trained).map(|p| p.ty.elements()).sum()
    }

    #[test]
    fn published_models_have_the_published_numbers_of_parameters() {
        for (name, parameters) in
            [("resnet50", 25_557_032), ("mobilenet", 3_504_872), ("gpt2", 124_439_808), ("vit", 86_567_656)]
        {
            assert_eq!(trained(name), parameters, "{name}");
        }
    }

    #[test]
    fn models_that_are_compared_have_the_peers_numbers_of_parameters() {
        for (name, parameters) in [
            ("mlp", 1_863_690),
            ("cnn", 106_538),
            ("resnet18", 11_173_962),
            ("unet", 1_927_042),
            ("gpt", 3_704_320),
            ("lstm", 1_565_672),
        ] {
            assert_eq!(trained(name), parameters, "{name}");
        }
    }

    #[test]
    fn every_model_gives_logits_for_its_labels() {
        for entry in ALL {
            let sketch = plimsoll_run::Sketch::new();
            let x = sketch.tensor("x", entry.input(2));
            let params = Net::discover(&[entry.input(2)], entry).unwrap();
            let values: Vec<Tensor> = params.iter().map(|p| sketch.tensor(&p.name, p.ty.clone())).collect();
            let mut net = Net::bound(&params, &values, false);
            let y = entry.forward(&mut net, &[x]).unwrap().one().unwrap();
            let mut shape = entry.labels(2).shape;
            shape.push(entry.classes());
            assert_eq!(*plimsoll_graph::TensorOps::shape(&y), shape, "{}", entry.name);
        }
    }

    #[test]
    fn sizes_that_make_no_model_are_errors() {
        let refuse = |name: &str, change: fn(&mut Size)| {
            let entry = find(name).unwrap().sized(change);
            assert!(Net::discover(&[entry.input(2)], &entry).is_err(), "{name} {:?}", entry.size);
        };
        refuse("gpt", |size| size.heads = 3);
        refuse("gpt2", |size| size.heads = 0);
        refuse("vit", |size| size.patch = 0);
        refuse("vit", |size| size.patch = 15);
        refuse("unet", |size| size.image = 100);
        assert!(find("resnet51").is_none());
    }
}
