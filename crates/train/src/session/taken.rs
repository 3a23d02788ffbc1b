//! Batches of a pipeline, and how long they were waited for.

use std::task::Poll;
use std::time::Duration;

use plimsoll_data::{Batch, BatchShare, Batches};

use crate::error::Result;
use crate::staging::Next;

/// While a batch is waited for, so often somebody looks whether the device has run out of work, or the run is to end.
const LOOK: Duration = Duration::from_micros(200);

/// What came of asking for a batch.
#[expect(
    clippy::large_enum_variant,
    reason = "there is one at a time, and a box would be an allocation a step"
)]
pub(crate) enum Asked {
    Batch(Taken),
    /// There are no more.
    End,
    /// Somebody wants the run to end; nothing was taken.
    Stopped,
}

/// A batch of a pipeline, and where the pipeline stands behind it.
pub(crate) struct Taken {
    /// None where it is on its way to the device already.
    pub(crate) batch: Option<Batch>,
    /// Samples of the whole batch, and which of them this rank has.
    pub(crate) share: BatchShare,
    /// Whether it is the last of its pass. A stream may not know.
    pub(crate) last: bool,
    pub(crate) position: plimsoll_data::Position,
}

impl Asked {
    /// Asks for the next batch. `go_on` is asked again and again while there is none.
    pub(crate) fn next(batches: &mut Batches, go_on: impl FnMut() -> bool) -> Result<Asked> {
        let batch = match batches.next_while(LOOK, go_on) {
            Poll::Pending => return Ok(Asked::Stopped),
            Poll::Ready(None) => return Ok(Asked::End),
            Poll::Ready(Some(batch)) => batch?,
        };
        let (share, last) = (batch.share(), batch.is_last_of_epoch());
        let position = Batches::position(batches);
        Ok(Asked::Batch(Taken { batch: Some(batch), share, last, position }))
    }

    /// The same, with the batch sent to the device where that can be done by now.
    pub(crate) fn sent(mut self, next: &mut Next<'_>) -> Result<Asked> {
        if let Asked::Batch(taken) = &mut self
            && let Some(batch) = &taken.batch
            && next.start(batch)?
        {
            taken.batch = None;
        }
        Ok(self)
    }
}
