//! `--batch auto` from outside: batch sizes that a memory limit holds.

use crate::common::{Scratch, bytes, lines};
use serde_json::Value;

fn last(arguments: &[&str]) -> Result<Value, String> {
    lines(arguments).map(|mut lines| lines.pop().unwrap())
}

#[test]
fn a_limit_is_filled_whole_split_and_as_fast_as_can_be_and_each_has_its_plan() {
    let floor =
        bytes(&last(&["plan", "cnn", "--batch", "1024", "--no-frontier", "--json"]).unwrap(), "floor_bytes");
    let limit = floor.to_string();
    let words = ["plan", "cnn", "--memory", &limit, "--no-frontier", "--json", "--batch"];
    let found = last(&[&words[..], &["auto"]].concat()).unwrap();
    let auto = &found["batch_auto"];
    let (whole, split, fastest) = (&auto["whole"], &auto["split"], &auto["fastest"]);
    assert!(bytes(whole, "batch") < bytes(split, "batch"), "{auto}");
    // It is found to within a sixteenth.
    assert!(bytes(split, "batch") * 16 >= 1024 * 15, "this very batch was split into the limit: {auto}");
    assert_eq!((bytes(whole, "micro_batches"), bytes(auto, "looked_at") < 60), (1, true), "{auto}");
    assert!(bytes(split, "micro_batches") > 1, "{auto}");
    for plan in [whole, split, fastest] {
        assert!(bytes(plan, "planned_bytes") <= floor, "{auto}");
        let (ms, samples) = (plan["predicted_ms"].as_f64().unwrap(), bytes(plan, "batch") as f64);
        assert!((plan["samples_s"].as_f64().unwrap() * ms / 1e3 / samples - 1.0).abs() < 1e-6, "{auto}");
        assert!(
            plan["samples_s"].as_f64().unwrap() <= 1.02 * fastest["samples_s"].as_f64().unwrap(),
            "{auto}"
        );
    }
    // What is printed is the plan of the fastest, as if its size had been named.
    let named = last(&[&words[..], &[&bytes(fastest, "batch").to_string()]].concat()).unwrap();
    assert_eq!(named["planned_bytes"], found["planned_bytes"]);
    assert_eq!(found["batch"], fastest["batch"]);
    // The largest of each kind is nearly the largest: a fourteenth more does not fit.
    let more = |plan: &Value| (bytes(plan, "batch") * 15 / 14 + 1).to_string();
    let refused = last(&[&words[..], &[&more(whole), "--exact", "bitwise"]].concat()).unwrap();
    assert_eq!(refused["fits"], false, "{refused}");
}

#[test]
fn training_takes_the_fastest_says_so_and_keeps_it() {
    let scratch = Scratch::new("batch-auto");
    let out = scratch.path("run");
    let words = [
        "train", "mlp", "--take", "256", "--epochs", "1", "--memory", "300MiB", "--batch", "auto", "--out",
        &out, "--json",
    ];
    let said = lines(&words).unwrap();
    let batch = bytes(&said[0], "batch");
    assert_eq!(Some(batch), said[0]["batch_auto"]["fastest"]["batch"].as_u64(), "{}", said[0]);
    assert!(batch <= 256, "no batch is larger than the data");
    let kept = std::fs::read_to_string(format!("{out}/config.toml")).unwrap();
    assert!(kept.contains(&format!("batch = {batch}\n")), "{kept}");
    // It goes on with the same batch, and not with another search.
    let more = lines(&["train", "--resume", "--out", &out, "--epochs", "2", "--json"]).unwrap();
    let begun = more.iter().find(|line| line["event"] == "run").unwrap();
    assert_eq!(bytes(begun, "batch"), batch);
    assert!(begun.get("batch_auto").is_none());
}

#[test]
fn without_a_limit_there_is_nothing_to_fill() {
    for command in ["train", "plan", "bench"] {
        let why = last(&[command, "cnn", "--batch", "auto"]).unwrap_err();
        assert!(why.contains("--batch auto fills a memory limit, and there is none"), "{why}");
    }
    assert!(
        last(&["inspect", "cnn", "--batch", "auto", "--memory", "1GiB"]).unwrap_err().contains("inspect")
    );
    let refused = last(&["plan", "cnn", "--batch", "auto", "--memory", "1MiB", "--json"]).unwrap();
    assert_eq!((&refused["fits"], &refused["batch"]), (&false.into(), &1.into()), "{refused}");
}
