//! Turns messages between ranks into a communicator: calls that move along together, deadlines, and failures that every rank hears of.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::active::Active;
use crate::call::{Call, Header, Kind};
use crate::check::check;
use crate::communicator::{Buffers, Communicator, Ticket, Traffic};
use crate::error::{CommError, Result};
use crate::schedule::Schedule;
use crate::transport::{NOTICE_BYTES, PointToPoint, TAGS, Tag};

/// How long a rank may leave others waiting, unless told otherwise.
pub const RANK_TIMEOUT: Duration = Duration::from_secs(300);

/// How long after the end of another rank its reason is waited for.
const REASON: Duration = Duration::from_millis(300);

/// Kinds of notices.
const FAILED: u8 = b'!';
const ASKS: u8 = b'?';
const ANSWERS: u8 = b'=';

/// Stands before the rank that is waited for, at the end of what a rank says it does.
const AWAITS: &str = " and waits for rank ";

/// Ranks that exchange messages: threads, MPI or TCP.
pub struct Ranks {
    link: Box<dyn PointToPoint>,
    timeout: Duration,
    state: Mutex<State>,
    /// Something moved, for those who wait while another thread moves calls along.
    moved: Condvar,
}

/// Who moves a call along that is waited for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// Who waits.
    Moving,
    /// Another thread.
    Watching,
}

/// What another rank said it does.
#[derive(Clone)]
struct Said {
    text: String,
    /// The rank that it waits for.
    awaits: Option<usize>,
}

#[derive(Default)]
struct State {
    tickets: u64,
    collectives: u64,
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

