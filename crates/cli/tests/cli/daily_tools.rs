//! Tools of every day from outside: the best checkpoint, early stopping, a list of runs, a learning rate.

use crate::common::{Scratch, bytes, lines, plimsoll};
use serde_json::Value;

/// A rate at which the validation loss falls at first and rises later.
const WILD: [&str; 12] = [
    "train",
    "mlp",
    "--take",
    "400",
    "--batch",
    "40",
    "--validation-split",
    "0.25",
    "--lr",
    "0.05",
    "--json",
    "--out",
];

fn value(line: &Value, name: &str) -> f64 {
    line[name].as_f64().unwrap_or_else(|| panic!("no {name} in {line}"))
}

fn of<'a>(said: &'a [Value], event: &'a str) -> impl Iterator<Item = &'a Value> {
    said.iter().filter(move |line| line["event"] == event)
}

#[test]
fn the_trained_model_is_that_of_the_best_epoch_where_that_is_asked_for() {
    let scratch = Scratch::new("best");
    let out = scratch.path("run");
    let words = [&WILD[..], &[&out, "--epochs", "7", "--best", "val_loss", "--restore-best"]].concat();
    let said = lines(&words).unwrap();
    let losses: Vec<f64> = of(&said, "epoch").map(|epoch| value(epoch, "val_loss")).collect();
    let best = losses.iter().copied().fold(f64::INFINITY, f64::min);
    let told = of(&said, "best").last().unwrap();
    assert_eq!((value(told, "value"), &told["metric"]), (best, &"val_loss".into()), "{told}");
    // Every new best is told, and no other epoch.
    let before = |i: usize| losses[..i].iter().copied().fold(f64::INFINITY, f64::min);
    let falls = losses.iter().enumerate().filter(|(i, loss)| **loss < before(*i)).count();
    assert_eq!(of(&said, "best").count(), falls);
    assert!(
        losses.last() > Some(&best),
        "the last epoch must not be the best, or nothing is shown: {losses:?}"
    );
    assert_eq!(of(&said, "restored").count(), 1);
    let evaluated = lines(&["evaluate", &out, "--json"]).unwrap().pop().unwrap();
    assert_eq!(value(&evaluated, "loss"), best, "{evaluated}");
    assert_eq!(std::fs::read_dir(format!("{out}/best")).unwrap().count(), 1, "one best is kept");
    // It goes on from the last epoch, and knows the best of before.
    let more = lines(&["train", "--resume", "--out", &out, "--epochs", "8", "--json"]).unwrap();
    let again = value(of(&more, "epoch").next().unwrap(), "val_loss");
    assert_eq!(of(&more, "best").count(), usize::from(again < best));
}

#[test]
fn early_stopping_wants_more_than_the_delta() {
    let scratch = Scratch::new("delta");
    let stop = |name: &str, delta: &str| {
        let out = scratch.path(name);
        let words = [
            &WILD[..],
            &[&out, "--epochs", "6", "--early-stopping", "loss", "--patience", "2", "--min-delta", delta],
        ];
        let said = lines(&words.concat()).unwrap();
        (of(&said, "epoch").count(), of(&said, "end").last().unwrap().clone())
    };
    let (epochs, end) = stop("large", "100");
    assert_eq!((epochs, &end["ended"]), (3, &"early-stop".into()), "{end}");
    assert!(end["why"].as_str().is_some_and(|why| why.contains("by more than 100")), "{end}");
    let why = lines(&["train", "mlp", "--best", "val_los", "--take", "64"]).unwrap_err();
    assert!(why.contains("--best val_los: nothing of that name is measured"), "{why}");
}

