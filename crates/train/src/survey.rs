//! Turns a request into what training would take, without training: no weight is drawn and no memory is taken for a step.

use std::borrow::Borrow;

use plimsoll_data::Dataset;
use plimsoll_nn::Training;
use plimsoll_run::{StepInfo, Survey};

use crate::error::Result;
use crate::trainer::Trainer;

impl Trainer {
    /// What [`Trainer::plan`] would answer for data like this, and the step that it is about, to be asked for other limits.
    ///
    /// # Errors
    /// As of [`Trainer::plan`].
    pub fn survey(&mut self, data: impl Borrow<Dataset>) -> Result<(Survey<'static>, StepInfo)> {
        let (device, data) = (self.on()?, data.borrow());
        device.scope(|| {
            self.check_settings()?;
            if self.training.is_none() {
                self.lean_pipelines = false;
            }
            self.check_last_batch(data)?;
            let (mut survey, mut planned) = self.surveyed(data)?;
            // As for a training: the pipelines' wish may be what is too much.
            if matches!(planned, Err(plimsoll_run::Error::Infeasible { .. })) && self.host_memory.is_none() {
                self.lean_pipelines = true;
                // What its trace holds is not there when a training is planned.
                drop(survey);
                (survey, planned) = self.surveyed(data)?;
            }
            let info = self.with_least_pipelines(planned?, data)?;
            Ok((survey, info))
        })
    }

    fn surveyed(&mut self, data: &Dataset) -> Result<(Survey<'static>, plimsoll_run::Result<StepInfo>)> {
        let mut recipe = self.recipe(data, true)?;
        recipe.beside = self.beside + self.pipelines(data)?;
        let mut survey = Training::survey(self.model.clone(), recipe)?;
        let planned = survey.plan(self.memory);
        Ok((survey, planned))
    }
}
