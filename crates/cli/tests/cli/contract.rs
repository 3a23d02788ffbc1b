//! The contract, measured from outside: every model of the zoo, from all it would like down to its least.

use crate::common::{Scratch, bytes, least_of, lines, lines_inside, ran};
use serde_json::Value;

/// Reduced sizes for a CPU, with data that fits the model.
const MODELS: &[(&str, &str)] = &[
    ("mlp", "--data digits --width 64 --batch 32"),
    ("cnn", "--data digits --width 8 --batch 32"),
    ("resnet18", "--data digits --width 8 --batch 16"),
    ("resnet50", "--data digits --width 4 --batch 8"),
    ("mobilenet", "--data digits --width 8 --batch 8"),
    ("unet", "--data shapes:32:16 --width 4 --depth 2 --batch 4"),
    ("gpt", "--data TEXT --sequence 16 --classes 128 --width 32 --depth 2 --heads 2 --batch 8"),
    ("gpt2", "--data TEXT --sequence 16 --classes 128 --width 32 --depth 2 --heads 2 --batch 8"),
    ("vit", "--data digits --patch 4 --width 32 --depth 2 --heads 2 --batch 16"),
    ("lstm", "--data TEXT --sequence 16 --classes 128 --width 32 --depth 1 --batch 8"),
];

/// What the process takes beside its plan is declared for a release build; in others it is measured, and varies by this.
const GRAIN: u64 = if cfg!(debug_assertions) { 2 << 20 } else { 0 };

/// Below this not even the program starts, and it cannot say why.
const SMALLEST_GROUP: u64 = 12 << 20;

struct Run {
    plan: Value,
    epoch: Value,
}

fn run(model: &str, settings: &[&str], out: &str, memory: Option<u64>) -> Result<Run, String> {
    let limit = memory;
    let memory = memory.map(|bytes| bytes.to_string());
    let mut arguments =
        vec!["train", model, "--epochs", "1", "--take", "40", "--threads", "2", "--json", "--out", out];
    arguments.extend(settings);
    if let Some(memory) = &memory {
        arguments.extend(["--memory", memory]);
    }
    let lines = match limit {
        Some(limit) if limit > SMALLEST_GROUP => lines_inside(limit, &arguments)?,
        _ => lines(&arguments)?,
    };
    let find = |event: &str| lines.iter().rev().find(|line| line["event"] == event).cloned();
    Ok(Run { plan: find("plan").ok_or("no plan")?, epoch: find("epoch").ok_or("no epoch")? })
}

#[test]
fn every_model_keeps_its_line_from_what_it_would_like_down_to_its_least() {
    let scratch = Scratch::new("contract");
    let text: String = (0..2000).map(|i| ["the ", "line ", "holds, ", "and so "][i * 7 % 11 % 4]).collect();
    let file = scratch.path("text.txt");
    std::fs::write(&file, text).unwrap();
    for (model, settings) in MODELS {
        let settings = settings.replace("TEXT", &file);
        let settings: Vec<&str> = settings.split(' ').collect();
        let out = |name: &str| scratch.path(&format!("{model}-{name}"));
        let free = run(model, &settings, &out("free"), None).unwrap_or_else(|e| panic!("{model}: {e}"));
        // A generous line: the figures of a run under one include its pipelines.
        let wide =
            run(model, &settings, &out("wide"), Some(1 << 30)).unwrap_or_else(|e| panic!("{model}: {e}"));
        assert_eq!(wide.epoch["loss"], free.epoch["loss"], "{model}");
        let refused = run(model, &settings, &out("refused"), Some(1 << 20)).err().unwrap_or_default();
        let least = least_of(&refused);
        let most = bytes(&wide.plan, "unlimited_bytes");
        for (i, line) in [least + GRAIN, (least + most) / 2 + GRAIN, most + GRAIN].into_iter().enumerate() {
            let name = format!("{model} under {line} of {most}, the least {least}");
            let run = run(model, &settings, &out(&i.to_string()), Some(line))
                .unwrap_or_else(|e| panic!("{name}: {e}"));
            let peak = bytes(&run.epoch, "resident_peak_bytes");
            assert!(peak <= line, "{name}: {peak}");
            let loss = |run: &Run, field: &str| run.epoch[field].as_f64().unwrap_or(f64::NAN);
            for field in ["loss", "val_loss"] {
                let (a, b) = (loss(&run, field), loss(&free, field));
                if run.epoch[field].is_null() && free.epoch[field].is_null() {
                    continue;
                }
                let close = match bytes(&run.plan, "micro_batches") {
                    1 => a == b,
                    _ => (a - b).abs() <= 1e-4 * b.abs(),
                };
                assert!(close, "{name}: {field} {a} and {b}");
            }
        }
    }
}

/// To the byte, and in two seconds: `contract_release.rs`.
#[test]
fn just_below_the_least_is_a_helpful_refusal() {
    let scratch = Scratch::new("refusal");
    let refused = |memory: u64| {
        let settings = ["--data", "digits", "--batch", "250"];
        run("cnn", &settings, &scratch.path("run"), Some(memory)).err().unwrap()
    };
    let far = refused(9 << 20);
    assert!(far.contains("a memory limit of 9 MiB cannot be kept"), "{far}");
    let error = refused(least_of(&far) - GRAIN - 1);
    let heads = ["cannot be kept", "the heaviest tensors:\n", "ways out:\n  --memory "];
    for part in heads {
        assert!(error.contains(part), "{part} is missing in: {error}");
    }
    let heaviest =
        error.split("the heaviest tensors:\n").nth(1).and_then(|rest| rest.split("ways out").next());
    assert_eq!(heaviest.map(|table| table.lines().count()), Some(5), "{error}");
    // One unit throughout, and a limit that works as it is typed.
    assert!(!error.contains("KiB") && !error.contains("GiB"), "{error}");
    let typed = error.split("--memory ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
    assert!(typed.parse::<plimsoll::device::Bytes>().unwrap().get() >= least_of(&error), "{error}");
}

#[test]
fn two_hundred_epochs_take_no_more_than_two() {
    let settings = "train cnn --data digits --take 64 --batch 16 --width 4 --epochs 200 --keep 1 --threads 2";
    let (_scratch, _, lines) = ran("epochs", settings);
    let epochs: Vec<&Value> = lines.iter().filter(|line| line["event"] == "epoch").collect();
    assert_eq!(epochs.len(), 200);
    let (second, last) = (bytes(epochs[1], "resident_bytes"), bytes(epochs[199], "resident_bytes"));
    assert!(last <= second + (1 << 20), "{second} after 2 epochs, {last} after 200");
}

#[test]
fn a_smaller_last_batch_takes_nothing_beside_the_full_one() {
    let scratch = Scratch::new("last-batch");
    // A batch of ten megabytes, and a last one of nine: both together would be far over the line.
    let settings =
        "train unet --data shapes:128:63 --width 2 --depth 1 --batch 32 --epochs 2 --threads 2 --json";
    let run = |name: &str, line: u64| {
        let (out, line) = (scratch.path(name), line.to_string());
        let arguments: Vec<&str> = settings.split(' ').chain(["--out", &out, "--memory", &line]).collect();
        lines(&arguments)
    };
    let refused = run("refused", 1 << 20).unwrap_err();
    let line = least_of(&refused) + (2 << 20) + 3 * GRAIN;
    let lines = run("tight", line).unwrap();
    let last = lines.iter().rfind(|line| line["event"] == "epoch").unwrap();
    let peak = bytes(last, "resident_peak_bytes");
    assert!(peak <= line, "{peak} bytes under a line of {line}");
}
