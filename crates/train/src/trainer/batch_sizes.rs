//! From a memory limit to batch sizes: the largest that fits whole, the largest that fits split, and the one that is fastest.

use plimsoll_data::Dataset;
use plimsoll_run::{Error as RunError, Exactness, PlanFigures};

use super::Trainer;
use super::pipelines::Share;
use crate::error::{Error, Result};

/// A batch size with its plan.
#[derive(Clone, Debug)]
pub struct SizedPlan {
    /// Samples in a batch.
    pub batch: usize,
    /// What was planned for a step of it.
    pub figures: PlanFigures,
}

impl SizedPlan {
    /// Samples a second that the plan predicts, waiting for data not counted.
    pub fn samples_s(&self) -> f64 {
        self.batch as f64 / self.figures.predicted_seconds.max(1e-9)
    }
}

/// What a memory limit holds.
#[derive(Clone, Debug)]
pub struct BatchSizes {
    /// The largest batch that is not split; none where not even one sample fits so.
    pub whole: Option<SizedPlan>,
    /// The largest batch, split into micro-batches where that is allowed and helps.
    pub split: SizedPlan,
    /// The batch with the most samples a second; of those within a percent, the smallest.
    pub fastest: SizedPlan,
    /// How many steps were looked at: their least memory, or their whole plan.
    pub looked_at: usize,
}

/// The largest sizes are found to within one of so many parts.
const PARTS: usize = 16;
/// At most so many sizes are planned to find the fastest.
const MOST_PLANS: usize = 10;
/// Predictions this near to each other say nothing of which is faster.
const TIE: f64 = 0.01;

impl Trainer {
    /// What the memory limit holds of a batch: the largest that fits whole, the largest that fits in micro-batches and the fastest,
    /// each with its plan. `data` and `validation` make no batches yet; `most` is the largest size to look at, and no size is larger
    /// than the data. Nothing is run and no memory is taken for a step.
    ///
    /// Sizes are doubled until one does not fit and then bisected, by the least memory of each, which needs no kernel timed; a few
    /// are planned whole to find the fastest.
    ///
    /// ```
    /// use plimsoll_data::{Column, Dataset};
    /// use plimsoll_nn::{Adam, Sequential, softmax_cross_entropy};
    /// use plimsoll_train::Trainer;
    /// let x = Column::memory("x", vec![0.5f32; 64_000], [64])?;
    /// let data = Dataset::columns([x, Column::memory("y", vec![0i64; 1000], [])?])?;
    /// let model = Sequential::new([64]).dense(256).relu().dense(2);
    /// let mut trainer = Trainer::new(model, softmax_cross_entropy, Adam::new(1e-2)).memory_limit("200MiB")?;
    /// let sizes = trainer.batch_sizes(&data, None, 512)?;
    /// assert!(sizes.fastest.batch <= sizes.split.batch && sizes.split.batch <= 512);
    /// let data = data.batch(sizes.fastest.batch);
    /// assert_eq!(trainer.plan(&data)?.figures.planned, sizes.fastest.figures.planned);
    /// # Ok::<(), plimsoll_train::Error>(())
    /// ```
    ///
    /// # Errors
    /// There is no memory limit, or not even one sample fits: the refusal is that of a batch of one.
    pub fn batch_sizes(
        &mut self,
        data: &Dataset,
        validation: Option<&Dataset>,
        most: usize,
    ) -> Result<BatchSizes> {
        if self.request.limit.is_none() {
            let why = "a batch size cannot be chosen without a memory limit: there is nothing to fill";
            return Err(Error::Mismatch(why.into()));
        }
        let (kept, exactness) = (self.validation.take(), self.request.exactness);
        let found = self.look_for_sizes(data, validation, most);
        (self.validation, self.request.exactness) = (kept, exactness);
        found
    }

    fn look_for_sizes(
        &mut self,
        data: &Dataset,
        validation: Option<&Dataset>,
        most: usize,
    ) -> Result<BatchSizes> {
        let exactness = self.request.exactness;
        let most = data.samples()?.map_or(most, |n| most.min(n.max(1) as usize)).max(1);
        let mut looked_at = 0;
        let mut fits = |trainer: &mut Trainer, exactness, n: usize| {
            looked_at += 1;
            trainer.holds(data, validation, exactness, n)
        };
        let whole = largest(0, most, |n| fits(self, Exactness::Bitwise, n))?;
        let split = match exactness {
            Exactness::Bitwise => whole,
            _ => largest(whole, most, |n| fits(self, exactness, n))?,
        };
        let mut plan = |exactness, batch: usize| -> Result<SizedPlan> {
            looked_at += 1;
            self.sized(data, validation, exactness, batch)?;
            Ok(SizedPlan { batch, figures: self.plan(data.clone().batch(batch))?.figures })
        };
        if split == 0 {
            // Its refusal says the least, and ways out.
            plan(exactness, 1)?;
        }
        let mut all = || -> Result<(Option<SizedPlan>, Vec<SizedPlan>)> {
            let whole = if whole > 0 { Some(plan(Exactness::Bitwise, whole)?) } else { None };
            let candidates = candidates(whole.as_ref().map_or(1, |plan| plan.batch), split.max(1));
            Ok((whole, candidates.into_iter().map(|batch| plan(exactness, batch)).collect::<Result<_>>()?))
        };
        // Kernels are timed on the way, which changes what is predicted: only what is planned with all of them can be compared.
        all()?;
        let (whole, mut tried) = all()?;
        let best = tried.iter().map(SizedPlan::samples_s).fold(0.0, f64::max);
        let fastest = tried.iter().find(|plan| plan.samples_s() >= best * (1.0 - TIE)).cloned();
        let nothing = || Error::Mismatch("no batch size was planned".into());
        let (fastest, split) = (fastest.ok_or_else(nothing)?, tried.pop().ok_or_else(nothing)?);
        Ok(BatchSizes { whole, split, fastest, looked_at })
    }

