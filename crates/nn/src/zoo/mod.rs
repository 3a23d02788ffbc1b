//! Models by name.

mod cnn;
mod gpt;
mod lstm;
mod mlp;
mod resnet;
mod unet;

pub use cnn::{batch_norm_cnn, cnn};
pub use gpt::{Gpt, gpt};
pub use lstm::lstm;
pub use mlp::mlp;
pub use resnet::resnet18;
pub use unet::unet;
