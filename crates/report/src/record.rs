//! All that is known of a plan or a run, as one document.

use serde::{Deserialize, Serialize};

use crate::step::Step;

/// The version of all records here.
pub(crate) const SCHEMA: u32 = 1;

/// The whole record: what `plimsoll report --json` prints and the page holds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Record {
    /// The version of the schema, 1.
    pub schema: u32,
    /// What was planned.
    pub plan: Plan,
    /// The step, instruction by instruction.
    pub step: Option<Step>,
    /// Other plans for the same step.
    pub frontier: Option<Frontier>,
    /// What happened, if this is a run.
    pub run: Option<Run>,
}

/// What was planned. Bytes are of the whole process, except where they say otherwise.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Plan {
    /// The model's name.
    pub model: String,
    /// Samples a step.
    pub batch: u64,
    /// The device.
    pub device: Option<String>,
    /// The line, if there is one.
    pub line_bytes: Option<u64>,
    /// What the plan takes.
    pub planned_bytes: u64,
    /// The least for which there is a plan.
    pub floor_bytes: u64,
    /// What the fastest plan takes.
    pub unlimited_bytes: u64,
    /// What it would take if every value had bytes of its own.
    pub unshared_bytes: Option<u64>,
    /// What every plan of this step takes beside its workspace.
    pub outside_bytes: Option<u64>,
    /// Bytes of the arena.
    pub arena_bytes: u64,
    /// The most bytes of the arena that are needed at once.
    pub live_bytes: u64,
    /// Parameters and optimizer state.
    pub state_bytes: u64,
    /// The program's own pages.
    pub program_bytes: u64,
    /// Input pipelines.
    pub pipeline_bytes: u64,
    /// A batch, and what a step gives back.
    pub input_bytes: u64,
    /// Predicted milliseconds a step.
    pub predicted_ms: f64,
    /// Predicted milliseconds a step without a line.
    pub unlimited_ms: f64,
    /// Into how many micro-batches the batch is split.
    pub micro_batches: u64,
    /// Ops that run again instead of keeping their results.
    pub recomputed_ops: u64,
    /// How far the plan departs from the bits of an unlimited run.
    pub exactness: Option<String>,
    /// Seconds that planning took.
    pub plan_seconds: f64,
    /// What is taken of the host's memory to copy to, beside a card's.
    pub host_bytes: u64,
    /// What of that is state that lives there.
    pub hosted_bytes: u64,
    /// What a step copies there.
    pub offloaded_bytes: u64,
    /// Copies there and back.
    pub offloaded_copies: u64,
}

impl Plan {
    /// Whether the line and all bytes that are planned are of a card's own memory, and not of the host's.
    pub fn is_of_a_card(&self) -> bool {
        self.device.as_deref().is_some_and(|device| device.starts_with("cuda"))
    }
}

/// Plans for the same step under other lines.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Frontier {
    /// From the least bytes to the most.
    pub points: Vec<Point>,
}

impl Frontier {
    /// Whether nothing in it contradicts a plan of the same step: none takes less than the least, and where one takes what the
    /// plan does, it takes the same time. Kernels that were timed anew since, or another version, break that.
    pub fn agrees_with(&self, plan: &Plan) -> bool {
        let near = |a: f64, b: f64| (a - b).abs() <= 1e-6 * a.abs().max(b.abs());
        let known = [(plan.planned_bytes, plan.predicted_ms), (plan.unlimited_bytes, plan.unlimited_ms)];
        let is_fast = |point: &Point| point.predicted_ms * (1.0 + 1e-6) >= plan.unlimited_ms;
        self.points.iter().all(|point| {
            // Both plans may take the same, where the rest of the process decides what that is.
            let mut alike = known.iter().filter(|(bytes, _)| point.planned_bytes == *bytes).peekable();
            let same = alike.peek().is_none() || alike.any(|(_, ms)| near(point.predicted_ms, *ms));
            point.planned_bytes >= plan.floor_bytes && is_fast(point) && same
        })
    }
}

/// One plan of a frontier.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Point {
    /// What it takes.
    pub planned_bytes: u64,
    /// Predicted milliseconds a step.
    pub predicted_ms: f64,
    /// Into how many micro-batches the batch is split.
    pub micro_batches: u64,
    /// Ops that run again.
    pub recomputed_ops: u64,
    /// How far it departs from the bits of an unlimited run.
    pub exactness: Option<String>,
}

/// What happened in a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Run {
    /// Steps, thinned out where there are many.
    pub steps: Steps,
    /// Epochs.
    pub epochs: Vec<Epoch>,
    /// Everything out of the ordinary.
    pub events: Vec<Event>,
    /// Planned and measured bytes by owner.
    pub ledger: Vec<LedgerRow>,
    /// The most that was measured of the memory that the line counts: a card's own where the run was on one, else the
    /// process's. None where it was not measured.
    pub peak_bytes: Option<u64>,
    /// The most that the process had of the host's memory.
    pub host_peak_bytes: Option<u64>,
    /// Milliseconds a step that were measured, waiting for input and all: the median.
    pub measured_ms: Option<f64>,
    /// Lines of its tables and events that could not be read: the last one of a run that was killed, say.
    pub unread_lines: u64,
}