    /// Whether a step on batches of so many samples has a plan within the limit.
    fn holds(
        &mut self,
        data: &Dataset,
        validation: Option<&Dataset>,
        exactness: Exactness,
        batch: usize,
    ) -> Result<bool> {
        self.sized(data, validation, exactness, batch)?;
        let (device, data) = (self.on()?, data.clone().batch(batch));
        match device.scope(|| self.within_host(&data, Share::default())) {
            Err(Error::Run(RunError::HostInfeasible(_))) => return Ok(false),
            share => share?,
        };
        let floor = self.least(&data)?;
        Ok(self.request.limit.is_some_and(|limit| floor <= limit))
    }

    /// Gets ready to look at batches of so many samples.
    fn sized(
        &mut self,
        data: &Dataset,
        validation: Option<&Dataset>,
        exactness: Exactness,
        batch: usize,
    ) -> Result<()> {
        if data.batch_size().is_some() {
            let why = "a batch size is looked for over data that makes no batches; leave .batch(n) out";
            return Err(Error::Mismatch(why.into()));
        }
        self.validation = validation.map(|validation| validation.clone().batch(batch));
        self.request.exactness = exactness;
        Ok(())
    }
}

/// The largest number up to `most` that fits, where `known` does (0 stands for none): by doubling, then by bisection to within a
/// sixteenth.
fn largest(known: usize, most: usize, mut fits: impl FnMut(usize) -> Result<bool>) -> Result<usize> {
    let mut low = known;
    let mut high = loop {
        let next = (low * 2).clamp(1, most);
        if next <= low {
            return Ok(low);
        }
        if !fits(next)? {
            break next;
        }
        low = next;
    };
    while high - low > (low / PARTS).max(1) {
        let middle = low + (high - low) / 2;
        match fits(middle)? {
            true => low = middle,
            false => high = middle,
        }
    }
    Ok(low)
}

/// Sizes that may be the fastest, the largest last: powers of two below both of the largest, and those themselves.
fn candidates(whole: usize, split: usize) -> Vec<usize> {
    let powers = std::iter::successors(Some(1usize), |n| n.checked_mul(2)).take_while(|n| *n < split);
    let mut sizes: Vec<usize> = powers.chain([whole, split]).filter(|n| *n <= split).collect();
    sizes.sort_unstable();
    sizes.dedup();
    // Small batches are the first that need not be looked at: a step of few samples is no faster a sample.
    let first = sizes.len().saturating_sub(MOST_PLANS);
    sizes.split_off(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_is_found_in_few_tries_and_never_past_the_most() {
        for (limit, most) in
            [(1, 100), (7, 100), (64, 64), (1000, 65_536), (65_536, 65_536), (99, 60), (0, 8)]
        {
            let mut tries = 0;
            let found = largest(0, most, |n| {
                tries += 1;
                assert!((1..=most).contains(&n), "{n}");
                Ok(n <= limit)
            })
            .unwrap();
            let exact = limit.min(most);
            assert!(found <= exact && exact - found <= (found / PARTS).max(1), "{found} of {exact}");
            assert!(exact != most || found == most, "{found} of {most}");
            assert!(tries <= 22, "{tries} for {limit} of {most}");
        }
        assert_eq!(largest(48, 50, |n| Ok(n <= 50)).unwrap(), 50);
    }

    #[test]
    fn few_sizes_are_planned_and_both_of_the_largest_are_among_them() {
        assert_eq!(candidates(1, 1), [1]);
        assert_eq!(candidates(6, 6), [1, 2, 4, 6]);
        assert_eq!(candidates(3, 20), [1, 2, 3, 4, 8, 16, 20]);
        let many = candidates(1000, 60_000);
        assert!(many.len() == MOST_PLANS && many.contains(&1000) && many.last() == Some(&60_000), "{many:?}");
    }
}
