//! From data to a model that is ready for it: to be trained, or only to be used.

use plimsoll_data::Dataset;
use plimsoll_device::Bytes;
use plimsoll_graph::Type;
use plimsoll_nn::{Clip, Net, Recipe, Training};
use plimsoll_run::Error as RunError;

use super::Trainer;
use crate::error::{Error, Result};

/// What the parameters of a model that is only used start with.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Values {
    /// What its layers say.
    Drawn,
    /// Zeros, because somebody is about to set them all.
    Blank,
}

impl Trainer {
    /// The recipe for data like this.
    pub(crate) fn recipe(&mut self, data: &Dataset, labelled: bool) -> Result<Recipe> {
        let Some(batch) = data.batch_size() else {
            return Err(Error::Mismatch("the data makes no batches; call .batch(n) on it".into()));
        };
        let batch = data.samples()?.map_or(batch, |n| batch.min(n.max(1) as usize));
        let spec = data.spec()?;
        if labelled && (spec.len() < 2 || spec.len() <= self.n_labels) {
            let (n, labels) = (spec.len(), self.n_labels);
            let why =
                format!("a sample has {n} fields, of which {labels} are labels; there must be inputs too");
            return Err(Error::Mismatch(why));
        }
        let ty = |field: &plimsoll_data::FieldSpec| {
            let shape: Vec<usize> = std::iter::once(batch).chain(field.shape.iter().copied()).collect();
            Type::new(field.dtype, &shape[..])
        };
        // What has fewer fields has no labels.
        let n_labels = if spec.len() > self.n_labels { self.n_labels } else { 0 };
        let (inputs, labels) = spec.split_at(spec.len() - n_labels);
        self.n_inputs = inputs.len();
        Ok(Recipe {
            loss: self.loss.clone(),
            optimizer: self.optimizer.clone(),
            precision: self.precision,
            clip: self.clip,
            metrics: self.metrics.clone(),
            inputs: inputs.iter().map(ty).collect(),
            labels: labels.iter().map(ty).collect(),
            memory: self.memory,
            host_memory: self.for_copies(data)?,
            exactness: self.exactness,
            micro_batch: self.micro_batch,
            beside: Bytes::ZERO,
            // A device with memory of its own is given the next batch while it computes, unless that is only random numbers.
            ahead: labelled && self.on()?.has_own_memory() && !data.is_random()?,
        })
    }

    /// Compiles the training for data like this, if that has not been done; a model that was only used until now keeps its
    /// parameters. Returns the data with the memory its pipeline has.
    pub(crate) fn ready(&mut self, data: &Dataset) -> Result<Dataset> {
        self.check_settings()?;
        if self.training.as_ref().is_none_or(Training::is_idle) {
            // That was the share of a model that is only used.
            self.taken = Bytes::ZERO;
            self.check_last_batch(data)?;
            let mut recipe = self.recipe(data, true)?;
            recipe.beside = self.beside + self.pipelines(data)?;
            match self.begin(recipe.clone()) {
                // The pipelines' wish may be what is too much: they make do with the least.
                Err(RunError::Infeasible { .. }) if self.host_memory.is_none() && !self.lean_pipelines => {
                    self.lean_pipelines = true;
                    recipe.beside = self.beside + self.pipelines(data)?;
                    self.begin(recipe)?;
                }
                begun => begun?,
            }
        }
        self.bounded(data)
    }

    fn begin(&mut self, recipe: Recipe) -> plimsoll_run::Result<()> {
        match &mut self.training {
            Some(training) => training.begin(self.model.clone(), recipe, self.seed),
            none => {
                *none = Some(Training::new(self.model.clone(), recipe, self.seed)?);
                Ok(())
            }
        }
    }

    /// As [`Trainer::ready`], for a model that is only to be used.
    pub(crate) fn usable(&mut self, data: &Dataset, values: Values) -> Result<Dataset> {
        if self.training.is_none() {
            let mut recipe = self.recipe(data, false)?;
            let params = Net::discover_in(recipe.precision, &recipe.inputs, &self.model)?;
            let weights = params.iter().map(|param| param.ty.bytes() as u64).sum();
            self.taken = self.beside + Bytes(weights) + plimsoll_run::PROGRAM;
            recipe.beside = self.beside + self.pipelines(data)?;
            self.training = Some(match values {
                Values::Drawn => Training::idle(self.model.clone(), recipe, self.seed)?,
                Values::Blank => Training::blank(self.model.clone(), recipe)?,
            });
        }
        self.bounded(data)
    }

    /// Refuses settings with which every step would go wrong.
    pub(crate) fn check_settings(&self) -> Result<()> {
        check_rate(self.optimizer.rate(), None)?;
        let bound = match self.clip {
            Some(Clip::Value(bound) | Clip::Norm(bound) | Clip::PlainNorm(bound)) => bound,
            None => return Ok(()),
        };
        if bound.is_finite() && bound > 0.0 {
            return Ok(());
        }
        Err(Error::Setting { what: "the bound on gradients".into(), value: bound, must: "above 0" })
    }
}

/// Refuses a learning rate that is none.
pub(crate) fn check_rate(rate: f64, step: Option<u64>) -> Result<()> {
    if rate.is_finite() && rate >= 0.0 {
        return Ok(());
    }
    let what = match step {
        None => "the learning rate".to_string(),
        Some(step) => format!("the learning rate after step {step}"),
    };
    Err(Error::Setting { what, value: rate, must: "of at least 0" })
}
