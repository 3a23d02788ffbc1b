//! Turns a source and the moves of a pipeline into the samples of each pass, in order.
//!
//! One feed is shared by all threads under a lock. Of a source that is read by number only the position moves on
//! here, and threads read by themselves; of a stream the records are taken here, in turn, since only one thread
//! can read it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::held_back::Part;
use crate::order::Move;
use crate::sample::{FieldSpec, Rows, SampleMut};
use crate::source::{Random, Source, Stream, StreamSource};
use crate::window::Window;

/// What a pipeline reads from.
#[derive(Clone)]
pub(crate) enum Input {
    Indexed(Arc<dyn Source>),
    Stream(Arc<dyn StreamSource>),
}

impl Input {
    pub fn first_spec(&self) -> &[FieldSpec] {
        match self {
            Input::Indexed(source) => source.spec(),
            Input::Stream(source) => source.packed(),
        }
    }

    pub fn held(&self) -> u64 {
        match self {
            Input::Indexed(source) => source.held(),
            Input::Stream(source) => source.held(),
        }
    }

    /// The number of samples in one pass over it, if that is known.
    pub fn len(&self) -> Option<u64> {
        match self {
            Input::Indexed(source) => Some(source.len()),
            Input::Stream(source) => source.len(),
        }
    }

    /// What messages call it.
    pub fn name(&self) -> String {
        match self {
            Input::Indexed(source) => source.name(),
            Input::Stream(source) => source.name(),
        }
    }

    /// The files it reads.
    pub fn files(&self) -> Vec<PathBuf> {
        match self {
            Input::Indexed(source) => source.files(),
            Input::Stream(source) => source.files(),
        }
    }

    /// What a user should know of the way from the file to the sample.
    pub fn notes(&self) -> Vec<String> {
        match self {
            Input::Indexed(source) => source.notes(),
            Input::Stream(source) => source.notes(),
        }
    }

    /// Bytes of scratch that a thread needs at most.
    pub fn scratch_bytes(&self) -> u64 {
        match self {
            Input::Indexed(source) => source.scratch_bytes(),
            Input::Stream(source) => source.scratch_bytes(),
        }
    }

    /// Tells it from others of the same length and fields.
    pub fn fingerprint(&self) -> u64 {
        match self {
            Input::Indexed(source) => source.fingerprint(),
            Input::Stream(source) => source.fingerprint(),
        }
    }

    /// The random numbers that it is, if it is some.
    pub fn random(&self) -> Option<&Random> {
        match self {
            Input::Indexed(source) => source.random(),
            Input::Stream(_) => None,
        }
    }

    pub fn is_stream(&self) -> bool {
        matches!(self, Input::Stream(_))
    }
}

/// Where the next sample of the pipeline is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cursor {
    /// Passes over the whole order that are complete.
    pub pass: u64,
    /// Samples taken of this pass.
    pub position: u64,
    /// Samples of this pass that passed the filters, where moves come after them.
    pub kept: u64,
    /// Batches delivered.
    pub batches: u64,
    /// Samples that were skipped because of an error, as far as this process has come.
    pub skipped: u64,
}

/// The shared side of reading.
pub(crate) struct SampleReader {
    pub cursor: Cursor,
    pub chain: Option<Chain>,
}

/// A stream with the moves that act on it, each a link that pulls from the one before.
pub(crate) struct Chain {
    links: Vec<Link>,
    source: Arc<dyn StreamSource>,
    stream: Option<Box<dyn Stream>>,
    /// Samples taken of the stream in this pass over it.
    index: u64,
    /// Passes over the source, whatever repeats it.
    epoch: u64,
    /// What was pulled to see whether anything follows: where it came from, that there is nothing, or why not.
    ahead: Option<Result<Option<(u64, u64)>>>,
    /// The sample that was pulled.
    ahead_row: Rows,
}

enum Link {
    Take { n: u64, seen: u64 },
    Skip { n: u64, done: bool },
    Shard { index: u64, count: u64, begun: bool },
    Part { part: Part, seen: u64 },
    Shuffle(Box<Window>),
    Repeat { times: Option<u64>, done: u64, any: bool },
}

/// Bytes that the windows of all shuffles of a stream take, and the one sample that is read ahead.
pub(crate) fn window_bytes(spec: &[FieldSpec], moves: &[Move]) -> u64 {
    let window = |step: &Move| match step {
        Move::Shuffle { window, .. } => Window::bytes_per_record(spec).0.saturating_mul(*window),
        _ => 0,
    };
    moves.iter().map(window).fold(Rows::bytes_for(spec, 1), u64::saturating_add)
}

impl Chain {
    pub fn new(source: Arc<dyn StreamSource>, moves: &[Move]) -> Chain {
        let spec = source.packed();
        let link = |step: &Move| match *step {
            Move::Take(n) => Link::Take { n, seen: 0 },
            Move::Skip(n) => Link::Skip { n, done: false },
            Move::Shard { index, count } => Link::Shard { index, count, begun: false },
            Move::Part(part) => Link::Part { part, seen: 0 },
            Move::Repeat(times) => Link::Repeat { times, done: 0, any: false },
            Move::Shuffle { window, seed } => {
                let capacity = usize::try_from(window).unwrap_or(1).max(1);
                Link::Shuffle(Box::new(Window::new(spec, capacity, seed)))
            }
        };
        let links = moves.iter().map(link).collect();
        let ahead_row = Rows::new(spec, 1);
        Chain { links, source, stream: None, index: 0, epoch: 0, ahead: None, ahead_row }
    }

