//! The line, measured from outside: runs of the command under budgets from the least to more than it would like.

use std::process::Command;

use serde_json::Value;

/// Trains one epoch of the demo, with a line or without.
fn train(memory: Option<u64>) -> Result<Value, String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    command.args(["train", "--epochs", "1", "--threads", "2", "--json"]);
    if let Some(bytes) = memory {
        command.args(["--memory", &bytes.to_string()]);
    }
    let output = command.output().map_err(|e| e.to_string())?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(text.lines().last().unwrap_or_default()).map_err(|e| format!("{e}: {text}"))
}

fn bytes(run: &Value, field: &str) -> u64 {
    run[field].as_u64().unwrap_or_else(|| panic!("no {field} in {run}"))
}

#[test]
fn every_run_stays_within_its_line_and_learns_the_same() {
    let free = train(None).unwrap();
    // What the process takes beside the plan varies by a few pages from run to run; the least is asked for with that.
    let least = bytes(&free, "floor_bytes") + (2 << 20);
    let most = bytes(&free, "planned_bytes") + (2 << 20);
    let mut recomputed = 0;
    for line in [least, (2 * least + most) / 3, (least + 2 * most) / 3, most] {
        let run = train(Some(line)).unwrap();
        let peak = bytes(&run, "resident_peak_bytes");
        assert!(peak <= line, "{peak} bytes under a line of {line}");
        assert_eq!(run["loss"], free["loss"], "the same bits at {line}");
        assert_eq!(run["test_accuracy"], free["test_accuracy"]);
        recomputed += bytes(&run, "recomputed_ops");
    }
    assert!(recomputed > 0, "a tight line is kept by recomputation");
}

#[test]
fn a_line_that_cannot_be_kept_is_refused_with_the_least() {
    let error = train(Some(4 << 20)).unwrap_err();
    for part in ["a line of 4 MiB cannot be kept", "the least is", "largest"] {
        assert!(error.contains(part), "{part} is missing in: {error}");
    }
}
