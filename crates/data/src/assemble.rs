//! Turns staged chunks, some of whose samples were dropped, into batches, in order.

use std::time::Instant;

use crate::counters::Sum;
use crate::engine::{Engine, Filling, State};
use crate::order::Move;
use crate::sample_reader::Cursor;

/// So many epochs in a row of which nothing is let through are taken for the first of all that follow.
const BARREN_EPOCHS: u64 = 4;
/// The same where a shuffle mixes epochs.
const BARREN_MIXED: u64 = 16;

/// What the moves after a filter say of a sample.
enum Verdict {
    Use,
    Drop,
    /// This one and all after it in this pass are dropped.
    Enough,
}

impl Engine {
    /// Puts together as much as is done and there is room for.
    pub fn assemble(&self, state: &mut State) {
        let began = Instant::now();
        let mut moved = false;
        while state.staged.front().is_some_and(|staged| staged.done) {
            moved = true;
            if !self.assemble_front(state) {
                break;
            }
        }
        // Nothing more can come for a batch that is still open.
        let is_open = |batch: &Filling| !batch.closed && batch.error.is_none();
        if state.ended && state.staged.is_empty() && state.batches.back().is_some_and(is_open) {
            let pass = state.assembled.pass;
            self.end_pass(state, pass);
        }
        if moved {
            self.counters[self.counters.len() - 1].add(Sum { busy: began.elapsed(), ..Sum::default() });
        }
    }

    /// Uses up the first chunk; answers `false` when there is no room for more.
    fn assemble_front(&self, state: &mut State) -> bool {
        let Some(mut staged) = state.staged.pop_front() else { return false };
        let full = match staged.opener.full() {
            Ok(full) => full,
            // Its thread has reported but not let go yet; it will call again.
            Err(opener) => {
                staged.opener = opener;
                state.staged.push_front(staged);
                return false;
            }
        };
        let pass = staged.start.pass;
        while state.assembled.pass < pass && !self.is_done(state) {
            self.end_pass(state, state.assembled.pass);
        }
        let mut room = true;
        while staged.used < staged.keep.len() {
            let row = staged.used;
            let position = staged.start.position + row as u64;
            let is_wanted = state.assembled.pass == pass && !self.is_done(state);
            if is_wanted && staged.keep[row] {
                match self.verdict(state.assembled.kept) {
                    Verdict::Use => {
                        let (sample, number) = (full.row(row), full.numbers()[row]);
                        if !self.append(state, &sample, number, staged.epochs[row]) {
                            room = false;
                            break;
                        }
                    }
                    Verdict::Drop => {}
                    Verdict::Enough => self.leave_rest(state, pass),
                }
            }
            staged.used += 1;
            if is_wanted && state.assembled.pass == pass {
                state.assembled.kept += u64::from(staged.keep[row]);
                note_failure(state, &staged.failures, row);
                state.assembled.position = position + 1;
                self.close_if_full(state);
                self.note_drop(state, staged.keep[row], staged.epochs[row]);
            }
        }
        if room {
            if let Some((_, error)) = staged.error.take() {
                if state.assembled.pass == pass && !self.is_done(state) {
                    self.fail(state, error);
                }
            } else if staged.ends_pass {
                self.end_pass(state, pass);
            }
            // Chunks of threads that have ended go with them.
            if state.staging_made > 2 * state.workers_target {
                state.staging_made -= 1;
            } else {
                state.staging.push(full.free());
            }
            state.staged_base += 1;
            self.work.notify_all();
            if state.staged.is_empty() {
                self.ready.notify_all();
            }
            return true;
        }
        staged.opener = full.free().open();
        // Opened again for reading only: no chunk of it is ever taken.
        state.staged.push_front(staged);
        false
    }

    /// Whether nothing more is put together: there is as much as was asked for, or an error ended it.
    fn is_done(&self, state: &State) -> bool {
        let last = state.batches.back();
        let (is_open, failed) = (last.is_some_and(|b| !b.closed), last.is_some_and(|b| b.error.is_some()));
        failed || (self.recipe.is_limit(state.assembled.batches) && !is_open)
    }

    /// What the moves after the filters do with kept sample number `kept` of a pass.
    fn verdict(&self, kept: u64) -> Verdict {
        let mut at = kept;
        for step in &self.recipe.tail {
            match *step {
                Move::Take(n) if at >= n => return Verdict::Enough,
                Move::Skip(n) if at < n => return Verdict::Drop,
                Move::Skip(n) => at -= n,
                Move::Shard { index, count } if at % count != index => return Verdict::Drop,
                Move::Shard { count, .. } => at /= count,
                Move::Part(part) if !part.has(at) => return Verdict::Drop,
                Move::Part(part) => at = part.len(at),
                Move::Take(_) | Move::Shuffle { .. } | Move::Repeat(_) => {}
            }
        }
        Verdict::Use
    }

    /// Copies a sample into the open batch; answers `false` when there is no room for a new one.
    fn append(&self, state: &mut State, sample: &crate::sample::Sample<'_>, number: u64, epoch: u64) -> bool {
        if let Some(batch) = state.batches.back_mut()
            && batch.is_held_back()
            && !self.recipe.drop_remainder
        {
            // A sample follows, so it is not the last of its pass.
            let is_over = self.recipe.is_epoch_over(batch.epoch, epoch);
            close(batch, is_over);
            self.ready.notify_all();
        }
        if state.batches.back().is_none_or(|batch| batch.closed || batch.full.is_some()) {
            let Some(slot) = self.take_buffer(state) else { return false };
            state.batches.push_back(Filling::new(slot, self.recipe.batch, epoch, state.assembled));
            state.assembled.batches += 1;
        }
        if let Some(batch) = state.batches.back_mut() {
            let mut chunk = batch.opener.chunk(1);
            chunk.row(0).copy_from(sample);
            chunk.set_number(0, number);
            batch.rows += 1;
        }
        true
    }

