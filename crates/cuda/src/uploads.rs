//! Pinned memory of a fixed size from which batches are copied to the card on a stream of their own.

use std::ops::Range;

use plimsoll_device::backend::{self, Fault};

use crate::error::Error;
use crate::memory::Pinned;
use crate::stream::{Event, Stream};
use crate::{Cuda, Engine};

/// The host's side of copies to a device.
#[derive(Debug)]
pub(crate) enum Uploads {
    /// Pinned memory, the stream that copies from it, and the point at which its last copy is done.
    Card { cuda: Cuda, pinned: Pinned, stream: Stream, done: Event },
    /// The emulator's: copies happen when they are waited for and not before, so that a missing wait shows.
    Host { bytes: Vec<u8>, begun: Vec<(usize, Range<usize>)> },
}

impl Uploads {
    /// So many bytes of host memory.
    pub(crate) fn new(cuda: &Cuda, bytes: usize) -> Result<Uploads, Error> {
        Ok(match cuda.0.engine {
            Engine::Card(_) => {
                let (pinned, stream) = (Pinned::new(cuda, bytes)?, Stream::new(cuda)?);
                let done = stream.record()?;
                Uploads::Card { cuda: cuda.clone(), pinned, stream, done }
            }
            Engine::Host(_) => Uploads::Host { bytes: vec![0; bytes], begun: Vec::new() },
        })
    }
}

impl Drop for Uploads {
    fn drop(&mut self) {
        if let Uploads::Card { stream, .. } = self {
            // A copy may be under way, and its two ends are about to go. A drop cannot report a refusal.
            let _ = stream.synchronize();
        }
    }
}

impl backend::Uploads for Uploads {
    fn bytes(&mut self) -> Result<&mut [u8], Fault> {
        match self {
            Uploads::Card { pinned, done, .. } => {
                done.wait().map_err(Error::into_fault)?;
                Ok(pinned.bytes_mut())
            }
            Uploads::Host { bytes, .. } => Ok(bytes),
        }
    }

    unsafe fn start(&mut self, to: *mut u8, from: Range<usize>) -> Result<(), Fault> {
        match self {
            Uploads::Card { pinned, stream, .. } => {
                // SAFETY: the caller's promise; the pinned side is not written before the copy was waited for.
                unsafe { stream.upload(to, pinned, from.start, from.len()) }.map_err(Error::into_fault)
            }
            Uploads::Host { bytes, begun } => {
                if bytes.get(from.clone()).is_none() {
                    let why = format!("bytes {from:?} are not within {} of the host's side", bytes.len());
                    return Err(Fault::new("upload", why));
                }
                begun.push((to.expose_provenance(), from));
                Ok(())
            }
        }
    }

    fn finish(&mut self) -> Result<(), Fault> {
        match self {
            Uploads::Card { cuda, stream, done, .. } => {
                stream.mark(done).and_then(|()| cuda.wait_for(done)).map_err(Error::into_fault)
            }
            Uploads::Host { bytes, begun } => {
                for (to, from) in begun.drain(..) {
                    let part = &bytes[from];
                    let to = std::ptr::with_exposed_provenance_mut::<u8>(to);
                    // SAFETY: the promise of `start`: the memory is live, as long, and used by nothing that still runs.
                    unsafe { to.copy_from_nonoverlapping(part.as_ptr(), part.len()) };
                }
                Ok(())
            }
        }
    }
}
