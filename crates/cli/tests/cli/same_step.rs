//! What `plan` says of a command is what `train` and `bench` do with it: for every model of the zoo and for Keras files, without a memory
//! limit, with one and with the least, the three have equal planned, least and unlimited bytes and equal instruction lists.

use std::path::Path;

use serde_json::Value;

use crate::common::{Scratch, bytes, plimsoll};

/// Every model, small. Where no data is named, `plan` and `bench` have random data of the model's sizes, which `train` is told to take.
const MODELS: &[&str] = &[
    "demo --batch 50",
    "mlp --width 64",
    "cnn --width 8",
    "lstm --width 32 --depth 1 --sequence 16 --batch 4 --allocator system",
    "resnet18 --width 8 --batch 16",
    "resnet50 --width 4 --image 32 --classes 10 --batch 4",
    "mobilenet --width 8 --image 32 --classes 10 --batch 4",
    "unet --data shapes:32:16 --width 4 --depth 2 --batch 4",
    "gpt --width 32 --depth 2 --heads 2 --sequence 16 --batch 8",
    "gpt2 --classes 128 --width 32 --depth 2 --heads 2 --sequence 16 --batch 8",
    "vit --image 32 --patch 8 --width 32 --depth 2 --heads 2 --classes 10 --batch 8",
    "lstm --width 32 --depth 1 --sequence 16 --batch 8",
    "FIXTURES/mlp.keras --batch 16",
    "FIXTURES/heads.keras --batch 8",
    "FIXTURES/cnn.keras --batch 8",
    "FIXTURES/legacy.h5 --batch 16",
];

/// Models that `train` has no data for.
const WITHOUT_DATA: &[&str] = &["resnet50", "mobilenet", "gpt2", "vit"];

/// Runs the command without kernel times: plans then go by the same estimates in every process.
fn run(words: &[&str]) -> String {
    let output = plimsoll().args(words).env("PLIMSOLL_CACHE", "").output().unwrap();
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_string()
}

