//! The batches of a pipeline, in order: those that its threads make, and random ones, which are only numbered.

use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::{Duration, Instant};

use plimsoll_device::Bytes;

use crate::auto::Auto;
use crate::batch::{Batch, Unwritten, give_back};
use crate::batch_map::BatchMut;
use crate::counters::{StageCount, Sum};
use crate::engine::{Engine, Filling};
use crate::error::{Error, Result};
use crate::position::Position;
use crate::sample_reader::{Cursor, caught};
use crate::share::BatchShare;
use smallvec::SmallVec;

/// How long nobody looks again whether there is a batch, unless somebody says so.
const LOOK: Duration = Duration::from_millis(100);
/// How long a caller that keeps every batch is waited for.
const PATIENCE: Duration = Duration::from_secs(5);

/// A view of a pipeline that does not keep it alive.
#[derive(Clone, Default)]
pub struct Watch(Weak<Engine>);

impl Watch {
    /// What each stage has done so far, from the source to the batch; nothing once the pipeline is gone.
    pub fn stages(&self) -> Vec<StageCount> {
        self.0.upgrade().map_or(Vec::new(), |engine| engine.stages())
    }

    /// Threads and batches that there are now.
    pub fn parallelism(&self) -> (usize, usize) {
        self.0.upgrade().map_or((0, 0), |engine| {
            let state = engine.state();
            (state.workers, state.buffers)
        })
    }

    /// The bytes that the pipeline holds now, and at most.
    pub fn bytes(&self) -> (Bytes, Bytes) {
        self.0.upgrade().map_or((Bytes::ZERO, Bytes::ZERO), |engine| {
            let state = engine.state();
            (engine.limits.bytes(state.workers, state.buffers), engine.limits.declared())
        })
    }
}

/// The batches of a pipeline, made by its threads while the caller works on those before.
pub struct Batches {
    engine: Arc<Engine>,
    auto: Auto,
    delivered: Cursor,
    ended: bool,
}

impl Batches {
    pub(crate) fn new(engine: Arc<Engine>, cursor: Cursor) -> Batches {
        Batches { engine, auto: Auto::new(), delivered: cursor, ended: false }
    }

    /// Where the pipeline stands after the last batch that was delivered.
    pub fn position(&self) -> Position {
        Position::new(self.delivered, self.engine.recipe.fingerprint)
    }

    /// The bytes that the pipeline holds at most: its budget, or less where it can never use all of it.
    pub fn declared_bytes(&self) -> Bytes {
        self.engine.limits.declared()
    }

    /// The bytes that the pipeline holds now.
    pub fn held_bytes(&self) -> Bytes {
        let state = self.engine.state();
        self.engine.limits.bytes(state.workers, state.buffers)
    }

    /// Threads and batches that there are now.
    pub fn parallelism(&self) -> (usize, usize) {
        let state = self.engine.state();
        (state.workers, state.buffers)
    }

    /// What each stage has done so far, from the source to the batch.
    pub fn stages(&self) -> Vec<StageCount> {
        self.engine.stages()
    }

    /// Someone else's view of the pipeline: from another thread, say, while this one takes batches.
    pub fn watch(&self) -> Watch {
        Watch(Arc::downgrade(&self.engine))
    }

    /// How many samples were skipped because of an error, up to the last batch that was delivered: what was read ahead of that is not
    /// counted.
    pub fn skipped(&self) -> u64 {
        self.delivered.skipped
    }

    /// Why the last few of them were, the last first.
    pub fn skip_reasons(&self) -> Vec<String> {
        let (state, skipped) = (self.engine.state(), self.skipped());
        let delivered = state.skips.iter().filter(|(number, _)| *number <= skipped);
        delivered.take(16).map(|(_, why)| why.clone()).collect()
    }

    fn deliver(&mut self, batch: Filling, waited: Duration) -> Result<Batch> {
        let recipe = &self.engine.recipe;
        let began = Instant::now();
        let Ok(mut full) = batch.opener.full() else {
            return Err(Error::Stage(
                "a batch was finished while a thread still wrote into it; this is a bug".into(),
            ));
        };
        let fields = recipe.spec.iter().enumerate();
        let extents = fields.map(|(index, field)| match field.varying {
            true => full.pad(index, batch.rows, &recipe.padded),
            false => field.first(),
        });
        let extents: SmallVec<[usize; 4]> = extents.collect();
        for step in &recipe.batch_steps {
            let first = full.numbers().first().copied().unwrap_or(0);
            let (samples, epoch) = (batch.rows, batch.epoch);
            let mut change = BatchMut { full: &mut full, samples, extents: &extents, epoch };
            if let Err(error) = caught(|| (step.f)(&mut change)) {
                self.ended = true;
                return Err(error.in_stage(step.name, first));
            }
        }
        self.delivered = batch.end;
        let bytes: usize = recipe.spec.iter().map(|field| field.bytes() * batch.rows).sum();
        let (elements, bytes, busy) = (batch.rows as u64, bytes as u64, began.elapsed());
        self.engine.counters[recipe.steps.len() + 1].add(Sum { elements, bytes, busy, waiting: waited });
        // What was read whole is cut here; else there are the rank's own rows and no others.
        let whole = if recipe.is_cut() { batch.whole } else { batch.rows };
        let share = BatchShare::of(recipe.share, whole);
        let rows = if recipe.is_cut() { 0..batch.rows } else { share.rows() };
        Ok(Batch {
            full: Some(full),
            random: None,
            engine: self.engine.clone(),
            samples: rows.len(),
            first_row: rows.start,
            share,
            extents,
            epoch: batch.epoch,
            last: batch.last,
        })
    }

