//! What stands for `fast` where there are no vector instructions to ask for: nothing is packed.

use super::conv::Numbers;
use super::store::Store;
use crate::tensor::Tensor;

/// Packed weights, of which there are none.
#[derive(Clone, Copy, Debug)]
pub enum Packed {}

/// Packs nothing.
pub fn pack(
    store: &mut Store,
    _: &Numbers,
    _: &Tensor<'_>,
    _: Option<&Tensor<'_>>,
    _: [usize; 3],
    _: usize,
) -> Option<Packed> {
    // Asked for or not, weights are read where they lie.
    store.may_pack(0).then_some(()).and(None)
}

/// Where a tap of a window begins in the operand; none outside the picture.
pub type Tap = Option<usize>;

/// Cannot be called.
pub fn run(packed: &Packed, _: &Store, _: &Numbers, _: &mut [u8], _: &[u8], _: impl Fn(usize, &mut [Tap])) {
    match *packed {}
}

/// Computes nothing, and says so.
pub fn run_depthwise(
    _: &Store,
    _: &Numbers,
    _: [usize; 2],
    _: &mut [u8],
    _: [&[u8]; 2],
    _: Option<&[u8]>,
    _: impl Fn(usize, &mut [Tap]),
) -> bool {
    false
}

/// Work that is written once and compiled for several sets of instructions.
pub trait Work {
    type Result;

    /// Does it.
    fn run(self) -> Self::Result;
}

/// Does work with the only instructions there are.
pub fn widest<W: Work>(work: W) -> W::Result {
    work.run()
}
