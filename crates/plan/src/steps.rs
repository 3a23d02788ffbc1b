//! Counts the steps of all searches on a thread, so that planning can be held to a bound that no clock decides.
//!
//! Each search has an allowance of its own and counts its work in units of its own. Here they are added up where they are
//! taken, in the innermost loops: sets that are looked at, changes to a schedule, arcs of a flow, placements of a packing.

use std::cell::Cell;

thread_local! {
    static STEPS: Cell<u64> = const { Cell::new(0) };
}

/// Adds so many steps to those of this thread.
#[inline]
pub(crate) fn count(steps: u64) {
    STEPS.with(|all| all.set(all.get().wrapping_add(steps)));
}

/// The steps that planning has taken on this thread so far. The same request takes the same number on every machine.
///
/// ```
/// use plimsoll_plan::{Op, Problem, Request, Tensor, plan, steps_taken};
/// let mut step = Problem::new();
/// let a = step.tensor(Tensor::output("a", 1024));
/// step.op(Op::new("make a", &[], &[a], 10));
/// let before = steps_taken();
/// plan(&step, &Request::within(1024)).unwrap();
/// assert!(steps_taken() > before);
/// ```
pub fn steps_taken() -> u64 {
    STEPS.with(Cell::get)
}
