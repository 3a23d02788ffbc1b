//! Measures the link between host and card.

use plimsoll_device::backend::Link;

use crate::Cuda;
use crate::arena::Arena;
use crate::error::Error;
use crate::memory::Pinned;
use crate::stream::Stream;

/// Bytes of one measured copy: long enough that starting it costs nothing.
const BYTES: usize = 64 << 20;
/// Copies that are timed; the fastest counts.
const ROUNDS: usize = 4;

impl Cuda {
    /// Measures the link to the card: takes a few milliseconds, and 64 MiB on either side for as long.
    ///
    /// # Errors
    /// The driver's refusal.
    pub fn link(&self) -> Result<Link, Error> {
        let mut arena = Arena::new(self, BYTES)?;
        arena.resize(BYTES)?;
        // SAFETY: the arena has as many bytes, and nobody else knows it.
        unsafe { self.link_at(arena.at(), BYTES) }
    }

    /// The same over memory of the card that is there already.
    ///
    /// # Safety
    /// `at` must be live memory of this device, of as many bytes, and used by nobody else.
    pub(crate) unsafe fn link_at(&self, at: *mut u8, bytes: usize) -> Result<Link, Error> {
        let host = Pinned::new(self, bytes)?;
        let stream = Stream::new(self)?;
        // What was put on the kernels' stream before may still use the memory.
        self.synchronize()?;
        let mut best = [0.0f64; 2];
        for _ in 0..ROUNDS {
            let start = stream.record()?;
            // SAFETY: both sides have as many bytes and live until the stream has been waited for.
            unsafe { stream.upload(at, &host, 0, bytes) }?;
            let middle = stream.record()?;
            // SAFETY: as above; nobody reads the host's side.
            unsafe { stream.download(at, &host, 0, bytes) }?;
            let end = stream.record()?;
            stream.synchronize()?;
            best[0] = best[0].max(bytes as f64 / middle.since(&start)?);
            best[1] = best[1].max(bytes as f64 / end.since(&middle)?);
        }
        Ok(Link { up: best[0], down: best[1] })
    }
}
