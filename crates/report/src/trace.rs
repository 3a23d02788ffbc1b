//! Turns a record into a Chrome trace: instructions as slices on one track a phase, memory by kind as counters. Perfetto
//! (ui.perfetto.dev) and chrome://tracing open it.

use serde_json::{Value, json};

use crate::record::Record;
use crate::step::{KINDS, Step};

const PHASES: &[&str] = &["forward", "backward", "update"];
/// An instruction without a predicted time is drawn with this one, so that it can be seen.
const LEAST_US: f64 = 0.1;

/// The trace of a step, one after the other at predicted times; `traceEvents` is empty where no step is known.
pub fn trace(record: &Record) -> Value {
    let mut events = vec![json!({
        "ph": "M", "pid": 1, "name": "process_name",
        "args": { "name": format!("{} step, batch {}", record.plan.model, record.plan.batch) },
    })];
    for (i, phase) in PHASES.iter().enumerate() {
        events.push(json!({
            "ph": "M", "pid": 1, "tid": i + 1, "name": "thread_name", "args": { "name": phase },
        }));
    }
    if let Some(step) = &record.step {
        slices(step, &mut events);
    }
    json!({
        "displayTimeUnit": "ms",
        "otherData": {
            "model": record.plan.model, "batch": record.plan.batch,
            "line_bytes": record.plan.line_bytes, "planned_bytes": record.plan.planned_bytes,
        },
        "traceEvents": events,
    })
}

fn slices(step: &Step, events: &mut Vec<Value>) {
    let held = step.held(KINDS);
    let mut resident = std::collections::BTreeMap::new();
    for r in &step.residents {
        *resident.entry(r.kind.as_str()).or_insert(0u64) += r.bytes;
    }
    let elsewhere = step.program_bytes + step.pipeline_bytes + step.other_bytes;
    let mut at = 0.0;
    for (i, instruction) in step.instructions.iter().enumerate() {
        let layer = &step.names[instruction.layer as usize];
        let name = match layer.as_str() {
            "" => instruction.op.clone(),
            layer => format!("{layer}/{}", instruction.op),
        };
        let us = instruction.us.max(LEAST_US);
        let phase = PHASES.iter().position(|phase| *phase == instruction.phase).unwrap_or(0);
        let site = instruction.site.map_or("", |site| step.sites[site as usize].as_str());
        events.push(json!({
            "ph": "X", "pid": 1, "tid": phase + 1, "ts": at, "dur": us, "name": name, "cat": instruction.what,
            "args": { "instruction": i, "what": instruction.what, "layer": layer, "source": site, "predicted_us": instruction.us },
        }));
        let mut args = serde_json::Map::new();
        let mut total = elsewhere;
        for (kind, held) in KINDS.iter().zip(&held) {
            let bytes = held[i] + resident.get(kind).copied().unwrap_or(0);
            args.insert((*kind).into(), bytes.into());
            total += bytes;
        }
        for (kind, bytes) in resident.iter().filter(|(kind, _)| !KINDS.contains(kind)) {
            args.insert((*kind).into(), (*bytes).into());
            total += bytes;
        }
        args.insert("program".into(), elsewhere.into());
        events.push(json!({ "ph": "C", "pid": 1, "ts": at, "name": "bytes by kind", "args": args }));
        events.push(json!({ "ph": "C", "pid": 1, "ts": at, "name": "bytes", "args": { "taken": total } }));
        at += us;
    }
    if let Some(line) = step.line_bytes {
        for ts in [0.0, at] {
            events.push(json!({ "ph": "C", "pid": 1, "ts": ts, "name": "line", "args": { "line": line } }));
        }
    }
}
