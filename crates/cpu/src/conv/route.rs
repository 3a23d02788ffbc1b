//! Turns a convolution into the matrix products of its groups, by the way in which its patches reach the micro-kernel.

use super::ConvShape;
use crate::gemm::{Dest, Kind, Left, Plan, Right, run_products, scratch_bytes, tile_size};
use crate::isa::Isa;
use crate::pool::Pool;

/// What a convolution runs on, and its sizes.
#[derive(Clone, Copy)]
pub(super) struct On<'a> {
    pub pool: &'a Pool,
    pub isa: Isa,
    pub shape: &'a ConvShape,
}

impl<'a> On<'a> {
    /// Takes what is there if it goes together: `lengths` are those of input, filter and output.
    ///
    /// # Panics
    /// When a slice is shorter than the shape says, or the processor does not have the instructions.
    pub fn checked(pool: &'a Pool, isa: Isa, shape: &'a ConvShape, lengths: [usize; 3]) -> On<'a> {
        let [input, filter, output] = lengths;
        shape.check(input, filter, output);
        assert!(isa.is_available(), "this processor does not have {isa}");
        On { pool, isa, shape }
    }
}

/// Refuses a bias that is shorter than the channels it is added to.
pub(super) fn check_bias<T>(bias: Option<&[T]>, channels: usize) {
    assert!(bias.is_none_or(|bias| bias.len() >= channels), "the bias is shorter than the channels");
}

/// Two operands and the result.
pub(super) type Data<'a, T, O> = (&'a [T], &'a [T], &'a mut [O]);

/// Patches of which some channels can be taken.
pub(super) trait Channels: Left {
    /// The same patches of the channels from `channel` on.
    fn at_channel(self, channel: usize) -> Self;
}

/// How patches reach the micro-kernel.
pub(super) enum Route<P, S> {
    /// Plain product of pixels and channels.
    Pointwise(Plan),
    /// Packed tile by tile.
    Packed(Plan, P),
    /// Read in place from a padded strip.
    InPlace(Plan, S),
}

impl<P: Channels, S: Channels> Route<P, S> {
    fn plan(&self) -> &Plan {
        match self {
            Route::Pointwise(plan) | Route::Packed(plan, _) | Route::InPlace(plan, _) => plan,
        }
    }

    /// Bytes of scratch that [`Route::run`] needs on a pool of `threads` threads.
    pub(super) fn scratch_bytes(&self, isa: Isa, shape: &ConvShape, kind: Kind, threads: usize) -> usize {
        scratch_bytes(self.plan(), shape.groups, tile_size(isa).1, kind, threads)
    }

    /// Runs the products of all groups, each of `channels` channels of the patches, on what `right` gives; where there are no
    /// patches, on what `pointwise` gives.
    ///
    /// # Safety
    /// The patches and what the functions give have the plan's size.
    pub(super) unsafe fn run<'a, A: Left, B: Right, R: Right>(
        &self,
        (on, kind, channels): (&On<'_>, Kind, usize),
        pointwise: impl Fn(usize) -> (A, B) + Sync,
        right: impl Fn(usize) -> R + Sync,
        dest: impl Fn(usize) -> Dest<'a> + Sync,
        scratch: &mut [u8],
    ) {
        let (pool, isa, groups, panel) = (on.pool, on.isa, on.shape.groups, tile_size(on.isa).1);
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Route::Pointwise(plan) => {
                    let parts = |group| {
                        let (left, right) = pointwise(group);
                        (left, right, dest(group))
                    };
                    run_products(pool, isa, plan, groups, panel, kind, parts, scratch);
                }
                Route::Packed(plan, patches) => {
                    let parts = |group| (patches.at_channel(group * channels), right(group), dest(group));
                    run_products(pool, isa, plan, groups, panel, kind, parts, scratch);
                }
                Route::InPlace(plan, strip) => {
                    let parts = |group| (strip.at_channel(group * channels), right(group), dest(group));
                    run_products(pool, isa, plan, groups, panel, kind, parts, scratch);
                }
            }
        }
    }
}
