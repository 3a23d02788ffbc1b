//! Turns images and filters into convolved images and their gradients, as implicit matrix products.
//!
//! Images are NHWC, filters HWIO. The forward pass multiplies patches of the input by the filter, the data gradient
//! patches of the output's gradient by the filter turned round, the filter gradient patches of the input, across,
//! by the output's gradient. No pass ever stores all patches: the packing routine of the product gathers one tile
//! after the other from the image (`patches`), or the micro-kernels read patches in place from a few padded lines
//! (`strip`). Convolutions of 1 by 1 are plain products; those of every channel
//! by itself have direct loops.

mod data_grad;
mod depthwise;
mod filter_grad;
mod forward;
mod patches;
mod route;
mod shape;
mod strip;
mod wide;

pub use data_grad::{data_grad, data_grad_scratch_bytes};
pub use filter_grad::{filter_grad, filter_grad_scratch_bytes};
pub use forward::{forward, forward_scratch_bytes};
pub use shape::ConvShape;
pub use wide::{data_grad_f64, filter_grad_f64, forward_f64};

#[cfg(test)]
mod tests;
