//! Turns ranks that have a stage each, and need not be here, into a plan of each stage: what the one that holds most holds, and how long the longest takes.

use std::fmt::Write;
use std::sync::Arc;

use plimsoll::internals::graph::counted;
use plimsoll::prelude::*;
use plimsoll::ranks::Imagined;
use serde_json::{Value, json};

use crate::Failure;
use crate::plot::duration;
use crate::strategies::{Answer, Planned, Refused};

/// Of more stages than this, the first, the last and one in the middle are planned: the first keeps most parts of a batch, the last makes the outputs.
const MOST_STAGES: usize = 8;

/// Plans the stages of ranks that are only planned for, each as its own rank: what the one that holds most holds, and how long the longest takes. `plan` plans
/// for the rank that a device is; there are so many stages, of the first ranks.
pub fn plan_stages<P>(device: &Device, imagined: &Imagined, stages: usize, plan: P) -> Result<Answer, Failure>
where
    P: Fn(&Device) -> Result<Answer, Failure>,
{
    let ranks = stages;
    let planned = if ranks <= MOST_STAGES { (0..ranks).collect() } else { vec![0, ranks / 2, ranks - 1] };
    let mut all = Planned::default();
    for rank in planned {
        let device = device.with_ranks(Arc::new(imagined.as_rank(rank)));
        let one = match device.scope(|| plan(&device))? {
            Ok(one) => one,
            // What is true of the cut is true of all.
            Err(Refused { why, least: None }) => return Ok(Err(Refused { why, least: None })),
            Err(Refused { why, least }) => {
                return Ok(Err(Refused { why: format!("the stage of rank {rank} {why}"), least }));
            }
        };
        all.bytes = all.bytes.max(one.bytes);
        all.parameters = all.parameters.max(one.parameters);
        all.optimizer = all.optimizer.max(one.optimizer);
        if one.predicted_seconds >= all.predicted_seconds {
            (all.predicted_seconds, all.exchange_seconds) = (one.predicted_seconds, one.exchange_seconds);
            all.calls.clone_from(&one.calls);
        }
        all.pipeline = all.pipeline.or_else(|| one.pipeline.clone());
        all.stages.push((rank, one));
    }
    Ok(Ok(all))
}

impl Planned {
    /// Bytes that a stage sends in a step: the most to a neighbour of its machine, and to another machine.
    pub fn sent_by_stages(&self, per_machine: usize) -> (f64, f64) {
        let Some(pipeline) = &self.pipeline else { return (0.0, 0.0) };
        let (n, mut sent) = (pipeline.stages.len(), (0.0f64, 0.0f64));
        for (rank, stage) in pipeline.stages.iter().enumerate() {
            let is_edge =
                (rank > 0 && rank % per_machine == 0) || (rank + 1 < n && (rank + 1) % per_machine == 0);
            let most = if is_edge { &mut sent.1 } else { &mut sent.0 };
            *most = most.max(stage.sent as f64);
        }
        sent
    }

    /// The stages, a line each.
    pub fn stages_text(&self) -> String {
        let Some(pipeline) = &self.pipeline else { return String::new() };
        let n = pipeline.stages.len();
        let mut text = format!(
            "{n} stages, through which the batch goes in {}; a stage waits for {:.0} % of a step\n",
            counted(pipeline.parts, "part"),
            100.0 * (1.0 - 1.0 / pipeline.longer())
        );
        let _ = writeln!(
            text,
            "{:<6}{:>11}{:>11}{:>11}{:>11}{:>11}  of",
            "rank", "holds", "parameters", "optimizer", "works", "sends"
        );
        for (rank, stage) in &self.stages {
            let Some(figures) = pipeline.stages.get(*rank) else { continue };
            let _ = writeln!(
                text,
                "{rank:<6}{:>11}{:>11}{:>11}{:>11}{:>11}  {} … {}",
                Bytes(stage.bytes).to_string(),
                Bytes(stage.parameters).to_string(),
                Bytes(stage.optimizer).to_string(),
                duration(stage.predicted_seconds / pipeline.longer()),
                Bytes(figures.sent).to_string(),
                figures.first,
                figures.last
            );
        }
        text
    }

    pub fn stages_json(&self) -> Value {
        let Some(pipeline) = &self.pipeline else { return Value::Null };
        let stage = |(rank, planned): &(usize, Planned)| {
            let figures = pipeline.stages.get(*rank);
            json!({
                "rank": rank, "planned_bytes": planned.bytes, "parameter_bytes": planned.parameters, "optimizer_bytes": planned.optimizer,
                "working_seconds": planned.predicted_seconds / pipeline.longer(), "sent_bytes": figures.map(|f| f.sent),
                "first": figures.map(|f| f.first.clone()), "last": figures.map(|f| f.last.clone()),
            })
        };
        json!({ "parts": pipeline.parts, "stages": self.stages.iter().map(stage).collect::<Vec<Value>>() })
    }
}