    /// Starts a pass over everything. What keeps it from starting comes in the place of its first sample.
    pub fn restart(&mut self, pass: u64) {
        self.ahead = None;
        if let Err(error) = caught(|| self.try_restart(pass)) {
            self.ahead = Some(Err(error));
        }
    }

    fn try_restart(&mut self, pass: u64) -> Result<()> {
        self.epoch = pass;
        for link in &mut self.links {
            match link {
                Link::Repeat { times, done, .. } => {
                    // Epochs go on counting over passes, as they do for sources that are read by number.
                    self.epoch = self.epoch.wrapping_mul(times.unwrap_or(1));
                    *done = 0;
                }
                Link::Shuffle(window) => window.begin(pass.wrapping_mul(1 << 32)),
                _ => {}
            }
        }
        self.begin(self.links.len())
    }

    /// Starts the first `upto` links anew.
    fn begin(&mut self, upto: usize) -> Result<()> {
        for link in &mut self.links[..upto] {
            match link {
                Link::Take { seen, .. } | Link::Part { seen, .. } => *seen = 0,
                Link::Skip { done, .. } => *done = false,
                Link::Shard { begun, .. } => *begun = false,
                Link::Repeat { done, any, .. } => (*done, *any) = (0, false),
                Link::Shuffle(window) => window.begin(window.pass().wrapping_add(1)),
            }
        }
        self.stream = Some(self.source.open_in(self.epoch)?);
        self.index = 0;
        Ok(())
    }

    /// Writes the next sample and says where it came from; nothing at the end of the pass.
    pub fn next(&mut self, out: &mut SampleMut<'_>) -> Result<Option<(u64, u64)>> {
        match self.ahead.take() {
            Some(Ok(Some(origin))) => {
                out.copy_from(&self.ahead_row.row(self.source.packed(), 0));
                Ok(Some(origin))
            }
            Some(known) => known,
            None => caught(|| self.pull(self.links.len(), out))
                .map_err(|error| error.in_stage("source", self.index)),
        }
    }

    /// The epoch of the sample that comes next; nothing at the end of the pass. Where the next sample cannot be
    /// read, the answer is `Err`, and the error itself comes when that sample is asked for.
    pub fn peek(&mut self) -> Result<Option<u64>, ()> {
        if self.ahead.is_none() {
            // Taken out while it is written, because the links are borrowed as well.
            let mut rows = std::mem::replace(&mut self.ahead_row, Rows::new(&[], 0));
            let source = self.source.clone();
            let mut row = rows.row_mut(source.packed(), 0);
            let pulled = caught(|| self.pull(self.links.len(), &mut row));
            self.ahead = Some(pulled.map_err(|error| error.in_stage("source", self.index)));
            drop(row);
            self.ahead_row = rows;
        }
        match &self.ahead {
            Some(Ok(origin)) => Ok(origin.map(|(epoch, _)| epoch)),
            _ => Err(()),
        }
    }

    /// The next sample that comes out of the first `upto` links. The depth of recursion is the number of stages.
    fn pull(&mut self, upto: usize, out: &mut SampleMut<'_>) -> Result<Option<(u64, u64)>> {
        let Some(last) = upto.checked_sub(1) else {
            let Some(stream) = &mut self.stream else { return Ok(None) };
            if !stream.next(out)? {
                return Ok(None);
            }
            self.index += 1;
            return Ok(Some((self.epoch, self.index - 1)));
        };
        match &mut self.links[last] {
            Link::Take { n, seen } => {
                if *seen == *n {
                    return Ok(None);
                }
                *seen += 1;
                self.pull(last, out)
            }
            Link::Skip { n, done } => {
                let skip = if *done { 0 } else { *n };
                *done = true;
                self.pass_over(last, skip, out)
            }
            Link::Shard { index, count, begun } => {
                let skip = if *begun { *count - 1 } else { *index };
                *begun = true;
                self.pass_over(last, skip, out)
            }
            Link::Part { part, seen } => {
                let first = *seen;
                let next = (first..).find(|&index| part.has(index)).unwrap_or(u64::MAX);
                *seen = next.saturating_add(1);
                self.pass_over(last, next - first, out)
            }
            Link::Repeat { times: Some(0), .. } => Ok(None),
            Link::Repeat { .. } => loop {
                let found = self.pull(last, out)?;
                let Link::Repeat { times, done, any } = &mut self.links[last] else { return Ok(None) };
                if found.is_some() {
                    *any = true;
                    return Ok(found);
                }
                *done += 1;
                if !*any || times.is_some_and(|times| *done >= times) {
                    return Ok(None);
                }
                *any = false;
                self.epoch += 1;
                self.begin(last)?;
            },
            Link::Shuffle(_) => self.draw(last, out),
        }
    }

    fn pass_over(&mut self, upto: usize, skip: u64, out: &mut SampleMut<'_>) -> Result<Option<(u64, u64)>> {
        for _ in 0..skip {
            if self.pull(upto, out)?.is_none() {
                return Ok(None);
            }
        }
        self.pull(upto, out)
    }

    /// Keeps the window full and takes a random record out of it.
    fn draw(&mut self, last: usize, out: &mut SampleMut<'_>) -> Result<Option<(u64, u64)>> {
        loop {
            let Link::Shuffle(window) = &mut self.links[last] else { return Ok(None) };
            if window.ended || window.is_full() {
                return Ok(window.draw(out));
            }
            let origin = self.pull(last, out)?;
            let Link::Shuffle(window) = &mut self.links[last] else { return Ok(None) };
            match origin {
                Some(origin) => window.push(&out.view(), origin),
                None => window.ended = true,
            }
        }
    }
}

/// Runs what may call a closure of the user's; a panic there is an error like others.
pub(crate) fn caught<T>(f: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|_| Err(Error::refused("the closure panicked")))
}
