//! What steps took as they were measured: each instruction of each of them, beside what was predicted (`profile.json`).

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::{Action, Schema, Step};

/// A measured profile. Instructions are those of the record of the step ([`Step`]), in the same order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Profile {
    /// The version of the schema.
    pub schema: Schema,
    /// Where the steps ran.
    pub device: String,
    /// How many steps were asked for; how many were measured is the length of `steps`.
    pub asked: u64,
    /// Steps on batches of another shape that came in between: they are other programs, and were not measured.
    pub left_out: u64,
    /// Where the time of a step went: the mean of all.
    pub mean: Spent,
    /// What the plan says a step takes, in milliseconds.
    pub predicted_ms: f64,
    /// The memory that the steps took, beside the plan's.
    #[serde(flatten)]
    pub memory: ProfiledMemory,
    /// What takes the time, the most first.
    pub rows: Vec<ProfileRow>,
    /// Mean microseconds of each instruction.
    pub instructions_us: Vec<f64>,
    /// The steps, in their order.
    pub steps: Vec<ProfiledStep>,
}

/// The memory of profiled steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProfiledMemory {
    /// What the plan gives the process.
    pub planned_bytes: u64,
    /// The most that the process had taken by then, as the system counts it: of the card's memory, or of the host's.
    pub taken_bytes: u64,
    /// The most that tensors took on the device during these steps, workspace included.
    pub tensor_peak_bytes: u64,
    /// Bytes of the arena in the plan.
    pub arena_bytes: u64,
}

/// Where the time of a step went. Kernels, copies, waiting and what is between add up to the step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Spent {
    /// From the call of the step to its return, on the host's clock, in milliseconds; so is everything here.
    pub step_ms: f64,
    /// Kernels.
    pub kernel_ms: f64,
    /// Copies inside the device, between its kernels.
    pub copy_ms: f64,
    /// The device waits for a copy from or to the host, or for an exchange with other ranks.
    pub await_ms: f64,
    /// The host looks whether the loss is finite, and the device waits.
    pub check_ms: f64,
    /// Everything else: work that is started, passes that are made ready, the end of the step seen by the host.
    pub between_ms: f64,
    /// Copies from and to the host that go on beside kernels. They are no part of the sum.
    pub beside_ms: f64,
    /// The host waits for the device; it is no part of the sum either.
    pub host_waiting_ms: f64,
    /// Nothing is computed because the next batch is not there. It is no part of the sum.
    pub data_waiting_ms: f64,
    /// Bytes from the host to the device.
    pub uploaded_bytes: f64,
    /// Bytes from the device to the host.
    pub downloaded_bytes: f64,
}

impl Spent {
    /// The mean of several; zeros of none.
    pub fn mean<'a>(all: impl Iterator<Item = &'a Spent> + Clone) -> Spent {
        let n = all.clone().count().max(1) as f64;
        let mean = |part: fn(&Spent) -> f64| all.clone().map(part).sum::<f64>() / n;
        Spent {
            step_ms: mean(|s| s.step_ms),
            kernel_ms: mean(|s| s.kernel_ms),
            copy_ms: mean(|s| s.copy_ms),
            await_ms: mean(|s| s.await_ms),
            check_ms: mean(|s| s.check_ms),
            between_ms: mean(|s| s.between_ms),
            beside_ms: mean(|s| s.beside_ms),
            host_waiting_ms: mean(|s| s.host_waiting_ms),
            data_waiting_ms: mean(|s| s.data_waiting_ms),
            uploaded_bytes: mean(|s| s.uploaded_bytes),
            downloaded_bytes: mean(|s| s.downloaded_bytes),
        }
    }

    /// What was measured of a step instruction by instruction: all but what is between.
    pub fn measured_ms(&self) -> f64 {
        self.kernel_ms + self.copy_ms + self.await_ms + self.check_ms
    }
}

/// All calls of one op, or all copies of one kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProfileRow {
    /// The op.
    pub name: Cow<'static, str>,
    /// What is done.
    pub what: Action,
    /// Calls in all steps.
    pub count: u64,
    /// Their milliseconds in all.
    pub total_ms: f64,
    /// Microseconds of one.
    pub mean_us: f64,
    /// Their share of the time of all steps.
    pub share: f64,
    /// What was predicted for them, where something was.
    pub predicted_ms: Option<f64>,
    /// Bytes that they read and write in all; of a copy, those that it moves.
    pub bytes: u64,
}

impl ProfileRow {
    /// A row without calls.
    pub fn new(name: Cow<'static, str>, what: Action) -> ProfileRow {
        let (total_ms, mean_us, share) = (0.0, 0.0, 0.0);
        ProfileRow { name, what, count: 0, total_ms, mean_us, share, predicted_ms: None, bytes: 0 }
    }

