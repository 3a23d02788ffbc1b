//! Reports of real runs and plans: every record is there, and says what the run said.

use crate::common::{Scratch, bytes, least_of, lines, plimsoll, ran};
use serde_json::Value;

fn json(arguments: &[&str]) -> Value {
    lines(arguments).unwrap_or_else(|e| panic!("{arguments:?}: {e}")).pop().unwrap()
}

#[test]
fn a_run_is_reported_with_all_its_records() {
    let settings = "train cnn --data digits --take 96 --batch 16 --width 4 --epochs 3 --threads 2 --memory 64MiB --fault nan:4";
    let (scratch, run, said) = ran("report-run", settings);
    let record = json(&["report", &run, "--json"]);
    let plan = said.iter().find(|line| line["event"] == "plan").unwrap();
    for field in ["planned_bytes", "floor_bytes", "unlimited_bytes", "memory_limit_bytes", "batch"] {
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
    let line = bytes(plan, "memory_limit_bytes");
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

/// The bytes of all rows of a list.
fn sum(rows: &Value, field: &str) -> u64 {
    rows.as_array().unwrap().iter().filter_map(|row| row[field].as_u64()).sum()
}

fn ms(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no time"))
}

/// Whatever is said twice in a record is said alike.
fn consistent(record: &Value) {
    let (plan, step, run) = (&record["plan"], &record["step"], &record["run"]);
    for field in ["memory_limit_bytes", "planned_bytes", "program_bytes", "pipeline_bytes", "arena_bytes"] {
        assert_eq!(plan[field], step[field], "{field}");
    }
    let parts = ["program_bytes", "pipeline_bytes", "other_bytes", "arena_bytes", "unused_bytes"];
    let held: u64 = parts.iter().map(|field| bytes(step, field)).sum();
    assert_eq!(held + sum(&step["residents"], "bytes"), bytes(plan, "planned_bytes"));
    if step["stretches"].as_array().unwrap().len() == 1 {
        let us: f64 = step["instructions"].as_array().unwrap().iter().map(|i| ms(&i["us"])).sum();
        assert!((us / 1e3 - ms(&plan["predicted_ms"])).abs() < 1e-3, "{us} µs and {plan}");
    }
    // The least is the least, this plan is one of them, and the fastest is the last.
    let points = record["frontier"]["points"].as_array().unwrap_or_else(|| panic!("no frontier"));
    let floor = bytes(plan, "floor_bytes");
    assert!(points.iter().all(|point| bytes(point, "planned_bytes") >= floor), "{floor} and {points:?}");
    assert_eq!(bytes(&points[0], "planned_bytes"), floor, "{points:?}");
    let own = points.iter().find(|point| point["planned_bytes"] == plan["planned_bytes"]);
    let own = own.unwrap_or_else(|| panic!("{plan} is not among {points:?}"));
    assert_eq!(own["predicted_ms"], plan["predicted_ms"]);
    let fastest = points.iter().map(|point| ms(&point["predicted_ms"])).fold(f64::INFINITY, f64::min);
    assert_eq!(fastest, ms(&plan["unlimited_ms"]), "{points:?}");
    // Its own may be beaten, where pipelines took all they wished and others are given less.
    let others: Vec<&Value> = points.iter().filter(|point| *point != own).collect();
    assert!(others.windows(2).all(|p| ms(&p[0]["predicted_ms"]) >= ms(&p[1]["predicted_ms"])), "{points:?}");
    if run.is_null() {
        return;
    }
    let rows = run["ledger"].as_array().unwrap();
    let of_line: Vec<Value> = rows.iter().filter(|row| row["kind"] != "host").cloned().collect();
    let of_line = Value::Array(of_line);
    assert_eq!(sum(&of_line, "planned_bytes"), bytes(plan, "planned_bytes"), "{rows:?}");
    let measured = sum(&of_line, "measured_bytes");
    let peak = bytes(run, "peak_bytes");
    assert!(measured > 0 && measured <= peak, "{measured} are measured where the most was {peak}");
    let last = run["steps"]["resident_peak_bytes"].as_array().unwrap().last().unwrap().as_u64().unwrap();
    assert!(
        peak >= last && plan["memory_limit_bytes"].as_u64().is_none_or(|line| peak <= line),
        "{peak} and {last}"
    );
    let rates = run["steps"]["samples_s"].as_array().unwrap().iter().map(ms);
    let mut each: Vec<f64> = rates.map(|rate| bytes(plan, "batch") as f64 / rate * 1e3).collect();
    each.sort_by(f64::total_cmp);
    assert!((each[each.len() / 2] - ms(&run["measured_ms"])).abs() < 1e-6);
}

#[test]
fn a_report_says_nothing_twice_in_two_ways() {
    let scratch = Scratch::new("report-twice");
    let settings =
        "train unet --data shapes:32:32 --width 8 --depth 2 --batch 8 --epochs 2 --threads 2 --json";
    let train = |name: &str, line: Option<u64>| {
        let (out, line) = (scratch.path(name), line.map(|line| line.to_string()));
        let mut arguments: Vec<&str> = settings.split(' ').chain(["--out", &out]).collect();
        arguments.extend(line.iter().flat_map(|line| ["--memory", line]));
        lines(&arguments).map(|_| out.clone())
    };
    let least = least_of(&train("refused", Some(1 << 20)).unwrap_err());
    for (name, line) in [("tight", Some(least + (3 << 19))), ("free", None)] {
        let run = train(name, line).unwrap_or_else(|e| panic!("{name}: {e}"));
        // By a cache of its own, in which every kernel is timed anew: the run's own times count.
        let elsewhere = scratch.path("cache");
        let report = || {
            let out = plimsoll().env("PLIMSOLL_CACHE", &elsewhere).args(["report", &run, "--json"]).output();
            let out = out.unwrap();
            assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
            serde_json::from_slice::<Value>(&out.stdout).unwrap()
        };
        let record = report();
        consistent(&record);
        assert_eq!(record, report(), "a second report reads what the first one found");
        // What is measured is not what was planned, written down again.
        let rows = record["run"]["ledger"].as_array().unwrap();
        let differs = |row: &&Value| row["measured_bytes"] != row["planned_bytes"];
        for name in ["batches, results and other tensors", "program"] {
            let found =
                rows.iter().filter(|row| row["name"].as_str().is_some_and(|own| own.starts_with(name)));
            assert_eq!(found.filter(differs).count(), 1, "{name} in {rows:?}");
        }
        // The layers are the zoo's: no line of anybody's own code made them, and none of the engine's is named.
        assert_eq!(record["step"]["sites"], serde_json::json!([]));
        // Without its times, or of another plan, other plans are not shown rather than wrong.
        std::fs::remove_dir_all(format!("{run}/times")).unwrap();
        std::fs::remove_file(format!("{run}/frontier.json")).unwrap();
        let out = plimsoll().args(["report", &run, "--json"]).output().unwrap();
        let (said, told) =
            (String::from_utf8_lossy(&out.stderr), serde_json::from_slice::<Value>(&out.stdout));
        assert!(out.status.success() && said.contains("no other plans"), "{said}");
        assert!(told.unwrap()["frontier"].is_null());
    }
}

#[test]
fn a_report_that_cannot_be_made_is_a_sentence_and_leaves_nothing() {
    let scratch = Scratch::new("report-manners");
    let (folder, plan) = (scratch.path("run"), scratch.path("plan.json"));
    let at = |name: &str| format!("{folder}/{name}");
    let refused = |arguments: &[&str]| {
        let out = plimsoll().arg("report").args(arguments).output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert_eq!(out.status.code(), Some(1), "{arguments:?}: {said}");
        assert!(said.starts_with("plimsoll: ") && !said.contains("internal error"), "{said}");
        said
    };
    assert!(refused(&["no/such/run"]).contains("neither the folder of a run"));
    std::fs::create_dir_all(&folder).unwrap();
    assert!(refused(&[&folder]).contains("neither the folder of a run"));
    std::fs::write(at("plan.json"), "{\"planned_bytes\": 5,\n \"batch\": }").unwrap();
    assert!(refused(&[&folder]).contains("plan.json:2:11: "), "{}", refused(&[&folder]));
    std::fs::write(at("plan.json"), "{\"planned_bytes\": 5}").unwrap();
    assert!(refused(&[&folder]).contains("has no step.json"));
    std::fs::write(at("step.json"), "{\"names\": [").unwrap();
    assert!(refused(&[&folder]).contains("step.json:1:"));
    std::fs::write(at("plan.json"), "{\"schema\": 3, \"planned_bytes\": 5}").unwrap();
    assert!(refused(&[&folder]).contains("schema 3"));
    let left: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "{left:?}");
    // A plan that is fine, and places that are not.
    std::fs::write(&plan, "{\"planned_bytes\": 5}").unwrap();
    let (inside, page) = (scratch.path("no/folder/page.html"), scratch.path("page.html"));
    assert!(refused(&[&plan, "-o", &inside]).contains("name another place with --out"));
    assert!(refused(&[&plan, "--perfetto", &inside]).contains("name another place with --perfetto"));
    assert!(refused(&[&plan, "-o", &folder]).contains("there is a folder of that name"));
    assert!(refused(&[&plan, "-o", &plan]).contains("is what is read"));
    assert!(refused(&[&plan, "-o", &page, "--perfetto", &page]).contains("name two"));
    assert_eq!(std::fs::read_to_string(&plan).unwrap(), "{\"planned_bytes\": 5}");
    let left = std::fs::read_dir(std::path::Path::new(&plan).parent().unwrap()).unwrap();
    assert_eq!(left.count(), 2, "only the plan and the folder are there");
}

#[test]
fn what_is_neither_run_nor_plan_is_refused_in_a_sentence() {
    let error = lines(&["report", "no/such/run"]).unwrap_err();
    assert!(error.contains("neither the folder of a run"), "{error}");
}
