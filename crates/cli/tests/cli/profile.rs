//! `--profile`: what steps took, in a table, in files, in the report, and inside the memory limit.

use std::collections::HashSet;

use crate::common::{Scratch, bytes, lines, lines_inside, plimsoll};
use plimsoll_testing::needs;
use serde_json::Value;

/// The whole of a step, in milliseconds, and the parts that it consists of.
fn whole_and_parts(mean: &Value) -> (f64, f64) {
    let ms = |name: &str| mean[name].as_f64().unwrap_or_else(|| panic!("no {name} in {mean}"));
    let parts = ["kernel_ms", "copy_ms", "await_ms", "check_ms", "between_ms"];
    (ms("step_ms"), parts.iter().map(|name| ms(name)).sum())
}

#[test]
fn a_profiled_run_has_a_table_a_trace_and_a_section_of_its_report() {
    let scratch = Scratch::new("profiled-run");
    let out = scratch.path("run");
    // 320 samples are 20 steps, of which those after the first are measured.
    let words =
        ["train", "mlp", "--take", "320", "--batch", "16", "--epochs", "1", "--out", &out, "--profile", "6"];
    let said = lines(&[&words[..], &["--json"]].concat()).unwrap();
    let line = said.iter().find(|line| line["event"] == "profile").unwrap();
    assert_eq!((bytes(line, "profiled"), bytes(line, "asked"), bytes(line, "first_step")), (6, 6, 2));
    let (step, parts) = whole_and_parts(&line["mean"]);
    assert!(step > 0.0 && (step - parts).abs() < 1e-6 * step, "{step} and {parts}");
    let rows = line["rows"].as_array().unwrap();
    let calls: u64 = rows.iter().map(|row| bytes(row, "count")).sum();
    let trace: Value =
        serde_json::from_str(&std::fs::read_to_string(format!("{out}/profile.trace.json")).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let of_instructions = events.iter().filter(|e| e["ph"] == "X" && e["cat"] != "step").count();
    assert_eq!(of_instructions as u64, calls, "as many events as the table counts");
    let names: HashSet<&str> = rows.iter().filter_map(|row| row["name"].as_str()).collect();
    let op = |event: &Value| event["name"].as_str().unwrap().rsplit('/').next().unwrap().to_string();
    assert!(events.iter().filter(|e| e["cat"] == "run").all(|e| names.contains(op(e).as_str())));
    // The rest of what a run says is there too, and nothing is copied to the CPU.
    let epoch = said.iter().find(|line| line["event"] == "epoch").unwrap();
    assert_eq!((bytes(epoch, "uploaded_bytes"), bytes(epoch, "downloaded_bytes")), (0, 0));
    let report = plimsoll().args(["report", &out, "--json"]).output().unwrap();
    let record: Value = serde_json::from_slice(&report.stdout).unwrap();
    assert_eq!(record["profile"]["steps"].as_array().unwrap().len(), 6);
    let n = record["step"]["instructions"].as_array().unwrap().len();
    assert_eq!(record["profile"]["instructions_us"].as_array().unwrap().len(), n);
    assert!(plimsoll().args(["report", &out]).output().unwrap().status.success());
    let page = std::fs::read_to_string(format!("{out}/report.html")).unwrap();
    assert!(page.contains("Where the time goes") && page.contains("instructions_us"));
}

#[test]
fn a_table_is_printed_and_more_steps_than_the_run_has_are_told() {
    let scratch = Scratch::new("profiled-text");
    let words = ["train", "mlp", "--take", "64", "--batch", "16", "--epochs", "1", "--profile", "50"];
    let out = scratch.path("run");
    let output = plimsoll().args([&words[..], &["--out", &out]].concat()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains("profile of 4 steps (1 to 4) on cpu; 50 were asked for"), "{text}");
    for said in ["a step took", "the host waited", "memory:", "mean µs", "ui.perfetto.dev"] {
        assert!(text.contains(said), "{said} is not in\n{text}");
    }
    for words in [&words[..8], &["bench", "mlp", "--batch", "4"]] {
        let output = plimsoll().args(words).args(["--profile", "0"]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("--profile 0 measures nothing"), "{said}");
    }
}

#[test]
fn a_profiled_run_keeps_its_memory_limit() {
    let scratch = Scratch::new("profiled-limit");
    let words =
        ["train", "mlp", "--take", "640", "--batch", "64", "--epochs", "2", "--json", "--profile", "10"];
    let least = |name: &str, more: &[&str]| {
        let out = scratch.path(name);
        let said = lines(&[&words[..], more, &["--out", &out]].concat()).unwrap();
        bytes(said.iter().rfind(|line| line["event"] == "epoch").unwrap(), "floor_bytes")
    };
    let limit = least("free", &[]);
    let (out, memory) = (scratch.path("least"), limit.to_string());
    let said = lines_inside(limit, &[&words[..], &["--memory", &memory, "--out", &out]].concat()).unwrap();
    let epoch = said.iter().rfind(|line| line["event"] == "epoch").unwrap();
    assert!(bytes(epoch, "resident_peak_bytes") <= limit, "{epoch}");
    let ledger = std::fs::read_to_string(format!("{out}/ledger.json")).unwrap();
    assert!(said.iter().any(|line| line["event"] == "profile" && line["profiled"] == 10));
    assert!(!ledger.contains("\"profile\""), "it was taken before the ledger was written");
}

#[test]
fn a_bench_is_profiled_behind_what_it_measures() {
    let scratch = Scratch::new("profiled-bench");
    let out = scratch.path("plan.json");
    let words = ["bench", "mlp", "--batch", "16", "--steps", "3", "--json", "--out", &out, "--profile"];
    let said = lines(&words).unwrap();
    let profile = &said[0]["profile"];
    assert_eq!((bytes(profile, "profiled"), bytes(&said[0], "steps")), (10, 3));
    assert_eq!((bytes(&said[0], "uploaded_bytes"), bytes(&said[0], "downloaded_bytes")), (0, 0));
    let trace = profile["trace"].as_str().unwrap();
    assert_eq!(trace, scratch.path("plan.trace.json"));
    assert!(serde_json::from_str::<Value>(&std::fs::read_to_string(trace).unwrap()).is_ok());
    let report = plimsoll().args(["report", &out, "--json"]).output().unwrap();
    let record: Value = serde_json::from_slice(&report.stdout).unwrap();
    assert_eq!(record["profile"]["steps"].as_array().unwrap().len(), 10);
    // The losses are those of a bench without it.
    let plain = lines(&words[..7]).unwrap();
    assert_eq!(plain[0]["losses"], said[0]["losses"]);
    assert!(plain[0]["profile"].is_null());
}

/// Whether there is a card, or a line that says that there is none.
fn has_card() -> bool {
    let found = std::process::Command::new("nvidia-smi").arg("-L").output();
    needs("card", found.is_ok_and(|said| said.status.success()), "nvidia-smi does not answer")
}

#[test]
fn on_a_card_kernels_add_up_to_the_step() {
    if !has_card() {
        return;
    }
    let model = "bench gpt2 --classes 50304 --optimizer adamw --lr 3e-4 --batch 4 --precision mixed-bf16 --data random";
    let words: Vec<&str> = model
        .split(' ')
        .chain(["--metrics", "none", "--device", "cuda", "--json", "--profile", "10"])
        .collect();
    let said = lines(&words).unwrap();
    let (line, profile) = (&said[0], &said[0]["profile"]);
    let mean = &profile["mean"];
    let (step, parts) = whole_and_parts(mean);
    let between = mean["between_ms"].as_f64().unwrap();
    println!("step {step} ms, plain {} ms, {mean}", line["ms"]);
    assert!((step - parts).abs() < 1e-6 * step, "{step} and {parts}");
    assert!(between >= 0.0 && between < 0.03 * step, "{between} of {step} ms are not known: {mean}");
    let kernels = mean["kernel_ms"].as_f64().unwrap();
    assert!(kernels > 0.9 * step, "{kernels} of {step} ms are kernels: {mean}");
    // The batch is on the card, and each step reads its loss.
    assert!(mean["downloaded_bytes"].as_f64().unwrap() > 0.0, "{mean}");
    let rows = profile["rows"].as_array().unwrap();
    assert!(rows.iter().any(|row| row["name"] == "matmul"), "{rows:?}");
}

#[test]
fn on_a_card_copies_beside_kernels_have_times_and_bytes() {
    if !has_card() {
        return;
    }
    let model = "bench gpt2 --classes 50304 --optimizer adamw --lr 3e-4 --batch 4 --precision mixed-bf16 --data random";
    let more = "--metrics none --device cuda --json --profile 5 --host-memory 32GiB --exact bitwise --memory";
    let words: Vec<&str> = model.split(' ').chain(more.split(' ')).collect();
    let free: Vec<&str> = words[..words.len() - 1].to_vec();
    let floor = bytes(&lines(&free).unwrap()[0], "floor_bytes").to_string();
    let said = lines(&[&words[..], &[&floor]].concat()).unwrap();
    let (line, profile) = (&said[0], &said[0]["profile"]);
    assert!(bytes(line, "offloaded_copies") > 0, "{line}");
    assert!(bytes(line, "device_bytes") <= floor.parse().unwrap(), "{line}");
    let mean = &profile["mean"];
    assert!(
        mean["beside_ms"].as_f64().unwrap() > 0.0 && mean["uploaded_bytes"].as_f64().unwrap() > 0.0,
        "{mean}"
    );
    let (up, down) = (mean["uploaded_bytes"].as_f64().unwrap(), mean["downloaded_bytes"].as_f64().unwrap());
    // What the plan says a step copies there is what was counted, but for the loss.
    assert!((down - bytes(line, "offloaded_bytes") as f64).abs() < 1024.0, "{down} and {line}");
    println!("up {up} down {down} {mean}");
    let rows = profile["rows"].as_array().unwrap();
    let copy = rows.iter().find(|row| row["what"] == "prefetch").unwrap();
    assert!(copy["total_ms"].as_f64().unwrap() > 0.0 && bytes(copy, "bytes") > 0, "{copy}");
}
