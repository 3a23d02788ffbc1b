//! Pruning while a model trains: which weights are held at zero, and from when on.
//!
//! The masks are state of the optimizer ([`Pruned`]); here they are set, after some steps, from the sizes of the weights. A checkpoint
//! that is written after a step has the masks of that step, so that a run that goes on has the same bits.

use std::sync::Arc;

use plimsoll_nn::{Param, Patterns, Pruned, Training};

use crate::callback::{Callback, StepEvent};
use crate::error::{Error, Result};
use crate::live::LiveModel;
use crate::trainer::Trainer;

/// How often masks are set on the way to the last share.
const ROUNDS: u64 = 32;

/// How much of each weight is held at zero.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sparsity {
    /// This share of its elements, the smallest ones.
    Share(f64),
    /// Two of every four along its inputs, the smaller ones: what tensor cores take.
    TwoOfFour,
}

/// Which weights are held at zero, and when. [`Trainer::prune`] takes it.
#[derive(Clone, Debug)]
pub struct Pruning {
    sparsity: Sparsity,
    patterns: Option<Patterns>,
    begin: u64,
    end: u64,
    every: u64,
}

/// What is zero of the weights that are pruned.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct PrunedShare {
    /// How many weights are pruned: matrices and windows.
    pub tensors: usize,
    /// Their elements.
    pub elements: u64,
    /// Those of them that are zero.
    pub zeros: u64,
}

impl Pruning {
    /// All at once, after a quarter of so many steps.
    pub fn at_once(sparsity: Sparsity, steps: u64) -> Pruning {
        let begin = (steps / 4).max(1);
        Pruning { sparsity, patterns: None, begin, end: begin, every: 1 }
    }

    /// More and more of them, from a tenth of so many steps to three quarters: a share s(1 - (1 - t)³) at t from 0 to 1, after Zhu and Gupta,
    /// "To prune, or not to prune" (2017).
    ///
    /// # Errors
    /// Two of four are two of four at once.
    pub fn gradual(sparsity: Sparsity, steps: u64) -> Result<Pruning> {
        if sparsity == Sparsity::TwoOfFour {
            let why = "two of four weights are pruned at once; a share is pruned more and more";
            return Err(Error::Mismatch(why.into()));
        }
        let (begin, end) = ((steps / 10).max(1), (steps / 4 * 3).max(1));
        let every = (end.saturating_sub(begin) / ROUNDS).max(1);
        Ok(Pruning { sparsity, patterns: None, begin, end: end.max(begin), every })
    }

    /// Only weights of these names.
    #[must_use]
    pub fn only(mut self, patterns: Patterns) -> Pruning {
        self.patterns = Some(patterns);
        self
    }

    /// The step after which all is pruned.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// What is to be pruned after a step; nothing where masks stay as they are.
    fn due(&self, step: u64) -> Option<Sparsity> {
        if step < self.begin
            || step > self.end
            || (!(step - self.begin).is_multiple_of(self.every) && step != self.end)
        {
            return None;
        }
        let Sparsity::Share(share) = self.sparsity else { return Some(self.sparsity) };
        if step == self.end {
            return Some(self.sparsity);
        }
        let t = (step - self.begin) as f64 / (self.end - self.begin) as f64;
        Some(Sparsity::Share(share * (1.0 - (1.0 - t).powi(3))))
    }
}

/// The mask of a weight with elements of these sizes: 1 for what stays. Of equals the first are pruned.
fn mask(n: usize, size: impl Fn(usize) -> f32, shape: &[usize], sparsity: Sparsity) -> Vec<u8> {
    let mut kept = vec![1u8; n];
    match sparsity {
        Sparsity::Share(share) => {
            let pruned = (share * n as f64).round() as usize;
            if pruned == 0 {
                return kept;
            }
            let mut sizes: Vec<f32> = (0..n).map(&size).collect();
            let (_, &mut most, _) = sizes.select_nth_unstable_by(pruned - 1, f32::total_cmp);
            let mut equal = pruned - (0..n).filter(|&i| size(i) < most).count();
            for (i, kept) in kept.iter_mut().enumerate() {
                let is_last = size(i) == most && equal > 0;
                equal -= usize::from(is_last);
                *kept = u8::from(!(size(i) < most || is_last));
            }
        }
        Sparsity::TwoOfFour => {
            let Some(&outputs) = shape.last() else { return kept };
            for block in (0..n / (4 * outputs).max(1)).map(|i| i * 4 * outputs) {
                for column in 0..outputs {
                    let mut places = [0, 1, 2, 3].map(|row| block + row * outputs + column);
                    places.sort_by(|&a, &b| size(a).total_cmp(&size(b)));
                    (kept[places[0]], kept[places[1]]) = (0, 0);
                }
            }
        }
    }
    kept
}

