//! Turns each sample into as many as a closure makes of it.

use std::path::PathBuf;
use std::sync::Arc;

use super::fingerprint;
use super::piped::Piped;
use crate::error::{Error, Result};
use crate::sample::{FieldSpec, Rows, Sample, SampleMut};
use crate::source::{Scratch, Stream, StreamSource};
use crate::step::At;

/// Where a closure of [`Dataset::flat_map`](crate::Dataset::flat_map) puts the samples that it makes.
pub struct Emit<'a> {
    rows: &'a mut Rows,
    spec: &'a [FieldSpec],
    count: usize,
    most: usize,
}

impl Emit<'_> {
    /// One sample more, which `write` writes.
    ///
    /// # Errors
    /// There are as many as was said already, or `write` says so.
    pub fn push(&mut self, write: impl FnOnce(&mut SampleMut<'_>) -> Result<()>) -> Result<()> {
        if self.count == self.most {
            let what =
                format!("more than {} samples come of one; say so when flat_map is asked for", self.most);
            return Err(Error::refused(what));
        }
        let mut row = self.rows.row_mut(self.spec, self.count);
        row.lens.iter_mut().zip(self.spec).for_each(|(len, field)| *len = field.first() as u32);
        write(&mut row)?;
        self.count += 1;
        Ok(())
    }
}

type FlatFn = dyn Fn(&Sample<'_>, &mut Emit<'_>, &At) -> Result<()> + Send + Sync;

/// A pipeline of which each sample becomes several.
pub(super) struct FlatMapped {
    inner: Arc<Inner>,
}

struct Inner {
    piped: Piped,
    spec: Vec<FieldSpec>,
    most: usize,
    f: Arc<FlatFn>,
}

impl FlatMapped {
    pub fn new(piped: Piped, spec: Vec<FieldSpec>, most: usize, f: Arc<FlatFn>) -> Result<FlatMapped> {
        if most == 0 {
            return Err(Error::Stage("flat_map makes 1 sample of each at most at least, not 0".into()));
        }
        Ok(FlatMapped { inner: Arc::new(Inner { piped, spec, most, f }) })
    }
}

impl StreamSource for FlatMapped {
    fn packed(&self) -> &[FieldSpec] {
        &self.inner.spec
    }

    fn open(&self) -> Result<Box<dyn Stream>> {
        self.open_in(0)
    }

    fn open_in(&self, epoch: u64) -> Result<Box<dyn Stream>> {
        let Inner { piped, spec, most, .. } = &*self.inner;
        Ok(Box::new(FlatStream {
            input: Rows::new(piped.spec(), 1),
            made: Rows::new(spec, *most),
            count: 0,
            used: 0,
            position: 0,
            scratch: Scratch { epoch, ..Scratch::default() },
            inner: self.inner.clone(),
        }))
    }

    fn files(&self) -> Vec<PathBuf> {
        self.inner.piped.files()
    }

    fn name(&self) -> String {
        self.inner.piped.name()
    }

    fn held(&self) -> u64 {
        let Inner { piped, spec, most, .. } = &*self.inner;
        let rows = Rows::bytes_for(piped.spec(), 1) + Rows::bytes_for(spec, *most);
        piped.held() + piped.scratch_bytes() + rows
    }

    fn fingerprint(&self) -> u64 {
        fingerprint([self.inner.piped.fingerprint(), 4, self.inner.most as u64])
    }
}

struct FlatStream {
    inner: Arc<Inner>,
    scratch: Scratch,
    position: u64,
    input: Rows,
    /// What was made of the last sample, how much of it there is, and how much was handed out.
    made: Rows,
    count: usize,
    used: usize,
}

impl Stream for FlatStream {
    fn next(&mut self, out: &mut SampleMut<'_>) -> Result<bool> {
        let Inner { piped, spec, most, f } = &*self.inner;
        while self.used == self.count {
            if self.position == piped.len() {
                return Ok(false);
            }
            let at = At { epoch: self.scratch.epoch, index: self.position };
            piped.read(self.position, &mut self.scratch, &mut self.input.row_mut(piped.spec(), 0))?;
            self.position += 1;
            let mut emit = Emit { rows: &mut self.made, spec, count: 0, most: *most };
            f(&self.input.row(piped.spec(), 0), &mut emit, &at)?;
            (self.used, self.count) = (0, emit.count);
        }
        out.copy_from(&self.made.row(spec, self.used));
        self.used += 1;
        Ok(true)
    }
}
