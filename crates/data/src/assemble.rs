//! Turns staged chunks, some of whose samples were dropped, into batches, in order.

use std::time::Instant;

use crate::counters::Sum;
use crate::engine::{Engine, Filling, State};
use crate::feed::Cursor;
use crate::order::Move;

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
        if state.ended && state.staged.is_empty() && state.batches.back().is_some_and(|batch| !batch.closed) {
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
        if state.assembled.pass != staged.start.pass {
            (state.assembled.pass, state.assembled.kept) = (staged.start.pass, 0);
        }
        let mut room = true;
        while staged.used < staged.keep.len() {
            let row = staged.used;
            let position = staged.start.position + row as u64;
            if staged.keep[row] && !self.is_limit_reached(state) {
                match self.verdict(state.assembled.kept) {
                    Verdict::Use => {
                        if !self.append(state, &full.row(row), staged.epochs[row]) {
                            room = false;
                            break;
                        }
                    }
                    Verdict::Drop => {}
                    Verdict::Enough => state.ended |= self.recipe.is_last_pass(staged.start.pass),
                }
                state.assembled.kept += 1;
            }
            staged.used += 1;
            (state.assembled.pass, state.assembled.position) = (staged.start.pass, position + 1);
            self.close_if_full(state);
        }
        if room {
            if let Some((_, error)) = staged.error.take() {
                self.fail(state, error);
            } else if staged.ends_pass {
                self.end_pass(state, staged.start.pass);
            }
            // Chunks of threads that have ended go with them.
            if state.staging_made > 2 * state.workers_target {
                state.staging_made -= 1;
            } else {
                state.staging.push(full.free());
            }
            state.staged_base += 1;
            self.work.notify_all();
            return true;
        }
        staged.opener = full.free().open();
        // Opened again for reading only: no chunk of it is ever taken.
        state.staged.push_front(staged);
        false
    }

    fn is_limit_reached(&self, state: &State) -> bool {
        self.recipe.batch_limit.is_some_and(|limit| {
            let open = state.batches.back().is_some_and(|batch| !batch.closed);
            state.assembled.batches >= limit && !open
        })
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
    fn append(&self, state: &mut State, sample: &crate::sample::Sample<'_>, epoch: u64) -> bool {
        if state.batches.back().is_none_or(|batch| batch.closed) {
            let Some(slot) = self.take_buffer(state) else { return false };
            state.batches.push_back(Filling::new(slot, self.recipe.batch, epoch));
            state.assembled.batches += 1;
        }
        if let Some(batch) = state.batches.back_mut() {
            batch.opener.chunk(1).row(0).copy_from(sample);
            batch.rows += 1;
        }
        true
    }

    fn close_if_full(&self, state: &mut State) {
        let end = state.assembled;
        if let Some(batch) = state.batches.back_mut()
            && !batch.closed
            && batch.rows == batch.target
        {
            (batch.closed, batch.end) = (true, end);
            batch.last = self.recipe.epoch_ends(end);
            if self.recipe.batch_limit.is_some_and(|limit| end.batches >= limit) {
                state.ended = true;
            }
            self.ready.notify_all();
        }
    }

    /// A batch never reaches over the end of a pass.
    fn end_pass(&self, state: &mut State, pass: u64) {
        state.assembled = Cursor { pass: pass + 1, position: 0, kept: 0, ..state.assembled };
        let end = state.assembled;
        if let Some(batch) = state.batches.back_mut()
            && !batch.closed
        {
            (batch.closed, batch.last, batch.end) = (true, true, end);
            batch.discard = self.recipe.drop_remainder;
            if batch.discard {
                state.assembled.batches -= 1;
            }
            self.ready.notify_all();
        }
    }

    fn fail(&self, state: &mut State, error: crate::Error) {
        state.ended = true;
        let open = state.batches.back().is_some_and(|batch| !batch.closed);
        if !open {
            // An error has no rows: it stands in a batch of none.
            let slot = crate::ring::Free::new(&self.recipe.spec, 0);
            state.buffers += 1;
            state.batches.push_back(Filling::new(slot, 0, 0));
        }
        if let Some(batch) = state.batches.back_mut() {
            batch.error = Some((batch.rows, error));
        }
        self.ready.notify_all();
    }
}
