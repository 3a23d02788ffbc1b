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

#[test]
fn a_keras_file_trains_on_ranks_as_on_one() {
    let scratch = Scratch::new("keras-ranks");
    let (one, _) = losses("mlp", &scratch, &["--threads", "1"]);
    for ranks in ["2", "3"] {
        let (found, _) = losses("mlp", &scratch, &["--threads", "1", "--ranks", ranks]);
        assert_eq!(found.len(), one.len());
        for (a, b) in found.iter().zip(&one) {
            assert!((a - b).abs() <= 1e-5 * (1.0 + b.abs()), "{ranks} ranks: {found:?} and {one:?}");
        }
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