impl Run {
    /// Takes the figures of the whole run from its tables: the one place for them.
    pub(crate) fn sum_up(&mut self, plan: &Plan) {
        let most = |column: &[u64], name: &str| {
            let at_epochs = self.epochs.iter().flat_map(|epoch| &epoch.values);
            let at_epochs = at_epochs.filter(|(known, _)| known == name).filter_map(|(_, value)| *value);
            column.iter().copied().chain(at_epochs.map(|value| value as u64)).max().filter(|most| *most > 0)
        };
        self.host_peak_bytes = most(&self.steps.resident_peak_bytes, "resident_peak_bytes");
        self.peak_bytes = match plan.is_of_a_card() {
            true => most(&self.steps.device_peak_bytes, "device_peak_bytes"),
            false => self.host_peak_bytes,
        };
        // The ledger was measured last: what the process took then is a part of the run too.
        let of_limit = self.ledger.iter().filter(|row| row.kind != "host");
        let at_end: u64 = of_limit.filter_map(|row| row.measured_bytes).sum();
        self.peak_bytes = self.peak_bytes.map(|peak| peak.max(at_end));
        let ms = |rate: &f64| (*rate > 0.0).then(|| plan.batch as f64 / rate * 1e3);
        let mut ms: Vec<f64> = self.steps.samples_s.iter().flatten().filter_map(ms).collect();
        ms.sort_by(f64::total_cmp);
        self.measured_ms = ms.get(ms.len() / 2).copied();
    }
}

/// A table of steps, by columns of equal length.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Steps {
    /// Updates done.
    pub step: Vec<u64>,
    /// The loss of the batch.
    pub loss: Vec<Option<f64>>,
    /// The learning rate.
    pub rate: Vec<Option<f64>>,
    /// Samples a second since the line before.
    pub samples_s: Vec<Option<f64>>,
    /// The share of time spent waiting for input since the line before.
    pub waiting: Vec<Option<f64>>,
    /// What the process took, as the system counts it.
    pub resident_bytes: Vec<u64>,
    /// The most it had taken until then.
    pub resident_peak_bytes: Vec<u64>,
    /// What was held on the device.
    pub device_bytes: Vec<u64>,
    /// The most that the process had taken of a card's own memory until then; zeros where it is not known.
    pub device_peak_bytes: Vec<u64>,
}

/// One epoch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Epoch {
    /// The epoch, from 1.
    pub epoch: u64,
    /// Updates done at its end.
    pub step: u64,
    /// Everything that was measured, by name, the loss among it.
    pub values: Vec<(String, Option<f64>)>,
}

/// Something out of the ordinary.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Event {
    /// started, ended, replanned, skipped, saved, resumed or fault.
    pub event: String,
    /// Updates done before it.
    pub step: Option<u64>,
    /// What happened, in words.
    pub why: Option<String>,
}

/// One line of the ledger.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LedgerRow {
    /// parameter, gradient, optimizer, activation, scratch, input, library, program or host.
    pub kind: String,
    /// Whose.
    pub name: String,
    /// What the plan gives it.
    pub planned_bytes: u64,
    /// What it took when the run ended; none where nobody measured it by itself.
    pub measured_bytes: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_that_contradict_this_one_are_told_from_those_that_do_not() {
        let plan = Plan {
            planned_bytes: 500,
            predicted_ms: 20.0,
            floor_bytes: 400,
            unlimited_bytes: 900,
            unlimited_ms: 10.0,
            ..Plan::default()
        };
        let agree = |points: &[(u64, f64)]| {
            let point =
                |&(planned_bytes, predicted_ms)| Point { planned_bytes, predicted_ms, ..Point::default() };
            Frontier { points: points.iter().map(point).collect() }.agrees_with(&plan)
        };
        assert!(agree(&[]) && agree(&[(400, 33.0), (500, 20.0), (900, 10.0)]));
        assert!(!agree(&[(399, 33.0)]), "below the least");
        assert!(!agree(&[(500, 7.5)]) && !agree(&[(500, 21.0)]), "the same plan in another time");
        assert!(!agree(&[(600, 9.0)]), "faster than the fastest");
    }

    #[test]
    fn a_run_is_summed_up_by_what_its_line_counts() {
        let steps = Steps {
            samples_s: vec![Some(100.0), None, Some(50.0), Some(80.0)],
            resident_peak_bytes: vec![10, 20],
            device_peak_bytes: vec![300, 700],
            ..Steps::default()
        };
        let epochs =
            vec![Epoch { values: vec![("resident_peak_bytes".into(), Some(25.0))], ..Epoch::default() }];
        let summed = |device: &str, steps: &Steps| {
            let plan = Plan { device: Some(device.into()), batch: 8, ..Plan::default() };
            let mut run = Run { steps: steps.clone(), epochs: epochs.clone(), ..Run::default() };
            run.sum_up(&plan);
            (run.peak_bytes, run.host_peak_bytes, run.measured_ms)
        };
        assert_eq!(summed("cpu", &steps), (Some(25), Some(25), Some(100.0)));
        assert_eq!(summed("cuda:0", &steps), (Some(700), Some(25), Some(100.0)));
        // Without a figure of the card's, none of the host's is held against a line of the card's memory.
        assert_eq!(summed("cuda:0", &Steps { device_peak_bytes: vec![], ..steps }).0, None);
    }
}
