//! Turns messages between ranks into a communicator: calls that move along together, deadlines, and failures that every rank hears of.
//!
//! What ranks tell each other beside calls is in `notices`, how they wait in `waiting`.

mod notices;
mod waiting;

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use plimsoll_graph::ops::Rank;

use crate::active::Active;
use crate::call::{Call, Header, Kind};
use crate::check::check;
use crate::collectives::Collectives;
use crate::communicator::{Buffers, Communicator, Ticket, Traffic};
use crate::error::{CommError, Result};
use crate::schedule::Schedule;
use crate::transport::{PointToPoint, TAGS, Tag};
use notices::Said;
pub(crate) use waiting::Waiting;

/// How long a rank may leave others waiting, unless told otherwise.
pub const RANK_TIMEOUT: Duration = Duration::from_secs(300);

/// Ranks that exchange messages: threads, MPI or TCP.
pub struct Ranks {
    link: Box<dyn PointToPoint>,
    timeout: Duration,
    state: Mutex<State>,
    /// Something moved, for those who wait while another thread moves calls along.
    moved: Condvar,
}

#[derive(Default)]
struct State {
    tickets: u64,
    /// Of all ranks, of groups of neighbours, and of groups of ranks that are apart.
    collectives: [u64; 3],
    sends: Vec<u64>,
    receives: Vec<u64>,
    active: Vec<Active>,
    /// The last call that was complete.
    last: Option<Header>,
    traffic: Traffic,
    /// What other ranks last said they do.
    said: Vec<Option<Said>>,
    failed: Option<CommError>,
    /// When something last moved.
    last_moved: Option<Instant>,
    /// Calls that were under way when it failed.
    given_up: Vec<u64>,
}

impl Ranks {
    pub(crate) fn new(link: Box<dyn PointToPoint>, timeout: Duration) -> Ranks {
        let n = link.ranks();
        let state =
            State { sends: vec![0; n], receives: vec![0; n], said: vec![None; n], ..State::default() };
        Ranks { link, timeout, state: Mutex::new(state), moved: Condvar::new() }
    }

    /// How many calls are under way, without moving them along.
    pub fn under_way(&self) -> usize {
        self.state().active.len()
    }

    /// Waits a little until something may have moved.
    pub(crate) fn idle(&self) {
        self.link.idle(Duration::from_millis(2));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves all calls along; whether anything moved.
    fn advance(&self, state: &mut State) -> Result<bool> {
        if let Some(error) = &state.failed {
            return Err(error.clone());
        }
        let has_moved = self.advance_calls(state);
        if !matches!(has_moved, Ok(false)) {
            state.last_moved = Some(Instant::now());
            self.moved.notify_all();
        }
        has_moved
    }

    fn advance_calls(&self, state: &mut State) -> Result<bool> {
        while let Some(notice) = self.link.heard() {
            self.hear(state, &notice)?;
        }
        let mut has_moved = false;
        let mut i = 0;
        while i < state.active.len() {
            match state.active[i].advance(&*self.link, &mut state.traffic) {
                Ok((moved, is_complete)) => {
                    has_moved |= moved;
                    if is_complete {
                        state.last = Some(state.active.remove(i).header);
                    } else {
                        i += 1;
                    }
                }
                Err(error) => {
                    self.hear_why(state, &error)?;
                    return Err(self.fail(state, error));
                }
            }
        }
        Ok(has_moved)
    }

    /// This rank among all.
    pub(crate) fn all(&self) -> Rank {
        Rank::new(self.link.rank(), self.link.ranks())
    }

    /// The tag and the number of a call; numbers go up. Calls of a rank's groups are told apart by where their tags lie: of all ranks, of neighbours, of
    /// ranks that are apart, and of two.
    fn number(&self, state: &mut State, of: Rank, call: &Call) -> (Tag, u64) {
        const ROOM: u64 = (TAGS / 4) as u64;
        let (count, place) = match call.kind {
            Kind::Send { to } => (&mut state.sends[to], 3),
            Kind::Receive { from } => (&mut state.receives[from], 3),
            _ if of.ranks == self.link.ranks() => (&mut state.collectives[0], 0),
            _ if of.stride == 1 => (&mut state.collectives[1], 1),
            _ => (&mut state.collectives[2], 2),
        };
        let number = *count;
        *count += 1;
        ((place * ROOM + number % ROOM) as Tag, number)
    }
}

impl State {
    fn give_up(&mut self, link: &dyn PointToPoint, error: CommError) {
        for mut active in self.active.drain(..) {
            active.cancel(link);
            self.given_up.push(active.ticket);
        }
        self.failed = Some(error);
    }

