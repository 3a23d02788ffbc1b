//! One call under way: its messages of this round, and what is done when they have come.

use plimsoll_graph::ops::Rank;

use crate::call::{Header, Kind};
use crate::communicator::{Buffers, Traffic};
use crate::element::combine;
use crate::error::CommError;
use crate::schedule::{Message, Place, Schedule};
use crate::transport::{Fault, PointToPoint, Tag, TransferId};

/// A message under way.
struct Pending {
    transfer: TransferId,
    peer: usize,
    is_header: bool,
}

pub(crate) struct Active {
    pub ticket: u64,
    pub header: Header,
    /// Which rank of those that make the call this one is.
    of: Rank,
    schedule: Schedule,
    tag: Tag,
    buffers: Buffers,
    round: usize,
    pending: Vec<Pending>,
    /// Where headers lie while they are under way: what this rank says, and what another one does.
    headers: Vec<[u8; Header::BYTES]>,
}

// SAFETY: the pointers are the caller's, who promised that nobody else uses what they point to until the call is complete.
unsafe impl Send for Active {}

impl Active {
    /// # Safety
    /// The promise of `Communicator::start`.
    pub unsafe fn new(
        ticket: u64,
        header: Header,
        tag: Tag,
        (of, schedule): (Rank, Schedule),
        buffers: Buffers,
    ) -> Active {
        let headers = vec![header.encode(), [0; Header::BYTES]];
        Active { ticket, header, of, schedule, tag, buffers, round: 0, pending: Vec::new(), headers }
    }

    /// Begins: own values where they belong, headers, and the first round.
    pub fn begin(&mut self, link: &dyn PointToPoint, traffic: &mut Traffic) -> Result<(), CommError> {
        self.place_own();
        let Rank { rank, ranks, .. } = self.of;
        let other = |rank: usize| Some(self.of.among_all(link.rank(), rank % ranks));
        let (to, from) = match self.header.call.kind {
            _ if ranks == 1 => (None, None),
            Kind::Send { to } => (Some(to), None),
            Kind::Receive { from } => (None, Some(from)),
            // Around a ring: where not all ranks are in the same call, two neighbours are not.
            _ => (other(rank + 1), other(rank + ranks - 1)),
        };
        let [own, other] = [0, 1].map(|i| self.headers[i].as_mut_ptr());
        if let Some(peer) = to {
            // SAFETY: the headers stay until this call is complete or cancelled.
            let transfer = unsafe { link.send(peer, self.tag, own, Header::BYTES) };
            let transfer = transfer.map_err(|fault| self.error(link, peer, fault))?;
            self.pending.push(Pending { transfer, peer, is_header: false });
            count(traffic, true, Header::BYTES);
        }
        if let Some(peer) = from {
            // SAFETY: as above.
            let transfer = unsafe { link.receive(peer, self.tag, other, Header::BYTES) };
            let transfer = transfer.map_err(|fault| self.error(link, peer, fault))?;
            self.pending.push(Pending { transfer, peer, is_header: true });
            count(traffic, false, Header::BYTES);
        }
        self.post(link, traffic)
    }

    /// Moves along; whether anything moved, and whether the call is complete.
    pub fn advance(
        &mut self,
        link: &dyn PointToPoint,
        traffic: &mut Traffic,
    ) -> Result<(bool, bool), CommError> {
        let mut has_moved = false;
        loop {
            let mut i = 0;
            while let Some(pending) = self.pending.get(i) {
                let peer = pending.peer;
                match link.is_done(pending.transfer) {
                    Ok(false) => i += 1,
                    Ok(true) => {
                        has_moved = true;
                        if self.pending.remove(i).is_header {
                            self.compare(link.rank(), peer)?;
                        }
                    }
                    Err(fault) => {
                        self.pending.remove(i);
                        return Err(self.error(link, peer, fault));
                    }
                }
            }
            if self.pending.iter().any(|pending| !pending.is_header) {
                return Ok((has_moved, false));
            }
            if self.round < self.schedule.rounds() {
                // The header of a neighbour that is late holds nothing up but the end.
                self.reduce();
                self.round += 1;
                has_moved = true;
                self.post(link, traffic)?;
                if self.round < self.schedule.rounds() {
                    continue;
                }
            }
            if self.pending.is_empty() {
                return Ok((true, true));
            }
            return Ok((has_moved, false));
        }
    }

    /// Gives up; nothing reads or writes the caller's bytes any more.
    pub fn cancel(&mut self, link: &dyn PointToPoint) {
        self.pending.drain(..).for_each(|pending| link.cancel(pending.transfer));
    }

    /// A rank that is waited for.
    pub fn awaited(&self) -> Option<usize> {
        self.pending.first().map(|pending| pending.peer)
    }

