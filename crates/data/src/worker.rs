//! What each thread of a pipeline does: takes rows with their positions, fills them, reports them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::PoisonError;
use std::time::Instant;

use crate::counters::Sum;
use crate::engine::{Engine, Filling, Staged, State, lock};
use crate::error::{Error, Result};
use crate::recipe::OnError;
use crate::ring::{Chunk, Free};
use crate::sample_reader::{Chain, Cursor, Input, SampleReader};
use crate::source::Scratch;
use crate::step::{At, Stages};

/// Rows for a thread to fill.
struct Claim {
    chunk: Chunk,
    number: u64,
    start: Cursor,
    count: usize,
    /// Whether its last row is the last of its batch.
    fills: bool,
}

/// What a thread does next.
enum Next {
    Work(Claim),
    Again,
    End,
}

/// What a thread keeps.
struct Local {
    stages: Stages,
    scratch: Scratch,
    /// Where the records of a stream came from.
    origins: Vec<(u64, u64)>,
    keep: Vec<bool>,
    failures: Vec<(usize, String)>,
    epochs: Vec<u64>,
    sums: Vec<Sum>,
}

impl Engine {
    /// What a thread does until it is not needed any more.
    pub fn run(&self, id: usize) {
        let recipe = &self.recipe;
        let chunk = recipe.chunk;
        let mut local = Local {
            stages: Stages::new(&recipe.first, &recipe.steps, recipe.input.is_stream(), chunk),
            scratch: Scratch::default(),
            origins: Vec::with_capacity(chunk),
            keep: Vec::with_capacity(chunk),
            failures: Vec::new(),
            epochs: Vec::with_capacity(chunk),
            sums: vec![Sum::default(); recipe.steps.len() + 1],
        };
        loop {
            match self.claim(id, &mut local) {
                Next::Work(claim) => self.fill(claim, &mut local),
                Next::Again => {}
                Next::End => break,
            }
        }
        let mut state = self.state();
        state.workers -= 1;
        drop(state);
        self.ready.notify_all();
    }