#[test]
fn runs_stand_side_by_side_with_how_they_ended() {
    let scratch = Scratch::new("runs");
    let all = scratch.path("all");
    for (name, lr, epochs) in [("a-1", "0.01", "2"), ("a-2", "0.0001", "2"), ("a-10", "0.001", "1")] {
        let out = format!("{all}/{name}");
        let words = [
            "train",
            "mlp",
            "--take",
            "200",
            "--batch",
            "20",
            "--validation-split",
            "0.2",
            "-q",
            "--memory",
            "300MiB",
        ];
        let words = [&words[..], &["--lr", lr, "--epochs", epochs, "--out", &out]].concat();
        assert!(plimsoll().args(words).status().unwrap().success());
    }
    std::fs::create_dir_all(format!("{all}/junk")).unwrap();
    std::fs::create_dir_all(format!("{all}/damaged")).unwrap();
    std::fs::write(format!("{all}/damaged/config.toml"), "model = ").unwrap();
    let found = lines(&["runs", &all, "--json"]).unwrap().pop().unwrap();
    let runs = found["runs"].as_array().unwrap();
    let names: Vec<&str> =
        runs.iter().map(|run| run["run"].as_str().unwrap().rsplit('/').next().unwrap()).collect();
    assert_eq!(
        names,
        ["a-1", "a-2", "a-10", "damaged"],
        "2 stands before 10, and what is no run is left out"
    );
    let first = &runs[0];
    assert_eq!(
        (&first["model"], &first["memory"], &first["ended"]),
        (&"mlp".into(), &"300MiB".into(), &"complete".into())
    );
    assert_eq!((bytes(first, "batch"), bytes(first, "epochs"), bytes(first, "of_epochs")), (20, 2, 2));
    assert!(
        bytes(first, "device_peak_bytes") <= 300 << 20 && bytes(first, "planned_bytes") <= 300 << 20,
        "{first}"
    );
    assert!(first["plimsoll"].is_string() && first["last"]["val_loss"].is_number(), "{first}");
    assert_eq!(first["best"]["metric"], "val_loss");
    assert!(runs[3]["problem"].is_string(), "{}", runs[3]);
    let sorted = lines(&["runs", &all, "--by", "val_accuracy", "--json"]).unwrap().pop().unwrap();
    let best: Vec<f64> =
        sorted["runs"].as_array().unwrap().iter().filter_map(|run| run["best"]["value"].as_f64()).collect();
    assert!(best.len() == 3 && best.windows(2).all(|pair| pair[0] >= pair[1]), "{best:?}");
    let said = plimsoll().args(["runs", &all]).output().unwrap();
    let text = String::from_utf8_lossy(&said.stdout);
    assert!(
        text.starts_with("run ") && text.contains("complete") && text.contains("cannot be read"),
        "{text}"
    );
    // A row a run, the damaged one too.
    assert_eq!(text.lines().count(), 1 + runs.len(), "{text}");
    assert!(lines(&["runs", &scratch.path("gone")]).unwrap_err().contains("is not there"));
}

#[test]
fn a_learning_rate_is_suggested_and_nothing_is_written() {
    let scratch = Scratch::new("lr");
    let here = scratch.path("here");
    std::fs::create_dir_all(&here).unwrap();
    let words = ["lr", "mlp", "--batch", "32", "--highest", "10", "--steps", "60", "--json"];
    let out = plimsoll().args(words).current_dir(&here).output().unwrap();
    let found: Value = serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {out:?}"));
    let rate = value(&found, "suggestion");
    assert!((1e-5..0.3).contains(&rate), "{rate}");
    let points = found["points"].as_array().unwrap();
    assert!(
        points.len() > 20 && points.windows(2).all(|pair| value(&pair[0], "rate") < value(&pair[1], "rate"))
    );
    assert_eq!(std::fs::read_dir(&here).unwrap().count(), 0, "no run is begun");
    let why = lines(&["lr", "mlp", "--lowest", "1", "--highest", "0.1"]).unwrap_err();
    assert!(why.contains("from 1 to 0.1"), "{why}");
}

#[test]
fn an_average_of_the_weights_is_planned_kept_and_written() {
    let scratch = Scratch::new("average");
    let plan = |more: &[&str]| {
        let words = ["plan", "mlp", "--batch", "16", "--no-frontier", "--json"];
        lines(&[&words[..], more].concat()).unwrap().pop().unwrap()
    };
    let (plain, averaged) = (plan(&[]), plan(&["--average", "0.9"]));
    let of = |plan: &Value, kind: &str| bytes(&plan["kinds"], kind);
    // Adam keeps two of every weight, and the average is a third.
    let (two, three) = (of(&plain, "optimizer"), of(&averaged, "optimizer"));
    assert!((three as f64 / two as f64 - 1.5).abs() < 0.01, "{two} and {three}");
    let out = scratch.path("run");
    let words = [
        "train",
        "mlp",
        "--take",
        "160",
        "--batch",
        "16",
        "--epochs",
        "1",
        "--average",
        "0.9",
        "-q",
        "--out",
        &out,
    ];
    assert!(plimsoll().args(words).status().unwrap().success());
    let read = |name: &str| std::fs::read(format!("{out}/{name}")).unwrap();
    let (last, average) = (read("model.safetensors"), read("model-average.safetensors"));
    assert!(last.len() == average.len() && last != average);
    // An evaluation of the average in place of the weights: it is a model of the same names.
    std::fs::copy(format!("{out}/model-average.safetensors"), format!("{out}/model.safetensors")).unwrap();
    assert!(value(&lines(&["evaluate", &out, "--json"]).unwrap().pop().unwrap(), "loss") > 0.0);
    let why = lines(&["train", "--resume", "--out", &out, "--average", "0.5", "--epochs", "2"]).unwrap_err();
    assert!(why.contains("--average 0.5"), "{why}");
}
