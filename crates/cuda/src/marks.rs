//! Points in time on a card: events on the kernels' stream and on the queues of copies.

use std::sync::atomic::{AtomicBool, Ordering};

use plimsoll_device::backend::Fault;
use plimsoll_device::{Marks, no_point};

use crate::error::Error;
use crate::stream::{Event, mark_time};
use crate::{Cuda, Engine};

/// Events that tell when the card passed them.
#[derive(Debug)]
pub(crate) struct CardMarks {
    cuda: Cuda,
    events: Vec<Event>,
    /// Which of them were ever set: the driver has no time for the others.
    is_set: Vec<AtomicBool>,
}

impl CardMarks {
    /// So many points, none of them set.
    pub(crate) fn new(cuda: &Cuda, points: usize) -> Result<CardMarks, Error> {
        let events = (0..points).map(|_| Event::timed(cuda)).collect::<Result<Vec<Event>, Error>>()?;
        let is_set = (0..points).map(|_| AtomicBool::new(false)).collect();
        Ok(CardMarks { cuda: cuda.clone(), events, is_set })
    }

    fn event(&self, point: usize) -> Result<&Event, Fault> {
        self.events.get(point).ok_or_else(|| no_point(point, self.events.len()))
    }

    fn is_set(&self, point: usize) -> bool {
        self.is_set.get(point).is_some_and(|is_set| is_set.load(Ordering::Relaxed))
    }
}

impl Marks for CardMarks {
    fn mark(&self, point: usize) -> Result<(), Fault> {
        let event = self.event(point)?;
        let Engine::Card(card) = &self.cuda.0.engine else { return Ok(()) };
        card.enter().map_err(Error::into_fault)?;
        // SAFETY: event and stream are live, and the event was made to be timed.
        unsafe { mark_time(event.handle(), card.stream) }.map_err(Error::into_fault)?;
        self.is_set[point].store(true, Ordering::Relaxed);
        Ok(())
    }

    fn handle(&self, point: usize) -> Option<usize> {
        let event = self.events.get(point)?;
        self.is_set[point].store(true, Ordering::Relaxed);
        Some(event.handle().expose_provenance())
    }

    fn seconds(&self, from: usize, to: usize) -> Result<Option<f64>, Fault> {
        let (start, end) = (self.event(from)?, self.event(to)?);
        if !self.is_set(from) || !self.is_set(to) {
            return Ok(None);
        }
        end.since(start).map(Some).map_err(Error::into_fault)
    }
}
