//! What stands for `fast` where there are no vector instructions to ask for: nothing is packed.

use super::conv::Numbers;
use super::layer::{Layer, Order, Spread, Weights, Window, Work};
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
pub use pack_depthwise as pack_window;

/// The same.
pub fn pack_depthwise(store: &mut Store, what: &Weights<'_, '_>, _: &Window) -> Option<Packed> {
    pack(store, what)
}

/// The same.
pub fn pack_taps(store: &mut Store, what: &Weights<'_, '_>, _: Order) -> Option<Packed> {
    pack(store, what)
}

/// Cannot be called.
pub fn run(layer: &Layer<'_>, _: &Numbers, _: &mut [u8]) -> Result<()> {
    match *layer.packed {}
}

/// The same.
pub use run as run_depthwise;

/// The same.
pub fn run_spread(layer: &Layer<'_>, _: &Numbers, _: &Spread, _: usize, _: &mut [u8]) -> Result<()> {
    match *layer.packed {}
}

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