    /// Notes that the open batch is full. It is kept back until what follows tells whether it is the last of its pass: a
    /// sample, or where remainders are dropped a whole batch.
    fn close_if_full(&self, state: &mut State) {
        let at = state.assembled;
        let Some((batch, before)) = last_two(state) else { return };
        if batch.closed || batch.full.is_some() || batch.rows < batch.target {
            return;
        }
        batch.full = Some(at);
        if let Some(before) = before.filter(|before| before.is_held_back()) {
            close(before, self.recipe.is_epoch_over(before.epoch, batch.epoch));
        }
        let is_last = self.recipe.is_limit(at.batches);
        if is_last {
            close(batch, true);
        }
        state.pass_made = true;
        state.ended |= is_last;
        self.ready.notify_all();
    }

    /// A batch never reaches over the end of a pass.
    fn end_pass(&self, state: &mut State, pass: u64) {
        if state.assembled.pass != pass || self.is_done(state) {
            return;
        }
        let mut end = Cursor { pass: pass + 1, position: 0, kept: 0, ..state.assembled };
        let mut made = state.pass_made;
        if let Some((batch, before)) = last_two(state)
            && !batch.closed
        {
            let is_partial = batch.full.is_none();
            if is_partial && self.recipe.drop_remainder {
                (batch.closed, batch.discard) = (true, true);
                end.batches -= 1;
                if let Some(before) = before.filter(|before| before.is_held_back()) {
                    (before.closed, before.last, before.end) = (true, true, end);
                }
            } else {
                (batch.closed, batch.last, batch.end) = (true, true, end);
                made = true;
            }
        }
        (state.assembled, state.pass_made) = (end, false);
        state.ended |= self.recipe.is_limit(end.batches);
        self.ready.notify_all();
        if !made {
            // It would be followed by others like it, without end perhaps.
            let error = self.empty(state);
            self.fail(state, error);
        }
    }

    /// Nothing more of a pass is wanted.
    fn leave_rest(&self, state: &mut State, pass: u64) {
        self.end_pass(state, pass);
        state.ended |= !self.recipe.has_pass(pass + 1);
        state.next_pass = pass + 1;
    }

    /// Ends a pass without end of which nothing is let through any more: every sample was seen and dropped.
    fn note_drop(&self, state: &mut State, kept: bool, epoch: u64) {
        let recipe = &self.recipe;
        if kept {
            state.barren = (0, epoch);
            return;
        }
        let (count, since) = match state.barren {
            (0, _) => (1, epoch),
            (count, since) => (count + 1, since),
        };
        state.barren = (count, since);
        let is_barren = match recipe.mixed {
            false => epoch >= since + BARREN_EPOCHS,
            // Samples come late by about the windows of the shuffles.
            true => epoch >= since + BARREN_MIXED && count > BARREN_MIXED * recipe.spread(),
        };
        if is_barren && !self.is_done(state) {
            let error = self.empty(state);
            self.fail(state, error);
        }
    }

    fn fail(&self, state: &mut State, error: crate::Error) {
        state.ended = true;
        // Batches that are full are sound: they come before the error.
        state.batches.iter_mut().filter(|batch| batch.is_held_back()).for_each(|batch| close(batch, false));
        let open = state.batches.back().is_some_and(|batch| !batch.closed);
        if !open {
            // An error has no rows: it stands in a batch of none.
            let slot = crate::ring::Free::new(&self.recipe.spec, 0);
            state.buffers += 1;
            state.batches.push_back(Filling::new(slot, 0, 0, state.assembled));
        }
        if let Some(batch) = state.batches.back_mut() {
            batch.error = Some((batch.rows, error));
        }
        self.ready.notify_all();
    }

    /// What is said of a pass that made no batch.
    pub fn empty(&self, state: &State) -> crate::Error {
        let last_error = state.skips.front().map(|(_, why)| why.clone());
        self.recipe.empty(state.assembled.skipped, last_error)
    }
}

/// So many errors that were skipped are remembered, with those of batches that nobody has taken yet.
const REMEMBERED: usize = 64;

/// Counts a row that could not be read: when its turn comes, since others may be read ahead that nobody will ask for.
fn note_failure(state: &mut State, failures: &[(usize, String)], row: usize) {
    if let Some((_, why)) = failures.iter().find(|(failed, _)| *failed == row) {
        state.assembled.skipped += 1;
        state.skips.truncate(REMEMBERED - 1);
        state.skips.push_front((state.assembled.skipped, why.clone()));
    }
}

fn close(batch: &mut Filling, last: bool) {
    (batch.closed, batch.last) = (true, last);
    batch.end = batch.full.unwrap_or(batch.end);
}

/// The last batch and the one before.
fn last_two(state: &mut State) -> Option<(&mut Filling, Option<&mut Filling>)> {
    let mut from_last = state.batches.iter_mut().rev();
    Some((from_last.next()?, from_last.next()))
}
