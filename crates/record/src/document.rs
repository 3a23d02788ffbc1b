//! All that is known of a plan or a run, as one document.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::{Frontier, Plan, Profile, Run, Schema, Step, parse};

/// The whole record: what `plimsoll report --json` prints and the page holds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Record {
    /// The version of the schema.
    pub schema: Schema,
    /// What was planned.
    pub plan: Plan,
    /// The step, instruction by instruction.
    pub step: Option<Step>,
    /// Other plans for the same step.
    pub frontier: Option<Frontier>,
    /// What happened, if this is a run.
    pub run: Option<Run>,
    /// What steps took as they were measured, where somebody asked for that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<Profile>,
}

/// A plan as it is written to one file (`plimsoll plan --out`), its step and other plans with it. A run's `plan.json` has the plan
/// alone, in the same keys.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlanFile<'a> {
    /// The plan.
    #[serde(flatten)]
    pub plan: &'a Plan,
    /// Its step.
    pub step: &'a Step,
    /// Other plans.
    pub frontier: Option<&'a Frontier>,
    /// What steps took as they were measured (`plimsoll bench --profile`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<&'a Profile>,
}

impl Record {
    /// Reads a plan with what comes in the same file from its text. It is read twice, so that a mistake is known by its place in
    /// the text.
    ///
    /// # Errors
    /// As [`parse`]; [`Error::Broken`] where it is no plan, or its step does not pass [`Step::check`].
    pub fn parse_plan(text: &str, file: &str) -> Result<Record> {
        /// What else is in a plan's file.
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Parts {
            planned_bytes: Option<u64>,
            #[serde(flatten)]
            plan: Plan,
            step: Option<Step>,
            frontier: Option<Frontier>,
            profile: Option<Profile>,
        }
        let parts: Parts = parse(text, file, true)?;
        let Some(planned_bytes) = parts.planned_bytes else {
            let why =
                "it says no planned_bytes, so it is no plan; name a file that plimsoll plan --out wrote";
            return Err(Error::Broken { file: file.into(), why: why.into() });
        };
        parts.step.iter().try_for_each(|step| step.check(file))?;
        if let (Some(step), Some(profile)) = (&parts.step, &parts.profile) {
            profile.check(step, file)?;
        }
        let Parts { plan, step, frontier, profile, .. } = parts;
        Ok(Record { plan: Plan { planned_bytes, ..plan }, step, frontier, profile, ..Record::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StepBytes;

    #[test]
    fn what_is_written_is_read_back_equal_and_says_its_version() {
        let plan = Plan { model: "cnn".into(), planned_bytes: 900, ..Plan::default() };
        let (step, frontier) = (
            Step { bytes: StepBytes { arena_bytes: 5, ..StepBytes::default() }, ..Step::default() },
            Frontier::default(),
        );
        let file = PlanFile { plan: &plan, step: &step, frontier: Some(&frontier), profile: None };
        let text = serde_json::to_string(&file).unwrap();
        assert!(text.starts_with("{\"schema\":2,"), "{text}");
        let read = Record::parse_plan(&text, "plan.json").unwrap();
        assert_eq!((read.plan, read.step, read.frontier), (plan, Some(step), Some(frontier)));
        for file in [serde_json::to_value(Step::default()), serde_json::to_value(Frontier::default())] {
            assert_eq!(file.unwrap()["schema"], 2);
        }
    }
}
