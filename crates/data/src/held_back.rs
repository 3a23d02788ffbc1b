//! Turns a fraction into two parts of a data set: what is learned from, and what is held back, spread evenly over it.
//!
//! Held-back samples stand at equal distances, not at the end: a folder of images and many tables are sorted by class, and
//! their last tenth would be one class.

use std::collections::BTreeMap;
use std::sync::Arc;

use plimsoll_graph::DType;

use crate::dataset::Dataset;
use crate::error::{Error, Result};
use crate::order::Move;
use crate::recipe::Stage;
use crate::sample::FieldSpec;
use crate::sample_reader::Input;
use crate::source::{Source, Subset};

/// One of the two parts. Which samples belong to it depends on their numbers alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// How many of a million samples are held back.
    pub held_per_million: u64,
    /// Whether this is the part that is held back.
    pub is_held: bool,
}

impl Part {
    /// The part that is held back, for a fraction of all samples.
    pub fn held(fraction: f64) -> Result<Part> {
        let held_per_million = (fraction * 1e6).round();
        if !(1.0..=999_999.0).contains(&held_per_million) {
            return Err(Error::Stage(format!(
                "{fraction} of the samples cannot be held back; the fraction lies between 0 and 1, as 0.1 does"
            )));
        }
        Ok(Part { held_per_million: held_per_million as u64, is_held: true })
    }
}

impl Dataset {
    /// As [`Dataset::hold_back`], with the same share of every class: the part that is held back has of each class as many samples
    /// as its share is, rounded up or down. `field` holds the classes. Labels are looked at once, in a pass over everything unless
    /// the source knows them; 8 bytes are kept for each sample that is held back.
    ///
    /// ```
    /// use plimsoll_data::{Column, Dataset};
    ///
    /// let labels: Vec<i64> = (0..40).map(|i| i64::from(i % 10 == 9)).collect();
    /// let data = Dataset::columns([Column::memory("y", labels, [])?])?;
    /// let (_, test) = data.hold_back_stratified(0.25, 0)?;
    /// let batch = test.batch(10).batches()?.next().unwrap()?;
    /// assert_eq!(batch.field(0).unwrap().get::<i64>()?.iter().sum::<i64>(), 1);
    /// # Ok::<(), plimsoll_data::Error>(())
    /// ```
    ///
    /// # Errors
    /// The fraction is not above 0 and below 1, the field does not hold one class (i64) a sample, the data is a stream, or stages
    /// other than `take` come before.
    pub fn hold_back_stratified(self, fraction: f64, field: usize) -> Result<(Dataset, Dataset)> {
        let part = Part::held(fraction)?;
        let refused = |what: &str| Err(Error::Stage(format!("samples cannot be held back by class: {what}")));
        let Input::Indexed(source) = &self.input else {
            return refused("the data can only be read from front to back; load or cache it first");
        };
        let source = source.clone();
        let mut len = source.len();
        for stage in &self.stages {
            let Stage::Move(Move::Take(n)) = stage else {
                return refused("only take may come before");
            };
            len = len.min(*n);
        }
        let is_class =
            |field: &FieldSpec| field.dtype == DType::I64 && field.shape.iter().product::<usize>() == 1;
        if !source.spec().get(field).is_some_and(is_class) {
            return refused(&format!("field {field} does not hold one class number (i64) a sample"));
        }
        let labels = self.labels(source.as_ref(), len, field)?;
        // As if samples were sorted by class: equal distances there are equal shares of the classes.
        let mut next: BTreeMap<i64, u64> = BTreeMap::new();
        labels.iter().for_each(|&label| *next.entry(label).or_default() += 1);
        let mut before = 0;
        next.values_mut().for_each(|count| before += std::mem::replace(count, before));
        let mut place = |label: &i64| {
            let place = next.entry(*label).or_default();
            *place += 1;
            *place - 1
        };
        let numbered = (0u64..).zip(&labels);
        let listed: Arc<[u64]> =
            numbered.filter(|(_, label)| part.has(place(label))).map(|(number, _)| number).collect();
        let of = |is_listed| {
            let (source, listed) = (source.clone(), listed.clone());
            let mut data = self.clone();
            data.input = Input::Indexed(Arc::new(Subset { source, len, listed, is_listed }));
            // What they took is in the length of the parts.
            data.stages.clear();
            data
        };
        Ok((of(false), of(true)))
    }

    /// The class of each of the first `len` samples.
    fn labels(&self, source: &dyn Source, len: u64, field: usize) -> Result<Vec<i64>> {
        if let Some(known) = (0..len).map(|index| source.class(index)).collect::<Option<Vec<_>>>() {
            return Ok(known);
        }
        let mut labels = Vec::with_capacity(usize::try_from(len).unwrap_or(0));
        for batch in self.clone().batch(64).prefetch(1).batches()? {
            let batch = batch?;
            if let Some(field) = batch.field(field) {
                labels.extend_from_slice(field.get::<i64>()?);
            }
        }
        if labels.len() as u64 != len {
            let what =
                "samples are skipped, so that it is not known which is which; hold back without classes";
            return Err(Error::Stage(what.into()));
        }
        Ok(labels)
    }
}

const MILLION: u128 = 1_000_000;

impl Part {
    /// Whether the sample of this number belongs to the part.
    pub fn has(&self, index: u64) -> bool {
        (self.held_below(index.saturating_add(1)) > self.held_below(index)) == self.is_held
    }

    /// How many of the first `len` samples belong to the part.
    pub fn len(&self, len: u64) -> u64 {
        let held = self.held_below(len);
        if self.is_held { held } else { len - held }
    }

    /// The number of the part's sample `at`.
    pub fn index(&self, at: u64) -> u64 {
        let held = u128::from(self.held_per_million).clamp(1, MILLION - 1);
        let index = match self.is_held {
            // The first number by which one more is held than `at`.
            true => ((u128::from(at) + 1) * MILLION).div_ceil(held) - 1,
            false => u128::from(at) * MILLION / (MILLION - held),
        };
        u64::try_from(index).unwrap_or(u64::MAX)
    }

    fn held_below(&self, len: u64) -> u64 {
        (u128::from(len) * u128::from(self.held_per_million) / MILLION) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_parts_are_all_samples_and_share_none() {
        for held_per_million in [1, 1_000, 100_000, 333_333, 500_000, 900_000, 999_999] {
            let part = |is_held| Part { held_per_million, is_held };
            for len in [0, 1, 2, 9, 10, 11, 999, 1_000, 1_001, 5_000] {
                let of = |part: Part| (0..part.len(len)).map(|at| part.index(at)).collect::<Vec<_>>();
                let (held, rest) = (of(part(true)), of(part(false)));
                let looked = |part: Part| (0..len).filter(|&i| part.has(i)).collect::<Vec<_>>();
                assert_eq!(held, looked(part(true)), "{held_per_million} of {len}");
                assert_eq!(rest, looked(part(false)), "{held_per_million} of {len}");
                assert_eq!(held.len() as u64, len * held_per_million / 1_000_000);
                assert_eq!(held.len() + rest.len(), len as usize);
            }
        }
    }
}
