//! Which of the values is whose, and which of them a round covers.

use std::ops::Range;

pub use plimsoll_graph::shard;

/// The piece of a range that a round covers: pieces of `step`, counted from its start. Empty past its end.
pub(crate) fn piece(of: &Range<usize>, step: usize, round: usize) -> Range<usize> {
    let start = of.start.saturating_add(step.saturating_mul(round)).min(of.end);
    start..start.saturating_add(step).min(of.end)
}
