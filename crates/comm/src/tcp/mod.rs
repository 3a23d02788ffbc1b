//! Ranks that are connected by sockets: a stream between each two.
//!
//! A message is sent when its receiver has said that it has a place for it (`ready`), so that nothing is ever kept on the way but what the
//! system's socket buffers hold, and messages of one call never stand in the way of another's.
//!
//! What is sent is neither encrypted nor signed: this is for machines of one cluster, behind its walls.

mod frame;
mod peer;
mod rendezvous;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::error::Result;
use crate::ranks::Ranks;
use crate::transport::{Fault, PointToPoint, Tag, TransferId};
use peer::Peer;

/// How long a rank looks for an answer before it sleeps until one comes.
const LOOKING: Duration = Duration::from_micros(50);

/// Who this rank is and where all meet, as `torchrun` and others say it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meeting {
    /// This rank.
    pub rank: usize,
    /// How many there are.
    pub ranks: usize,
    /// Where rank 0 listens: a name or an address, and a port.
    pub address: String,
    /// How long to wait until all have come.
    pub patience: Duration,
}

/// Connects this rank to all others.
///
/// ```
/// use std::time::Duration;
/// use plimsoll_comm::{Collectives, Communicator, tcp};
/// # let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
/// let address = free.to_string(); // 127.0.0.1:29500
/// let patience = Duration::from_secs(10);
/// std::thread::scope(|processes| {
///     for rank in 0..2 {
///         let meeting = tcp::Meeting { rank, ranks: 2, address: address.clone(), patience };
///         processes.spawn(move || {
///             let ranks = tcp::join(&meeting, Duration::from_secs(10)).unwrap();
///             let mut word = if rank == 0 { *b"hello" } else { *b"....." };
///             ranks.broadcast(0, &mut word).unwrap();
///             assert_eq!(&word, b"hello");
///         });
///     }
/// });
/// ```
///
/// # Errors
/// The address cannot be reached or used, or not all ranks have come in time; the error names those that have not.
pub fn join(meeting: &Meeting, timeout: Duration) -> Result<Ranks> {
    let streams = rendezvous::meet(meeting)?;
    let peers = streams.into_iter().map(|stream| stream.map(Peer::new)).collect();
    let state = Mutex::new(State { peers, next: 0 });
    Ok(Ranks::new(Box::new(Tcp { rank: meeting.rank, ranks: meeting.ranks, state }), timeout))
}

struct Tcp {
    rank: usize,
    ranks: usize,
    state: Mutex<State>,
}

struct State {
    /// One for each rank but this one.
    peers: Vec<Option<Peer>>,
    next: u64,
}

impl State {
    /// The number of a transfer also says with whom it is.
    fn number(&mut self, peer: usize, ranks: usize) -> TransferId {
        self.next += 1;
        TransferId(self.next * ranks as u64 + peer as u64)
    }
}

impl Tcp {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with_peer<R>(&self, of: usize, run: impl FnOnce(&mut Peer, TransferId) -> R) -> Result<R, Fault> {
        let mut state = self.state();
        let id = state.number(of, self.ranks);
        match state.peers.get_mut(of).and_then(Option::as_mut) {
            Some(peer) => Ok(run(peer, id)),
            None => Err(Fault::Gone),
        }
    }
}

impl PointToPoint for Tcp {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.ranks
    }

    fn name(&self) -> &str {
        "tcp"
    }

    unsafe fn send(&self, to: usize, tag: Tag, bytes: *const u8, len: usize) -> Result<TransferId, Fault> {
        self.with_peer(to, |peer, id| peer.send(id, tag, bytes, len).map(|()| id))?
    }

    unsafe fn receive(&self, from: usize, tag: Tag, bytes: *mut u8, len: usize) -> Result<TransferId, Fault> {
        self.with_peer(from, |peer, id| {
            peer.receive(id, tag, bytes, len);
            Ok(id)
        })?
    }

    fn is_done(&self, id: TransferId) -> Result<bool, Fault> {
        let of = (id.0 % self.ranks as u64) as usize;
        self.with_peer(of, |peer, _| {
            peer.advance_with_news();
            peer.is_done(id)
        })?
    }

    fn cancel(&self, id: TransferId) {
        let of = (id.0 % self.ranks as u64) as usize;
        let _ = self.with_peer(of, |peer, _| peer.cancel(id));
    }

    fn tell(&self, to: usize, notice: &[u8]) {
        let _ = self.with_peer(to, |peer, _| {
            peer.tell(notice);
            peer.advance();
        });
    }

    fn heard(&self) -> Option<Vec<u8>> {
        let mut state = self.state();
        state.peers.iter_mut().flatten().find_map(|peer| {
            peer.advance();
            peer.heard()
        })
    }

    fn idle(&self, at_most: Duration) {
        // Not under the lock: another thread may start a call meanwhile.
        let streams: Vec<_> = (self.state().peers.iter().flatten())
            .filter(|peer| peer.is_open())
            .map(|peer| (peer.stream(), peer.wants_to_write()))
            .collect();
        let wanted = |writes| if writes { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
        let mut streams: Vec<PollFd<'_>> =
            streams.iter().map(|(stream, writes)| PollFd::new(&**stream, wanted(*writes))).collect();
        // The other side is often about to answer, and who sleeps is woken late.
        let until = Instant::now() + LOOKING;
        while Instant::now() < until {
            match poll(&mut streams, Some(&Timespec::default())) {
                Ok(0) => std::thread::yield_now(),
                Ok(_) => return,
                Err(_) => break,
            }
        }
        let timeout =
            Timespec { tv_sec: at_most.as_secs() as i64, tv_nsec: i64::from(at_most.subsec_nanos()) };
        // Where it fails, the next look says what is wrong.
        if poll(&mut streams, Some(&timeout)).is_err() || streams.is_empty() {
            std::thread::sleep(at_most.min(Duration::from_millis(1)));
        }
    }

    fn flush(&self) {
        let deadline = Instant::now() + Duration::from_millis(500);
        loop {
            let mut state = self.state();
            state.peers.iter_mut().flatten().for_each(Peer::advance);
            let has_more = state.peers.iter().flatten().any(|peer| peer.is_open() && peer.wants_to_write());
            if !has_more || Instant::now() >= deadline {
                return;
            }
            drop(state);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn leave(&self, _failed: bool) {
        self.flush();
        self.state().peers.iter().flatten().for_each(Peer::close);
    }
}
