//! The memory limit, measured from outside: runs of the command from the least to more than it would like.

use crate::common::{bytes, lines};
use serde_json::Value;

/// The reference case that is measured here.
const CNN: &[&str] =
    &["bench", "cnn", "--data", "random", "--batch", "64", "--metrics", "none", "--steps", "5"];

/// Runs the command with a memory limit or without, and returns its last JSON line.
fn run(arguments: &[&str], memory: Option<u64>) -> Result<Value, String> {
    let memory = memory.map(|bytes| bytes.to_string());
    let mut arguments = [arguments, &["--threads", "2", "--json"]].concat();
    if let Some(memory) = &memory {
        arguments.extend(["--memory", memory]);
    }
    lines(&arguments)?.pop().ok_or_else(|| "nothing was printed".into())
}

/// What the process takes beside its plan is declared for a release build; in others it is measured, and varies by this.
const GRAIN: u64 = if cfg!(debug_assertions) { 2 << 20 } else { 0 };

/// Runs at several limits from the least to what it would like; returns the free run and those with a limit.
fn at_limits(arguments: &[&str], peak: &str) -> (Value, Vec<Value>) {
    let free = run(arguments, None).unwrap();
    let (least, most) = (bytes(&free, "floor_bytes") + GRAIN, bytes(&free, "planned_bytes") + GRAIN);
    let limits = [least, (2 * least + most) / 3, (least + 2 * most) / 3, most];
    let runs = limits.map(|limit| {
        let run = run(arguments, Some(limit)).unwrap();
        let peak = bytes(&run, peak);
        assert!(peak <= limit, "{peak} bytes under a limit of {limit}: {run}");
        run
    });
    let error = run(arguments, Some(least - 1 - 2 * GRAIN)).unwrap_err();
    assert!(error.contains("cannot be kept"), "{error}");
    (free, runs.into())
}

#[test]
fn a_tight_limit_is_kept_by_recomputation_with_the_same_bits() {
    let (free, runs) = at_limits(&[CNN, &["--exact", "bitwise"]].concat(), "peak_bytes");
    for run in &runs {
        assert_eq!(run["losses"], free["losses"]);
        assert_eq!(run["exactness"], "bitwise");
        // Measured: pages that lie in a hole between tensors all the step long are never touched.
        let (arena, found) = (bytes(run, "arena_bytes"), bytes(run, "ledger_bytes"));
        assert!(found <= arena && found >= arena / 10 * 8, "{found} of {arena}");
    }
    let recomputed = |run: &Value| bytes(run, "recomputed_ops");
    assert!(recomputed(&runs[0]) > recomputed(&runs[3]), "{runs:?}");
}

#[test]
fn a_tighter_limit_is_kept_by_micro_batches_up_to_rounding() {
    let (free, runs) = at_limits(CNN, "peak_bytes");
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
fn a_limit_that_cannot_be_kept_is_refused_with_the_least() {
    let error = run(CNN, Some(4 << 20)).unwrap_err();
    for part in
        ["a memory limit of 4 MiB cannot be kept", "the least for this step is", "heaviest", "ways out"]
    {
        assert!(error.contains(part), "{part} is missing in: {error}");
    }
}
