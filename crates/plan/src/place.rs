//! Gives every buffer of a schedule an offset behind the residents.

use crate::lifespan::Lifespans;
use crate::pack;

/// Offsets of buffers, and where the highest ends.
#[derive(Clone)]
pub(crate) struct Places {
    pub offsets: Vec<u64>,
    pub height: u64,
    /// Whether these buffers have no lower packing.
    pub is_lowest: bool,
}

/// How long a packing is searched for, in the packer's seconds of work. There is no deadline: offsets must not depend on
/// the clock.
pub(crate) fn usual_work(buffers: usize) -> f64 {
    (2e-5 * buffers as f64).clamp(0.01, 0.3)
}

/// Packs `spans` from byte `base` on; any height up to `enough` will do.
pub(crate) fn place(spans: &Lifespans, base: u64, enough: u64, work: f64) -> Places {
    let nowhere = || Places { offsets: vec![0; spans.buffers.len()], height: u64::MAX, is_lowest: false };
    place_below(spans, base, enough, work, u64::MAX).unwrap_or_else(nowhere)
}

/// Like [`place`], where only a height under `below` is of use: nothing if none is found.
pub(crate) fn place_below(
    spans: &Lifespans,
    base: u64,
    enough: u64,
    work: f64,
    below: u64,
) -> Option<Places> {
    let buffer = |b: &crate::lifespan::Buffer| pack::Buffer {
        lower: u64::from(b.lower),
        upper: u64::from(b.upper),
        size: b.size,
        alignment: b.alignment,
    };
    let buffers: Vec<pack::Buffer> = spans.buffers.iter().map(buffer).collect();
    let options = pack::Options { capacity: Some(enough.saturating_sub(base)), work, deadline: f64::MAX };
    let below = if below == u64::MAX { below } else { below.saturating_sub(base) };
    // Only sizes past what a problem may have are refused; then nothing fits.
    let packing = pack::pack_below(&buffers, &options, false, below).ok().flatten()?;
    // A buffer without bytes lies anywhere; at zero it is aligned and inside every budget.
    let at = |(b, offset): (&pack::Buffer, &u64)| if b.size == 0 { 0 } else { base + offset };
    let offsets = buffers.iter().zip(&packing.offsets).map(at).collect();
    Some(Places { offsets, height: base + packing.height, is_lowest: packing.proved_optimal })
}