fn read(path: &str) -> Value {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{path}: {e}"));
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// What all three must agree on.
fn figures(plan: &Value) -> [u64; 3] {
    ["planned_bytes", "floor_bytes", "unlimited_bytes"].map(|field| bytes(plan, field))
}

/// Asks all three and compares; returns what they agree on.
fn compare(words: &[&str], scratch: &Scratch, name: &str) -> [u64; 3] {
    let is_untrained = words[0].contains('.') || WITHOUT_DATA.contains(&words[0]);
    let to_train: &[&str] = if is_untrained { &["--data", "random"] } else { &[] };
    let [planned, measured, folder] =
        ["plan", "bench", "run"].map(|kind| scratch.path(&format!("{name}-{kind}")));
    let said = run(&[&["plan"], words, &["--no-frontier", "--json", "--out", &planned]].concat());
    let line = run(&[&["bench"], words, &["--steps", "1", "--json", "--out", &measured]].concat());
    run(&[&["train"], words, to_train, &["--epochs", "1", "-q", "--out", &folder]].concat());
    let (planned, measured) = (read(&planned), read(&measured));
    let trained = read(&format!("{folder}/plan.json"));
    let wanted = figures(&planned);
    assert_eq!(
        figures(&serde_json::from_str(&said).unwrap()),
        wanted,
        "{name}: plan --json against plan --out"
    );
    assert_eq!(figures(&measured), wanted, "{name}: bench --out against plan --out");
    assert_eq!(
        figures(&serde_json::from_str(&line).unwrap()),
        wanted,
        "{name}: bench --json against plan --out"
    );
    assert_eq!(figures(&trained), wanted, "{name}: train against plan --out");
    let step = &planned["step"];
    let n = step["instructions"].as_array().map_or(0, Vec::len);
    assert!(n > 5, "{name}: {n} instructions");
    // The whole record: instructions with their offsets, and what each kind of bytes comes to.
    assert!(measured["step"] == *step, "{name}: bench runs another step");
    assert!(read(&format!("{folder}/step.json")) == *step, "{name}: train runs another step");
    wanted
}

fn compare_all(models: &[&str], name: &str) {
    let scratch = Scratch::new(name);
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../keras/tests/fixtures");
    for (i, model) in models.iter().enumerate() {
        let model = model.replace("FIXTURES", fixtures.to_str().unwrap());
        let words: Vec<&str> = model.split(' ').chain(["--take", "64", "--threads", "2"]).collect();
        let [_, floor, unlimited] = compare(&words, &scratch, &format!("{i}-free"));
        for limit in [floor, floor.midpoint(unlimited.max(floor + (1 << 20)))] {
            let memory = limit.to_string();
            let words = [&words[..], &["--memory", &memory]].concat();
            let [planned, ..] = compare(&words, &scratch, &format!("{i}-{limit}"));
            assert!(planned <= limit, "{model}: {planned} within {limit}");
        }
    }
}

#[test]
fn plan_train_and_bench_have_the_same_step_of_every_model_of_the_zoo() {
    for name in plimsoll::nn::zoo::ALL.iter().map(|entry| entry.name) {
        assert!(MODELS.iter().any(|model| model.split(' ').next() == Some(name)), "{name} is not compared");
    }
    let zoo: Vec<&str> = MODELS.iter().copied().filter(|model| !model.starts_with("FIXTURES")).collect();
    compare_all(&zoo, "same-zoo");
}

#[test]
fn plan_train_and_bench_have_the_same_step_of_keras_files() {
    let files: Vec<&str> = MODELS.iter().copied().filter(|model| model.starts_with("FIXTURES")).collect();
    assert!(files.len() >= 3);
    compare_all(&files, "same-files");
}

#[test]
fn host_memory_on_a_cpu_is_what_the_pipeline_has_to_all_three() {
    let scratch = Scratch::new("same-host");
    let words: Vec<&str> = "cnn --width 8 --take 64 --threads 2".split(' ').collect();
    let [_, floor, _] = compare(&words, &scratch, "without");
    let [_, more, _] = compare(&[&words[..], &["--host-memory", "9MiB"]].concat(), &scratch, "with");
    // What is named for the pipelines is theirs, also where less would do.
    assert!(more > floor, "{floor} and {more}");
}

#[test]
fn random_data_takes_nothing_beside_the_step_and_keeps_the_least() {
    let scratch = Scratch::new("random-least");
    let words: Vec<&str> =
        "cnn --data random --width 8 --batch 64 --take 128 --threads 2".split(' ').collect();
    let plan = scratch.path("plan.json");
    run(&[&["plan"], &words[..], &["--no-frontier", "--out", &plan]].concat());
    let plan = read(&plan);
    assert_eq!(bytes(&plan, "pipeline_bytes"), 0);
    let limit = bytes(&plan, "floor_bytes");
    let train = |seed: &str, name: &str| -> Vec<Value> {
        let (limit, out) = (limit.to_string(), scratch.path(name));
        let more = ["--memory", &limit, "--epochs", "1", "--seed", seed, "--json", "--out", &out];
        let said = run(&[&["train"], &words[..], &more].concat());
        said.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let epoch = |lines: &[Value]| lines.iter().rfind(|line| line["event"] == "epoch").unwrap().clone();
    let (one, again, other) =
        (epoch(&train("1", "one")), epoch(&train("1", "again")), epoch(&train("2", "other")));
    assert!(bytes(&one, "resident_peak_bytes") <= limit, "{one} within {limit}");
    assert_eq!(one["loss"], again["loss"], "the same seed has the same numbers");
    assert_ne!(one["loss"], other["loss"], "another seed has others");
}

#[test]
fn fewer_samples_than_a_batch_are_one_smaller_batch_to_bench_too() {
    let scratch = Scratch::new("same-few");
    let words: Vec<&str> = "cnn --width 8 --take 5 --batch 32 --threads 2".split(' ').collect();
    compare(&words, &scratch, "few");
    let line = run(&[&["bench"], &words[..], &["--steps", "1", "--json"]].concat());
    let line: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(line["batch"], 5, "{line}");
}

#[test]
fn inspect_lists_the_model_that_the_others_mean() {
    let words: Vec<&str> =
        "gpt2 --classes 128 --width 32 --depth 2 --heads 2 --sequence 16 --batch 8".split(' ').collect();
    let found: Value = serde_json::from_str(&run(&[&["inspect"], &words[..], &["--json"]].concat())).unwrap();
    let measured = run(&[&["bench"], &words[..], &["--steps", "1", "--json"]].concat());
    let measured: Value = serde_json::from_str(&measured).unwrap();
    assert_eq!(found["elements"]["trained"], measured["params"]);
    let layers = found["layers"].as_array().unwrap();
    let sum: u64 = layers.iter().map(|layer| bytes(layer, "elements")).sum();
    assert_eq!(sum, bytes(&found["elements"], "trained") + bytes(&found["elements"], "statistics"));
    assert_eq!(found["inputs"][0], "i64[1, 16]");
    // Adam keeps two numbers for each weight.
    assert_eq!(bytes(&found["bytes"], "optimizer"), 2 * bytes(&found["bytes"], "trained"));
    // On its data, not at the sizes of the table: digits are 8 × 8.
    let digits: Value = serde_json::from_str(&run(&["inspect", "cnn", "--json"])).unwrap();
    assert_eq!(digits["inputs"][0], "f32[1, 8, 8, 1]");
    let table = run(&["inspect", "cnn", "--data", "random", "--width", "4"]);
    assert!(table.starts_with("cnn, f32[1, 32, 32, 3] -> f32[1, 10]"), "{table}");
}
