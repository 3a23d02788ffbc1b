//! A trained model as `.onnx` and `.tflite`, looked at, used and compared with the run that it came from.

use serde_json::Value;

use crate::common::{lines, plimsoll, ran};

fn line(words: &[&str]) -> Value {
    lines(words).unwrap_or_else(|why| panic!("{words:?}: {why}")).pop().unwrap()
}

fn number(line: &Value, field: &str) -> f64 {
    line[field].as_f64().unwrap_or_else(|| panic!("no {field} in {line}"))
}

/// What a command says on standard error that must fail.
fn refused(words: &[&str]) -> String {
    let ended = plimsoll().args(words).output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr).to_string();
    assert!(!ended.status.success(), "{words:?} is taken");
    said
}

#[test]
fn a_run_leaves_as_onnx_and_tflite_and_is_as_good_there() {
    let (scratch, run, _) = ran("door", "train demo --data digits --epochs 6 --batch 32");
    let of_run = line(&["evaluate", &run, "--json"]);
    let file = |name: &str| scratch.path(name);
    let (onnx, float, int8) = (file("digits.onnx"), file("digits.tflite"), file("int8.tflite"));
    line(&["export", &run, "--to", &onnx, "--json"]);
    let written = line(&["export", &run, "--to", &float, "--json"]);
    assert!(number(&written, "distance") < 1e-5 && written["accuracy"].is_null(), "{written}");
    for path in [&onnx, &float] {
        let found = line(&["evaluate", path, "--data", "digits", "--json"]);
        assert_eq!(found["samples"], of_run["samples"]);
        assert_eq!(found["accuracy"], of_run["accuracy"], "{path}");
        assert!((number(&found, "loss") - number(&of_run, "loss")).abs() < 1e-4, "{path}: {found}");
    }

    let words = ["--quantize", "int8", "--calibration-samples", "100", "--json"];
    let written = line(&[&["export", &run, "--to", &int8][..], &words].concat());
    assert_eq!(written["calibrated_on"], "the held-back part of digits");
    assert_eq!(written["calibration_samples"], 100);
    let accuracy = &written["accuracy"];
    assert_eq!(number(accuracy, "f32"), number(&of_run, "accuracy"));
    assert!((number(accuracy, "f32") - number(accuracy, "int8")).abs() <= 0.005, "{accuracy}");
    let errors: Vec<f64> =
        written["tensors"].as_array().unwrap().iter().map(|e| number(e, "signal_to_noise_db")).collect();
    assert!(errors.len() > 5 && errors[0] > 20.0, "{errors:?}");
    assert!(errors.is_sorted(), "the worst first: {errors:?}");
    let found = line(&["evaluate", &int8, "--data", "digits", "--json"]);
    assert_eq!(found["accuracy"], accuracy["int8"]);

    let looked = line(&["inspect", &int8, "--json"]);
    assert_eq!(looked["kind"], "tflite");
    assert_eq!(looked["arena_bytes"], written["arena_bytes"]);
    assert_eq!(looked["bytes"], written["bytes"]);
    assert_eq!(looked["inputs"][0]["shape"], serde_json::json!([1, 8, 8, 1]));
    let ops = looked["operators"].as_array().unwrap();
    assert!(ops.iter().any(|op| op["op"] == "CONV_2D" && op["results"][0]["type"] == "int8"), "{looked}");

    // As many classes as the run says, sample by sample.
    let (out, of_file) = (file("run.npy"), file("file.npy"));
    line(&["predict", &run, "--out", &out, "--argmax", "--json"]);
    line(&["predict", &float, "--data", "digits", "--out", &of_file, "--argmax", "--json"]);
    assert_eq!(std::fs::read(&out).unwrap(), std::fs::read(&of_file).unwrap());

    for (words, said) in [
        (&["predict", &float, "--data", "digits", "--memory", "64MiB"][..], "--memory"),
        (&["predict", &float, "--data", "digits", "--batch", "7"], "fixed at 1"),
        (&["predict", &float, "--data", "digits", "--device", "cuda"], "--device"),
        (&["predict", &float], "--data"),
        (&["predict", &float, "--data", "shapes:32:4"], "takes f32 of shape [8, 8, 1]"),
        (&["predict", &float, "--data", "digits", "--output", "3"], "no output 3"),
        (&["train", &float], "is not trained"),
        (&["export", &float, "--to", &file("again.onnx")], "what comes out of an export"),
        (&["inspect", &onnx.replace(".onnx", ".tflite.tflite")], "there is no file"),
    ] {
        let found = refused(words);
        assert!(found.contains(said), "{words:?}: {found}");
    }
}

