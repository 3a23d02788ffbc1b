//! A model in training as callbacks see it: weights to look at and to change, and the learning rate.

use plimsoll_graph::{DType, TensorOps};
use plimsoll_nn::{Measure, Param, Training};
use plimsoll_run::Tensor;

use crate::error::{Error, Result};

/// A model between two steps, for [`Callback::on_step_model`](crate::Callback::on_step_model) and
/// [`Callback::on_epoch_model`](crate::Callback::on_epoch_model).
pub struct LiveModel<'a> {
    pub(crate) training: &'a mut Training,
    pub(crate) rate_factor: &'a mut f64,
    pub(crate) measures: &'a [Measure],
    pub(crate) sums: &'a [Vec<f64>],
}

impl LiveModel<'_> {
    /// The parameters with their values, in the model's order. Values are where the model is trained: reading those of a card copies. Of parameters
    /// in shards ([`Parallel::Parameters`](plimsoll_nn::Parallel::Parameters)), this rank's.
    pub fn parameters(&self) -> impl Iterator<Item = (&Param, &Tensor)> {
        self.training.params().iter().zip(self.training.values())
    }

    /// The values of a parameter.
    ///
    /// # Errors
    /// There is no parameter of that name.
    pub fn values(&self, name: &str) -> Result<Vec<f64>> {
        let found = self.parameters().find(|(param, _)| param.name == name);
        let (param, tensor) = found.ok_or_else(|| self.unknown(name))?;
        if tensor.ty() != &param.ty {
            let why = format!(
                "{name} is in shards, of which this rank has one; save the model on all ranks to see it whole"
            );
            return Err(Error::Mismatch(why));
        }
        Ok(tensor.to_f64()?)
    }

    /// Sets the values of a parameter. The next step starts from them; the optimizer's state stays as it is.
    ///
    /// # Errors
    /// There is no parameter of that name, or it has another number of elements.
    pub fn set_values(&mut self, name: &str, values: &[f64]) -> Result<()> {
        let ty = self.training.params().iter().find(|param| param.name == name).map(|param| param.ty.clone());
        let ty = ty.ok_or_else(|| self.unknown(name))?;
        if ty.elements() != values.len() {
            let why = format!("{name} has {} elements, and {} are given", ty.elements(), values.len());
            return Err(Error::Mismatch(why));
        }
        let bytes: Vec<u8> = match ty.dtype {
            DType::F64 => values.iter().flat_map(|value| value.to_ne_bytes()).collect(),
            // Parameters are kept in f32 otherwise, whatever is computed in.
            _ => values.iter().flat_map(|value| (*value as f32).to_ne_bytes()).collect(),
        };
        Ok(self.training.restore_whole(name, &bytes)?)
    }

    /// The metrics of the epoch so far, by name, without those of validation. Empty at an epoch's end, whose event has them.
    pub fn metrics(&self) -> impl Iterator<Item = (&str, f64)> {
        self.measures
            .iter()
            .zip(self.sums)
            .map(|(measure, sums)| (measure.name.as_str(), measure.finish(sums)))
    }

    /// The training itself.
    pub fn training(&mut self) -> &mut Training {
        self.training
    }

    /// What the learning rate is multiplied by, beside any schedule.
    pub fn rate_factor(&self) -> f64 {
        *self.rate_factor
    }

    /// Multiplies the learning rate by this from the next step on, instead of by what it was multiplied by before. Checkpoints keep it.
    pub fn set_rate_factor(&mut self, factor: f64) {
        *self.rate_factor = factor;
    }

    fn unknown(&self, name: &str) -> Error {
        let names: Vec<&str> =
            self.training.params().iter().map(|param| param.name.as_str()).take(5).collect();
        Error::Mismatch(format!("there is no parameter {name}; there are {} and so on", names.join(", ")))
    }
}
