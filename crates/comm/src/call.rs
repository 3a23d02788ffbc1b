//! What a rank asks of the others, as data, and as the few bytes by which ranks see that they ask the same.

use std::fmt;

use plimsoll_graph::DType;
use plimsoll_graph::ops::Rank;

/// How values of several ranks become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reduce {
    /// Their sum, added in the order of ranks; 16-bit floats are added in f32 and rounded once; integers wrap around.
    Sum,
    /// The largest; a NaN of any rank is the result.
    Max,
}

/// Which exchange it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Every rank has all values, reduced.
    AllReduce(Reduce),
    /// Every rank has its shard of the values, reduced.
    ReduceScatter(Reduce),
    /// Every rank has the shards of all.
    AllGather,
    /// Every rank has the values of this one.
    Broadcast {
        /// The rank whose values they are.
        root: usize,
    },
    /// Values for one rank, which calls `Receive`.
    Send {
        /// That rank.
        to: usize,
    },
    /// Values of one rank, which calls `Send`.
    Receive {
        /// That rank.
        from: usize,
    },
    /// No values: nobody goes on before all have come.
    Barrier,
}

impl Kind {
    /// The name people write: `all-reduce`.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::AllReduce(_) => "all-reduce",
            Kind::ReduceScatter(_) => "reduce-scatter",
            Kind::AllGather => "all-gather",
            Kind::Broadcast { .. } => "broadcast",
            Kind::Send { .. } => "send",
            Kind::Receive { .. } => "receive",
            Kind::Barrier => "barrier",
        }
    }

    /// How its values are reduced, if they are.
    pub const fn reduce(self) -> Option<Reduce> {
        match self {
            Kind::AllReduce(reduce) | Kind::ReduceScatter(reduce) => Some(reduce),
            _ => None,
        }
    }

    /// The rank that it is with, for `Send` and `Receive`.
    pub const fn peer(self) -> Option<usize> {
        match self {
            Kind::Send { to: peer } | Kind::Receive { from: peer } => Some(peer),
            _ => None,
        }
    }
}

/// An exchange of values: the same on all ranks that take part.
///
/// ```
/// use plimsoll_comm::{Call, Kind, Reduce};
/// use plimsoll_graph::DType;
/// let call = Call { kind: Kind::AllReduce(Reduce::Sum), dtype: DType::F32, len: 1000 };
/// assert_eq!(call.to_string(), "all-reduce (sum) of 1000 f32");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Call {
    /// Which exchange.
    pub kind: Kind,
    /// The type of the values.
    pub dtype: DType,
    /// How many there are, of all shards together.
    pub len: usize,
}

impl Call {
    /// The same, with the ranks of a group named as they are among all: `own` is which of those this one is.
    pub(crate) const fn among_all(self, of: Rank, own: usize) -> Call {
        let kind = match self.kind {
            Kind::Broadcast { root } => Kind::Broadcast { root: of.among_all(own, root) },
            Kind::Send { to } => Kind::Send { to: of.among_all(own, to) },
            Kind::Receive { from } => Kind::Receive { from: of.among_all(own, from) },
            kind => kind,
        };
        Call { kind, ..self }
    }

    /// Bytes of all its values.
    pub const fn bytes(&self) -> usize {
        self.len.saturating_mul(self.dtype.bytes())
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind.name())?;
        match self.kind {
            Kind::AllReduce(Reduce::Sum) | Kind::ReduceScatter(Reduce::Sum) => f.write_str(" (sum)")?,
            Kind::AllReduce(Reduce::Max) | Kind::ReduceScatter(Reduce::Max) => f.write_str(" (max)")?,
            Kind::Broadcast { root } => write!(f, " from rank {root}")?,
            Kind::Send { to } => write!(f, " to rank {to}")?,
            Kind::Receive { from } => write!(f, " from rank {from}")?,
            Kind::AllGather => {}
            Kind::Barrier => return Ok(()),
        }
        write!(f, " of {} {}", self.len, self.dtype)
    }
}

/// A call and its number, as ranks compare it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// Counted from 0: collectives over all ranks, and over those of a group; sends and receives for each pair.
    pub number: u64,
    pub call: Call,
}

impl Header {
    pub const BYTES: usize = 32;

    /// A send and its receive are written alike, since they are the same exchange.
    pub fn encode(&self) -> [u8; Self::BYTES] {
        let (kind, reduce, root) = match self.call.kind {
            Kind::AllReduce(reduce) => (1, reduce, 0),
            Kind::ReduceScatter(reduce) => (2, reduce, 0),
            Kind::AllGather => (3, Reduce::Sum, 0),
            Kind::Broadcast { root } => (4, Reduce::Sum, root),
            Kind::Send { .. } | Kind::Receive { .. } => (5, Reduce::Sum, 0),
            Kind::Barrier => (6, Reduce::Sum, 0),
        };
        let dtype = DType::ALL.iter().position(|dtype| *dtype == self.call.dtype).unwrap_or(DType::ALL.len());
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&[b'P', kind, reduce as u8, dtype as u8]);
        bytes[8..16].copy_from_slice(&self.number.to_le_bytes());
        bytes[16..24].copy_from_slice(&(self.call.len as u64).to_le_bytes());
        bytes[24..].copy_from_slice(&(root as u64).to_le_bytes());
        bytes
    }

    /// The header that another rank wrote; what it received from us is what it calls a receive.
    pub fn decode(bytes: &[u8; Self::BYTES], of: usize) -> Option<Header> {
        let word = |at: usize| bytes[at..at + 8].try_into().map(u64::from_le_bytes).ok();
        let reduce = if bytes[2] == 0 { Reduce::Sum } else { Reduce::Max };
        let root = word(24)? as usize;
        let kind = match bytes[1] {
            1 => Kind::AllReduce(reduce),
            2 => Kind::ReduceScatter(reduce),
            3 => Kind::AllGather,
            4 => Kind::Broadcast { root },
            5 => Kind::Receive { from: of },
            6 => Kind::Barrier,
            _ => return None,
        };
        let dtype = *DType::ALL.get(usize::from(bytes[3]))?;
        let call = Call { kind, dtype, len: word(16)? as usize };
        (bytes[0] == b'P').then_some(Header { number: word(8)?, call })
    }
}

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, number {}", self.call, self.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_comes_back_from_its_bytes() {
        for kind in [
            Kind::AllReduce(Reduce::Max),
            Kind::ReduceScatter(Reduce::Sum),
            Kind::AllGather,
            Kind::Broadcast { root: 7 },
            Kind::Receive { from: 3 },
            Kind::Barrier,
        ] {
            for dtype in DType::ALL {
                let header = Header { number: 1 << 40, call: Call { kind, dtype, len: 12345678901 } };
                assert_eq!(Header::decode(&header.encode(), 3), Some(header));
            }
        }
        assert_eq!(Header::decode(&[0; 32], 0), None);
        assert_eq!(Header::decode(&[b'P', 1, 0, 200, 0, 0, 0, 0].repeat(4).try_into().unwrap(), 0), None);
    }
}
