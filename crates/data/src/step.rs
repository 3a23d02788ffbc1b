//! Steps on samples: what the user's closures do between source and batch.

use std::sync::Arc;
use std::time::Instant;

use plimsoll_graph::philox::philox4x32;

use crate::augment::Augmenter;
use crate::counters::Sum;
use crate::error::{Error, Result};
use crate::sample::{FieldSpec, Rows, Sample, SampleMut};
use crate::source::{Scratch, StreamSource};

/// Where a sample comes from, for steps that depend on it: same place, same random numbers, whatever thread it is.
#[derive(Clone, Copy, Debug)]
pub struct At {
    /// How often the source was gone through before.
    pub epoch: u64,
    /// The number of the sample in its source.
    pub index: u64,
}

impl At {
    /// Random numbers for this sample in this epoch.
    ///
    /// ```
    /// let at = plimsoll_data::At { epoch: 0, index: 17 };
    /// let coin = at.random(42).next().is_some_and(|word| word & 1 == 0);
    /// # let _ = coin;
    /// ```
    pub fn random(&self, seed: u64) -> impl Iterator<Item = u32> + use<> {
        let (index, epoch) = (self.index, self.epoch);
        (0..=u32::MAX).flat_map(move |block| {
            let counter = [block, index as u32, (index >> 32) as u32, epoch as u32];
            philox4x32(counter, [seed as u32, (seed >> 32) as u32])
        })
    }
}

pub(crate) type MapFn = dyn Fn(&Sample<'_>, &mut SampleMut<'_>, &At) -> Result<()> + Send + Sync;
pub(crate) type InPlaceFn = dyn Fn(&mut SampleMut<'_>, &At) -> Result<()> + Send + Sync;
pub(crate) type FilterFn = dyn Fn(&Sample<'_>, &At) -> Result<bool> + Send + Sync;

#[derive(Clone)]
pub(crate) enum Step {
    /// Samples of a stream get their final types.
    Unpack(Arc<dyn StreamSource>, Arc<[FieldSpec]>),
    Map(Arc<MapFn>, Arc<[FieldSpec]>),
    InPlace(Arc<InPlaceFn>),
    /// Pictures are changed for training.
    Augment(Arc<Augmenter>, Arc<[FieldSpec]>),
    Filter(Arc<FilterFn>),
}

impl Step {
    pub fn name(&self) -> &'static str {
        match self {
            Step::Unpack(..) => "unpack",
            Step::Map(..) => "map",
            Step::InPlace(_) => "in_place",
            Step::Augment(..) => "augment",
            Step::Filter(_) => "filter",
        }
    }

    /// The fields after this step, if it changes them.
    pub fn spec(&self) -> Option<&Arc<[FieldSpec]>> {
        match self {
            Step::Unpack(_, spec) | Step::Map(_, spec) | Step::Augment(_, spec) => Some(spec),
            Step::InPlace(_) | Step::Filter(_) => None,
        }
    }
}

/// Scratch rows of one thread: what the source wrote, and what each step but the last made of it.
pub(crate) struct Stages {
    specs: Vec<Arc<[FieldSpec]>>,
    rows: Vec<Rows>,
    /// What unpacking takes beside its rows.
    scratch: Scratch,
}

impl Stages {
    /// The specs of the rows that are needed: none where the source writes straight into the batch.
    fn specs(first: &Arc<[FieldSpec]>, steps: &[Step]) -> Vec<Arc<[FieldSpec]>> {
        let changes = steps.iter().filter_map(Step::spec);
        let mut specs: Vec<_> = std::iter::once(first).chain(changes).cloned().collect();
        specs.pop();
        specs
    }

    pub fn bytes(first: &Arc<[FieldSpec]>, steps: &[Step], stream: bool, records: usize) -> u64 {
        let specs = Stages::specs(first, steps);
        let rows = |index| if index == 0 && stream { records } else { 1 };
        specs.iter().enumerate().map(|(index, spec)| Rows::bytes_for(spec, rows(index))).sum()
    }

    /// For a stream the first stage has `records` rows, which are read in one go.
    pub fn new(first: &Arc<[FieldSpec]>, steps: &[Step], stream: bool, records: usize) -> Stages {
        let specs = Stages::specs(first, steps);
        let rows = |index| if index == 0 && stream { records } else { 1 };
        let rows = specs.iter().enumerate().map(|(index, spec)| Rows::new(spec, rows(index))).collect();
        Stages { specs, rows, scratch: Scratch::default() }
    }

    /// Row `row` of the first stage, for the source to write; nothing where it should write into the batch.
    pub fn first(&mut self, row: usize) -> Option<SampleMut<'_>> {
        Some(self.rows.first_mut()?.row_mut(self.specs.first()?, row))
    }

    /// Runs the steps on a sample that the source has written into row `row` of the first stage (or, without
    /// stages, into `out`); the last stage writes into `out`. Answers whether the sample is kept.
    pub fn run(
        &mut self,
        steps: &[Step],
        row: usize,
        out: &mut SampleMut<'_>,
        at: &At,
        sums: &mut [Sum],
    ) -> Result<bool> {
        // The stage that holds the sample now; past the last one it is `out`.
        let mut now = 0;
        let row_of = |stage: usize| if stage == 0 { row } else { 0 };
        let mut clock = Instant::now();
        for (step, sum) in steps.iter().zip(sums) {
            let kept = match step {
                Step::Unpack(..) | Step::Map(..) | Step::Augment(..) => {
                    let (before, after) = self.rows.split_at_mut(now + 1);
                    let input = before[now].row(&self.specs[now], row_of(now));
                    let scratch = &mut self.scratch;
                    let mut apply = |output: &mut SampleMut<'_>| match step {
                        Step::Unpack(source, _) => source.unpack_with(&input, scratch, output),
                        Step::Map(f, _) => f(&input, output, at),
                        Step::Augment(augmenter, _) => augmenter.write(&input, output, at),
                        Step::InPlace(_) | Step::Filter(_) => Ok(()),
                    };
                    match after.first_mut() {
                        Some(rows) => apply(&mut rows.row_mut(&self.specs[now + 1], 0)),
                        None => apply(out),
                    }
                    .map(|()| {
                        now += 1;
                        true
                    })
                }
                Step::InPlace(f) => match self.rows.get_mut(now) {
                    Some(rows) => f(&mut rows.row_mut(&self.specs[now], row_of(now)), at),
                    None => f(out, at),
                }
                .map(|()| true),
                Step::Filter(f) => match self.rows.get(now) {
                    Some(rows) => f(&rows.row(&self.specs[now], row_of(now)), at),
                    None => f(&out.view(), at),
                },
            };
            let kept = kept.map_err(|error: Error| error.in_stage(step.name(), at.index))?;
            let end = Instant::now();
            sum.busy += end - clock;
            clock = end;
            if !kept {
                return Ok(false);
            }
            sum.elements += 1;
        }
        Ok(true)
    }
}
