//! Turns a call into rounds of messages: who sends which values to whom, and what is made of what came.
//!
//! A pure function of the call, the rank and the number of ranks, so that every backend sends the same messages and makes the same
//! bits, and what a call will carry is known before it is made.
//!
//! Reducing: every rank sends each other rank that one's shard, piece by piece, and adds what came for its own in the order of ranks.
//! As many bytes as around a ring, (n − 1) / n of all; but a sum does not depend on where its value lies, so that
//! buckets of any size give the same bits, and 16-bit values are added in f32 without being sent in it.

use std::ops::Range;

use crate::call::{Call, Kind};
use crate::shard::{piece, shard};

/// The most scratch of a call: pieces of this many bytes for all other ranks together.
pub const SCRATCH_BYTES: usize = 1 << 20;

/// The longest message: MPI counts bytes in 31 bits.
const MESSAGE_BYTES: usize = 256 << 20;

/// Where the values of a message lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Among the caller's values.
    Input,
    /// Among the results.
    Output,
    /// In the call's scratch.
    Scratch,
}

/// One message of a rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The other rank.
    pub peer: usize,
    /// Whether this rank sends it, or receives it.
    pub is_sent: bool,
    /// Where its values lie.
    pub place: Place,
    /// Which values of that place.
    pub values: Range<usize>,
}

/// A call as one rank sees it.
///
/// ```
/// use plimsoll_comm::{Call, Kind, Reduce, Schedule};
/// use plimsoll_graph::DType;
/// let call = Call { kind: Kind::AllReduce(Reduce::Sum), dtype: DType::F32, len: 4000 };
/// let schedule = Schedule::new(call, 0, 4);
/// // Three quarters of 16,000 bytes go out to be added, and as many with the sums.
/// assert_eq!(schedule.traffic(), (24_000, 24_000));
/// assert_eq!(schedule.scratch_bytes(), 3 * 4000);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Schedule {
    call: Call,
    rank: usize,
    ranks: usize,
}

/// What a round is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Reduce(usize),
    Scatter(usize),
    Gather(usize),
    Pass(usize),
    Meet(u32),
}

impl Schedule {
    /// The call of a rank among so many.
    pub const fn new(call: Call, rank: usize, ranks: usize) -> Schedule {
        Schedule { call, rank, ranks }
    }

    pub(crate) const fn rank(&self) -> usize {
        self.rank
    }

    pub(crate) const fn ranks(&self) -> usize {
        self.ranks
    }

    /// The values that are this rank's own.
    pub const fn own(&self) -> Range<usize> {
        shard(self.call.len, self.ranks, self.rank)
    }

    /// How many values each other rank has a place for in the scratch.
    pub(crate) fn step(&self) -> usize {
        let room = SCRATCH_BYTES / self.call.dtype.bytes() / self.others().max(1);
        room.max(1).min(self.largest_shard())
    }

    /// What the call needs as scratch, in bytes.
    pub fn scratch_bytes(&self) -> usize {
        match self.call.kind.reduce() {
            Some(_) => self.others() * self.step() * self.call.dtype.bytes(),
            None => 0,
        }
    }

    /// How many rounds there are; no message of a round is sent before the round before it is complete.
    pub fn rounds(&self) -> usize {
        (0..self.parts()).map(|part| self.rounds_of(part)).sum()
    }

    /// The messages of a round.
    pub fn messages(&self, round: usize, mut each: impl FnMut(Message)) {
        let Some(part) = self.part(round) else { return };
        match part {
            Part::Reduce(round) => self.reduce_messages(round, &mut each),
            Part::Scatter(round) => self.scatter_messages(round, &mut each),
            Part::Gather(round) => self.gather_messages(round, &mut each),
            Part::Pass(round) => {
                let values = piece(&(0..self.call.len), self.message_values(), round);
                let (peer, is_sent, place) = match self.call.kind {
                    Kind::Send { to } => (to, true, Place::Input),
                    Kind::Receive { from } => (from, false, Place::Output),
                    _ => return,
                };
                each(Message { peer, is_sent, place, values });
            }
            Part::Meet(round) => {
                let far = 1 << round;
                let (to, from) =
                    ((self.rank + far) % self.ranks, (self.rank + self.ranks - far) % self.ranks);
                each(Message { peer: to, is_sent: true, place: Place::Input, values: 0..0 });
                each(Message { peer: from, is_sent: false, place: Place::Output, values: 0..0 });
            }
        }
    }

