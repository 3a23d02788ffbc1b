//! The record of a step that is planned and not run.

use plimsoll_device::Bytes;
use plimsoll_record as record;

use crate::choose::StepPlan;
use crate::error::Result;
use crate::program::StepProgram;
use crate::timeline::Recorded;

impl StepPlan {
    /// The record of the step, instruction by instruction. A function of the plan: nothing is run and nothing is planned anew.
    pub fn timeline(&self) -> Result<record::Step> {
        let (program, step) = (StepProgram::new(self)?, &self.subject.step);
        let recorded = Recorded {
            device: &step.device,
            state: &step.state,
            hosted: &self.placement.hosted,
            inputs: &step.inputs,
            outputs: &self.outputs,
            batch: step.batch.unwrap_or(1),
            passes: program.passes.iter().collect(),
            update: program.update.as_ref(),
            n_sums: program.shared.sums.len(),
            passed: program.shared.passed.clone(),
            info: &self.figures,
            memory_limit: self.limit.map(Bytes::get),
        };
        Ok(recorded.timeline())
    }
}
