//! Turns the parts that ranks have of a state into whole values on the first rank, one at a time, as it asks for them.
//!
//! Whoever writes a file knows what it needs, and in which order; the other ranks do not. So the first says which part it wants, all of them hand theirs, and
//! no rank ever has more than one value whole.

use std::cell::{Cell, RefCell};
use std::io;
use std::sync::Arc;

use plimsoll_device::Peers;
use plimsoll_nn::{OfRanks, Training, WholeSource};

use crate::error::Result;
use crate::pieces::Staged;
use crate::ranks::failed;
use crate::trainer::Trainer;

/// The rank that asks.
const FIRST: usize = 0;
/// What it says when it wants nothing more.
const DONE: i64 = -1;

/// The state of all ranks, as the first reads it. When it is dropped the others go on.
pub struct GatheredState<'a> {
    training: &'a Training,
    ranks: Option<Arc<dyn Peers>>,
    staged: RefCell<Staged>,
    /// Whether the others wait to hear what is wanted next.
    is_heard: Cell<bool>,
}

impl Trainer {
    /// What reads the state whole, on the first rank, while the others call [`Trainer::hand_state`]. Of a rank that has all of the state it reads that.
    pub fn gathered_state(&self) -> Result<Option<GatheredState<'_>>> {
        let Some(training) = &self.training else { return Ok(None) };
        let ranks = self.ranks()?.filter(|_| training.is_sharded());
        let is_heard = Cell::new(ranks.is_some());
        Ok(Some(GatheredState { training, ranks, staged: RefCell::default(), is_heard }))
    }

    /// Hands the first rank what it asks for of this one's state, until it has all it wants ([`Trainer::gathered_state`]). Nothing is asked of ranks that have all
    /// of the state.
    pub fn hand_state(&self) -> Result<()> {
        let Some(training) = self.training.as_ref().filter(|training| training.is_sharded()) else {
            return Ok(());
        };
        let Some(ranks) = self.ranks()? else { return Ok(()) };
        let mut staged = Staged::default();
        loop {
            let mut wanted = [DONE];
            ranks.of_rank(FIRST, &mut wanted).map_err(failed)?;
            let part = usize::try_from(wanted[0]).ok().and_then(|at| training.whole_state().nth(at));
            let Some(part) = part else { return Ok(()) };
            if let Some(pieces) = &part.pieces {
                staged.gather(part.own, pieces, &ranks, &mut |_| Ok(()))?;
            }
        }
    }
}

impl GatheredState<'_> {
    fn read(&self, part: &OfRanks<'_>, into: &mut Vec<u8>) -> Result<()> {
        let mut write = |piece: &[u8]| {
            into.extend_from_slice(piece);
            Ok(())
        };
        let mut staged = self.staged.borrow_mut();
        let (Some(pieces), Some(ranks)) = (&part.pieces, &self.ranks) else {
            return staged.copy(part.own, 0, part.whole.bytes(), None, &mut write);
        };
        let at = self.training.whole_state().position(|known| known.name == part.name);
        let mut wanted = [at.and_then(|at| i64::try_from(at).ok()).unwrap_or(DONE)];
        ranks.of_rank(FIRST, &mut wanted).map_err(failed)?;
        staged.gather(part.own, pieces, ranks, &mut write)
    }
}

impl WholeSource for GatheredState<'_> {
    fn bytes(&self, part: &OfRanks<'_>) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(part.whole.bytes());
        match self.read(part, &mut bytes) {
            Ok(()) => Ok(bytes),
            Err(error) => {
                // Ranks that failed wait for nothing more.
                self.is_heard.set(false);
                Err(io::Error::other(error))
            }
        }
    }
}

impl Drop for GatheredState<'_> {
    fn drop(&mut self) {
        if let Some(ranks) = self.ranks.as_ref().filter(|_| self.is_heard.get()) {
            // A rank that is lost by now is named by whatever is asked of it next.
            ranks.of_rank(FIRST, &mut [DONE]).ok();
        }
    }
}
