//! All that is known of a plan or a run, as one document.

use serde::{Deserialize, Serialize};

use crate::step::Step;

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
}

/// Plans for the same step under other lines.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Frontier {
    /// From the least bytes to the most.
    pub points: Vec<Point>,
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
    /// What tensors held on the device.
    pub device_bytes: Vec<u64>,
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
    /// What it took when the run ended.
    pub measured_bytes: u64,
    /// The most it took.
    pub peak_bytes: u64,
}