/// Sets the mask of a weight, and what it masks to zero.
fn set(training: &mut Training, param: &Param, sparsity: Sparsity) -> Result<()> {
    let found = training.params().iter().position(|own| own.name == param.name);
    let value = found.and_then(|i| training.values().get(i));
    let mut bytes =
        value.ok_or_else(|| Error::Mismatch(format!("{} has no values", param.name)))?.to_bytes()?;
    let mask = {
        let values = bytes.as_chunks::<4>().0;
        mask(values.len(), |i| f32::from_ne_bytes(values[i]).abs(), &param.ty.shape, sparsity)
    };
    training.restore(&format!("{}.{}", param.name, Pruned::SLOT), &mask)?;
    bytes
        .as_chunks_mut::<4>()
        .0
        .iter_mut()
        .zip(&mask)
        .filter(|(_, kept)| **kept == 0)
        .for_each(|(x, _)| *x = [0; 4]);
    Ok(training.restore(&param.name, &bytes)?)
}

/// Sets masks when they are due.
struct Masks(Arc<PruningOf>);

/// What is pruned, and the optimizer that holds the masks.
pub(crate) struct PruningOf {
    pruning: Pruning,
    pruned: Pruned,
}

impl Callback for Masks {
    fn name(&self) -> &str {
        "pruning"
    }

    fn on_step_model(&mut self, step: &StepEvent, model: &mut LiveModel<'_>) -> Result<()> {
        let Some(sparsity) = self.0.pruning.due(step.step) else { return Ok(()) };
        let params: Vec<Param> = model.parameters().map(|(param, _)| param.clone()).collect();
        for param in params.iter().filter(|param| self.0.pruned.prunes(param)) {
            set(model.training(), param, sparsity)?;
        }
        Ok(())
    }
}

impl PruningOf {
    /// Whether there is something to prune.
    pub(crate) fn check(&self, params: &[Param]) -> Result<()> {
        let names: Vec<String> =
            params.iter().filter(|p| p.trained).map(|param| param.name.clone()).collect();
        if let Some(pattern) = self.pruning.patterns.as_ref().and_then(|patterns| patterns.unmatched(&names))
        {
            return Err(Error::Mismatch(format!(
                "there is no trained weight {pattern:?} to prune; there are {}",
                names.join(", ")
            )));
        }
        match params.iter().any(|param| self.pruned.prunes(param)) {
            true => Ok(()),
            false => Err(Error::Mismatch(
                "there is nothing to prune: weights that are pruned are trained, in f32, have two axes or more, and for two of four a \
                 multiple of four inputs"
                    .into(),
            )),
        }
    }
}