    /// The values of the own shard that are added when a round is complete.
    pub(crate) fn reduced(&self, round: usize) -> Range<usize> {
        match self.part(round) {
            Some(Part::Reduce(round)) => piece(&self.own(), self.step(), round),
            _ => 0..0,
        }
    }

    /// Where another rank's values lie in the scratch, in values.
    pub(crate) fn slot(&self, rank: usize) -> usize {
        self.step() * if rank < self.rank { rank } else { rank - 1 }
    }

    /// Bytes that this rank sends and receives, without headers.
    pub fn traffic(&self) -> (u64, u64) {
        let (mut sent, mut received) = (0, 0);
        for round in 0..self.rounds() {
            self.messages(round, |message| {
                let bytes = (message.values.len() * self.call.dtype.bytes()) as u64;
                if message.is_sent { sent += bytes } else { received += bytes }
            });
        }
        (sent, received)
    }

    fn others(&self) -> usize {
        self.ranks - 1
    }

    fn largest_shard(&self) -> usize {
        self.call.len.div_ceil(self.ranks)
    }

    fn message_values(&self) -> usize {
        MESSAGE_BYTES / self.call.dtype.bytes()
    }

    fn parts(&self) -> usize {
        match self.call.kind {
            Kind::AllReduce(_) | Kind::Broadcast { .. } => 2,
            _ => 1,
        }
    }

    fn rounds_of(&self, part: usize) -> usize {
        if self.ranks == 1 {
            return 0;
        }
        let pieces = self.largest_shard().div_ceil(self.message_values());
        match (self.call.kind, part) {
            (Kind::AllReduce(_) | Kind::ReduceScatter(_), 0) => {
                self.largest_shard().div_ceil(self.step().max(1))
            }
            (Kind::Send { .. } | Kind::Receive { .. }, _) => self.call.len.div_ceil(self.message_values()),
            (Kind::Barrier, _) => self.ranks.next_power_of_two().trailing_zeros() as usize,
            _ => pieces,
        }
    }

    fn part(&self, round: usize) -> Option<Part> {
        let first = self.rounds_of(0);
        let second = if self.parts() == 2 { self.rounds_of(1) } else { 0 };
        match self.call.kind {
            _ if round >= first + second => None,
            _ if round >= first => Some(Part::Gather(round - first)),
            Kind::AllReduce(_) | Kind::ReduceScatter(_) => Some(Part::Reduce(round)),
            Kind::Broadcast { .. } => Some(Part::Scatter(round)),
            Kind::AllGather => Some(Part::Gather(round)),
            Kind::Send { .. } | Kind::Receive { .. } => Some(Part::Pass(round)),
            Kind::Barrier => Some(Part::Meet(round as u32)),
        }
    }

    /// Every other rank, beginning behind this one, so that not all send to the same one first.
    fn peers(&self) -> impl Iterator<Item = usize> {
        let (rank, ranks) = (self.rank, self.ranks);
        (1..ranks).map(move |far| (rank + far) % ranks)
    }

    fn reduce_messages(&self, round: usize, each: &mut impl FnMut(Message)) {
        let own = piece(&self.own(), self.step(), round).len();
        for peer in self.peers() {
            let theirs = piece(&shard(self.call.len, self.ranks, peer), self.step(), round);
            if !theirs.is_empty() {
                each(Message { peer, is_sent: true, place: Place::Input, values: theirs });
            }
            if own > 0 {
                let slot = self.slot(peer);
                each(Message { peer, is_sent: false, place: Place::Scratch, values: slot..slot + own });
            }
        }
    }

