//! Where ops run: layers by name, what a card has no kernel for, and the log of it.

use crate::common::{Scratch, lines, plimsoll};
use serde_json::Value;

/// The placement log of a plan for a card that is not here.
fn placed(more: &[&str]) -> (Value, Vec<Value>) {
    let words =
        ["plan", "mlp", "--batch", "8", "--device", "h200", "--no-frontier", "--log-placement", "--json"];
    let line = lines(&[&words[..], more].concat()).unwrap().remove(0);
    let placed = line["placement"].as_array().unwrap().clone();
    (line, placed)
}

#[test]
fn layers_by_name_are_on_the_device_that_was_asked_for_and_the_rest_is_not() {
    let (plain, all) = placed(&[]);
    assert!(!all.is_empty() && all.iter().all(|line| line["device"] != "cpu"), "{all:?}");
    let layer = |line: &Value| line["layer"].as_str().unwrap().split('/').next().unwrap().to_string();
    let first = all.iter().find(|line| line["op"] == "matmul").map(layer).unwrap();
    let (line, all) = placed(&["--place", &format!("{first}=cpu,nobody=cpu")]);
    let is_host = |line: &&Value| line["device"] == "cpu";
    assert!(all.iter().any(|line| is_host(&line)), "{all:?}");
    for line in &all {
        let is_asked = layer(line) == first && line["why"] != "a view of its input";
        assert_eq!(is_host(&line), is_asked, "{line}");
    }
    let said = line["remark"].as_str().unwrap();
    assert!(said.contains("on the host") && said.contains("no layer is called nobody"), "{said}");
    assert!(line["host_bytes"].as_u64() > plain["host_bytes"].as_u64(), "the host's side is planned");
    assert!(line["predicted_ms"].as_f64() > plain["predicted_ms"].as_f64(), "copies take time");
}

#[test]
fn wishes_that_cannot_be_met_are_errors_or_softly_met() {
    let refused = |more: &[&str]| {
        let words = ["plan", "mlp", "--batch", "8", "--no-frontier", "--log-placement"];
        let output = plimsoll().args(words).args(more).output().unwrap();
        (
            output.status.success(),
            String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned(),
        )
    };
    let (is_done, said) = refused(&["--place", "*=cuda:3"]);
    assert!(!is_done && said.contains("asks for cuda:3, and this runs on cpu"), "{said}");
    let (is_done, said) = refused(&["--place", "*=cuda:3", "--soft-placement"]);
    assert!(is_done && said.contains("asked for cuda:3, which this step has not; soft placement"), "{said}");
    assert!(said.contains("where ops run:") && said.contains("matmul on cpu"), "{said}");
    let (is_done, said) = refused(&["--place", "dense"]);
    assert!(!is_done && said.contains("name a layer and its device, as in embed=cpu"), "{said}");
}

#[test]
fn a_run_on_the_cpu_is_the_same_with_layers_asked_for_there() {
    let scratch = Scratch::new("placed-run");
    let train = |name: &str, more: &[&str]| {
        let out = scratch.path(name);
        let words =
            ["train", "mlp", "--take", "64", "--batch", "16", "--epochs", "1", "--json", "--out", &out];
        let said = lines(&[&words[..], more].concat()).unwrap();
        said.into_iter().find(|line| line["event"] == "epoch").unwrap()["loss"].clone()
    };
    assert_eq!(train("plain", &[]), train("placed", &["--place", "*=cpu"]));
}
