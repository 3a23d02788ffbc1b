//! A communicator as the ranks that a device exchanges values with.

use std::fmt;
use std::sync::Arc;

use plimsoll_device::backend::Fault;
use plimsoll_device::{Bytes, Exchanged, Peers, RankTraffic};
use plimsoll_graph::ops::{Exchange, ExchangeKind, Rank};
use plimsoll_graph::{Rule, Type};

use crate::agree::agree;
use crate::call::{Call, Kind, Reduce};
use crate::collectives::Collectives;
use crate::communicator::{Buffers, Communicator, Ticket};
use crate::cost::Topology;
use crate::error::{CommError, Result};
use crate::link::{Link, measure};

/// What a rank takes for itself beside what a library does: buffers of sockets and calls, a few KiB for each other rank.
pub(crate) const PER_RANK: Bytes = Bytes::kib(64);

/// What was measured of a library is rounded up to this: it varies from run to run by some hundred KiB, and the least that a refusal names must do.
const GRAIN: u64 = 4 << 20;

/// The link of a rank by itself, which reaches nobody at no cost.
pub(crate) const NOBODY: Link = Link { latency: 0.0, bandwidth: f64::INFINITY };

/// What a library was measured to take, the same on all ranks: that of the rank where it takes most, rounded up.
pub(crate) fn alike(host: &(impl Communicator + ?Sized), measured: u64) -> Result<Bytes> {
    let mut most = [measured.next_multiple_of(GRAIN) as i64];
    host.all_reduce(Reduce::Max, &mut most)?;
    Ok(Bytes(most[0] as u64))
}

/// Ranks that are connected, with what was measured of the link between them.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
/// use plimsoll_comm::{Connected, local};
/// use plimsoll_device::Peers;
/// std::thread::scope(|threads| {
///     for rank in local::ranks(2, Duration::from_secs(10)) {
///         threads.spawn(move || {
///             let peers: Arc<dyn Peers> = Arc::new(Connected::new(rank).unwrap());
///             let mut values = [1.0, peers.rank().rank as f64];
///             peers.sum(&mut values).unwrap();
///             assert_eq!(values, [2.0, 1.0]);
///         });
///     }
/// });
/// ```
pub struct Connected<C> {
    pub(crate) ranks: Arc<C>,
    pub(crate) link: Link,
    /// What the library that connects them takes, of the rank where it takes most.
    pub(crate) library: Bytes,
}

impl<C: Communicator> Connected<C> {
    /// Measures the link between ranks, and says what connecting them takes alike on all. All ranks call it.
    ///
    /// # Errors
    /// A rank fails.
    pub fn new(ranks: C) -> Result<Connected<C>> {
        let link = measure(&ranks)?.unwrap_or(NOBODY);
        let library = alike(&ranks, ranks.own_bytes())?;
        Ok(Connected { ranks: Arc::new(ranks), link, library })
    }

    /// What was measured between the first rank and the last.
    pub fn link(&self) -> Link {
        self.link
    }

    /// The communicator.
    pub fn communicator(&self) -> &Arc<C> {
        &self.ranks
    }
}

/// The call that an exchange is.
pub(crate) fn call(exchange: &Exchange, x: &Type) -> Call {
    let kind = match exchange.kind {
        ExchangeKind::Sum => Kind::AllReduce(Reduce::Sum),
        ExchangeKind::Max => Kind::AllReduce(Reduce::Max),
        ExchangeKind::ScatterSum => Kind::ReduceScatter(Reduce::Sum),
        ExchangeKind::Gather(_) => Kind::AllGather,
        ExchangeKind::From(root) => Kind::Broadcast { root },
        ExchangeKind::Send(to) => Kind::Send { to },
        ExchangeKind::Receive(from, _) => Kind::Receive { from },
    };
    let dtype = if let ExchangeKind::Receive(_, y) = &exchange.kind { y.dtype } else { x.dtype };
    Call { kind, dtype, len: exchange.len(x) }
}