    fn post(&mut self, link: &dyn PointToPoint, traffic: &mut Traffic) -> Result<(), CommError> {
        let mut failed = None;
        let (tag, schedule, of) = (self.tag, self.schedule, self.of);
        schedule.messages(self.round, |message| {
            if failed.is_some() {
                return;
            }
            let peer = of.among_all(link.rank(), message.peer);
            let bytes = message.values.len() * self.header.call.dtype.bytes();
            let at = self.at(&message);
            // SAFETY: the schedule stays within the lengths that the caller promised; the bytes stay until the call is complete
            // or cancelled.
            let transfer = unsafe {
                match message.is_sent {
                    true => link.send(peer, tag, at, bytes),
                    false => link.receive(peer, tag, at, bytes),
                }
            };
            match transfer {
                Ok(transfer) => {
                    self.pending.push(Pending { transfer, peer, is_header: false });
                    count(traffic, message.is_sent, bytes);
                }
                Err(fault) => failed = Some((peer, fault)),
            }
        });
        match failed {
            Some((peer, fault)) => Err(self.error(link, peer, fault)),
            None => Ok(()),
        }
    }

    fn at(&self, message: &Message) -> *mut u8 {
        let start = message.values.start * self.header.call.dtype.bytes();
        match message.place {
            // A barrier has no buffers, and its messages no bytes.
            _ if message.values.is_empty() => std::ptr::dangling_mut(),
            Place::Input => self.buffers.input.cast_mut().wrapping_add(start),
            Place::Output => self.buffers.output.wrapping_add(start),
            Place::Scratch => self.buffers.scratch.wrapping_add(start),
        }
    }

    /// Where the own shard of results lies.
    fn own_output(&self) -> *mut u8 {
        let start = self.schedule.own().start * self.header.call.dtype.bytes();
        match self.header.call.kind {
            Kind::ReduceScatter(_) => self.buffers.output,
            _ => self.buffers.output.wrapping_add(start),
        }
    }

    /// The rank's own values as results, where they are not there and no round would put them there.
    fn place_own(&mut self) {
        let call = self.header.call;
        let is_alone = self.schedule.rounds() == 0 && call.kind.reduce().is_some();
        if !(call.kind == Kind::AllGather || is_alone) {
            return;
        }
        let bytes = self.schedule.own().len() * call.dtype.bytes();
        if bytes > 0 && !std::ptr::eq(self.buffers.input, self.own_output()) {
            // SAFETY: both are as long as the call says, and apart (checked by `start`).
            unsafe { std::ptr::copy(self.buffers.input, self.own_output(), bytes) };
        }
    }

    /// Makes one of the pieces that came in this round.
    fn reduce(&mut self) {
        let call = self.header.call;
        let values = self.schedule.reduced(self.round);
        let Some(reduce) = call.kind.reduce().filter(|_| !values.is_empty()) else { return };
        let size = call.dtype.bytes();
        let (own, rank) = (self.schedule.own(), self.schedule.rank());
        let part = |of: usize| -> *const u8 {
            if of == rank {
                return self.buffers.input.wrapping_add(values.start * size);
            }
            self.buffers.scratch.cast_const().wrapping_add(self.schedule.slot(of) * size)
        };
        let out = self.own_output().wrapping_add((values.start - own.start) * size);
        // SAFETY: all messages of the round have come; the pieces lie in scratch and input, aligned (checked by `start`).
        unsafe { combine(call.dtype, reduce, self.schedule.ranks(), &part, out, values.len()) };
    }

    fn compare(&self, rank: usize, peer: usize) -> Result<(), CommError> {
        if self.headers[0] == self.headers[1] {
            return Ok(());
        }
        let decoded = Header::decode(&self.headers[1], rank);
        let other = decoded.map_or("a call of another version".into(), |header| header.to_string());
        Err(CommError::Mismatch { rank, own: self.header.to_string(), peer, other })
    }

    fn error(&self, link: &dyn PointToPoint, peer: usize, fault: Fault) -> CommError {
        let (rank, doing) = (link.rank(), self.header.to_string());
        match fault {
            Fault::Gone => CommError::Gone { rank, peer, doing },
            Fault::Length { expected, found } => {
                let other = format!("one with {found} where {expected} bytes are expected");
                CommError::Mismatch { rank, own: doing, peer, other }
            }
            Fault::Failed(why) => {
                CommError::Transport { rank, doing: format!("{doing}, with rank {peer}"), why }
            }
        }
    }
}

fn count(traffic: &mut Traffic, is_sent: bool, bytes: usize) {
    if is_sent {
        traffic.sent += bytes as u64;
        traffic.messages += 1;
    } else {
        traffic.received += bytes as u64;
    }
}
