//! How long a call is waited for, and whom it is to blame that it does not end.

use std::time::{Duration, Instant};

use super::notices::ASKS;
use super::{Ranks, State};
use crate::active::Active;
use crate::communicator::{Communicator, Ticket};
use crate::error::{CommError, Result};

/// Who moves a call along that is waited for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// Who waits.
    Moving,
    /// Another thread.
    Watching,
}

impl Ranks {
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

    /// Nothing moved for too long.
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
}