    /// The next batch of random numbers, which is only said to be there: whoever wants it writes it.
    fn next_random(&mut self) -> Option<Batch> {
        let (recipe, start) = (&self.engine.recipe, &mut self.delivered);
        let (left, order) = (recipe.left(start, false)??, recipe.order.as_ref()?);
        let (samples, start) = (left.min(recipe.batch as u64), *start);
        let at = |row: u64| order.at(start.pass, start.position + row);
        let mut end = Cursor { position: start.position + samples, batches: start.batches + 1, ..start };
        let mut last = recipe.is_limit(end.batches);
        if recipe.pass_ends(end) {
            last = true;
            (end.pass, end.position) = (end.pass + 1, 0);
        } else {
            last |= recipe.epoch_ends(start, end);
        }
        let bytes: usize = recipe.spec.iter().map(|field| field.bytes()).sum();
        let sum = Sum { elements: samples, bytes: samples * bytes as u64, ..Sum::default() };
        self.engine.counters.iter().for_each(|counter| counter.add(sum));
        self.delivered = end;
        let share = BatchShare::of(recipe.share, samples as usize);
        let rows = share.rows();
        let numbers = rows.clone().map(|row| at(row as u64).1).collect();
        Some(Batch {
            full: None,
            random: Some(Unwritten::new(numbers)),
            engine: self.engine.clone(),
            samples: rows.len(),
            first_row: 0,
            share,
            extents: recipe.spec.iter().map(|field| field.first()).collect(),
            epoch: at(0).0,
            last,
        })
    }
}

impl Batches {
    /// The next batch, as [`Iterator::next`] gives it, but not waited for without end: while there is none, `go_on` is asked
    /// every so often, and where it says no, the answer is [`Poll::Pending`] and the pipeline stands where it stood.
    ///
    /// ```
    /// use std::task::Poll;
    /// use std::time::Duration;
    /// use plimsoll_data::{Column, Dataset};
    ///
    /// let data = Dataset::columns([Column::memory("x", vec![1i64, 2], [])?])?.batch(2);
    /// let mut batches = data.batches()?;
    /// let next = batches.next_while(Duration::from_millis(1), || true);
    /// assert!(matches!(next, Poll::Ready(Some(Ok(batch))) if batch.samples() == 2));
    /// # Ok::<(), plimsoll_data::Error>(())
    /// ```
    pub fn next_while(
        &mut self,
        every: Duration,
        mut go_on: impl FnMut() -> bool,
    ) -> Poll<Option<Result<Batch>>> {
        if self.ended {
            return Poll::Ready(None);
        }
        if self.engine.recipe.random().is_some() {
            let is_first = self.delivered.batches == 0;
            let next = self.next_random();
            self.ended = next.is_none();
            let empty = || is_first.then(|| Err(self.engine.empty(&self.engine.state())));
            return Poll::Ready(next.map(Ok).or_else(empty));
        }
        let (began, mut starved) = (Instant::now(), None);
        let engine = self.engine.clone();
        let mut state = engine.state();
        loop {
            if engine.recipe.staged {
                engine.assemble(&mut state);
            }
            if state.batches.front().is_some_and(Filling::is_complete)
                && let Some(mut batch) = state.batches.pop_front()
            {
                state.base += 1;
                if let Some((_, error)) = batch.error.take() {
                    self.ended = true;
                    state.buffers -= 1;
                    return Poll::Ready(Some(Err(error)));
                }
                if batch.discard {
                    if let Ok(full) = batch.opener.full() {
                        give_back(&mut state, full);
                        engine.work.notify_all();
                    }
                    continue;
                }
                let waited = began.elapsed();
                if let Err(error) = self.auto.batch(waited, &engine, &mut state) {
                    self.ended = true;
                    return Poll::Ready(Some(Err(error)));
                }
                drop(state);
                return Poll::Ready(Some(self.deliver(batch, waited)));
            }
            // What is staged without a free batch is used up when one comes back.
            if state.ended && state.batches.is_empty() && state.staged.is_empty() {
                self.ended = true;
                // Nothing at all is never what was meant; behind the end of a run there is nothing, and rightly so.
                return Poll::Ready((self.delivered.batches == 0).then(|| Err(engine.empty(&state))));
            }
            // A batch that is kept back cannot be delivered before the next one has begun.
            let is_stuck = state.free.is_empty() && state.batches.iter().all(Filling::is_held_back);
            let is_starved = is_stuck && state.buffers >= state.buffers_target;
            let since = *starved.get_or_insert_with(Instant::now);
            if !is_starved {
                starved = None;
            } else if since.elapsed() > PATIENCE {
                return Poll::Ready(Some(Err(Error::AllHeld { buffers: state.buffers })));
            }
            if !go_on() {
                return Poll::Pending;
            }
            let wait = engine.ready.wait_timeout(state, every.min(LOOK));
            state = wait.unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
    }
}

impl Iterator for Batches {
    type Item = Result<Batch>;

    fn next(&mut self) -> Option<Result<Batch>> {
        loop {
            if let Poll::Ready(next) = self.next_while(LOOK, || true) {
                return next;
            }
        }
    }
}

impl Drop for Batches {
    fn drop(&mut self) {
        self.engine.stop();
    }
}