#[test]
fn files_beside_what_is_written_are_left_alone() {
    let (scratch, run, _) = ran("beside", "train demo --data digits --epochs 1 --batch 64");
    let theirs = ["m.part", "m.plim.tflite", "m.tflite", "m.keras.part"].map(|name| scratch.path(name));
    theirs.iter().for_each(|path| std::fs::write(path, "mine").unwrap());
    let (keras, planned) = (scratch.path("m.keras"), scratch.path("m.plim"));
    line(&["convert", &run, "--out", &keras, "--json"]);
    line(&["export", &run, "--to", &planned, "--json"]);
    for path in &theirs {
        assert_eq!(std::fs::read_to_string(path).unwrap(), "mine", "{path}");
    }
    let names = std::fs::read_dir(scratch.path("")).unwrap().map(|entry| entry.unwrap().file_name());
    let left: Vec<_> = names.filter(|name| name.to_string_lossy().contains("unfinished")).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn ranges_come_from_the_data_and_fewer_samples_than_asked_are_said() {
    let (scratch, run, _) = ran("door-ranges", "train mlp --data digits --epochs 1 --batch 64");
    let file = scratch.path("mlp.tflite");
    let ended = plimsoll()
        .args(["export", &run, "--to", &file, "--quantize", "int8", "--calibration-samples", "5000"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ended.stdout).to_string();
    assert!(said.contains("ranges were found on 297 samples"), "{said}");
    assert!(said.contains("5000 were asked for"), "{said}");
    let looked = line(&["inspect", &file, "--json"]);
    // Digits go from 0 to 1 here: 255 steps of the first bytes are as long as that.
    let first = &looked["operators"][0]["results"][0];
    let reach = number(first, "scale") * 255.0;
    assert!((0.9..1.1).contains(&reach), "{first}");
}

#[test]
fn a_pruned_run_is_as_sparse_as_asked_and_its_file_compresses() {
    let (scratch, run, said) = ran("door-pruned", "train cnn --data digits --epochs 3 --prune 0.9");
    let pruned = &said.last().unwrap()["pruned"];
    let (zeros, elements) = (number(pruned, "zeros"), number(pruned, "elements"));
    assert!((zeros / elements - 0.9).abs() < 1e-3, "{pruned}");
    let file = scratch.path("pruned.tflite");
    let written = line(&["export", &run, "--to", &file, "--quantize", "int8", "--json"]);
    assert!(number(&written, "compressed_bytes") < 0.4 * number(&written, "bytes"), "{written}");
    for (words, said) in [
        (&["plan", "cnn", "--prune", "1.5"][..], "--prune 1.5"),
        (&["plan", "cnn", "--prune-pattern", "out"], "--prune, which is not asked for"),
        (&["plan", "cnn", "--prune", "2:4", "--prune-schedule", "polynomial"], "at once"),
        (&["plan", "cnn", "--prune", "0.5", "--average", "0.9"], "--average"),
        (&["plan", "cnn", "--prune", "0.5", "--prune-pattern", "tail"], "no trained weight"),
        (&["plan", "cnn", "--quantize-aware", "--precision", "mixed-bf16"], "f32"),
        (&["train", "--resume", "--out", &run, "--prune", "0.5"], "was begun with --prune 0.9"),
    ] {
        let found = refused(words);
        assert!(found.contains(said), "{words:?}: {found}");
    }
}

#[test]
fn a_run_with_the_rounding_of_int8_loses_nothing_by_it() {
    let (scratch, run, _) = ran("door-aware", "train cnn --data digits --epochs 3 --quantize-aware");
    let evaluated = line(&["evaluate", &run, "--json"]);
    let file = scratch.path("aware.tflite");
    let written = line(&["export", &run, "--to", &file, "--quantize", "int8", "--json"]);
    let accuracy = &written["accuracy"];
    // Evaluated with its rounding, it says how good the file will be.
    assert!(
        (number(&evaluated, "accuracy") - number(accuracy, "int8")).abs() < 0.007,
        "{accuracy} {evaluated}"
    );
    assert!(number(accuracy, "f32") - number(accuracy, "int8") <= 0.005, "{accuracy}");
}

#[test]
fn a_folder_is_a_program_that_compiles_and_a_limit_is_kept_or_refused() {
    let (scratch, run, _) = ran("door-app", "train cnn --data digits --epochs 1");
    let app = scratch.path("app") + "/";
    let words = ["--quantize", "int8", "--json"];
    let written = line(&[&["export", &run, "--to", &app][..], &words].concat());
    let folder = std::path::Path::new(&app);
    assert!(folder.join("model.tflite").is_file() && folder.join("README.md").is_file(), "{written}");
    let again = refused(&["export", &run, "--to", &app]);
    assert!(again.contains("--overwrite"), "{again}");
    // The crate of this repository in place of the published one.
    let manifest = std::fs::read_to_string(folder.join("Cargo.toml")).unwrap();
    let lite = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../lite");
    let by_path = format!("plimsoll-lite = {{ path = {lite:?} }}");
    let version = format!("plimsoll-lite = \"{}\"", env!("CARGO_PKG_VERSION"));
    assert!(manifest.contains(&version), "{manifest}");
    std::fs::write(folder.join("Cargo.toml"), manifest.replace(&version, &by_path)).unwrap();
    let checked = std::process::Command::new(env!("CARGO"))
        .args(["check", "--offline", "--quiet"])
        .current_dir(folder)
        .env("CARGO_TARGET_DIR", folder.join("target"))
        .output()
        .unwrap();
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    if let Ok(compiled) = std::process::Command::new("cc")
        .args(["-std=c99", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "main.c"])
        .current_dir(folder)
        .output()
    {
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    }

    let planned = scratch.path("model.plim");
    let of_plan = line(&[&["export", &run, "--to", &planned][..], &words].concat());
    assert_eq!(of_plan["accuracy"], written["accuracy"]);
    assert_eq!(line(&["inspect", &planned, "--json"])["arena_bytes"], written["arena_bytes"]);
    let file = scratch.path("small.tflite");
    let limited = |memory: &str| {
        plimsoll().args(["export", &run, "--to", &file, "--memory", memory]).args(words).output().unwrap()
    };
    let ended = limited("64");
    let said = String::from_utf8_lossy(&ended.stderr).to_string();
    assert!(!ended.status.success() && said.contains("at the least"), "{said}");
    assert!(!std::path::Path::new(&file).exists());
    let least: String =
        said.split("an arena of ").nth(1).unwrap().chars().take_while(char::is_ascii_digit).collect();
    assert!(limited(&least).status.success(), "{least} is the least");
    let looked = line(&["inspect", &file, "--json"]);
    assert!(number(&looked, "arena_bytes") <= least.parse().unwrap(), "{looked}");
    assert!(number(&looked, "arena_bytes") < number(&written, "arena_bytes"), "{looked}");
}

#[test]
fn a_run_without_half_of_its_channels_is_trained_again_and_as_good() {
    let (scratch, run, _) = ran("door-channels", "train demo --data digits --epochs 6 --batch 32");
    let (onnx, again) = (scratch.path("narrow.onnx"), scratch.path("again"));
    line(&["export", &run, "--to", &onnx, "--prune-channels", "0.5", "--json"]);
    let size = |path: &str| std::fs::metadata(path).unwrap().len();
    let whole = scratch.path("whole.onnx");
    line(&["export", &run, "--to", &whole, "--json"]);
    assert!(3 * size(&onnx) < size(&whole), "{} of {}", size(&onnx), size(&whole));
    let words =
        ["--data", "digits", "--epochs", "4", "--loss", "cross-entropy", "--metrics", "accuracy", "--json"];
    lines(&[&["train", &onnx, "--out", &again][..], &words].concat()).unwrap();
    let (before, after) = (line(&["evaluate", &run, "--json"]), line(&["evaluate", &again, "--json"]));
    assert!(number(&after, "accuracy") > number(&before, "accuracy") - 0.03, "{before} {after}");
    let said = refused(&["export", &run, "--to", &scratch.path("x.onnx"), "--prune-channels", "2"]);
    assert!(said.contains("--prune-channels"), "{said}");
}
