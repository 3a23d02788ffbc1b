//! Turns samples that follow each other into one sample with an axis more.

use std::path::PathBuf;

use smallvec::SmallVec;

use super::fingerprint;
use super::piped::Piped;
use crate::error::{Error, Result};
use crate::sample::{FieldSpec, SampleMut};
use crate::source::{Scratch, Source};

/// Windows over a pipeline.
pub(super) struct Windows {
    piped: Piped,
    size: usize,
    shift: u64,
    spec: Vec<FieldSpec>,
}

impl Windows {
    pub fn new(piped: Piped, size: usize, shift: usize) -> Result<Windows> {
        if size == 0 || shift == 0 {
            let what =
                format!("a window of {size} samples, {shift} behind the last, means nothing; 1 is the least");
            return Err(Error::Stage(what));
        }
        if let Some(field) = piped.spec().iter().find(|field| field.varying) {
            return Err(Error::Stage(format!("window: the length of field '{}' varies", field.name)));
        }
        let spec = piped.spec().iter().map(|field| {
            let shape = std::iter::once(size).chain(field.shape.iter().copied()).collect();
            FieldSpec { shape, ..field.clone() }
        });
        Ok(Windows { spec: spec.collect(), piped, size, shift: shift as u64 })
    }
}

impl Source for Windows {
    fn spec(&self) -> &[FieldSpec] {
        &self.spec
    }

    fn len(&self) -> u64 {
        self.piped.len().checked_sub(self.size as u64).map_or(0, |behind| behind / self.shift + 1)
    }

    fn read(&self, index: u64, scratch: &mut Scratch, out: &mut SampleMut<'_>) -> Result<()> {
        let spec = self.piped.spec();
        let mut lens: SmallVec<[u32; 4]> = spec.iter().map(|field| field.first() as u32).collect();
        for row in 0..self.size {
            let rows = out.bytes.iter_mut().zip(spec);
            let bytes = rows.map(|(bytes, field)| &mut bytes[row * field.bytes()..][..field.bytes()]);
            let mut own = SampleMut { spec, bytes: bytes.collect(), lens: &mut lens };
            self.piped.read(index * self.shift + row as u64, scratch, &mut own)?;
        }
        Ok(())
    }

    fn files(&self) -> Vec<PathBuf> {
        self.piped.files()
    }

    fn name(&self) -> String {
        self.piped.name()
    }

    fn held(&self) -> u64 {
        self.piped.held()
    }

    fn scratch_bytes(&self) -> u64 {
        self.piped.scratch_bytes()
    }

    fn fingerprint(&self) -> u64 {
        fingerprint([self.piped.fingerprint(), 3, self.size as u64, self.shift])
    }
}
