//! The line, measured from outside: runs of the command under budgets from the least to more than it would like.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// Runs the command with a line or without, and returns its last JSON line.
fn run(arguments: &[&str], memory: Option<u64>) -> Result<Value, String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    command.args(arguments).args(["--threads", "2", "--json"]);
    // Kernels' times are kept from run to run of a test, so that they plan alike, and apart from those of the user.
    let thread = std::thread::current();
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join(thread.name().unwrap_or("line"));
    command.env("PLIMSOLL_CACHE", cache);
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

/// Runs at several lines from the least to what it would like; returns the free run and those under a line.
fn at_lines(arguments: &[&str], peak: &str) -> (Value, Vec<Value>) {
    let free = run(arguments, None).unwrap();
    let (least, most) = (bytes(&free, "floor_bytes"), bytes(&free, "planned_bytes"));
    let lines = [least, (2 * least + most) / 3, (least + 2 * most) / 3, most];
    let runs = lines.map(|line| {
        let run = run(arguments, Some(line)).unwrap();
        let peak = bytes(&run, peak);
        assert!(peak <= line, "{peak} bytes under a line of {line}: {run}");
        run
    });
    let error = run(arguments, Some(least - 1)).unwrap_err();
    assert!(error.contains("cannot be kept"), "{error}");
    (free, runs.into())
}

#[test]
fn training_under_a_line_gives_the_same_bits() {
    // Batch norm is not split unless that is allowed, so every plan is one of the same bits.
    let (free, runs) = at_lines(&["train", "--epochs", "1"], "resident_peak_bytes");
    for run in runs {
        assert_eq!(run["loss"], free["loss"]);
        assert_eq!(run["test_accuracy"], free["test_accuracy"]);
    }
}

#[test]
fn a_tight_line_is_kept_by_recomputation_with_the_same_bits() {
    let (free, runs) = at_lines(&["bench", "cnn", "--steps", "5", "--exact", "bitwise"], "peak_bytes");
    for run in &runs {
        assert_eq!(run["losses"], free["losses"]);
        assert_eq!(run["exactness"], "bitwise");
        assert_eq!(run["ledger_bytes"], run["arena_bytes"]);
    }
    let recomputed = |run: &Value| bytes(run, "recomputed_ops");
    assert!(recomputed(&runs[0]) > recomputed(&runs[3]), "{runs:?}");
}

#[test]
fn a_tighter_line_is_kept_by_micro_batches_up_to_rounding() {
    let (free, runs) = at_lines(&["bench", "cnn", "--steps", "5"], "peak_bytes");
    assert!(bytes(&runs[0], "micro_batches") > 1, "{}", runs[0]);
    for run in &runs {
        let losses = |run: &Value| -> Vec<f64> { serde_json::from_value(run["losses"].clone()).unwrap() };
        for (a, b) in losses(run).into_iter().zip(losses(&free)) {
            let close =
                if bytes(run, "micro_batches") > 1 { (a - b).abs() <= 1e-4 * b.abs() } else { a == b };
            assert!(close, "{a} and {b}: {run}");
        }
    }
}

#[test]
fn a_line_that_cannot_be_kept_is_refused_with_the_least() {
    let error = run(&["train"], Some(4 << 20)).unwrap_err();
    for part in ["a line of 4 MiB (4194304 bytes) cannot be kept", "the least is", "heaviest", "ways out"] {
        assert!(error.contains(part), "{part} is missing in: {error}");
    }
}
