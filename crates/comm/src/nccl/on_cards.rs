//! Turns ranks of which each has a card of its own into ranks whose steps exchange values from card to card.

use std::collections::HashSet;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use plimsoll_device::backend::{Backend, Fault};
use plimsoll_device::{Bytes, Exchanged, Peers, RankTraffic};
use plimsoll_graph::ops::{Exchange, Rank};
use plimsoll_graph::{DType, Type, counted};

use super::{Cards, load};
use crate::call::{Call, Kind, Reduce};
use crate::communicator::{Buffers, Communicator};
use crate::error::{CommError, Result};
use crate::link::{LONG, Link, Message, measure_by};
use crate::peers::{Connected, NOBODY, alike};

/// Ranks on cards: steps exchange values by NCCL, and what ranks tell each other between steps goes over the host as before.
///
/// An exchange goes on a stream of NCCL's own, beside the kernels that are queued until its result is waited for. None is queued behind one that waits for a
/// rank that is gone, and every wait ends.
pub struct OnCards<C: Communicator> {
    host: Arc<Connected<C>>,
    cards: Connected<Cards<C>>,
    /// Whose context they are in.
    _card: Arc<dyn Backend>,
}

impl<C: Communicator> OnCards<C> {
    /// Connects the cards of ranks: those, or a sentence that says why values have to go through the host, the same on all ranks. All ranks call it.
    ///
    /// Several ranks of one card are not what NCCL connects, nor is a device without a stream of CUDA.
    ///
    /// # Errors
    /// A rank fails, or NCCL does.
    pub fn connect(
        host: Arc<Connected<C>>,
        card: Arc<dyn Backend>,
        timeout: Duration,
    ) -> Result<Result<OnCards<C>, String>> {
        let ranks = host.communicator();
        let bus = card.properties().card.map(|card| card.bus);
        let own = match (card.meeting(), bus, load()) {
            (None, ..) | (_, None, _) => Err("it is not on a card that has a stream".to_string()),
            (.., Err(why)) => Err(format!("NCCL cannot be used: {why}")),
            (Some(_), Some(bus), Ok(_)) => Ok(bus),
        };
        // All know of each whether it can, and which card it has.
        let mut said = vec![0.0; ranks.ranks()];
        said[ranks.rank()] = own.as_ref().map_or(0.0, |bus| number(&format!("{} {bus}", machine())));
        sum(&host, &mut said)?;
        match own {
            Err(why) => return Ok(Err(why)),
            Ok(_) if said.contains(&0.0) => return Ok(Err("another rank cannot use NCCL".into())),
            Ok(_) => {}
        }
        let apart: HashSet<u64> = said.iter().map(|card| card.to_bits()).collect();
        if apart.len() < said.len() {
            let cards = counted(apart.len(), "card");
            return Ok(Err(format!("{} ranks share {cards}", said.len())));
        }
        let failed = |fault: Fault| CommError::Start(fault.to_string());
        // The context of the card is current on this thread from here on.
        card.synchronize().map_err(failed)?;
        let held = || card.taken().unwrap_or(Bytes::ZERO).get();
        let before = held();
        // SAFETY: the card is kept here, on this thread its context is current, and a device that exchanges values waits for its own kernels before,
        // which makes the context current on the thread that does.
        let cards = unsafe { Cards::connect(ranks.clone(), timeout, &held)? };
        let link = cards.try_out()?.unwrap_or(NOBODY);
        let library = alike(ranks.as_ref(), held().saturating_sub(before))?;
        Ok(Ok(OnCards { cards: Connected { ranks: Arc::new(cards), link, library }, host, _card: card }))
    }
}

impl<C: Communicator> Connected<C> {
    /// How many ranks before this one are on its machine: which of the machine's cards is its own. All ranks call it.
    ///
    /// # Errors
    /// A rank fails.
    pub fn place_on_machine(&self) -> Result<usize> {
        let ranks = self.communicator();
        let mut machines = vec![0.0; ranks.ranks()];
        let own = number(&machine());
        machines[ranks.rank()] = own;
        sum(self, &mut machines)?;
        Ok(machines[..ranks.rank()].iter().filter(|machine| **machine == own).count())
    }
}

/// Adds up numbers of all ranks.
fn sum<C: Communicator>(host: &Connected<C>, numbers: &mut [f64]) -> Result<()> {
    let ranks: &dyn Peers = host;
    ranks.sum(numbers).map_err(|fault| CommError::Start(fault.to_string()))
}

