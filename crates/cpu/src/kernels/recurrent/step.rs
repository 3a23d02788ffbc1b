//! What a step of every cell has: its number, and where h goes and its gradient comes from. The cell's own places stand beside it.

use plimsoll_graph::ops::RecurrentDims;

use super::super::lanes::Stored;
use super::super::small_matmul::LANES;
use super::Of;
use super::order::{apart, load, store};

/// One step of the forward pass of a cell, whose own places are `C`.
#[derive(Clone, Copy)]
pub(super) struct Step<T: Stored, C> {
    pub d: RecurrentDims,
    pub t: usize,
    /// h for the next step, rows [`apart`].
    pub h: *mut Of<T>,
    pub y: *mut T,
    pub own: C,
}

// SAFETY: tasks of a step touch their own units alone.
unsafe impl<T: Stored, C> Sync for Step<T, C> {}

impl<T: Stored, C> Step<T, C> {
    /// The sums of a sample for sixteen units of every gate.
    ///
    /// # Safety
    /// `sums` has rows of `GATES` times sixteen.
    #[inline(always)]
    pub(super) unsafe fn sums<const GATES: usize>(
        &self,
        b: usize,
        sums: *const Of<T>,
    ) -> [[Of<T>; LANES]; GATES] {
        // SAFETY: the caller's promise.
        unsafe { sums.add(b * GATES * LANES).cast::<[[Of<T>; LANES]; GATES]>().read_unaligned() }
    }

    /// Stores h of `n` units of a sample from `first` on, for the next step and as the result.
    ///
    /// # Safety
    /// Sample and units are inside the operands.
    #[inline(always)]
    pub(super) unsafe fn store_h(&self, b: usize, first: usize, n: usize, h: &[Of<T>; LANES]) {
        let units = self.d.units;
        // SAFETY: the caller's promise.
        unsafe {
            store(self.h.add(b * apart(units) + first), n, h);
            store(self.y.add((b * self.d.steps + self.t) * units + first), n, h);
        }
    }
}

/// One step of the backward pass of a cell, whose own places are `C`.
#[derive(Clone, Copy)]
pub(super) struct GradStep<T: Stored, C> {
    pub d: RecurrentDims,
    pub t: usize,
    pub dy: *const T,
    /// Numbers from one row of the sums to the next.
    pub columns: usize,
    pub own: C,
}

// SAFETY: tasks of a step touch their own units alone.
unsafe impl<T: Stored, C> Sync for GradStep<T, C> {}

impl<T: Stored, C> GradStep<T, C> {
    /// dy of `n` units of a sample from `first` on.
    ///
    /// # Safety
    /// Sample and units are inside the operands.
    #[inline(always)]
    pub(super) unsafe fn dy(&self, b: usize, first: usize, n: usize) -> [Of<T>; LANES] {
        // SAFETY: the caller's promise.
        unsafe { load(self.dy.add((b * self.d.steps + self.t) * self.d.units + first), n) }
    }

    /// What the next step hands back to sixteen units of a sample; none at the last step.
    ///
    /// # Safety
    /// `sums` has rows of `columns` numbers.
    #[inline(always)]
    pub(super) unsafe fn handed(&self, b: usize, sums: *const Of<T>) -> Option<[Of<T>; LANES]> {
        // SAFETY: the caller's promise.
        let read = || unsafe { sums.add(b * self.columns).cast::<[Of<T>; LANES]>().read_unaligned() };
        (self.t + 1 < self.d.steps).then(read)
    }
}