    /// Waits for rows to fill, or for this thread's end.
    fn claim(&self, id: usize, local: &mut Local) -> Next {
        let began = Instant::now();
        let mut feed = lock(&self.feed);
        let mut state = self.state();
        let claim = loop {
            if state.stop || state.ended || id >= state.workers_target {
                return Next::End;
            }
            if self.recipe.staged {
                self.assemble(&mut state);
                self.leave_pass(&state, &mut feed);
            }
            match self.room(&mut state, &mut feed) {
                Some(Ok(claim)) => break claim,
                Some(Err(())) => {
                    state.ended = true;
                    self.ready.notify_all();
                    self.work.notify_all();
                    return Next::End;
                }
                None => {
                    state.stalls += 1;
                    state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            }
        };
        drop(state);
        self.counters[0].add(Sum { waiting: began.elapsed(), ..Sum::default() });
        let SampleReader { cursor, chain } = &mut *feed;
        match chain {
            Some(chain) => self.pull(cursor, chain, claim, local),
            None => Next::Work(claim),
        }
    }

    /// Goes on to the pass of which something is wanted, where a take after a filter has had enough of this one.
    fn leave_pass(&self, state: &State, feed: &mut SampleReader) {
        if feed.cursor.pass < state.next_pass {
            (feed.cursor.pass, feed.cursor.position) = (state.next_pass, 0);
            if let Some(chain) = &mut feed.chain {
                chain.restart(state.next_pass);
            }
        }
    }

    /// The next rows with the positions they belong to; nothing while there is no room, `Err` at the end.
    fn room(&self, state: &mut State, feed: &mut SampleReader) -> Option<Result<Claim, ()>> {
        let recipe = &self.recipe;
        let is_open = !recipe.staged && state.batches.back().is_some_and(|batch| !batch.closed);
        let Some(left) = recipe.left(&mut feed.cursor, is_open) else { return Some(Err(())) };
        let start = feed.cursor;
        if recipe.staged {
            let slot = match state.staging.pop() {
                Some(slot) => slot,
                // Two for each thread: one to fill, one that waits for its turn.
                None if state.staging_made < 2 * state.workers_target.max(1) => {
                    state.staging_made += 1;
                    Free::new(&recipe.spec, recipe.chunk)
                }
                None => return None,
            };
            let count = left.map_or(recipe.chunk as u64, |left| left.min(recipe.chunk as u64)) as usize;
            let mut opener = slot.open();
            let chunk = opener.chunk(count);
            feed.cursor.position += count as u64;
            let ends_pass = left == Some(count as u64);
            let (keep, epochs, error) = (Vec::with_capacity(count), Vec::with_capacity(count), None);
            state.staged.push_back(Staged {
                opener,
                done: false,
                count,
                keep,
                failures: Vec::new(),
                used: 0,
                error,
                start,
                epochs,
                ends_pass,
            });
            let number = state.staged_base + state.staged.len() as u64 - 1;
            return Some(Ok(Claim { chunk, number, start, count, fills: false }));
        }
        if !is_open {
            let slot = self.take_buffer(state)?;
            let whole = left.map_or(recipe.batch as u64, |left| left.min(recipe.batch as u64)) as usize;
            let rows = recipe.rows_of(whole);
            feed.cursor.batches += 1;
            let filling = Filling::new(slot, rows.len(), 0, start);
            state.batches.push_back(Filling { whole, skipped: rows.start, ..filling });
        }
        let number = state.base + state.batches.len() as u64 - 1;
        let batch = state.batches.back_mut()?;
        let count = recipe.chunk.min(batch.target - batch.rows);
        let chunk = batch.opener.chunk(count);
        let first = batch.start.position + (batch.skipped + batch.rows) as u64;
        let start = Cursor { position: first, ..start };
        batch.rows += count;
        batch.pending += 1;
        feed.cursor.position += count as u64;
        let fills = batch.rows == batch.target;
        if fills {
            feed.cursor.position = batch.start.position + batch.whole as u64;
            batch.closed = true;
            batch.last = recipe.is_limit(feed.cursor.batches);
            if recipe.pass_ends(feed.cursor) {
                batch.last = true;
                (feed.cursor.pass, feed.cursor.position) = (feed.cursor.pass + 1, 0);
            } else {
                batch.last |= recipe.epoch_ends(batch.start, feed.cursor);
            }
            batch.end = feed.cursor;
        }
        Some(Ok(Claim { chunk, number, start, count, fills }))
    }

    /// Takes the records of a claim from the stream, still under the feed's lock, so that they come in turn.
    fn pull(&self, cursor: &mut Cursor, chain: &mut Chain, mut claim: Claim, local: &mut Local) -> Next {
        let began = Instant::now();
        local.origins.clear();
        let mut failed = None;
        while local.origins.len() < claim.count {
            let at = local.origins.len();
            let next = match local.stages.first(at) {
                Some(mut row) => chain.next(&mut row),
                // No step changes its fields, so it can be written where it belongs.
                None => chain.next(&mut claim.chunk.row(at)),
            };
            match next {
                Ok(Some(origin)) => local.origins.push(origin),
                Ok(None) => break,
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
        }
        let found = local.origins.len();
        let is_short = found < claim.count;
        // What follows a full batch tells whether it is the last of its pass. Nothing follows what is all that was
        // asked for.
        let follows = match is_short || !claim.fills || self.recipe.is_limit(cursor.batches) {
            true => Err(()),
            false => chain.peek(),
        };
        self.counters[0].add(Sum { busy: began.elapsed(), ..Sum::default() });
        let mut state = self.state();
        if !self.recipe.staged {
            let base = state.base;
            let Some(batch) = state.batches.get_mut((claim.number - base) as usize) else { return Next::End };
            if let (0, Some(&(epoch, _))) = (claim.chunk.start(), local.origins.first()) {
                batch.epoch = epoch;
            }
            if let Ok(Some(next)) = follows {
                batch.last |= self.recipe.is_epoch_over(batch.epoch, next);
            }
        }
        if !is_short && follows != Ok(None) {
            return Next::Work(claim);
        }
        // The pass is over, or the stream is damaged from here on.
        let (asked, mut over) = (claim.count, failed.is_some());
        claim.count = found;
        // A pass without any sample would be followed by passes without any sample.
        if !over && claim.start.position + found as u64 == 0 {
            (failed, over) = (Some(self.empty(&state)), true);
        }
        (cursor.pass, cursor.position) = (cursor.pass + 1, 0);
        over |= !self.recipe.has_pass(cursor.pass);
        if !over {
            chain.restart(cursor.pass);
        }
        let (base, staged_base) = (state.base, state.staged_base);
        if self.recipe.staged {
            if let Some(staged) = state.staged.get_mut((claim.number - staged_base) as usize) {
                staged.count = found;
                staged.ends_pass = true;
                staged.error = failed.map(|error| (found, error));
                if found == 0 {
                    staged.done = true;
                }
            }
        } else if let Some(batch) = state.batches.get_mut((claim.number - base) as usize) {
            batch.rows -= asked - found;
            batch.closed = true;
            batch.last = true;
            // A stream that was resumed behind its last sample has a pass without rows.
            batch.discard = batch.rows == 0;
            if batch.discard {
                cursor.batches -= 1;
            }
            batch.end = *cursor;
            batch.error = failed.map(|error| (batch.rows, error));
            if found == 0 {
                batch.pending -= 1;
            }
        }
        state.ended |= over;
        let next = match (found, over) {
            (1.., _) => Next::Work(claim),
            (0, last) => {
                // The batch can be read once no chunk of it is alive.
                drop(claim.chunk);
                if self.recipe.staged {
                    self.assemble(&mut state);
                }
                if last { Next::End } else { Next::Again }
            }
        };
        drop(state);
        self.ready.notify_all();
        self.work.notify_all();
        next
    }

    /// Fills the rows of a claim and reports them.
    fn fill(&self, mut claim: Claim, local: &mut Local) {
        let recipe = &self.recipe;
        local.keep.clear();
        local.failures.clear();
        local.epochs.clear();
        local.sums.fill(Sum::default());
        let mut failed = None;
        for row in 0..claim.count {
            let at = match (&recipe.order, local.origins.get(row)) {
                (Some(order), _) => {
                    let (epoch, index) = order.at(claim.start.pass, claim.start.position + row as u64);
                    At { epoch, index }
                }
                (None, Some(&(epoch, index))) => At { epoch, index },
                (None, None) => break,
            };
            claim.chunk.set_number(row, at.index);
            let sample = AssertUnwindSafe(|| self.sample(row, at, &mut claim.chunk, local));
            let kept = catch_unwind(sample).unwrap_or_else(|_| Err(panicked().in_stage("a step", at.index)));
            local.epochs.push(at.epoch);
            match kept {
                Ok(kept) => local.keep.push(kept),
                Err(error) if recipe.on_error == OnError::Skip => {
                    local.failures.push((row, error.to_string()));
                    local.keep.push(false);
                }
                Err(error) => {
                    failed = Some((row, error));
                    break;
                }
            }
        }
        for ((sum, counter), bytes) in local.sums.iter_mut().zip(&self.counters).zip(&recipe.stage_bytes) {
            sum.bytes = sum.elements * bytes;
            counter.add(*sum);
        }
        let Claim { chunk, number, .. } = claim;
        let is_first = chunk.start() == 0;
        // The batch can be read once no chunk of it is alive.
        drop(chunk);
        self.report(number, is_first, failed, local);
    }

    fn report(&self, number: u64, is_first: bool, failed: Option<(usize, Error)>, local: &mut Local) {
        let mut state = self.state();
        let state = &mut *state;
        if self.recipe.staged {
            state.ended |= failed.is_some();
            if let Some(staged) = state.staged.get_mut((number - state.staged_base) as usize) {
                staged.done = true;
                staged.keep.extend_from_slice(&local.keep);
                staged.failures.append(&mut local.failures);
                staged.epochs.extend_from_slice(&local.epochs);
                staged.error = failed.or(staged.error.take());
            }
            self.assemble(state);
            self.work.notify_all();
            return;
        }
        if let Some(batch) = state.batches.get_mut((number - state.base) as usize) {
            batch.pending -= 1;
            if let (true, Some(&epoch)) = (is_first, local.epochs.first()) {
                batch.epoch = epoch;
            }
            // Claims are handed out in order, so the first error in order is always among those that were begun.
            if let Some((row, error)) = failed {
                let before = batch.error.as_ref().is_some_and(|(other, _)| *other <= row);
                if !before {
                    batch.error = Some((row, error));
                }
                state.ended = true;
                self.work.notify_all();
            }
            if batch.is_complete() {
                self.ready.notify_all();
            }
        }
    }

    /// Makes one sample in its row.
    fn sample(&self, row: usize, at: At, chunk: &mut Chunk, local: &mut Local) -> Result<bool> {
        let recipe = &self.recipe;
        let mut out = chunk.row(row);
        let (source, steps) = local.sums.split_at_mut(1);
        if let Input::Indexed(input) = &recipe.input {
            let began = Instant::now();
            local.scratch.epoch = at.epoch;
            match local.stages.first(0) {
                Some(mut first) => input.read(at.index, &mut local.scratch, &mut first)?,
                None => input.read(at.index, &mut local.scratch, &mut out)?,
            }
            source[0].busy += began.elapsed();
        }
        source[0].elements += 1;
        let first = if recipe.input.is_stream() { row } else { 0 };
        local.stages.run(&recipe.steps, first, &mut out, &at, steps)
    }
}

fn panicked() -> Error {
    Error::refused("the closure panicked")
}
