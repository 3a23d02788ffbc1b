//! Measures the link between host and card.

use crate::Cuda;
use crate::arena::Arena;
use crate::error::Error;
use crate::memory::Pinned;
use crate::stream::Stream;

/// Bytes of one measured copy: long enough that starting it costs nothing.
const BYTES: usize = 64 << 20;
/// Copies that are timed; the fastest counts.
const ROUNDS: usize = 4;

/// How fast pinned memory is copied, in bytes a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// From the host to the card.
    pub up: f64,
    /// From the card to the host.
    pub down: f64,
}

impl Cuda {
    /// Measures the link to the card: takes a few milliseconds, and 64 MiB on either side for as long.
    ///
    /// # Errors
    /// The driver's refusal.
    pub fn link(&self) -> Result<Link, Error> {
        let host = Pinned::new(self, BYTES)?;
        let mut arena = Arena::new(self, BYTES)?;
        arena.resize(BYTES)?;
        let stream = Stream::new(self)?;
        let mut best = [0.0f64; 2];
        for _ in 0..ROUNDS {
            let start = stream.record()?;
            // SAFETY: both sides have as many bytes and live until the stream has been waited for.
            unsafe { stream.upload(arena.at(), &host, 0, BYTES) }?;
            let middle = stream.record()?;
            // SAFETY: as above; nobody reads the host's side.
            unsafe { stream.download(arena.at(), &host, 0, BYTES) }?;
            let end = stream.record()?;
            stream.synchronize()?;
            best[0] = best[0].max(BYTES as f64 / middle.since(&start)?);
            best[1] = best[1].max(BYTES as f64 / end.since(&middle)?);
        }
        Ok(Link { up: best[0], down: best[1] })
    }
}
