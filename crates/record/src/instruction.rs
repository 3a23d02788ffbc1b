//! One instruction of a step: what is done, for which layer, in which phase.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::Kind;

/// What an instruction does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// Runs an op.
    Run,
    /// Runs an op again, whose results were given up.
    Again,
    /// Copies bytes.
    Copy,
    /// Looks whether the loss is finite.
    Check,
    /// Starts to copy a tensor to the host, beside what follows.
    Offload,
    /// Starts to copy it back.
    Prefetch,
    /// Waits for such a copy, or for an exchange with other ranks.
    Await,
}

impl Action {
    /// Its name in records.
    pub const fn name(self) -> &'static str {
        match self {
            Action::Run => "run",
            Action::Again => "again",
            Action::Copy => "copy",
            Action::Check => "check",
            Action::Offload => "offload",
            Action::Prefetch => "prefetch",
            Action::Await => "await",
        }
    }

    /// What a table says of it beside the op's name.
    pub const fn note(self) -> &'static str {
        match self {
            Action::Run | Action::Copy | Action::Check => "",
            Action::Again => "again",
            Action::Offload => "to the host",
            Action::Prefetch => "from the host",
            Action::Await => "for a copy or other ranks",
        }
    }

    /// Whether a kernel is run.
    pub const fn is_kernel(self) -> bool {
        matches!(self, Action::Run | Action::Again)
    }
}

/// Which part of a training step an instruction belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// The model and its loss.
    Forward,
    /// The gradients.
    Backward,
    /// The optimizer.
    Update,
}

impl Phase {
    /// All phases, in the order of a step.
    pub const ALL: [Phase; 3] = [Phase::Forward, Phase::Backward, Phase::Update];

    /// Its name in records.
    pub const fn name(self) -> &'static str {
        match self {
            Phase::Forward => "forward",
            Phase::Backward => "backward",
            Phase::Update => "update",
        }
    }

    /// What a value is for that an op of this phase makes: one answer for plans and reports.
    pub const fn kind(self) -> Kind {
        match self {
            Phase::Forward => Kind::Activation,
            Phase::Backward => Kind::Gradient,
            Phase::Update => Kind::Optimizer,
        }
    }
}

/// One instruction.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Instruction {
    /// The op.
    pub op: Cow<'static, str>,
    /// The layer that asked for it: a place in [`Step::names`](crate::Step::names).
    pub layer: u32,
    /// The source line that did: a place in [`Step::sites`](crate::Step::sites).
    pub site: Option<u32>,
    /// Predicted microseconds.
    pub us: f64,
    /// What it does.
    pub what: Action,
    /// Where in the step.
    pub phase: Phase,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actions_and_phases_are_written_by_their_names() {
        for (name, written) in [
            (Action::Again.name(), serde_json::to_string(&Action::Again)),
            (Action::Offload.name(), serde_json::to_string(&Action::Offload)),
            (Action::Prefetch.name(), serde_json::to_string(&Action::Prefetch)),
            (Action::Await.name(), serde_json::to_string(&Action::Await)),
            (Phase::Backward.name(), serde_json::to_string(&Phase::Backward)),
        ] {
            assert_eq!(written.unwrap(), format!("\"{name}\""));
        }
    }
}
