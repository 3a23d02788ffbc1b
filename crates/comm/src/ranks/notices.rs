//! What ranks tell each other outside of calls: that one stops and why, and what one is doing.

use std::time::{Duration, Instant};

use super::{Ranks, State};
use crate::communicator::Communicator;
use crate::error::{CommError, Result};
use crate::transport::NOTICE_BYTES;

/// How long after the end of another rank its reason is waited for.
const REASON: Duration = Duration::from_millis(300);

/// Kinds of notices.
const FAILED: u8 = b'!';
pub(super) const ASKS: u8 = b'?';
const ANSWERS: u8 = b'=';

/// Stands before the rank that is waited for, at the end of what a rank says it does.
const AWAITS: &str = " and waits for rank ";

/// What another rank said it does.
#[derive(Clone)]
pub(super) struct Said {
    pub text: String,
    /// The rank that it waits for.
    pub awaits: Option<usize>,
}

impl Ranks {
    /// A rank that has ended may have been told to by a third one, whose notice is on its way here, too, and says more.
    pub(super) fn hear_why(&self, state: &mut State, error: &CommError) -> Result<()> {
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
    pub(super) fn hear(&self, state: &mut State, notice: &[u8]) -> Result<()> {
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

    pub(super) fn tell(&self, to: usize, kind: u8, text: &str) {
        let mut notice = vec![kind];
        notice.extend((self.rank() as u32).to_le_bytes());
        let room = text.floor_char_boundary(NOTICE_BYTES - notice.len());
        notice.extend(&text.as_bytes()[..room]);
        self.link.tell(to, &notice);
    }

    /// Tells the others why, and ends all calls; in this order, so that none sees the end before the reason.
    pub(super) fn fail(&self, state: &mut State, error: CommError) -> CommError {
        self.tell_all(&error.to_string());
        state.give_up(&*self.link, error.clone());
        error
    }

    pub(super) fn tell_all(&self, reason: &str) {
        (0..self.ranks()).filter(|to| *to != self.rank()).for_each(|to| self.tell(to, FAILED, reason));
        self.link.flush();
    }
}

impl State {
    /// What this rank says it does.
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
