//! A vision transformer: patches as tokens, a class token, pre-norm blocks. After Dosovitskiy and others (2020).

use plimsoll_graph::TensorOps;
use plimsoll_run::{Result, Tensor};

use crate::error::refuse;
use crate::{Conv2d, Init, MultiHead, Net, Start};

const EPS: f64 = 1e-6;

/// A vision transformer's sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vit {
    /// Pixels of a patch's side.
    pub patch: usize,
    /// Width of the residual stream.
    pub width: usize,
    /// Blocks.
    pub layers: usize,
    /// Heads of each attention.
    pub heads: usize,
    /// Classes.
    pub classes: usize,
}

/// Logits `[N, classes]` for images `[N, H, W, C]` whose sides are multiples of a patch's.
#[track_caller]
pub fn vit(net: &mut Net, x: &Tensor, size: Vit) -> Result<Tensor> {
    net.together(|net| {
        let Vit { patch, width, layers, heads, classes } = size;
        let &[n, h, w, _] = &x.shape()[..] else {
            return Err(refuse(format!("gives {} to a model of images [N, H, W, C]", x.ty())));
        };
        if patch == 0 || h % patch != 0 || w % patch != 0 {
            return Err(refuse(format!("cuts images of {h} × {w} pixels in patches of {patch} × {patch}")));
        }
        let patches = (h / patch) * (w / patch);
        net.with_start(Start::TruncatedNormal(0.02), |net| {
            let x = net
                .conv2d("patch", x, Conv2d::new(width, patch).stride(patch))?
                .reshape([n, patches, width])?;
            let class = net.param("class", [1, 1, width], Init::Constant(0.0))?.broadcast([n, 1, width])?;
            let position = net.param("position", [patches + 1, width], Init::Normal(0.02))?;
            let mut x = Tensor::concat(&[&class, &x], 1)?.add(&position)?;
            for layer in 0..layers {
                x = net.scope(&format!("block{}", layer + 1), |net| {
                    let y = net.layer_norm_with("norm1", &x, EPS)?;
                    let x = x.add(&net.self_attention("attention", &y, MultiHead::new(heads))?)?;
                    let y = net.layer_norm_with("norm2", &x, EPS)?;
                    let y = net.dense("up", &y, 4 * width, true)?.gelu()?;
                    x.add(&net.dense("down", &y, width, true)?)
                })?;
            }
            // Only the class token is read from here on, and a norm is a token's own affair.
            let x = net.layer_norm_with("norm", &x.narrow(1, 0, 1)?.reshape([n, width])?, EPS)?;
            net.dense("out", &x, classes, true)
        })
    })
}
