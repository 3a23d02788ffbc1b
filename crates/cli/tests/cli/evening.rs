//! What a first evening meets: refused requests that change nothing, signals, two runs at once, full disks.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use crate::common::{Scratch, lines, plimsoll};

/// Runs the command, its words separated by spaces.
fn run(words: &str) -> Output {
    plimsoll().args(words.split_whitespace()).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// All files of a folder with what is in them.
pub fn contents(folder: &str) -> BTreeMap<String, Vec<u8>> {
    let mut all = BTreeMap::new();
    let mut left = vec![Path::new(folder).to_path_buf()];
    while let Some(path) = left.pop() {
        for entry in fs::read_dir(&path).into_iter().flatten() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => left.push(path),
                // Whoever asks for a run's lock writes its number there, once it has it.
                false if path.ends_with("lock") => {}
                false => {
                    all.insert(path.display().to_string(), fs::read(&path).unwrap());
                }
            }
        }
    }
    all
}

const SMALL: &str = "--take 64 --batch 16 --threads 1 -q";

/// The folder of a run that is over.
fn trained(scratch: &Scratch) -> String {
    let out = scratch.path("run");
    assert!(run(&format!("train cnn --width 4 --epochs 1 {SMALL} --out {out}")).status.success());
    out
}

#[test]
fn a_run_can_be_planned_and_inspected_by_its_folder() {
    let scratch = Scratch::new("folder-as-model");
    let out = trained(&scratch);
    let before = contents(&out);
    let asked = |words: &str| {
        let answer = lines(&words.split_whitespace().collect::<Vec<_>>()).unwrap();
        (answer[0]["planned_bytes"].clone(), answer[0]["memory_limit_bytes"].clone())
    };
    let by_words = asked(
        "plan cnn --width 4 --data digits --take 64 --batch 16 --threads 1 --memory 60MiB --json --no-frontier",
    );
    assert_eq!(asked(&format!("plan {out} --memory 60MiB --json --no-frontier")), by_words);
    assert!(by_words.0.is_u64() && by_words.1 == 60 << 20, "{by_words:?}");
    let shown = |what: &str| said(&run(&format!("inspect {what}")));
    assert_eq!(shown(&out), shown("cnn --width 4 --data digits --batch 16"));
    assert_eq!(contents(&out), before);
}

#[test]
fn a_refused_resume_changes_nothing() {
    let scratch = Scratch::new("refused-resume");
    let out = trained(&scratch);
    let before = contents(&out);
    for other in [
        "mlp",
        "cnn --batch 8",
        "cnn --data shapes:8:64",
        "cnn --width 8",
        "cnn --memory 1MiB",
        "cnn --seed 1",
    ] {
        let refused = run(&format!("train {other} --resume --out {out} --epochs 2"));
        assert_eq!(refused.status.code(), Some(1), "{other}: {}", said(&refused));
        assert!(contents(&out) == before, "{other} changed the run: {}", said(&refused));
    }
    for command in ["evaluate", "predict"] {
        assert!(run(&format!("{command} {out}")).status.success());
    }
    let resumed = run(&format!("train --resume --out {out} --epochs 2"));
    assert!(resumed.status.success(), "{}", said(&resumed));
}

#[test]
fn a_failed_start_leaves_no_folder_behind() {
    let scratch = Scratch::new("failed-start");
    let out = scratch.path("runs/a");
    for wrong in
        ["cnn --data gone.npz", "cnn --memory 1MiB", "nosuch", "cnn --lr nan", "vit --patch 3 --data digits"]
    {
        let failed = run(&format!("train {wrong} --out {out}"));
        assert!(!failed.status.success(), "{}", said(&failed));
        assert!(!Path::new(&out).exists(), "{wrong} left {out}");
    }
    let typo = run(&format!("train --resume --out {out}"));
    assert_eq!(typo.status.code(), Some(1));
    assert!(said(&typo).contains("there is no") && !Path::new(&out).exists(), "{}", said(&typo));
}

