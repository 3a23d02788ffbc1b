//! The line, measured from outside: runs of the command under budgets from the least to more than it would like.

use std::process::Command;

use serde_json::Value;

/// Runs the command with a line or without, and returns its last JSON line.
fn run(arguments: &[&str], memory: Option<u64>) -> Result<Value, String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    command.args(arguments).args(["--threads", "2", "--json"]);
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

/// What the process takes beside its plan varies by this much from run to run; the least is asked for with it.
const GRAIN: u64 = 2 << 20;

/// Runs at several lines; returns the free run and, for each line, the line and its run.
fn at_lines(arguments: &[&str], peak: &str) -> (Value, Vec<Value>) {
    let free = run(arguments, None).unwrap();
    let (least, most) = (bytes(&free, "floor_bytes") + GRAIN, bytes(&free, "planned_bytes") + GRAIN);
    let lines = [least, (2 * least + most) / 3, (least + 2 * most) / 3, most];
    let runs = lines.map(|line| {
        let run = run(arguments, Some(line)).unwrap();
        let peak = bytes(&run, peak);
        assert!(peak <= line, "{peak} bytes under a line of {line}: {run}");
        run
    });
    (free, runs.into())
}

#[test]
fn training_under_a_line_gives_the_same_bits() {
    let (free, runs) = at_lines(&["train", "--epochs", "1"], "resident_peak_bytes");
    for run in runs {
        assert_eq!(run["loss"], free["loss"]);
        assert_eq!(run["test_accuracy"], free["test_accuracy"]);
    }
}

#[test]
fn a_tight_line_is_kept_by_recomputation() {
    // No seconds: the least number of steps, the same in every run, so that losses can be compared.
    let (free, runs) = at_lines(&["bench", "cnn", "--seconds", "0"], "peak_bytes");
    for run in &runs {
        assert_eq!(run["loss"], free["loss"]);
    }
    let recomputed = |run: &Value| bytes(run, "recomputed_ops");
    assert!(recomputed(&runs[0]) > recomputed(&runs[3]), "{runs:?}");
}

#[test]
fn a_line_that_cannot_be_kept_is_refused_with_the_least() {
    let error = run(&["train"], Some(4 << 20)).unwrap_err();
    for part in ["a line of 4 MiB cannot be kept", "the least is", "largest", "conv1b"] {
        assert!(error.contains(part), "{part} is missing in: {error}");
    }
}
