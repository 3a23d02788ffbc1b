//! Calls that are waited for, on slices: what one writes where nothing else is to be done meanwhile.

use crate::call::{Call, Kind, Reduce};
use crate::communicator::{Buffers, Communicator};
use crate::element::Element;
use crate::error::{CommError, Result};
use crate::shard::shard;

/// Blocking calls on slices, for every [`Communicator`]. Those that reduce take their scratch for the length of the call; a planned step hands it over
/// with [`Communicator::start`].
pub trait Collectives: Communicator {
    /// Replaces the values of all ranks by their sum or the largest of them.
    ///
    /// # Errors
    /// A rank fails, does not answer, or makes another call. The values are then undefined.
    fn all_reduce<T: Element>(&self, reduce: Reduce, values: &mut [T]) -> Result<()> {
        let at = values.as_mut_ptr();
        // SAFETY: of the slice, which is borrowed until this returns.
        unsafe { run(self, Kind::AllReduce(reduce), at, at, values.len()) }
    }

    /// Replaces this rank's shard of the values ([`shard`]) by the sum or the largest of all ranks'. The others stay.
    ///
    /// # Errors
    /// As [`Collectives::all_reduce`].
    fn reduce_scatter<T: Element>(&self, reduce: Reduce, values: &mut [T]) -> Result<()> {
        let own = shard(values.len(), self.ranks(), self.rank());
        let at = values.as_mut_ptr();
        // SAFETY: of the slice, which is borrowed until this returns.
        unsafe { run(self, Kind::ReduceScatter(reduce), at, at.wrapping_add(own.start), values.len()) }
    }

    /// Fills the shards of the other ranks with what those have in them.
    ///
    /// # Errors
    /// As [`Collectives::all_reduce`].
    fn all_gather<T: Element>(&self, values: &mut [T]) -> Result<()> {
        let own = shard(values.len(), self.ranks(), self.rank());
        let at = values.as_mut_ptr();
        // SAFETY: of the slice, which is borrowed until this returns.
        unsafe { run(self, Kind::AllGather, at.wrapping_add(own.start), at, values.len()) }
    }

    /// Replaces the values by those of one rank.
    ///
    /// # Errors
    /// As [`Collectives::all_reduce`].
    fn broadcast<T: Element>(&self, root: usize, values: &mut [T]) -> Result<()> {
        let at = values.as_mut_ptr();
        // SAFETY: of the slice, which is borrowed until this returns.
        unsafe { run(self, Kind::Broadcast { root }, at, at, values.len()) }
    }

    /// Sends values to a rank, which receives as many.
    ///
    /// # Errors
    /// As [`Collectives::all_reduce`].
    fn send<T: Element>(&self, to: usize, values: &[T]) -> Result<()> {
        // SAFETY: of the slice, which is borrowed until this returns.
        unsafe { run(self, Kind::Send { to }, values.as_ptr(), std::ptr::null_mut(), values.len()) }
    }

    /// Receives as many values as a rank sends.
    ///
    /// # Errors
    /// As [`Collectives::all_reduce`].
    fn receive<T: Element>(&self, from: usize, values: &mut [T]) -> Result<()> {
        // SAFETY: of the slice, which is borrowed until this returns.
        unsafe { run(self, Kind::Receive { from }, std::ptr::null(), values.as_mut_ptr(), values.len()) }
    }

    /// Waits until all ranks have come here.
    ///
    /// # Errors
    /// As [`Collectives::all_reduce`].
    fn barrier(&self) -> Result<()> {
        // SAFETY: there are no values.
        unsafe { run::<u8>(self, Kind::Barrier, std::ptr::null(), std::ptr::null_mut(), 0) }
    }
}

impl<C: Communicator + ?Sized> Collectives for C {}

/// Starts a call and waits for it, with scratch of its own.
///
/// # Safety
/// Input and output are as long as the call says, and the caller's until this returns.
unsafe fn run<T: Element>(
    ranks: &(impl Communicator + ?Sized),
    kind: Kind,
    input: *const T,
    output: *mut T,
    len: usize,
) -> Result<()> {
    let call = Call { kind, dtype: T::DTYPE, len };
    if !ranks.is_on_host() && kind != Kind::Barrier {
        let why =
            format!("{} takes values on a card, by `start`, and not slices of the host", ranks.backend());
        return Err(CommError::Invalid { call: call.to_string(), why });
    }
    let words = ranks.scratch_bytes(&call).div_ceil(8);
    let mut scratch: Vec<u64> = Vec::new();
    scratch.try_reserve_exact(words).map_err(|_| CommError::Invalid {
        call: call.to_string(),
        why: format!("there is no memory for {} bytes of scratch", words * 8),
    })?;
    let buffers = Buffers {
        input: input.cast(),
        output: output.cast(),
        scratch: scratch.as_mut_ptr().cast(),
        scratch_bytes: words * 8,
    };
    // SAFETY: the caller's promise; the call is over when `wait` is, with an error or without.
    let ticket = unsafe { ranks.start(&call, buffers)? };
    ranks.wait(ticket)
}
