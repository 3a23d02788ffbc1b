//! Reports of real runs and plans: every record is there, and says what the run said.

use crate::common::{Scratch, bytes, lines, plimsoll};
use serde_json::Value;

fn json(arguments: &[&str]) -> Value {
    lines(arguments).unwrap_or_else(|e| panic!("{arguments:?}: {e}")).pop().unwrap()
}

#[test]
fn a_run_is_reported_with_all_its_records() {
    let scratch = Scratch::new("report-run");
    let run = scratch.path("run");
    let settings = "train cnn --data digits --take 96 --batch 16 --width 4 --epochs 3 --threads 2 --memory 64MiB --fault nan:4 --json --out";
    let mut arguments: Vec<&str> = settings.split(' ').collect();
    arguments.push(&run);
    let said = lines(&arguments).unwrap();
    let record = json(&["report", &run, "--json"]);
    let plan = said.iter().find(|line| line["event"] == "plan").unwrap();
    for field in ["planned_bytes", "floor_bytes", "unlimited_bytes", "line_bytes", "batch"] {
        assert_eq!(bytes(&record["plan"], field), bytes(plan, field), "{field}");
    }
    let step = &record["step"];
    let (tensors, n) = (step["tensors"].as_array().unwrap(), step["instructions"].as_array().unwrap().len());
    let held = |t: usize| {
        let there = |x: &&Value| bytes(x, "from") as usize <= t && t < bytes(x, "to") as usize;
        tensors.iter().filter(there).map(|x| bytes(x, "bytes")).sum::<u64>()
    };
    assert_eq!((0..n).map(held).max().unwrap(), bytes(&record["plan"], "live_bytes"));
    // One of 18 steps was left out; every other one has a line.
    let steps = &record["run"]["steps"];
    assert_eq!(steps["step"], serde_json::json!((1..=17).collect::<Vec<u64>>()));
    let line = bytes(plan, "line_bytes");
    assert!(
        steps["resident_peak_bytes"].as_array().unwrap().iter().all(|peak| peak.as_u64().unwrap() <= line)
    );
    let events: Vec<&str> =
        record["run"]["events"].as_array().unwrap().iter().filter_map(|e| e["event"].as_str()).collect();
    assert_eq!(events, ["started", "rehearsed", "skipped", "saved", "saved", "saved", "ended"]);
    assert_eq!(record["run"]["epochs"].as_array().unwrap().len(), 3);
    let ledger = record["run"]["ledger"].as_array().unwrap();
    let arena = ledger.iter().find(|row| row["name"] == "arena").unwrap();
    assert_eq!(bytes(arena, "planned_bytes"), bytes(&record["plan"], "arena_bytes"));
    assert!(!record["frontier"]["points"].as_array().unwrap().is_empty());
    // A page that holds the record, and a trace with a slice for every instruction.
    let (page, trace) = (scratch.path("report.html"), scratch.path("trace.json"));
    assert!(plimsoll().args(["report", &run, "-o", &page]).output().unwrap().status.success());
    let page = std::fs::read_to_string(page).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.contains("\"model\":\"cnn\""));
    assert!(plimsoll().args(["report", &run, "--perfetto", &trace]).output().unwrap().status.success());
    let trace: Value = serde_json::from_str(&std::fs::read_to_string(trace).unwrap()).unwrap();
    let slices = trace["traceEvents"].as_array().unwrap().iter().filter(|e| e["ph"] == "X");
    assert_eq!(slices.count(), n);
}

#[test]
fn a_plan_is_reported_before_anything_was_run() {
    let scratch = Scratch::new("report-plan");
    let plan = scratch.path("plan.json");
    let said = json(&["plan", "cnn", "--batch", "32", "--json", "--out", &plan]);
    let record = json(&["report", &plan, "--json"]);
    for field in ["planned_bytes", "floor_bytes", "unlimited_bytes", "arena_bytes", "live_bytes"] {
        assert_eq!(bytes(&record["plan"], field), bytes(&said, field), "{field}");
    }
    assert!(record["run"].is_null());
    let points = record["frontier"]["points"].as_array().unwrap();
    assert!(points.windows(2).all(|p| bytes(&p[0], "planned_bytes") < bytes(&p[1], "planned_bytes")));
    let out = plimsoll().args(["report", &plan]).output().unwrap();
    assert!(
        out.status.success() && scratch.path("plan.html").parse::<std::path::PathBuf>().unwrap().is_file()
    );
}

#[test]
fn what_is_neither_run_nor_plan_is_refused_in_a_sentence() {
    let error = lines(&["report", "no/such/run"]).unwrap_err();
    assert!(error.contains("neither the folder of a run"), "{error}");
}
