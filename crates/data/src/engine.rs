//! Threads that turn samples into batches, in order, whatever their number.
//!
//! ```text
//!  feed (locked)          threads                         in order
//!  next positions ──► read, steps: rows of a batch ──► batch complete ──► caller
//!  or next records        (or of a staging chunk            ▲
//!  of a stream             where samples may be dropped ──► assemble)
//! ```
//!
//! A thread takes the next few positions together with the rows they belong to. Which sample goes into which row is
//! thus settled before any work starts, and the order cannot depend on how fast threads are. Where a filter or a skipped
//! error may drop samples, rows are not known before; such chunks are staged and put together in order.
//!
//! What one thread does is in `worker`, how dropped samples are made up for in `assemble`.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::counters::{Counter, StageCount};
use crate::error::{Error, Result};
use crate::plan::{Limits, STACK};
use crate::recipe::Recipe;
use crate::ring::{Free, Opener};
use crate::sample_reader::{Chain, Cursor, Input, SampleReader};

/// What all threads of a pipeline share.
pub(crate) struct Engine {
    pub recipe: Recipe,
    pub limits: Limits,
    pub feed: Mutex<SampleReader>,
    state: Mutex<State>,
    /// There may be room to work.
    pub work: Condvar,
    /// There may be a batch.
    pub ready: Condvar,
    /// The source, each step, the batch.
    pub counters: Vec<Counter>,
}

/// What changes while it runs.
pub(crate) struct State {
    pub free: Vec<Free>,
    /// Batches in the making, in order; only the last can be open.
    pub batches: VecDeque<Filling>,
    /// The number of the first of them.
    pub base: u64,
    /// Chunks that are put together later, in order.
    pub staged: VecDeque<Staged>,
    pub staged_base: u64,
    pub staging: Vec<Free>,
    pub staging_made: usize,
    /// Batches that exist, in the making, free or with the caller.
    pub buffers: usize,
    pub buffers_target: usize,
    /// How often a thread found no room for its work.
    pub stalls: u64,
    pub workers: usize,
    pub workers_target: usize,
    pub threads: Vec<JoinHandle<()>>,
    /// No position is left to hand out.
    pub ended: bool,
    pub stop: bool,
    /// Where the next sample to be put together comes from, and what was delivered of its pass.
    pub assembled: Cursor,
    /// Whether a batch was made of the pass that is being put together.
    pub pass_made: bool,
    /// Samples in a row that were dropped, and the epoch in which the row began.
    pub barren: (u64, u64),
    /// Nothing more is wanted of the passes before this one.
    pub next_pass: u64,
    /// The last few errors that were skipped, each with its number, from 1: the last first.
    pub skips: VecDeque<(u64, String)>,
}

/// A batch in the making.
pub(crate) struct Filling {
    pub opener: Opener,
    pub rows: usize,
    pub target: usize,
    /// Samples of the whole batch, and which of them its first row is: others where a rank reads its own alone.
    pub whole: usize,
    pub skipped: usize,
    pub pending: usize,
    /// Where the pipeline stood when its last row was written. It is closed once it is known what follows, because
    /// only then is it known whether it is the last of its pass.
    pub full: Option<Cursor>,
    pub closed: bool,
    pub discard: bool,
    pub error: Option<(usize, Error)>,
    /// The epoch of its first sample.
    pub epoch: u64,
    pub last: bool,
    /// The position of its first sample.
    pub start: Cursor,
    /// Where the pipeline stands after it.
    pub end: Cursor,
}

impl Filling {
    pub fn new(slot: Free, target: usize, epoch: u64, start: Cursor) -> Filling {
        let (rows, pending, closed, discard) = (0, 0, false, false);
        let end = Cursor::default();
        Filling {
            opener: slot.open(),
            rows,
            target,
            whole: target,
            skipped: 0,
            pending,
            full: None,
            closed,
            discard,
            error: None,
            epoch,
            last: false,
            start,
            end,
        }
    }

    /// Whether it is full and waits to know what follows it.
    pub fn is_held_back(&self) -> bool {
        self.full.is_some() && !self.closed
    }

