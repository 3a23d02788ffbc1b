//! What was planned for a step, in figures.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::{Schema, Strategy};

/// What was planned (`plan.json`). Bytes are of the whole process, except where they say otherwise.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Plan {
    /// The version of the schema.
    pub schema: Schema,
    /// The model's name.
    pub model: String,
    /// Samples a step.
    pub batch: u64,
    /// The device.
    pub device: Option<String>,
    /// How the device's memory is divided among tensors: `best-fit`, `system`, `pages`, `pool`, or `own`.
    pub allocator: Option<String>,
    /// The memory limit, if there is one.
    #[serde(alias = "line_bytes")]
    pub memory_limit_bytes: Option<u64>,
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
    /// What that is made up of.
    #[serde(flatten)]
    pub parts: PlanParts,
    /// Predicted milliseconds a step.
    pub predicted_ms: f64,
    /// Predicted milliseconds a step without a memory limit.
    pub unlimited_ms: f64,
    /// Into how many micro-batches the batch is split.
    pub micro_batches: u64,
    /// Ops that run again instead of keeping their results.
    pub recomputed_ops: u64,
    /// How far the plan departs from the bits of an unlimited run.
    pub exactness: Option<Cow<'static, str>>,
    /// Seconds that planning took.
    pub plan_seconds: f64,
    /// What is taken of the host's memory to copy to, beside a card's.
    pub host_bytes: u64,
    /// What is taken of a disk instead, on a CPU that has one beside its memory.
    pub disk_bytes: u64,
    /// What of either is state that lives there.
    pub hosted_bytes: u64,
    /// All that is taken of the host's memory beside a card's.
    #[serde(flatten)]
    pub host: HostPlan,
    /// What a step copies to the host.
    pub offloaded_bytes: u64,
    /// Copies there and back.
    pub offloaded_copies: u64,
    /// How ranks share the training, where there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parallel: Option<String>,
    /// Ways to share it that were compared.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub strategies: Vec<Strategy>,
}

/// The bytes of a plan by what they are for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PlanParts {
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
    /// The connection to other ranks.
    pub rank_bytes: u64,
    /// A batch, and what a step gives back.
    pub input_bytes: u64,
}

/// What is planned of the host's memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HostPlan {
    /// On a card, the limit of the host's memory: the caller's, or what the machine or its control group has.
    pub host_limit_bytes: Option<u64>,
    /// Whether the caller named it.
    pub host_limit_given: bool,
    /// On a card, all that the process is planned to take of the host's memory.
    pub host_planned_bytes: Option<u64>,
    /// Of that: the program with the card's driver and libraries.
    pub host_program_bytes: u64,
    /// Of that: input pipelines.
    pub host_pipeline_bytes: u64,
    /// Of that: buffers through which batches and weights go.
    pub host_staging_bytes: u64,
}

impl Plan {
    /// Whether the memory limit and all bytes that are planned are of a card's own memory, and not of the host's.
    pub fn is_of_a_card(&self) -> bool {
        self.device.as_deref().is_some_and(|device| device.starts_with("cuda"))
    }
}