    /// A rank that has ended may have been told to by a third one, whose notice is on its way here, too, and says more.
    fn hear_why(&self, state: &mut State, error: &CommError) -> Result<()> {
        let is_gone = matches!(error, CommError::Gone { .. });
        let deadline = Instant::now() + if is_gone { REASON.min(self.timeout / 2) } else { Duration::ZERO };
        loop {
            while let Some(notice) = self.link.heard() {
                self.hear(state, &notice)?;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            self.link.idle(left.min(Duration::from_millis(5)));
        }
    }

    /// A notice: who, what, and a text.
    fn hear(&self, state: &mut State, notice: &[u8]) -> Result<()> {
        let Some((&[kind, ref from @ ..], text)) = notice.split_first_chunk::<5>() else { return Ok(()) };
        let from = u32::from_le_bytes(*from) as usize;
        let text = String::from_utf8_lossy(text).into_owned();
        match kind {
            FAILED => {
                let error = CommError::Stopped { by: from, reason: text };
                state.give_up(&*self.link, error.clone());
                return Err(error);
            }
            ASKS if from < self.ranks() => self.tell(from, ANSWERS, &state.doing()),
            ANSWERS => {
                let number = text.rsplit(' ').next().and_then(|word| word.parse().ok());
                let awaits = number.filter(|_| text.contains(AWAITS));
                if let Some(said) = state.said.get_mut(from) {
                    *said = Some(Said { text, awaits });
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn tell(&self, to: usize, kind: u8, text: &str) {
        let mut notice = vec![kind];
        notice.extend((self.rank() as u32).to_le_bytes());
        let room = text.floor_char_boundary(NOTICE_BYTES - notice.len());
        notice.extend(&text.as_bytes()[..room]);
        self.link.tell(to, &notice);
    }

    /// Tells the others why, and ends all calls; in this order, so that none sees the end before the reason.
    fn fail(&self, state: &mut State, error: CommError) -> CommError {
        self.tell_all(&error.to_string());
        state.give_up(&*self.link, error.clone());
        error
    }

    fn tell_all(&self, reason: &str) {
        (0..self.ranks()).filter(|to| *to != self.rank()).for_each(|to| self.tell(to, FAILED, reason));
        self.link.flush();
    }

    /// Waits for a call that this thread moves along itself, or another one does.
    pub(crate) fn wait_by(&self, ticket: &Ticket, waiting: Waiting) -> Result<()> {
        let start = Instant::now();
        let mut asked = None;
        loop {
            let mut state = self.state();
            if state.is_complete(ticket) {
                return Ok(());
            }
            if waiting == Waiting::Moving && self.advance(&mut state)? {
                continue;
            }
            if let Some(error) = &state.failed {
                return Err(error.clone());
            }
            let since = state.last_moved.map_or(start, |moved| moved.max(start));
            let waited = since.elapsed();
            if waited >= self.patience(&state, ticket.0) {
                let error = self.silent(&state, ticket.0, waited);
                return Err(self.fail(&mut state, error));
            }
            if waited >= self.timeout / 2 && asked != Some(since) {
                asked = Some(since);
                let call = state.active.iter().find(|active| active.ticket == ticket.0);
                if let Some(peer) = call.and_then(Active::awaited) {
                    state.said[peer] = None;
                    self.tell(peer, ASKS, "");
                }
            }
            let pause = Duration::from_millis(50).min(self.timeout / 4);
            match waiting {
                Waiting::Watching => drop(self.moved.wait_timeout(state, pause)),
                Waiting::Moving => {
                    drop(state);
                    self.link.idle(pause);
                }
            }
        }
    }

    fn silent(&self, state: &State, ticket: u64, after: Duration) -> CommError {
        let call = state.active.iter().find(|active| active.ticket == ticket);
        let peer = call.and_then(Active::awaited).unwrap_or(self.rank());
        let doing = call.map(|call| call.header.to_string()).unwrap_or_default();
        let heard = match &state.said[peer] {
            Some(said) => format!("it says that it is {}", said.text),
            None => "it does not say what it does".into(),
        };
        CommError::Silent { rank: self.rank(), peer, after, doing, heard }
    }

    /// How long a call is waited in. A rank that itself waits for a third one is given longer, since it will say who is to blame.
    fn patience(&self, state: &State, ticket: u64) -> Duration {
        let call = state.active.iter().find(|active| active.ticket == ticket);
        let said = call.and_then(Active::awaited).and_then(|peer| state.said[peer].as_ref());
        let awaits_third = said.and_then(|said| said.awaits).is_some_and(|third| third != self.rank());
        if awaits_third { self.timeout * 3 / 2 } else { self.timeout }
    }

    /// The tag and the number of a call; numbers go up.
    fn number(&self, state: &mut State, call: &Call) -> (Tag, u64) {
        const HALF: u64 = (TAGS / 2) as u64;
        let (count, first) = match call.kind {
            Kind::Send { to } => (&mut state.sends[to], HALF as Tag),
            Kind::Receive { from } => (&mut state.receives[from], HALF as Tag),
            _ => (&mut state.collectives, 0),
        };
        let number = *count;
        *count += 1;
        (first + (number % HALF) as Tag, number)
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

    fn doing(&self) -> String {
        match (self.active.first(), &self.last) {
            (Some(active), _) => match active.awaited() {
                Some(peer) => format!("in {}{AWAITS}{peer}", active.header),
                None => format!("in {}", active.header),
            },
            (None, Some(last)) => format!("in no call; its last was {last}"),
            (None, None) => "in no call and has made none".into(),
        }
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
        Schedule::new(*call, self.rank(), self.ranks()).scratch_bytes()
    }

    unsafe fn start(&self, call: &Call, buffers: Buffers) -> Result<Ticket> {
        let schedule = Schedule::new(*call, self.rank(), self.ranks());
        check(call, &schedule, &buffers)?;
        let mut state = self.state();
        let state = &mut *state;
        if let Some(error) = &state.failed {
            return Err(error.clone());
        }
        let (tag, number) = self.number(state, call);
        let ticket = state.tickets;
        state.tickets += 1;
        // SAFETY: the caller's promise, passed on.
        let mut active =
            unsafe { Active::new(ticket, Header { number, call: *call }, tag, schedule, buffers) };
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
        self.link.leave(self.state().failed.is_some());
    }
}
