//! Plans that are kept from one process to the next: found again, verified, named when damaged, left out on request.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

use crate::common::{Scratch, bytes, plimsoll};

/// By the record of a card: its times are the same in every process, busy or not.
const STEP: &[&str] = &[
    "plan",
    "cnn",
    "--data",
    "random",
    "--batch",
    "2048",
    "--width",
    "8",
    "--device",
    "h200",
    "--no-frontier",
    "--json",
];

fn command(scratch: &Scratch) -> Command {
    let mut command = plimsoll();
    command.env("PLIMSOLL_CACHE", scratch.path("cache"));
    command
}

fn run(scratch: &Scratch, more: &[&str]) -> (Value, String) {
    let Output { status, stdout, stderr } = command(scratch).args(STEP).args(more).output().unwrap();
    let (said, complained) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{complained}");
    (serde_json::from_str(said.trim()).unwrap(), complained.into_owned())
}

fn kept(scratch: &Scratch) -> Vec<PathBuf> {
    let files = std::fs::read_dir(scratch.path("cache/plans")).into_iter().flatten();
    let mut files: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|ending| ending == "json"));
    files.sort();
    files
}

/// What two answers must agree on.
fn figures(plan: &Value) -> Vec<Value> {
    let fields = [
        "planned_bytes",
        "floor_bytes",
        "unlimited_bytes",
        "arena_bytes",
        "predicted_ms",
        "recomputed_ops",
        "peak",
    ];
    fields.iter().map(|field| plan[field].clone()).collect()
}

#[test]
fn a_step_that_was_planned_before_is_found_again_and_is_the_same() {
    let scratch = Scratch::new("plan-cache");
    let (first, _) = run(&scratch, &[]);
    assert_eq!(first["from_cache"], false, "{first}");
    let (second, complained) = run(&scratch, &[]);
    assert_eq!((&second["from_cache"], complained.as_str()), (&true.into(), ""), "{second}");
    assert_eq!(figures(&first), figures(&second));
    assert!(bytes(&first, "floor_bytes") < bytes(&first, "planned_bytes"), "{first}");
    let limit = bytes(&first, "floor_bytes").to_string();
    let (tight, _) = run(&scratch, &["--memory", &limit]);
    assert_eq!(tight["from_cache"], false, "another limit is another question: {tight}");
    let (again, _) = run(&scratch, &["--memory", &limit]);
    assert_eq!((figures(&again), &again["from_cache"]), (figures(&tight), &true.into()));
    // Another precision is another step; and who wants no cache neither reads nor writes one.
    assert_eq!(run(&scratch, &["--precision", "mixed-bf16"]).0["from_cache"], false);
    let before = kept(&scratch);
    let (fresh, _) = run(&scratch, &["--no-plan-cache"]);
    assert_eq!((figures(&fresh), &fresh["from_cache"]), (figures(&second), &false.into()));
    assert_eq!(run(&scratch, &["--no-plan-cache", "--precision", "mixed-f16"]).0["from_cache"], false);
    assert_eq!(kept(&scratch), before);
}

#[test]
fn a_refusal_that_was_given_before_is_the_same() {
    let scratch = Scratch::new("plan-cache-refused");
    let refused = |_: usize| run(&scratch, &["--memory", "19MiB"]).0;
    let (first, second) = (refused(1), refused(2));
    assert_eq!((&first["fits"], &first["why"]), (&false.into(), &second["why"]), "{first}");
    assert_eq!(first["ways"], second["ways"]);
}

