//! Ranks that are planned for and not there: what their exchanges would need and take.

use std::time::Duration;

use plimsoll_device::backend::Fault;
use plimsoll_device::{Bytes, Exchanged, Peers, RankTraffic};
use plimsoll_graph::ops::{Exchange, Rank};
use plimsoll_graph::{Rule, Type};

use crate::cost::Topology;
use crate::error::{CommError, Result};
use crate::link::{Link, measure};
use crate::local;
use crate::peers::{PER_RANK, call};
use crate::schedule::Schedule;

/// One of so many ranks, to plan a step with. It exchanges nothing.
///
/// ```
/// use plimsoll_comm::Imagined;
/// use plimsoll_device::Peers;
/// use plimsoll_graph::ops::Rank;
/// let rank = Imagined::here(Rank { rank: 0, ranks: 4 })?;
/// assert_eq!(rank.rank().ranks, 4);
/// assert!(rank.link().bandwidth > 1e6);
/// # Ok::<(), plimsoll_comm::CommError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Imagined {
    rank: Rank,
    link: Link,
}

impl Imagined {
    /// A rank among others behind such a link.
    pub fn new(rank: Rank, link: Link) -> Imagined {
        Imagined { rank, link }
    }

    /// A rank among others on this machine, by what is measured between two threads.
    ///
    /// # Errors
    /// A thread could not be started, or failed.
    pub fn here(rank: Rank) -> Result<Imagined> {
        let failed = |_| CommError::Start("the link between two threads could not be measured".into());
        let mut pair = local::ranks(2, Duration::from_secs(30));
        let (Some(second), Some(first)) = (pair.pop(), pair.pop()) else {
            return Err(CommError::Start("there are no two threads to measure a link between".into()));
        };
        let link = std::thread::scope(|threads| {
            let other = threads.spawn(move || measure(&second));
            let own = measure(&first)?;
            other.join().map_err(failed)??;
            Ok::<_, CommError>(own)
        })?;
        let nobody = Link { latency: 0.0, bandwidth: f64::INFINITY };
        Ok(Imagined { rank, link: link.unwrap_or(nobody) })
    }

    /// The link that its exchanges are reckoned by.
    pub fn link(&self) -> Link {
        self.link
    }
}

fn unconnected(op: &'static str) -> Fault {
    Fault::new(op, "these ranks are only planned for; start them to train")
}

impl Peers for Imagined {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn by(&self) -> &str {
        "a plan"
    }

    fn is_on_host(&self) -> bool {
        true
    }

    fn scratch(&self, exchange: &Exchange, x: &Type) -> usize {
        Schedule::new(call(exchange, x), self.rank.rank, self.rank.ranks).scratch_bytes()
    }

    fn seconds(&self, exchange: &Exchange, x: &Type) -> f64 {
        let call = call(exchange, x);
        Topology::flat(self.rank.ranks, self.link).seconds(call.kind, call.bytes() as u64)
    }

    unsafe fn exchange(&self, exchange: &Exchange, _: Exchanged<'_>) -> Result<(), Fault> {
        Err(unconnected(Rule::name(exchange)))
    }

    fn differ(&self, _: &[(&str, &str)]) -> Result<Option<String>, Fault> {
        Err(unconnected("start"))
    }

    fn stop(&self, _: &str) {}

    fn own_bytes(&self) -> Bytes {
        Bytes(PER_RANK.get() * (self.rank.ranks as u64 - 1))
    }

    fn traffic(&self) -> RankTraffic {
        RankTraffic::default()
    }
}
