//! From a refusal to a longer one: what other precisions and 8-bit state would need, which only the trainer can ask about.
//!
//! Who is refused does not wait long for advice: of a model of many tensors one precision is looked at.

use std::borrow::Borrow;
use std::sync::Arc;

use plimsoll_data::Dataset;
use plimsoll_device::Bytes;
use plimsoll_nn::{Net, Optimizer, Recipe, Training};
use plimsoll_run::{Error as RunError, Precision, Remedy};

use super::Trainer;
use super::pipelines::Share;
use crate::error::{Error, Result};

/// A model of more parameters than this, counted as tensors, takes long to plan.
const MANY: usize = 120;

impl Trainer {
    /// A refusal with what 16-bit precisions and 8-bit state would need, where that is less; any other error as it is.
    pub(super) fn advised(&self, error: Error, data: &Dataset) -> Error {
        let Error::Run(RunError::Infeasible { asked, least, account, refusal, heaviest, mut ways }) = error
        else {
            return error;
        };
        // A training that has begun keeps its precision.
        let narrower: &[Precision] = match (&self.training, self.request.precision) {
            (None, Precision::F32) => &[Precision::MixedBf16, Precision::MixedF16],
            (None, Precision::F64) => &[Precision::F32, Precision::MixedBf16, Precision::MixedF16],
            _ => &[],
        };
        // State as bytes goes with the precision that was asked for. It is looked at first: it is offered of large models too.
        let is_wide = self.request.precision == Precision::F64;
        let is_new = self.training.is_none() && !self.optimizer.has_eight_bit_state() && !is_wide;
        let smaller = is_new.then(|| self.optimizer.with_eight_bit_state()).flatten();
        if let Some(optimizer) = smaller
            && let Ok(lower) = self.enough_in(self.request.precision, optimizer, data)
            && lower < least
        {
            let change = "the optimizer's state as bytes with a scale for every 256, but for tensors under 4096 elements";
            ways.push(Remedy { flag: "--state 8bit".into(), change: change.into(), least: lower });
        }
        let most = if self.is_large(data) { 1 } else { narrower.len() };
        for &precision in &narrower[..most.min(narrower.len())] {
            // A model that cannot be traced so, or a device without such kernels, has no such way.
            let Ok(lower) = self.enough_in(precision, self.optimizer.clone(), data) else { continue };
            if lower < least {
                let change = match precision {
                    Precision::MixedBf16 => "activations and weights as read in bf16, sums in f32",
                    Precision::MixedF16 => "activations and weights as read in f16, with a loss scale",
                    _ => "everything in f32",
                };
                let flag = format!("--precision {}", precision.name());
                ways.push(Remedy { flag, change: change.into(), least: lower });
            }
        }
        Error::Run(RunError::Infeasible { asked, least, account, refusal, heaviest, ways })
    }

    /// Whether the model is one that takes long to plan.
    fn is_large(&self, data: &Dataset) -> bool {
        let params = || {
            let recipe = self.recipe(data, true, self.share)?;
            Ok::<_, Error>(Net::discover_in(recipe.request.precision, &recipe.inputs, &self.model)?)
        };
        params().is_ok_and(|params| params.len() > MANY)
    }

    /// A memory limit that is enough for a step on such data, found sooner than [`Trainer::least`], which is no higher: with the smallest
    /// micro-batches where they are allowed, else whole.
    ///
    /// ```
    /// use plimsoll_data::{Column, Dataset};
    /// use plimsoll_nn::{Adam, Sequential, softmax_cross_entropy};
    /// use plimsoll_train::Trainer;
    /// let x = Column::memory("x", vec![0.5f32; 6400], [64])?;
    /// let data = Dataset::columns([x, Column::memory("y", vec![0i64; 100], [])?])?.batch(20);
    /// let model = Sequential::new([64]).dense(256).relu().dense(2);
    /// let trainer = Trainer::new(model, softmax_cross_entropy, Adam::new(1e-2));
    /// assert!(trainer.least(&data)? <= trainer.enough(&data)?);
    /// # Ok::<(), plimsoll_train::Error>(())
    /// ```
    pub fn enough(&self, data: impl Borrow<Dataset>) -> Result<Bytes> {
        self.enough_in(self.request.precision, self.optimizer.clone(), data.borrow())
    }

    fn enough_in(
        &self,
        precision: Precision,
        optimizer: Arc<dyn Optimizer>,
        data: &Dataset,
    ) -> Result<Bytes> {
        let device = self.on()?;
        device.scope(|| {
            let share = self.look_at_other_shapes(data, Share::default(), None)?;
            let mut recipe = self.recipe(data, true, share)?;
            (recipe.request.precision, recipe.optimizer) = (precision, optimizer);
            recipe.reserved = self.beside(&recipe)? + self.pipelines(share)?.least(data)?;
            Ok(self.enough_for(recipe)?.max(share.others_floor))
        })
    }

    /// A memory limit that is enough for the step of a recipe.
    fn enough_for(&self, recipe: Recipe) -> Result<Bytes> {
        match &self.training {
            // A state that is there is counted where it lies.
            Some(_) => Ok(self.planner(recipe)?.floor()),
            None => Ok(Training::enough(self.model.clone(), recipe)?),
        }
    }
}
