//! Turns samples of any length into groups of about the same length.
//!
//! The stream is of positions; threads read the samples. So passing over what comes before a place reads no sample.

use std::path::PathBuf;
use std::sync::Arc;

use plimsoll_graph::DType;

use super::fingerprint;
use super::piped::Piped;
use crate::error::{Error, Result};
use crate::sample::{FieldSpec, Rows, Sample, SampleMut};
use crate::source::{Scratch, Stream, StreamSource};

/// A pipeline whose samples come in groups.
pub(super) struct Buckets {
    inner: Arc<Inner>,
    packed: Vec<FieldSpec>,
}

struct Inner {
    piped: Piped,
    bounds: Vec<usize>,
    batch: usize,
    /// The length of each sample of the source.
    lengths: Vec<u32>,
}

impl Buckets {
    pub fn new(piped: Piped, field: usize, bounds: &[usize], batch: usize) -> Result<Buckets> {
        let refused = |what: String| Err(Error::Stage(format!("bucket_by_length: {what}")));
        if !piped.spec().get(field).is_some_and(|field| field.varying) {
            return refused(format!("field {field} is none whose length varies"));
        }
        if bounds.is_empty() || !bounds.is_sorted_by(|one, next| one < next) {
            return refused(format!("bounds rise, as 16, 32, 64 do, and {bounds:?} do not"));
        }
        if batch == 0 {
            return refused("a batch of no samples cannot be made; 1 is the least".into());
        }
        let count = usize::try_from(piped.source_len()).unwrap_or(0);
        let mut lengths = vec![0; count];
        let (mut rows, mut scratch) = (Rows::new(piped.spec(), 1), Scratch::default());
        for position in 0..piped.len() {
            piped.read(position, &mut scratch, &mut rows.row_mut(piped.spec(), 0))?;
            lengths[piped.number(0, position) as usize] = rows.row(piped.spec(), 0).len(field) as u32;
        }
        let packed = ["position", "epoch"].map(|name| FieldSpec::new(name, DType::I64, []));
        let inner = Arc::new(Inner { piped, bounds: bounds.to_vec(), batch, lengths });
        Ok(Buckets { inner, packed: packed.into() })
    }
}

impl StreamSource for Buckets {
    fn packed(&self) -> &[FieldSpec] {
        &self.packed
    }

    fn spec(&self) -> &[FieldSpec] {
        self.inner.piped.spec()
    }

    fn unpack_with(&self, packed: &Sample<'_>, scratch: &mut Scratch, out: &mut SampleMut<'_>) -> Result<()> {
        // A window packs fields without gaps, so that numbers may begin at any byte.
        let number =
            |field: usize| packed.bytes(field).first_chunk().map_or(0, |&number| u64::from_ne_bytes(number));
        scratch.epoch = number(1);
        self.inner.piped.read(number(0), scratch, out)
    }

    fn scratch_bytes(&self) -> u64 {
        self.inner.piped.scratch_bytes()
    }

    fn len(&self) -> Option<u64> {
        Some(self.inner.piped.len())
    }

    fn open(&self) -> Result<Box<dyn Stream>> {
        self.open_in(0)
    }

    fn open_in(&self, epoch: u64) -> Result<Box<dyn Stream>> {
        let batch = self.inner.batch;
        let buckets = (0..=self.inner.bounds.len()).map(|_| Vec::with_capacity(batch)).collect();
        let group = Vec::with_capacity(batch);
        Ok(Box::new(BucketStream { inner: self.inner.clone(), epoch, position: 0, buckets, group, used: 0 }))
    }

    fn files(&self) -> Vec<PathBuf> {
        self.inner.piped.files()
    }

    fn name(&self) -> String {
        self.inner.piped.name()
    }

    fn held(&self) -> u64 {
        let Inner { piped, bounds, batch, lengths } = &*self.inner;
        piped.held() + 4 * lengths.len() as u64 + 8 * (*batch as u64) * (bounds.len() as u64 + 2)
    }

    fn fingerprint(&self) -> u64 {
        let Inner { piped, bounds, batch, .. } = &*self.inner;
        let bounds = bounds.iter().map(|&bound| bound as u64);
        fingerprint([piped.fingerprint(), 5, *batch as u64].into_iter().chain(bounds))
    }
}

struct BucketStream {
    inner: Arc<Inner>,
    epoch: u64,
    position: u64,
    buckets: Vec<Vec<u64>>,
    /// The positions of a bucket that is full, and how many of them were handed out.
    group: Vec<u64>,
    used: usize,
}

impl BucketStream {
    /// Fills buckets until one is full; at the end of the pass, those that are not are handed out in turn.
    fn fill(&mut self) -> bool {
        let Inner { piped, bounds, batch, lengths } = &*self.inner;
        self.group.clear();
        self.used = 0;
        while self.position < piped.len() {
            let number = piped.number(self.epoch, self.position) as usize;
            let length = lengths[number] as usize;
            let bucket = &mut self.buckets[bounds.partition_point(|&bound| bound < length)];
            bucket.push(self.position);
            self.position += 1;
            if bucket.len() == *batch {
                std::mem::swap(bucket, &mut self.group);
                return true;
            }
        }
        let rest = self.buckets.iter_mut().find(|bucket| !bucket.is_empty());
        rest.is_some_and(|bucket| {
            std::mem::swap(bucket, &mut self.group);
            true
        })
    }
}

impl Stream for BucketStream {
    fn next(&mut self, out: &mut SampleMut<'_>) -> Result<bool> {
        if self.used == self.group.len() && !self.fill() {
            return Ok(false);
        }
        out.set(0, &[self.group[self.used] as i64])?;
        out.set(1, &[self.epoch as i64])?;
        self.used += 1;
        Ok(true)
    }
}