/// What tells this machine from others while it runs.
fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let known = read("/proc/sys/kernel/random/boot_id").or_else(|| read("/etc/hostname"));
    known.unwrap_or_default().trim().to_string()
}

/// A text as a number that a float has exactly, and that is not 0.
fn number(text: &str) -> f64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    ((hasher.finish() >> 12) | 1) as f64
}

impl<C: Communicator> Cards<C> {
    /// Makes each call once, so that NCCL has taken what it needs, and measures the link between the first rank and the last. All ranks call it.
    fn try_out(&self) -> Result<Option<Link>> {
        let mut block = 0u64;
        // SAFETY: a place for an address; the context is current.
        let code = unsafe { (self.driver.mem_alloc)(&mut block, 2 * LONG) };
        if code != 0 {
            let why = format!("cuMemAlloc of {} bytes to try NCCL with failed with {code}", 2 * LONG);
            self.stop(&why);
            return Err(CommError::Start(why));
        }
        let tried = self.calls_on(block as *mut u8);
        // SAFETY: the block from above, which no call uses any more: each was waited for, or aborted.
        unsafe { (self.driver.mem_free)(block) };
        tried
    }

    fn calls_on(&self, block: *mut u8) -> Result<Option<Link>> {
        let run = |kind: Kind, bytes: usize| {
            let call = Call { kind, dtype: DType::U8, len: bytes };
            // Results lie behind what is read, but for a broadcast, which has one place.
            let output =
                if matches!(kind, Kind::Broadcast { .. }) { block } else { block.wrapping_add(LONG) };
            let buffers = Buffers { input: block, output, scratch: std::ptr::null_mut(), scratch_bytes: 0 };
            // SAFETY: the block is of twice LONG bytes of the card, of which a call reads and writes LONG at most.
            self.wait(unsafe { self.start(&call, buffers)? })
        };
        let n = self.ranks();
        for kind in [
            Kind::AllReduce(Reduce::Sum),
            Kind::ReduceScatter(Reduce::Sum),
            Kind::AllGather,
            Kind::Broadcast { root: 0 },
        ] {
            for bytes in [n, LONG - LONG % n] {
                run(kind, bytes)?;
            }
        }
        measure_by(self.host(), &mut |message, bytes| match message {
            Message::To(to) => run(Kind::Send { to }, bytes),
            Message::From(from) => run(Kind::Receive { from }, bytes),
        })
    }
}

impl<C: Communicator> Peers for OnCards<C> {
    fn rank(&self) -> Rank {
        self.host.rank()
    }

    fn by(&self) -> &str {
        self.cards.by()
    }

    fn is_on_host(&self) -> bool {
        false
    }

    fn on_host(&self) -> Option<&dyn Peers> {
        Some(self.host.as_ref())
    }

    fn scratch(&self, exchange: &Exchange, x: &Type) -> usize {
        self.cards.scratch(exchange, x)
    }

    fn seconds(&self, exchange: &Exchange, x: &Type) -> f64 {
        self.cards.seconds(exchange, x)
    }

    unsafe fn exchange(&self, exchange: &Exchange, on: Exchanged<'_>) -> Result<(), Fault> {
        // SAFETY: the caller's promise.
        unsafe { self.cards.exchange(exchange, on) }
    }

    unsafe fn start(&self, exchange: &Exchange, on: Exchanged<'_>) -> Result<u64, Fault> {
        // SAFETY: the caller's promise.
        unsafe { self.cards.start(exchange, on) }
    }

    fn finish(&self, started: u64) -> Result<(), Fault> {
        self.cards.finish(started)
    }

    fn move_along(&self) {
        self.cards.move_along();
    }

    fn differ(&self, fields: &[(&str, &str)]) -> Result<Option<String>, Fault> {
        self.host.differ(fields)
    }

    fn stop(&self, why: &str) {
        self.cards.stop(why);
    }

    fn own_bytes(&self) -> Bytes {
        self.cards.own_bytes()
    }

    fn traffic(&self) -> RankTraffic {
        let (cards, host) = (self.cards.traffic(), self.host.traffic());
        RankTraffic { sent: cards.sent + host.sent, received: cards.received + host.received }
    }
}

impl<C: Communicator> fmt::Debug for OnCards<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}, on cards", self.cards)
    }
}
