//! Turns lifespans of instructions into offsets of one arena, through the planner's packer.

use plimsoll_device::backend::ALIGNMENT;
use plimsoll_plan::pack::{Buffer, Options, pack};

use crate::error::{Error, Result};

/// Bytes that must be there from one instruction to another (half-open).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) bytes: usize,
}

/// An offset for each span, and the bytes of the arena: spans that overlap in time do not overlap in place.
pub(crate) fn assign(spans: &[Span]) -> Result<(Vec<usize>, usize)> {
    // Sizes are rounded to the alignment first, so that the packer's lower bound is in the arena's own units.
    let buffers: Vec<Buffer> = spans
        .iter()
        .map(|span| Buffer {
            lower: span.start as u64,
            upper: span.end as u64,
            size: span.bytes.next_multiple_of(ALIGNMENT) as u64,
            alignment: ALIGNMENT as u64,
        })
        .collect();
    let packing =
        pack(&buffers, &Options::default()).map_err(|e| Error::Internal(format!("packing failed: {e}")))?;
    Ok((packing.offsets.into_iter().map(|o| o as usize).collect(), packing.height as usize))
}