    /// What is complete stays complete, whatever failed later.
    fn is_complete(&self, ticket: &Ticket) -> bool {
        self.active.iter().all(|active| active.ticket != ticket.0) && !self.given_up.contains(&ticket.0)
    }
}

impl Communicator for Ranks {
    fn rank(&self) -> usize {
        self.link.rank()
    }

    fn ranks(&self) -> usize {
        self.link.ranks()
    }

    fn backend(&self) -> &str {
        self.link.name()
    }

    fn scratch_bytes(&self, call: &Call) -> usize {
        self.scratch_within(self.all(), call)
    }

    fn scratch_within(&self, of: Rank, call: &Call) -> usize {
        Schedule::new(*call, of.rank, of.ranks).scratch_bytes()
    }

    unsafe fn start(&self, call: &Call, buffers: Buffers) -> Result<Ticket> {
        // SAFETY: the caller's promise, passed on.
        unsafe { self.start_within(self.all(), call, buffers) }
    }

    unsafe fn start_within(&self, of: Rank, call: &Call, buffers: Buffers) -> Result<Ticket> {
        let schedule = Schedule::new(*call, of.rank, of.ranks);
        check(call, &schedule, &buffers)?;
        if !of.is_in(self.all()) {
            let why =
                format!("rank {} of {} is not rank {} of such a group", self.rank(), self.ranks(), of.rank);
            return Err(CommError::Invalid { call: call.to_string(), why });
        }
        // Ranks are named, and counted for, as they are among all.
        let call = &call.among_all(of, self.rank());
        let mut state = self.state();
        let state = &mut *state;
        if let Some(error) = &state.failed {
            return Err(error.clone());
        }
        let (tag, number) = self.number(state, of, call);
        let ticket = state.tickets;
        state.tickets += 1;
        // SAFETY: the caller's promise, passed on.
        let mut active =
            unsafe { Active::new(ticket, Header { number, call: *call }, tag, (of, schedule), buffers) };
        let begun = active.begin(&*self.link, &mut state.traffic);
        state.active.push(active);
        begun.map_err(|error| self.fail(state, error))?;
        // So that the first messages are on their way.
        self.advance(state)?;
        Ok(Ticket(ticket))
    }

    fn test(&self, ticket: &Ticket) -> Result<bool> {
        let mut state = self.state();
        if state.is_complete(ticket) {
            return Ok(true);
        }
        self.advance(&mut state)?;
        Ok(state.is_complete(ticket))
    }

    fn wait(&self, ticket: Ticket) -> Result<()> {
        self.wait_by(&ticket, Waiting::Moving)
    }

    fn progress(&self) -> Result<bool> {
        let mut state = self.state();
        self.advance(&mut state)?;
        Ok(!state.active.is_empty())
    }

    fn stop(&self, reason: &str) {
        let mut state = self.state();
        if state.failed.is_none() {
            self.tell_all(reason);
            state.give_up(&*self.link, CommError::Stopped { by: self.rank(), reason: reason.into() });
        }
    }

    fn own_bytes(&self) -> u64 {
        self.link.own_bytes()
    }

    fn traffic(&self) -> Traffic {
        self.state().traffic
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        let doing = self.state().active.first().map(|active| active.header.to_string());
        if let Some(doing) = doing {
            self.stop(&format!("it left in the middle of {doing}"));
        } else if std::thread::panicking() {
            self.stop("it left in a panic");
        }
        // Where ending waits for all ranks, they are seen to come first, within the rank timeout.
        if self.link.ends_together() && self.state().failed.is_none() {
            // A failure is remembered, and there is nobody to tell.
            let _ = self.barrier();
        }
        self.link.leave(self.state().failed.is_some());
    }
}