impl Trainer {
    /// Holds weights at zero, more and more of them or at once. The masks take a byte for each weight, as a part of the optimizer's state:
    /// the plan counts it, the ledger shows it and checkpoints hold it, so that a run that goes on has the same bits.
    ///
    /// ```
    /// use plimsoll_data::{Column, Dataset};
    /// use plimsoll_nn::{Adam, Sequential, softmax_cross_entropy};
    /// use plimsoll_train::{Epochs, Pruning, Sparsity, Trainer};
    /// # let x: Vec<f32> = (0..200).map(|i| ((i * 37) % 101) as f32 / 50.0).collect();
    /// # let y: Vec<i64> = x.chunks(2).map(|pair| i64::from(pair[1] > pair[0])).collect();
    /// # let data = Dataset::columns([Column::memory("x", x, [2])?, Column::memory("y", y, [])?])?.batch(20);
    /// let model = Sequential::new([2]).dense(16).relu().dense(2);
    /// let pruning = Pruning::gradual(Sparsity::Share(0.5), 50)?;
    /// let mut trainer = Trainer::new(model, softmax_cross_entropy, Adam::new(1e-2)).prune(pruning)?;
    /// trainer.fit(&data, Epochs(10))?;
    /// let pruned = trainer.pruned_share()?.unwrap();
    /// assert_eq!((pruned.zeros, pruned.elements), (32, 64));
    /// # Ok::<(), plimsoll_train::Error>(())
    /// ```
    ///
    /// # Errors
    /// The share is not between 0 and 1, or averages of weights are kept, which would not be zero where the weights are.
    pub fn prune(mut self, pruning: Pruning) -> Result<Trainer> {
        if let Sparsity::Share(share) = pruning.sparsity
            && !(share > 0.0 && share < 1.0)
        {
            let what = "the share of weights that are pruned".into();
            return Err(Error::Setting { what, value: share, must: "between 0 and 1, as 0.8 is" });
        }
        if self.is_averaged {
            let why =
                "averages of weights are not zero where pruned weights are: prune, or average, not both";
            return Err(Error::Mismatch(why.into()));
        }
        let group = if pruning.sparsity == Sparsity::TwoOfFour { 4 } else { 1 };
        let pruned = Pruned::new(self.optimizer.clone()).only(pruning.patterns.clone()).in_groups(group);
        self.optimizer = Arc::new(pruned.clone());
        let of = Arc::new(PruningOf { pruning, pruned });
        self.pruning = Some(of.clone());
        Ok(self.callback(Masks(of)))
    }

    /// What is zero of the weights that are pruned; nothing where none are, or nothing was trained.
    ///
    /// # Errors
    /// Weights could not be read.
    pub fn pruned_share(&self) -> Result<Option<PrunedShare>> {
        let (Some(of), Some(training)) = (&self.pruning, &self.training) else { return Ok(None) };
        let mut share = PrunedShare::default();
        for (param, value) in training.params().iter().zip(training.values()) {
            if of.pruned.prunes(param) {
                let bytes = value.to_bytes()?;
                let zeros =
                    bytes.as_chunks::<4>().0.iter().filter(|b| f32::from_ne_bytes(**b) == 0.0).count();
                share.tensors += 1;
                share.elements += param.ty.elements() as u64;
                share.zeros += zeros as u64;
            }
        }
        Ok(Some(share))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn masked(values: &[f32], shape: &[usize], sparsity: Sparsity) -> Vec<u8> {
        mask(values.len(), |i| values[i].abs(), shape, sparsity)
    }

    #[test]
    fn the_smallest_are_pruned_and_of_equals_the_first() {
        let values = [0.5, -0.1, 0.2, -0.2, 0.2, 3.0];
        assert_eq!(masked(&values, &[2, 3], Sparsity::Share(0.5)), [1, 0, 0, 0, 1, 1]);
        assert_eq!(masked(&values, &[2, 3], Sparsity::Share(0.01)), [1; 6]);
        // Two columns of four inputs.
        let values = [1.0, 0.1, 2.0, -0.2, -3.0, 0.3, 0.5, 0.4];
        assert_eq!(masked(&values, &[4, 2], Sparsity::TwoOfFour), [0, 0, 1, 0, 1, 1, 0, 1]);
    }

    #[test]
    fn shares_grow_to_the_last_one_and_stay() {
        let gradual = Pruning::gradual(Sparsity::Share(0.8), 1000).unwrap();
        let shares: Vec<f64> = (0..=1000)
            .filter_map(|step| match gradual.due(step) {
                Some(Sparsity::Share(share)) => Some(share),
                _ => None,
            })
            .collect();
        assert!(shares.is_sorted() && shares.len() >= 32 && shares[0] == 0.0, "{shares:?}");
        assert_eq!((gradual.end(), shares.last().copied()), (750, Some(0.8)));
        let once = Pruning::at_once(Sparsity::TwoOfFour, 100);
        assert_eq!((0..=100).filter(|&step| once.due(step).is_some()).collect::<Vec<u64>>(), [25]);
        assert!(Pruning::gradual(Sparsity::TwoOfFour, 100).is_err());
        // A run of a few steps is pruned too.
        assert!(
            (1..=2).any(|step| Pruning::gradual(Sparsity::Share(0.5), 2).unwrap().due(step)
                == Some(Sparsity::Share(0.5)))
        );
    }
}
