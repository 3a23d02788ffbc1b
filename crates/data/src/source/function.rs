//! Turns closures and iterators into sources.

use super::{Scratch, Source, Stream, StreamSource, spec_and_len};
use crate::error::Result;
use crate::sample::{FieldSpec, SampleMut};

/// Samples that a function makes from their number.
pub(crate) struct Function<F> {
    pub spec: Vec<FieldSpec>,
    pub len: u64,
    pub f: F,
}

impl<F: Fn(u64, &mut SampleMut<'_>) -> Result<()> + Send + Sync> Source for Function<F> {
    spec_and_len!(len);

    fn read(&self, index: u64, _: &mut Scratch, out: &mut SampleMut<'_>) -> Result<()> {
        (self.f)(index, out).map_err(|error| error.in_stage("source", index))
    }
}

/// Samples from iterators: `make` starts a new one for each pass, `write` puts an item into a sample.
pub(crate) struct Iterators<M, W> {
    pub spec: Vec<FieldSpec>,
    pub make: M,
    pub write: W,
}

impl<I, M, W> StreamSource for Iterators<M, W>
where
    I: Iterator + Send + 'static,
    M: Fn() -> I + Send + Sync,
    W: Fn(I::Item, &mut SampleMut<'_>) -> Result<()> + Clone + Send + Sync + 'static,
{
    fn packed(&self) -> &[FieldSpec] {
        &self.spec
    }

    fn open(&self) -> Result<Box<dyn Stream>> {
        Ok(Box::new(Items { items: (self.make)().enumerate(), write: self.write.clone() }))
    }
}

struct Items<I, W> {
    items: std::iter::Enumerate<I>,
    write: W,
}

impl<I, W> Stream for Items<I, W>
where
    I: Iterator + Send,
    W: Fn(I::Item, &mut SampleMut<'_>) -> Result<()> + Send,
{
    fn next(&mut self, out: &mut SampleMut<'_>) -> Result<bool> {
        let Some((index, item)) = self.items.next() else { return Ok(false) };
        (self.write)(item, out).map_err(|error| error.in_stage("source", index as u64))?;
        Ok(true)
    }
}