#[test]
fn a_damaged_or_foreign_plan_is_named_and_planned_afresh() {
    let scratch = Scratch::new("plan-cache-damaged");
    let (first, _) = run(&scratch, &[]);
    let files = kept(&scratch);
    assert!(!files.is_empty());
    // Cut short, changed in the middle, something else, and another step's plan under this name.
    let whole: Vec<String> = files.iter().map(|file| std::fs::read_to_string(file).unwrap()).collect();
    let damages: [fn(&str) -> String; 3] = [
        |text| text[..text.len() / 2].into(),
        |text| text.replacen("\"steps\"", "\"stops\"", 1),
        |_| "{}".into(),
    ];
    for damage in damages {
        for (file, text) in files.iter().zip(&whole) {
            std::fs::write(file, damage(text)).unwrap();
        }
        let (again, complained) = run(&scratch, &[]);
        assert_eq!((figures(&again), &again["from_cache"]), (figures(&first), &false.into()));
        let name = files[0].file_stem().unwrap().to_str().unwrap();
        let is_named =
            files.iter().any(|file| complained.contains(file.file_stem().unwrap().to_str().unwrap()));
        assert!(is_named && complained.contains("planned afresh"), "{name}: {complained}");
        // What was planned afresh is kept anew.
        assert_eq!(run(&scratch, &[]).0["from_cache"], true);
    }
}

#[test]
fn two_that_plan_at_once_do_not_disturb_each_other() {
    let scratch = Scratch::new("plan-cache-twice");
    let both: Vec<_> = (0..2)
        .map(|_| command(&scratch).args(STEP).stdout(std::process::Stdio::piped()).spawn().unwrap())
        .collect();
    for child in both {
        let said = child.wait_with_output().unwrap();
        assert!(said.status.success());
        serde_json::from_slice::<Value>(&said.stdout).unwrap();
    }
    let (after, complained) = run(&scratch, &[]);
    assert!(after["fits"] == true && complained.is_empty(), "{complained}");
    assert_eq!(run(&scratch, &[]).0["from_cache"], true);
}

/// Plans the demo, or trains it for an epoch, and gives the least that it said, and the most that was resident.
fn demo(scratch: &Scratch, words: &[&str]) -> (u64, Option<u64>) {
    let Output { status, stdout, stderr } = command(scratch).args(words).output().unwrap();
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    let said = String::from_utf8_lossy(&stdout);
    let lines: Vec<Value> = said.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let least = lines.iter().find_map(|line| line["floor_bytes"].as_u64()).unwrap();
    (least, lines.iter().rev().find_map(|line| line["resident_peak_bytes"].as_u64()))
}

#[test]
fn kernel_times_of_other_models_take_nothing_of_a_limit() {
    let scratch = Scratch::new("many-times");
    let plan = ["plan", "demo", "--no-frontier", "--json"];
    let outs = [scratch.path("one"), scratch.path("two")];
    let train = |out: &str| demo(&scratch, &["train", "--epochs", "1", "--json", "--out", out]);
    let few = (demo(&scratch, &plan).0, train(&outs[0]));
    // A machine that has seen very many models: sixty thousand kernels, twelve megabytes.
    let mut files = std::fs::read_dir(scratch.path("cache")).unwrap().map(|file| file.unwrap().path());
    let file = files.find(|file| file.extension().is_some_and(|ending| ending == "times")).unwrap();
    let mut text = std::fs::read_to_string(&file).unwrap();
    let attributes = "x: 1, ".repeat(25);
    for n in 0..60_000 {
        text += &format!("{n}\t0\t{n}e3\t{n}e2\tMatMul(MatMul {{ {attributes} }}) f32[{n}, 3] f32[3, 3]\n");
    }
    std::fs::write(&file, &text).unwrap();
    let many = (demo(&scratch, &plan).0, train(&outs[1]));
    assert_eq!((many.0, many.1.0), (few.0, few.1.0), "the least is what it was");
    let (before, now) = (few.1.1.unwrap(), many.1.1.unwrap());
    assert!(now < before + (2 << 20), "{now} bytes are resident where {before} were");
    // A run keeps the times that it went by and not those of everything else.
    let mut kept = std::fs::read_dir(Path::new(&outs[1]).join("times")).unwrap();
    let kept = kept.next().unwrap().unwrap().metadata().unwrap().len();
    assert!(kept < 100_000, "{kept} bytes of times");
}
