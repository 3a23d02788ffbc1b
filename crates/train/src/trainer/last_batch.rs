//! A smaller last batch, looked at before the first step: kernels of other sizes need other scratch, so that it can need more memory
//! than a full one.

use plimsoll_data::Dataset;
use plimsoll_device::Bytes;
use plimsoll_nn::{Recipe, Training};

use super::Trainer;
use crate::error::Result;

impl Trainer {
    /// Finds the least with which the last batch of a pass can be run.
    ///
    /// # Errors
    /// The line is lower: the refusal is that of the last batch.
    pub(crate) fn check_last_batch(&mut self, data: &Dataset) -> Result<()> {
        self.last_batch_floor = Bytes::ZERO;
        let (Some(batch), Some(samples)) = (data.batch_size(), data.samples()?) else { return Ok(()) };
        let rest = (samples % batch as u64) as usize;
        // What has fewer samples than a batch has no full one.
        if rest == 0 || samples < batch as u64 {
            return Ok(());
        }
        let full = self.recipe(data, true)?;
        let smaller = |types: &[plimsoll_graph::Type]| -> Vec<plimsoll_graph::Type> {
            types.iter().map(|ty| plimsoll_graph::Type::new(ty.dtype, ty.shape.with(0, rest))).collect()
        };
        let bytes =
            |recipe: &Recipe| recipe.inputs.iter().chain(&recipe.labels).map(|ty| ty.bytes()).sum::<usize>();
        let micro_batch = full.micro_batch.map(|samples| samples.min(rest));
        let (inputs, labels) = (smaller(&full.inputs), smaller(&full.labels));
        let mut recipe = Recipe { inputs, labels, micro_batch, ..full.clone() };
        // It lies in the tensors of a full batch.
        let unused = Bytes::from(bytes(&full) - bytes(&recipe));
        recipe.beside = self.beside + self.least_pipelines(data)? + unused;
        let mut survey = Training::survey(self.model.clone(), recipe)?;
        self.last_batch_floor = survey.floor();
        if let Some(limit) = self.memory.filter(|limit| *limit < self.last_batch_floor) {
            survey.plan(Some(limit))?;
        }
        // Pipelines that take all they wish would leave it too little.
        let more = self.pipelines(data)?.saturating_sub(self.least_pipelines(data)?);
        self.lean_pipelines |= self.memory.is_some_and(|limit| limit < self.last_batch_floor + more);
        Ok(())
    }
}
