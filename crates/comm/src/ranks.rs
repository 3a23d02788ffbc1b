//! Turns messages between ranks into a communicator: calls that move along together, deadlines, and failures that every rank hears of.

use std::sync::{Mutex, MutexGuard, PoisonError};
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
    /// Calls that were under way when it failed.
    given_up: Vec<u64>,
}

impl Ranks {
    pub(crate) fn new(link: Box<dyn PointToPoint>, timeout: Duration) -> Ranks {
        let n = link.ranks();
        let state =
            State { sends: vec![0; n], receives: vec![0; n], said: vec![None; n], ..State::default() };
        Ranks { link, timeout, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves all calls along; whether anything moved.
    fn advance(&self, state: &mut State) -> Result<bool> {
        if let Some(error) = &state.failed {
            return Err(error.clone());
        }
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
                    // What a rank said before it left says more than that it left.
                    while let Some(notice) = self.link.heard() {
                        self.hear(state, &notice)?;
                    }
                    return Err(self.fail(state, error));
                }
            }
        }
        Ok(has_moved)
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

    /// Ends all calls and tells the others why.
    fn fail(&self, state: &mut State, error: CommError) -> CommError {
        state.give_up(&*self.link, error.clone());
        let text = error.to_string();
        (0..self.ranks()).filter(|to| *to != self.rank()).for_each(|to| self.tell(to, FAILED, &text));
        error
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
        let mut since = Instant::now();
        let mut has_asked = false;
        loop {
            {
                let mut state = self.state();
                if state.is_complete(&ticket) {
                    return Ok(());
                }
                if self.advance(&mut state)? {
                    (since, has_asked) = (Instant::now(), false);
                    continue;
                }
                let waited = since.elapsed();
                if waited >= self.patience(&state, ticket.0) {
                    let error = self.silent(&state, ticket.0, waited);
                    return Err(self.fail(&mut state, error));
                }
                if waited >= self.timeout / 2 && !has_asked {
                    has_asked = true;
                    let call = state.active.iter().find(|active| active.ticket == ticket.0);
                    if let Some(peer) = call.and_then(Active::awaited) {
                        state.said[peer] = None;
                        self.tell(peer, ASKS, "");
                    }
                }
            }
            self.link.idle(Duration::from_millis(50).min(self.timeout / 4));
        }
    }

    fn progress(&self) -> Result<bool> {
        let mut state = self.state();
        self.advance(&mut state)?;
        Ok(!state.active.is_empty())
    }

    fn stop(&self, reason: &str) {
        let mut state = self.state();
        if state.failed.is_none() {
            let error = CommError::Stopped { by: self.rank(), reason: reason.into() };
            state.give_up(&*self.link, error);
            (0..self.ranks()).filter(|to| *to != self.rank()).for_each(|to| self.tell(to, FAILED, reason));
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
