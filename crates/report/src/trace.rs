//! Turns a record into a Chrome trace: instructions as slices on one track a phase, memory by kind as counters. Perfetto
//! (ui.perfetto.dev) and chrome://tracing open it.

use plimsoll_record::{Kind, Phase, Record, Step};
use serde_json::{Value, json};

/// The kinds of what lies in an arena, in the order in which pictures stack them.
const KINDS: [Kind; 5] = [Kind::Activation, Kind::Gradient, Kind::Optimizer, Kind::Scratch, Kind::Other];
/// An instruction without a predicted time is drawn with this one, so that it can be seen.
const LEAST_US: f64 = 0.1;

/// The trace of a step, one after the other at predicted times; `traceEvents` is empty where no step is known.
pub fn trace(record: &Record) -> Value {
    let mut events = vec![json!({
        "ph": "M", "pid": 1, "name": "process_name",
        "args": { "name": format!("{} step, batch {}", record.plan.model, record.plan.batch) },
    })];
    for (i, phase) in Phase::ALL.iter().enumerate() {
        events.push(json!({
            "ph": "M", "pid": 1, "tid": i + 1, "name": "thread_name", "args": { "name": phase.name() },
        }));
    }
    if let Some(step) = &record.step {
        slices(step, &mut events);
    }
    json!({
        "displayTimeUnit": "ms",
        "otherData": {
            "model": record.plan.model, "batch": record.plan.batch,
            "memory_limit_bytes": record.plan.memory_limit_bytes, "planned_bytes": record.plan.planned_bytes,
        },
        "traceEvents": events,
    })
}

fn slices(step: &Step, events: &mut Vec<Value>) {
    let held = KINDS.map(|kind| step.held(kind));
    let mut resident = std::collections::BTreeMap::new();
    for r in &step.residents {
        *resident.entry(r.kind).or_insert(0u64) += r.bytes;
    }
    let elsewhere = step.bytes.program_bytes + step.bytes.pipeline_bytes + step.bytes.other_bytes;
    let mut at = 0.0;
    for (i, instruction) in step.instructions.iter().enumerate() {
        let layer = &step.names[instruction.layer as usize];
        let name = match layer.as_str() {
            "" => instruction.op.to_string(),
            layer => format!("{layer}/{}", instruction.op),
        };
        let us = instruction.us.max(LEAST_US);
        let phase = instruction.phase as usize;
        let site = instruction.site.map_or("", |site| step.sites[site as usize].as_str());
        events.push(json!({
            "ph": "X", "pid": 1, "tid": phase + 1, "ts": at, "dur": us, "name": name, "cat": instruction.what,
            "args": { "instruction": i, "what": instruction.what, "layer": layer, "source": site, "predicted_us": instruction.us },
        }));
        let mut args = serde_json::Map::new();
        let mut total = elsewhere;
        for (kind, held) in KINDS.iter().zip(&held) {
            let bytes = held[i] + resident.get(kind).copied().unwrap_or(0);
            args.insert(kind.name().into(), bytes.into());
            total += bytes;
        }
        for (kind, bytes) in resident.iter().filter(|(kind, _)| !KINDS.contains(kind)) {
            args.insert(kind.name().into(), (*bytes).into());
            total += bytes;
        }
        args.insert("program".into(), elsewhere.into());
        events.push(json!({ "ph": "C", "pid": 1, "ts": at, "name": "bytes by kind", "args": args }));
        events.push(json!({ "ph": "C", "pid": 1, "ts": at, "name": "bytes", "args": { "taken": total } }));
        at += us;
    }
    if let Some(limit) = step.memory_limit_bytes {
        for ts in [0.0, at] {
            events.push(json!({ "ph": "C", "pid": 1, "ts": ts, "name": "line", "args": { "line": limit } }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_record::{Action, Instruction, Interval, StepBytes};

    fn record() -> Record {
        let instruction = |op: &'static str, phase: Phase, us: f64| Instruction {
            op: op.into(),
            layer: 0,
            site: Some(0),
            us,
            what: Action::Run,
            phase,
        };
        let tensor = |kind: Kind, from: u32, to: u32, bytes: u64| Interval {
            name: 1,
            layer: 0,
            kind,
            shape: [bytes / 4].into(),
            dtype: "f32".into(),
            bytes,
            offset: 0,
            from,
            to,
            again: false,
            site: None,
        };
        let step = Step {
            memory_limit_bytes: Some(5000),
            bytes: StepBytes { program_bytes: 1000, ..StepBytes::default() },
            names: vec!["dense".into(), "dense/matmul".into()],
            sites: vec!["model.rs:7".into()],
            instructions: vec![
                instruction("matmul", Phase::Forward, 40.0),
                instruction("matmul", Phase::Backward, 80.0),
                instruction("sub", Phase::Update, 0.0),
            ],
            tensors: vec![tensor(Kind::Activation, 0, 2, 640), tensor(Kind::Gradient, 1, 3, 1280)],
            ..Step::default()
        };
        Record { step: Some(step), ..Record::default() }
    }

    #[test]
    fn a_trace_has_slices_in_a_row_and_counters_of_every_kind() {
        let trace = trace(&record());
        let events = trace["traceEvents"].as_array().unwrap();
        let of = |ph: &str| events.iter().filter(|e| e["ph"] == ph).collect::<Vec<_>>();
        let slices = of("X");
        assert_eq!(slices.len(), 3);
        for pair in slices.windows(2) {
            let end = pair[0]["ts"].as_f64().unwrap() + pair[0]["dur"].as_f64().unwrap();
            assert!((pair[1]["ts"].as_f64().unwrap() - end).abs() < 1e-9);
        }
        let tracks: Vec<u64> = slices.iter().map(|e| e["tid"].as_u64().unwrap()).collect();
        assert_eq!(tracks, [1, 2, 3]);
        assert_eq!(slices[0]["name"], "dense/matmul");
        assert_eq!(slices[0]["args"]["source"], "model.rs:7");
        let named: Vec<&str> = of("M").iter().filter_map(|e| e["args"]["name"].as_str()).skip(1).collect();
        assert_eq!(named, ["forward", "backward", "update"]);
        let counters: Vec<&Value> = of("C").into_iter().filter(|e| e["name"] == "bytes by kind").collect();
        let of_kind = |i: usize, kind: &str| counters[i]["args"][kind].as_u64().unwrap();
        assert_eq!(
            (of_kind(1, "activation"), of_kind(1, "gradient"), of_kind(1, "program")),
            (640, 1280, 1000)
        );
        assert_eq!((of_kind(2, "activation"), of_kind(2, "gradient")), (0, 1280));
        let totals: Vec<u64> = of("C")
            .iter()
            .filter(|e| e["name"] == "bytes")
            .filter_map(|e| e["args"]["taken"].as_u64())
            .collect();
        assert_eq!(totals, [1640, 2920, 2280]);
        assert_eq!(of("C").iter().filter(|e| e["name"] == "line").count(), 2);
    }
}
