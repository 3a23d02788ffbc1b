//! What stands for `fast` where there are no vector instructions to ask for: nothing is packed.

use super::conv::Numbers;
use super::layer::{Layer, Weights, Work};
use super::matmul::Pair;
use super::store::Store;
use crate::error::Result;

/// Packed weights, of which there are none.
#[derive(Clone, Copy, Debug)]
pub enum Packed {}

/// Packs nothing.
pub fn pack(store: &mut Store, _: &Weights<'_, '_>) -> Option<Packed> {
    // Asked for or not, weights are read where they lie.
    store.may_pack(0).then_some(()).and(None)
}

/// The same.
pub use pack as pack_depthwise;

/// Cannot be called.
pub fn run(layer: &Layer<'_>, _: &Numbers, _: &mut [u8]) -> Result<()> {
    match *layer.packed {}
}

/// The same.
pub use run as run_depthwise;

/// Looks up every byte.
pub fn lookup(table: &[u8; 256], bytes: &mut [u8]) {
    bytes.iter_mut().for_each(|byte| *byte = table[*byte as usize]);
}

/// Computes no product of two matrices that are both computed, and says so.
pub fn run_pair(_: &Pair<'_>, _: &mut [u8]) -> bool {
    false
}

/// Does work with the only instructions there are.
pub fn widest<W: Work>(work: W) -> W::Result {
    work.run()
}
