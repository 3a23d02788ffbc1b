//! Keras files that are trained: what they say of it is followed, or what is named instead.

use crate::common::{Scratch, lines, plimsoll};
use crate::model::{array, data, fixture, floats};

fn expected(archive: &str) -> Vec<f64> {
    floats(&array(archive, "losses").2).into_iter().map(f64::from).collect()
}

/// The losses of single steps, and what was said beside.
fn losses(name: &str, scratch: &Scratch, more: &[&str]) -> (Vec<f64>, String) {
    let (data, file, out) =
        (data(scratch, &format!("{name}.npz")), fixture(&format!("{name}.keras")), scratch.path("run"));
    let _ = std::fs::remove_dir_all(&out);
    let arguments = [
        "train",
        file.to_str().unwrap(),
        "--data",
        &data,
        "--batch",
        "6",
        "--epochs",
        "6",
        "--out",
        &out,
        "--json",
    ];
    let run = plimsoll().args(arguments).args(more).output().unwrap();
    let said = String::from_utf8_lossy(&run.stderr).into_owned();
    assert!(run.status.success(), "{said}");
    let events = String::from_utf8_lossy(&run.stdout).into_owned();
    let events = events.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let epochs = events.filter(|line| line["event"] == "epoch");
    (epochs.map(|line| line["loss"].as_f64().unwrap()).collect(), said)
}

/// Trains a file that a run wrote for one more epoch, alone: its losses tell of the weights, the optimizer's state and its count of steps.
fn goes_on(name: &str, data: &str, scratch: &Scratch) -> Vec<f64> {
    let (from, out) = (scratch.path(&format!("run/{name}.keras")), scratch.path("on"));
    let _ = std::fs::remove_dir_all(&out);
    let words = format!(
        "train {from} --data {data} --batch 6 --epochs 2 --threads 1 --json --metrics none --out {out}"
    );
    let said = lines(&words.split(' ').collect::<Vec<_>>()).unwrap();
    said.iter().filter(|line| line["event"] == "epoch").map(|line| line["loss"].as_f64().unwrap()).collect()
}

fn same_losses(found: &[f64], expected: &[f64], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (a, b) in found.iter().zip(expected) {
        assert!((a - b).abs() <= 1e-5 * (1.0 + b.abs()), "{what}: {found:?} and {expected:?}");
    }
}

#[test]
fn a_keras_file_trains_on_ranks_as_on_one_and_is_written_back_whole() {
    let scratch = Scratch::new("keras-ranks");
    // Adam, momentum beside batch normalization, a product of momentums that all parameters share, and a rule that trains at another point.
    for name in ["mlp", "cnn", "nadam", "free"] {
        let data = data(&scratch, &format!("{name}.npz"));
        let (one, _) = losses(name, &scratch, &["--threads", "1"]);
        let on = goes_on(name, &data, &scratch);
        for (ranks, way) in [
            ("2", "data"),
            ("2", "shard"),
            ("3", "shard"),
            ("2", "parameters"),
            ("3", "parameters"),
            ("2", "tensor"),
            ("2", "pipeline"),
        ] {
            let what = format!("{name}, {way} on {ranks}");
            let mut more = vec!["--threads", "1", "--ranks", ranks, "--parallel", way];
            // The statistics of stages are of the whole batch as they are.
            more.extend((way != "pipeline").then_some("--sync-batch-norm"));
            let (found, _) = losses(name, &scratch, &more);
            same_losses(&found, &one, &what);
            same_losses(&goes_on(name, &data, &scratch), &on, &format!("{what}, after it"));
        }
    }
}

#[test]
fn a_keras_optimizer_that_cannot_be_cut_is_refused_by_what_it_looks_at() {
    let scratch = Scratch::new("keras-uncut");
    let (data, file) = (data(&scratch, "held.npz"), fixture("held.keras"));
    for way in ["shard", "parameters", "tensor"] {
        let out = scratch.path("run");
        let words =
            format!("train {} --data {data} --ranks 2 --parallel {way} --out {out} --json", file.display());
        let why = lines(&words.split(' ').collect::<Vec<_>>()).unwrap_err();
        assert!(why.contains("gradient_accumulation_steps") && why.contains("--parallel data"), "{why}");
        assert!(!std::path::Path::new(&out).join("held.keras").exists(), "{way}");
    }
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-4 * b.abs()
}

#[test]
fn a_files_own_schedule_is_followed_from_where_it_stopped() {
    let scratch = Scratch::new("keras-schedule");
    for name in ["decay", "risen"] {
        let (found, said) = losses(name, &scratch, &[]);
        let expected = expected(&format!("{name}.npz"));
        assert!(
            found.len() == 6 && found.iter().zip(&expected).all(|(a, b)| near(*a, *b)),
            "{found:?} {expected:?}"
        );
        assert!(!said.contains("schedule"), "{said}");
    }
}

#[test]
fn a_rate_alone_changes_the_rate_of_the_files_optimizer() {
    let scratch = Scratch::new("keras-rate");
    let expected = expected("decay.npz");
    // The schedule starts at this rate: the first step is the same, those after it are larger.
    let (found, said) = losses("decay", &scratch, &["--lr", "0.1"]);
    assert!(near(found[0], expected[0]) && near(found[1], expected[1]), "{found:?} {expected:?}");
    assert!(!near(found[3], expected[3]), "{found:?} {expected:?}");
    assert!(said.contains("schedule") && said.contains("--lr"), "{said}");
    // Another schedule takes the place of the file's.
    let (found, said) = losses("decay", &scratch, &["--schedule", "constant"]);
    assert!(near(found[1], expected[1]) && !near(found[3], expected[3]), "{found:?} {expected:?}");
    assert!(said.contains("schedule"), "{said}");
}

#[test]
fn a_legacy_file_is_written_as_one() {
    let scratch = Scratch::new("keras-legacy");
    let (data, out) = (data(&scratch, "legacy.npz"), scratch.path("run"));
    let file = fixture("legacy.h5");
    lines(&["train", file.to_str().unwrap(), "--data", &data, "--epochs", "1", "--out", &out, "--json"])
        .unwrap();
    assert!(!std::path::Path::new(&format!("{out}/legacy.keras")).exists());
    let written = format!("{out}/legacy.h5");
    assert_eq!(std::fs::read(&written).unwrap()[..8], *b"\x89HDF\r\n\x1a\n");
    lines(&["evaluate", &written, "--data", &data, "--json"]).unwrap();
}
