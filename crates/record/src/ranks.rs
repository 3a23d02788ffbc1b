//! Ranks that trained together, and ways to share a training that were compared.

use serde::{Deserialize, Serialize};

use crate::Schema;

/// What each rank of a run came to (`ranks.json`), as of its last epoch.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Ranks {
    /// The version of the schema.
    pub schema: Schema,
    /// The epoch that the rows are of, from 1.
    pub epoch: u64,
    /// What connects them: `threads`, `tcp`, or the name and version of a library.
    pub by: String,
    /// What they have of each other's: `data`, `shard`.
    pub parallel: String,
    /// One row a rank.
    pub rows: Vec<RankRow>,
}

/// One rank of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RankRow {
    /// Its number, from 0.
    pub rank: u64,
    /// What was planned of the memory that its limit counts.
    pub planned_bytes: u64,
    /// The most that it took of that.
    pub peak_bytes: u64,
    /// The most that it took of the host's memory.
    pub host_peak_bytes: u64,
    /// What it sent to others since it was started.
    pub sent_bytes: u64,
    /// What it received from others since it was started.
    pub received_bytes: u64,
    /// Seconds of the epoch's steps.
    pub step_seconds: f64,
    /// Seconds of the epoch in which it waited for its input.
    pub waiting_seconds: f64,
}

/// A way to share a training among ranks, as it was planned.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Strategy {
    /// Its name: `data`, `shard`.
    pub parallel: String,
    /// What each rank has a part of.
    pub what: String,
    /// Whether it is reckoned from the plan of another one.
    pub estimated: bool,
    /// Whether a rank keeps its memory limit with it.
    pub fits: bool,
    /// Where it does not, why.
    #[serde(flatten)]
    pub refusal: Refusal,
    /// What a rank takes.
    #[serde(flatten)]
    pub bytes: RankBytes,
    /// Seconds of a step.
    pub predicted_seconds: f64,
    /// Of these, seconds of exchanges.
    pub exchange_seconds: f64,
    /// Seconds of a step whose exchanges go on wholly beside it.
    pub beside_seconds: f64,
    /// What a rank sends in a step to others of its machine.
    pub sent_inside_bytes: f64,
    /// What it sends to other machines.
    pub sent_between_bytes: f64,
}

/// What a rank takes with a [`Strategy`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RankBytes {
    /// All of it.
    pub planned_bytes: u64,
    /// Of that, parameters.
    pub parameter_bytes: u64,
    /// Of that, the optimizer's state.
    pub optimizer_bytes: u64,
}

/// Why ranks do not keep their memory limit with a [`Strategy`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Refusal {
    /// In words.
    pub why: Option<String>,
    /// The least that a rank would need.
    pub floor_bytes: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_a_strategy_is_written_side_by_side_and_read_again() {
        let refusal = Refusal { why: Some("too large".into()), floor_bytes: Some(7) };
        let bytes = RankBytes { planned_bytes: 5, parameter_bytes: 3, optimizer_bytes: 1 };
        let strategy = Strategy { parallel: "shard".into(), refusal, bytes, ..Strategy::default() };
        let written = serde_json::to_value(&strategy).unwrap();
        for (name, value) in [("floor_bytes", 7), ("planned_bytes", 5), ("parameter_bytes", 3)] {
            assert_eq!(written[name], value, "{name}");
        }
        assert_eq!(serde_json::from_value::<Strategy>(written).unwrap(), strategy);
        assert_eq!(serde_json::from_str::<Strategy>("{}").unwrap(), Strategy::default());
    }
}