/// Starts a run that would take long and waits until it trains.
fn long_run(out: &str) -> std::process::Child {
    let words = format!("train mlp --width 8 --epochs 100000 --batch 4 --threads 1 --json --out {out}");
    let mut command = plimsoll();
    command.args(words.split(' ')).stdout(Stdio::null()).stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    let start = Instant::now();
    while !Path::new(out).join("steps.csv").is_file() {
        assert!(start.elapsed() < Duration::from_secs(120), "it does not begin");
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::sleep(Duration::from_millis(200));
    child
}

fn signal(child: &std::process::Child, name: &str) {
    let sent = std::process::Command::new("kill").args(["-s", name, &child.id().to_string()]).status();
    assert!(sent.unwrap().success());
}

#[test]
fn a_signal_ends_a_run_after_a_step_with_a_checkpoint_and_it_goes_on() {
    for (name, code) in [("INT", 130), ("TERM", 143)] {
        let scratch = Scratch::new(&format!("signal-{name}"));
        let out = scratch.path("run");
        let child = long_run(&out);
        signal(&child, name);
        let ended = child.wait_with_output().unwrap();
        assert_eq!(ended.status.code(), Some(code), "{}", said(&ended));
        assert!(
            said(&ended).contains(&format!("go on with: plimsoll train --resume --out {out}")),
            "{}",
            said(&ended)
        );
        let checkpoints = fs::read_dir(Path::new(&out).join("checkpoints")).unwrap().count();
        assert!(checkpoints > 0);
        let step: u64 = said(&ended)
            .split("stopped after step ")
            .nth(1)
            .unwrap()
            .split(',')
            .next()
            .unwrap()
            .parse()
            .unwrap();
        let epochs = step / 375 + 1;
        let resumed =
            lines(&["train", "--resume", "--out", &out, "--epochs", &epochs.to_string(), "--json"]).unwrap();
        let end = resumed.last().unwrap();
        assert_eq!((end["event"].as_str(), end["step"].as_u64()), (Some("end"), Some(epochs * 375)), "{end}");
    }
}

#[test]
fn two_processes_cannot_train_one_run() {
    let scratch = Scratch::new("twice");
    let out = scratch.path("run");
    let mut child = long_run(&out);
    for words in ["train mlp --width 8 --epochs 1", "train --resume --epochs 1"] {
        let second = run(&format!("{words} --out {out}"));
        assert_eq!(second.status.code(), Some(1), "{}", said(&second));
        let expected =
            if words.contains("resume") { "is being trained by another process" } else { "holds a run" };
        assert!(said(&second).contains(expected), "{}", said(&second));
    }
    // However it ends, its lock ends with it.
    child.kill().unwrap();
    child.wait().unwrap();
    let resumed = run(&format!("train --resume --epochs 1 --out {out}"));
    assert!(resumed.status.success(), "{}", said(&resumed));
}

#[test]
fn results_that_cannot_be_written_are_no_success() {
    let full = || fs::File::options().write(true).open("/dev/full").ok();
    for words in [
        "ops",
        "ops --markdown",
        "models",
        "plan mlp --width 8 --no-frontier",
        "completions bash",
        "--version",
        "train --help",
    ] {
        let Some(full) = full() else { return };
        let ended = plimsoll().args(words.split(' ')).stdout(full).output().unwrap();
        assert!(!ended.status.success(), "{words} says that all is well");
    }
    let scratch = Scratch::new("full");
    let out = scratch.path("run");
    let Some(full) = full() else { return };
    let words = format!("train mlp --width 4 --take 64 --epochs 1 --out {out}");
    let ended = plimsoll().args(words.split(' ')).stdout(full).output().unwrap();
    assert_eq!(ended.status.code(), Some(1), "{}", said(&ended));
    // The run itself is whole.
    assert!(Path::new(&out).join("model.safetensors").is_file());
}

#[test]
fn nothing_is_validated_where_nothing_is_held_back_and_everyone_is_told_on_what() {
    let scratch = Scratch::new("held-back");
    let (out, split, file) = (scratch.path("run"), scratch.path("split"), scratch.path("table.csv"));
    let rows: String = (0..60).map(|i| format!("{},{},{}\n", i % 7, i % 5, i % 3)).collect();
    fs::write(&file, format!("a,b,label\n{rows}")).unwrap();
    let common = format!("train mlp --width 8 --data {file} --epochs 2 --batch 8 --threads 1 --json");
    let all = lines(&format!("{common} --out {out}").split(' ').collect::<Vec<_>>()).unwrap();
    assert!(all.iter().all(|line| line.get("val_loss").is_none()), "{all:?}");
    assert_eq!(all[0]["event"], "run");
    assert_eq!((all[0]["run"].as_str(), all[0]["validation"].as_str()), (Some(out.as_str()), None));
    let found = lines(&["evaluate", &out, "--json"]).unwrap();
    assert_eq!((&found[0]["trained_on"], found[0]["samples"].as_u64()), (&true.into(), Some(60)));
    let told = said(&run(&format!("evaluate {out}")));
    assert!(told.contains("nothing was held back"), "{told}");
    let words = format!("{common} --out {split} --validation-split 0.1");
    let all = lines(&words.split(' ').collect::<Vec<_>>()).unwrap();
    assert!(all.iter().any(|line| line.get("val_loss").is_some()), "{all:?}");
    assert_eq!(all[0]["samples"], 54);
    let found = lines(&["evaluate", &split, "--json"]).unwrap();
    assert_eq!(
        (&found[0]["trained_on"], found[0]["samples"].as_u64()),
        (&false.into(), Some(6)),
        "{found:?}"
    );
}

#[test]
fn a_run_is_used_from_anywhere() {
    let scratch = Scratch::new("anywhere");
    let (here, there) = (scratch.path("here"), scratch.path("there"));
    for folder in [&here, &there] {
        fs::create_dir_all(folder).unwrap();
    }
    let rows: String = (0..40).map(|i| format!("{},{}\n", i % 7, i % 2)).collect();
    fs::write(format!("{here}/table.csv"), format!("a,label\n{rows}")).unwrap();
    let inside =
        |folder: &str, words: &str| plimsoll().current_dir(folder).args(words.split(' ')).output().unwrap();
    let begun = inside(&here, "train mlp --width 4 --data table.csv --epochs 1 --batch 8 -q --out run");
    assert!(begun.status.success(), "{}", said(&begun));
    let words = format!("evaluate {here}/run");
    let found = inside(&there, &words);
    assert!(found.status.success(), "{}", said(&found));
    let resumed = inside(&there, &format!("train --resume --out {here}/run --epochs 2"));
    assert!(resumed.status.success(), "{}", said(&resumed));
    // The data may be gone, as long as none of it is asked for.
    fs::rename(format!("{here}/table.csv"), format!("{there}/moved.csv")).unwrap();
    let found = inside(&there, &format!("evaluate {here}/run --data moved.csv"));
    assert!(found.status.success(), "{}", said(&found));
    let resumed = inside(&there, &format!("train --resume --out {here}/run --epochs 3 --data moved.csv"));
    assert!(resumed.status.success(), "{}", said(&resumed));
}

#[test]
fn a_regression_table_just_works() {
    let scratch = Scratch::new("regression");
    let (file, out) = (scratch.path("table.csv"), scratch.path("run"));
    let rows: String = (0..60).map(|i| format!("{},{},{:.2}\n", i % 7, i % 5, f64::from(i) / 7.0)).collect();
    fs::write(&file, format!("a,b,price\n{rows}")).unwrap();
    for (more, i) in [("--loss mse", 0), ("", 1), ("--loss mae --metrics rmse,r2", 2)] {
        let words =
            format!("train mlp --width 8 --data {file} --epochs 2 --batch 8 -q --out {out}{i} {more}");
        let trained = run(&words);
        assert!(trained.status.success(), "{more}: {}", said(&trained));
    }
    let rows = scratch.path("rows.csv");
    let predicted = run(&format!("predict {out}0 --out {rows}"));
    assert!(predicted.status.success(), "{}", said(&predicted));
    let rows = fs::read_to_string(rows).unwrap();
    assert_eq!((rows.lines().next(), rows.lines().count()), (Some("name,y0"), 61), "{rows}");
}

#[test]
fn every_model_without_data_gets_some_that_fits_or_a_sentence() {
    let scratch = Scratch::new("no-data");
    for (model, sizes) in [
        ("mlp", "--width 8"),
        ("cnn", "--width 2"),
        ("resnet18", "--width 2"),
        ("unet", "--width 2 --depth 2"),
        ("gpt", "--width 8 --depth 1 --heads 2"),
        ("lstm", "--width 8 --depth 1"),
    ] {
        let out = scratch.path(model);
        let trained = run(&format!("train {model} {sizes} --take 4 --batch 2 --epochs 1 -q --out {out}"));
        assert!(trained.status.success(), "{model}: {}", said(&trained));
    }
    for model in ["resnet50", "mobilenet", "vit", "gpt2"] {
        let refused = run(&format!("train {model}"));
        assert_eq!(refused.status.code(), Some(1));
        assert!(said(&refused).contains("name some with --data"), "{model}: {}", said(&refused));
    }
}

#[test]
fn what_plan_says_of_a_command_is_what_train_does_with_it() {
    let scratch = Scratch::new("same-plan");
    let file = scratch.path("text.txt");
    fs::write(&file, "the line holds, and so ".repeat(200)).unwrap();
    for (i, words) in [
        "cnn --width 4 --batch 16 --memory 64MiB".to_string(),
        "unet --width 2 --depth 2 --batch 2 --data shapes:16:8 --memory 64MiB".into(),
        format!("gpt2 --data {file} --sequence 16 --width 32 --depth 1 --heads 2 --batch 4 --memory 64MiB"),
    ]
    .into_iter()
    .enumerate()
    {
        let plan = |more: &str| {
            let words = format!("plan {words} --threads 1 --no-frontier --json{more}");
            lines(&words.split(' ').collect::<Vec<_>>()).unwrap().pop().unwrap()
        };
        let out = scratch.path(&format!("run{i}"));
        let trained = format!("train {words} --threads 1 --json --epochs 1 --out {out}");
        let trained = lines(&trained.split(' ').collect::<Vec<_>>()).unwrap();
        let done = trained.iter().find(|line| line["event"] == "plan").unwrap();
        let planned = plan("");
        for field in ["planned_bytes", "floor_bytes", "unlimited_bytes", "micro_batches", "recomputed_ops"] {
            assert_eq!(planned[field], done[field], "{field} of {words}");
        }
    }
}

#[test]
fn shells_and_man_know_the_command() {
    for shell in ["bash", "zsh", "fish"] {
        let script = run(&format!("completions {shell}"));
        assert!(script.status.success() && said(&script).contains("validation-split"), "{shell}");
    }
    let page = run("man");
    assert!(page.status.success() && said(&page).contains(".TH plimsoll"), "{}", said(&page));
    let help = said(&run("train --help"));
    for heading in
        ["Data:", "Training:", "Memory:", "Model size:", "Machine:", "Run:", "Output:", "Models: demo"]
    {
        assert!(help.contains(heading), "{heading} is missing in {help}");
    }
    assert_eq!(said(&run("--version")).trim(), format!("plimsoll {}", env!("CARGO_PKG_VERSION")));
}

#[test]
fn settings_of_a_file_are_those_of_the_flags() {
    let scratch = Scratch::new("toml");
    let (file, out) = (scratch.path("run.toml"), scratch.path("run"));
    let text = format!(
        "model = \"mlp\"\nwidth = 8\ntake = 32\nbatch = 8\nepochs = 1\nout = \"{out}\"\njson = true\nvalidation-split = 0.25\n"
    );
    fs::write(&file, text).unwrap();
    let all = lines(&["train", &file]).unwrap();
    assert_eq!(
        (all[0]["run"].as_str(), all[0]["samples"].as_u64()),
        (Some(out.as_str()), Some(24)),
        "{all:?}"
    );
    let end = all.last().unwrap();
    assert_eq!(end["event"], "end");
    assert!(Path::new(end["model"].as_str().unwrap()).is_file(), "{end}");
}

#[test]
fn the_least_is_that_of_a_smaller_last_batch_too() {
    // 1500 samples in batches of 512: the last one has 476, for which convolutions need more scratch.
    let scratch = Scratch::new("uneven");
    let words = "cnn --batch 512 --exact bitwise --threads 2 --json";
    let asked = format!("plan {words} --no-frontier");
    let plan = lines(&asked.split(' ').collect::<Vec<_>>()).unwrap().pop().unwrap();
    let least = plan["floor_bytes"].as_u64().unwrap();
    let train = |limit: u64, name: &str| {
        let words = format!("train {words} --epochs 1 --memory {limit} --out {}", scratch.path(name));
        lines(&words.split(' ').collect::<Vec<_>>())
    };
    let refused = train(least - 1, "refused").unwrap_err();
    assert!(refused.contains("cannot be kept"), "{refused}");
    assert!(!Path::new(&scratch.path("refused")).exists());
    let trained = train(least, "least").unwrap();
    assert_eq!(trained.last().unwrap()["step"], 3, "{trained:?}");
}

/// A picture of one color as an uncompressed BMP file.
fn picture(path: &str, side: u32, color: [u8; 3]) {
    let row = (3 * side).next_multiple_of(4);
    let mut file = b"BM".to_vec();
    for number in [54 + row * side, 0, 54, 40, side, side] {
        file.extend(number.to_le_bytes());
    }
    file.extend([1, 0, 24, 0]);
    file.extend([0; 24]);
    for _ in 0..side {
        file.extend((0..side).flat_map(|_| color));
        file.resize(file.len() + (row - 3 * side) as usize, 0);
    }
    fs::write(path, file).unwrap();
}

#[test]
fn photos_are_predicted_with_their_names_classes_and_probabilities() {
    let scratch = Scratch::new("photos");
    for folder in ["data/cat", "data/dog", "photos/deeper"] {
        fs::create_dir_all(scratch.path(folder)).unwrap();
    }
    for i in 0..12u32 {
        picture(&scratch.path(&format!("data/cat/{i}.bmp")), 16, [250, 10, 10 + i as u8]);
        picture(&scratch.path(&format!("data/dog/{i}.bmp")), 16, [10, 10 + i as u8, 250]);
    }
    let (run_folder, data) = (scratch.path("run"), scratch.path("data"));
    let trained = run(&format!(
        "train cnn --width 4 --data {data} --batch 8 --epochs 12 --lr 0.01 -q --out {run_folder}"
    ));
    assert!(trained.status.success(), "{}", said(&trained));
    // The data is no longer needed, and photos are of any size.
    fs::remove_dir_all(&data).unwrap();
    picture(&scratch.path("photos/one, two.bmp"), 40, [250, 10, 10]);
    picture(&scratch.path("photos/deeper/three.bmp"), 7, [10, 10, 250]);
    let (table, rows) = (scratch.path("table.csv"), scratch.path("rows.json"));
    for out in [&table, &rows] {
        let predicted = run(&format!("predict {run_folder} --data {} --out {out}", scratch.path("photos")));
        assert!(predicted.status.success(), "{}", said(&predicted));
    }
    let table = fs::read_to_string(&table).unwrap();
    assert_eq!(table.lines().next(), Some("name,class,probability,cat,dog"));
    assert!(table.contains("\"one, two.bmp\",cat,"), "{table}");
    let rows: serde_json::Value = serde_json::from_slice(&fs::read(&rows).unwrap()).unwrap();
    let three =
        rows.as_array().unwrap().iter().find(|row| row["name"].as_str().unwrap().contains("three")).unwrap();
    assert_eq!(three["class"], "dog", "{rows}");
    let sum: f64 = three["probabilities"].as_object().unwrap().values().map(|p| p.as_f64().unwrap()).sum();
    assert!((sum - 1.0).abs() < 1e-9, "{rows}");
    let single = run(&format!("predict {run_folder} --data {}", scratch.path("photos/deeper/three.bmp")));
    assert!(single.status.success() && said(&single).contains("dog"), "{}", said(&single));
}

#[test]
fn runs_that_begin_at_once_take_folders_of_their_own() {
    let scratch = Scratch::new("at-once");
    let here = scratch.path("here");
    fs::create_dir_all(&here).unwrap();
    let begin = || {
        let mut command = plimsoll();
        command
            .current_dir(&here)
            .args("train mlp --width 4 --take 64 --epochs 1 -q".split(' '))
            .spawn()
            .unwrap()
    };
    let runs: Vec<_> = (0..4).map(|_| begin()).collect();
    for mut child in runs {
        assert!(child.wait().unwrap().success());
    }
    for n in 1..=4 {
        assert!(Path::new(&here).join(format!("runs/mlp-{n}/model.safetensors")).is_file(), "{n}");
    }
}