    /// The root's values to their owners, who pass them on by gathering.
    fn scatter_messages(&self, round: usize, each: &mut impl FnMut(Message)) {
        let Kind::Broadcast { root } = self.call.kind else { return };
        let mut message = |peer, is_sent, owner| {
            let values = piece(&shard(self.call.len, self.ranks, owner), self.message_values(), round);
            if !values.is_empty() {
                each(Message { peer, is_sent, place: Place::Output, values });
            }
        };
        if self.rank != root {
            return message(root, false, self.rank);
        }
        self.peers().for_each(|peer| message(peer, true, peer));
    }

    /// Own shards to all others, but not to the root of a broadcast, which has them.
    fn gather_messages(&self, round: usize, each: &mut impl FnMut(Message)) {
        let root = if let Kind::Broadcast { root } = self.call.kind { Some(root) } else { None };
        for peer in self.peers() {
            for (is_sent, owner, reader) in [(true, self.rank, peer), (false, peer, self.rank)] {
                let values = piece(&shard(self.call.len, self.ranks, owner), self.message_values(), round);
                if !values.is_empty() && Some(reader) != root {
                    each(Message { peer, is_sent, place: Place::Output, values });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_graph::DType;

    use super::*;
    use crate::call::Reduce;

    fn kinds(ranks: usize) -> Vec<Kind> {
        let mut kinds = vec![Kind::AllGather, Kind::Barrier];
        kinds.extend([Kind::AllReduce(Reduce::Sum), Kind::ReduceScatter(Reduce::Max)]);
        kinds.extend((0..ranks).map(|root| Kind::Broadcast { root }));
        kinds
    }

    #[test]
    fn every_message_that_is_sent_is_received_in_the_same_round() {
        for (ranks, len) in [(1, 5), (2, 0), (2, 1), (3, 700_001), (4, 2), (5, 13), (7, 3_000_000)] {
            for kind in kinds(ranks) {
                let call = Call { kind, dtype: DType::F64, len };
                let schedules: Vec<Schedule> = (0..ranks).map(|r| Schedule::new(call, r, ranks)).collect();
                let rounds = schedules[0].rounds();
                assert!(schedules.iter().all(|schedule| schedule.rounds() == rounds));
                for round in 0..rounds {
                    let (mut sent, mut received) = (Vec::new(), Vec::new());
                    for (rank, schedule) in schedules.iter().enumerate() {
                        schedule.messages(round, |m| match m.is_sent {
                            true => sent.push((rank, m.peer, m.values.len())),
                            false => received.push((m.peer, rank, m.values.len())),
                        });
                    }
                    sent.sort_unstable();
                    received.sort_unstable();
                    assert_eq!(sent, received, "{call} on {ranks} ranks, round {round}");
                }
            }
        }
    }

    #[test]
    fn traffic_is_what_theory_says() {
        let (ranks, len) = (4, 4_000_000);
        let bytes = (len * 4) as u64;
        let share = bytes * 3 / 4;
        let of = |kind, rank| Schedule::new(Call { kind, dtype: DType::F32, len }, rank, ranks).traffic();
        assert_eq!(of(Kind::AllReduce(Reduce::Sum), 1), (2 * share, 2 * share));
        assert_eq!(of(Kind::ReduceScatter(Reduce::Sum), 1), (share, share));
        assert_eq!(of(Kind::AllGather, 1), (share, share));
        assert_eq!(of(Kind::Broadcast { root: 0 }, 1).1, bytes);
        assert_eq!(of(Kind::Broadcast { root: 0 }, 0), (2 * share, 0));
    }

    #[test]
    fn scratch_is_bounded_however_long_the_call_and_many_the_ranks() {
        for ranks in [2, 3, 64, 1000] {
            let call = Call { kind: Kind::AllReduce(Reduce::Sum), dtype: DType::BF16, len: 1 << 32 };
            let scratch = Schedule::new(call, 0, ranks).scratch_bytes();
            assert!((SCRATCH_BYTES / 2..=SCRATCH_BYTES).contains(&scratch), "{ranks}: {scratch}");
        }
    }
}
