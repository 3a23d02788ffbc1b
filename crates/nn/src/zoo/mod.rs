//! Models by name, at their published size or any other.
//!
//! ```
//! use plimsoll_nn::{Net, zoo};
//! let small = zoo::find("resnet50").map(|entry| entry.sized(|size| (size.width, size.image) = (8, 64)));
//! let small = small.ok_or("there is a resnet50")?;
//! assert_eq!(small.input(4).to_string(), "f32[4, 64, 64, 3]");
//! assert!(Net::discover(&[small.input(4)], &small)?.len() > 100);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod cnn;
mod entry;
mod gpt;
mod lstm;
mod mlp;
mod mobilenet;
mod resnet;
mod unet;
mod vit;

pub use cnn::{batch_norm_cnn, cnn};
pub use entry::{ALL, Entry, Kind, Size, find};
pub use gpt::{Gpt, gpt, gpt2};
pub use lstm::lstm;
pub use mlp::mlp;
pub use mobilenet::mobilenet;
pub use resnet::{resnet18, resnet50};
pub use unet::unet;
pub use vit::{Vit, vit};