    pub fn is_complete(&self) -> bool {
        self.pending == 0 && (self.closed || self.error.is_some())
    }
}

/// A chunk whose samples may be dropped.
pub(crate) struct Staged {
    pub opener: Opener,
    pub done: bool,
    pub count: usize,
    /// For each row whether it is kept.
    pub keep: Vec<bool>,
    /// Rows that could not be read, and why.
    pub failures: Vec<(usize, String)>,
    /// Rows that have been put into batches or dropped.
    pub used: usize,
    pub error: Option<(usize, Error)>,
    pub start: Cursor,
    pub epochs: Vec<u64>,
    pub ends_pass: bool,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing of the user's runs under a lock, and what does leaves the state whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Engine {
    /// What each stage has done so far, from the source to the batch.
    pub fn stages(&self) -> Vec<StageCount> {
        let names = self.recipe.stage_names();
        names.iter().zip(&self.counters).map(|(name, counter)| counter.read(name)).collect()
    }

    pub fn start(recipe: Recipe, limits: Limits, cursor: Cursor) -> Result<Arc<Engine>> {
        let (workers, buffers) = match recipe.random() {
            Some(_) => (0, 0),
            None => limits.start(),
        };
        let chain = match &recipe.input {
            Input::Indexed(_) => None,
            Input::Stream(source) => {
                let mut chain = Chain::new(source.clone(), &recipe.moves);
                chain.restart(cursor.pass);
                let mut row = crate::sample::Rows::new(&recipe.first, 1);
                for _ in 0..cursor.position {
                    chain.next(&mut row.row_mut(&recipe.first, 0))?;
                }
                Some(chain)
            }
        };
        let state = State {
            free: Vec::new(),
            batches: VecDeque::new(),
            base: 0,
            staged: VecDeque::new(),
            staged_base: 0,
            staging: Vec::new(),
            staging_made: 0,
            buffers: 0,
            buffers_target: buffers,
            stalls: 0,
            workers: 0,
            workers_target: workers,
            threads: Vec::new(),
            ended: recipe.batch_limit.is_some_and(|limit| cursor.batches >= limit),
            stop: false,
            assembled: cursor,
            pass_made: cursor.position > 0,
            barren: (0, 0),
            next_pass: 0,
            skips: VecDeque::new(),
        };
        let counters = (0..recipe.steps.len() + 2).map(|_| Counter::default()).collect();
        let engine = Arc::new(Engine {
            recipe,
            limits,
            feed: Mutex::new(SampleReader { cursor, chain }),
            state: Mutex::new(state),
            work: Condvar::new(),
            ready: Condvar::new(),
            counters,
        });
        let mut state = lock(&engine.state);
        while state.workers < workers {
            engine.spawn(&mut state)?;
        }
        drop(state);
        Ok(engine)
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// One thread more.
    pub fn spawn(self: &Arc<Self>, state: &mut State) -> Result<()> {
        let (engine, id) = (self.clone(), state.workers);
        let thread = std::thread::Builder::new().name(format!("data-{id}")).stack_size(STACK);
        let thread = thread.spawn(move || engine.run(id)).map_err(Error::Thread)?;
        state.threads.retain(|thread| !thread.is_finished());
        state.threads.push(thread);
        state.workers += 1;
        Ok(())
    }

    /// Ends all threads and waits for them.
    pub fn stop(&self) {
        let mut state = self.state();
        state.stop = true;
        let threads = std::mem::take(&mut state.threads);
        drop(state);
        self.work.notify_all();
        for thread in threads {
            // A thread that panicked has nothing left to say here.
            let _ = thread.join();
        }
    }

    /// A buffer for a new batch, if there may be one.
    pub fn take_buffer(&self, state: &mut State) -> Option<Free> {
        state.free.pop().or_else(|| {
            (state.buffers < state.buffers_target).then(|| {
                state.buffers += 1;
                Free::new(&self.recipe.spec, self.recipe.rows())
            })
        })
    }
}
