//! `plimsoll plan` from outside: the figures that programs read.

use crate::common::{Scratch, bytes, lines};
use serde_json::Value;

/// Plans with the same bits: recomputation always costs time, where a split may be predicted to cost none.
fn plan(arguments: &[&str]) -> Value {
    lines(
        &[&["plan", "cnn", "--batch", "512", "--take", "1024", "--exact", "bitwise", "--json"], arguments]
            .concat(),
    )
    .unwrap()
    .pop()
    .unwrap()
}

#[test]
fn a_plan_says_where_its_memory_goes_and_what_other_limits_would_buy() {
    let free = plan(&[]);
    let floor = bytes(&free, "floor_bytes").to_string();
    for plan in [free, plan(&["--memory", &floor])] {
        assert_eq!(plan["fits"], true);
        let kinds = plan["kinds"].as_object().unwrap();
        let sum: u64 = kinds.values().filter_map(Value::as_u64).sum();
        assert_eq!(sum, bytes(&plan, "planned_bytes"), "{plan}");
        for kind in ["parameter", "optimizer", "activation", "program"] {
            assert!(kinds[kind].as_u64().unwrap() > 0, "{plan}");
        }
        // A model of the zoo: the op has the layer's path, and no line of the engine's own.
        assert!(plan["peak"]["op"].as_str().is_some_and(|op| !op.is_empty()), "{plan}");
        assert!(plan["peak"]["site"].is_null(), "{plan}");
        let cost: f64 = plan["levers"].as_array().unwrap().iter().filter_map(|l| l["cost_ms"].as_f64()).sum();
        let expected = plan["predicted_ms"].as_f64().unwrap() - plan["unlimited_ms"].as_f64().unwrap();
        assert!((cost - expected).abs() < 1e-6, "{plan}");
        let points = plan["frontier"]["points"].as_array().unwrap();
        assert!(points.len() > 2, "{plan}");
        // What is called the least is where it begins, to the byte.
        assert_eq!(bytes(&points[0], "memory_limit_bytes"), bytes(&plan, "floor_bytes"), "{plan}");
        for pair in points.windows(2) {
            assert!(bytes(&pair[0], "planned_bytes") < bytes(&pair[1], "planned_bytes"));
            assert!(pair[0]["predicted_seconds"].as_f64() > pair[1]["predicted_seconds"].as_f64());
        }
    }
}

#[test]
fn a_frontier_that_is_not_wanted_is_not_looked_for() {
    assert!(plan(&["--no-frontier"]).get("frontier").is_none());
}

#[test]
fn limits_stand_side_by_side_and_one_that_is_refused_says_its_least() {
    let compared = plan(&["--compare", "1MiB,64MiB,4GiB"]);
    let limits = compared["compare"].as_array().unwrap();
    assert_eq!(limits.len(), 3);
    assert_eq!((&limits[0]["fits"], bytes(&limits[0], "budget_bytes")), (&Value::Bool(false), 1 << 20));
    let least = bytes(&limits[0], "floor_bytes");
    for at in &limits[1..] {
        assert_eq!(at["fits"], true, "{compared}");
        let planned = bytes(at, "planned_bytes");
        assert!(least <= planned && planned <= bytes(at, "memory_limit_bytes"), "{compared}");
        assert!(at["times_unlimited"].as_f64().unwrap() >= 1.0 - 1e-9, "{compared}");
    }
    assert!(limits[1]["predicted_ms"].as_f64() >= limits[2]["predicted_ms"].as_f64(), "{compared}");
}

#[test]
fn a_refusal_has_ways_out_and_does_not_wait_for_a_frontier() {
    let refused = plan(&["--memory", "1MiB"]);
    assert_eq!(refused["fits"], false);
    assert!(refused.get("frontier").is_none() && bytes(&refused, "floor_bytes") > 1 << 20);
    assert!(refused["why"].as_str().is_some_and(|why| why.contains("ways out")), "{refused}");
}

#[test]
fn a_refusal_is_an_error_to_whoever_asked_for_a_file() {
    let scratch = Scratch::new("plan-out");
    let file = scratch.path("plan.json");
    let error = lines(&["plan", "cnn", "--memory", "1MiB", "--out", &file]).unwrap_err();
    assert!(error.contains("the least for this step is") && !std::path::Path::new(&file).exists(), "{error}");
    lines(&["plan", "cnn", "--no-frontier", "--json", "--out", &file]).unwrap();
    assert!(std::path::Path::new(&file).exists());
}

