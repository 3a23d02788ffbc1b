//! A step that was traced elsewhere: planned within a part of its memory, and its instructions followed by a plain interpreter.

use std::collections::HashMap;

use serde_json::{Value, json};

use crate::common::{Scratch, plimsoll};

const LAYERS: u64 = 12;
const BYTES: u64 = 1000;

/// A chain of layers forward and back: activation k is read by its successor and, on the way back, by gradient k.
fn chain() -> Vec<Value> {
    let mut lines = vec![json!({"model": "chain"})];
    let storage =
        |s: u64, kind: &str, output: bool| json!({"s": s, "size": BYTES, "kind": kind, "output": output});
    lines.push(storage(0, "const", false));
    lines.extend((1..=2 * LAYERS).map(|s| storage(s, "action", s == 2 * LAYERS)));
    for at in 1..=LAYERS {
        lines.push(json!({"op": at, "name": "layer", "ns": 10, "ins": [at - 1], "outs": [at], "mut": [], "scratch": 100}));
    }
    for at in 1..=LAYERS {
        let (kept, gradient) = (LAYERS - at, LAYERS + at);
        let before = if at == 1 { LAYERS } else { gradient - 1 };
        lines.push(json!({"op": gradient, "name": "grad", "ns": 10, "ins": [kept, before], "outs": [gradient], "mut": []}));
    }
    lines
}

#[test]
fn instructions_of_a_traced_step_keep_its_values_and_its_bytes() {
    let scratch = Scratch::new("plan-trace");
    let lines = chain();
    let text: Vec<String> = lines.iter().map(Value::to_string).collect();
    let (trace, out) = (scratch.path("step.jsonl"), scratch.path("plan.json"));
    std::fs::write(&trace, text.join("\n")).unwrap();
    let ask = |more: &[&str]| {
        let asked = plimsoll().args(["plan", "--json", "--trace"]).arg(&trace).args(more).output().unwrap();
        (asked.status.success(), String::from_utf8_lossy(&asked.stdout).into_owned())
    };
    let (_, said) = ask(&["--ratio", "0.5", "--out", &out]);
    let (line, plan): (Value, Value) = (
        serde_json::from_str(&said).unwrap(),
        serde_json::from_slice(&std::fs::read(&out).unwrap()).unwrap(),
    );
    assert_eq!((&plan["version"], &plan["peak_bytes"]), (&json!(1), &line["peak_bytes"]));

    // Every storage is a sum of what it was made from: whoever reads freed or wrong bytes gets another one.
    let ops: HashMap<u64, &Value> =
        lines.iter().filter_map(|line| Some((line["op"].as_u64()?, line))).collect();
    let run = |op: u64, live: &mut HashMap<u64, u64>| {
        let numbers = |field: &str| ops[&op][field].as_array().unwrap().iter().map(|s| s.as_u64().unwrap());
        let made = numbers("ins").fold(op, |sum, s| sum.wrapping_mul(31).wrapping_add(live[&s]));
        live.extend(numbers("outs").map(|s| (s, made)));
    };
    let mut whole = HashMap::from([(0, 7)]);
    (1..=2 * LAYERS).for_each(|op| run(op, &mut whole));
    let (mut live, mut peak, mut replays) = (HashMap::from([(0, 7)]), 0, 0);
    for instruction in plan["instructions"].as_array().unwrap() {
        let op = instruction["op"].as_u64().unwrap();
        run(op, &mut live);
        let scratch = ops[&op]["scratch"].as_u64().unwrap_or(0);
        assert_eq!(instruction["scratch"].is_u64(), scratch > 0);
        peak = peak.max(live.len() as u64 * BYTES + scratch);
        replays += u64::from(instruction["replay"].as_bool().unwrap());
        for freed in instruction["last"].as_array().unwrap() {
            assert!(live.remove(&freed.as_u64().unwrap()).is_some(), "{freed} is freed twice");
        }
    }
    assert_eq!(live[&(2 * LAYERS)], whole[&(2 * LAYERS)]);
    assert!(replays > 0, "half of the memory takes recomputing");
    assert_eq!(peak, plan["peak_bytes"].as_u64().unwrap());
    assert!(peak <= plan["memory_limit_bytes"].as_u64().unwrap());

    // A refusal leaves the file as it was.
    let (is_done, _) = ask(&["--ratio", "0.01", "--out", &out]);
    assert!(!is_done);
    let kept: Value = serde_json::from_slice(&std::fs::read(&out).unwrap()).unwrap();
    assert_eq!(kept, plan);
}
