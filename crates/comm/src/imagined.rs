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
use crate::machine::Machine;
use crate::peers::{NOBODY, PER_RANK, call};
use crate::schedule::Schedule;

/// One of so many ranks, to plan a step with. It exchanges nothing.
///
/// ```
/// use plimsoll_comm::Imagined;
/// use plimsoll_device::Peers;
/// use plimsoll_graph::ops::Rank;
/// let rank = Imagined::here(Rank::new(0, 4))?;
/// assert_eq!(rank.rank().ranks, 4);
/// assert!(rank.link().bandwidth > 1e6);
/// # Ok::<(), plimsoll_comm::CommError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Imagined {
    rank: Rank,
    topology: Topology,
    /// What connecting it takes of its memory.
    own_bytes: Bytes,
    /// Whether it has values in the host's memory, and not in a card's.
    is_on_host: bool,
}

impl Imagined {
    /// A rank among others behind such a link.
    pub fn new(rank: Rank, link: Link) -> Imagined {
        let own_bytes = Bytes(PER_RANK.get() * (rank.ranks as u64 - 1));
        Imagined { rank, topology: Topology::flat(rank.ranks, link), own_bytes, is_on_host: true }
    }

    /// A rank on a card among others, on machines of a record: so many, or as few as hold all ranks.
    ///
    /// ```
    /// use plimsoll_comm::{Imagined, Machine};
    /// use plimsoll_graph::ops::Rank;
    /// let h200 = Machine::known("h200").unwrap();
    /// let rank = Imagined::on(&h200, Rank::new(0, 64), Some(16)).unwrap();
    /// assert_eq!(rank.topology().per_machine, 4);
    /// assert!(Imagined::on(&h200, Rank::new(0, 64), Some(4)).is_err());
    /// ```
    ///
    /// # Errors
    /// The ranks do not lie evenly on the machines, or a machine has not so many cards.
    pub fn on(machine: &Machine, rank: Rank, machines: Option<usize>) -> Result<Imagined, String> {
        let (ranks, name) = (rank.ranks, &machine.name);
        let machines = machines.unwrap_or(ranks.div_ceil(machine.devices));
        if machines == 0 || ranks % machines != 0 {
            return Err(format!("{ranks} ranks do not lie evenly on {machines} machines"));
        }
        if ranks / machines > machine.devices {
            return Err(format!(
                "{ranks} ranks on {machines} machines are {} on each, and a machine of the record {name} has {} cards",
                ranks / machines,
                machine.devices
            ));
        }
        let topology = Topology { per_machine: ranks / machines, machines, ..Topology::of(machine, ranks) };
        Ok(Imagined { rank, topology, own_bytes: Bytes(machine.library), is_on_host: false })
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
        Ok(Imagined::new(rank, link.unwrap_or(NOBODY)))
    }

    /// Another one of the same ranks.
    #[must_use]
    pub fn as_rank(self, rank: usize) -> Imagined {
        Imagined { rank: Rank { rank, ..self.rank }, ..self }
    }

    /// The link to its neighbours that its exchanges are reckoned by.
    pub fn link(&self) -> Link {
        self.topology.inside
    }

    /// Where the ranks lie, and the links between them.
    pub fn topology(&self) -> &Topology {
        &self.topology
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
        self.is_on_host
    }

    fn scratch(&self, exchange: &Exchange, x: &Type) -> usize {
        // The library of a card has its own, which is counted with it.
        if !self.is_on_host {
            return 0;
        }
        Schedule::new(call(exchange, x), exchange.of.rank, exchange.of.ranks).scratch_bytes()
    }

    fn seconds(&self, exchange: &Exchange, x: &Type) -> f64 {
        let call = call(exchange, x);
        self.topology.within(exchange.of).seconds(call.kind, call.bytes() as u64)
    }

    unsafe fn exchange(&self, exchange: &Exchange, _: Exchanged<'_>) -> Result<(), Fault> {
        Err(unconnected(Rule::name(exchange)))
    }

    fn differ(&self, _: &[(&str, &str)]) -> Result<Option<String>, Fault> {
        Err(unconnected("start"))
    }

    fn stop(&self, _: &str) {}

    fn own_bytes(&self) -> Bytes {
        self.own_bytes
    }

    fn traffic(&self) -> RankTraffic {
        RankTraffic::default()
    }
}
