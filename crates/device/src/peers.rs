//! Other ranks, as kernels of exchanges and programs that train see them. Whoever connects ranks implements it; a device is handed it.

use std::fmt;

use plimsoll_graph::ops::{Exchange, ExchangeKind, Rank};
use plimsoll_graph::{Shape, Type};

use crate::Bytes;
use crate::backend::{Element, Fault, Operand};

/// What was sent and received between ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RankTraffic {
    /// Bytes that this rank sent.
    pub sent: u64,
    /// Bytes that it received.
    pub received: u64,
}

/// What one exchange reads and writes.
pub struct Exchanged<'a> {
    /// This rank's values.
    pub x: Operand<'a>,
    /// What becomes of them.
    pub y: Operand<'a>,
    /// Scratch of the bytes that were declared.
    pub scratch: &'a mut [u8],
}

/// The ranks that train together, seen from one of them.
///
/// All ranks make the same exchanges in the same order. Every wait ends: with the values, or with an error that names a rank.
pub trait Peers: Send + Sync + fmt::Debug {
    /// Which rank this is, and of how many.
    fn rank(&self) -> Rank;

    /// What they are connected by: `threads`, `tcp`, or the name and version of a library.
    fn by(&self) -> &str;

    /// Whether values are exchanged in the host's memory; otherwise in a card's.
    fn is_on_host(&self) -> bool;

    /// The same ranks with values in the host's memory: where exchanges of a step are between cards, what ranks tell each other between steps is not.
    /// None where it is these.
    fn on_host(&self) -> Option<&dyn Peers> {
        None
    }

    /// Bytes of scratch that an exchange of such values needs.
    fn scratch(&self, exchange: &Exchange, x: &Type) -> usize;

    /// Seconds that an exchange of such values takes, by what was measured of the link.
    fn seconds(&self, exchange: &Exchange, x: &Type) -> f64;

    /// Exchanges values, and waits until that is done. Allocates nothing of note.
    ///
    /// # Safety
    /// Operands are live memory of the types that the op infers, and scratch has the bytes that were declared. `y` lies apart from `x` or,
    /// where the op's in-place rule allows it, is the same.
    ///
    /// # Errors
    /// A rank has ended, stopped, does not answer, or makes another exchange. From then on every exchange fails.
    /// [`Fault::lost_rank`] names one that has ended or does not answer.
    unsafe fn exchange(&self, exchange: &Exchange, on: Exchanged<'_>) -> Result<(), Fault>;

    /// Starts to exchange values, so that the caller can compute meanwhile: the number to wait for it by. Without more to it, it is over when this returns.
    ///
    /// # Safety
    /// As of [`Peers::exchange`], until [`Peers::finish`] has returned: nobody touches what is written, nor writes what is read.
    ///
    /// # Errors
    /// As of [`Peers::exchange`].
    unsafe fn start(&self, exchange: &Exchange, on: Exchanged<'_>) -> Result<u64, Fault> {
        // SAFETY: the caller's promise.
        unsafe { self.exchange(exchange, on) }.map(|()| 0)
    }

    /// Waits until an exchange that was started is over.
    ///
    /// # Errors
    /// As of [`Peers::exchange`].
    fn finish(&self, _started: u64) -> Result<(), Fault> {
        Ok(())
    }

    /// Moves exchanges along that were started, without waiting. What fails is told by [`Peers::finish`].
    fn move_along(&self) {}

    /// Compares named texts of all ranks: which rank differs in what, the same sentence on all; none where they are alike.
    ///
    /// # Errors
    /// A rank fails.
    fn differ(&self, fields: &[(&str, &str)]) -> Result<Option<String>, Fault>;

    /// Tells all ranks that this one stops, and why, so that none waits for it.
    fn stop(&self, why: &str);

    /// What connecting them took of the process's memory for as long as they are connected: libraries, buffers, threads.
    fn own_bytes(&self) -> Bytes;

    /// What was sent and received so far.
    fn traffic(&self) -> RankTraffic;
}

impl dyn Peers + '_ {
    /// Replaces values by the sum of all ranks'. For a few of them, between steps: takes its scratch for as long.
    ///
    /// # Errors
    /// As of [`Peers::exchange`].
    pub fn sum(&self, values: &mut [f64]) -> Result<(), Fault> {
        self.over(ExchangeKind::Sum, values)
    }

    /// Replaces values by those of one rank.
    ///
    /// # Errors
    /// As of [`Peers::exchange`].
    pub fn of_rank<T: Element>(&self, root: usize, values: &mut [T]) -> Result<(), Fault> {
        self.over(ExchangeKind::From(root), values)
    }

    /// Whether any rank says so.
    ///
    /// # Errors
    /// As of [`Peers::exchange`].
    pub fn any(&self, says: bool) -> Result<bool, Fault> {
        let mut said = [u8::from(says)];
        self.over(ExchangeKind::Max, &mut said)?;
        Ok(said[0] != 0)
    }

    fn over<T: Element>(&self, kind: ExchangeKind, values: &mut [T]) -> Result<(), Fault> {
        if let Some(host) = self.on_host() {
            return host.over(kind, values);
        }
        let exchange = Exchange { kind, of: self.rank(), is_total: true, anew: false };
        let ty = Type::new(T::DTYPE, Shape::from([values.len()]));
        let x = Operand { ty: &ty, ptr: values.as_mut_ptr().cast() };
        // Aligned as scratch is.
        let mut scratch: Vec<u64> = vec![0; self.scratch(&exchange, &ty).div_ceil(8)];
        // SAFETY: values and scratch are borrowed until this returns, and of the sizes that are said.
        unsafe {
            let bytes = std::slice::from_raw_parts_mut(scratch.as_mut_ptr().cast(), scratch.len() * 8);
            self.exchange(&exchange, Exchanged { x, y: x, scratch: bytes })
        }
    }
}
