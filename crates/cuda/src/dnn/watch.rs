//! Turns work on the card's stream into the time that it takes there.

use cudarc::driver::sys as driver;

use crate::card::{Card, cu};
use crate::error::Error;

/// Timings of which the shortest counts, and about how many milliseconds each takes: so many runs that what the host does
/// for the first does not count.
const TIMINGS: usize = 3;
const MILLISECONDS: f32 = 1.5;
const MOST_RUNS: f32 = 20.0;

/// Two events between which the stream is timed.
pub(super) struct Watch<'c> {
    card: &'c Card,
    events: [driver::CUevent; 2],
}

impl Watch<'_> {
    /// A watch for the card's stream.
    pub(super) fn new(card: &Card) -> Result<Watch<'_>, Error> {
        let mut watch = Watch { card, events: [std::ptr::null_mut(); 2] };
        for event in &mut watch.events {
            // SAFETY: the address is of a handle.
            unsafe { cu!(cuEventCreate(event, driver::CUevent_flags::CU_EVENT_DEFAULT as u32)) }?;
        }
        Ok(watch)
    }

    /// Milliseconds of a run, as far as the card is concerned.
    pub(super) fn time(&self, run: &dyn Fn() -> Result<(), Error>) -> Result<f32, Error> {
        // The first run loads code.
        run()?;
        let runs = (MILLISECONDS / self.least(run)?).clamp(2.0, MOST_RUNS) as usize;
        Ok(self.least(|| (0..runs).try_for_each(|_| run()))? / runs as f32)
    }

    /// The shortest of several timings, in milliseconds.
    fn least(&self, body: impl Fn() -> Result<(), Error>) -> Result<f32, Error> {
        let ([start, end], mut least) = (self.events, f32::INFINITY);
        for _ in 0..TIMINGS {
            // SAFETY: the handles are live.
            unsafe { cu!(cuEventRecord(start, self.card.stream)) }?;
            body()?;
            let mut time = 0.0;
            // SAFETY: as above, and the address is of a number.
            unsafe {
                cu!(cuEventRecord(end, self.card.stream))?;
                cu!(cuEventSynchronize(end))?;
                cu!(cuEventElapsedTime_v2(&mut time, start, end))?;
            }
            least = least.min(time);
        }
        Ok(least)
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        for event in self.events.into_iter().filter(|event| !event.is_null()) {
            // SAFETY: nobody has the handle any more. A drop cannot report a refusal.
            unsafe {
                let _ = driver::cuEventDestroy_v2(event);
            }
        }
    }
}