#[test]
fn a_step_is_planned_for_a_card_that_is_not_here() {
    let plan = |more: &[&str]| {
        let words = "plan gpt2 --classes 50304 --optimizer adamw --lr 3e-4 --device h200 --precision mixed-bf16 --no-frontier --json";
        // The record is of a step without metrics.
        let words: Vec<&str> = words.split(' ').chain(["--metrics", ""]).collect();
        lines(&[&words[..], more].concat()).map(|mut lines| lines.pop().unwrap())
    };
    // What a run of this very step took on such a card: 8.65 GB and 34.4 ms.
    let free = plan(&["--batch", "16"]).unwrap();
    let (planned, ms) = (bytes(&free, "planned_bytes") as f64, free["predicted_ms"].as_f64().unwrap());
    assert!((planned / 8.65e9 - 1.0).abs() < 0.03 && (ms / 34.4 - 1.0).abs() < 0.05, "{free}");
    // What is recorded is this step; of others that are looked at beside it, in micro-batches, some are scaled from like ones.
    assert!(6 * bytes(&free, "estimated_kernels") < bytes(&free, "kernels"), "{free}");
    let half = (bytes(&free, "planned_bytes") / 2).to_string();
    let tight = plan(&["--batch", "16", "--memory", &half]).unwrap();
    assert!(tight["predicted_ms"].as_f64().unwrap() <= 1.2 * ms, "{tight}");
    // A batch that was not recorded is scaled from those that were: more samples take longer and more memory.
    let more = plan(&["--batch", "24"]).unwrap();
    assert!(
        bytes(&more, "estimated_kernels") > 0 && more["predicted_ms"].as_f64().unwrap() > 1.2 * ms,
        "{more}"
    );
    let copied = plan(&["--batch", "16", "--memory", &half, "--host-memory", "32GiB"]).unwrap();
    assert!(copied["predicted_ms"].as_f64() <= tight["predicted_ms"].as_f64(), "{copied}");
    // Below what its state takes on the card, the state is on the host.
    let low = (bytes(&tight, "floor_bytes") - (500 << 20)).to_string();
    let refusal = plan(&["--batch", "16", "--memory", &low]).unwrap();
    assert!(refusal["fits"] == false && refusal["ways"].to_string().contains("host memory"), "{refusal}");
    let hosted = plan(&["--batch", "16", "--memory", &low, "--host-memory", "2GiB"]).unwrap();
    assert!(bytes(&hosted, "offloaded_copies") > 0 && bytes(&hosted, "hosted_bytes") > 400 << 20, "{hosted}");
    assert!(bytes(&hosted, "host_bytes") <= 2 << 30, "{hosted}");
    // Everything of the host is counted within its limit, and what cannot be is refused with the least.
    let parts = ["host_program_bytes", "host_pipeline_bytes", "host_staging_bytes", "host_bytes"];
    let sum: u64 = parts.iter().map(|part| bytes(&hosted, part)).sum();
    assert_eq!(sum, bytes(&hosted, "host_planned_bytes"), "{hosted}");
    assert!(sum <= 2 << 30 && bytes(&hosted, "host_limit_bytes") == 2 << 30, "{hosted}");
    assert!(bytes(&hosted, "host_program_bytes") > 700 << 20, "{hosted}");
    let refused = plan(&["--batch", "16", "--host-memory", "500MiB"]).unwrap();
    let least = bytes(&refused, "host_floor_bytes");
    assert!(refused["fits"] == false && least > 700 << 20, "{refused}");
    assert!(
        refused["why"].as_str().unwrap().starts_with("a host memory limit of 500 MiB cannot be kept"),
        "{refused}"
    );
    let kept = plan(&["--batch", "16", "--host-memory", &least.to_string()]).unwrap();
    assert!(kept["fits"] == true && bytes(&kept, "host_planned_bytes") <= least, "{kept}");
    // Nobody named a limit, and the machine of a recorded card is not known: what is planned is said all the same.
    assert!(free["host_limit_bytes"].is_null() && bytes(&free, "host_planned_bytes") > 700 << 20, "{free}");
}

#[test]
fn what_is_no_record_of_a_card_is_refused_by_name() {
    let scratch = Scratch::new("record");
    let file = scratch.path("mine.times");
    std::fs::create_dir_all(std::path::Path::new(&file).parent().unwrap()).unwrap();
    std::fs::write(&file, "plimsoll kernel times 1\n").unwrap();
    for (device, expected) in
        [("b300", "there is no device b300"), ("gone.times", "there is no file"), (&file, "record it anew")]
    {
        let error = lines(&["plan", "cnn", "--device", device]).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
}
