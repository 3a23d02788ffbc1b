//! From a refusal to a longer one: what other precisions and narrower state would need, which only the trainer can ask about.
//!
//! Who is refused does not wait long for advice: of a model of many tensors one precision is looked at.

use std::borrow::Borrow;
use std::sync::Arc;

use plimsoll_data::Dataset;
use plimsoll_device::Bytes;
use plimsoll_nn::{Kept, Model, Net, Optimizer, Recipe, Training};
use plimsoll_run::{Device, Error as RunError, Job, MeasuredStep, Precision, Remedy, in_turn};

use super::Trainer;
use super::pipelines::Share;
use crate::error::{Error, Result};

/// A way out of a refusal that is yet to be looked at: what it would take is first measured, while no other is looked at, and then searched
/// for beside the others.
pub type Way<'a> = Job<'a, Option<Job<'a, Option<Remedy>>>>;

/// A model of more parameters than this, counted as tensors, takes long to plan.
const MANY: usize = 120;

impl Trainer {
    /// A refusal with what 16-bit precisions and narrower state would need, and `more` that somebody else knows of, where that is less; any other
    /// error as it is.
    pub(super) fn advised(&self, error: Error, data: &Dataset, more: Vec<Way<'_>>) -> Error {
        let Error::Run(RunError::Infeasible { asked, least, account, refusal, heaviest, mut ways }) = error
        else {
            return error;
        };
        // A training that has begun keeps its precision.
        let narrower: &[Precision] = match (&self.training, self.request.precision) {
            (None, Precision::F32) => &[Precision::MixedBf16, Precision::MixedF16],
            (None, Precision::F64) => &[Precision::F32, Precision::MixedBf16, Precision::MixedF16],
            (None, Precision::MixedBf16) => &[Precision::Bf16],
            _ => &[],
        };
        // Narrower state goes with the precision that was asked for. It is looked at first: it is offered of large models too.
        let is_wide = self.request.precision == Precision::F64;
        let is_new = self.training.is_none() && !is_wide;
        let smaller: &[Kept] = match self.optimizer.kept() {
            Kept::F32 if is_new => &Kept::NARROW,
            Kept::Bf16 if is_new && self.request.precision != Precision::Bf16 => &[Kept::EightBit],
            _ => &[],
        };
        let mut looked_at: Vec<Job<'_, Option<Remedy>>> = Vec::new();
        let mut look = |flag: String, change: &'static str, precision, optimizer| {
            // A model that cannot be traced so, or a device without such kernels, has no such way.
            let step = self.step_in(precision, optimizer, data).and_then(StepOfModel::measured);
            if let Ok(step) = step {
                looked_at.push(step.way(flag, change.into()));
            }
        };
        let most = if self.is_large(data) { 1 } else { 2 };
        for &kept in smaller.iter().take(most) {
            if let Some(optimizer) = self.optimizer.with_state(kept) {
                look(format!("--state {}", kept.name()), kept.change(), self.request.precision, optimizer);
            }
        }
        for &precision in narrower.iter().take(if most == 1 { 1 } else { narrower.len() }) {
            // Weights in bf16 go with state in bf16.
            let optimizer = match precision {
                Precision::Bf16 => self.optimizer.with_state(Kept::Bf16),
                _ => Some(self.optimizer.clone()),
            };
            let Some(optimizer) = optimizer else { continue };
            let change = match precision {
                Precision::Bf16 => {
                    "weights and the optimizer's state in bf16, rounded stochastically, without a copy in f32"
                }
                Precision::MixedBf16 => "activations and weights as read in bf16, sums in f32",
                Precision::MixedF16 => "activations and weights as read in f16, with a loss scale",
                _ => "everything in f32",
            };
            look(format!("--precision {}", precision.name()), change, precision, optimizer);
        }
        looked_at.extend(more.into_iter().filter_map(|look| look()));
        ways.extend(in_turn(looked_at).into_iter().flatten().filter(|way| way.least < least));
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
        let (device, data) = (self.on()?, data.borrow());
        match &self.training {
            // A state that is there is counted where it lies.
            Some(_) => device.scope(|| {
                let step = self.step_in(self.request.precision, self.optimizer.clone(), data)?;
                Ok(self.planner(step.recipe)?.floor().max(step.others_floor))
            }),
            None => self.measured(data)?.enough(),
        }
    }

    /// A step on such data of which nothing is there yet, measured, to be asked how much memory is enough for it: see [`Way`].
    pub fn measured(&self, data: impl Borrow<Dataset>) -> Result<MeasuredTraining> {
        self.step_in(self.request.precision, self.optimizer.clone(), data.borrow())?.measured()
    }

    /// The step on such data in a precision and with an optimizer, beside pipelines that take the least.
    fn step_in(
        &self,
        precision: Precision,
        optimizer: Arc<dyn Optimizer>,
        data: &Dataset,
    ) -> Result<StepOfModel> {
        let device = self.on()?;
        device.scope(|| {
            let share = self.look_at_other_shapes(data, Share::default(), None)?;
            let mut recipe = self.recipe(data, true, share)?;
            (recipe.request.precision, recipe.optimizer) = (precision, optimizer);
            recipe.reserved = self.beside(&recipe)? + self.pipelines(share)?.least(data)?;
            let (device, model) = (device.clone(), self.model.clone());
            Ok(StepOfModel { device, model, recipe, others_floor: share.others_floor })
        })
    }
}

/// The step of a model of which nothing is there yet, with all that it takes to ask how much memory is enough for it.
struct StepOfModel {
    device: Device,
    model: Arc<dyn Model>,
    recipe: Recipe,
    /// What batches of other shapes need at least.
    others_floor: Bytes,
}

impl StepOfModel {
    fn measured(self) -> Result<MeasuredTraining> {
        let StepOfModel { device, model, recipe, others_floor } = self;
        let step = device.scope(|| Training::measured(model, recipe))?;
        Ok(MeasuredTraining { device, step, others_floor })
    }
}

/// The step of a training that is yet to be searched, with what the process takes beside it: see [`MeasuredStep`].
pub struct MeasuredTraining {
    device: Device,
    step: MeasuredStep,
    others_floor: Bytes,
}

impl MeasuredTraining {
    /// A memory limit that is enough.
    pub fn enough(&self) -> Result<Bytes> {
        let enough = self.device.scope(|| self.step.enough())?;
        Ok(enough.max(self.others_floor))
    }

    /// It as a way out, by a flag that changes something.
    pub fn way(self, flag: String, change: String) -> Job<'static, Option<Remedy>> {
        Box::new(move || Some(Remedy { flag, change, least: self.enough().ok()? }))
    }
}
