//! `--profile`: what steps took, as it was measured, for people and for programs.

use std::path::{Path, PathBuf};

use plimsoll::internals::graph::counted;
use plimsoll::internals::run::record;
use plimsoll::prelude::*;
use serde_json::{Value, json};

use crate::Failure;
use crate::folder::Folder;
use crate::session::Session;

/// So many rows are printed; the files have all of them.
const ROWS: usize = 25;

/// A profile with the record of the step that it is of.
pub struct Profiled {
    pub step: record::Step,
    pub profile: record::Profile,
}

/// Refuses a number of steps of which nothing can be said.
pub fn check(steps: Option<usize>) -> Result<(), Failure> {
    match steps {
        Some(0) => Err(Failure("--profile 0 measures nothing; ask for one step or more".into())),
        _ => Ok(()),
    }
}

/// Writes and says what was measured of a run's steps, where that was asked for.
pub fn keep(session: &Session, folder: &Folder, trainer: &mut Trainer) -> Result<(), Failure> {
    let Some(steps) = session.profile else { return Ok(()) };
    let Some(profiled) = trainer.take_profile().map(Profiled::new) else {
        let why = format!("--profile {steps} measured nothing: no step of a whole batch was run");
        if session.json {
            say!("{}", serde_json::json!({ "event": "profile", "profiled": 0, "why": why }));
        } else {
            eprintln!("plimsoll: {why}");
        }
        return Ok(());
    };
    // The step may have been planned anew since the run began; the profile is of this one.
    folder.record(&folder.step(), &profiled.step)?;
    folder.record(&folder.profile(), &profiled.profile)?;
    let trace = folder.profile_trace();
    profiled.write_trace(&trace)?;
    if session.json {
        let mut line = profiled.json(Some(&trace));
        line["event"] = "profile".into();
        say!("{line}");
    }
    if session.is_text() {
        profiled.text().iter().for_each(|line| say!("{line}"));
        say!("{} opens in ui.perfetto.dev; {} has every figure", trace.display(), folder.profile().display());
    }
    Ok(())
}

impl Profiled {
    pub fn new((step, profile): (record::Step, record::Profile)) -> Profiled {
        Profiled { step, profile }
    }

    /// Writes the trace, piece by piece.
    pub fn write_trace(&self, path: &Path) -> Result<(), Failure> {
        let written = plimsoll::formats::durable::write_file(path, |out| {
            let mut out = std::io::BufWriter::new(out);
            plimsoll_report::write_profile_trace(&mut out, &self.step, &self.profile)?;
            std::io::Write::flush(&mut out)
        });
        written.map_err(|e| Failure(format!("{} cannot be written: {e}", path.display())))
    }

    /// What was measured, as sentences and a table.
    pub fn text(&self) -> Vec<String> {
        let record::Profile { device, asked, left_out, mean, rows, .. } = &self.profile;
        let steps = &self.profile.steps;
        let n = steps.len() as u64;
        let (first, last) = (steps.first().map_or(0, |s| s.step), steps.last().map_or(0, |s| s.step));
        let mut lines = vec![match n < *asked {
            false => format!("profile of {} ({first} to {last}) on {device}", counted(n, "step")),
            true => format!(
                "profile of {} ({first} to {last}) on {device}; {asked} were asked for: the run had no more, or there is no room for more",
                counted(n, "step")
            ),
        }];
        if *left_out > 0 {
            lines.push(format!(
                "{} of another batch size came between and are not in it",
                counted(*left_out, "step")
            ));
        }
        let share = |ms: f64| 100.0 * ms / mean.step_ms.max(1e-9);
        let parts = [
            ("kernels", mean.kernel_ms),
            ("copies on the device", mean.copy_ms),
            ("waiting for copies or other ranks", mean.await_ms),
            ("looking at the loss", mean.check_ms),
            ("between instructions", mean.between_ms),
        ];
        let parts = parts.iter().filter(|(name, ms)| *ms > 0.0 || *name == "kernels");
        let parts: Vec<String> =
            parts.map(|(name, ms)| format!("{name} {ms:.3} ms ({:.1}%)", share(*ms))).collect();
        let predicted = self.profile.predicted_ms;
        lines.push(format!(
            "a step took {:.3} ms, predicted {predicted:.3} ms: {}",
            mean.step_ms,
            parts.join(", ")
        ));
        lines.push(format!(
            "the host waited {:.3} ms a step for the device and {:.3} ms for data",
            mean.host_waiting_ms, mean.data_waiting_ms
        ));
        if mean.uploaded_bytes + mean.downloaded_bytes > 0.0 {
            let [up, down] = [mean.uploaded_bytes, mean.downloaded_bytes].map(|bytes| Bytes(bytes as u64));
            let beside = match mean.beside_ms > 0.0 {
                true => format!(", {:.3} ms of copies beside kernels", mean.beside_ms),
                false => String::new(),
            };
            lines.push(format!("{up:#} a step from the host and {down:#} to it{beside}"));
        }
        lines.push(format!(
            "memory: {:#} planned, {:#} taken at most; tensors took {:#}, the arena is {:#}",
            Bytes(self.profile.memory.planned_bytes),
            Bytes(self.profile.memory.taken_bytes),
            Bytes(self.profile.memory.tensor_peak_bytes),
            Bytes(self.profile.memory.arena_bytes)
        ));
        let table = record::ProfileTable { rows, most: ROWS }.to_string();
        lines.extend(table.lines().map(String::from));
        lines
    }

    /// The same for programs: everything but single steps and instructions, which are in the files.
    pub fn json(&self, trace: Option<&PathBuf>) -> Value {
        let steps: Vec<&record::Spent> = self.profile.steps.iter().map(|step| &step.spent).collect();
        let whole =
            record::Profile { steps: Vec::new(), instructions_us: Vec::new(), ..self.profile.clone() };
        let mut line = json!(whole);
        line["profiled"] = self.profile.steps.len().into();
        line["first_step"] = self.profile.steps.first().map(|step| step.step).into();
        line["steps"] = json!(steps);
        line["trace"] = trace.map(|path| path.to_string_lossy()).into();
        if let Some(line) = line.as_object_mut() {
            line.remove("instructions_us");
        }
        line
    }
}
