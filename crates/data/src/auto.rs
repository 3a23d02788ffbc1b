//! Turns measured waiting into more or fewer threads and batches.
//!
//! While the caller waits for batches, one thread more is tried, and one batch more where threads had to stop for want of
//! room in the same round (then work comes in bursts, which more room evens out). What did not make batches come faster is
//! taken back: batches that nobody needs only push each other out of the processor's cache. While the caller never waits, a thread is given up, later a batch. Each mistake doubles the time
//! until the same is tried again, so that a steady load settles.

use std::time::{Duration, Instant};

use crate::engine::{Engine, State};
use crate::error::Result;
use crate::plan::Amount;
use std::sync::Arc;

/// Batches between two decisions, fewer where they take long.
const ROUND: u32 = 8;
/// So long a round is enough with two batches.
const LONG: Duration = Duration::from_millis(200);
/// Waiting above this share of the time asks for more.
const TOO_MUCH: f64 = 0.02;
/// Below this share nobody waits.
const NONE: f64 = 0.001;
/// A thread more must make batches come faster by this factor to be kept.
const BETTER: f64 = 1.03;

#[derive(Clone, Copy, PartialEq)]
enum Trial {
    None,
    MoreThreads,
    MoreBatches,
    FewerThreads,
    FewerBatches,
}

pub(crate) struct Auto {
    began: Instant,
    waited: Duration,
    batches: u32,
    trial: Trial,
    rate_before: f64,
    stalls_before: u64,
    /// Rounds until threads or batches are added, or anything is given up, again; and what that is after a mistake.
    grow_in: u32,
    grow_pause: u32,
    room_in: u32,
    room_pause: u32,
    shrink_in: u32,
    shrink_pause: u32,
}

impl Auto {
    pub fn new() -> Auto {
        Auto {
            began: Instant::now(),
            waited: Duration::ZERO,
            batches: 0,
            trial: Trial::None,
            rate_before: 0.0,
            stalls_before: 0,
            grow_in: 0,
            grow_pause: 4,
            room_in: 0,
            room_pause: 4,
            shrink_in: 4,
            shrink_pause: 4,
        }
    }

    /// Counts one batch and, once a round, decides.
    pub fn batch(&mut self, waited: Duration, engine: &Arc<Engine>, state: &mut State) -> Result<()> {
        self.waited += waited;
        self.batches += 1;
        let time = self.began.elapsed();
        let is_round = self.batches >= ROUND || (self.batches >= 2 && time >= LONG);
        if !is_round || state.ended {
            return Ok(());
        }
        let time = time.as_secs_f64().max(1e-9);
        let (share, rate) = (self.waited.as_secs_f64() / time, f64::from(self.batches) / time);
        (self.began, self.waited, self.batches) = (Instant::now(), Duration::ZERO, 0);
        self.decide(share, rate, engine, state)
    }

    fn decide(&mut self, share: f64, rate: f64, engine: &Arc<Engine>, state: &mut State) -> Result<()> {
        let limits = &engine.limits;
        self.grow_in = self.grow_in.saturating_sub(1);
        self.room_in = self.room_in.saturating_sub(1);
        self.shrink_in = self.shrink_in.saturating_sub(1);
        let stalled = state.stalls > std::mem::replace(&mut self.stalls_before, state.stalls);
        match std::mem::replace(&mut self.trial, Trial::None) {
            Trial::MoreThreads if share > TOO_MUCH && rate < self.rate_before * BETTER => {
                state.workers_target = (state.workers_target - 1).max(1);
                self.grow_in = self.grow_pause;
                self.grow_pause = (self.grow_pause * 2).min(256);
                engine.work.notify_all();
                return Ok(());
            }
            Trial::MoreBatches if share > TOO_MUCH && rate < self.rate_before * BETTER => {
                self.room_in = self.room_pause;
                self.room_pause = (self.room_pause * 2).min(256);
                give_up_a_batch(engine, state);
                return Ok(());
            }
            Trial::FewerThreads | Trial::FewerBatches if share > TOO_MUCH => {
                self.shrink_in = self.shrink_pause;
                self.shrink_pause = (self.shrink_pause * 2).min(256);
                self.grow_in = 0;
            }
            _ => {}
        }
        let (threads, batches) = (limits.workers == Amount::Auto, limits.buffers == Amount::Auto);
        // Threads and batches that are on their way out still take their bytes.
        let (workers, buffers) =
            (state.workers.max(state.workers_target), state.buffers.max(state.buffers_target));
        if share > TOO_MUCH {
            if threads && self.grow_in == 0 && limits.fits(workers + 1, buffers) {
                state.workers_target += 1;
                if state.workers < state.workers_target {
                    engine.spawn(state)?;
                }
                (self.trial, self.rate_before) = (Trial::MoreThreads, rate);
            } else if batches && stalled && self.room_in == 0 && limits.fits(workers, buffers + 1) {
                state.buffers_target += 1;
                (self.trial, self.rate_before) = (Trial::MoreBatches, rate);
                engine.work.notify_all();
            }
        } else if share < NONE && self.shrink_in == 0 {
            if threads && state.workers_target > 1 {
                state.workers_target -= 1;
                self.trial = Trial::FewerThreads;
                engine.work.notify_all();
            } else if batches && state.buffers_target > 3 {
                give_up_a_batch(engine, state);
                self.trial = Trial::FewerBatches;
            }
            self.shrink_in = self.shrink_in.max(2);
        }
        Ok(())
    }
}

/// One batch fewer: a free one now, or the next that comes back.
fn give_up_a_batch(engine: &Engine, state: &mut State) {
    state.buffers_target = (state.buffers_target - 1).max(engine.limits.least_batches());
    if state.buffers > state.buffers_target && state.free.pop().is_some() {
        state.buffers -= 1;
    }
}
