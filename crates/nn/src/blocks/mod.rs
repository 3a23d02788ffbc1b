//! Building blocks that importers of other systems' models share: what their ops mean, written in ops of ours.
//!
//! Plain functions over tensors; [`read_back`] is for those that write such models. Images are channels last, as everywhere in the engine; [`Laid`] lets an importer of a channels-first
//! program keep them so, by reading axes in another order instead of moving elements.

pub mod attention;
pub mod conv;
pub mod einsum;
pub mod element;
pub mod index;
pub mod integer;
pub mod laid;
pub mod norm;
pub mod pad;
pub mod pool;
pub mod read_back;
pub mod recurrent;
pub mod reduce;
pub mod resize;
pub mod slice;
pub mod unwritable;

pub use laid::{Laid, reordered};
pub use unwritable::Unwritable;

pub use crate::error::refuse;