/// An error between ranks as the fault of an op.
fn fault(op: &'static str, why: &CommError) -> Fault {
    Fault { lost_rank: why.lost_rank(), ..Fault::new(op, why.to_string()) }
}

impl<C: Communicator> Peers for Connected<C> {
    fn rank(&self) -> Rank {
        Rank::new(self.ranks.rank(), self.ranks.ranks())
    }

    fn by(&self) -> &str {
        self.ranks.backend()
    }

    fn is_on_host(&self) -> bool {
        self.ranks.is_on_host()
    }

    fn scratch(&self, exchange: &Exchange, x: &Type) -> usize {
        self.ranks.scratch_within(exchange.of, &call(exchange, x))
    }

    fn seconds(&self, exchange: &Exchange, x: &Type) -> f64 {
        let call = call(exchange, x);
        Topology::flat(exchange.of.ranks, self.link).seconds(call.kind, call.bytes() as u64)
    }

    unsafe fn exchange(&self, exchange: &Exchange, on: Exchanged<'_>) -> Result<(), Fault> {
        // SAFETY: the caller's promise; the call is over when `wait` is, with an error or without.
        let ticket = unsafe { self.begin(exchange, on) }?;
        self.ranks.wait(ticket).map_err(|why| fault(Rule::name(exchange), &why))
    }

    unsafe fn start(&self, exchange: &Exchange, on: Exchanged<'_>) -> Result<u64, Fault> {
        // SAFETY: the caller's promise.
        unsafe { self.begin(exchange, on) }.map(|ticket| ticket.0)
    }

    fn finish(&self, started: u64) -> Result<(), Fault> {
        self.ranks.wait(Ticket(started)).map_err(|why| fault("exchange", &why))
    }

    fn move_along(&self) {
        // Whoever waits hears what failed.
        drop(self.ranks.progress());
    }

    fn differ(&self, fields: &[(&str, &str)]) -> Result<Option<String>, Fault> {
        match agree(self.ranks.as_ref(), fields) {
            Ok(()) => Ok(None),
            Err(why @ CommError::Disagree(_)) => Ok(Some(why.to_string())),
            Err(why) => Err(fault("start", &why)),
        }
    }

    fn stop(&self, why: &str) {
        self.ranks.stop(why);
    }

    fn own_bytes(&self) -> Bytes {
        let others = self.ranks.ranks() as u64 - 1;
        self.library + Bytes(PER_RANK.get() * others)
    }

    fn traffic(&self) -> RankTraffic {
        let traffic = self.ranks.traffic();
        RankTraffic { sent: traffic.sent, received: traffic.received }
    }
}

impl<C: Communicator> Connected<C> {
    /// Starts a call.
    ///
    /// # Safety
    /// As of [`Peers::start`].
    unsafe fn begin(&self, exchange: &Exchange, on: Exchanged<'_>) -> Result<Ticket, Fault> {
        let Exchanged { x, y, scratch } = on;
        let call = call(exchange, x.ty);
        if matches!(exchange.kind, ExchangeKind::From(_)) && x.ptr != y.ptr && self.ranks.is_on_host() {
            // SAFETY: the caller's promise: both are live, of one type, and apart.
            unsafe { y.ptr.copy_from_nonoverlapping(x.ptr, x.ty.bytes()) };
        }
        let buffers = Buffers {
            input: x.ptr,
            output: y.ptr,
            scratch: scratch.as_mut_ptr(),
            scratch_bytes: scratch.len(),
        };
        // SAFETY: the caller's promise.
        let started = unsafe { self.ranks.start_within(exchange.of, &call, buffers) };
        started.map_err(|why| fault(Rule::name(exchange), &why))
    }
}

impl<C: Communicator> fmt::Debug for Connected<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} of {} by {}", self.ranks.rank(), self.ranks.ranks(), self.ranks.backend())
    }
}