    /// Says of rows whose counts and totals are complete what one call takes and the share of all of them in `total_ms`, and puts those
    /// first that take most. Rows without calls go.
    pub fn finish(rows: &mut Vec<ProfileRow>, total_ms: f64) {
        rows.retain(|row| row.count > 0);
        for row in rows.iter_mut() {
            row.mean_us = row.total_ms * 1e3 / row.count as f64;
            row.share = if total_ms > 0.0 { row.total_ms / total_ms } else { 0.0 };
        }
        rows.sort_by(|a, b| b.total_ms.total_cmp(&a.total_ms).then_with(|| a.name.cmp(&b.name)));
    }
}

/// One step that was measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProfiledStep {
    /// Which one it was since profiling began, from 1.
    pub step: u64,
    /// Where its time went.
    #[serde(flatten)]
    pub spent: Spent,
    /// Its programs as they ran, one after the other.
    pub runs: Vec<ProfiledRun>,
}

/// One run of a program of a step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProfiledRun {
    /// Which of [`Step::sections`] it is.
    pub section: u32,
    /// Microseconds from the beginning of the step to its first instruction.
    pub start_us: f64,
    /// Microseconds of each instruction: they follow each other without a gap.
    pub us: Vec<f32>,
    /// The copies beside its kernels, as far as they have a time of their own.
    pub copies: Vec<ProfiledCopy>,
}

/// A copy beside the kernels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProfiledCopy {
    /// The instruction that starts it, counted from the first of the run.
    pub instruction: u32,
    /// Microseconds from the first instruction of the run to its start.
    pub start_us: f32,
    /// Its microseconds.
    pub us: f32,
}

impl Profile {
    /// Refuses a profile that is not one of this step.
    ///
    /// # Errors
    /// [`Error::Broken`], which names the file and what in it is wrong.
    pub fn check(&self, step: &Step, file: &str) -> Result<()> {
        let broken = |why: String| Err(Error::Broken { file: file.into(), why });
        let n = step.instructions.len();
        if self.instructions_us.len() != n {
            let found = self.instructions_us.len();
            return broken(format!("it has times of {found} instructions, and the step has {n}"));
        }
        let is_wrong = |run: &ProfiledRun| {
            let section = step.section(run.section as usize);
            let is_section = section.is_some_and(|range| range.len() == run.us.len());
            let is_time = |us: &f32| us.is_finite();
            let is_copy = |copy: &ProfiledCopy| {
                (copy.instruction as usize) < run.us.len() && is_time(&copy.start_us) && is_time(&copy.us)
            };
            !is_section
                || !run.start_us.is_finite()
                || !run.us.iter().all(is_time)
                || !run.copies.iter().all(is_copy)
        };
        match self.steps.iter().position(|step| step.runs.iter().any(is_wrong)) {
            Some(i) => broken(format!("profiled step {i} is no run of the step's programs")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Instruction, Phase, Section};

    fn step() -> Step {
        let line = |op: &'static str| Instruction {
            op: op.into(),
            layer: 0,
            site: None,
            us: 1.0,
            what: Action::Run,
            phase: Phase::Forward,
        };
        let section = |name: &'static str, first| Section { name: name.into(), first, samples: 1, runs: 1 };
        Step {
            names: vec!["layer".into()],
            instructions: vec![line("matmul"), line("tanh"), line("sub")],
            sections: vec![section("pass", 0), section("update", 2)],
            ..Step::default()
        }
    }

    #[test]
    fn a_profile_of_another_step_is_refused_by_what_is_wrong_with_it() {
        let run = |section, us: &[f32]| ProfiledRun { section, us: us.to_vec(), ..ProfiledRun::default() };
        let profile = |runs| Profile {
            instructions_us: vec![1.0; 3],
            steps: vec![ProfiledStep { runs, ..ProfiledStep::default() }],
            ..Profile::default()
        };
        assert!(profile(vec![run(0, &[1.0, 2.0]), run(1, &[3.0])]).check(&step(), "profile.json").is_ok());
        for wrong in [run(0, &[1.0]), run(1, &[1.0, 2.0]), run(2, &[]), run(1, &[f32::NAN])] {
            let error = profile(vec![wrong]).check(&step(), "profile.json").unwrap_err().to_string();
            assert!(error.contains("profile.json") && error.contains("profiled step 0"), "{error}");
        }
        let short = Profile { instructions_us: vec![1.0], ..Profile::default() };
        assert!(short.check(&step(), "x").unwrap_err().to_string().contains("times of 1 instructions"));
    }

    #[test]
    fn what_is_written_is_read_back() {
        let spent = Spent { step_ms: 2.0, kernel_ms: 1.5, between_ms: 0.5, ..Spent::default() };
        let profile = Profile {
            mean: Spent::mean([spent, Spent { step_ms: 4.0, ..spent }].iter()),
            steps: vec![ProfiledStep { step: 3, spent, runs: vec![] }],
            ..Profile::default()
        };
        assert_eq!((profile.mean.step_ms, profile.mean.measured_ms()), (3.0, 1.5));
        let text = serde_json::to_string(&profile).unwrap();
        assert_eq!(crate::parse::<Profile>(&text, "profile.json", false).unwrap(), profile);
    }
}
